"""Activation procedures: how they are written in Python, and how the name in ACTIVATION finds one.

    import servicebroker as sb

    @sb.procedure("usp_Orders")
    def orders(transaction: sb.Transaction, message: sb.Message) -> None:
        ...

A queue's PROCEDURE_NAME is looked up by *resolvers*, one after the other, each time a reader is to be started:

    resolve(database, name) -> Procedure | None

`database` is the broker database that the procedure's three-part name says, opened as dbo; `name` is `schema.procedure`
in brackets, `[dbo].[usp_Orders]`. A `Procedure` is anything that can be called with
a `Call`; it does its work there and returns. What it raises ends its task (28088). That is all that another language
has to bring: a resolver and a `Procedure`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from servicebroker.api.aio.processing import process as process_async
from servicebroker.api.processing import process
from servicebroker.model import names
from servicebroker.model.arguments import check_groups, check_policy, check_wait
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers import check_kind, check_result, is_async
from servicebroker.model.poison import Policy
from servicebroker.model.wording import shown
from servicebroker.operations.receive import Receive

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase
    from servicebroker.api.database import Database

ENTRY_POINTS = "servicebroker.procedures"
IDLE = 0.5  # seconds that a reader stays for the next message, as the field advises

Form = Literal["message", "batch", "transaction", "database"]
Worker = Literal["thread", "process"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Call:
    """What an activated procedure gets to work with.

    Attributes:
        database: the queue's database, as the principal of EXECUTE AS.
        queue: `schema.queue`.
        stopping: whether the task is to end after the work in progress.
        output: writes a text to the log (9724); what PRINT does.
        run_async: runs a coroutine function on the same database in its asyncio form, and waits for it.
    """

    database: Database
    queue: str
    stopping: Callable[[], bool]
    output: Callable[[str], None]
    run_async: Callable[[Callable[[AsyncDatabase], Awaitable[None]]], None]


class Procedure(Protocol):
    """Called once for each activation. `worker` says where: a thread, or a process of its own."""

    @property
    def worker(self) -> Worker:
        """Where it runs."""
        ...

    def __call__(self, call: Call) -> None:
        """Do the work."""
        ...


Resolver = Callable[["Database", str], "Procedure | None"]


@dataclass(frozen=True)
class PythonProcedure:
    """A function that was registered under a name; see `procedure`."""

    name: str
    function: Callable[..., Any]
    form: Form
    top: int | None
    groups: int
    wait: float
    worker: Worker
    poison: Policy | None

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, or an object whose calls are such."""
        return is_async(self.function)

    @property
    def source(self) -> str:
        """What another process imports to have it registered: a module's name, or a file."""
        module = self.function.__module__
        is_file = module == "__main__" or module in _from_files
        return inspect.getfile(self.function) if is_file else module

    def __call__(self, call: Call) -> None:
        """Run it in its form, until it has found nothing for `wait` seconds."""
        if self.is_async:
            call.run_async(lambda database: self._run_async(database, call))
        elif self.form == "database":
            check_result(self.function(call.database))
        elif self.form == "transaction":
            with call.database.transaction() as transaction:
                check_result(self.function(transaction))
        else:
            process(call.database, self._receive(call), self._taking(), poison=self.poison, stopping=call.stopping)

    async def _run_async(self, database: AsyncDatabase, call: Call) -> None:
        if self.form == "database":
            check_result(await self.function(database))
        elif self.form == "transaction":
            async with database.transaction() as transaction:
                check_result(await self.function(transaction))
        else:
            await process_async(
                database, self._receive(call), self._taking(), poison=self.poison, stopping=call.stopping
            )

    def _receive(self, call: Call) -> Receive:
        """The RECEIVE of its queue."""
        return Receive(call.queue, top=self.top, groups=self.groups, wait=self.wait)

    def _taking(self) -> Callable[[Any, list[Any]], Any]:
        """The function, as one of a list of messages."""
        if self.form == "batch":
            return self.function
        return lambda transaction, messages: self.function(transaction, messages[0])


_from_files: set[str] = set()  # modules that were loaded by file
_registered: dict[tuple[str, ...], PythonProcedure] = {}


