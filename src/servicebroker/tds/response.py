"""The response to a request: the output of a T-SQL session as tokens, sent while the request runs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from servicebroker.tds import tokens
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.packets import PacketWriter
from servicebroker.tds.tokens import Status
from servicebroker.tds.type_writer import ColumnType, Encoded, column_type, type_of_values
from servicebroker.tsql.results import ResultSet, RowCount, ScriptOutput
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.types import NVARCHAR, SqlType

_DATABASE_CHANGED = 5701  # the number of USE's message
_ROWS_TOGETHER = 200  # rows whose short values are joined
_UNFIT = (TypeError, ValueError, OverflowError, struct.error, ArithmeticError, AttributeError)


class Response:
    """Writes the output of one request. `listen` is the listener of the session.

    A DONE token closes each result set, row count or error. The last one is held back, because it closes the response.
    """

    def __init__(self, writer: PacketWriter, server: str, *, is_call: bool, dialect: Dialect = Dialect.TDS_7_4) -> None:
        self._writer, self._server, self._dialect = writer, server, dialect
        self._statement = tokens.DONE_IN_PROC if is_call else tokens.DONE_STATEMENT
        self._end = tokens.DONE_PROC if is_call else tokens.DONE_STATEMENT
        self._held_back: tuple[Status, int] | None = None
        self.database = ""  # the database of the last USE
        self.has_error = False

    def listen(self, output: ScriptOutput) -> None:
        """Write one piece of output."""
        match output:
            case ResultSet():
                self._write_result_set(output)
            case RowCount(rows):
                self._close_statement(Status.COUNT, rows)
            case TsqlError():
                self.write_error(output)
            case Message():
                self._write_message(output)

    def write_error(self, error: TsqlError) -> None:
        """Write an error."""
        self._write(
            tokens.error(
                error.number,
                error.text,
                level=error.severity,
                state=error.state,
                server=self._server,
                procedure=error.procedure,
                line=error.line,
                dialect=self._dialect,
            )
        )
        self.has_error = True
        self._close_statement(Status.ERROR, 0)

    def write(self, token: bytes) -> None:
        """Write a token that closes no statement, such as ENVCHANGE."""
        self._write(token)

    def write_result(self, code: int, outputs: Sequence[tuple[int, str, SqlType, object]]) -> None:
        """Write the return code and the values of OUTPUT parameters: position, name, type, value."""
        self._write(tokens.return_status(code))
        for position, name, type_, value in outputs:
            kind, cells = _fit(type_, [value], self._dialect)
            self._writer.write(tokens.return_value(position, name, kind, self._dialect))
            self._write_parts(cells[0])

    def finish(self) -> None:
        """End the response."""
        status, rows = self._held_back or (Status.FINAL, 0)
        if self._end == tokens.DONE_PROC:
            if self._held_back is not None:
                self._writer.write(tokens.done(self._statement, status | Status.MORE, rows, dialect=self._dialect))
            status, rows = (Status.ERROR if self.has_error else Status.FINAL), 0
        self._writer.write(tokens.done(self._end, status, rows, dialect=self._dialect))
        self._writer.finish()

    # ------------------------------------------------------------ output

    def _write(self, token: bytes) -> None:
        self._release()
        self._writer.write(token)

    def _release(self) -> None:
        """Write the DONE that was held back: more follows it."""
        if self._held_back is not None:
            status, rows = self._held_back
            self._held_back = None
            self._writer.write(tokens.done(self._statement, status | Status.MORE, rows, dialect=self._dialect))

    def _close_statement(self, status: Status, rows: int) -> None:
        self._release()
        self._held_back = status, rows

    def _write_message(self, message: Message) -> None:
        if message.number == _DATABASE_CHANGED:
            new = message.text.partition("'")[2].rpartition("'")[0]
            self._write(tokens.database_change(new, self.database))
            self.database = new
        self._write(
            tokens.info(
                message.number,
                message.text,
                level=message.severity,
                state=message.state or 1,
                server=self._server,
                procedure=message.procedure,
                line=message.line or 1,
                dialect=self._dialect,
            )
        )
        if message.is_urgent:
            self._writer.flush()

    def _write_result_set(self, result: ResultSet) -> None:
        declared = result.types or (None,) * len(result.columns)
        columns: list[ColumnType] = []
        cells: list[list[Encoded]] = []
        for position, type_ in enumerate(declared):
            kind, encoded = _fit(type_, [row[position] for row in result.rows], self._dialect)
            columns.append(kind)
            cells.append(encoded)
        self._write(tokens.column_metadata(result.columns, columns, self._dialect))
        for start in range(0, len(result.rows), _ROWS_TOGETHER):
            self._write_rows([column[start : start + _ROWS_TOGETHER] for column in cells])
        self._close_statement(Status.COUNT, len(result.rows))

    def _write_rows(self, columns: list[list[Encoded]]) -> None:
        """Write some rows, given by their columns. Short values are joined: a call for each costs more than a copy."""
        short = bytearray()
        for row in zip(*columns, strict=True):
            short += tokens.ROW
            for cell in row:
                if type(cell) is bytes:
                    short += cell
                else:
                    self._writer.write(short)
                    short = bytearray()
                    self._write_parts(cell)
        self._writer.write(short)

    def _write_parts(self, cell: Encoded) -> None:
        if isinstance(cell, bytes):
            self._writer.write(cell)
        else:
            for part in cell:
                self._writer.write(part)


def _fit(declared: SqlType | None, values: list[Any], dialect: Dialect) -> tuple[ColumnType, list[Encoded]]:
    """Return the type of a column and its encoded values.

    A type that is unknown, or that does not hold all values, is replaced by one that does.
    """
    if declared is not None:
        with suppress(*_UNFIT):
            return _encoded(declared, values, dialect)
    with suppress(*_UNFIT):
        return _encoded(type_of_values(values), values, dialect)
    kind = column_type(NVARCHAR, dialect)
    return kind, [kind.encode(None if value is None else _text(value)) for value in values]


def _encoded(type_: SqlType, values: list[Any], dialect: Dialect) -> tuple[ColumnType, list[Encoded]]:
    kind = column_type(type_, dialect)
    encode = kind.encode
    return kind, [encode(value) for value in values]


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)
