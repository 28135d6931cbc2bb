"""What a translation gathers on its way: parameters, names, and the tables in sight."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlglot import exp

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model import names
from servicebroker.model.errors import RULES
from servicebroker.model.zero_character import ZERO
from servicebroker.store.queue import quoted
from servicebroker.tsql.function_table import GLOBALS
from servicebroker.tsql.scope import CONTEXT, CONTEXT_INFO, LOGIN, ORIGINAL_LOGIN, USER, Column, Scope, UserType
from servicebroker.tsql.statement_errors import TsqlError, condition_expected, no_linked_server
from servicebroker.tsql.syntax import Name
from servicebroker.tsql.types import BINARIES, DATES, NUMBERS, STRINGS, SqlType, parse_type, postgres_type, type_key

_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_PREDICATE_ROLE, _VALUE_ROLE, QUERY_ROLE = "predicate", "value", "query"


class Sql(NamedTuple):
    """An expression as PostgreSQL reads it.

    `type` is None while nobody knows it. An `is_untyped` one is a string in quotes (or NULL) without a type: it takes
    the type of what it stands beside, as both systems have it.
    """

    text: str
    type: SqlType | None = None
    is_untyped: bool = False

    @property
    def kind(self) -> str | None:
        """The family of its type: string, number, date, binary, uniqueidentifier, xml; None when unknown."""
        return None if self.type is None else type_family(self.type)


def type_family(of: SqlType) -> str:
    """The family of a type."""
    for kind, members in (("string", STRINGS), ("number", NUMBERS), ("date", DATES), ("binary", BINARIES)):
        if of.name in members:
            return kind
    return of.name


class Source(NamedTuple):
    """A table in sight: the name under which it is known, in lower case, and its columns, None when unknown."""

    alias: str
    columns: dict[str, Column] | None
    table: str = ""  # its quoted PostgreSQL name, when it is a table
    is_catalog: bool = False


class ExtraStatement(NamedTuple):
    """What must be taken before the statement, as a statement with its parameters."""

    sql: str
    parameters: tuple[str, ...]


@dataclass
class Writer:
    """One statement on its way to PostgreSQL."""

    scope: Scope
    max_recursion: int = 100  # of a recursive common table expression, 0 for any number
    has_parent_steps: bool = False  # the statement has `..`, which in XQuery asks for a parent
    parameters: list[str] = field(default_factory=list)
    sources: list[list[Source]] = field(default_factory=list)  # the innermost query last
    common_tables: list[dict[str, dict[str, Column] | None]] = field(default_factory=list)  # common table expressions
    namespaces: dict[str, str] = field(default_factory=dict)  # of WITH XMLNAMESPACES; '' is the default one
    locks: list[ExtraStatement] = field(default_factory=list)
    assigned: dict[str, Sql] = field(default_factory=dict)  # by variables to the left in the same SELECT
    aliases: dict[str, str] = field(default_factory=dict)  # of tables that are called otherwise in PostgreSQL
    scope_answers: dict[tuple[str, str], object] = field(
        default_factory=dict
    )  # what the scope was asked, and its answers
    table_uses: dict[str, Use] = field(default_factory=dict)  # SELECT of each table in a schema, by its PostgreSQL name
    uses: dict[Use, None] = field(default_factory=dict)  # what is done with tables and functions
    default_column: str = ""  # the column of which the DEFAULT is written
    sequence_draws: int = 0  # times that NEXT VALUE FOR stands in the row that is written

    def parameter(self, name: str, of: SqlType | None) -> str:
        """The placeholder of a variable or of a value of the session; in the body of a function, what stands for it."""
        cast = f"::{postgres_type(of)}" if of else ""
        self.scope_answers["body", ""] = self.scope.is_body
        if self.scope.is_body:
            return (quoted(name) if name in self.scope.variables else session_value_sql(self.scope, name)) + cast
        if name not in self.parameters:
            self.parameters.append(name)
        return f"${self.parameters.index(name) + 1}{cast}"

    def next_draw_key(self) -> str:
        """What tells each NEXT VALUE FOR of a row, which all give the same number, from one of the next row."""
        self.sequence_draws += 1
        return f"{self.default_column}{self.sequence_draws}"

    def variable(self, name: str) -> Sql:
        """A variable, as a typed parameter."""
        name = name.lower()
        if name in self.assigned:
            return self.assigned[name]
        return Sql(self.parameter(name, self.variable_type(name)), self.variable_type(name))

    def variable_type(self, name: str) -> SqlType:
        """The type of a variable.

        Raises:
            TsqlError: 137 for one that was not declared.
        """
        name = name.lower()
        found = self.scope.variables.get(name)
        self.scope_answers["variable", name] = found
        if found is None:
            raise TsqlError(137, f'Must declare the scalar variable "{name}".', severity=15)
        return found

    def table_columns(self, table: str) -> dict[str, Column] | None:
        """The columns of a PostgreSQL table by their names in lower case, None when unknown."""
        found = self.scope.columns.get(table)
        self.scope_answers["columns", table] = found
        return None if found is None else {column.name.lower(): column for column in found}

    def type_named(self, text: str) -> UserType:
        """The type of a column; one that CREATE TYPE has made, or one of the language.

        Raises:
            TsqlError: 2715 there is none, and others of `parse_type`.
        """
        try:
            return UserType(0, parse_type(text), "", True)
        except TsqlError as unknown:
            key = type_key(text) if unknown.number == 2715 else None
            found = self.scope.user_types.get(key) if key is not None else None
            self.scope_answers["type", key or ""] = found
            if found is None or found.of is None:
                raise
            return found

    def record_use(self, table: str, *statements: str, shown: str = "") -> None:
        """What is done with a table: statements of `NEEDS`. Temporary ones are everybody's."""
        named = self.table_uses.get(table)
        if named is not None:
            self.uses.update({named._replace(statement=each, shown=shown): None for each in statements})

    def check_changes(self, table: str, *statements: str) -> None:
        """That a table may be changed, by these `statements`.

        Raises:
            TsqlError: 10700 it is a table-valued parameter, 443 it is no table variable, in the body of a function, 259
                it is the system's.
        """
        named = self.table_uses.get(table)
        if table.startswith(("sys.", "tsql.")) or (named is not None and named.schema.lower() in names.SYSTEM_SCHEMAS):
            raise TsqlError(259, RULES[259].text)
        self.record_use(table, *statements)
        self.scope_answers["body", ""] = self.scope.is_body
        if self.scope.is_body and table not in self.scope.tables.values():
            raise TsqlError(
                443,
                "Invalid use of a side-effecting operator within a function: it changes nothing but its table variables.",
            )
        if not table.startswith('pg_temp."@'):
            return
        name = self.scope.read_only.get(table)
        self.scope_answers["read only", table] = name
        if name is not None:
            raise TsqlError(10700, f'The table-valued parameter "{name}" is READONLY and cannot be modified.')

    def synonym(self, database: str, schema: str, name: str) -> Name | None:
        """What a synonym stands for, all of its parts told; None when that is none.

        Raises:
            TsqlError: 470 that is a synonym too, 7202 it is of another server.
        """
        base = self._base(database, schema, name)
        if base is None:
            return None
        if len(base.parts) > 3:
            raise no_linked_server(base.parts[0])
        whole = Name((base.database or database, base.schema or "dbo", base.own))
        if self._base(*whole.parts) is not None:
            raise TsqlError(
                470, f"The synonym '{name}' referenced synonym '{base}'. Synonym chaining is not allowed.", state=1
            )
        return whole

    def _base(self, database: str, schema: str, name: str) -> Name | None:
        found = self.scope.synonym(database, schema, name)
        self.scope_answers["synonym", f"{database}\0{schema}\0{name}"] = found
        return found

    def temporary(self, name: str) -> str | None:
        """The PostgreSQL name of a temporary table or table variable."""
        found = self.scope.tables.get(name)
        self.scope_answers["table", name] = found
        return found

    @contextmanager
    def query(self, sources: list[Source]) -> Iterator[None]:
        """Within a query that reads these tables."""
        self.sources.append(sources)
        try:
            yield
        finally:
            self.sources.pop()

    @contextmanager
    def renamed(self, names: dict[str, str]) -> Iterator[None]:
        """While tables are called otherwise in PostgreSQL."""
        outer, self.aliases = self.aliases, names
        try:
            yield
        finally:
            self.aliases = outer

    def alias(self, name: str) -> str:
        """A table's alias as PostgreSQL has it, quoted."""
        return quote_identifier(self.aliases.get(name.lower(), name))

    @contextmanager
    def hidden(self, sources: list[Source] | None) -> Iterator[None]:
        """Without the tables beside a derived table, which cannot see them; None: it can (APPLY)."""
        if sources is None:
            yield
            return
        kept = self.sources
        self.sources = [each for each in kept if each is not sources]
        try:
            yield
        finally:
            self.sources = kept

    def column(self, alias: str, name: str) -> tuple[Source, Column] | None:
        """The column that a name means, when that is known."""
        for sources in reversed(self.sources):
            named = [source for source in sources if not alias or source.alias == alias]
            for source in named:
                if source.columns and name in source.columns:
                    return source, source.columns[name]
            if any(source.columns is None or source.is_catalog for source in named):
                return None
        return None

    def source(self, alias: str) -> Source | None:
        """The table that is known under a name."""
        for sources in reversed(self.sources):
            for source in sources:
                if source.alias == alias:
                    return source
        return None


