"""Prepared statements on connections of servicebroker, without cursors of the driver.

A cursor costs as much time as a short statement.

The driver's protocol steps do the communication, so Ctrl-C and lost connections behave as with a cursor. The steps are
generators, which both a blocking connection and an asyncio connection (aio/direct.py) can run.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Dumper, Loader, PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg.types.array import ListDumper
from psycopg_pool import ConnectionPool

from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.store import forked, session_locks
from servicebroker.store.clamped_times import clamped_context
from servicebroker.store.statement_counts import counts_of
from servicebroker.store.statements import Bodies, Row, Statement, Steps, text_of

T = TypeVar("T")
AnyConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

POLL_INTERVAL_S = 0.1  # seconds, the driver's default
_MAX_SPARE_S = 60.0  # seconds until a spare connection returns to its pool, which checks it and replaces old ones
SPOIL_COMMAND = "do $$ begin raise 'a verb of servicebroker was cancelled'; end $$"
_MAX_PREPARED = 500  # the most prepared statements of a connection
_MAX_REMEMBERED = 5000  # the most remembered statements that were run once, as hashes


class QueuedCommand(NamedTuple):
    """A deferred BEGIN or COMMIT, sent with the next statement.

    A COMMIT has `done`, which is called when it has succeeded. A COMMIT is sent only once. A BEGIN has no `done`. If it
    fails, it is sent again with the next statement, so that no statement runs outside of the transaction.
    """

    command: bytes
    done: Callable[[], None] | None = None


@dataclass
class DeferredVerbs:
    """Deferred verbs (SEND, ...) of a connection, which run before its next statement, also one of the application."""

    verbs: Callable[[], Steps[None]] | None = None


class DescribedRows(NamedTuple):
    """The result of a statement.

    Attributes:
        columns: the names of the columns; None for a statement without a result set.
        touched: the number of rows that were returned or changed.
    """

    columns: tuple[str, ...] | None
    rows: list[Row]
    touched: int


class Outcome(NamedTuple):
    """The rows of statements that ran in one round trip, and the error of the one behind them, which has failed."""

    rows: list[list[Row]]
    problem: psycopg.Error | None


class PreparedStatements:
    """The prepared statements of a connection, run after its deferred commands and verbs."""

    def __init__(self, queued: list[QueuedCommand], deferred: DeferredVerbs) -> None:
        self._queued = queued
        self._deferred = deferred
        self._names: OrderedDict[tuple[str, tuple[int, ...]], bytes] = OrderedDict()
        self._remembered: set[int] = set()
        self._last_number = 0
        self._transformer: Any = None  # cached, because it caches the loaders of types

    def steps(
        self, connection: AnyConnection, sql: str, parameters: tuple[object, ...], then: bytes = b""
    ) -> PQGen[list[Row]]:
        """Return protocol steps that run a statement with $1, $2, ..., and return its rows.

        The statement is prepared at its first use. `then` is a command that is sent with it, to run after it.
        """
        result, transformer = yield from self._result_steps(connection, sql, parameters, then)
        if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
            return []
        return _load(connection, result, transformer)

    def described_steps(
        self, connection: AnyConnection, sql: str, parameters: tuple[object, ...]
    ) -> PQGen[DescribedRows]:
        """Return protocol steps that run a statement, and return its rows, column names and row count.

        The statement is prepared at its second use, because most statements of a long script occur once. A time that
        Python cannot represent raises an error, because it is a value of the application.
        """
        result, transformer = yield from self._result_steps(connection, sql, parameters, is_rare=True)
        count = result.command_tuples or 0
        if result.status != ExecStatus.TUPLES_OK:
            return DescribedRows(None, [], count)
        columns = tuple((result.fname(n) or b"").decode(connection.info.encoding) for n in range(result.nfields))
        return DescribedRows(columns, transformer.load_rows(0, result.ntuples, tuple), count)

    def together(self, connection: AnyConnection, sent: Sequence[Statement | bytes]) -> PQGen[Outcome]:
        """Run statements, and commands without parameters and rows, in one round trip, up to the first that fails.

        No command may be deferred.
        """
        began, pgconn = perf_counter(), connection.pgconn
        transformer = self._transformer = self._transformer or Transformer(connection)
        sends: list[Callable[[], None]] = []
        keys: list[tuple[str, tuple[int, ...]]] = []
        for command in sent:
            if isinstance(command, Statement):
                values = transformer.dump_sequence(command.parameters, [PyFormat.AUTO] * len(command.parameters))
                key, formats = (text_of(command.name, command.sql), tuple(transformer.types or ())), transformer.formats
                name = self._names.get(key) or (yield from self._prepare(connection, *key))
                sends.append(partial(pgconn.send_query_prepared, name, values, formats, Format.BINARY))
                keys.append(key)
            else:
                sends.append(partial(pgconn.send_query_params, command, None))
                keys.append(("", ()))
        pgconn.enter_pipeline_mode()
        try:
            for send in sends:
                send()
            pgconn.pipeline_sync()
            results = yield from _replies(pgconn, ())
        finally:
            with contextlib.suppress(psycopg.Error):  # a lost connection has left pipeline mode
                pgconn.exit_pipeline_mode()
        problem = None
        if results[-1].status == ExecStatus.FATAL_ERROR:
            problem = psycopg.errors.error_from_result(results.pop(), encoding=connection.info.encoding)
            if isinstance(problem, psycopg.errors.InvalidSqlStatementName):  # the application ran DISCARD ALL
                self._names.clear()
            elif isinstance(problem, psycopg.errors.FeatureNotSupported):
                self._forget(*keys[len(results)])
        counts, seconds = counts_of(connection), (perf_counter() - began) / len(sent)
        rows: list[list[Row]] = []
        for command, result in zip(sent, results, strict=False):
            loads = result.status == ExecStatus.TUPLES_OK and result.ntuples
            if loads:
                transformer.set_pgresult(result, set_loaders=True, format=Format.BINARY)
            rows.append(_load(connection, result, transformer) if loads else [])
            if isinstance(command, Statement):
                counts.add(command.name, seconds)
        return Outcome(rows, problem)

    def before(self, connection: AnyConnection) -> PQGen[None]:
        """Return protocol steps that run the deferred verbs and commands."""
        yield from self._pending_steps(connection)
        yield from queued_steps(connection, self._queued)

    def _pending_steps(self, connection: AnyConnection) -> PQGen[None]:
        """Run the deferred verbs. If a verb fails, or the verbs are interrupted, the transaction can only roll back."""
        if self._deferred.verbs is None:
            return
        verbs, self._deferred.verbs, was_interrupted = self._deferred.verbs(), None, True
        try:
            statement = next(verbs)
            while True:
                statement = verbs.send((yield from self._counted(connection, statement)))
        except StopIteration:
            was_interrupted = False
        except Exception:
            was_interrupted = False
            if connection.pgconn.transaction_status == TransactionStatus.INTRANS:
                with contextlib.suppress(psycopg.Error):
                    yield from command_steps(connection, SPOIL_COMMAND.encode())
            raise
        finally:
            if was_interrupted:
                self._deferred.verbs = _spoil

    def _counted(self, connection: AnyConnection, statement: Statement) -> PQGen[list[Row]]:
        """Run and count a statement, and record the locks that the session keeps."""
        counts, began = counts_of(connection), perf_counter()
        try:
            rows = yield from self.steps(connection, text_of(statement.name, statement.sql), statement.parameters)
        except BaseException:
            if statement.locks:
                session_locks.record_unknown(connection)
            raise
        finally:
            counts.add(statement.name, perf_counter() - began)
        session_locks.record(connection, statement, rows)
        return rows

    def _result_steps(
        self,
        connection: AnyConnection,
        sql: str,
        parameters: tuple[object, ...],
        then: bytes = b"",
        *,
        is_rare: bool = False,
    ) -> PQGen[tuple[PGresult, Any]]:
        if self._deferred.verbs is not None:
            yield from self._pending_steps(connection)
        transformer = self._transformer = self._transformer or Transformer(connection)
        values = transformer.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        types = tuple(transformer.types or ())
        begins = bool(self._queued)
        try:
            result = yield from self._run(connection, sql, types, values, transformer.formats, then, is_rare)
        except psycopg.errors.InvalidSqlStatementName:  # the application ran DISCARD ALL
            self._names.clear()
            if begins:
                yield from command_steps(connection, b"rollback and chain")
            elif connection.pgconn.transaction_status != TransactionStatus.IDLE:
                raise InstanceError(
                    "The prepared statements of this connection were discarded (DEALLOCATE ALL), so PostgreSQL has "
                    "undone the transaction: begin it again."
                ) from None
            result = yield from self._run(connection, sql, types, values, transformer.formats, then, is_rare)
        except psycopg.errors.FeatureNotSupported:  # possibly the columns of its table have changed
            self._forget(sql, types)
            raise
        if result.status == ExecStatus.TUPLES_OK:
            transformer.set_pgresult(result, set_loaders=True, format=Format.BINARY)
        return result, transformer

    def _run(
        self,
        connection: AnyConnection,
        sql: str,
        types: tuple[int, ...],
        values: Sequence[Buffer | None],
        formats: Sequence[int] | None,
        then: bytes,
        is_rare: bool,
    ) -> PQGen[PGresult]:
        pgconn = connection.pgconn
        name = self._names.get((sql, types))
        if name is None and is_rare and self._is_new(sql, types):
            send = partial(pgconn.send_query_params, sql.encode(), values, types, formats, Format.BINARY)
        else:
            if name is None:
                yield from queued_steps(connection, self._queued)
                name = yield from self._prepare(connection, sql, types)
            send = partial(pgconn.send_query_prepared, name, values, formats, Format.BINARY)
        if self._queued or then:
            return (yield from self._run_between(connection, send, then))
        send()
        return _checked(connection, (yield from generators.execute(pgconn)))

    def _forget(self, sql: str, types: tuple[int, ...]) -> None:
        """Stop using a prepared statement. It becomes the oldest one, which `_prepare` deallocates first."""
        name = self._names.pop((sql, types), None)
        if name is not None:
            unused = name.decode(), types
            self._names[unused] = name
            self._names.move_to_end(unused, last=False)

    def _is_new(self, sql: str, types: tuple[int, ...]) -> bool:
        """Check whether a statement is not among the remembered ones, and remember it."""
        key = hash((sql, types))
        if key in self._remembered:
            return False
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered.add(key)
        return True

    def _run_between(self, connection: AnyConnection, send: Callable[[], None], then: bytes) -> PQGen[PGresult]:
        """Send the deferred commands, the statement and `then` together; the server stops at the first failure."""
        queued = self._queued.copy()
        self._queued.clear()
        pgconn = connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            for command, _ in queued:
                pgconn.send_query_params(command, None)
            send()
            if then:
                pgconn.send_query_params(then, None)
            pgconn.pipeline_sync()
            results = yield from _replies(pgconn, queued)
            if results[-1].status == ExecStatus.FATAL_ERROR:
                self._queued += _to_begin(queued[len(results) - 1 :])
        finally:
            try:  # noqa: SIM105 # `suppress` is three calls more for each RECEIVE
                pgconn.exit_pipeline_mode()
            except psycopg.Error:  # a lost connection has left pipeline mode
                pass
        _checked(connection, results)
        return results[len(queued)]

    def _prepare(self, connection: AnyConnection, sql: str, types: tuple[int, ...]) -> PQGen[bytes]:
        if len(self._names) >= _MAX_PREPARED:
            _, oldest = self._names.popitem(last=False)
            yield from command_steps(connection, b"deallocate " + oldest)
        self._last_number += 1
        name = b"servicebroker_%d" % self._last_number
        connection.pgconn.send_prepare(name, sql.encode(), types)
        _checked(connection, (yield from generators.execute(connection.pgconn)))
        self._names[sql, types] = name
        return name


class DirectConnection(psycopg.Connection[Row]):
    """A psycopg connection with a cache of its prepared statements.

    Attributes:
        queued: deferred commands, sent before the next statement, also one of the application.
        deferred: verbs that run before that statement, too.
        due: the `time.monotonic()` at which the pool has to check the connection again.
        interval: seconds between two checks for signals during a wait; a thread without signals needs none.
    """

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, tuple_row)
        forked.protect(self)
        adapt(self.adapters)
        self.queued: list[QueuedCommand] = []
        self.deferred = DeferredVerbs()
        self.due = 0.0
        self.interval = POLL_INTERVAL_S
        self.prepared_statements = PreparedStatements(self.queued, self.deferred)

    def run_prepared(self, sql: str, parameters: tuple[object, ...], then: bytes = b"") -> list[Row]:
        """Run a statement with $1, $2, ..., then the command `then`. Returns the rows of the statement.

        The statement is prepared at its first use.

        Raises:
            psycopg.Error: as from a cursor.
        """
        with self.lock:
            return super().wait(self.prepared_statements.steps(self, sql, parameters, then))

    def run_described(self, sql: str, parameters: tuple[object, ...]) -> DescribedRows:
        """Run a statement, and return its rows, column names and row count. It is prepared at its second use."""
        with self.lock:
            return super().wait(self.prepared_statements.described_steps(self, sql, parameters))

    @override
    def wait(self, gen: PQGen[T], interval: float | None = None, timeout: float | None = None) -> T:
        """Run the deferred verbs and commands, then `gen`. The driver calls this method for every exchange."""
        if self.queued or self.deferred.verbs is not None:
            gen = behind(self, gen)
        return super().wait(gen, interval or self.interval, timeout)


class Due(Protocol):
    """A connection that its pool has to check again at `due` (`time.monotonic()`)."""

    due: float
    pgconn: PGconn


C = TypeVar("C", bound=Due)


class SpareConnection(Generic[C]):
    """The connection that was returned last, kept for the next caller: a request to the pool costs a third of a SEND.

    While a caller waits for the pool, no connection is kept, so that the pool can give it to that caller. Thread-safe.
    """

    def __init__(self) -> None:
        self._connection: C | None = None
        self._asking = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self) -> C | None:
        """Return the spare connection. If there is none, the caller has to ask the pool and then call `asked`."""
        with self._lock:
            taken, self._connection = self._connection, None
            if taken is None:
                self._asking += 1
        return taken

    def asked(self, connection: C | None) -> None:
        """Record the end of a request to the pool, and the connection that the pool returned."""
        with self._lock:
            self._asking -= 1
        if connection is not None:
            connection.due = monotonic() + _MAX_SPARE_S

    def keep(self, connection: C) -> C | None:
        """Keep the connection as the spare one. Returns the connection to give back to the pool, if any."""
        if connection.pgconn.transaction_status != TransactionStatus.IDLE or monotonic() > connection.due:
            return connection
        with self._lock:
            if self._asking or self._is_closed:
                return connection
            previous, self._connection = self._connection, connection
        return previous

    def remove(self, *, and_close: bool = False) -> C | None:
        """Remove and return the spare connection, if any. `and_close`: keep no other one from now on."""
        with self._lock:
            self._is_closed |= and_close
            removed, self._connection = self._connection, None
        return removed


class DirectPool(ConnectionPool[DirectConnection]):
    """A pool of direct connections, with a spare one outside of it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._spare: SpareConnection[DirectConnection] = SpareConnection()
        self.keep = self._spare.keep
        super().__init__(*arguments, **options)

    @override
    def getconn(self, timeout: float | None = None) -> DirectConnection:
        """Take the spare connection, or one of the pool."""
        if (connection := self._spare.take()) is not None:
            return connection
        try:
            connection = super().getconn(timeout)
        finally:
            self._spare.asked(connection)
        return connection

    @override
    def check(self) -> None:
        """Check the connections of the pool, and the spare one."""
        if (spare := self._spare.remove()) is not None:
            self.putconn(spare)
        super().check()

    @override
    def close(self, timeout: float = 5.0) -> None:
        """Close the pool and the spare connection."""
        if (spare := self._spare.remove(and_close=True)) is not None:
            self.putconn(spare)
        super().close(timeout)

    def drop(self, *stops: Callable[[], None]) -> None:
        """Stop the work that uses the pool, and close the pool, in a thread.

        A finalizer calls this, possibly while its thread holds a lock of the pool or of that work. While the
        interpreter ends, this does nothing: a thread that is started then never runs, and `start` would wait for ever.
        """
        if sys.is_finalizing():
            return

        def work() -> None:
            for stop in stops:
                stop()
            self.close()

        threading.Thread(target=work, name="servicebroker drops a pool", daemon=True).start()


