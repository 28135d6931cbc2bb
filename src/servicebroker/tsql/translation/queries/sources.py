"""FROM: tables, views, queues, derived tables, joins, APPLY, and table-valued functions."""

from __future__ import annotations

import functools

from sqlglot import exp

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model import names
from servicebroker.overriding import override
from servicebroker.store.queue import quoted
from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, no_linked_server
from servicebroker.tsql.translation.definitions.user_functions import table_call
from servicebroker.tsql.translation.queries.pivots import write_pivot
from servicebroker.tsql.translation.queries.results import check_named, columns_of, write_query
from servicebroker.tsql.translation.reading.hints import Hints, hint_on_common_table, read_hints
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Source,
    Writer,
    allow_only,
    node_not_supported,
    not_supported,
    postgres_schema,
    quote_identifier,
    write_predicate,
    write_value,
)
from servicebroker.tsql.translation.values.catalog_views import find_catalog_view
from servicebroker.tsql.translation.values.functions import InvalidArgument, write_argument
from servicebroker.tsql.translation.values.permission_functions import permissions_parameter
from servicebroker.tsql.translation.values.type_precedence import unify_types, wider_type
from servicebroker.tsql.translation.values.unsupported_views import refuse_unsupported_view
from servicebroker.tsql.types import BIGINT, BIT, INT, INTEGERS, NVARCHAR, SYSNAME, XML, SqlType, postgres_type

_UNSUPPORTED_SOURCES = frozenset(  # never looked up as user-defined functions
    {"openrowset", "openquery", "opendatasource", "openxml", "containstable", "freetexttable", "changetable"}
    | {"predict", "semantickeyphrasetable", "semanticsimilaritytable"}
)


class From:
    """A FROM clause: its SQL, its visible tables, and their hints."""

    def __init__(self) -> None:
        self.text = ""
        self.sources: list[Source] = []
        self.hints: list[tuple[Source, Hints]] = []


def read_from(writer: Writer, node: exp.Expression | None, joins: list[exp.Expression]) -> From:
    """Translate FROM. Its tables become visible one after the other, as APPLY needs.

    The caller keeps them visible for the rest of the query.
    """
    from_clause = From()
    if node is None:
        return from_clause
    allow_only(node, "this")
    with writer.query(from_clause.sources):
        text = _write_item(writer, node.this, from_clause)
        for join in joins:
            text += _write_join(writer, join, from_clause)
            for pivot in join.args.get("pivots") or []:  # applies to all sources before it
                text = _apply_pivot(writer, pivot, text, from_clause, 0)
        from_clause.text = f"FROM {text}"
    return from_clause


def _write_item(writer: Writer, node: exp.Expression, from_clause: From) -> str:
    """Write one source of FROM with its pivots and joins."""
    before = len(from_clause.sources)
    if isinstance(node, exp.Table):
        text = _write_table(writer, node, from_clause)
    elif isinstance(node, exp.Subquery):
        text = _write_derived(writer, node, from_clause)
    elif isinstance(node, exp.Values):
        text = _write_values(writer, node, node.args.get("alias"), from_clause)
    elif isinstance(node, exp.Lateral):
        return _write_item(writer, node.this, from_clause)
    elif isinstance(node, exp.Paren):
        return f"({_write_item(writer, node.this, from_clause)})"
    else:
        raise node_not_supported(node)
    for pivot in node.args.get("pivots") or []:
        text = _apply_pivot(writer, pivot, text, from_clause, before)
    return text + "".join(_write_join(writer, join, from_clause) for join in node.args.get("joins") or [])


def _apply_pivot(writer: Writer, node: exp.Pivot, text: str, from_clause: From, first: int) -> str:
    """Write PIVOT or UNPIVOT of the visible tables from index `first` on. The result replaces them."""
    pivoted_sources = from_clause.sources[first:]
    del from_clause.sources[first:]
    if any(
        source in pivoted_sources and (hints.locks_rows or hints.skips_locked) for source, hints in from_clause.hints
    ):
        raise not_supported("A hint that locks rows beside PIVOT and UNPIVOT", "Omit the hint.")
    from_clause.hints = [(source, hints) for source, hints in from_clause.hints if source not in pivoted_sources]
    with writer.hidden(from_clause.sources):
        text, source = write_pivot(writer, node, text, pivoted_sources)
    from_clause.sources.append(source)
    return text


