"""The base class of all operations, and the methods that APIs make from an operation."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin
from uuid import UUID

from servicebroker.model.conversation_events import ConversationEvent
from servicebroker.overriding import override

Result = TypeVar("Result", covariant=True)
Method = TypeVar("Method", bound=Callable[..., object])


class Operation(Generic[Result]):
    """A statement of Service Broker as a value: a frozen dataclass, whose `Result` is what its method returns.

    Attributes:
        permission: the key of the required permissions in `model.permissions.NEEDS`; None if it requires none.
        event_class: the event that observers get for the conversations of `handles`.
        handles: the conversations that the operation changes.
        joined_groups: the conversation groups that a new conversation may join.
        messages: the number of messages that it sends on each conversation.
        method: the name of its method, if that is not the name of the class.
    """

    __slots__ = ()

    permission: ClassVar[str | None] = None
    event_class: ClassVar[ConversationEvent | None] = None
    messages: ClassVar[int] = 1
    method: ClassVar[str] = ""

    @property
    def handles(self) -> Sequence[UUID]:  # noqa: D102 # an attribute above
        return ()

    @property
    def joined_groups(self) -> Sequence[UUID]:  # noqa: D102 # an attribute above
        return ()


@dataclass(frozen=True, slots=True)
class Named:
    """An object with a case-insensitive name.

    Args:
        name: the name of the object, case-insensitive.
    """

    name: str


@dataclass(frozen=True, slots=True)
class ExactlyNamed:
    """An object with a case-sensitive name.

    Args:
        name: the name of the object, compared byte by byte.
    """

    name: str


class Composite(Operation[Result]):
    """An operation that consists of other operations. The API runs those; interpreters do not know it."""

    __slots__ = ()


class Definition(Operation[Result]):
    """A CREATE, ALTER, DROP, GRANT or similar statement.

    Attributes:
        permission: by default the words of the statement: CREATE MESSAGE TYPE for CreateMessageType.
        exist_ok: True to do nothing if an object of that name exists.
    """

    __slots__ = ()

    permission: ClassVar[str]
    exist_ok: bool = False

    @override
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not any("permission" in vars(base) for base in cls.__mro__ if base is not Operation):
            cls.permission = statement_of(cls)


def copy_documentation(method: Method, operation: type[Operation[Any]]) -> Method:
    """Set the name, docstring and signature of a method to those of its operation, and return the method."""
    method.__doc__ = help_of(operation)
    method.__name__ = method.__qualname__ = method_name(operation)
    kind: Any = operation
    method.__signature__ = _signature_of(kind)  # type: ignore[attr-defined]
    return method


@functools.cache  # the blocking API, the asyncio API and the double need it at import
def _signature_of(operation: Any) -> inspect.Signature:
    own = inspect.signature(operation.__init__)
    return own.replace(return_annotation=result_of(operation))


def help_of(operation: type[Operation[Any]]) -> str:
    """Return the help of an operation. It includes the arguments of base classes."""
    own = inspect.cleandoc(operation.__doc__ or "")
    if not any(is_dataclass(base) for base in operation.__mro__[1:]):
        return own
    texts = arguments_of(operation)
    arguments = [f"\n    {name}:{texts[name]}" for name in inspect.signature(operation).parameters]
    summary, *sections = _sections(own)
    others = [section for section in sections if not section.startswith("Args:")]
    return "\n\n".join([summary, "".join(["Args:", *arguments]), *others])


def summary_of(operation: type[Operation[Any]]) -> str:
    """Return the summary of the operation: its help before the first section."""
    return _sections(inspect.cleandoc(operation.__doc__ or ""))[0]


def _sections(help_: str) -> list[str]:
    return re.split(r"\n\n(?=Args:|Returns:|Raises:)", help_)


def arguments_of(operation: type[Operation[Any]]) -> dict[str, str]:
    """Return the help of each field.

    Fields of base classes are included. "as for" another operation of the module is replaced by its text there.
    """
    help_texts: dict[str, str] = {}
    for base in reversed([base for base in operation.__mro__ if is_dataclass(base)]):
        section = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:")[2].partition("\n\n")[0]
        help_texts.update(re.findall(r"\n    (\w+):(.*(?:\n {8}.*)*)", section))
    for name, text in help_texts.items():
        if reference := re.fullmatch(r" as for `(\w+)`\.", text):
            other = reference[1].title().replace("_", "")
            help_texts[name] = arguments_of(vars(sys.modules[operation.__module__])[other])[name]
    return help_texts


def method_name(operation: type[Operation[Any]]) -> str:
    """Return the name of the operation's method, by default `send_batch` for SendBatch."""
    return operation.method or re.sub(r"(?<!^)(?=[A-Z])", "_", operation.__name__).lower()


def statement_of(operation: type[Operation[Any]]) -> str:
    """Return the name of the operation's statement: CREATE MESSAGE TYPE for CreateMessageType."""
    return method_name(operation).replace("_", " ").upper()


def result_of(operation: type[Operation[Any]]) -> object:
    """Return the type of the operation's result, for a signature."""
    bases: tuple[Any, ...] = operation.__orig_bases__  # type: ignore[attr-defined] # one is Operation[...]
    (result,) = next(base.__args__ for base in bases if hasattr(base, "__args__"))
    if not isinstance(result, TypeVar):
        return None if result is type(None) else result
    return functools.reduce(lambda left, other: left | other, result.__constraints__)


def written_type(hint: Any) -> Any:
    """Return the type of a field in a TOML file or on the command line: str, list[str], or its first other type."""
    if get_origin(hint) is Iterable:
        return list[str]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    kind = str if str in kinds else kinds[0]
    return kind | None if NoneType in get_args(hint) else kind