def _read_setting(setting: str) -> str:
    return f"nullif(current_setting('{setting}', true), '')"


# what the session has told its connection, for what outlives it: defaults of columns, bodies of functions
_SESSION_SQL = {
    **dict.fromkeys(("suser_name", "suser_sname", "system_user"), f"coalesce({_read_setting(LOGIN)}, current_user)"),
    **dict.fromkeys(
        ("user_name", "current_user", "session_user", "user"), f"coalesce({_read_setting(USER)}, current_user)"
    ),
    "original_login": f"coalesce({_read_setting(ORIGINAL_LOGIN)}, {_read_setting(LOGIN)}, current_user)",
    "session context": f"coalesce({_read_setting(CONTEXT)}, '{{}}')",
    "context_info": f"decode({_read_setting(CONTEXT_INFO)}, 'hex')",
    "@@spid": "tsql.spid()",
}


PERMISSIONS = "permissions "  # before what is asked, as JSON: each argument is NULL, 'text, @variable or the database


def not_permitted(name: str, number: int = 128) -> TsqlError:
    """The refusal of a parameter in what outlives the session that gives it: views, functions, DEFAULT, CHECK."""
    if not name.startswith("@") or name in GLOBALS:
        is_asked = name.startswith(PERMISSIONS)
        function = str(json.loads(name.removeprefix(PERMISSIONS))[0]) if is_asked else name
        return not_supported(
            f"{function.upper()} in a view, a function, a DEFAULT, a CHECK or a computed column",
            "The session answers it: ask in a statement or a procedure.",
        )
    return TsqlError(number, f'The name "{name}" is not permitted in this context.', severity=15)


