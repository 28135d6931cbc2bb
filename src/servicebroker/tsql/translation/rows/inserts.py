"""INSERT of values, of a query, and of defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import ASSIGNED_TWICE, TsqlError, syntax_error
from servicebroker.tsql.translation.documents.document_options import UnknownColumns
from servicebroker.tsql.translation.queries.results import Output
from servicebroker.tsql.translation.queries.selects import Top, apply_row_limit, row_count_sql, translate_query
from servicebroker.tsql.translation.queries.sources import From, ObjectName, object_name, resolve_table
from servicebroker.tsql.translation.reading.hints import add_locks, combine_hints
from servicebroker.tsql.translation.reading.optimizer_hints import find_ignored_places
from servicebroker.tsql.translation.reading.parts import read_names, read_table, read_value
from servicebroker.tsql.translation.reading.syntax_tree import Slice, parse_slice, slice_text
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.rows.outputs import Outputs, read_outputs, write_output_into, write_returning
from servicebroker.tsql.translation.rows.targets import advance_identity, cast_for_column, convert_for_column
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    not_supported,
    quote_identifier,
    quote_label,
    write_value,
)
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

_ROW_SOURCES = ("VALUES", "SELECT", "DEFAULT", "EXEC", "EXECUTE", "WITH")


def translate_insert(writer: Writer, common: Slice, piece: Slice) -> Translation:
    """Translate INSERT [INTO] table [WITH (hints)] [(columns)] [OUTPUT ...] and its source of rows."""
    from servicebroker.tsql.translation.reading.clauses import split_top  # at run time: the module imports this one

    top, rest = split_top(piece.part(1, len(piece.words)))
    if rest.words[:1] == ["INTO"]:
        rest = rest.part(1, len(rest.words))
    end = _name_end(rest)
    qualified_name = object_name(read_table(rest.part(0, end)))
    table = resolve_table(writer, qualified_name)
    writer.check_changes(table, "INSERT")
    table_columns = writer.table_columns(table)
    rest = rest.part(end, len(rest.words))
    if rest.words[:2] == ["WITH", "("]:
        close = rest.closing(1)
        words = {word for word in rest.words[2:close] if word not in (",", "(", ")", "0", "[")}
        add_locks(writer, combine_hints(words), table, "", None)
        rest = rest.part(close + 1, len(rest.words))
    names: list[str] = []
    if rest.words[:1] == ["("] and rest.words[1:2] != ["SELECT"]:
        close = rest.closing(0)
        names = read_names(rest.part(1, close))
        rest = rest.part(close + 1, len(rest.words))
    outputs: Outputs | None = None
    if rest.words[:1] == ["OUTPUT"]:
        source = rest.find(*_ROW_SOURCES, after=1)
        if source is None:
            raise syntax_error("OUTPUT", rest.line())
        outputs = read_outputs(rest.part(1, source))
        writer.record_use(table, "SELECT")
        rest = rest.part(source, len(rest.words))
    columns = (
        _target_columns(writer, qualified_name.name, table, table_columns, names)
        if rest.words[:1] != ["DEFAULT"]
        else []
    )
    targets = [(table_columns or {}).get(name.lower()) for name in columns]
    if rest.words[:1] == ["VALUES"]:
        named = {name.lower() for name in columns}
        unlisted = [
            column
            for name, column in (table_columns or {}).items()
            if column.sequence_default and columns and name not in named
        ]
        with _count_by_table(bool(names)):
            rows, added = _write_values(writer, rest, table, targets, unlisted, top)
        columns = [*columns, *(column.name for column in added)]
    else:
        with _count_by_table(bool(names)):
            rows = _write_source(writer, common, rest, table, targets, top)
    column_list = f" ({', '.join(quote_identifier(name) for name in columns)})" if columns else ""
    text = f"INSERT INTO {table} AS {quote_identifier('inserted')}{column_list} {rows}"
    return _add_returning(writer, text, table, qualified_name, table_columns, outputs)


@contextmanager
def _count_by_table(has_names: bool) -> Iterator[None]:
    """Without a list of columns, a wrong number of values is one that the table does not have.

    Raises:
        TsqlError: 213 instead of 109, 110, 120 and 121.
    """
    try:
        yield
    except TsqlError as error:
        if has_names or error.number not in (109, 110, 120, 121):
            raise
        raise TsqlError(213, "Column name or number of supplied values does not match table definition.") from None


def _name_end(rest: Slice) -> int:
    """Return the index after the table's name."""
    index = 1
    while rest.words[index : index + 1] == ["."]:
        index += 1 if rest.words[index + 1 : index + 2] == ["."] else 2
    return index


