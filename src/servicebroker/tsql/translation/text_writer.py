"""The state of one translation, `Writer`, and helpers that write PostgreSQL's SQL."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlglot import exp

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model import names
from servicebroker.model.errors import RULES
from servicebroker.model.zero_character import ZERO
from servicebroker.store.queue import quoted
from servicebroker.tsql.collations import DEFAULT_COLLATION, Collation, common_collation, ignores_case
from servicebroker.tsql.function_table import GLOBALS
from servicebroker.tsql.scope import (
    CONTEXT,
    CONTEXT_INFO,
    DATE_FIRST_SETTING,
    ERROR,
    LOGIN,
    ORIGINAL_LOGIN,
    USER,
    Column,
    Scope,
    UserType,
)
from servicebroker.tsql.statement_errors import TsqlError, condition_expected, no_linked_server
from servicebroker.tsql.syntax import Name
from servicebroker.tsql.types import (
    BINARIES,
    DATES,
    INT,
    NUMBERS,
    STRINGS,
    SqlType,
    parse_type,
    postgres_type,
    type_key,
)

_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
NEXT_VALUE_CALL = "tsql.next_in_row("  # the beginning of the SQL for NEXT VALUE FOR
OFFSET_PREFIX = "offset of "  # prefix of a parameter; the name of a variable of type datetimeoffset follows
DOCUMENT_PREFIX = "document of "  # prefix of a parameter; the variable with a handle of sp_xml_preparedocument follows
_PREDICATE_ROLE, _VALUE_ROLE, QUERY_ROLE = "predicate", "value", "query"


class Sql(NamedTuple):
    """An expression in PostgreSQL's SQL.

    Attributes:
        text: the SQL. For a datetimeoffset it is the instant, without the offset.
        type: its T-SQL type; None if unknown.
        is_untyped: the expression is a quoted string or NULL, to which PostgreSQL gives the type of the other operand.
        offset: for a datetimeoffset, a function that writes the SQL of its offset from UTC in minutes; None for 0.
        collation: for a string, that of its column or of COLLATE; None for that of the database.
    """

    text: str
    type: SqlType | None = None
    is_untyped: bool = False
    offset: Callable[[], str] | None = None
    collation: Collation | None = None

    @property
    def kind(self) -> str | None:
        """The family of the type: string, number, date, binary, uniqueidentifier or xml; None if unknown."""
        return None if self.type is None else type_family(self.type)


def type_family(sql_type: SqlType) -> str:
    """Return the family of a type."""
    for kind, members in (("string", STRINGS), ("number", NUMBERS), ("date", DATES), ("binary", BINARIES)):
        if sql_type.name in members:
            return kind
    return sql_type.name


class Source(NamedTuple):
    """A table visible to a query: its alias in lower case, and its columns, None if unknown."""

    alias: str
    columns: dict[str, Column] | None
    table: str = ""  # quoted PostgreSQL name, "" for a derived table
    is_catalog: bool = False


class ExtraStatement(NamedTuple):
    """A statement to run before or after the translated one, with its parameters."""

    sql: str
    parameters: tuple[str, ...]


class NeedsParents(Exception):
    """Raised if an absolute path begins at a node of nodes(): the translation must start again, with parent nodes."""


@dataclass
class Writer:
    """The state of the translation of one statement."""

    scope: Scope
    max_recursion: int = 100  # levels of a recursive common table expression, 0 for no limit
    has_parent_steps: bool = False  # the XQuery may use parent steps: nodes() must keep the parents
    parameters: list[str] = field(default_factory=list)
    sources: list[list[Source]] = field(default_factory=list)  # the innermost query last
    common_tables: list[dict[str, dict[str, Column] | None]] = field(default_factory=list)  # common table expressions
    # prefix to URI, from WITH XMLNAMESPACES; '' is the default
    namespaces: dict[str, str] = field(default_factory=dict)
    statements_before: list[ExtraStatement] = field(default_factory=list)
    # values assigned to variables to the left in the same SELECT
    assigned: dict[str, Sql] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)  # aliases that differ in PostgreSQL
    # questions to the scope and its answers, the key of the cache
    scope_answers: dict[tuple[str, str], object] = field(default_factory=dict)
    table_uses: dict[str, Use] = field(default_factory=dict)  # the use SELECT of each table, by PostgreSQL name
    uses: dict[Use, None] = field(default_factory=dict)  # uses of tables and functions
    default_column: str = ""  # the column whose DEFAULT is being written
    sends_offsets: bool = True  # False in UNION and OUTPUT, whose columns have PostgreSQL's types
    writes_document: bool = False  # the next SELECT is that of FOR XML or FOR JSON, whose datetimeoffsets are text
    output_table: str = ""  # quoted PostgreSQL name of the table whose OUTPUT returns rows to the caller
    output_name: str = ""  # its name in the statement
    next_values: int = 0  # number of NEXT VALUE FOR in the row being written
    notes: list[str] = field(default_factory=list)  # remarks for the user (`Translation.notes`)
    has_ordered_next_value: bool = False  # NEXT VALUE FOR with OVER has been written
    has_collations: bool = False  # a string with a collation of its own has been written
    # in a grouped query, the SQL of each GROUP BY item that ignores case, and the SQL of its value for the group
    group_keys: dict[str, str] = field(default_factory=dict)
    qualifies_columns: bool = False  # write the table before each column, so that equal columns have equal SQL

    def document_of(self, node: str) -> str:
        """Return the document of a node of nodes().

        Raises:
            NeedsParents: the nodes were written without their parents. The translation then starts again.
        """
        if not self.has_parent_steps:
            raise NeedsParents
        return f"tsql.xml_document_of({node})"

    def is_body(self) -> bool:
        """Return whether the body of a function is translated. The answer becomes a part of the cache's key."""
        self.scope_answers["body", ""] = self.scope.is_body
        return self.scope.is_body

    def parameter(self, name: str, sql_type: SqlType | None) -> str:
        """Return the placeholder of a variable or session value.

        In the body of a function, return an expression instead.
        """
        cast = f"::{postgres_type(sql_type)}" if sql_type else ""
        if name == "@@procid" and self.scope.module:
            self.scope_answers["module", ""] = self.scope.module
        if self.is_body():
            return (quoted(name) if name in self.scope.variables else session_value_sql(self.scope, name)) + cast
        if name not in self.parameters:
            self.parameters.append(name)
        return f"${self.parameters.index(name) + 1}{cast}"

    def database_collation(self) -> str:
        """Return the name of the collation of the current database."""
        name = self.scope.collations.get(self.scope.database.lower(), DEFAULT_COLLATION)
        self.scope_answers["collation", ""] = name
        return name

    def ignores_case(self, *values: Sql, operation: str = "equal to") -> bool:
        """Check whether an operation on these values compares strings without their case.

        The collation of a column or of COLLATE decides, and otherwise that of the database. Names of catalog views
        ignore case.

        Raises:
            TsqlError: 468 the values have different collations.
        """
        if not any(value.kind == "string" for value in values):
            return False
        collation = common_collation((value.collation for value in values), operation) if self.has_collations else None
        if collation is None and any(value.type is not None and value.type.name == "sysname" for value in values):
            return True
        return ignores_case((collation.name if collation is not None else "") or self.database_collation())

    def groups_ignore_case(self, value: Sql) -> bool:
        """Check whether rows are grouped, sorted and told apart without the case of this value."""
        if value.kind != "string":
            return False
        name = value.collation.name if value.collation is not None else ""
        return ignores_case(name or self.database_collation())

    def keys_ignore_case(self, column: Column) -> bool:
        """Check whether the keys of a table ignore the case of a column."""
        return self.groups_ignore_case(Sql("", column.type, collation=Collation(column.collation)))

    def next_value_key(self) -> str:
        """Return a key for one NEXT VALUE FOR of a row. All keys of a row get the same number from the sequence."""
        self.next_values += 1
        return f"{self.default_column}{self.next_values}"

    def variable(self, name: str) -> Sql:
        """Return a variable as a typed parameter, or the value just assigned to it."""
        name = name.lower()
        if name in self.assigned:
            return self.assigned[name]
        sql_type = self.variable_type(name)
        has_offset = sql_type.name == "datetimeoffset" and not self.is_body()
        offset = functools.partial(self.parameter, OFFSET_PREFIX + name, INT) if has_offset else None
        return Sql(self.parameter(name, sql_type), sql_type, offset=offset)

    def variable_type(self, name: str) -> SqlType:
        """Return the type of a variable.

        Raises:
            TsqlError: 137 the variable is not declared.
        """
        name = name.lower()
        sql_type = self.scope.variables.get(name)
        self.scope_answers["variable", name] = sql_type
        if sql_type is None:
            raise TsqlError(137, f'Must declare the scalar variable "{name}".', severity=15)
        return sql_type

    def table_columns(self, table: str) -> dict[str, Column] | None:
        """Return the columns of a PostgreSQL table by name in lower case, None if unknown."""
        columns = self.scope.columns.get(table)
        self.scope_answers["columns", table] = columns
        if columns is not None and self.scope.explains_truncation:
            owner = self._written_name(table)
            columns = tuple(column._replace(owner=owner) for column in columns)
        return None if columns is None else {column.name.lower(): column for column in columns}

    def _written_name(self, table: str) -> str:
        """Return the name of a PostgreSQL table in T-SQL, with its database."""
        use = self.table_uses.get(table)
        if use is not None:
            return f"{use.database or self.scope.database}.{use.schema}.{use.name}"
        temporary = (name for name, postgres_table in self.scope.tables.items() if postgres_table == table)
        return f"tempdb.dbo.{next(temporary, table)}"

    def type_named(self, text: str) -> UserType:
        """Return the type of a column, user-defined or built in.

        Raises:
            TsqlError: 2715 unknown type, and others of `parse_type`.
        """
        try:
            return UserType(0, parse_type(text), "", True)
        except TsqlError as unknown:
            key = type_key(text) if unknown.number == 2715 else None
            user_type = self.scope.user_types.get(key) if key is not None else None
            self.scope_answers["type", key or ""] = user_type
            if user_type is None or user_type.of is None:
                raise
            return user_type

    def record_use(self, table: str, *statements: str, shown: str = "") -> None:
        """Record the use of a table, as statements of `NEEDS`. Temporary tables need no permission."""
        named = self.table_uses.get(table)
        if named is not None:
            self.uses.update({named._replace(statement=statement, shown=shown): None for statement in statements})

    def check_changes(self, table: str, *statements: str) -> None:
        """Check that `statements` may change a table, and record the use.

        Raises:
            TsqlError: 10700 a table-valued parameter, 443 not a table variable, in the body of a function, 259 a system
                table.
        """
        named = self.table_uses.get(table)
        if table.startswith(("sys.", "tsql.")) or (named is not None and named.schema.lower() in names.SYSTEM_SCHEMAS):
            raise TsqlError(259, RULES[259].text)
        self.record_use(table, *statements)
        if self.is_body() and table not in self.scope.tables.values():
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
        """Return the full name of a synonym's base object, or None if there is no such synonym.

        Raises:
            TsqlError: 470 the base object is a synonym, 7202 it is on another server.
        """
        base = self._base(database, schema, name)
        if base is None:
            return None
        if len(base.parts) > 3:
            raise no_linked_server(base.parts[0])
        whole = Name((base.database or database, base.schema or "dbo", base.object))
        if self._base(*whole.parts) is not None:
            raise TsqlError(
                470, f"The synonym '{name}' referenced synonym '{base}'. Synonym chaining is not allowed.", state=1
            )
        return whole

    def _base(self, database: str, schema: str, name: str) -> Name | None:
        base = self.scope.synonym(database, schema, name)
        self.scope_answers["synonym", f"{database}\0{schema}\0{name}"] = base
        return base

    def temporary(self, name: str) -> str | None:
        """Return the PostgreSQL name of a temporary table or table variable, or None."""
        table = self.scope.tables.get(name)
        self.scope_answers["table", name] = table
        return table

    @contextmanager
    def query(self, sources: list[Source]) -> Iterator[None]:
        """Make these tables visible in the `with` block, for a query."""
        self.sources.append(sources)
        try:
            yield
        finally:
            self.sources.pop()

    @contextmanager
    def grouped_by(self, keys: dict[str, str]) -> Iterator[None]:
        """Write each of these values as its SQL for the group, in the `with` block."""
        outer, self.group_keys = self.group_keys, self.group_keys | keys
        try:
            yield
        finally:
            self.group_keys = outer

    @contextmanager
    def ungrouped(self) -> Iterator[None]:
        """Write values of each row, as in the operand of an aggregate, in the `with` block."""
        outer, self.group_keys = self.group_keys, {}
        try:
            yield
        finally:
            self.group_keys = outer

    @contextmanager
    def renamed(self, names: dict[str, str]) -> Iterator[None]:
        """Use other aliases for tables in PostgreSQL, in the `with` block."""
        outer, self.aliases = self.aliases, names
        try:
            yield
        finally:
            self.aliases = outer

    @contextmanager
    def without_offsets(self) -> Iterator[None]:
        """Write each datetimeoffset as an instant, in the `with` block."""
        outer, self.sends_offsets = self.sends_offsets, False
        try:
            yield
        finally:
            self.sends_offsets = outer

    def alias(self, name: str) -> str:
        """Return the quoted alias of a table in PostgreSQL."""
        return quote_identifier(self.aliases.get(name.lower(), name))

    @contextmanager
    def hidden(self, sources: list[Source] | None) -> Iterator[None]:
        """Hide the other sources of FROM from a derived table, which cannot refer to them. None (APPLY) hides none."""
        if sources is None:
            yield
            return
        outer = self.sources
        self.sources = [level for level in outer if level is not sources]
        try:
            yield
        finally:
            self.sources = outer

    def column(self, alias: str, name: str) -> tuple[Source, Column] | None:
        """Return the table and column that a name refers to, or None if unknown."""
        for sources in reversed(self.sources):
            named = [source for source in sources if not alias or source.alias == alias]
            for source in named:
                if source.columns and name in source.columns:
                    return source, source.columns[name]
            if any(source.columns is None or source.is_catalog for source in named):
                return None
        return None

    def identity_column(self, alias: str) -> str | None:
        """Return the name of the IDENTITY column of a visible table, for $IDENTITY; None if no table has one."""
        for source in self.sources[-1] if self.sources else ():
            if not alias or source.alias == alias:
                for column in (source.columns or {}).values():
                    if column.is_identity:
                        return column.name
        return None

    def source(self, alias: str) -> Source | None:
        """Return the visible table with an alias, or None."""
        for sources in reversed(self.sources):
            for source in sources:
                if source.alias == alias:
                    return source
        return None


