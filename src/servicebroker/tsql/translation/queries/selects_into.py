"""SELECT ... INTO: a new table with the rows of a query."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.model.names import postgres_name
from servicebroker.tsql.known_columns import column_comment
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.results import Output
from servicebroker.tsql.translation.queries.selects import apply_row_limit, translate_query
from servicebroker.tsql.translation.queries.sources import object_name, table_name
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.text_writer import (
    ExtraStatement,
    Writer,
    not_supported,
    quote_identifier,
    quote_string,
)
from servicebroker.tsql.types import column_type, identity_clause, parse_type
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

TEMPORARY = 'pg_temp."{}"'  # default name of a temporary table that the session has not named


def find_into(node: exp.Expression) -> exp.Table | None:
    """Return the table after INTO, in the first query of a UNION; None without INTO."""
    while isinstance(node, exp.SetOperation):
        node = node.this
    into = node.args.get("into")
    return into.this if into is not None and isinstance(into.this, exp.Table) else None


class _IdentityRequest(NamedTuple):
    """The arguments of IDENTITY(type, seed, increment), its index in the select list, and the column."""

    place: int
    column: Column
    start: int
    step: int
    is_alone: bool  # the only item of the list, so a dummy value replaces it


def select_into(writer: Writer, node: exp.Expression, target: exp.Table) -> Translation:
    """Create the table with T-SQL's column types, then fill it.

    If types are unknown, PostgreSQL's CREATE TABLE AS does both.

    Raises:
        TsqlError: 1038 a column without a name, 8108 and 177 IDENTITY() twice or in a wrong place.
    """
    qualified_name = object_name(target)
    name = qualified_name.name.lower()
    if name.startswith("#"):
        table = writer.temporary(name) or TEMPORARY.format(name.replace('"', '""'))
    elif name.startswith("@"):
        raise not_supported("SELECT INTO a table variable", "Use INSERT INTO ... SELECT.")
    else:
        table = table_name(writer, qualified_name)
    writer.check_changes(table, "CREATE TABLE")
    counted, node = _take_identity(node)
    translated = translate_query(writer, node, outermost=False, into=table)
    if translated.outputs is not None and any(not output.name for output in translated.outputs):
        raise TsqlError(
            1038,
            "An object or column name is missing or empty. For SELECT INTO statements, verify each column has a name.",
            severity=15,
        )
    kind = "TEMPORARY TABLE" if name.startswith("#") else "TABLE"
    columns = _columns(node, translated.outputs)
    if columns is None:
        if counted is not None:
            from servicebroker.tsql.translation.documents.document_options import (
                UnknownColumns,  # at run time: the module imports queries
            )

            raise UnknownColumns("SELECT ... INTO with IDENTITY()")
        text = f"CREATE {kind} {table} AS {apply_row_limit(writer, translated.text)}"
        return Translation(text, tuple(writer.parameters), "count", before=tuple(writer.statements_before))
    named = ", ".join(quote_identifier(column.name) for column in columns)
    overriding = ""
    if counted is not None and counted.is_alone:
        columns, overriding = [], " OVERRIDING USER VALUE"
    members = [_write_member(column) for column in columns]
    if counted is not None:
        seed = identity_clause(counted.column.type, counted.start, counted.step)
        members.insert(counted.place, f"{_write_member(counted.column)} {seed}")
        columns.append(counted.column)
    statements = [f"CREATE {kind} {table} ({', '.join(members)})"]
    statements += [
        f"COMMENT ON COLUMN {table}.{quote_identifier(column.name)} IS {quote_string(column_comment(column))}"
        for column in columns
    ]
    create_table = ExtraStatement(f"DO {quote_string('BEGIN ' + '; '.join(statements) + '; END')}", ())
    text = f"INSERT INTO {table} ({named}){overriding} {apply_row_limit(writer, translated.text)}"
    return Translation(
        text,
        tuple(writer.parameters),
        "count",
        before=(create_table, *writer.statements_before),
        after=_advance_identity(table, columns),
    )


def _advance_identity(table: str, columns: list[Column]) -> tuple[ExtraStatement, ...]:
    """Return statements that advance IDENTITY sequences beyond the inserted values."""
    return tuple(
        ExtraStatement(
            f"SELECT setval(pg_get_serial_sequence({quote_string(table)}, {quote_string(postgres_name(column.name))}), most) "
            f"FROM (SELECT max({quote_identifier(column.name)}) AS most FROM {table}) AS filled WHERE most > 0",
            (),
        )
        for column in columns
        if column.is_identity
    )


def _write_member(column: Column) -> str:
    needed = "" if column.is_nullable else " NOT NULL"
    counts = f" {identity_clause(column.type)}" if column.is_identity else ""
    return f"{quote_identifier(column.name)} {column_type(column.type)}{needed}{counts}"


def _columns(node: exp.Expression, outputs: list[Output] | None) -> list[Column] | None:
    """Return the columns of the new table, or None if a type is unknown.

    A single source table passes on NOT NULL and IDENTITY.
    """
    if outputs is None:
        return None
    alone = isinstance(node, exp.Select) and not any(node.args.get(name) for name in ("joins", "group", "distinct"))
    columns: list[Column] = []
    for output in outputs:
        if output.type is None or output.type.name == "xml_node":
            return None
        source_column = output.column
        counts = (
            alone
            and source_column is not None
            and source_column.is_identity
            and not any(column.is_identity for column in columns)
        )
        columns.append(
            Column(
                output.name,
                output.type,
                counts,
                not (alone and source_column is not None and not source_column.is_nullable),
                collation=output.collation.name if output.collation is not None else "",
            )
        )
    return columns


def _take_identity(node: exp.Expression) -> tuple[_IdentityRequest | None, exp.Expression]:
    """Return the request of IDENTITY(), if any, and the query without it."""
    if not isinstance(node, exp.Select):
        return None, node
    indexes = [index for index, item in enumerate(node.expressions) if _identity(item) is not None]
    if not indexes:
        return None, node
    if len(indexes) > 1:
        raise TsqlError(8108, "Cannot add identity column, using the SELECT INTO statement, to a table that has one.")
    call, alias = _identity(node.expressions[indexes[0]]), node.expressions[indexes[0]].alias
    assert call is not None
    type_text, *numbers = (item.sql("tsql") for item in call.expressions)
    if not alias or len(numbers) not in (0, 2) or not all(is_whole(number) for number in numbers):
        raise TsqlError(177, "The IDENTITY function can only be used when the SELECT statement has an INTO clause.")
    start, step = (parse_whole_number(number) for number in numbers) if numbers else (1, 1)
    rest = node.copy()
    others = [item for index, item in enumerate(rest.expressions) if index != indexes[0]]
    rest.set("expressions", others or [exp.alias_(exp.Literal.number(start), alias)])
    return _IdentityRequest(
        indexes[0], Column(alias, parse_type(type_text), is_nullable=False), start, step, not others
    ), rest


def _identity(node: exp.Expression) -> exp.Anonymous | None:
    call = node.this if isinstance(node, exp.Alias) else None
    if isinstance(call, exp.Anonymous) and call.name.lower().removeprefix(CALL_PREFIX) == "identity":
        return call
    return None