def _write_join(writer: Writer, node: exp.Expression, from_clause: From) -> str:
    """Write a join or APPLY."""
    allow_only(node, "this", "on", "side", "kind", "hint", "pivots")
    side, kind = node.args.get("side") or "", node.args.get("kind") or ""
    if isinstance(node.this, exp.Lateral):
        return _write_apply(writer, node.this, from_clause)
    source_sql = _write_item(writer, node.this, from_clause)
    on = node.args.get("on")
    if on is None:
        if side or kind not in ("", "CROSS"):
            raise TsqlError(102, "Incorrect syntax: a JOIN without ON.", severity=15)
        return f" CROSS JOIN {source_sql}"
    condition = write_predicate(writer, on)
    return f" {(side or 'INNER')} JOIN {source_sql} ON {condition}"


def _write_apply(writer: Writer, node: exp.Lateral, from_clause: From) -> str:
    """Write CROSS or OUTER APPLY as a LATERAL join."""
    allow_only(node, "this", "alias", "cross_apply")
    inside = node.this
    alias = node.args.get("alias")
    if isinstance(inside, exp.Subquery) and isinstance(inside.this, exp.Values):
        text = _write_values(writer, inside.this, alias, from_clause)
    elif isinstance(inside, exp.Subquery):
        text = _named_query(writer, inside, alias, from_clause)
    else:
        text = _write_function(writer, inside, alias, from_clause)
    text = text.removeprefix("LATERAL ")
    return f" CROSS JOIN LATERAL {text}" if node.args.get("cross_apply") else f" LEFT JOIN LATERAL {text} ON true"


def _write_derived(writer: Writer, node: exp.Subquery, from_clause: From) -> str:
    """Write a derived table or parenthesized joins."""
    allow_only(node, "this", "alias", "joins", "pivots")
    inside = node.this
    is_around = isinstance(inside, exp.Subquery) and not node.args.get("alias")
    if isinstance(inside, exp.Table) or is_around:  # parenthesized joins
        return f"({_write_item(writer, inside, from_clause)})"
    return _named_query(writer, node, node.args.get("alias"), from_clause)


def _named_query(writer: Writer, node: exp.Subquery, alias: exp.Expression | None, from_clause: From) -> str:
    """Write a derived table with its alias."""
    if alias is None or not alias.name:
        raise TsqlError(
            102, "Incorrect syntax near ')'. A derived table needs a name: (SELECT ...) AS name.", severity=15
        )
    with writer.hidden(from_clause.sources if not isinstance(node.parent, exp.Lateral) else None):
        text, outputs = write_query(writer, node.this)
    columns = columns_of(outputs)
    renamed = [column_node.name for column_node in alias.args.get("columns") or []]
    check_named(outputs, renamed, alias.name)
    if renamed and columns is not None and len(renamed) == len(columns):
        renamed_columns = zip(renamed, columns.values(), strict=True)
        columns = {name.lower(): column._replace(name=name) for name, column in renamed_columns}
    from_clause.sources.append(Source(alias.name.lower(), columns))
    return f"({text}) AS {quote_identifier(alias.name)}{_column_list(renamed)}"


def _column_list(renamed: list[str]) -> str:
    return f" ({', '.join(quote_identifier(name) for name in renamed)})" if renamed else ""


def _write_values(writer: Writer, node: exp.Values, alias: exp.Expression | None, from_clause: From) -> str:
    allow_only(node, "expressions", "alias", "joins", "pivots")
    if alias is None:
        raise TsqlError(102, "Incorrect syntax near ')'. VALUES in FROM needs a name.", severity=15)
    rows = []
    for row in node.expressions:
        members = row.expressions if isinstance(row, exp.Tuple) else [row.this if isinstance(row, exp.Paren) else row]
        rows.append([write_value(writer, member) for member in members])
    if len({len(row) for row in rows}) != 1:
        raise TsqlError(
            10709, "The number of columns for each row in a table value constructor must be the same.", severity=15
        )
    fields = [unify_types(list(field)) for field in zip(*rows, strict=True)]
    renamed = [column.name for column in alias.args.get("columns") or []]
    columns: dict[str, Column] | None = None
    if len(renamed) == len(fields) and all(sql_type is not None for sql_type, _ in fields):
        columns = {
            name.lower(): Column(name, sql_type)
            for name, (sql_type, _) in zip(renamed, fields, strict=True)
            if sql_type is not None
        }
    from_clause.sources.append(Source(alias.name.lower(), columns))
    texts = [
        "(" + ", ".join(texts_of_field[number] for _, texts_of_field in fields) + ")" for number in range(len(rows))
    ]
    return f"(VALUES {', '.join(texts)}) AS {quote_identifier(alias.name)}{_column_list(renamed)}"