def _read_setting(setting: str) -> str:
    """Return SQL that reads a setting of the connection, NULL if it is not set."""
    return f"nullif(current_setting('{setting}', true), '')"


# values that the session keeps in settings of its connection, for defaults of columns and bodies of functions
_SESSION_SQL = {
    **dict.fromkeys(("suser_name", "suser_sname", "system_user"), f"coalesce({_read_setting(LOGIN)}, current_user)"),
    **dict.fromkeys(
        ("user_name", "current_user", "session_user", "user"), f"coalesce({_read_setting(USER)}, current_user)"
    ),
    "original_login": f"coalesce({_read_setting(ORIGINAL_LOGIN)}, {_read_setting(LOGIN)}, current_user)",
    "session context": f"coalesce({_read_setting(CONTEXT)}, '{{}}')",
    **{
        f"error_{name}": f"({_read_setting(ERROR)}::jsonb ->> '{name}'){cast}"
        for name, cast in (
            ("number", "::integer"),
            ("message", ""),
            ("severity", "::integer"),
            ("state", "::integer"),
            ("line", "::integer"),
            ("procedure", ""),
        )
    },
    "context_info": f"decode({_read_setting(CONTEXT_INFO)}, 'hex')",
    "@@spid": "tsql.spid()",
    "@@datefirst": f"coalesce({_read_setting(DATE_FIRST_SETTING)}::smallint, 7)",
}