def _target_columns(
    writer: Writer, name: str, table: str, table_columns: dict[str, Column] | None, names: list[str]
) -> list[str]:
    """Return the columns that get values: the named ones, or all except IDENTITY and computed columns.

    Raises:
        TsqlError: 207 unknown column, 264 a column is named twice, 271 a computed column, 544 an IDENTITY column.
    """
    if table_columns is None:
        return names
    is_insert_allowed = writer.scope.identity_insert == table
    if any(column.is_identity for column in table_columns.values()):
        writer.scope_answers["identity_insert", table] = is_insert_allowed
    if is_insert_allowed and not any(
        column.is_identity and (not names or column.name.lower() in map(str.lower, names))
        for column in table_columns.values()
    ):
        raise TsqlError(
            545,
            f"Explicit value must be specified for identity column in table '{name}' either when IDENTITY_INSERT is set to ON "
            "or when a replication user is inserting into a NOT FOR REPLICATION identity column.",
        )
    if not names and is_insert_allowed:
        raise TsqlError(
            8101,
            f"An explicit value for the identity column in table '{name}' can only be specified when a column list is used and "
            "IDENTITY_INSERT is ON.",
        )
    if not names:
        return [column.name for column in table_columns.values() if not column.is_computed and not column.is_identity]
    lower_names = [column_name.lower() for column_name in names]
    for column_name in names:
        column = table_columns.get(column_name.lower())
        if column is None:
            raise TsqlError(207, f"Invalid column name '{column_name}'.")
        if lower_names.count(column_name.lower()) > 1:
            raise TsqlError(
                264,
                ASSIGNED_TWICE.format(column_name),
            )
        if column.is_computed:
            raise TsqlError(
                271,
                f'The column "{column_name}" cannot be modified because it is either a computed column or is the result of a UNION operator.',
            )
        if column.is_identity and not is_insert_allowed:
            raise TsqlError(
                544,
                f"Cannot insert explicit value for identity column in table '{name}' when IDENTITY_INSERT is set to OFF.",
            )
    return names


def _write_source(
    writer: Writer, common: Slice, rest: Slice, table: str, targets: list[Column | None], top: Top | None
) -> str:
    """Write the rows of INSERT: DEFAULT VALUES or a query, converted to the types of the columns."""
    first = rest.words[0] if rest.words else ""
    if first == "DEFAULT":
        if rest.words[1:2] != ["VALUES"] or rest.words[2:3] not in ([], ["OPTION"]):
            raise syntax_error("DEFAULT", rest.line())
        return "DEFAULT VALUES"
    if first in ("EXEC", "EXECUTE"):
        raise not_supported("INSERT ... EXEC inside another statement")
    if first not in ("SELECT", "WITH", "("):
        raise syntax_error(first, rest.line())
    source = slice_text(f"{common.text} {rest.text}") if common.words else rest
    translated = translate_query(writer, parse_slice(source), outermost=False)
    text = translated.text
    if top is not None:  # TOP overrides SET ROWCOUNT
        text = f"SELECT * FROM ({text}) AS source LIMIT {row_count_sql(writer, top, text)}"
    else:
        text = apply_row_limit(writer, text)
    if translated.outputs is None:
        if any(target is not None and target.is_identity for target in targets):
            raise UnknownColumns("INSERT of numbers for IDENTITY from a star")
        return text
    if targets and len(targets) != len(translated.outputs):
        has_more_targets = len(targets) > len(translated.outputs)
        raise TsqlError(
            120 if has_more_targets else 121,
            f"The select list for the INSERT statement contains {'fewer' if has_more_targets else 'more'} items than the insert list. "
            "The number of SELECT values must match the number of INSERT columns.",
            severity=15,
        )
    fields = [f"c{number}" for number in range(len(translated.outputs))]
    select_list = [
        advance_identity(_convert_query_column(field, output, target), table, target)
        for field, output, target in zip(fields, translated.outputs, targets or [None] * len(fields), strict=True)
    ]
    if (
        text == translated.text and select_list == fields
    ):  # otherwise PostgreSQL takes a NULL of UNION or DISTINCT as text
        return text
    return f"SELECT {', '.join(select_list)} FROM ({text}) AS source ({', '.join(fields)})"


def _convert_query_column(field: str, output: Output, target: Column | None) -> str:
    if output.type is not None:
        return convert_for_column(Sql(field, output.type), target)
    return "NULL" if output.is_null else field


class _RowValue(NamedTuple):
    """A value of a row. `drawn` is the SQL that draws it from a sequence, even if `text` is DEFAULT."""

    text: str
    drawn: str = ""