def _write_table(writer: Writer, node: exp.Table, from_clause: From) -> str:
    """Write a table, view, common table expression or function of FROM."""
    allow_only(node, "this", "db", "catalog", "alias", "hints", "joins", "pivots", "sample")
    if isinstance(node.this, exp.Dot) and isinstance(node.this.expression, exp.Identifier):
        object_name(node)
    if isinstance(node.this, exp.Anonymous | exp.OpenJSON | exp.Dot) or (
        isinstance(node.this, exp.Func) and not isinstance(node.this, exp.Parameter)
    ):
        return _write_function(writer, node, node.args.get("alias"), from_clause)
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise not_supported("Names of columns after a table's alias", "Name them in a derived table.")
    qualified_name = object_name(node)
    alias_name = alias.name if alias is not None else qualified_name.name
    name = alias_name.lower()
    if any(source.alias == name for source in from_clause.sources):
        raise TsqlError(
            1013,
            f'The objects "{qualified_name.name}" and "{alias_name}" in the FROM clause have the same exposed names. '
            "Use correlation names to distinguish them.",
        )
    hints = read_hints(node)
    if not qualified_name.schema and not qualified_name.database and is_common_table(writer, qualified_name.name):
        if hints != Hints():
            raise hint_on_common_table()
        from_clause.sources.append(Source(name, common_columns(writer, qualified_name.name)))
        return f"{quote_identifier(qualified_name.name)} AS {quote_identifier(alias_name)}"
    view = find_catalog_view(writer, _resolve_synonym(writer, qualified_name) or qualified_name)
    if view is not None:
        from_clause.sources.append(Source(name, view.columns, view.name, is_catalog=True))
        return f"{view.name} AS {quote_identifier(alias_name)}"
    table = resolve_table(writer, qualified_name)
    writer.record_use(table, "SELECT")
    source = Source(name, writer.table_columns(table), table)
    from_clause.sources.append(source)
    from_clause.hints.append((source, hints))
    return f"{table} AS {quote_identifier(alias_name)}{_write_sample(writer, node.args.get('sample'), table)}"


def _write_sample(writer: Writer, node: exp.Expression | None, table: str) -> str:
    """Write TABLESAMPLE, which samples pages. A number of rows becomes the matching percentage of pages.

    Raises:
        TsqlError: 498 the size is out of bounds, or a variable, for which SQL Server raises 497.
    """
    if node is None:
        return ""
    allow_only(node, "method", "size", "percent", "seed")
    rows, percent, seed = (node.args.get(name) for name in ("size", "percent", "seed"))
    size = rows if rows is not None else percent
    if not isinstance(size, exp.Literal) or size.is_string or (rows is None and float(size.name) > 100):
        raise TsqlError(498, "Invalid value in the TABLESAMPLE clause.", severity=15)
    part = (
        size.name if rows is None else f"(SELECT least(100, 100.0 * {size.name} / greatest(count(*), 1)) FROM {table})"
    )
    repeatable = "" if seed is None else f" REPEATABLE ({write_value(writer, seed).text})"
    return f" TABLESAMPLE SYSTEM ({part}){repeatable}"


class ObjectName:
    """The name of a table, view or queue, by its parts."""

    def __init__(self, name: str, schema: str = "", database: str = "") -> None:
        self.name, self.schema, self.database = name, schema, database

    @override
    def __str__(self) -> str:
        return ".".join(part for part in (self.database, self.schema, self.name) if part)


def object_name(node: exp.Table) -> ObjectName:
    """Return the name in a node.

    Raises:
        TsqlError: 7202 a name of four parts.
    """
    identifier = node.this
    if isinstance(identifier, exp.Parameter):
        return ObjectName("@" + identifier.name)
    if isinstance(identifier, exp.Dot):
        raise no_linked_server(node.catalog)
    sign = "#" if identifier.args.get("temporary") else "##" if identifier.args.get("global_") else ""
    return ObjectName(sign + identifier.name, node.db, node.catalog)


def is_common_table(writer: Writer, name: str) -> bool:
    """Check whether a name is that of a common table expression."""
    return any(name.lower() in level for level in writer.common_tables)


def common_columns(writer: Writer, name: str) -> dict[str, Column] | None:
    """Return the columns of a common table expression, None if unknown."""
    for level in reversed(writer.common_tables):
        if name.lower() in level:
            return level[name.lower()]
    return None


def _resolve_synonym(writer: Writer, qualified_name: ObjectName) -> ObjectName | None:
    """Return the base object of a synonym, or None for any other name."""
    if qualified_name.name.startswith(("#", "@")):
        return None
    base = writer.synonym(
        qualified_name.database or writer.scope.database, qualified_name.schema or "dbo", qualified_name.name
    )
    return None if base is None else ObjectName(base.object, base.schema, base.database)


