"""MERGE, which PostgreSQL has too. It is split at its keywords, and each action is written like its own statement."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.translation.documents.document_options import UnknownColumns
from servicebroker.tsql.translation.queries.selects import write_with
from servicebroker.tsql.translation.queries.sources import From, ObjectName, object_name, read_from, resolve_table
from servicebroker.tsql.translation.reading.hints import add_locks, combine_hints
from servicebroker.tsql.translation.reading.parts import (
    read_common_tables,
    read_condition,
    read_names,
    read_table,
    read_tables,
    read_value,
)
from servicebroker.tsql.translation.reading.syntax_tree import Slice, slice_text
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.rows.outputs import Outputs, read_outputs, write_output_into, write_returning
from servicebroker.tsql.translation.rows.targets import advance_identity, convert_for_column
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    not_supported,
    quote_identifier,
    write_predicate,
    write_value,
)
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import SqlType

_ACTION = "$action"
_ACTIONS = ("INSERT", "UPDATE", "DELETE")
_NOT_MATCHED_BY_SOURCE_VERSION = 17  # first PostgreSQL version with NOT MATCHED BY SOURCE
_RETURNING_OLD_VERSION = 18  # first PostgreSQL version with OLD and NEW in RETURNING


def translate_merge(writer: Writer, common: Slice, piece: Slice) -> Translation:
    """Translate MERGE [INTO] target USING source ON condition, and its WHEN clauses.

    Raises:
        TsqlError: 40515 TOP, 11742 NEXT VALUE FOR, 10711 an action that the clause does not allow.
    """
    option = piece.find("OPTION")  # optimizer hints
    piece = piece.part(0, len(piece.words) if option is None else option)
    words = piece.words
    first = 2 if words[1:2] == ["INTO"] else 1
    using, on = piece.find("USING"), piece.find("ON")
    starts = [index for index in piece.outside(on or 0) if words[index] == "WHEN"]
    if using is None or on is None or not starts:
        raise syntax_error("MERGE", piece.line())
    if words[first] == "TOP":
        raise not_supported("MERGE with TOP", "Write the TOP into the query after USING.")
    output = piece.find("OUTPUT", after=on)
    end = len(words) if output is None else output
    starts = [index for index in starts if index < end]
    level: dict[str, dict[str, Column] | None] = {}
    writer.common_tables.append(level)
    try:
        prefix = ""
        if common.words:
            prefix = write_with(writer, read_common_tables(common), level) + " "
            prefix = prefix.replace("WITH RECURSIVE", "WITH", 1)  # PostgreSQL does not allow RECURSIVE before MERGE
        target, name = _read_target(writer, piece.part(first, using))
        node = read_tables(piece.part(using + 1, on))
        from_clause = read_from(writer, node.args.get("from_"), node.args.get("joins") or [])
        with writer.query([target, *from_clause.sources]):
            clauses = [piece.part(start, end) for start, end in zip(starts, [*starts[1:], end], strict=True)]
            for clause in clauses:
                writer.check_changes(target.table, *(action for action in _ACTIONS if action in clause.words))
            actions = [_write_clause(writer, clause, target, from_clause) for clause in clauses]
            condition = _write_condition(writer, piece.part(on + 1, starts[0]))
        if writer.next_values:
            raise TsqlError(
                11742, "NEXT VALUE FOR function can only be used with MERGE if it is defined within a default constraint "
                "on the target table for insert actions."
            )  # fmt: skip
        source = from_clause.text.removeprefix("FROM ")
        text = f"{prefix}MERGE INTO {target.table} AS {quote_identifier(target.alias)} USING {source} ON {condition} {' '.join(actions)}"
        server = (
            _NOT_MATCHED_BY_SOURCE_VERSION if any(words[at + 3 : at + 5] == ["BY", "SOURCE"] for at in starts) else 0
        )
        if output is None:
            translation = Translation(
                text,
                tuple(writer.parameters),
                "count",
                before=tuple(writer.statements_before),
                min_server_version=server,
            )
        else:
            translation = _add_output(
                writer, text, read_outputs(piece.part(output + 1, len(words))), target, name, from_clause
            )
        return translation._replace(max_rows=writer.scope.row_limit)
    finally:
        writer.common_tables.pop()


def _add_output(
    writer: Writer, text: str, outputs: Outputs, target: Source, name: ObjectName, from_clause: From
) -> Translation:
    """Add OUTPUT as a result set or INTO a table. `inserted`, `deleted`, the source and $action are visible."""
    changed = [Source(name, target.columns, target.table) for name in ("inserted", "deleted")]
    writer.record_use(target.table, "SELECT")
    sight = From()
    sight.sources = [*changed, *from_clause.sources]
    outputs = outputs.replace_each(lambda node: [_replace_action(node)])
    with writer.query(sight.sources):
        returned = write_returning(writer, outputs, sight, target.table, name)
    text += f" RETURNING WITH (OLD AS deleted, NEW AS inserted) {returned.text}"
    before = tuple(writer.statements_before)
    if outputs.into is not None:
        stored = write_output_into(writer, outputs, text, returned)
        return stored._replace(min_server_version=_RETURNING_OLD_VERSION)
    if returned.has_unknown_star:
        return Translation(
            text, tuple(writer.parameters), "rows", before=before, min_server_version=_RETURNING_OLD_VERSION
        )
    return Translation(
        text,
        tuple(writer.parameters),
        "rows",
        returned.names,
        returned.types,
        before=before,
        min_server_version=_RETURNING_OLD_VERSION,
    )


def _replace_action(node: exp.Expression) -> exp.Expression:
    """Replace $action by a call."""

    def called(inner: exp.Expression) -> exp.Expression:
        is_action = isinstance(inner, exp.Column) and not inner.table and inner.name.lower() == _ACTION
        return exp.Anonymous(this=_ACTION) if is_action else inner

    if isinstance(node, exp.Column) and called(node) is not node:
        return exp.Alias(this=exp.Anonymous(this=_ACTION), alias=exp.Identifier(this=_ACTION, quoted=True))
    replaced: exp.Expression = node.transform(called)
    return replaced


def _write_action(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    return Sql("merge_action()", SqlType("nvarchar", 10))


SPECIAL[_ACTION] = _write_action


def _read_target(writer: Writer, piece: Slice) -> tuple[Source, ObjectName]:
    """Read the target with its hints and alias. Return it and its name."""
    hints: set[str] = set()
    index = piece.find("WITH")
    if index is not None and piece.words[index + 1 : index + 2] == ["("]:  # hints precede the alias
        end = piece.closing(index + 1)
        hints = set(piece.words[index + 2 : end]) - {",", "(", ")"}
        piece = slice_text(f"{piece.part(0, index).text} {piece.part(end + 1, len(piece.words)).text}")
    node = read_table(piece)
    if node.args.get("hints"):
        raise syntax_error(piece.text[:40], piece.line())
    qualified_name = object_name(node)
    table = resolve_table(writer, qualified_name)
    add_locks(writer, combine_hints(hints), table, "", None)
    alias = node.args.get("alias")
    source = Source(
        (alias.name if alias is not None else qualified_name.name).lower(), writer.table_columns(table), table
    )
    return source, qualified_name


def _write_condition(writer: Writer, piece: Slice) -> str:
    return write_predicate(writer, read_condition(piece))


def _write_clause(writer: Writer, piece: Slice, target: Source, from_clause: From) -> str:
    """Write a WHEN clause with its action."""
    words = piece.words
    then = piece.find("THEN")
    matched = words[1:2] == ["MATCHED"]
    index = 2 if matched else 3
    if then is None or not (matched or words[1:3] == ["NOT", "MATCHED"]):
        raise syntax_error(piece.text[:40], piece.line())
    by_source = not matched and words[index : index + 2] == ["BY", "SOURCE"]
    index += 2 if by_source else 0
    index += 2 if words[index : index + 2] == ["BY", "TARGET"] else 0
    more = ""
    if words[index] == "AND":
        more = " AND " + _write_condition(writer, piece.part(index + 1, then))
    elif index != then:
        raise syntax_error(words[index], piece.line(index))
    action = piece.part(then + 1, len(words))
    when = f"WHEN {'' if matched else 'NOT '}MATCHED{' BY SOURCE' if by_source else ''}{more} THEN "
    matched = matched or by_source
    if matched and action.words == ["DELETE"]:
        return when + "DELETE"
    if matched and action.words[:2] == ["UPDATE", "SET"]:
        return when + "UPDATE SET " + _write_settings(writer, action.part(2, len(action.words)), target)
    if not matched and action.words[:1] == ["INSERT"]:
        return when + _write_insert(writer, action, target)
    raise TsqlError(
        10711,
        f"An action of type '{action.words[0] if action.words else ''}' is not allowed in this clause of a MERGE statement.",
    )


def _write_settings(writer: Writer, piece: Slice, target: Source) -> str:
    from servicebroker.tsql.translation.rows.updates import read_settings  # at run time: the module imports this one

    members = []
    for setting in read_settings(piece, target.alias):
        if setting.variable:
            raise not_supported("A variable in SET of MERGE")
        column = (target.columns or {}).get(setting.column.lower())
        value = "DEFAULT" if setting.value is None else convert_for_column(write_value(writer, setting.value), column)
        members.append(f"{quote_identifier(setting.column)} = {value}")
    return ", ".join(members)


def _write_insert(writer: Writer, piece: Slice, target: Source) -> str:
    words = piece.words
    if words[1:] == ["DEFAULT", "VALUES"]:
        return "INSERT DEFAULT VALUES"
    names: list[str] = []
    index = 1
    if words[1:2] == ["("]:
        end = piece.closing(1)
        names = read_names(piece.part(2, end))
        index = end + 1
    if words[index : index + 2] != ["VALUES", "("] or piece.closing(index + 1) != len(words) - 1:
        raise syntax_error(piece.text[:40], piece.line())
    members = piece.part(index + 2, len(words) - 1).split()
    table_columns = target.columns or {}
    if not names and target.columns is None:
        raise UnknownColumns("MERGE that names no columns")
    if not names:
        names = [column.name for column in table_columns.values() if not column.is_identity and not column.is_computed]
    if len(names) != len(members):
        raise TsqlError(213, "Column name or number of supplied values does not match table definition.")
    values = []
    for name, member in zip(names, members, strict=True):
        value = None if member.words == ["DEFAULT"] else read_value(member)
        column = table_columns.get(name.lower())
        text = "DEFAULT" if value is None else convert_for_column(write_value(writer, value), column)
        values.append(text if value is None else advance_identity(text, target.table, column))
    return f"INSERT ({', '.join(quote_identifier(name) for name in names)}) VALUES ({', '.join(values)})"