def session_value_sql(scope: Scope, name: str) -> str:
    """A value of the session that PostgreSQL can find by itself.

    Raises:
        TsqlError: 128 it is a variable, 40515 it cannot.
    """
    if name == "db_name":
        return quote_string(scope.database)
    if name == "db_id":
        return f"tsql.db_id({quote_string(scope.database)})"
    if name not in _SESSION_SQL:
        raise not_permitted(name)
    return _SESSION_SQL[name]


Handler = Callable[[Writer, Any], Any]
HANDLERS: dict[tuple[str, type[exp.Expression]], Handler] = {}


def writes_value(*kinds: type[exp.Expression]) -> Callable[[Handler], Handler]:
    """Registers what writes these nodes as a value."""
    return _registering(_VALUE_ROLE, kinds)


def writes_predicate(*kinds: type[exp.Expression]) -> Callable[[Handler], Handler]:
    """Registers what writes these nodes as a condition."""
    return _registering(_PREDICATE_ROLE, kinds)


def writes_query(*kinds: type[exp.Expression]) -> Callable[[Handler], Handler]:
    """Registers what writes these nodes as a query inside another statement."""
    return _registering(QUERY_ROLE, kinds)


def _registering(role: str, kinds: tuple[type[exp.Expression], ...]) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[role, kind] = handler
        return handler

    return register