def _write_values(
    writer: Writer, rest: Slice, table: str, targets: list[Column | None], unlisted: list[Column], top: Top | None
) -> tuple[str, list[Column]]:
    """Write VALUES. Return it with those of the `unlisted` columns whose sequence values were added to the rows.

    All draws of a row return one number. If several expressions draw, each row marks its own number for them.
    """
    rows: list[list[_RowValue]] = []
    has_draws = False
    max_rows = _row_limit(writer, top)
    has_dynamic_limit = top is not None and max_rows is None
    hints = rest.find("OPTION")
    if hints is not None:  # optimizer hints
        find_ignored_places(rest.tokens, rest.first + hints, rest.first + len(rest.words))
        rest = rest.part(0, hints)
    for row_piece in rest.part(1, len(rest.words)).split():
        if row_piece.words[:1] != ["("] or row_piece.closing(0) != len(row_piece.words) - 1:
            raise syntax_error(row_piece.text[:40], row_piece.line())
        members = row_piece.part(1, len(row_piece.words) - 1).split()
        if targets and len(members) != len(targets):
            has_more_targets = len(targets) > len(members)
            raise TsqlError(
                109 if has_more_targets else 110,
                f"There are {'more' if has_more_targets else 'fewer'} columns in the INSERT statement than values specified in the VALUES "
                "clause. The number of values in the VALUES clause must match the number of columns specified in the "
                "INSERT statement.",
                severity=15,
            )
        padded = targets or [None] * len(members)
        writer.next_values = 0
        rows.append(
            [
                _write_member(writer, table, *pair, has_dynamic_limit=has_dynamic_limit)
                for pair in zip(members, padded, strict=True)
            ]
        )
        has_draws = has_draws or writer.next_values > 0
    draw_count = sum(target is not None and bool(target.sequence_default) for target in targets) + len(unlisted)
    if len(rows) == 1 or not (has_draws or draw_count > 1):
        unlisted = []
    else:
        sequence_values = [_RowValue("", row_piece.sequence_default) for row_piece in unlisted]
        rows = [[_mark_row(number, member) for member in (*row, *sequence_values)] for number, row in enumerate(rows)]
    if max_rows == 0:
        return f"SELECT {', '.join('NULL' for _ in rows[0])} WHERE FALSE", unlisted
    text = "VALUES " + ", ".join("(" + ", ".join(row_piece.text for row_piece in row) + ")" for row in rows[:max_rows])
    return text + (
        f" LIMIT {row_count_sql(writer, top, text)}" if top is not None and has_dynamic_limit else ""
    ), unlisted


def _write_member(
    writer: Writer, table: str, piece: Slice, target: Column | None, *, has_dynamic_limit: bool
) -> _RowValue:
    """Write one value of a row of VALUES."""
    if piece.words == ["DEFAULT"]:
        if target is None:
            return _RowValue("DEFAULT")
        if not has_dynamic_limit:
            return _RowValue("DEFAULT", target.sequence_default)
        # DEFAULT is allowed in plain VALUES only
        default = target.default_sql or cast_for_column(Sql("NULL", None, is_untyped=True), target)
        return _RowValue(default, target.sequence_default)
    draws_before = writer.next_values
    text = (cast_for_column if has_dynamic_limit else convert_for_column)(
        write_value(writer, read_value(piece)), target
    )
    text = advance_identity(text, table, target)
    return _RowValue(text, text if writer.next_values > draws_before else "")


def _mark_row(row: int, member: _RowValue) -> _RowValue:
    """Add the number of its row to a value that draws from a sequence."""
    return _RowValue(f"CASE WHEN tsql.in_row({row}) THEN {member.drawn} END") if member.drawn else member


def _row_limit(writer: Writer, top: Top | None) -> int | None:
    """Return the maximum number of rows of VALUES, None for no limit or one known only at run time."""
    if top is None:
        return writer.scope.row_limit or None
    limit = row_count_sql(writer, top, "")
    return parse_whole_number(limit) if is_whole(limit) else None


def _add_returning(
    writer: Writer,
    text: str,
    table: str,
    name: ObjectName,
    table_columns: dict[str, Column] | None,
    outputs: Outputs | None,
) -> Translation:
    """Add RETURNING for OUTPUT and for the IDENTITY value."""
    identities = [column for column in (table_columns or {}).values() if column.is_identity]
    before = tuple(writer.statements_before)
    if outputs is None:
        if not identities:
            return Translation(text, tuple(writer.parameters), "count", before=before)
        text += f" RETURNING inserted.{quote_identifier(identities[0].name)}"
        return Translation(text, tuple(writer.parameters), "count", before=before, identity=0)
    from_clause = From()
    from_clause.sources = [Source("inserted", table_columns, table)]
    with writer.query(from_clause.sources):
        returned = write_returning(writer, outputs, from_clause, table, name)
    text += f" RETURNING {returned.text}"
    if outputs.into is not None:
        drawn = f"inserted.{quote_identifier(identities[0].name)}" if identities else ""
        return write_output_into(writer, outputs, text, returned, identity=drawn)
    is_known = not returned.has_unknown_star
    identity = None
    if identities and is_known:
        text += f", inserted.{quote_identifier(identities[0].name)} AS {quote_label('tsql_identity')}"
        identity = len(returned.results)
    return Translation(
        text,
        tuple(writer.parameters),
        "rows",
        returned.names if is_known else None,
        returned.types if is_known else None,
        before=before,
        identity=identity,
    )