PERMISSIONS = "permissions "  # prefix of a parameter; JSON of the question follows


def not_permitted(name: str, number: int = 128) -> TsqlError:
    """Build the error for a parameter in a view, function, DEFAULT or CHECK, which outlive the session."""
    if not name.startswith("@") or name in GLOBALS:
        is_asked = name.startswith(PERMISSIONS)
        function = str(json.loads(name.removeprefix(PERMISSIONS))[0]) if is_asked else name
        return not_supported(
            f"{function.upper()} in a view, a function, a DEFAULT, a CHECK or a computed column",
            "Only the session knows its value. Use it in a statement or a procedure.",
        )
    return TsqlError(number, f'The name "{name}" is not permitted in this context.', severity=15)


def session_value_sql(scope: Scope, name: str) -> str:
    """Return SQL for a value of the session that PostgreSQL can read by itself.

    Raises:
        TsqlError: 128 a variable, 40515 a value that only the session knows.
    """
    if name == "db_name":
        return quote_string(scope.database)
    if name == "db_id":
        return f"tsql.db_id({quote_string(scope.database)})"
    if name == "@@procid" and scope.module:
        return f"tsql.object_id({quote_string(scope.database)}, {quote_string(scope.module)})"
    if name not in _SESSION_SQL:
        raise not_permitted(name)
    return _SESSION_SQL[name]