def run_together(connection: DirectConnection, sent: Sequence[Statement | bytes]) -> Outcome:
    """Run statements and commands in one round trip, up to the first that fails. Nothing may be deferred."""
    with connection.lock:
        return connection.wait(connection.prepared_statements.together(connection, sent))


def run_command(connection: psycopg.Connection[Any], command: bytes) -> None:
    """Run a statement without parameters and rows, such as BEGIN and COMMIT."""
    with connection.lock:
        connection.wait(command_steps(connection, command))


def send_queued(connection: DirectConnection) -> None:
    """Run the deferred verbs and commands without a statement after them."""
    if connection.queued or connection.deferred.verbs:
        with connection.lock:
            connection.wait(nothing())


def wait_for_notifications(connection: DirectConnection, seconds: float) -> list[str]:
    """Wait until notifications arrive, at most `seconds`, and return their payloads.

    The driver's own wait is not used: it rounds down to milliseconds, and spins for the rest. Notifications that came
    with the result of a statement were read by the driver already. So these are returned first, without a wait.
    """
    payloads = _arrived(connection)
    if not payloads:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.pgconn.socket, selectors.EVENT_READ)
            selector.select(seconds)
        payloads = _arrived(connection)
    return payloads


def _arrived(connection: DirectConnection) -> list[str]:
    return [notice.payload for notice in connection.notifies(timeout=0, stop_after=1)]


