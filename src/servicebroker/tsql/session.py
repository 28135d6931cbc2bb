"""A T-SQL session: one connection with its database, options, transaction and temporary tables.

with Session(database) as session:
    session.execute("BEGIN TRANSACTION; SEND ON CONVERSATION @h ...")
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import psycopg

from servicebroker.api.transaction import release_group_locks
from servicebroker.model.client_kind import entered_by
from servicebroker.model.errors import BrokerError
from servicebroker.store.direct import send_queued
from servicebroker.store.running import fetch
from servicebroker.tsql.context import Context
from servicebroker.tsql.date_texts import DATE_ORDER
from servicebroker.tsql.interpreter import (  # noqa: F401 # registers the runners of their statements
    calls,
    control,
    conversations,
    cursors,
    message_statements,
    receive,
    result_sets,
)
from servicebroker.tsql.interpreter.call_frame import CallFrame
from servicebroker.tsql.interpreter.definitions import (  # noqa: F401
    authorization,
    keys_and_certificates,
    objects,
    permission_queries,
    principals,
    schema_transfer,
    synonyms,
    user_functions,
    user_types,
)
from servicebroker.tsql.interpreter.evaluation import infer_type
from servicebroker.tsql.interpreter.machine import BatchAborted, Cancelled, Machine, ScopeAborted
from servicebroker.tsql.interpreter.procedures import (  # noqa: F401
    applocks,
    catalog_procedures,
    console_commands,
    foreach_procedures,
    general_procedures,
    help_procedures,
    renaming,
    unsupported_procedures,
    xml_documents,
)
from servicebroker.tsql.interpreter.queries import Queries
from servicebroker.tsql.interpreter.table_variables import save_table_variables
from servicebroker.tsql.parser import parse
from servicebroker.tsql.postgres_errors import from_broker, from_postgres
from servicebroker.tsql.results import Listener, Results
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Argument, Execute, Name, Statement, Variable
from servicebroker.tsql.tokens import Batch, batches
from servicebroker.tsql.types import INT, NVARCHAR, SYSNAME, SqlType

if TYPE_CHECKING:
    from servicebroker.api.database import Database
    from servicebroker.model.security.permissions import Login
    from servicebroker.store.direct import DirectConnection

_NAMES_SQL = """
select name from servicebroker.queues where database_id = $1
union select name from servicebroker.services where database_id = $1
union select name from servicebroker.message_types where database_id = $1
union select name from servicebroker.service_contracts where database_id = $1
union select name from servicebroker.tsql_modules where database_id = $1
"""
_MAX_CACHED_TEXTS = 2000
_MAX_CACHED_SCRIPT_CHARS = 300  # short scripts repeat, as calls of procedures do
_MAX_CACHED_BATCH_CHARS = 20_000  # longer batches rarely run twice
_MAX_CACHED_CHARS_IN_ALL = 2_000_000  # statements take some hundred bytes for each character


_PROCEDURE, _RETURNED = "@rpc$procedure", "@rpc$returned"  # cannot be names of a script's variables
_CANCEL_TIMEOUT_S = 5.0  # the time to reach PostgreSQL with a cancel request


class CallArgument(NamedTuple):
    """An argument of `Session.call_procedure`.

    Attributes:
        name: the parameter's name with @, or "" for the parameter of this position.
        type, value: the argument.
        is_output: True to return the parameter's value after the call.
        is_default: True for the parameter's default.
    """

    name: str
    type: SqlType
    value: object
    is_output: bool = False
    is_default: bool = False


class CallResult(NamedTuple):
    """The result of `Session.call_procedure`: the return code, and the values of OUTPUT arguments in their order."""

    return_code: int
    outputs: tuple[object, ...]


class Session:
    """A T-SQL session, opened by a `with` block. It must not be used by two threads at a time, except for `cancel`.

    `login` is the login of a client that has signed in; without one, the session works as the connection's role.

    Attributes:
        machine: the interpreter of statements.
    """

    def __init__(
        self,
        database: Database,
        listener: Listener | None = None,
        connection: DirectConnection | None = None,
        *,
        login: Login | None = None,
    ) -> None:
        self._database = database
        self._listener = listener
        self._shared_connection = connection
        self._login = login
        self._cancel_lock = threading.Lock()  # held while a cancel request is on its way
        self._temporary: dict[str, str] = {}  # temporary tables of earlier batches
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        instance = self._database.instance
        connection = self._shared_connection or self._resources.enter_context(instance.connection())
        self.machine = Machine(instance, connection, self._listener or (lambda item: None))
        self.machine.context = Context(self.machine, self._database)
        self.machine.queries = Queries(self.machine)
        self.machine.transactions.on_undo = self.machine.queries.invalidate_all
        self.machine.transactions.save_tables = functools.partial(save_table_variables, self.machine)
        if self._shared_connection is not None:
            self.machine.transactions.count = 1
            self.machine.transactions.is_external = True
        if self._login is not None:
            try:
                self.machine.context.log_in(self._login)
            except BaseException:
                self._resources.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        machine = self.machine
        try:
            if not machine.connection.closed:
                self._leave(machine)
        finally:
            self._resources.close()

    def _leave(self, machine: Machine) -> None:
        """Roll back an open transaction, and release the locks and tables of the session."""
        if self._shared_connection is None and machine.transactions.count:
            machine.context.roll_back()
        machine.transactions.release_guard()
        if self._shared_connection is not None and machine.transactions.has_begun():
            send_queued(machine.connection)
        try:
            applocks.release_all(machine)
            machine.queries.close()
        except psycopg.Error:
            if self._shared_connection is None:
                machine.connection.close()  # its settings must not reach another session
        if self._shared_connection is None:
            release_group_locks(machine.connection)

    def run(
        self,
        script: str,
        parameters: Mapping[str, object] | None = None,
        *,
        should_stop_after: Callable[[int], bool] = lambda line: False,
    ) -> None:
        """Run a script batch by batch, and pass all output to the listener.

        It continues after a failed batch, unless `should_stop_after` returns True for the batch's last line.
        """
        try:
            for batch in _batches(script):
                self.machine.last_error = None
                for _ in range(batch.times):
                    self._run_batch(batch, parameters or {})
                    if self.machine.last_error and should_stop_after(batch.tokens.line(len(batch.tokens.words) - 1)):
                        return
        except TsqlError as unreadable:  # the rest cannot be split into batches
            self.machine.emit(unreadable)

    def execute(self, script: str, parameters: Mapping[str, object] | None = None) -> Results:
        """Run a script up to the first batch with an error.

        Args:
            script: T-SQL text. A line with GO separates batches.
            parameters: values of variables of each batch, by name with or without @.

        Raises:
            TsqlError: the first error that no CATCH block handled. The batch has continued where T-SQL continues.
        """
        results = Results()
        outer, self.machine.listener = self.machine.listener, results.add
        try:
            for batch in _batches(script):
                for _ in range(batch.times):
                    self._run_batch(batch, parameters or {})
                    if results.errors:
                        raise results.errors[0]
        finally:
            self.machine.listener = outer
        return results

    def call_procedure(self, procedure: str, arguments: Sequence[CallArgument]) -> CallResult | None:
        """Run a batch that calls a procedure. Return None if an error ended the call.

        All output goes to the listener.
        """
        names = [f"@rpc${position}" for position in range(len(arguments))]
        passed = tuple(
            Argument(argument.name.lower(), None if argument.is_default else Variable(name), argument.is_output)
            for name, argument in zip(names, arguments, strict=True)
        )
        machine, result = self.machine, None
        machine.last_error = None
        with entered_by("T-SQL"), self._batch({}):
            frame = machine.frame
            for name, argument in zip(names, arguments, strict=True):
                frame.declare(name, argument.type)
                frame.values[name] = argument.value
            frame.declare(_RETURNED, INT)
            frame.declare(_PROCEDURE, SYSNAME)
            frame.values[_PROCEDURE] = procedure
            machine.run([Execute(1, Variable(_PROCEDURE), passed, _RETURNED)])
            code, outputs = (
                frame.values[_RETURNED],
                [name for name, one in zip(names, passed, strict=True) if one.output],
            )
            if code is not None:  # else an error came before the end of the call
                result = CallResult(int(str(code)), tuple(frame.values[name] for name in outputs))
        self._end_doomed()
        return result

    def cancel(self) -> None:
        """End the running batch, from another thread. Its owner then calls `end_cancelling`.

        The open transaction stays, unless SET XACT_ABORT is ON.
        """
        with self._cancel_lock:
            self.machine.cancelled.set()
            with contextlib.suppress(psycopg.Error):
                self.machine.connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)

    def end_cancelling(self) -> bool:
        """Let the session run batches again. Return True if one was cancelled."""
        with self._cancel_lock:
            was_cancelled = self.machine.cancelled.is_set()
            self.machine.cancelled.clear()
            return was_cancelled

    def names(self) -> list[str]:
        """Return the names of queues, services, message types, contracts and procedures of the current database."""
        database = self.machine.context.database
        if self.machine.transactions.is_doomed:
            return []
        rows = fetch(self.machine.connection, "session.names", _NAMES_SQL, (database.database_id,))
        return [name for (name,) in rows]

    def call(self, database: str, schema: str, name: str) -> None:
        """Run a procedure without parameters, as activation does. Errors that do not end it go to the listener.

        Raises:
            TsqlError: the error that ended the procedure; 8415 it left a transaction open, which is rolled back; 2812.
        """
        machine = self.machine
        ended = [True]
        statement = Execute(1, Name((database, schema, name)), (), None)
        with entered_by("T-SQL"), self._batch({}):
            machine.run([statement])
            ended.clear()
        if machine.transactions.count:
            machine.context.roll_back()
            raise from_broker(BrokerError(8415, name))
        if ended and machine.last_error is not None:
            raise machine.last_error

    def _run_batch(self, batch: Batch, parameters: Mapping[str, object]) -> None:
        with entered_by("T-SQL"), self._batch(parameters):
            self.machine.run(statements_of(batch, frozenset(self.machine.frame.types)))
        self._end_doomed()

    def _end_doomed(self) -> None:
        """Roll back a transaction that a batch leaves uncommittable."""
        transactions = self.machine.transactions
        if transactions.is_doomed:
            if not transactions.is_external:
                self.machine.context.roll_back()
            self.machine.emit(
                TsqlError(
                    3998,
                    "Uncommittable transaction is detected at the end of the batch. The transaction is rolled back.",
                    line=1,
                )
            )  # fmt: skip

    @contextlib.contextmanager
    def _batch(self, parameters: Mapping[str, object]) -> Iterator[None]:
        """Set up the frame of a batch, and pass its errors to the listener."""
        machine = self.machine
        frame = CallFrame(tables=self._temporary)
        for name, value in parameters.items():
            variable = "@" + name.lstrip("@").lower()
            frame.declare(variable, _parameter_type(value))
            frame.values[variable] = value
        machine.frames.append(frame)
        machine.frame = frame
        outer_order = DATE_ORDER.set(machine.dates.order)
        try:
            yield
        except (BatchAborted, ScopeAborted):
            pass
        except Cancelled:
            self._undo_cancelled()
        except TsqlError as error:
            machine.emit(error)
        except psycopg.Error as problem:
            machine.emit(from_postgres(problem))
        except RecursionError:
            machine.emit(TsqlError(217, "Maximum nesting level exceeded.", line=1))
        finally:
            DATE_ORDER.reset(outer_order)
            machine.try_depth = 0
            machine.caught_errors.clear()
            self._temporary = {name: table for name, table in frame.tables.items() if name.startswith("#")}
            frame.tables = {name: table for name, table in frame.tables.items() if name not in self._temporary}
            machine.unwind(0, machine.context.depth)  # EXECUTE AS and USE outlive the batch

    def _undo_cancelled(self) -> None:
        """Roll back the transaction of a cancelled batch under XACT_ABORT. Otherwise it stays open."""
        machine = self.machine
        with self._cancel_lock:  # the cancel request must not hit the ROLLBACK
            pass
        if machine.xact_abort and machine.transactions.count and not machine.transactions.is_external:
            machine.context.roll_back()


def _batches(script: str) -> Iterable[Batch]:
    """Return the batches of a script. Those of a short script are cached."""
    if len(script) <= _MAX_CACHED_SCRIPT_CHARS:
        with contextlib.suppress(TsqlError):  # reported when the batches before it have run
            return _cached_batches(script)
    return batches(script)


@functools.lru_cache(maxsize=_MAX_CACHED_TEXTS)
def _cached_batches(script: str) -> tuple[Batch, ...]:
    return tuple(batches(script))


BatchKey = tuple[str, int, frozenset[str]]  # text, first line, names of the parameters


class ParseCache:
    """The statements of the last batches, for all sessions and threads of the process.

    Attributes:
        get: returns the statements of a batch, None if they are not cached.
    """

    def __init__(self) -> None:
        self._statements: OrderedDict[BatchKey, tuple[Statement, ...]] = OrderedDict()
        self.get: Callable[[BatchKey], tuple[Statement, ...] | None] = self._statements.get
        self._characters = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._statements)

    def add(self, key: BatchKey, statements: tuple[Statement, ...]) -> None:
        """Cache the statements of a batch. The oldest give way."""
        with self._lock:
            if key in self._statements:  # another thread was faster
                return
            self._statements[key] = statements
            self._characters += len(key[0])
            while len(self._statements) > _MAX_CACHED_TEXTS or self._characters > _MAX_CACHED_CHARS_IN_ALL:
                (text, _, _), _ = self._statements.popitem(last=False)
                self._characters -= len(text)


_parse_cache = ParseCache()


def statements_of(batch: Batch, parameters: frozenset[str]) -> tuple[Statement, ...]:
    """Return the statements of a batch with these `parameters`, from the cache if possible."""
    tokens = batch.tokens
    text = tokens.source[tokens.starts[0] : tokens.starts[-1]]
    if len(text) > _MAX_CACHED_BATCH_CHARS:
        return parse(tokens, parameters)
    key = text, tokens.line(0), parameters
    statements = _parse_cache.get(key)
    if statements is None:
        statements = parse(tokens, parameters)
        _parse_cache.add(key, statements)
    return statements


def _parameter_type(value: object) -> SqlType:
    """Return the T-SQL type of a parameter value from Python."""
    return infer_type(value) or NVARCHAR
