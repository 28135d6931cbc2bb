"""Prepared statements on our own connections, without the driver's cursors, which cost as much as a short statement.

The driver's own protocol steps do the communication, so Ctrl-C and lost connections behave as with a cursor. The steps
are generators: a blocking connection runs them, and an asyncio connection (aio/direct.py) does.
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
from servicebroker.store import forked
from servicebroker.store.clamped_times import clamped_context
from servicebroker.store.statement_counts import counts_of
from servicebroker.store.statements import Bodies, Row, Statement, Steps, text_of

T = TypeVar("T")
AnyConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

POLL_INTERVAL_S = 0.1  # seconds, the driver's default
_MAX_SPARE_S = 60.0  # seconds that a connection stays at hand before its pool sees it, which replaces old ones
SPOIL_COMMAND = "do $$ begin raise 'a verb of servicebroker was cancelled'; end $$"
_MAX_PREPARED = 500  # on each connection
_MAX_SEEN = 5000  # hashes of statements that were run once


class QueuedCommand(NamedTuple):
    """A deferred BEGIN or COMMIT, sent with the next statement.

    `done` is called when a COMMIT has succeeded; it is sent only once. Without `done` the command is a BEGIN. It is
    sent before each next statement until it succeeds, so that no statement runs outside of the transaction.
    """

    command: bytes
    done: Callable[[], None] | None = None


@dataclass
class PendingVerbs:
    """Deferred verbs of a connection: they run before its next statement, whichever code runs that."""

    verbs: Callable[[], Steps[None]] | None = None


class DescribedRows(NamedTuple):
    """The result of a statement; `columns` is None if it returns no rows. `touched` rows were returned or changed."""

    columns: tuple[str, ...] | None
    rows: list[Row]
    touched: int


class PreparedStatements:
    """The prepared statements of a connection, run after its deferred commands and verbs."""

    def __init__(self, ahead: list[QueuedCommand], waiting: PendingVerbs) -> None:
        self._ahead = ahead
        self._waiting = waiting
        self._names: OrderedDict[tuple[str, tuple[int, ...]], bytes] = OrderedDict()
        self._seen: set[int] = set()
        self._made = 0
        self._transformer: Any = None  # cached, since it remembers how to load each type

    def steps(
        self, connection: AnyConnection, sql: str, parameters: tuple[object, ...], then: bytes = b""
    ) -> PQGen[list[Row]]:
        """Return protocol steps for a statement with $1, $2, ..., prepared at its first use; they return its rows.

        `then` is a command that is sent right after it.
        """
        result, transformer = yield from self._result_steps(connection, sql, parameters, then)
        if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
            return []
        return _load(connection, result, transformer)

    def described_steps(
        self, connection: AnyConnection, sql: str, parameters: tuple[object, ...]
    ) -> PQGen[DescribedRows]:
        """Run a statement that is prepared at its second use; return column names and row count, too.

        Most statements of a long script occur once. Times that Python cannot represent are an error here: they are
        values of the application.
        """
        result, transformer = yield from self._result_steps(connection, sql, parameters, is_rare=True)
        count = result.command_tuples or 0
        if result.status != ExecStatus.TUPLES_OK:
            return DescribedRows(None, [], count)
        columns = tuple((result.fname(n) or b"").decode(connection.info.encoding) for n in range(result.nfields))
        return DescribedRows(columns, transformer.load_rows(0, result.ntuples, tuple), count)

    def before(self, connection: AnyConnection) -> PQGen[None]:
        """Return protocol steps for everything that is deferred until the next statement."""
        yield from self._verbs_that_wait(connection)
        yield from ahead_steps(connection, self._ahead)

    def _verbs_that_wait(self, connection: AnyConnection) -> PQGen[None]:
        """Run deferred verbs. If one is refused, or they are interrupted, the transaction can no longer commit."""
        if self._waiting.verbs is None:
            return
        verbs, self._waiting.verbs, was_cut = self._waiting.verbs(), None, True
        try:
            statement = next(verbs)
            while True:
                statement = verbs.send((yield from self._counted(connection, statement)))
        except StopIteration:
            was_cut = False
        except Exception:
            was_cut = False
            if connection.pgconn.transaction_status == TransactionStatus.INTRANS:
                with contextlib.suppress(psycopg.Error):
                    yield from command_steps(connection, SPOIL_COMMAND.encode())
            raise
        finally:
            if was_cut:
                self._waiting.verbs = _spoil

    def _counted(self, connection: AnyConnection, statement: Statement) -> PQGen[list[Row]]:
        counts, began = counts_of(connection), perf_counter()
        try:
            return (yield from self.steps(connection, text_of(statement.name, statement.sql), statement.parameters))
        finally:
            counts.add(statement.name, perf_counter() - began)

    def _result_steps(
        self,
        connection: AnyConnection,
        sql: str,
        parameters: tuple[object, ...],
        then: bytes = b"",
        *,
        is_rare: bool = False,
    ) -> PQGen[tuple[PGresult, Any]]:
        if self._waiting.verbs is not None:
            yield from self._verbs_that_wait(connection)
        transformer = self._transformer = self._transformer or Transformer(connection)
        values = transformer.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        types = tuple(transformer.types or ())
        begins = bool(self._ahead)
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
            self._give_up(sql, types)
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
                yield from ahead_steps(connection, self._ahead)
                name = yield from self._prepare(connection, sql, types)
            send = partial(pgconn.send_query_prepared, name, values, formats, Format.BINARY)
        if self._ahead or then:
            return (yield from self._run_between(connection, send, then))
        send()
        return _checked(connection, (yield from generators.execute(pgconn)))

    def _give_up(self, sql: str, types: tuple[int, ...]) -> None:
        """Stop using a prepared statement; it is the first to be deallocated beyond the limit."""
        name = self._names.pop((sql, types), None)
        if name is not None:
            unused = name.decode(), types
            self._names[unused] = name
            self._names.move_to_end(unused, last=False)

    def _is_new(self, sql: str, types: tuple[int, ...]) -> bool:
        """Check whether a statement occurs for the first time, as far as it is remembered."""
        seen = hash((sql, types))
        if seen in self._seen:
            return False
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen.add(seen)
        return True

    def _run_between(self, connection: AnyConnection, send: Callable[[], None], then: bytes) -> PQGen[PGresult]:
        """Send everything in one round trip. After a failure the server skips the rest."""
        ahead = self._ahead.copy()
        self._ahead.clear()
        pgconn = connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            for command, _ in ahead:
                pgconn.send_query_params(command, None)
            send()
            if then:
                pgconn.send_query_params(then, None)
            pgconn.pipeline_sync()
            results = yield from _replies(pgconn, ahead)
            if results[-1].status == ExecStatus.FATAL_ERROR:
                self._ahead += _to_begin(ahead[len(results) - 1 :])
        finally:
            try:  # noqa: SIM105 # `suppress` is three calls more for each RECEIVE
                pgconn.exit_pipeline_mode()
            except psycopg.Error:  # a lost connection has left pipeline mode
                pass
        _checked(connection, results)
        return results[len(ahead)]

    def _prepare(self, connection: AnyConnection, sql: str, types: tuple[int, ...]) -> PQGen[bytes]:
        if len(self._names) >= _MAX_PREPARED:
            _, oldest = self._names.popitem(last=False)
            yield from command_steps(connection, b"deallocate " + oldest)
        self._made += 1
        name = b"servicebroker_%d" % self._made
        connection.pgconn.send_prepare(name, sql.encode(), types)
        _checked(connection, (yield from generators.execute(connection.pgconn)))
        self._names[sql, types] = name
        return name


class DirectConnection(psycopg.Connection[Row]):
    """A psycopg connection of ours with a cache of its prepared statements.

    Attributes:
        ahead: commands to send before the next statement, whoever runs that.
        waiting: deferred verbs to run before it, too.
        due: the time at which the pool has to check it again.
        interval: seconds between two checks for signals during a wait; a thread without signals needs none.
    """

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, tuple_row)
        forked.protect(self)
        adapt(self.adapters)
        self.ahead: list[QueuedCommand] = []
        self.waiting = PendingVerbs()
        self.due = 0.0
        self.interval = POLL_INTERVAL_S
        self.prepared_statements = PreparedStatements(self.ahead, self.waiting)

    def run_prepared(self, sql: str, parameters: tuple[object, ...], then: bytes = b"") -> list[Row]:
        """Run a statement with $1, $2, ..., prepared at its first use, then the command `then`. Returns the rows.

        Raises:
            psycopg.Error: as from a cursor.
        """
        with self.lock:
            return super().wait(self.prepared_statements.steps(self, sql, parameters, then))

    def run_described(self, sql: str, parameters: tuple[object, ...]) -> DescribedRows:
        """Run a statement as `run_prepared`, and return column names and row count, too."""
        with self.lock:
            return super().wait(self.prepared_statements.described_steps(self, sql, parameters))

    def wait(self, gen: PQGen[T], interval: float | None = None, timeout: float | None = None) -> T:
        """Run protocol steps after the deferred ones; the driver runs everything through this method."""
        if self.ahead or self.waiting.verbs is not None:
            gen = behind(self, gen)
        return super().wait(gen, interval or self.interval, timeout)


class Due(Protocol):
    """A connection with the time at which its pool has to check it again."""

    due: float
    pgconn: PGconn


C = TypeVar("C", bound=Due)


class SpareConnection(Generic[C]):
    """The last returned connection, for the next caller: asking the pool costs a third of a SEND.

    While a caller asks the pool, no connection is kept here, so no caller waits in vain. Any thread may use it.
    """

    def __init__(self) -> None:
        self._connection: C | None = None
        self._asking = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self) -> C | None:
        """Return the connection. None: the caller has to ask the pool and then call `asked`."""
        with self._lock:
            taken, self._connection = self._connection, None
            if taken is None:
                self._asking += 1
        return taken

    def asked(self, given: C | None) -> None:
        """Note the end of a request to the pool, and the connection that it returned."""
        with self._lock:
            self._asking -= 1
        if given is not None:
            given.due = monotonic() + _MAX_SPARE_S

    def keep(self, connection: C) -> C | None:
        """Keep the connection. Returns one for the pool: the earlier connection at hand, or this one."""
        if connection.pgconn.transaction_status != TransactionStatus.IDLE or monotonic() > connection.due:
            return connection
        with self._lock:
            if self._asking or self._is_closed:
                return connection
            before, self._connection = self._connection, connection
        return before

    def let_go(self, *, for_good: bool = False) -> C | None:
        """Return the connection at hand, if any, for the pool. `for_good`: keep no later one either."""
        with self._lock:
            self._is_closed |= for_good
            left, self._connection = self._connection, None
        return left


class DirectPool(ConnectionPool[DirectConnection]):
    """A pool of such connections that keeps the last returned one at hand."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._at_hand: SpareConnection[DirectConnection] = SpareConnection()
        self.keep = self._at_hand.keep
        super().__init__(*arguments, **options)

    def getconn(self, timeout: float | None = None) -> DirectConnection:
        """Take the connection at hand, else one of the pool."""
        if (connection := self._at_hand.take()) is not None:
            return connection
        try:
            connection = super().getconn(timeout)
        finally:
            self._at_hand.asked(connection)
        return connection

    def check(self) -> None:
        """Check the pool, including the connection at hand."""
        if (left := self._at_hand.let_go()) is not None:
            self.putconn(left)
        super().check()

    def close(self, timeout: float = 5.0) -> None:
        """Close the pool, including the connection at hand."""
        if (left := self._at_hand.let_go(for_good=True)) is not None:
            self.putconn(left)
        super().close(timeout)

    def drop(self, *stops: Callable[[], None]) -> None:
        """Stop the work that uses the pool, and close it, without waiting.

        A finalizer calls this, and may run while its thread holds a lock of the pool or of that work. At the end of
        the interpreter it does nothing: a thread that begins then never runs, and its starter would wait for ever.
        """
        if sys.is_finalizing():
            return

        def work() -> None:
            for stop in stops:
                stop()
            self.close()

        threading.Thread(target=work, name="servicebroker drops a pool", daemon=True).start()