def run_query(cursor: psycopg.RawCursor[Any], sql: bytes, parameters: tuple[object, ...], *, prepare: bool) -> None:
    """Run a statement on a cursor."""
    cursor.execute(sql, parameters, prepare=prepare)


def command_steps(connection: AnyConnection, command: bytes) -> PQGen[None]:
    """Return protocol steps that run a statement without parameters and rows."""
    connection.pgconn.send_query(command)
    _checked(connection, (yield from generators.execute(connection.pgconn)))


def queued_steps(connection: AnyConnection, queued: list[QueuedCommand]) -> PQGen[None]:
    """Run deferred commands, each in a round trip of its own."""
    while queued:
        first = queued.pop(0)
        try:
            yield from command_steps(connection, first.command)
        except psycopg.Error:
            queued[:0] = _to_begin([first])
            raise
        if first.done:
            first.done()


def _to_begin(failed: Sequence[QueuedCommand]) -> list[QueuedCommand]:
    """Return the BEGINs among failed commands, which are sent again."""
    return [command for command in failed if not command.done]


def behind(connection: AnyConnection, steps: PQGen[T]) -> PQGen[T]:
    """Return protocol steps that run the deferred verbs and commands of the connection, if any, before `steps`."""
    statements: PreparedStatements | None = getattr(connection, "prepared_statements", None)
    if statements is not None:
        yield from statements.before(connection)
    return (yield from steps)


