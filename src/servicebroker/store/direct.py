"""Prepared statements on our own connections, past the driver's cursors, which cost as much as a short statement.

The driver's own protocol steps do the talking, so Ctrl-C and lost connections behave as they do with a cursor. The
steps are generators: a connection that blocks runs them, and one of asyncio (aio/direct.py) does.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from psycopg_pool import ConnectionPool

from servicebroker.model.errors import InstanceError
from servicebroker.store import forked
from servicebroker.store.clamped_times import clamped_context
from servicebroker.store.statement_counts import counts_of
from servicebroker.store.statements import Bodies, Row, Statement, Steps, text_of

T = TypeVar("T")
AnyConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

INTERVAL = 0.1  # seconds, as the driver has it
_OUT = 60.0  # seconds that a connection goes from hand to hand until its pool sees it, which replaces old ones
SPOIL = "do $$ begin raise 'a verb of servicebroker was cancelled'; end $$"
_PREPARED_KEPT = 500  # on each connection
_SEEN_KEPT = 5000  # statements, by their hashes, that were run once


class Ahead(NamedTuple):
    """BEGIN or COMMIT, which travels with the next statement.

    `done` is told that a COMMIT succeeded, which is sent once. Without it this is a BEGIN: as long as that has not
    succeeded it goes ahead of what comes next, so that nothing is done outside of the transaction.
    """

    command: bytes
    done: Callable[[], None] | None = None


@dataclass
class Waiting:
    """Verbs that were asked for and wait on a connection: they travel before its next statement, whoever runs that."""

    verbs: Callable[[], Steps[None]] | None = None


class Result(NamedTuple):
    """What a statement returned; `columns` is None when that is no rows. It has returned or changed `touched` rows."""

    columns: tuple[str, ...] | None
    rows: list[Row]
    touched: int


class PreparedStatements:
    """What was prepared on a connection, and how to run it again; behind what is to be sent ahead of it."""

    def __init__(self, ahead: list[Ahead], waiting: Waiting) -> None:
        self._ahead = ahead
        self._waiting = waiting
        self._names: OrderedDict[tuple[str, tuple[int, ...]], bytes] = OrderedDict()
        self._seen: set[int] = set()
        self._made = 0
        self._transformer: Any = None  # kept, since it remembers how each type is loaded

    def steps(
        self, connection: AnyConnection, sql: str, parameters: tuple[object, ...], then: bytes = b""
    ) -> PQGen[list[Row]]:
        """The protocol's steps of a statement with $1, $2, ..., prepared at its first use; they return its rows.

        `then` is a command that follows it at once.
        """
        result, transformer = yield from self._result_steps(connection, sql, parameters, then)
        if result.status != ExecStatus.TUPLES_OK:
            return []
        return _load(connection, result, transformer)

    def described_steps(self, connection: AnyConnection, sql: str, parameters: tuple[object, ...]) -> PQGen[Result]:
        """The same, with the names of the columns and the number of rows; prepared at its second use.

        Most texts of a long script come once. Times that Python cannot represent are an error here: they are values of
        the application's.
        """
        result, transformer = yield from self._result_steps(connection, sql, parameters, is_rare=True)
        count = result.command_tuples or 0
        if result.status != ExecStatus.TUPLES_OK:
            return Result(None, [], count)
        columns = tuple((result.fname(n) or b"").decode(connection.info.encoding) for n in range(result.nfields))
        return Result(columns, transformer.load_rows(0, result.ntuples, tuple), count)

    def before(self, connection: AnyConnection) -> PQGen[None]:
        """The protocol's steps of all that is to be done before the next statement."""
        yield from self._verbs_that_wait(connection)
        yield from ahead_steps(connection, self._ahead)

    def _verbs_that_wait(self, connection: AnyConnection) -> PQGen[None]:
        """Verbs that wait. Where one is refused, or they are cut, nothing of the transaction can be committed."""
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
                    yield from command_steps(connection, SPOIL.encode())
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
        except psycopg.errors.InvalidSqlStatementName:  # the application said DISCARD ALL
            self._names.clear()
            if begins:
                yield from command_steps(connection, b"rollback and chain")
            elif connection.pgconn.transaction_status != TransactionStatus.IDLE:
                raise InstanceError(
                    "The prepared statements of this connection were discarded (DEALLOCATE ALL), so PostgreSQL has "
                    "undone the transaction: begin it again."
                ) from None
            result = yield from self._run(connection, sql, types, values, transformer.formats, then, is_rare)
        except psycopg.errors.FeatureNotSupported:  # perhaps its table has other columns now
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
        """What was prepared is run no more; it is the first to be deallocated when there are too many."""
        name = self._names.pop((sql, types), None)
        if name is not None:
            unused = name.decode(), types
            self._names[unused] = name
            self._names.move_to_end(unused, last=False)

    def _is_new(self, sql: str, types: tuple[int, ...]) -> bool:
        """Whether a statement comes for the first time, as far as it is remembered."""
        seen = hash((sql, types))
        if seen in self._seen:
            return False
        if len(self._seen) >= _SEEN_KEPT:
            self._seen.clear()
        self._seen.add(seen)
        return True

    def _run_between(self, connection: AnyConnection, send: Callable[[], None], then: bytes) -> PQGen[PGresult]:
        """All of it in one round trip. Where one fails the server skips the rest."""
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
            results = yield from _replies(pgconn, [done for _, done in ahead])
            self._ahead += _to_begin(ahead[len(results) - 1 :]) if _is_refused(results[-1]) else ()
        finally:
            with contextlib.suppress(psycopg.Error):  # a lost connection has left it
                pgconn.exit_pipeline_mode()
        _checked(connection, results)
        return results[len(ahead)]

    def _prepare(self, connection: AnyConnection, sql: str, types: tuple[int, ...]) -> PQGen[bytes]:
        if len(self._names) >= _PREPARED_KEPT:
            _, oldest = self._names.popitem(last=False)
            yield from command_steps(connection, b"deallocate " + oldest)
        self._made += 1
        name = b"servicebroker_%d" % self._made
        connection.pgconn.send_prepare(name, sql.encode(), types)
        _checked(connection, (yield from generators.execute(connection.pgconn)))
        self._names[sql, types] = name
        return name