def run_command(connection: psycopg.Connection[Any], command: bytes) -> None:
    """Run a statement without parameters and rows, such as BEGIN and COMMIT."""
    with connection.lock:
        connection.wait(command_steps(connection, command))


def send_ahead(connection: DirectConnection) -> None:
    """Run the deferred commands and verbs now, since no statement follows."""
    if connection.ahead or connection.waiting.verbs:
        with connection.lock:
            connection.wait(nothing())


def wait_for_notifications(connection: DirectConnection, seconds: float) -> list[str]:
    """Return the payloads of notifications, once some have come, or none after `seconds`.

    The driver rounds a wait down to milliseconds, and takes the processor for the rest of the last one. It has already
    read notifications that came with the answer of a statement, and the socket does not announce these again.
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
    """Return the protocol steps of `run_command`."""
    connection.pgconn.send_query(command)
    _checked(connection, (yield from generators.execute(connection.pgconn)))


def ahead_steps(connection: AnyConnection, ahead: list[QueuedCommand]) -> PQGen[None]:
    """Run the deferred commands, one after the other."""
    while ahead:
        first = ahead.pop(0)
        try:
            yield from command_steps(connection, first.command)
        except psycopg.Error:
            ahead[:0] = _to_begin([first])
            raise
        if first.done:
            first.done()


def _to_begin(refused: Sequence[QueuedCommand]) -> list[QueuedCommand]:
    return [one for one in refused if not one.done]


def behind(connection: AnyConnection, steps: PQGen[T]) -> PQGen[T]:
    """Return the steps, after everything that is deferred on a connection of ours."""
    statements: PreparedStatements | None = getattr(connection, "prepared_statements", None)
    if statements is not None:
        yield from statements.before(connection)
    return (yield from steps)


def nothing() -> PQGen[None]:
    """Return no steps."""
    return
    yield


def _spoil() -> Steps[None]:
    """Fail the transaction of interrupted verbs, so that their first half is not committed."""
    yield Statement("direct.spoil", SPOIL_COMMAND)


def is_direct(connection: AnyConnection) -> bool:
    """Check whether statements can be run directly now: not while the application has a pipeline open."""
    return connection.pgconn.pipeline_status == PipelineStatus.OFF


def is_idle(connection: AnyConnection) -> bool:
    """Check whether no transaction is open, nor deferred until the next statement."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE and not getattr(connection, "ahead", ())