NodeWriter = Callable[[Writer, Any], Any]
NODE_WRITERS: dict[tuple[str, type[exp.Expression]], NodeWriter] = {}


def writes_value(*kinds: type[exp.Expression]) -> Callable[[NodeWriter], NodeWriter]:
    """Register a function that writes these nodes as a value."""
    return _registering(_VALUE_ROLE, kinds)


def writes_predicate(*kinds: type[exp.Expression]) -> Callable[[NodeWriter], NodeWriter]:
    """Register a function that writes these nodes as a condition."""
    return _registering(_PREDICATE_ROLE, kinds)


def writes_query(*kinds: type[exp.Expression]) -> Callable[[NodeWriter], NodeWriter]:
    """Register a function that writes these nodes as a nested query."""
    return _registering(QUERY_ROLE, kinds)


def _registering(role: str, kinds: tuple[type[exp.Expression], ...]) -> Callable[[NodeWriter], NodeWriter]:
    def register(handler: NodeWriter) -> NodeWriter:
        for kind in kinds:
            NODE_WRITERS[role, kind] = handler
        return handler

    return register


def write_value(writer: Writer, node: exp.Expression) -> Sql:
    """Write a node as a value.

    Raises:
        TsqlError: 102 the node is a condition, 40515 it is not supported.
    """
    handler = NODE_WRITERS.get((_VALUE_ROLE, type(node)))
    if handler is not None:
        keys = writer.group_keys
        with writer.ungrouped() if keys and isinstance(node, exp.AggFunc) else nullcontext():
            written: Sql = handler(writer, node)
        return finish_value(writer, node, written)
    if (_PREDICATE_ROLE, type(node)) in NODE_WRITERS:
        raise TsqlError(
            102, f"Incorrect syntax near '{operator_of(node)}'. A condition is not a value: use CASE WHEN or IIF."
        )
    raise node_not_supported(node)