class DirectConnection(psycopg.Connection[Row]):
    """A psycopg connection of ours; it remembers what was prepared on it.

    Attributes:
        ahead: what is still to be sent before the next statement, whoever runs that.
        waiting: verbs that are to be done before it, too.
        due: the moment at which the pool is to see it again.
        interval: seconds between two looks, while it waits, whether a signal came; a thread that gets none needs none.
    """

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, tuple_row)
        forked.protect(self)
        adapt(self.adapters)
        self.ahead: list[Ahead] = []
        self.waiting = Waiting()
        self.due = 0.0
        self.interval = INTERVAL
        self.prepared_statements = PreparedStatements(self.ahead, self.waiting)

    def run_prepared(self, sql: str, parameters: tuple[object, ...], then: bytes = b"") -> list[Row]:
        """Run a statement with $1, $2, ..., prepared at its first use, and return its rows; then that command.

        Raises:
            psycopg.Error: as a cursor would.
        """
        with self.lock:
            return super().wait(self.prepared_statements.steps(self, sql, parameters, then))

    def run_described(self, sql: str, parameters: tuple[object, ...]) -> Result:
        """As `run_prepared`, with the names of the columns and the number of rows."""
        with self.lock:
            return super().wait(self.prepared_statements.described_steps(self, sql, parameters))

    def wait(self, gen: PQGen[T], interval: float | None = None, timeout: float | None = None) -> T:
        """As the driver's, which runs everything through it; what is to come before is done first."""
        return super().wait(behind(self, gen), interval or self.interval, timeout)


class Due(Protocol):
    """A connection that says when its pool is to see it again."""

    due: float
    pgconn: PGconn


C = TypeVar("C", bound=Due)


class AtHand(Generic[C]):
    """The connection that was given back last, for who comes next: to ask the pool costs as much as a third of a SEND.

    As long as somebody asks the pool nothing is kept here, so nobody waits there for what lies here. Any thread may
    use it.
    """

    def __init__(self) -> None:
        self._connection: C | None = None
        self._asking = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self) -> C | None:
        """The connection. None: the pool is to be asked, and then `asked` to be called."""
        with self._lock:
            taken, self._connection = self._connection, None
            if taken is None:
                self._asking += 1
        return taken

    def asked(self, given: C | None) -> None:
        """The pool was asked, and has given this one."""
        with self._lock:
            self._asking -= 1
        if given is not None:
            given.due = monotonic() + _OUT

    def keep(self, connection: C) -> C | None:
        """Keep it. What is returned the pool is to have: what lay here before, or the connection itself."""
        if connection.pgconn.transaction_status != TransactionStatus.IDLE or monotonic() > connection.due:
            return connection
        with self._lock:
            if self._asking or self._is_closed:
                return connection
            before, self._connection = self._connection, connection
        return before

    def let_go(self, *, for_good: bool = False) -> C | None:
        """What lies here, if anything: the pool is to have it. `for_good`: and whatever comes later."""
        with self._lock:
            self._is_closed |= for_good
            left, self._connection = self._connection, None
        return left


class DirectPool(ConnectionPool[DirectConnection]):
    """A pool of such connections, with the one at hand that was given back last."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._at_hand: AtHand[DirectConnection] = AtHand()
        self.keep = self._at_hand.keep
        super().__init__(*arguments, **options)

    def getconn(self, timeout: float | None = None) -> DirectConnection:
        """As the driver's, but for the one at hand."""
        if (connection := self._at_hand.take()) is not None:
            return connection
        try:
            connection = super().getconn(timeout)
        finally:
            self._at_hand.asked(connection)
        return connection

    def check(self) -> None:
        """As the driver's; the one at hand too."""
        if (left := self._at_hand.let_go()) is not None:
            self.putconn(left)
        super().check()

    def close(self, timeout: float = 5.0) -> None:
        """As the driver's; the one at hand too."""
        if (left := self._at_hand.let_go(for_good=True)) is not None:
            self.putconn(left)
        super().close(timeout)


