"""The base of all operations, and how the method of a face is made from one."""

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

Result = TypeVar("Result", covariant=True)
Method = TypeVar("Method", bound=Callable[..., object])


class Operation(Generic[Result]):
    """A statement of Service Broker as a value: a frozen dataclass, whose `Result` is what its method returns.

    Attributes:
        permission: the row of `model.permissions.NEEDS` that says who may run it; None if it asks for none.
        event_class: the event of the conversations of `handles`, for observers.
        handles: the conversations that the operation changes.
        joined_groups: the conversation groups that a new conversation may join.
        messages: how many messages it sends on each conversation.
        method: the name of its method, if that is not its own name.
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
    """An object, by its name.

    Args:
        name: compared without case.
    """

    name: str


@dataclass(frozen=True, slots=True)
class ExactlyNamed:
    """An object, by its name.

    Args:
        name: compared byte by byte.
    """

    name: str


class Composite(Operation[Result]):
    """An operation that is made of other ones: faces run those, and no interpreter knows it."""

    __slots__ = ()


class Definition(Operation[Result]):
    """A CREATE, an ALTER, a DROP or their like.

    Attributes:
        permission: the row of its statement, if it names no other one: CREATE MESSAGE TYPE for CreateMessageType.
        exist_ok: whether an object of its name may exist, so that nothing is done.
    """

    __slots__ = ()

    permission: ClassVar[str]
    exist_ok: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not any("permission" in vars(base) for base in cls.__mro__ if base is not Operation):
            cls.permission = statement_of(cls)


def described(method: Method, operation: type[Operation[Any]]) -> Method:
    """Return the method under its operation's name, with the operation's help, parameters and result."""
    method.__doc__ = help_of(operation)
    method.__name__ = method.__qualname__ = method_name(operation)
    kind: Any = operation
    method.__signature__ = _signature_of(kind)  # type: ignore[attr-defined]
    return method


@functools.cache  # two faces and the double ask, when a program begins
def _signature_of(operation: Any) -> inspect.Signature:
    own = inspect.signature(operation.__init__)
    return own.replace(return_annotation=result_of(operation))


def help_of(operation: type[Operation[Any]]) -> str:
    """Return the help of an operation, with the arguments that it shares with others."""
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

    Fields of shared bases are included. "as for" another operation of the module is replaced by the help there.
    """
    told: dict[str, str] = {}
    for base in reversed([base for base in operation.__mro__ if is_dataclass(base)]):
        section = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:")[2].partition("\n\n")[0]
        told.update(re.findall(r"\n    (\w+):(.*(?:\n {8}.*)*)", section))
    for name, text in told.items():
        if found := re.fullmatch(r" as for `(\w+)`\.", text):
            other = found[1].title().replace("_", "")
            told[name] = arguments_of(vars(sys.modules[operation.__module__])[other])[name]
    return told


def method_name(operation: type[Operation[Any]]) -> str:
    """Return the name of the operation's method: `send_batch` for SendBatch, if it names no other one."""
    return operation.method or re.sub(r"(?<!^)(?=[A-Z])", "_", operation.__name__).lower()


def statement_of(operation: type[Operation[Any]]) -> str:
    """Return the words of the operation's statement: CREATE MESSAGE TYPE for CreateMessageType."""
    return method_name(operation).replace("_", " ").upper()


def result_of(operation: type[Operation[Any]]) -> object:
    """Return the type of the operation's result, as a signature shows it."""
    bases: tuple[Any, ...] = operation.__orig_bases__  # type: ignore[attr-defined] # one is Operation[...]
    (result,) = next(base.__args__ for base in bases if hasattr(base, "__args__"))
    if not isinstance(result, TypeVar):
        return None if result is type(None) else result
    return functools.reduce(lambda left, other: left | other, result.__constraints__)


def written_type(hint: Any) -> Any:
    """Return the type of a field where a person writes it: str for what may be a text, a list for several texts."""
    if get_origin(hint) is Iterable:
        return list[str]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    kind = str if str in kinds else kinds[0]
    return kind | None if NoneType in get_args(hint) else kind