def finish_value(writer: Writer, node: exp.Expression, written: Sql) -> Sql:
    """Return a written value with the collation of its node. A value of GROUP BY becomes that of the group."""
    if writer.has_collations and written.kind == "string" and written.collation is None:
        written = written._replace(collation=_inherited_collation(writer, node))
    keys = writer.group_keys
    return written._replace(text=keys[written.text]) if written.text in keys else written


def _inherited_collation(writer: Writer, node: exp.Expression) -> Collation | None:
    """Return the collation of the first string with one in an expression, such as a function of a column."""
    for inner in node.walk(prune=lambda part: isinstance(part, exp.Query)):
        if isinstance(inner, exp.Collate):
            name = inner.expression.name
            return Collation("" if name.lower().endswith("_default") else name, True)
        if isinstance(inner, exp.Column) and not isinstance(inner.this, exp.Star):
            source_column = writer.column(inner.table.lower(), inner.name.lower())
            if source_column is not None and source_column[1].collation:
                return Collation(source_column[1].collation)
    return None


def write_predicate(writer: Writer, node: exp.Expression) -> str:
    """Write a node as a condition.

    Raises:
        TsqlError: 4145 the node is a value, 40515 it is not supported.
    """
    handler = NODE_WRITERS.get((_PREDICATE_ROLE, type(node)))
    if handler is not None:
        return str(handler(writer, node))
    if (_VALUE_ROLE, type(node)) in NODE_WRITERS:
        if isinstance(node, exp.Anonymous):
            write_value(writer, node)  # raises the error of functions that are conditions in SQL Server
        raise condition_expected()
    raise node_not_supported(node)