def nothing() -> PQGen[None]:
    """Return no steps."""
    return
    yield


def _spoil() -> Steps[None]:
    """Fail the transaction of interrupted verbs, so that a part of them is not committed."""
    yield Statement("direct.spoil", SPOIL_COMMAND)


def is_direct(connection: AnyConnection) -> bool:
    """Check whether statements can run without a cursor now: not while the application has a pipeline open."""
    return connection.pgconn.pipeline_status == PipelineStatus.OFF


def is_idle(connection: AnyConnection) -> bool:
    """Check whether the connection has neither an open transaction nor a deferred BEGIN."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE and not getattr(connection, "queued", ())


def _load(connection: AnyConnection, result: PGresult, transformer: Any) -> list[Row]:
    """Return the rows of the transformer's result. Times that Python cannot represent are clamped."""
    try:
        rows: list[Row] = transformer.load_rows(0, result.ntuples, tuple)
    except psycopg.DataError:  # clamp only now, because the driver's loaders are several times as fast
        clamping_transformer: Any = Transformer(clamped_context(connection))
        clamping_transformer.set_pgresult(result, set_loaders=True, format=Format.BINARY)
        rows = clamping_transformer.load_rows(0, result.ntuples, tuple)
    return rows


def _replies(pgconn: PGconn, queued: Sequence[QueuedCommand]) -> PQGen[list[PGresult]]:
    """Return the server's replies to a pipeline, up to the first failure. Calls `done` of each successful COMMIT."""
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while True:
        answer = yield from generators.fetch_many(pgconn)
        if not answer:
            if results and results[-1].status == ExecStatus.FATAL_ERROR:
                return results
            raise psycopg.OperationalError("the connection is lost")
        result = answer[-1]
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        if result.status == ExecStatus.PIPELINE_ABORTED:
            continue
        on_success = queued[len(results)].done if len(results) < len(queued) else None
        results.append(result)
        if on_success and result.status == ExecStatus.COMMAND_OK:
            on_success()


