"""Call handlers: convert each message to the type of the annotation, and run the handler inside the middleware.

The annotation of a handler's second parameter decides its argument:

* no annotation, Any or Message: the message; with `batch` a list of messages.
* Message[Order]: the message, whose `body` is an Order.
* any other type: the body, as an object of that type.

`bodies.decoder` decides which types a body can be read as. The types are looked up when a worker starts: a codec may
be registered, and a class defined, after the handler.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from inspect import Parameter, formatannotation
from types import SimpleNamespace
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from servicebroker.model import handlers
from servicebroker.model.bodies import decoder
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers import check_kind, check_parameters, check_result
from servicebroker.model.messages import Message
from servicebroker.model.names import DIALOG_TIMER, END_DIALOG, ERROR
from servicebroker.overriding import override

Converter: TypeAlias = Callable[[Message], Any]  # returns the argument of a handler

_SYSTEM_MESSAGE_TYPES = {DIALOG_TIMER, END_DIALOG, ERROR}  # types whose bodies are not the application's
_POSITIONAL = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
_MESSAGE_ANNOTATION = re.compile(r"(?P<list>\w+\[)?(\w+\.)*Message\]?")


class Middleware:
    """A function of the application that makes a context manager around each call of a handler."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.is_async = inspect.isasyncgenfunction(function)
        self._function = function
        self._make: Callable[..., Any] = function
        if self.is_async:
            self._make = asynccontextmanager(function)
        elif inspect.isgeneratorfunction(function):
            self._make = contextmanager(function)
        else:
            check_kind("middleware", function, may_be_async=False)
        check_parameters("middleware", function, "transaction", "message")

    def enter(self, stack: ExitStack, transaction: Any, messages: Any) -> None:
        """Enter the context manager of this middleware; the stack exits it. `messages`: one message, or a list."""
        manager = self._make(transaction, messages)
        if not hasattr(manager, "__exit__"):
            raise self._wrong(manager)
        stack.enter_context(manager)

    async def enter_async(self, stack: AsyncExitStack, transaction: Any, messages: Any) -> None:
        """Enter the context manager of this middleware, asynchronous or not; the stack exits it."""
        manager = self._make(transaction, messages)
        if hasattr(manager, "__aexit__"):
            await stack.enter_async_context(manager)
        elif hasattr(manager, "__exit__"):
            stack.enter_context(manager)
        else:
            raise self._wrong(manager)

    def _wrong(self, manager: object) -> InstanceError:
        return InstanceError(
            f"The middleware {_named(self._function)} has returned an object of type '{type(manager).__name__}': it "
            "must return a context manager, or be a function with one yield."
        )


class Handler:
    """A registered function, which is called with a transaction and a message, or with a list of messages.

    Args:
        function: the application's function.
        middleware: the middleware of the worker, the outermost first; more may be added later.
        is_batch: True if the function gets a list of messages.
        scope: local names at the function's definition, to resolve string annotations.
    """

    def __init__(
        self, function: Callable[..., Any], middleware: list[Middleware], *, is_batch: bool, scope: dict[str, Any]
    ) -> None:
        self.function = function
        self.is_async = handlers.is_async(function)
        self._middleware = middleware
        self._is_batch = is_batch
        self._annotation = _annotation_of(function, scope)
        self._converters: dict[str, Converter] = {}

    def __call__(self, transaction: Any, messages: Any) -> Any:
        """Call the function, or return the coroutine that awaits it."""
        call = self._call_async if self.is_async else self._call
        return call(transaction, messages)

    def prepare(self, message_type: str) -> None:
        """Store the converter for messages of a type. Refuses an annotation to which they cannot be converted.

        Raises:
            BrokerError: 402 the annotation does not fit the message type.
        """
        if isinstance(self._annotation, str):  # the module may have defined its names meanwhile
            self._annotation = _annotation_of(self.function, {})
        subject = f"the annotation of the handler {_named(self.function)} for '{message_type}'"
        self._converters[message_type] = converter_for(subject, self._annotation, message_type, is_batch=self._is_batch)

    def prepare_schedule(self) -> None:
        """Store the converter for messages of a schedule. The annotation must be a message or datetime.

        Raises:
            BrokerError: 402 the annotation is neither a message nor datetime.
        """
        if isinstance(self._annotation, str):
            self._annotation = _annotation_of(self.function, {})
        subject = f"the annotation of the handler {_named(self.function)}"
        if (_item_of(subject, self._annotation) if self._is_batch else self._annotation) is datetime:
            self._converters[DIALOG_TIMER] = lambda message: datetime.fromisoformat(
                (message.message_body or b"").decode()
            )
        else:
            self.prepare(DIALOG_TIMER)

    def _call(self, transaction: Any, messages: Any) -> None:
        with ExitStack() as stack:
            for middleware in self._middleware:
                middleware.enter(stack, transaction, messages)
            check_result(self.function(transaction, self._argument(messages)))

    async def _call_async(self, transaction: Any, messages: Any) -> None:
        async with AsyncExitStack() as stack:
            for middleware in self._middleware:
                await middleware.enter_async(stack, transaction, messages)
            check_result(await self.function(transaction, self._argument(messages)))

    def _argument(self, messages: Any) -> Any:
        return [self._read(message) for message in messages] if self._is_batch else self._read(messages)

    def _read(self, message: Message) -> Any:
        if message.message_type_name not in self._converters:  # a handler of all other types
            self.prepare(message.message_type_name)
        return self._converters[message.message_type_name](message)


