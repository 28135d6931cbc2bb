"""What a translation returns."""

from __future__ import annotations

from typing import Literal, NamedTuple

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.tsql.translation.text_writer import ExtraStatement
from servicebroker.tsql.types import SqlType


class Translation(NamedTuple):
    """A statement for PostgreSQL.

    Attributes: sql: one statement with $1, $2, ...; of kind 'ddl' it may be several, without parameters. parameters:
    what $1, $2, ... are: names of variables ('@a') and of Scope.functions. kind: 'rows' returns a result set; 'count'
    changes rows; 'assign' returns rows whose columns go into `assignments`, of the last row; without a row the
    variables stay as they are. 'ddl' defines something. columns: the names of the columns of a result set in their
    spelling, '' for one without a name; None when a star stands for columns that were not known: then PostgreSQL's
    names are to be taken, '?column?' for none. types: the types of the columns, None for one that is not known.
    assignments: the variables that an assignment sets. before: what must run first, in the same transaction, each on
    its own. after: what must run behind it, likewise. identity: the returned column, counted from 0, that is the value
    of an IDENTITY column of each inserted row, and no column of the result. The last one is SCOPE_IDENTITY(). server:
    the version of PostgreSQL that the statement needs; 0 for any that is supported. uses: what it does with which
    tables, views, queues and functions, each once; temporary ones are everybody's. looks: whether it names a table or a
    view. most: how many rows it may change, of which the text says nothing; 0 for any number. reads: the quoted
    PostgreSQL names of the tables whose rows it looks for, for the isolation levels that hold them.
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
    max_rows: int = 0
