"""Statements of T-SQL on the session's connection: what enters PostgreSQL, and what leaves it."""

from __future__ import annotations

from servicebroker.model.zero_character import ZERO, from_postgres, to_postgres
from servicebroker.store.direct import DirectConnection, Result, run_command
from servicebroker.store.statements import Row, Rows
from servicebroker.tsql.statement_errors import unsupported


def run_statement(connection: DirectConnection, sql: str, values: tuple[object, ...]) -> Result:
    """Run a statement with these parameters. U+0000 passes in both directions.

    Raises:
        psycopg.Error: as a cursor would.
        TsqlError: 40515 a name has the character U+0000.
    """
    _check_whole(sql)
    result = connection.run_described(sql, tuple(map(_entering, values)))
    return result._replace(rows=leaving(result.rows))


def leaving(rows: Rows) -> list[Row]:
    """Return the rows of a statement as T-SQL has them."""
    if any(type(value) is str and ZERO in value for row in rows for value in row):
        return [tuple(from_postgres(value) if isinstance(value, str) else value for value in row) for row in rows]
    return list(rows)


def run_definition(connection: DirectConnection, sql: str) -> None:
    """Run a statement without parameters and rows. Raises as `run_statement`."""
    _check_whole(sql)
    run_command(connection, sql.encode())


def _check_whole(sql: str) -> None:
    """Refuse what PostgreSQL would read only in part: U+0000 ends a statement. Literals have none, so a name has it."""
    if "\0" in sql:
        raise unsupported("A name with the character U+0000", "Give it another name.", 0)


def _entering(value: object) -> object:
    if isinstance(value, list):
        return [_entering(each) for each in value]
    return to_postgres(value) if isinstance(value, str) else value
