"""What every operation has, and how the method of a face is made from one."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from servicebroker.model.conversation_events import Deed

Result = TypeVar("Result", covariant=True)
Method = TypeVar("Method", bound=Callable[..., object])


class Operation(Generic[Result]):
    """A statement of Service Broker as a value: a frozen dataclass, whose `Result` is what its method returns.

    Attributes:
        permission: the row of `model.permissions.NEEDS` that says who may run it; None for whoever may connect.
        deed: what it does to the conversations of `handles`, for who watches them.
        handles: the conversations that it changes.
        joined_groups: those that a new conversation may join.
        messages: how many it puts on each of them.
    """

    __slots__ = ()

    permission: ClassVar[str | None] = None
    deed: ClassVar[Deed | None] = None
    messages: ClassVar[int] = 1

    @property
    def handles(self) -> Sequence[UUID]:  # noqa: D102 # an attribute above
        return ()

    @property
    def joined_groups(self) -> Sequence[UUID]:  # noqa: D102 # an attribute above
        return ()


class Composite(Operation[Result]):
    """An operation that is made of other ones: faces run those, and no interpreter knows it."""

    __slots__ = ()


def described(method: Method, operation: type[Operation[Any]]) -> Method:
    """Return the method under its operation's name, with the operation's help, parameters and result."""
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = inspect.signature(operation)
    signature = own.replace(parameters=[itself, *own.parameters.values()], return_annotation=result_of(operation))
    functools.update_wrapper(method, operation, assigned=("__doc__",), updated=())
    method.__name__ = method.__qualname__ = method_name(operation)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def method_name(operation: type[Operation[Any]]) -> str:
    """Return the name of the operation's method: `send_batch` for SendBatch."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation.__name__).lower()


def result_of(operation: type[Operation[Any]]) -> object:
    """Return the type of what the operation returns, as a signature shows it."""
    (result,) = operation.__orig_bases__[0].__args__  # type: ignore[attr-defined] # that of Operation[...]
    if not isinstance(result, TypeVar):
        return None if result is type(None) else result
    return functools.reduce(lambda one, other: one | other, result.__constraints__)
