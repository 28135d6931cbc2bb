"""Runner of translated statements on the session's connection. Encodes parameters and decodes rows."""

from __future__ import annotations

from servicebroker.model.zero_character import ZERO, from_postgres, to_postgres
from servicebroker.store.direct import DescribedRows, DirectConnection, run_command
from servicebroker.store.statements import Row, Rows
from servicebroker.tsql.statement_errors import unsupported


def run_statement(connection: DirectConnection, sql: str, values: tuple[object, ...]) -> DescribedRows:
    """Run a statement with parameters.

    Strings with the character U+0000 are encoded on the way in and decoded on the way out.

    Raises:
        psycopg.Error: as a cursor would.
        TsqlError: 40515 a name contains the character U+0000.
    """
    _check_no_zero_character(sql)
    result = connection.run_described(sql, tuple(map(_encode_value, values)))
    return result._replace(rows=decode_rows(result.rows))


def decode_rows(rows: Rows) -> list[Row]:
    """Decode the strings of rows that PostgreSQL returned, so that they contain U+0000 again."""
    if any(type(value) is str and ZERO in value for row in rows for value in row):
        return [tuple(from_postgres(value) if isinstance(value, str) else value for value in row) for row in rows]
    return list(rows)


def run_definition(connection: DirectConnection, sql: str) -> None:
    """Run a statement without parameters and rows. Raises as `run_statement`."""
    _check_no_zero_character(sql)
    run_command(connection, sql.encode())


def _check_no_zero_character(sql: str) -> None:
    """Refuse a statement with U+0000, at which PostgreSQL would stop reading.

    Only a name can contain it, no literal does.
    """
    if "\0" in sql:
        raise unsupported("A name with the character U+0000", "Give it another name.", 0)


def _encode_value(value: object) -> object:
    """Encode a string, or each string of a list, for PostgreSQL."""
    if isinstance(value, list):
        return [_encode_value(element) for element in value]
    return to_postgres(value) if isinstance(value, str) else value
