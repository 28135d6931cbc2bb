"""Names of the session and of the catalog that a translation may use, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.tsql.date_texts import US_ENGLISH
from servicebroker.tsql.syntax import Name
from servicebroker.tsql.types import SqlType

# settings of the session's connection; defaults of columns read them, since they outlive the session
USER, LOGIN = "servicebroker.tsql_user", "servicebroker.tsql_login"
ORIGINAL_LOGIN = "servicebroker.tsql_original_login"  # set only if it differs from the login
ERROR = "servicebroker.tsql_error"  # the error of a CATCH block as JSON
DATE_ORDER_SETTING, DATE_FIRST_SETTING = "servicebroker.date_order", "servicebroker.date_first"
ISOLATION_SETTING = "servicebroker.tsql_isolation"  # its number in sys.dm_exec_sessions
CONTEXT, CONTEXT_INFO = "servicebroker.tsql_context", "servicebroker.tsql_context_info"  # JSON; hexadecimal


class Column(NamedTuple):
    """A column of a table or view. `name` keeps its spelling."""

    name: str
    type: SqlType
    is_identity: bool = False
    is_nullable: bool = True
    is_computed: bool = False
    has_time_zone: bool = False  # a timestamptz in PostgreSQL, while a datetime has no zone
    default: str = ""  # name of the DEFAULT constraint
    default_sql: str = ""  # PostgreSQL's text of the DEFAULT
    number: int = 0  # column_id
    owner: str = ""  # the table as error 2628 names it, only where `Scope.explains_truncation`
    collation: str = ""  # name; "" for that of the database

    @property
    def sequence_default(self) -> str:
        """PostgreSQL's text of a DEFAULT that draws from a sequence, or ""."""
        return self.default_sql if "tsql.next_in_row(" in self.default_sql else ""


class UserFunction(NamedTuple):
    """A user-defined function: a scalar function returns a value, an inline table-valued one has columns.

    `parameters` are types. `defaults` are PostgreSQL's texts of the defaults, None for a parameter without one.
    """

    parameters: tuple[SqlType, ...]
    defaults: tuple[str | None, ...]
    returns: SqlType | None
    columns: tuple[Column, ...] = ()


class UserType(NamedTuple):
    """A type made by CREATE TYPE: an alias of the type `of`, or, if that is None, a table type with `columns`."""

    number: int
    of: SqlType | None
    columns: str
    is_nullable: bool


@dataclass(slots=True)
class Scope:
    """The names that a statement can refer to.

    Attributes:
        database: the current broker database.
        variables: the type of each variable, by its name in lower case with its @.
        tables: quoted PostgreSQL names of temporary tables and table variables, and inside a trigger of `inserted` and
            `deleted`. The keys are in lower case and include # or @.
        functions: values of the session by name in lower case: '@@rowcount', 'error_number', 'db_name' and so on.
        columns: the columns of tables by quoted PostgreSQL name. A missing table is translated without types.
            `translator.tables_of` lists the tables of a statement.
        identity_insert: the quoted PostgreSQL name of the table for which SET IDENTITY_INSERT is ON.
        user_functions: functions by quoted PostgreSQL name; None if the catalog was not read.
        is_body: True in the body of a function, where variables are referred to by name and not as parameters.
        module: the name of the function whose body is translated, for @@PROCID.
        user_types: types by `types.type_key`.
        synonyms: the base object of each synonym, by database, then by schema and name, all in lower case.
        collations: the collation of each database, by its name in lower case; `DEFAULT_COLLATION` of a missing one.
        read_only: the names of table-valued parameters by the quoted PostgreSQL name of their table.
        row_limit: the value of SET ROWCOUNT: the maximum of rows returned or changed, 0 for no limit.
        date_first: the first day of a week, 1 for Monday to 7.
        explains_truncation: True to translate a change that failed with error 8152 once more: a string that is too long
            for its column raises error 2628.
        recorded_uses: collects the objects that translations use; None to collect nothing.
    """

    database: str
    variables: Mapping[str, SqlType] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, object] = field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    identity_insert: str | None = None
    user_functions: Mapping[str, UserFunction] | None = None
    is_body: bool = False
    module: str = ""
    user_types: Mapping[str, UserType] = field(default_factory=dict)
    synonyms: Mapping[str, Mapping[tuple[str, str], Name]] = field(default_factory=dict)
    read_only: Mapping[str, str] = field(default_factory=dict)
    collations: Mapping[str, str] = field(default_factory=dict)
    row_limit: int = 0
    date_first: int = US_ENGLISH.first
    explains_truncation: bool = False
    recorded_uses: dict[Use, None] | None = None

    def synonym(self, database: str, schema: str, name: str) -> Name | None:
        """Return the base object of a synonym, or None if there is no such synonym."""
        return self.synonyms.get(database.lower(), {}).get((schema.lower(), name.lower()))
