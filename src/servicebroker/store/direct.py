"""Prepared statements on our own connections, past the driver's cursors, which cost as much as a short statement.

The driver's own protocol steps do the talking, so Ctrl-C and lost connections behave as they do with a cursor. The
steps are generators: a connection that blocks runs them, and one of asyncio (aio/direct.py) does.
"""

from __future__ import annotations

import functools
import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Dumper, Loader, PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

Row = tuple[Any, ...]
AnyConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_PREPARED_KEPT = 500  # on each connection


class PreparedStatements:
    """What was prepared on a connection, and how to run it again."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[str, tuple[int, ...]], bytes] = OrderedDict()
        self._made = 0

    def steps(self, connection: AnyConnection, sql: str, parameters: tuple[object, ...]) -> PQGen[list[Row]]:
        """The protocol's steps of a statement with $1, $2, ..., prepared at its first use; they return its rows."""
        transformer = Transformer(connection)
        values = transformer.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        types = tuple(transformer.types or ())
        alone = connection.pgconn.transaction_status == TransactionStatus.IDLE
        try:
            result = yield from self._run(connection, sql, types, values, transformer.formats)
        except psycopg.errors.InvalidSqlStatementName:  # the application said DISCARD ALL
            self._names.clear()
            if not alone:
                raise
            result = yield from self._run(connection, sql, types, values, transformer.formats)
        if result.status != ExecStatus.TUPLES_OK:
            return []
        transformer.set_pgresult(result, set_loaders=True, format=Format.BINARY)
        return transformer.load_rows(0, result.ntuples, tuple)

    def _run(
        self,
        connection: AnyConnection,
        sql: str,
        types: tuple[int, ...],
        values: Sequence[Buffer | None],
        formats: Sequence[int] | None,
    ) -> PQGen[PGresult]:
        name = self._names.get((sql, types)) or (yield from self._prepare(connection, sql, types))
        connection.pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        return (yield from _result(connection))

    def _prepare(self, connection: AnyConnection, sql: str, types: tuple[int, ...]) -> PQGen[bytes]:
        if len(self._names) >= _PREPARED_KEPT:
            _, oldest = self._names.popitem(last=False)
            yield from command_steps(connection, b"deallocate " + oldest)
        self._made += 1
        name = b"servicebroker_%d" % self._made
        connection.pgconn.send_prepare(name, sql.encode(), types)
        yield from _result(connection)
        self._names[sql, types] = name
        return name


class DirectConnection(psycopg.Connection[Row]):
    """A psycopg connection of ours; it remembers what was prepared on it."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, tuple_row)
        adapt(self.adapters)
        self._prepared_statements = PreparedStatements()

    def run_prepared(self, sql: str, parameters: tuple[object, ...]) -> list[Row]:
        """Run a statement with $1, $2, ..., prepared at its first use, and return its rows.

        Raises:
            psycopg.Error: as a cursor would.
        """
        with self.lock:
            return self.wait(self._prepared_statements.steps(self, sql, parameters))


DirectPool = ConnectionPool[DirectConnection]


def run_command(connection: psycopg.Connection[Any], command: bytes) -> None:
    """Run a statement without parameters and rows, such as BEGIN and COMMIT."""
    with connection.lock:
        connection.wait(command_steps(connection, command))


def run_query(cursor: psycopg.RawCursor[Any], sql: bytes, parameters: tuple[object, ...], *, prepare: bool) -> None:
    """Run a statement on a cursor."""
    cursor.execute(sql, parameters, prepare=prepare)


def command_steps(connection: AnyConnection, command: bytes) -> PQGen[None]:
    """The protocol's steps of `run_command`."""
    connection.pgconn.send_query(command)
    yield from _result(connection)


def is_direct(connection: AnyConnection) -> bool:
    """Whether prepared statements may go this way now: not in the middle of a pipeline of the application's."""
    return connection.pgconn.pipeline_status == PipelineStatus.OFF


def _result(connection: AnyConnection) -> PQGen[PGresult]:
    """Wait for the result of what was sent.

    Raises:
        psycopg.Error: what PostgreSQL has refused.
    """
    results: list[PGresult] = yield from generators.execute(connection.pgconn)
    result = results[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
    return result


def adapt(adapters: AdaptersMap) -> None:
    """Our own ways to load a uuid and to send an array of bodies."""
    adapters.register_loader("uuid", _UuidLoader)
    adapters.register_dumper(Bodies, _BodiesDumper)


class Bodies(list[bytes | None]):
    """A bytea[] that travels in binary; the driver would write it as escaped text, five times as slowly."""


class _BodiesDumper(Dumper):
    """One dimension from 1, its elements as length and bytes; the length -1 stands for NULL."""

    format = Format.BINARY
    oid = 1001  # bytea[]

    def dump(self, obj: Bodies) -> Buffer:
        parts = [_HEAD.pack(1, 1, 17, len(obj), 1)]
        for body in obj:
            parts += (_LENGTH.pack(-1),) if body is None else (_LENGTH.pack(len(body)), body)
        return b"".join(parts)


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