def resolve_table(writer: Writer, qualified_name: ObjectName) -> str:
    """Return the quoted PostgreSQL name of a table, view or queue, or of a synonym's base object.

    Raises:
        TsqlError: see `table_name` and `Writer.synonym`; 5313 the base object does not exist.
    """
    base = _resolve_synonym(writer, qualified_name)
    if base is None:
        return table_name(writer, qualified_name)
    table = table_name(writer, base)
    if writer.table_columns(table) is None:
        raise TsqlError(5313, f"Synonym '{qualified_name}' refers to an invalid object.")
    return table


def table_name(writer: Writer, qualified_name: ObjectName) -> str:
    """Return the quoted PostgreSQL name of a table, view or queue, and record its use.

    Raises:
        TsqlError: 208 unknown temporary table, 1087 unknown table variable.
    """
    name = qualified_name.name.lower()
    if name.startswith("@"):
        temporary_name = writer.temporary(name)
        if temporary_name is None:
            raise TsqlError(1087, f'Must declare the table variable "{qualified_name.name}".', severity=15)
        return temporary_name
    if name.startswith("#"):
        temporary_name = writer.temporary(name)
        if temporary_name is None:
            raise TsqlError(208, f"Invalid object name '{qualified_name.name}'.")
        return temporary_name
    if name in ("inserted", "deleted") and not qualified_name.schema:
        temporary_name = writer.temporary(name)
        if temporary_name is not None:
            return temporary_name
    database = qualified_name.database or writer.scope.database
    table = f"{postgres_schema(database, qualified_name.schema)}.{quoted(names.postgres_name(qualified_name.name))}"
    elsewhere = database if database.lower() != writer.scope.database.lower() else ""
    writer.table_uses[table] = Use("SELECT", qualified_name.schema or "dbo", qualified_name.name, elsewhere)
    return table


def _write_function(writer: Writer, node: exp.Expression, alias: exp.Expression | None, from_clause: From) -> str:
    """Write a table-valued function."""
    from servicebroker.tsql.translation.documents.json_tables import open_json
    from servicebroker.tsql.translation.documents.xml_methods import write_nodes_call
    from servicebroker.tsql.translation.documents.xml_tables import marked_pattern, open_xml

    inside = node.this if isinstance(node, exp.Table) else node
    if isinstance(inside, exp.OpenJSON):
        marked = marked_pattern(inside)
        if marked is not None:
            return open_xml(writer, inside, marked, alias, from_clause.sources)
        return open_json(writer, inside, alias, from_clause.sources)
    of_system = (
        isinstance(inside, exp.Dot) and isinstance(inside.this, exp.Identifier) and inside.this.name.lower() == "sys"
    )
    of_system = of_system or (isinstance(node, exp.Table) and node.db.lower() == "sys")
    if isinstance(inside, exp.Dot) and of_system:
        inside = inside.expression
    called = inside.name.lower() if isinstance(inside, exp.Anonymous) else ""
    if called.removeprefix(CALL_PREFIX) in _TABLE_FUNCTIONS:
        return _TABLE_FUNCTIONS[called.removeprefix(CALL_PREFIX)](writer, inside, alias, from_clause)
    nodes = write_nodes_call(writer, node, alias, from_clause.sources)
    if nodes is not None:
        return nodes
    function_name = called.removeprefix(CALL_PREFIX)
    if of_system:
        refuse_unsupported_view("", "sys", function_name, f"sys.{function_name}")
    users = table_call(writer, node, alias, from_clause.sources) if function_name not in _UNSUPPORTED_SOURCES else None
    if users is not None:
        return users
    raise not_supported(
        f"{function_name[:60] or 'A function'} in FROM", "Use a table, a view or a user-defined function."
    )


def _string_split(writer: Writer, node: exp.Expression, alias: exp.Expression | None, from_clause: From) -> str:
    if not 2 <= len(node.expressions) <= 3:
        raise argument_count_error("string_split", 2, 3)
    try:
        text, separator = (write_argument(write_value(writer, item), "s") for item in node.expressions[:2])
    except InvalidArgument as error:
        raise error.named(writer, "string_split", node.expressions[:2]) from None
    enable_ordinal = node.expressions[2].name if len(node.expressions) == 3 else "0"
    if enable_ordinal not in ("0", "1"):
        raise TsqlError(4199, "Argument value 3 of string_split is invalid: write 0 or 1.")
    columns = [Column("value", NVARCHAR), *([Column("ordinal", BIGINT)] if enable_ordinal == "1" else [])]
    column_list = ", ".join(column.name for column in columns)
    return _name_columns(
        f"(SELECT {column_list} FROM tsql.string_parts({text}, {separator}))",
        "string_split",
        columns,
        alias,
        from_clause,
    )


