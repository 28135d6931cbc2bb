"""MERGE, which PostgreSQL has too: taken apart by its words, each clause written as its own statement would be."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.translation.documents.shared import UnknownColumns
from servicebroker.tsql.translation.queries.results import STAR
from servicebroker.tsql.translation.queries.selects import common
from servicebroker.tsql.translation.queries.sources import From, named_table, object_name, read_from
from servicebroker.tsql.translation.reading.hints import hints_from, lock_before
from servicebroker.tsql.translation.reading.parts import (
    common_in,
    condition_in,
    names_in,
    table_in,
    tables_in,
    value_in,
)
from servicebroker.tsql.translation.reading.text_to_tree import Slice, read
from servicebroker.tsql.translation.result import Translated
from servicebroker.tsql.translation.rows.outputs import Outputs, into, outputs_of, returning
from servicebroker.tsql.translation.rows.targets import counted_on, into_column
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    identifier,
    refused,
    write_predicate,
    write_value,
)
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import SqlType

_ACTION = "$action"
_ACTIONS = ("INSERT", "UPDATE", "DELETE")
_BY_SOURCE, _OLD = 17, 18  # the versions of PostgreSQL that know NOT MATCHED BY SOURCE, and RETURNING of old rows


def merge(writer: Writer, before: Slice, piece: Slice) -> Translated:
    """MERGE [INTO] target USING source ON condition, and what happens WHEN rows match or not.

    Raises:
        TsqlError: 40515 for TOP; 11742 for NEXT VALUE FOR; 10711 for an action that its clause cannot have.
    """
    option = piece.find("OPTION")  # how SQL Server is to do it
    piece = piece.part(0, len(piece.words) if option is None else option)
    words = piece.words
    first = 2 if words[1:2] == ["INTO"] else 1
    using, on = piece.find("USING"), piece.find("ON")
    starts = [place for place in piece.outside(on or 0) if words[place] == "WHEN"]
    if using is None or on is None or not starts:
        raise syntax_error("MERGE", piece.line())
    if words[first] == "TOP":
        raise refused("MERGE with TOP", "Write the TOP into the query behind USING.")
    output = piece.find("OUTPUT", after=on)
    end = len(words) if output is None else output
    starts = [place for place in starts if place < end]
    level: dict[str, dict[str, Column] | None] = {}
    writer.common.append(level)
    try:
        prefix = ""
        if before.words:
            prefix = common(writer, common_in(before), level) + " "
            prefix = prefix.replace("WITH RECURSIVE", "WITH", 1)  # which PostgreSQL does not take before MERGE
        target = _target(writer, piece.part(first, using))
        node = tables_in(piece.part(using + 1, on))
        found = read_from(writer, node.args.get("from_"), node.args.get("joins") or [])
        with writer.query([target, *found.sources]):
            clauses = [piece.part(start, end) for start, end in zip(starts, [*starts[1:], end], strict=True)]
            for clause in clauses:
                writer.check_changes(target.table, *(each for each in _ACTIONS if each in clause.words))
            actions = [_clause(writer, clause, target, found) for clause in clauses]
            condition = _condition(writer, piece.part(on + 1, starts[0]))
        if writer.drawn:
            raise TsqlError(
                11742, "NEXT VALUE FOR function can only be used with MERGE if it is defined within a default constraint "
                "on the target table for insert actions."
            )  # fmt: skip
        source = found.text.removeprefix("FROM ")
        text = f"{prefix}MERGE INTO {target.table} AS {identifier(target.alias)} USING {source} ON {condition} {' '.join(actions)}"
        server = _BY_SOURCE if any(words[at + 3 : at + 5] == ["BY", "SOURCE"] for at in starts) else 0
        if output is None:
            done = Translated(text, tuple(writer.parameters), "count", before=tuple(writer.locks), server=server)
        else:
            done = _output(writer, text, outputs_of(piece.part(output + 1, len(words))), target, found)
        return done._replace(most=writer.scope.most)
    finally:
        writer.common.pop()


def _output(writer: Writer, text: str, outputs: Outputs, target: Source, found: From) -> Translated:
    """OUTPUT: a result set, or rows INTO a table; `inserted` and `deleted`, the source and $action are in sight."""
    changed = [Source(name, target.columns, target.table) for name in ("inserted", "deleted")]
    writer.note(target.table, "SELECT")
    sight = From()
    sight.sources = [*changed, *found.sources]
    outputs = outputs._replace(expressions=[_with_action(node) for node in outputs.expressions])
    with writer.query(sight.sources):
        listed = returning(writer, outputs, sight)
    text += f" RETURNING WITH (OLD AS deleted, NEW AS inserted) {', '.join(each.text for each in listed)}"
    before = tuple(writer.locks)
    if outputs.into is not None:
        return Translated(
            into(writer, outputs, text, listed), tuple(writer.parameters), "count", before=before, server=_OLD
        )
    if any(each.name == STAR for each in listed):
        return Translated(text, tuple(writer.parameters), "rows", before=before, server=_OLD)
    names, types = tuple(each.name for each in listed), tuple(each.type for each in listed)
    return Translated(text, tuple(writer.parameters), "rows", names, types, before=before, server=_OLD)


def _with_action(node: exp.Expression) -> exp.Expression:
    """With the call that $action is."""

    def called(each: exp.Expression) -> exp.Expression:
        is_action = isinstance(each, exp.Column) and not each.table and each.name.lower() == _ACTION
        return exp.Anonymous(this=_ACTION) if is_action else each

    if isinstance(node, exp.Column) and called(node) is not node:
        return exp.Alias(this=exp.Anonymous(this=_ACTION), alias=exp.Identifier(this=_ACTION, quoted=True))
    made: exp.Expression = node.transform(called)
    return made


def _action(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    return Sql("merge_action()", SqlType("nvarchar", 10))


SPECIAL[_ACTION] = _action


def _target(writer: Writer, piece: Slice) -> Source:
    hints: set[str] = set()
    place = piece.find("WITH")
    if place is not None and piece.words[place + 1 : place + 2] == ["("]:  # hints stand before the alias
        end = piece.closing(place + 1)
        hints = set(piece.words[place + 2 : end]) - {",", "(", ")"}
        piece = read(f"{piece.part(0, place).text} {piece.part(end + 1, len(piece.words)).text}")
    node = table_in(piece)
    if node.args.get("hints"):
        raise syntax_error(piece.text[:40], piece.line())
    own = object_name(node)
    table = named_table(writer, own)
    lock_before(writer, hints_from(hints), table, "", None)
    alias = node.args.get("alias")
    return Source((alias.name if alias is not None else own.name).lower(), writer.table_columns(table), table)


def _condition(writer: Writer, piece: Slice) -> str:
    return write_predicate(writer, condition_in(piece))


def _clause(writer: Writer, piece: Slice, target: Source, found: From) -> str:
    words = piece.words
    then = piece.find("THEN")
    matched = words[1:2] == ["MATCHED"]
    place = 2 if matched else 3
    if then is None or not (matched or words[1:3] == ["NOT", "MATCHED"]):
        raise syntax_error(piece.text[:40], piece.line())
    by_source = not matched and words[place : place + 2] == ["BY", "SOURCE"]
    place += 2 if by_source else 0
    place += 2 if words[place : place + 2] == ["BY", "TARGET"] else 0
    more = ""
    if words[place] == "AND":
        more = " AND " + _condition(writer, piece.part(place + 1, then))
    elif place != then:
        raise syntax_error(words[place], piece.line(place))
    action = piece.part(then + 1, len(words))
    when = f"WHEN {'' if matched else 'NOT '}MATCHED{' BY SOURCE' if by_source else ''}{more} THEN "
    matched = matched or by_source
    if matched and action.words == ["DELETE"]:
        return when + "DELETE"
    if matched and action.words[:2] == ["UPDATE", "SET"]:
        return when + "UPDATE SET " + _settings(writer, action.part(2, len(action.words)), target)
    if not matched and action.words[:1] == ["INSERT"]:
        return when + _insert(writer, action, target)
    raise TsqlError(
        10711,
        f"An action of type '{action.words[0] if action.words else ''}' is not allowed in this clause of a MERGE statement.",
    )


def _settings(writer: Writer, piece: Slice, target: Source) -> str:
    from servicebroker.tsql.translation.rows.updates import settings_of  # it reads MERGE's neighbours too

    members = []
    for each in settings_of(piece, target.alias):
        if each.variable:
            raise refused("A variable in SET of MERGE")
        column = (target.columns or {}).get(each.column.lower())
        value = "DEFAULT" if each.value is None else into_column(write_value(writer, each.value), column)
        members.append(f"{identifier(each.column)} = {value}")
    return ", ".join(members)


def _insert(writer: Writer, piece: Slice, target: Source) -> str:
    words = piece.words
    if words[1:] == ["DEFAULT", "VALUES"]:
        return "INSERT DEFAULT VALUES"
    names: list[str] = []
    place = 1
    if words[1:2] == ["("]:
        end = piece.closing(1)
        names = names_in(piece.part(2, end))
        place = end + 1
    if words[place : place + 2] != ["VALUES", "("] or piece.closing(place + 1) != len(words) - 1:
        raise syntax_error(piece.text[:40], piece.line())
    members = piece.part(place + 2, len(words) - 1).split()
    known = target.columns or {}
    if not names and target.columns is None:
        raise UnknownColumns("MERGE that names no columns")
    if not names:
        names = [column.name for column in known.values() if not column.is_identity and not column.is_computed]
    if len(names) != len(members):
        raise TsqlError(213, "Column name or number of supplied values does not match table definition.")
    values = []
    for name, each in zip(names, members, strict=True):
        value = None if each.words == ["DEFAULT"] else value_in(each)
        column = known.get(name.lower())
        text = "DEFAULT" if value is None else into_column(write_value(writer, value), column)
        values.append(text if value is None else counted_on(text, target.table, column))
    return f"INSERT ({', '.join(identifier(name) for name in names)}) VALUES ({', '.join(values)})"