def _load(connection: AnyConnection, result: PGresult, transformer: Any) -> list[Row]:
    """Return the rows of a result that the transformer has; times that Python cannot represent are clamped."""
    try:
        rows: list[Row] = transformer.load_rows(0, result.ntuples, tuple)
    except psycopg.DataError:  # clamp only now, because the driver's loaders are several times as fast
        clamping: Any = Transformer(clamped_context(connection))
        clamping.set_pgresult(result, set_loaders=True, format=Format.BINARY)
        rows = clamping.load_rows(0, result.ntuples, tuple)
    return rows


def _replies(pgconn: PGconn, ahead: Sequence[QueuedCommand]) -> PQGen[list[PGresult]]:
    """Return the server's replies to a pipeline, up to the first failure; calls `done` of each successful COMMIT."""
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
        done = ahead[len(results)].done if len(results) < len(ahead) else None
        results.append(result)
        if done and result.status == ExecStatus.COMMAND_OK:
            done()


def _checked(connection: AnyConnection, results: Sequence[PGresult]) -> PGresult:
    """Return the last result.

    Raises:
        psycopg.Error: an error of PostgreSQL.
    """
    result = results[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
    return result


def adapt(adapters: AdaptersMap) -> None:
    """Register our own loader of uuid, and our dumpers of lists."""
    adapters.register_loader("uuid", _UuidLoader)
    adapters.register_dumper(list, _ListDumper)
    adapters.register_dumper(Bodies, _BodiesDumper)


class _ListDumper(ListDumper):
    """Dumps elements of one type together, which takes a third of the time. An application's own dumper is called."""

    def dump(self, obj: list[Any]) -> Buffer | None:
        types = set(map(type, obj))
        write = _WRITERS.get(types.pop()) if len(types) == 1 else None
        is_drivers = type(self.sub_dumper).__module__.startswith("psycopg")
        text = None if write is None or not is_drivers else write(obj)
        return super().dump(obj) if text is None else b"{%b}" % text.encode()


def _quoted(texts: list[str]) -> str | None:
    """Return the elements in quotes; None if one has a character that needs more than that."""
    text = '","'.join(texts)
    if "\\" in text or "\0" in text or text.count('"') != 2 * (len(texts) - 1):
        return None
    return f'"{text}"'


_WRITERS: dict[type, Callable[[list[Any]], str | None]] = {
    int: lambda numbers: ",".join(map(str, numbers)),
    bool: lambda flags: ",".join(["t" if flag else "f" for flag in flags]),
    UUID: lambda ids: ",".join([one.hex for one in ids]),
    datetime: lambda times: _quoted(list(map(str, times))),
    str: _quoted,
}


class _BodiesDumper(Dumper):
    """Dumps one dimension from 1, each element as length and bytes; the length -1 means NULL."""

    format = Format.BINARY
    oid = 1001  # bytea[]

    def dump(self, obj: Bodies) -> Buffer:
        parts = [b""] * (2 * len(obj))
        parts[::2] = [_LENGTH.pack(-1 if body is None else len(body)) for body in obj]
        parts[1::2] = [body or b"" for body in obj]
        return _HEAD.pack(1, 1, 17, len(obj), 1) + b"".join(parts)


_LENGTH = struct.Struct("!i")
_HEAD = struct.Struct("!iiIii")  # dimensions, has NULLs, type of the elements (bytea), their number, first index


class _UuidLoader(Loader):
    """Loads a UUID once for equal bytes: the rows of one RECEIVE have few conversations."""

    format = Format.BINARY

    def load(self, data: Buffer) -> UUID:
        return _uuid(bytes(data))


@functools.lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)