def _checked(connection: AnyConnection, results: Sequence[PGresult]) -> PGresult:
    """Return the last result, unless it is an error.

    Raises:
        psycopg.Error: the error of PostgreSQL.
    """
    result = results[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
    return result


def adapt(adapters: AdaptersMap) -> None:
    """Register the faster loader of uuid and dumpers of lists that this module has."""
    adapters.register_loader("uuid", _UuidLoader)
    adapters.register_dumper(list, _ListDumper)
    adapters.register_dumper(Bodies, _BodiesDumper)


class _ListDumper(ListDumper):
    """Dumps elements of one type together, in a third of the time. A dumper of the application takes precedence."""

    @override
    def dump(self, obj: list[Any]) -> Buffer | None:
        types = set(map(type, obj))
        write = _WRITERS.get(types.pop()) if len(types) == 1 else None
        is_drivers = type(self.sub_dumper).__module__.startswith("psycopg")
        text = None if write is None or not is_drivers else write(obj)
        return super().dump(obj) if text is None else b"{%b}" % text.encode()


def _quoted(texts: list[str]) -> str | None:
    """Return the elements in quotes; None if an element has a character to escape."""
    text = '","'.join(texts)
    if "\\" in text or "\0" in text or text.count('"') != 2 * (len(texts) - 1):
        return None
    return f'"{text}"'


_WRITERS: dict[type, Callable[[list[Any]], str | None]] = {
    int: lambda numbers: ",".join(map(str, numbers)),
    bool: lambda flags: ",".join(["t" if flag else "f" for flag in flags]),
    UUID: lambda ids: ",".join([identifier.hex for identifier in ids]),
    datetime: lambda times: _quoted(list(map(str, times))),
    str: _quoted,
}


class _BodiesDumper(Dumper):
    """Dumps an array of one dimension. Each element is its length and its bytes; the length -1 means NULL."""

    format = Format.BINARY
    oid = 1001  # bytea[]

    @override
    def dump(self, obj: Bodies) -> Buffer:
        parts = [b""] * (2 * len(obj))
        parts[::2] = [_LENGTH.pack(-1 if body is None else len(body)) for body in obj]
        parts[1::2] = [body or b"" for body in obj]
        return _HEAD.pack(1, 1, 17, len(obj), 1) + b"".join(parts)


_LENGTH = struct.Struct("!i")
_HEAD = struct.Struct("!iiIii")  # dimensions, has NULLs, type of the elements (bytea), their number, first index


class _UuidLoader(Loader):
    """Loads UUIDs through a cache: the rows of one RECEIVE have few different conversations."""

    format = Format.BINARY

    @override
    def load(self, data: Buffer) -> UUID:
        return _uuid(bytes(data))


@functools.lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)
