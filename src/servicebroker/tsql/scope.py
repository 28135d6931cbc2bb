"""What a translation needs to know of the session and the catalog: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.tsql.syntax import Name
from servicebroker.tsql.types import SqlType

# settings of the session's connection, for defaults of columns, which outlive the session that has written them
USER, LOGIN = "servicebroker.tsql_user", "servicebroker.tsql_login"
ORIGINAL_LOGIN = "servicebroker.tsql_original_login"  # where it is not the login
CONTEXT, CONTEXT_INFO = "servicebroker.tsql_context", "servicebroker.tsql_context_info"  # JSON; hexadecimal


class Column(NamedTuple):
    """A column of a table or view: its name as it was written, and what is known of it."""

    name: str
    type: SqlType
    is_identity: bool = False
    is_nullable: bool = True
    is_computed: bool = False
    has_time_zone: bool = False  # PostgreSQL knows its zone, which a datetime has not
    default: str = ""  # the name of its DEFAULT constraint
    default_sql: str = ""  # its DEFAULT in PostgreSQL
    number: int = 0  # its column_id

    @property
    def sequence_default(self) -> str:
        """Its DEFAULT in PostgreSQL, where that is a number of a sequence."""
        return self.default_sql if "tsql.next_in_row(" in self.default_sql else ""


class UserFunction(NamedTuple):
    """A user-defined function: a scalar one returns a value, an inline table-valued one has columns.

    `parameters` are their types, `defaults` PostgreSQL's text of what DEFAULT stands for, None where there is none.
    """

    parameters: tuple[SqlType, ...]
    defaults: tuple[str | None, ...]
    returns: SqlType | None
    columns: tuple[Column, ...] = ()


class UserType(NamedTuple):
    """A type that CREATE TYPE has made: another name of the type `of`, or, when that is None, a table's `columns`."""

    number: int
    of: SqlType | None
    columns: str
    is_nullable: bool


@dataclass(slots=True)
class Scope:
    """The names that a statement sees.

    Attributes:
        database: the current broker database.
        variables: the type of each variable, by its name in lower case with its @.
        tables: the quoted PostgreSQL name of temporary tables, table variables, and of `inserted` and `deleted` inside
            a trigger, by their name in lower case with # or @.
        functions: what the session knows, by name in lower case: '@@rowcount', 'error_number', 'db_name' and so on.
        columns: the columns of tables by their quoted PostgreSQL name. A table that is missing here is translated
            without its types; `relational.tables_of` says which ones a statement reads or writes.
        identity_insert: the quoted PostgreSQL name of the table for which SET IDENTITY_INSERT is ON.
        user_functions: by their quoted PostgreSQL name; None when nobody can tell which ones there are.
        is_body: whether this is the body of a function, where variables are called by their names.
        user_types: by `types.type_key`.
        synonyms: what each stands for, by its database in lower case, then by schema and name in lower case.
        read_only: the table-valued parameters, by the quoted PostgreSQL name of their table.
        row_limit: what SET ROWCOUNT has set: how many rows a statement gives or changes at most, 0 for all of them.
        recorded_uses: where what is translated writes what it uses; None when nobody asks.
    """

    database: str
    variables: Mapping[str, SqlType] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, object] = field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    identity_insert: str | None = None
    user_functions: Mapping[str, UserFunction] | None = None
    is_body: bool = False
    user_types: Mapping[str, UserType] = field(default_factory=dict)
    synonyms: Mapping[str, Mapping[tuple[str, str], Name]] = field(default_factory=dict)
    read_only: Mapping[str, str] = field(default_factory=dict)
    row_limit: int = 0
    recorded_uses: dict[Use, None] | None = None

    def synonym(self, database: str, schema: str, name: str) -> Name | None:
        """What a synonym stands for; None when that is none."""
        return self.synonyms.get(database.lower(), {}).get((schema.lower(), name.lower()))
