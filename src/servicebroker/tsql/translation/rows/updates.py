"""UPDATE and DELETE.

A plain statement keeps its form. If T-SQL joins the target, takes TOP rows or returns old values, a subquery finds and
locks the rows and computes the new values. The change then finds the rows by address.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlglot import exp

from servicebroker.model.names import bracketed
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.syntax import MUTATOR
from servicebroker.tsql.tokens import COMPOUND_OPERATORS, VARIABLE
from servicebroker.tsql.translation.documents.document_options import UnknownColumns
from servicebroker.tsql.translation.queries.common_targets import ADDRESS_COLUMN, CommonTarget, make_common_target
from servicebroker.tsql.translation.queries.results import Output
from servicebroker.tsql.translation.queries.selects import (
    CommonTable,
    Top,
    row_count_sql,
    translate_common_tables,
    with_text,
)
from servicebroker.tsql.translation.queries.sources import From, common_columns, object_name, read_from, resolve_table
from servicebroker.tsql.translation.reading.hints import Hints, add_locks, hint_on_common_table
from servicebroker.tsql.translation.reading.parts import read_common_tables, read_names, read_value
from servicebroker.tsql.translation.reading.syntax_tree import Slice, slice_text
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.rows.outputs import Outputs, Returned, write_output_into, write_returning
from servicebroker.tsql.translation.rows.targets import cast_for_column, convert_for_column
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    not_supported,
    quote_identifier,
    quote_label,
    write_predicate,
    write_value,
)
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import SqlType


class Change(NamedTuple):
    """The parts of an UPDATE or DELETE. `rows` is a query with FROM, WHERE and OPTION."""

    keyword: str
    common: Slice
    table: exp.Table
    hints: Hints
    top: Top | None
    set: Slice | None
    outputs: Outputs | None
    rows: exp.Select | None


class Setting(NamedTuple):
    """One member of SET: a column, a variable, or both, and the value. None means DEFAULT."""

    column: str
    variable: str
    value: exp.Expression | None


class _Target(NamedTuple):
    """The table to change: its PostgreSQL name, its source, and FROM. `is_alone` is True if no other table is read.

    `column_map` maps columns of a common table expression, through which the table is changed, to the table's columns.
    """

    table: str
    source: Source
    from_clause: From
    is_alone: bool
    column_map: dict[str, str] | None = None

    def column(self, name: str) -> str:
        """Return the quoted name of a column of the table.

        Raises:
            TsqlError: 4406 the column is computed by the common table expression.
        """
        if self.column_map is None:
            return quote_identifier(name)
        if name.lower() not in self.column_map and "*" in self.column_map:
            return quote_identifier(name)
        if name.lower() not in self.column_map:
            raise TsqlError(
                4406,
                f"Update or insert of view or function '{self.source.alias}' failed because it contains a derived or "
                "constant field.",
            )
        return quote_identifier(self.column_map[name.lower()])

    @property
    def address(self) -> str:
        """SQL for the address of the row."""
        return f"{quote_identifier(self.source.alias)}.{'ctid' if self.column_map is None else ADDRESS_COLUMN}"


def write_change(writer: Writer, change: Change) -> Translation:
    """Translate an UPDATE or DELETE."""
    level: dict[str, dict[str, Column] | None] = {}
    writer.common_tables.append(level)
    try:
        tables = (
            translate_common_tables(writer, read_common_tables(change.common), level) if change.common.words else []
        )
        changed = _changed_table(change, tables)
        common_target = None
        if changed is not None:
            common_target = make_common_target(writer, tables[changed], _assigned_columns(change, tables[changed].name))
        if changed is not None and common_target is not None:
            tables[changed] = common_target.definition
        prefix = with_text(tables) if tables else ""
        target = (
            _resolve_target(writer, change)
            if common_target is None
            else _resolve_common_target(writer, change, common_target)
        )
        settings = read_settings(change.set, target.source.alias) if change.set is not None else []
        reads_rows = change.rows is not None or change.outputs is not None or any(map(_reads_old_row, settings))
        writer.check_changes(target.table, change.keyword, *(("SELECT",) if reads_rows else ()))
        with writer.query(target.from_clause.sources):
            return _write_statement(writer, change, target, settings, prefix)
    finally:
        writer.common_tables.pop()


def _assigned_columns(change: Change, target: str) -> list[str] | None:
    """Return the columns that UPDATE sets, None for DELETE."""
    if change.set is None:
        return None
    return [setting.column for setting in read_settings(change.set, target) if setting.column]


def _changed_table(change: Change, tables: list[CommonTable]) -> int | None:
    """Return the index of the common table expression to change, or None for a table."""
    qualified_name = object_name(change.table)
    names = [common_table.name.lower() for common_table in tables]
    return (
        None
        if qualified_name.schema or qualified_name.name.lower() not in names
        else names.index(qualified_name.name.lower())
    )


def _resolve_common_target(writer: Writer, change: Change, common: CommonTarget) -> _Target:
    """Find the changed common table expression among the sources of FROM."""
    if change.hints != Hints():
        raise hint_on_common_table()
    name = common.definition.name.lower()
    if change.rows is not None and change.rows.args.get("from_") is not None:
        from_clause = read_from(writer, change.rows.args["from_"], change.rows.args.get("joins") or [])
    else:
        from_clause = From()
        from_clause.text = f"FROM {quote_identifier(name)}"
        from_clause.sources = [Source(name, common_columns(writer, name))]
    source = next((visible for visible in from_clause.sources if visible.alias == name and not visible.table), None)
    if source is None:
        raise not_supported(f"{change.keyword} of {name} under another name", f"Call it {name} in FROM.")
    return _Target(common.table, source, from_clause, False, common.columns)


def _resolve_target(writer: Writer, change: Change) -> _Target:
    """Find the changed table among the sources of FROM, or add it."""
    qualified_name = object_name(change.table)
    from_ = change.rows.args.get("from_") if change.rows is not None else None
    if from_ is None:
        table = resolve_table(writer, qualified_name)
        source = Source(qualified_name.name.lower(), writer.table_columns(table), table)
        from_clause = From()
        from_clause.text, from_clause.sources = f"FROM {table} AS {quote_identifier(qualified_name.name)}", [source]
        from_clause.hints = [(source, change.hints)]
        return _Target(table, source, from_clause, is_alone=True)
    from_clause = read_from(writer, from_, change.rows.args.get("joins") or [])  # type: ignore[union-attr]
    by_alias = [
        visible
        for visible in from_clause.sources
        if visible.table and not qualified_name.schema and visible.alias == qualified_name.name.lower()
    ]
    if not by_alias:
        table = resolve_table(writer, qualified_name)
        by_alias = [visible for visible in from_clause.sources if visible.table == table]
        if not by_alias:  # FROM does not contain the target: all its rows are changed
            source = Source(qualified_name.name.lower(), writer.table_columns(table), table)
            from_clause.sources.append(source)
            from_clause.text += f" CROSS JOIN {table} AS {quote_identifier(qualified_name.name)}"
            by_alias = [source]
    if len(by_alias) > 1:
        raise TsqlError(8154, f"The table '{qualified_name}' is ambiguous.")
    return _Target(by_alias[0].table, by_alias[0], from_clause, is_alone=len(from_clause.sources) == 1)


def _reads_old_row(setting: Setting) -> bool:
    """Check whether the new value depends on the old row."""
    return not setting.column or (setting.value is not None and setting.value.find(exp.Column) is not None)


def read_settings(piece: Slice, target: str) -> list[Setting]:
    """Parse the members of SET. `target` is the alias of the changed table."""
    return [_read_setting(part, target) for part in piece.split()]


def _read_setting(piece: Slice, alias: str) -> Setting:
    """Parse one member of SET."""
    words, tokens = piece.words, piece.tokens
    variable = ""
    if words and tokens.kinds[piece.first] == VARIABLE:
        variable = tokens.text(piece.first).lower()
        if len(words) > 1 and words[1] in COMPOUND_OPERATORS:
            return Setting("", variable, _compound_value(piece, 1, ""))
        if words[1:2] != ["="]:
            raise syntax_error(piece.text[:40], piece.line())
        piece = piece.part(2, len(words))
        index = piece.find("=", *COMPOUND_OPERATORS)
        if index is None or not 1 <= index <= 3 or piece.words[index - 1] == ")":
            return Setting("", variable, read_value(piece))
        words = piece.words
    if words[1:4] == [".", "MODIFY", "("] and piece.closing(3) == len(words) - 1:
        column = piece.part(0, 1)
        changed = slice_text(f"{column.text}.{MUTATOR}{piece.part(3, len(words)).text}")
        return Setting(read_names(column)[0], variable, read_value(changed))
    index = piece.find("=", *COMPOUND_OPERATORS)
    if index is None or index == 0 or words[0] == "(":
        raise syntax_error(piece.text[:40], piece.line())
    target = read_value(piece.part(0, index))
    if not isinstance(target, exp.Column):
        raise not_supported("A method in SET", "Assign the whole new value.")
    right = piece.part(index + 1, len(words))
    if right.words == ["DEFAULT"]:
        if words[index] != "=":
            raise syntax_error("DEFAULT", right.line())
        return Setting(target.name, variable, None)
    return Setting(
        target.name, variable, read_value(right) if words[index] == "=" else _compound_value(piece, index, alias)
    )


def _compound_value(piece: Slice, index: int, alias: str) -> exp.Expression:
    """Return the value of a compound assignment, whose operator is at `index`, to a column of `alias`."""
    left, right = piece.part(0, index), piece.part(index + 1, len(piece.words))
    read_value(right)  # must be complete by itself before it is put in parentheses
    prefix = f"{bracketed(alias)}." if alias and len(left.words) == 1 else ""
    return read_value(slice_text(f"{prefix}{left.text} {COMPOUND_OPERATORS[piece.words[index]]} ({right.text})"))


def _write_statement(
    writer: Writer, change: Change, target: _Target, settings: list[Setting], prefix: str
) -> Translation:
    """Write the statement, in its own form or by row addresses, with its locks and RETURNING."""
    target_hints = [hints for source, hints in target.from_clause.hints if source == target.source] + [change.hints]
    skips_locked = any(hints.skips_locked for hints in target_hints)
    where = change.rows.args.get("where") if change.rows is not None else None
    for source, hints in [*target.from_clause.hints, (target.source, change.hints)]:
        add_locks(writer, hints, source.table, source.alias, where)
    variables = [setting for setting in settings if setting.variable]
    change, others = _carry_other_columns(writer, change, target)
    reads_old = change.keyword == "UPDATE" and (
        any(not setting.column for setting in variables)
        or (change.outputs is not None and _mentions_table(change.outputs, "deleted"))
    )
    if target.is_alone and change.top is None and not skips_locked and not reads_old:
        text, names = _write_plain(writer, change, target, settings)
    else:
        text, names = _write_by_address(writer, change, target, settings, skips_locked, others)
    returned, columns = _write_returned(writer, change, target, names, variables, others)
    if variables and change.outputs is not None:
        raise not_supported("OUTPUT beside variables in SET", "Use OUTPUT INTO a table variable.")
    if returned is not None:
        text += f" RETURNING {returned.text}"
    if change.outputs is not None and change.outputs.into is not None and returned is not None:
        return write_output_into(writer, change.outputs, text, returned, prefix=prefix)
    text = f"{prefix} {text}" if prefix else text
    before = tuple(writer.statements_before)
    if variables:
        types = tuple(writer.variable_type(setting.variable) for setting in variables)
        accumulates = any(
            setting.value is not None and _uses_assigned_variable(setting.value, variables) for setting in settings
        )
        return Translation(
            text, tuple(writer.parameters), "assign", None, types, tuple(setting.variable for setting in variables), before,
            max_rows=int(accumulates),
        )  # fmt: skip
    if returned is not None:
        return Translation(text, tuple(writer.parameters), "rows", *columns, before=before)
    return Translation(text, tuple(writer.parameters), "count", before=before)


_OTHER_COLUMNS = "tsql_others"  # prefix of columns that carry values of other tables to OUTPUT


def _carry_other_columns(writer: Writer, change: Change, target: _Target) -> tuple[Change, list[Sql]]:
    """Return OUTPUT columns of other tables as values, to be fetched with the rows that are found.

    Raises:
        UnknownColumns: a star over a table with unknown columns.
    """
    tables = {source.alias: source for source in target.from_clause.sources if source is not target.source}
    if change.outputs is None or not tables:
        return change, []
    carried: list[Sql] = []

    def carry(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Column) or node.table.lower() not in tables:
            return node
        carried.append(write_value(writer, node))
        return exp.column(f"{_OTHER_COLUMNS}_{len(carried) - 1}", table=_OTHER_COLUMNS)

    def carry_all(node: exp.Expression) -> list[exp.Expression]:
        members: list[exp.Expression] = [node]
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star) and node.table.lower() in tables:
            columns = tables[node.table.lower()].columns
            if columns is None:
                raise UnknownColumns("A star in OUTPUT")
            members = [exp.column(column.name, table=node.table) for column in columns.values()]
        expressions: list[Any] = []
        for member in members:
            name = member.name if isinstance(member, exp.Column) else ""
            replaced = member.transform(carry)
            expressions.append(exp.alias_(replaced, name, quoted=True) if name and replaced != member else replaced)
        return expressions

    return change._replace(outputs=change.outputs.replace_each(carry_all)), carried


def _uses_assigned_variable(value: exp.Expression, variables: list[Setting]) -> bool:
    """Check whether a value uses a variable that SET assigns, so that it changes from row to row."""
    return {"@" + parameter.name.lower() for parameter in value.find_all(exp.Parameter)} & {
        setting.variable for setting in variables
    } != set()


def _mentions_table(outputs: Outputs, name: str) -> bool:
    return any(
        column.table.lower() == name
        for node in [*outputs.expressions, *outputs.results]
        for column in node.find_all(exp.Column)
    )


def _write_plain(
    writer: Writer, change: Change, target: _Target, settings: list[Setting]
) -> tuple[str, dict[str, str]]:
    """Write the statement in its own form. Return it with the aliases of `inserted` and `deleted`."""
    alias = quote_identifier(target.source.alias)
    where = change.rows.args.get("where") if change.rows is not None else None
    if change.keyword == "UPDATE":
        members = ", ".join(
            f"{quote_identifier(setting.column)} = {_new_value(writer, setting, target)}" for setting in settings
        )
        text = f"UPDATE {target.table} AS {alias} SET {members}"
    else:
        text = f"DELETE FROM {target.table} AS {alias}"
    if where is not None:
        text += " WHERE " + write_predicate(writer, where.this)
    return text, {"inserted": target.source.alias, "deleted": target.source.alias}


def _new_value(writer: Writer, setting: Setting, target: _Target, *, is_alone: bool = False) -> str:
    """Write the new value of a column. `is_alone` adds a cast where PostgreSQL does not see the column."""
    if setting.value is None:
        return "DEFAULT"
    column = (target.source.columns or {}).get(setting.column.lower())
    if column is not None and (column.is_identity or column.is_computed):
        raise (
            TsqlError(8102, f"Cannot update identity column '{setting.column}'.")
            if column.is_identity
            else TsqlError(
                271,
                f'The column "{setting.column}" cannot be modified because it is either a computed column or is the result of '
                "a UNION operator.",
            )
        )
    return (cast_for_column if is_alone else convert_for_column)(write_value(writer, setting.value), column)


def _write_by_address(
    writer: Writer, change: Change, target: _Target, settings: list[Setting], skips: bool, others: list[Sql]
) -> tuple[str, dict[str, str]]:
    """Write a subquery that finds the rows, and a change that follows their addresses."""
    alias = quote_identifier(target.source.alias)
    fields = [f"{target.address} AS tsql_row"] if target.column_map is None else [f"{alias}.*"]
    members = []
    for number, setting in enumerate(settings):
        if setting.column and setting.value is None:
            members.append(f"{target.column(setting.column)} = DEFAULT")
        elif setting.column:
            fields.append(f"{_new_value(writer, setting, target, is_alone=True)} AS tsql_{number}")
            members.append(f"{target.column(setting.column)} = deleted.tsql_{number}")
        else:
            assert setting.value is not None
            value = cast_value(write_value(writer, setting.value), writer.variable_type(setting.variable))
            fields.append(f"{value.text} AS tsql_{number}")
    fields += [f"{other.text} AS {_OTHER_COLUMNS}_{number}" for number, other in enumerate(others)]
    if change.keyword == "UPDATE" and target.column_map is None:
        fields.append(f"{alias}.*")
    where = change.rows.args.get("where") if change.rows is not None else None
    text = f"SELECT {', '.join(fields)} {target.from_clause.text}"
    if where is not None:
        text += " WHERE " + write_predicate(writer, where.this)
    if change.top is not None:
        text += f" LIMIT {row_count_sql(writer, change.top, text)}"
    if target.column_map is None and not _is_nullable(change, target):
        text += f" FOR UPDATE OF {alias}{' SKIP LOCKED' if skips else ''}"
    if change.keyword == "DELETE" and target.column_map is not None:
        statement = f"DELETE FROM {target.table} AS tsql_target USING ({text}) AS deleted WHERE tsql_target.ctid = deleted.{ADDRESS_COLUMN}"
        return statement, {"deleted": "deleted"}
    if change.keyword == "DELETE":
        statement = (
            f"DELETE FROM {target.table} AS deleted USING ({text}) AS tsql_rows WHERE deleted.ctid = tsql_rows.tsql_row"
        )
        return statement, {"deleted": "deleted"}
    members = members or [_unchanged_column(writer, target)]
    statement = f"UPDATE {target.table} AS inserted SET {', '.join(members)} FROM ({text}) AS deleted WHERE inserted.ctid = deleted.tsql_row"
    return statement, {"inserted": "inserted", "deleted": "deleted"}


def _unchanged_column(writer: Writer, target: _Target) -> str:
    """Write an assignment of a column to itself, since PostgreSQL needs one if SET only assigns variables.

    Raises:
        TsqlError: 40515 all columns are computed, or the target is a common table expression.
    """
    columns = writer.table_columns(target.table)
    if columns is None:
        raise UnknownColumns("UPDATE of variables alone")
    column = next((candidate for candidate in columns.values() if not candidate.is_computed), None)
    if column is None or target.column_map is not None:
        raise not_supported("UPDATE that sets variables alone here", "Use SELECT.")
    return f"{quote_identifier(column.name)} = inserted.{quote_identifier(column.name)}"


def _is_nullable(change: Change, target: _Target) -> bool:
    """Check whether an outer join can return rows without the target, which PostgreSQL cannot lock."""
    if change.rows is None:
        return False
    sides = {join.args.get("side") for join in change.rows.find_all(exp.Join)}
    first = target.from_clause.sources[0] == target.source if target.from_clause.sources else True
    return bool(sides & {"RIGHT", "FULL"}) or ("LEFT" in sides and not first)


def _visible_columns(target: _Target, name: str) -> dict[str, Column] | None:
    """Return the columns of `inserted` or `deleted`; None if they are unknown.

    Of a common table expression, `inserted` has only the columns that keep their names.
    """
    columns = target.source.columns
    if target.column_map is None or columns is None or name == "deleted":
        return columns
    return {
        name_in_query: column
        for name_in_query, column in columns.items()
        if target.column_map.get(name_in_query, "").lower() == name_in_query
    }


def _write_returned(
    writer: Writer,
    change: Change,
    target: _Target,
    aliases: dict[str, str],
    variables: list[Setting],
    others: list[Sql],
) -> tuple[Returned | None, tuple[tuple[str, ...] | None, tuple[SqlType | None, ...] | None]]:
    """Write the columns that the statement returns for each row, None without such columns."""
    if variables:
        settings = read_settings(change.set, target.source.alias) if change.set is not None else []
        texts = []
        for number, setting in enumerate(settings):
            if not setting.variable:
                continue
            if setting.column:
                text = f"{quote_identifier(aliases['inserted'])}.{quote_identifier(setting.column)}"
                column = (target.source.columns or {}).get(setting.column.lower())
                if column is not None and column.type != writer.variable_type(setting.variable):
                    text = cast_value(Sql(text, column.type), writer.variable_type(setting.variable)).text
            else:
                text = f"deleted.tsql_{number}"
            texts.append(Output(setting.variable, f"{text} AS {quote_label(setting.variable)}", None))
        return Returned([], texts), (None, None)
    if change.outputs is None:
        return None, (None, None)
    from_clause = From()
    from_clause.sources = [Source(name, _visible_columns(target, name), target.table) for name in aliases]
    if others:
        columns = {
            f"{_OTHER_COLUMNS}_{n}": Column(f"{_OTHER_COLUMNS}_{n}", other.type)
            for n, other in enumerate(others)
            if other.type
        }
        from_clause.sources.append(Source(_OTHER_COLUMNS, columns if len(columns) == len(others) else None))
        is_deleted = change.keyword == "DELETE" and target.column_map is None
        aliases = {**aliases, _OTHER_COLUMNS: "tsql_rows" if is_deleted else "deleted"}
    with writer.renamed(aliases), writer.query(from_clause.sources):
        returned = write_returning(writer, change.outputs, from_clause, target.table, object_name(change.table))
    if returned.has_unknown_star:
        if target.column_map is not None:
            raise UnknownColumns("A star in OUTPUT")
        return returned, (None, None)
    return returned, (returned.names, returned.types)