def is_predicate(node: exp.Expression) -> bool:
    """Check whether a node is a condition."""
    return (_PREDICATE_ROLE, type(node)) in NODE_WRITERS and (
        (_VALUE_ROLE, type(node)) not in NODE_WRITERS or _only_wraps(node)
    )


def _only_wraps(node: exp.Expression) -> bool:
    return isinstance(node, exp.Paren) and is_predicate(node.this)


def operator_of(node: exp.Expression) -> str:
    """Return the words for a node in an error."""
    return re.sub(r"(?<!^)(?=[A-Z][a-z])", " ", type(node).__name__).upper()


def node_not_supported(node: exp.Expression, advice: str = "") -> TsqlError:
    """Build error 40515 for a node."""
    return not_supported(operator_of(node), advice)


def not_supported(feature: str, advice: str = "") -> TsqlError:
    """Build error 40515: the construct is known and not supported."""
    return TsqlError(40515, f"{feature} is not supported here.{' ' + advice if advice else ''}")


def allow_only(node: exp.Expression, *allowed: str) -> None:
    """Refuse a node with arguments other than `allowed`, so that none is dropped silently."""
    for name, value in node.args.items():
        if value and name not in allowed:
            argument = name.strip("_").replace("_", " ").upper()
            raise not_supported(f"{argument} of {operator_of(node)}")


def quote_string(text: str) -> str:
    """Return a string literal of PostgreSQL.

    Raises:
        TsqlError: 40515 a character that PostgreSQL cannot store.
    """
    if not names.is_encodable(text):
        raise not_supported("A string with half of a surrogate pair", "Store such data in varbinary.")
    return "'" + text.replace("\0", ZERO).replace("'", "''") + "'"


def quote_identifier(name: str) -> str:
    """Return a name in PostgreSQL: folded to one case, quoted."""
    short = names.postgres_name(name)
    return quoted(short + "_" if short in _SYSTEM_COLUMNS else short)


def quote_label(name: str) -> str:
    """Return the name of a result column, quoted in its own spelling."""
    return quoted(name.replace("\0", "") or "?column?")


def postgres_schema(database: str, schema: str) -> str:
    """Return the quoted PostgreSQL schema of the application's tables."""
    return quoted(names.postgres_name(database, schema or "dbo"))


def timestamp_text(text: str, column: Column) -> str:
    """Return a column as a datetime: a timestamptz becomes UTC to the millisecond, without a zone."""
    return f"({text} AT TIME ZONE 'UTC')::timestamp(3)" if column.has_time_zone else text


def with_offset(writer: Writer, value: Sql) -> Sql:
    """Write a datetimeoffset for the session: as text with the instant and the offset, for `conversion.read_offset`."""
    if value.offset is None or not writer.sends_offsets or writer.scope.is_body:
        return value
    return value._replace(text=f"tsql.with_offset({value.text}, {value.offset()})", offset=None)


def cast_to_text(value: Sql) -> str:
    """Return a string with PostgreSQL's type text."""
    return f"{value.text}::text" if value.is_untyped else value.text


def folded_text(value: Sql) -> str:
    """Write a string so that letters of either case are equal."""
    return f"lower({cast_to_text(value)})"


def typed_text(value: Sql) -> str:
    """Return a value with a type of its own, independent of other operands."""
    return cast_to_text(value) if value.is_untyped and value.type is not None else value.text