def run_command(connection: psycopg.Connection[Any], command: bytes) -> None:
    """Run a statement without parameters and rows, such as BEGIN and COMMIT."""
    with connection.lock:
        connection.wait(command_steps(connection, command))


def send_ahead(connection: DirectConnection) -> None:
    """Do what would come before the next statement: there is none."""
    if connection.ahead or connection.waiting.verbs:
        with connection.lock:
            connection.wait(nothing())


def run_query(cursor: psycopg.RawCursor[Any], sql: bytes, parameters: tuple[object, ...], *, prepare: bool) -> None:
    """Run a statement on a cursor."""
    cursor.execute(sql, parameters, prepare=prepare)


def command_steps(connection: AnyConnection, command: bytes) -> PQGen[None]:
    """The protocol's steps of `run_command`."""
    connection.pgconn.send_query(command)
    _checked(connection, (yield from generators.execute(connection.pgconn)))


def ahead_steps(connection: AnyConnection, ahead: list[Ahead]) -> PQGen[None]:
    """What goes ahead, one after the other."""
    while ahead:
        first = ahead.pop(0)
        try:
            yield from command_steps(connection, first.command)
        except psycopg.Error:
            ahead[:0] = _to_begin([first])
            raise
        if first.done:
            first.done()


def _to_begin(refused: Sequence[Ahead]) -> list[Ahead]:
    return [one for one in refused if not one.done]


def behind(connection: AnyConnection, steps: PQGen[T]) -> PQGen[T]:
    """The steps, after all that is to come before them on a connection of ours."""
    statements: PreparedStatements | None = getattr(connection, "prepared_statements", None)
    if statements is not None:
        yield from statements.before(connection)
    return (yield from steps)


def nothing() -> PQGen[None]:
    """No steps."""
    return
    yield


def _spoil() -> Steps[None]:
    """Verbs were cut between two statements: what they have begun must not be committed."""
    yield Statement("direct.spoil", SPOIL)


def is_direct(connection: AnyConnection) -> bool:
    """Whether prepared statements may go this way now: not in the middle of a pipeline of the application's."""
    return connection.pgconn.pipeline_status == PipelineStatus.OFF


def is_idle(connection: AnyConnection) -> bool:
    """Whether no transaction is open, or about to begin with the next statement."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE and not getattr(connection, "ahead", ())


def _load(connection: AnyConnection, result: PGresult, transformer: Any) -> list[Row]:
    """Return the rows of a result that the transformer was given; times that Python cannot represent are clamped."""
    try:
        rows: list[Row] = transformer.load_rows(0, result.ntuples, tuple)
    except psycopg.DataError:  # only then, because the driver's loaders are several times as fast
        clamping: Any = Transformer(clamped_context(connection))
        clamping.set_pgresult(result, set_loaders=True, format=Format.BINARY)
        rows = clamping.load_rows(0, result.ntuples, tuple)
    return rows


def _replies(pgconn: PGconn, ahead: Sequence[Callable[[], None] | None]) -> PQGen[list[PGresult]]:
    """What the server answers to a pipeline up to its end, or to the first failure; who waits for one is told."""
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while True:
        answer = yield from generators.fetch_many(pgconn)
        if not answer:
            if results and _is_refused(results[-1]):
                return results
            raise psycopg.OperationalError("the connection is lost")
        result = answer[-1]
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        if result.status == ExecStatus.PIPELINE_ABORTED:
            continue
        done = ahead[len(results)] if len(results) < len(ahead) else None
        results.append(result)
        if done and result.status == ExecStatus.COMMAND_OK:
            done()


def _is_refused(result: PGresult) -> bool:
    return result.status == ExecStatus.FATAL_ERROR


def _checked(connection: AnyConnection, results: Sequence[PGresult]) -> PGresult:
    """The last result.

    Raises:
        psycopg.Error: what PostgreSQL has refused.
    """
    result = results[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
    return result


def adapt(adapters: AdaptersMap) -> None:
    """Our own ways to load a uuid and to send an array of bodies."""
    adapters.register_loader("uuid", _UuidLoader)
    adapters.register_dumper(Bodies, _BodiesDumper)


class _BodiesDumper(Dumper):
    """One dimension from 1, its elements as length and bytes; the length -1 stands for NULL."""

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
    """The rows of one RECEIVE name few conversations: build each UUID once."""

    format = Format.BINARY

    def load(self, data: Buffer) -> UUID:
        return _uuid(bytes(data))


@functools.lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)
