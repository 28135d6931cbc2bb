"""Workers as values: a queue, the handlers of its messages by type, and a policy for failed messages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from servicebroker.model.arguments import check_count, check_groups, check_policy, check_switch, messages_per_second
from servicebroker.model.errors import BodyError, BrokerError, InstanceError
from servicebroker.model.handlers import check_kind, check_parameters
from servicebroker.model.handlers.typed import Handler, Middleware
from servicebroker.model.messages import Message
from servicebroker.model.names import END_DIALOG
from servicebroker.model.poison import Failure, Policy, SetAside, Verdict, give_up_after
from servicebroker.model.wording import shown

F = TypeVar("F", bound=Callable[..., Any])

UNANSWERABLE = {8426, 8429}  # the conversation is gone, was ended by the other side, or has failed

_OTHERS = ""  # the key of the handler of all other types


def by_default(failure: Failure) -> Verdict:
    """Retry five times, after 1, 2, 4, 8 and 16 seconds, then keep a dead letter; at once if no retry can help."""
    error = failure.error
    cannot_be_answered = isinstance(error, BrokerError) and error.number in UNANSWERABLE
    return SetAside() if cannot_be_answered or isinstance(error, BodyError) else _patient(failure)


_patient = give_up_after(5, SetAside(), pause=1.0)


class Worker:
    """A reader of a queue. A failure of a handler affects its message only.

        stock = sb.Worker("StockQueue")

        @stock.on("//shop/Order")
        def order(tx: sb.Transaction, message: sb.Message[Order]) -> None:
            tx.send(message.conversation_handle, "//shop/Confirmation", b"...")

    It is run by `servicebroker worker module:stock`, or by `with database.working(stock): ...`. Each call of a handler
    has a transaction of its own, in which its message was received, except with `groups`. EndDialog is answered with
    END CONVERSATION, and an Error too, which is logged; handlers of these types are called first.

    Attributes:
        queue: its name.
        batch: None, and handlers get (transaction, message); or a number, and they get (transaction, messages): at most
            that many consecutive messages of one conversation group.
        groups: the number of conversation groups, at most 60, that share a transaction. This makes conversations of few
            messages several times as fast. An exception of a handler undoes only the work for its group.
        answers_ends: EndDialog is answered without a handler, for many conversations at a time; needs more than one of
            `groups`. An Error still reaches its handler, or is logged.
        poison: the policy for a message whose handler raises an exception.
        concurrency: the number of messages that each process handles at a time; None for that of `working` or of the
            command.
        rate: the most messages that each process handles in a time, spread evenly, as "100/s", "30/min" or "1000/h".
    """

    def __init__(
        self,
        queue: str,
        *,
        batch: int | None = None,
        groups: int = 1,
        answers_ends: bool = False,
        poison: Policy = by_default,
        concurrency: int | None = None,
        rate: str | None = None,
    ) -> None:
        if not isinstance(queue, str):
            raise BrokerError(402, "queue", type(queue).__name__, "str, the name of a queue")
        if batch is not None:
            check_count("batch", batch)
        check_groups(groups)
        check_switch("answers_ends", answers_ends)
        if answers_ends and groups == 1:
            raise BrokerError(402, "answers_ends", "True", "False with one of `groups`: ends are answered for many")
        check_policy(poison)
        if concurrency is not None:
            check_count("concurrency", concurrency)
        self.per_second = None if rate is None else messages_per_second(rate)
        self.queue = queue
        self.batch = batch
        self.groups = groups
        self.answers_ends = answers_ends
        self.poison = poison
        self.concurrency = concurrency
        self.rate = rate
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []

    def on(self, *message_types: str) -> Callable[[F], F]:
        """Register the function as handler of these message types; without any, of all types without another handler.

        `sb.DIALOG_TIMER`, `sb.END_DIALOG` and `sb.ERROR` are types as well. The annotation of the second parameter says
        what the function gets. Without one, or with `sb.Message`, it gets the message. With `sb.Message[Order]` the
        `body` of the message is an Order, and with `Order` the function gets the body. A dataclass, a msgspec.Struct
        and a model of pydantic are read from JSON, str as UTF-8, bytes as they are. With `batch` it is a list of these.

        Raises:
            BrokerError: 402 an argument that is no name, a type that has a handler, END_DIALOG with `answers_ends`, a
                coroutine function beside a plain one, a generator function, or one that does not take two arguments.
        """
        for given in message_types:
            if not isinstance(given, str):
                raise BrokerError(402, "on", shown(given), 'the name of a message type: @worker.on("//shop/Order")')
        if self.answers_ends and END_DIALOG in message_types:
            raise BrokerError(402, "on", "END_DIALOG", "another type: this worker answers ends without a handler")

        def register(function: F) -> F:
            if not callable(function):
                raise BrokerError(402, "on", shown(function), "a function of a transaction and its messages")
            check_kind("on", function, may_be_async=True)
            check_parameters("on", function, "transaction", "message" if self.batch is None else "messages")
            scope = sys._getframe(1).f_locals  # an annotation may name a class of the decorating function
            handler = Handler(function, self._middleware, is_batch=self.batch is not None, scope=scope)
            if self._handlers and handler.is_async != self.is_async:
                raise BrokerError(402, "on", "async def beside def", "the same for all handlers of a worker")
            for message_type in message_types or (_OTHERS,):
                if message_type in self._handlers:
                    raise BrokerError(402, "on", f"'{message_type}', which has a handler", "another message type")
                self._handlers[message_type] = handler
            return function

        return register

    def middleware(self, function: F) -> F:
        """Register a function that wraps each call of a handler: with one `yield`, or that returns a context manager.

            @stock.middleware
            def timed(tx, message):
                with metrics.timer(message.message_type_name):
                    yield

        It gets the transaction and the message; with `batch`, the list of messages. The first that is registered is
        the outermost. What a handler raises is raised at the `yield`. An exception of the middleware is a failure of
        the message, as one of the handler. With `async def` handlers both forms may be used, `async def` too.

        Raises:
            BrokerError: 402 a coroutine function without `yield`, or one that does not take two arguments.
        """
        if not callable(function):
            raise BrokerError(402, "middleware", shown(function), "a function of a transaction and a message")
        self._middleware.append(Middleware(function))
        return function

    @property
    def is_async(self) -> bool:
        """True if its handlers are coroutine functions."""
        return any(handler.is_async for handler in self._handlers.values())

    def check(self, *, is_async: bool) -> None:
        """Refuse a worker that cannot run here.

        Raises:
            BrokerError: 402 it has no handler, handlers or middleware of the other kind, or an annotation that messages
                of the type cannot be read as.
        """
        if not self._handlers:
            raise BrokerError(402, "worker", "one without handlers", 'given one: @worker.on("//shop/Order")')
        if self.is_async != is_async:
            kinds = "functions", "coroutine functions (async def)"
            raise BrokerError(402, "worker", f"one of {kinds[self.is_async]}", f"one of {kinds[is_async]} here")
        if not is_async and any(middleware.is_async for middleware in self._middleware):
            raise BrokerError(402, "middleware", "an async generator function", "a plain one, as the handlers are")
        for message_type, handler in self._handlers.items():
            if message_type != _OTHERS:
                handler.check(message_type)

    def handler_of(self, message: Message) -> Handler | None:
        """Return the handler of a message; None for an EndDialog or Error without a handler.

        Raises:
            InstanceError: its type has no handler.
        """
        given = self._handlers.get(message.message_type_name)
        if given is not None or message.is_end_dialog or message.is_error:
            return given
        if _OTHERS in self._handlers:
            return self._handlers[_OTHERS]
        raise InstanceError(
            f"The worker of {self.queue} has no handler for messages of type '{message.message_type_name}': register "
            f"one with @worker.on({message.message_type_name!r})."
        )