def procedure(
    name: str | None = None,
    *,
    form: Form = "message",
    top: int | None = None,
    groups: int = 1,
    wait: float = IDLE,
    worker: Worker = "thread",
    poison: Policy | None = None,
) -> Callable[[F], F]:
    """Register a function, or a coroutine function, as an activation procedure.

    Args:
        name: as in PROCEDURE_NAME: `procedure`, `schema.procedure` or `database.schema.procedure`, compared without
            case; dbo when no schema is given, any database when none is. Without it the function's own name.
        form: what the function gets, and how often it is called.
            "message": (transaction, message), each message in a transaction of its own, committed when it returns;
            "batch": (transaction, messages), what one conversation group has, in one transaction: the fast form;
            "transaction": (transaction); it executes RECEIVE itself, and is called once;
            "database": (database); nothing is begun for it, and what it begins it must commit or roll back.
        top: in the form "batch", at most so many messages at a time.
        groups: in the forms "message" and "batch", so many conversation groups, 60 at most, share a transaction, with a
            call for each (docs/how-to/many-small-conversations.md).
        wait: seconds that "message" and "batch" wait for a further message before the reader ends.
        poison: in the forms "message" and "batch", says what happens to a message whose processing raises.
        worker: "thread", or "process" for one of its own, which a crash of the procedure does not share.

    Raises:
        BrokerError: 9653 the function does not take what its form gives, 9609 name, 402 a generator function, and
            other arguments.
    """
    if callable(name):
        raise BrokerError(402, "procedure", shown(name), 'the name of the procedure: @procedure("name")')
    if form not in get_args(Form):
        raise BrokerError(402, "form", shown(form), ", ".join(get_args(Form)))
    if worker not in get_args(Worker):
        raise BrokerError(402, "worker", shown(worker), "thread or process")
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1 or form != "batch"):
        raise BrokerError(402, "top", shown(top), 'a positive int, in the form "batch"')
    check_groups(groups)
    if groups > 1 and form not in ("message", "batch"):
        raise BrokerError(402, "groups", str(groups), '1, unless the form is "message" or "batch"')
    check_wait(wait)
    check_policy(poison)
    if poison is not None and form not in ("message", "batch"):
        raise BrokerError(402, "poison", "a policy", 'None, unless the form is "message" or "batch"')

    def register(function: F) -> F:
        check_kind("procedure", function, may_be_async=True)
        called = function.__name__ if name is None else name
        key = tuple(part.lower() for part in names.name_parts("procedure", called, 3))
        _check_signature(called, function, 1 if form in ("transaction", "database") else 2)
        taken = 1 if form == "message" else top
        _registered[_qualified(key)] = PythonProcedure(called, function, form, taken, groups, wait, worker, poison)
        return function

    return register


def _check_signature(name: str, function: Callable[..., Any], arguments: int) -> None:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        raise BrokerError(9653, name, hint=f"It is called with {arguments} positional arguments.") from None


def _qualified(key: tuple[str, ...]) -> tuple[str, ...]:
    return key if len(key) > 1 else ("dbo", *key)


def registered(database: Database, name: str) -> PythonProcedure | None:
    """The resolver of what `procedure` has registered in this process."""
    key = tuple(part.lower() for part in names.name_parts("procedure", name, 2))
    return _registered.get((database.name.lower(), *key)) or _registered.get(key)


def load(modules: Iterable[str]) -> None:
    """Import modules, by name or by file, so that they register their procedures; and those of the entry points.

    Raises:
        InstanceError: one cannot be imported; the message says which and why.
    """
    for entry in entry_points(group=ENTRY_POINTS):
        _imported(entry.name, entry.load)
    for module in modules:
        _imported(module, lambda module=module: _import(module))  # type: ignore[misc]


def _imported(name: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as problem:
        raise InstanceError(
            f"The procedures of '{name}' cannot be imported ({type(problem).__name__}: {problem})."
        ) from problem


def _import(module: str) -> None:
    path = Path(module)
    if path.suffix != ".py":
        importlib.import_module(module)
        return
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InstanceError("there is no such file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    _from_files.add(path.stem)
    spec.loader.exec_module(loaded)