def typed_procedure(procedure: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a procedure of `process`, so that it is called with a list of the annotated type.

    Raises:
        BrokerError: 402 the annotation is not a list.
    """
    subject, annotation = f"the annotation of the procedure {_named(procedure)}", _annotation_of(procedure, {})
    if _is_message(_item_of(subject, annotation)):
        return procedure
    converters: dict[str, Converter] = {}

    def call(transaction: Any, messages: list[Message]) -> Any:
        for message in messages:
            name = message.message_type_name
            if name not in converters:
                converters[name] = converter_for(f"{subject} for '{name}'", annotation, name, is_batch=True)
        return procedure(transaction, [converters[message.message_type_name](message) for message in messages])

    return call


def converter_for(subject: str, annotation: Any, message_type: str, *, is_batch: bool) -> Converter:
    """Return the function that converts a message of this type to the argument; with `is_batch`, to an item of it.

    `subject` begins the text of an error: the annotation, and whose it is.

    Raises:
        BrokerError: 402 bodies of this message type cannot be converted to the annotated type.
    """
    wanted = _item_of(subject, annotation) if is_batch else annotation
    if isinstance(wanted, str):
        raise BrokerError(
            402, subject, f"'{wanted}'", "one whose names its module imports at run time, not only under TYPE_CHECKING"
        )
    if _is_message(wanted):
        return _unchanged
    is_message = get_origin(wanted) is Message
    if message_type in _SYSTEM_MESSAGE_TYPES:
        if is_message:
            return _unchanged
        raise BrokerError(
            402,
            subject,
            formatannotation(wanted),
            "Message: the broker itself sends messages of this type, without a body of the application",
        )
    decode = decoder(subject, message_type, get_args(wanted)[0] if is_message else wanted)
    if not is_message:
        return lambda message: decode(message.message_body)

    class TypedMessage(Message[Any]):
        """A message whose body is read as the type of the annotation."""

        __slots__ = ()

        @override
        @property
        def body(self) -> Any:
            return decode(self.message_body)

        @override
        def __reduce__(self) -> tuple[Any, ...]:
            return Message, tuple(self)

    TypedMessage.__name__ = Message.__name__
    return TypedMessage._make


def _unchanged(message: Message) -> Message:
    return message


def _is_message(annotation: Any) -> bool:
    """Return whether an argument with this annotation is a message as it was received."""
    if annotation is Any or annotation == Message[Any] or getattr(annotation, "_is_protocol", False):
        return True
    # also a base class of Message: tuple, Sequence, object
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(Message, annotation)


def _item_of(subject: str, annotation: Any) -> Any:
    """Return the annotation of the items of a list.

    Raises:
        BrokerError: 402 the annotation is not a list.
    """
    if isinstance(annotation, str) or _is_message(annotation):
        return annotation
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type) or not issubclass(list, kind):  # also a base class of list: Sequence, Iterable
        item = formatannotation(annotation)
        raise BrokerError(402, subject, item, f"a list, as the function gets several: list[{item}]")
    return next(iter(get_args(annotation)), Any)


def _annotation_of(function: Callable[..., Any], scope: dict[str, Any]) -> Any:
    """Return the annotation of the second parameter; Any without one.

    A string annotation with unknown names is returned unchanged.
    """
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in _POSITIONAL]
    except ValueError:  # a C function without a signature
        return Any
    if len(parameters) < 2 or parameters[1].annotation is Parameter.empty:
        return Any
    annotation = parameters[1].annotation
    names = getattr(inspect.unwrap(handlers.underlying_function(function)), "__globals__", {})
    holder = SimpleNamespace(__annotations__={"argument": annotation})
    try:
        return get_type_hints(holder, {**names, **scope}, include_extras=True)["argument"]
    except Exception:  # evaluating the annotation may raise any exception
        text = _MESSAGE_ANNOTATION.fullmatch(annotation.strip("'\"")) if isinstance(annotation, str) else None
        if text is None:
            return annotation
        return list[Message] if text["list"] else Message


def _named(function: Callable[..., Any]) -> str:
    return f"'{getattr(function, '__qualname__', type(function).__name__)}'"
