"""The result of a translation."""

from __future__ import annotations

from typing import Literal, NamedTuple

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.tsql.translation.text_writer import ExtraStatement
from servicebroker.tsql.types import SqlType


class OutputTarget(NamedTuple):
    """The table whose changed rows OUTPUT returns to the caller.

    Attributes:
        table: the quoted PostgreSQL name.
        name: the name in the statement.
        events: the changes of the statement: INSERT, UPDATE, DELETE; several for MERGE.
    """

    table: str
    name: str
    events: tuple[str, ...]


class Translation(NamedTuple):
    """A statement for PostgreSQL.

    Attributes:
        sql: one statement with $1, $2, ... Of kind 'ddl' it may be several statements, without parameters.
        parameters: the values for $1, $2, ...: names of variables ('@a') and keys of `Scope.functions`.
        kind: 'rows' returns a result set. 'count' changes rows. 'assign' returns rows; the last one goes into
            `assignments`, and without a row the variables keep their values. 'ddl' defines an object.
        columns: the column names of a result set, '' for a column without a name. None if a star stands for unknown
            columns; then PostgreSQL's names apply, with '?column?' for no name.
        types: the types of the columns, None for an unknown type.
        assignments: the variables that an assignment sets.
        before: statements to run first, each by itself, in the same transaction.
        after: statements to run afterwards, likewise.
        identity: the index of a returned column that is not part of the result: the IDENTITY value of each inserted
            row. The last one becomes SCOPE_IDENTITY().
        min_server_version: the PostgreSQL version that the statement needs, 0 for any supported version.
        uses: the uses of tables, views, queues and functions, each once. Temporary tables need no permission and are
            left out.
        tables_read: quoted PostgreSQL names of the tables whose rows it reads, for isolation levels that lock them.
        names_tables: True if it names a table or view.
        output_target: the table whose changed rows OUTPUT returns to the caller; None for a temporary table.
        notes: texts for the caller about what the statement does differently from SQL Server.
        max_rows: the number of rows that it may change, if the text itself cannot limit them; 0 for any number.
    """

    sql: str
    parameters: tuple[str, ...]
    kind: Literal["rows", "count", "assign", "ddl"]
    columns: tuple[str, ...] | None = None
    types: tuple[SqlType | None, ...] | None = None
    assignments: tuple[str, ...] = ()
    before: tuple[ExtraStatement, ...] = ()
    after: tuple[ExtraStatement, ...] = ()
    identity: int | None = None
    min_server_version: int = 0
    uses: tuple[Use, ...] = ()
    tables_read: tuple[str, ...] = ()
    names_tables: bool = False
    notes: tuple[str, ...] = ()
    max_rows: int = 0
    output_target: OutputTarget | None = None
