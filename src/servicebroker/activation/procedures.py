"""Activation procedures: register Python functions, and resolve the name in ACTIVATION.

    import servicebroker as sb

    @sb.procedure("usp_Orders")
    def orders(transaction: sb.Transaction, message: sb.Message) -> None:
        ...

To start a reader, *resolvers* look up the queue's PROCEDURE_NAME, one after the other:

    resolve(database, name) -> Procedure | None

`database` is the broker database in the procedure's three-part name, opened as dbo. `name` is `schema.procedure` in
brackets, `[dbo].[usp_Orders]`. A `Procedure` is any callable that takes a `Call`. An exception ends its task (28088).
So another language has to provide only a resolver and a `Procedure`.
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
from servicebroker.model.wording import short_repr
from servicebroker.operations.receive import Receive

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase
    from servicebroker.api.database import Database

ENTRY_POINTS = "servicebroker.procedures"
DEFAULT_WAIT_S = 0.5  # a reader ends after this time without a message

Form = Literal["message", "batch", "transaction", "database"]
Worker = Literal["thread", "process"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Call:
    """The context of a call of an activated procedure.

    Attributes:
        database: the queue's database, as the principal of EXECUTE AS.
        queue: `schema.queue`.
        stopping: a function that returns True if the task has to end after the work in progress.
        output: a function that writes a text to the log (9724), as PRINT does.
        run_async: a function that runs a coroutine function on the database in its asyncio form, and waits for it.
    """

    database: Database
    queue: str
    stopping: Callable[[], bool]
    output: Callable[[str], None]
    run_async: Callable[[Callable[[AsyncDatabase], Awaitable[None]]], None]


class Procedure(Protocol):
    """An activation procedure, called once per activation. `worker` chooses a thread or a process for the call."""

    @property
    def worker(self) -> Worker:
        """ "thread" or "process"."""
        ...

    def __call__(self, call: Call) -> None:
        """Do the work."""
        ...


Resolver = Callable[["Database", str], "Procedure | None"]


@dataclass(frozen=True)
class PythonProcedure:
    """A Python function that `procedure` has registered. The fields are the arguments of `procedure`."""

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
        """True for a coroutine function, or an object with a coroutine `__call__`."""
        return is_async(self.function)

    @property
    def source(self) -> str:
        """The module name or file that another process imports to register the function."""
        module = self.function.__module__
        is_file = module == "__main__" or module in _from_files
        return inspect.getfile(self.function) if is_file else module

    def __call__(self, call: Call) -> None:
        """Run the function in its form, until no message comes for `wait` seconds."""
        if self.is_async:
            call.run_async(lambda database: self._run_async(database, call))
        elif self.form == "database":
            check_result(self.function(call.database))
        elif self.form == "transaction":
            with call.database.transaction() as transaction:
                check_result(self.function(transaction))
        else:
            process(
                call.database, self._receive(call), self._batch_function(), poison=self.poison, stopping=call.stopping
            )

    async def _run_async(self, database: AsyncDatabase, call: Call) -> None:
        if self.form == "database":
            check_result(await self.function(database))
        elif self.form == "transaction":
            async with database.transaction() as transaction:
                check_result(await self.function(transaction))
        else:
            await process_async(
                database, self._receive(call), self._batch_function(), poison=self.poison, stopping=call.stopping
            )

    def _receive(self, call: Call) -> Receive:
        """Return the RECEIVE statement of the queue."""
        return Receive(call.queue, top=self.top, groups=self.groups, wait=self.wait)

    def _batch_function(self) -> Callable[[Any, list[Any]], Any]:
        """Return the function in a form that takes a list of messages."""
        if self.form == "batch":
            return self.function
        return lambda transaction, messages: self.function(transaction, messages[0])


_from_files: set[str] = set()  # modules loaded from files
_registered: dict[tuple[str, ...], PythonProcedure] = {}


def procedure(
    name: str | None = None,
    *,
    form: Form = "message",
    top: int | None = None,
    groups: int = 1,
    wait: float = DEFAULT_WAIT_S,
    worker: Worker = "thread",
    poison: Policy | None = None,
) -> Callable[[F], F]:
    """Register a function, or a coroutine function, as an activation procedure.

    Args:
        name: as in PROCEDURE_NAME: `procedure`, `schema.procedure` or `database.schema.procedure`, case-insensitive.
            The default schema is dbo; without a database the name is for all databases. Without a name, the function's
            own name is used.
        form: arguments of the function, and how often it is called. "message": (transaction, message), each message in
            a transaction of its own, committed when the function returns. "batch": (transaction, messages), the
            messages of one conversation group in one transaction: the fast form. "transaction": (transaction); the
            function executes RECEIVE itself, and is called once. "database": (database); the function commits or rolls
            back whatever it begins.
        top: in the form "batch", the maximum of messages at a time.
        groups: in the forms "message" and "batch", the number of conversation groups, at most 60, in one transaction,
            with a call for each (docs/how-to/many-small-conversations.md).
        wait: seconds that "message" and "batch" wait for a further message before the reader ends.
        poison: in the forms "message" and "batch", the policy for a message whose processing raises.
        worker: "thread", or "process" for a child process, so that a crash of the procedure affects nothing else.

    Raises:
        BrokerError: 9653 the function does not take the arguments of its form; 9609 the name; 402 a generator function,
            or an invalid argument.
    """
    if callable(name):
        raise BrokerError(402, "procedure", short_repr(name), 'the name of the procedure: @procedure("name")')
    if form not in get_args(Form):
        raise BrokerError(402, "form", short_repr(form), ", ".join(get_args(Form)))
    if worker not in get_args(Worker):
        raise BrokerError(402, "worker", short_repr(worker), "thread or process")
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1 or form != "batch"):
        raise BrokerError(402, "top", short_repr(top), 'a positive int, in the form "batch"')
    check_groups(groups)
    if groups > 1 and form not in ("message", "batch"):
        raise BrokerError(402, "groups", str(groups), '1, unless the form is "message" or "batch"')
    check_wait(wait)
    check_policy(poison)
    if poison is not None and form not in ("message", "batch"):
        raise BrokerError(402, "poison", "a policy", 'None, unless the form is "message" or "batch"')

    def register(function: F) -> F:
        check_kind("procedure", function, may_be_async=True)
        procedure_name = function.__name__ if name is None else name
        key = tuple(part.lower() for part in names.name_parts("procedure", procedure_name, 3))
        _check_signature(procedure_name, function, 1 if form in ("transaction", "database") else 2)
        messages_per_call = 1 if form == "message" else top
        _registered[_qualified(key)] = PythonProcedure(
            procedure_name, function, form, messages_per_call, groups, wait, worker, poison
        )
        return function

    return register


def _check_signature(name: str, function: Callable[..., Any], arguments: int) -> None:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        raise BrokerError(9653, name, hint=f"It is called with {arguments} positional arguments.") from None


def _qualified(key: tuple[str, ...]) -> tuple[str, ...]:
    return key if len(key) > 1 else ("dbo", *key)


def find_registered(database: Database, name: str) -> PythonProcedure | None:
    """Resolve a procedure that `procedure` has registered in this process."""
    key = tuple(part.lower() for part in names.name_parts("procedure", name, 2))
    return _registered.get((database.name.lower(), *key)) or _registered.get(key)


def load(modules: Iterable[str]) -> None:
    """Import modules, which register their procedures: the given names or files, and the entry points.

    Raises:
        InstanceError: a module cannot be imported.
    """
    for entry in entry_points(group=ENTRY_POINTS):
        _run_import(entry.name, entry.load)
    for module in modules:
        _run_import(module, lambda module=module: _import_module(module))  # type: ignore[misc]


def _run_import(name: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as problem:
        raise InstanceError(
            f"The procedures of '{name}' cannot be imported ({type(problem).__name__}: {problem}). Correct the module, "
            "or its name after --procedures."
        ) from problem


def _import_module(module: str) -> None:
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