def _generate_series(writer: Writer, node: exp.Expression, alias: exp.Expression | None, from_clause: From) -> str:
    if not 2 <= len(node.expressions) <= 3:
        raise argument_count_error("generate_series", 2, 3)
    values = [write_value(writer, item) for item in node.expressions]
    sql_type = functools.reduce(wider_type, (value.type for value in values))
    if sql_type is None or sql_type.name not in INTEGERS | {"decimal"}:
        raise TsqlError(
            5373, "All the input parameters of generate_series should be of the same whole or decimal type."
        )
    texts = [f"{value.text}::{postgres_type(sql_type)}" for value in values]
    if len(texts) == 2:
        texts.append(f"(CASE WHEN {texts[0]} > {texts[1]} THEN -1 ELSE 1 END)")
    rows = f"(SELECT v::{postgres_type(sql_type)} AS value FROM generate_series({', '.join(texts)}) AS s(v))"
    return _name_columns(rows, "generate_series", [Column("value", sql_type)], alias, from_clause)


def _name_columns(
    text: str, function_name: str, columns: list[Column], alias: exp.Expression | None, from_clause: From
) -> str:
    """Write the alias of a function, and the columns listed after it."""
    alias_name = alias.name if alias is not None and alias.name else function_name
    renamed = [column_node.name for column_node in (alias.args.get("columns") or [])] if alias is not None else []
    if renamed and len(renamed) == len(columns):
        columns = [column._replace(name=name) for column, name in zip(columns, renamed, strict=True)]
    from_clause.sources.append(Source(alias_name.lower(), {column.name.lower(): column for column in columns}))
    return f"{text} AS {quote_identifier(alias_name)}{_column_list(renamed)}"


_SMALLINT = SqlType("smallint")
_PLAN_COLUMNS = (
    Column("dbid", _SMALLINT),
    Column("objectid", INT),
    Column("number", _SMALLINT),
    Column("encrypted", BIT),
)
_SYSTEM_FUNCTIONS = {
    "fn_listextendedproperty": (
        "sssssss",
        tuple(Column(name, NVARCHAR) for name in ("objtype", "objname", "name", "value")),
    ),
    "dm_exec_sql_text": (
        "b",
        (*_PLAN_COLUMNS, Column("text", NVARCHAR)),
    ),
    "dm_exec_query_plan": ("b", (*_PLAN_COLUMNS, Column("query_plan", XML))),
    "dm_exec_text_query_plan": ("bii", (*_PLAN_COLUMNS, Column("query_plan", NVARCHAR))),
    "dm_exec_input_buffer": (
        "ii",
        (Column("event_type", NVARCHAR), Column("parameters", _SMALLINT), Column("event_info", NVARCHAR)),
    ),
}


def _write_system_function(
    writer: Writer, node: exp.Expression, alias: exp.Expression | None, from_clause: From
) -> str:
    """Write a system function that returns rows: tsql.NAME in PostgreSQL."""
    name = node.name.lower().removeprefix(CALL_PREFIX)
    letters, columns = _SYSTEM_FUNCTIONS[name]
    if len(node.expressions) != len(letters):
        raise argument_count_error(name, len(letters), len(letters))
    arguments = ", ".join(
        write_argument(write_value(writer, argument), letter)
        for argument, letter in zip(node.expressions, letters, strict=True)
    )
    return _name_columns(f"tsql.{name}({arguments})", name, list(columns), alias, from_clause)


def _my_permissions(writer: Writer, node: exp.Expression, alias: exp.Expression | None, from_clause: From) -> str:
    """Write fn_my_permissions: a row for each permission of the current principal, as the session has found them."""
    name = "fn_my_permissions"
    if len(node.expressions) != 2:
        raise argument_count_error(name, 2, 2)
    answer = writer.parameter(permissions_parameter(writer, name, node.expressions), NVARCHAR)
    columns = [Column(column_name, SYSNAME) for column_name in ("entity_name", "subentity_name", "permission_name")]
    column_list = ", ".join(f"{column.name} text" for column in columns)
    text = f"(SELECT * FROM jsonb_to_recordset({answer}::jsonb) AS known ({column_list}))"
    return _name_columns(text, name, columns, alias, from_clause)


_TABLE_FUNCTIONS = {
    "string_split": _string_split,
    "generate_series": _generate_series,
    "fn_my_permissions": _my_permissions,
    **dict.fromkeys(_SYSTEM_FUNCTIONS, _write_system_function),
}