def write_value(writer: Writer, node: exp.Expression) -> Sql:
    """A node as a value.

    Raises:
        TsqlError: 4145 for a condition, 40515 for what is not translated.
    """
    handler = HANDLERS.get((_VALUE_ROLE, type(node)))
    if handler is not None:
        written: Sql = handler(writer, node)
        return written
    if (_PREDICATE_ROLE, type(node)) in HANDLERS:
        raise TsqlError(
            102, f"Incorrect syntax near '{operator_of(node)}'. A condition is no value: use CASE WHEN or IIF."
        )
    raise node_not_supported(node)


def write_predicate(writer: Writer, node: exp.Expression) -> str:
    """A node as a condition.

    Raises:
        TsqlError: 4145 for a value, 40515 for what is not translated.
    """
    handler = HANDLERS.get((_PREDICATE_ROLE, type(node)))
    if handler is not None:
        return str(handler(writer, node))
    if (_VALUE_ROLE, type(node)) in HANDLERS:
        if isinstance(node, exp.Anonymous):
            write_value(writer, node)  # which refuses those that are conditions in SQL Server
        raise condition_expected()
    raise node_not_supported(node)


def is_predicate(node: exp.Expression) -> bool:
    """Whether a node is a condition."""
    return (_PREDICATE_ROLE, type(node)) in HANDLERS and (
        (_VALUE_ROLE, type(node)) not in HANDLERS or _only_wraps(node)
    )


def _only_wraps(node: exp.Expression) -> bool:
    return isinstance(node, exp.Paren) and is_predicate(node.this)


def operator_of(node: exp.Expression) -> str:
    """A word for the kind of a node."""
    return re.sub(r"(?<!^)(?=[A-Z][a-z])", " ", type(node).__name__).upper()


def node_not_supported(node: exp.Expression, instead: str = "") -> TsqlError:
    """40515 for a construct."""
    return not_supported(operator_of(node), instead)


def not_supported(what: str, instead: str = "") -> TsqlError:
    """40515: known, and not done here."""
    return TsqlError(40515, f"{what} is not supported here.{' ' + instead if instead else ''}")


def allow_only(node: exp.Expression, *known: str) -> None:
    """Nothing is dropped silently: what a node says beyond `known` is refused."""
    for name, said in node.args.items():
        if said and name not in known:
            what = name.strip("_").replace("_", " ").upper()
            raise not_supported(f"{what} of {operator_of(node)}")


def quote_string(text: str) -> str:
    """A literal of PostgreSQL.

    Raises:
        TsqlError: for characters that PostgreSQL cannot hold.
    """
    if not names.is_encodable(text):
        raise not_supported("A string with half of a surrogate pair", "Keep such data in varbinary.")
    return "'" + text.replace("\0", ZERO).replace("'", "''") + "'"


def quote_identifier(name: str) -> str:
    """A name in PostgreSQL: without regard to case, quoted."""
    short = names.postgres_name(name)
    return quoted(short + "_" if short in _SYSTEM_COLUMNS else short)


def quote_label(name: str) -> str:
    """A name of a result's column, in its own spelling."""
    return quoted(name.replace("\0", "") or "?column?")


def postgres_schema(database: str, schema: str) -> str:
    """The PostgreSQL schema of the application's tables, quoted."""
    return quoted(names.postgres_name(database, schema or "dbo"))


def timestamp_text(text: str, column: Column) -> str:
    """A column as a datetime has it: UTC to the millisecond, without a zone."""
    return f"({text} AT TIME ZONE 'UTC')::timestamp(3)" if column.has_time_zone else text


def cast_to_text(value: Sql) -> str:
    """A string as PostgreSQL's text; open literals get the type."""
    return f"{value.text}::text" if value.is_untyped else value.text


def typed_text(value: Sql) -> str:
    """A value that has a type whatever stands beside it."""
    return cast_to_text(value) if value.is_untyped and value.type is not None else value.text
