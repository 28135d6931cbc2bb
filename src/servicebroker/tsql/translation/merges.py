"""MERGE, which PostgreSQL has too: taken apart by its words, each clause written as its own statement would be."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.errors import TsqlError, syntax_error
from servicebroker.tsql.scope import Column
from servicebroker.tsql.translation.hints import hints_from, lock_before
from servicebroker.tsql.translation.reading import Slice, parsed, read
from servicebroker.tsql.translation.result import Translated
from servicebroker.tsql.translation.selects import common
from servicebroker.tsql.translation.sources import From, object_name, read_from, table_name
from servicebroker.tsql.translation.targets import into_column
from servicebroker.tsql.translation.writer import Source, Writer, identifier, refused, write_predicate, write_value


def merge(writer: Writer, before: Slice, piece: Slice) -> Translated:
    """MERGE [INTO] target USING source ON condition, and what happens WHEN rows match or not.

    Raises:
        TsqlError: 40515 for OUTPUT, TOP and NOT MATCHED BY SOURCE; 5324 for clauses in a wrong order.
    """
    words = piece.words
    first = 2 if words[1:2] == ["INTO"] else 1
    using, on = piece.find("USING"), piece.find("ON")
    starts = [place for place in piece.outside(on or 0) if words[place] == "WHEN"]
    if using is None or on is None or not starts:
        raise syntax_error("MERGE", piece.line())
    if words[first] == "TOP" or piece.find("OUTPUT") is not None:
        raise refused("MERGE with TOP or OUTPUT", "Write UPDATE and INSERT with OUTPUT.")
    level: dict[str, dict[str, Column] | None] = {}
    writer.common.append(level)
    try:
        prefix = ""
        if before.words:
            prefix = common(writer, parsed(read(before.text + " SELECT 1")).args["with_"], level) + " "
        target = _target(writer, piece.part(first, using))
        node = parsed(piece.part(using + 1, on), "SELECT * FROM")
        found = read_from(writer, node.args.get("from_"), node.args.get("joins") or [])
        with writer.query([target, *found.sources]):
            clauses = [piece.part(start, end) for start, end in zip(starts, [*starts[1:], len(words)], strict=True)]
            actions = [_clause(writer, clause, target, found) for clause in clauses]
            condition = _condition(writer, piece.part(on + 1, starts[0]))
        source = found.text.removeprefix("FROM ")
        text = f"{prefix}MERGE INTO {target.table} AS {identifier(target.alias)} USING {source} ON {condition} {' '.join(actions)}"
        return Translated(text, tuple(writer.parameters), "count", before=tuple(writer.locks))
    finally:
        writer.common.pop()


def _target(writer: Writer, piece: Slice) -> Source:
    hints: set[str] = set()
    place = piece.find("WITH")
    if place is not None and piece.words[place + 1 : place + 2] == ["("]:  # hints stand before the alias
        end = piece.closing(place + 1)
        hints = set(piece.words[place + 2 : end]) - {",", "(", ")"}
        piece = read(f"{piece.part(0, place).text} {piece.part(end + 1, len(piece.words)).text}")
    node = parsed(piece, "SELECT * FROM").args["from_"].this
    if not isinstance(node, exp.Table) or node.args.get("hints"):
        raise syntax_error(piece.text[:40], piece.line())
    own = object_name(node)
    table = table_name(writer, own)
    writer.check_changes(table)
    lock_before(writer, hints_from(hints), table, "", None)
    alias = node.args.get("alias")
    return Source((alias.name if alias is not None else own.name).lower(), writer.table_columns(table), table)


def _condition(writer: Writer, piece: Slice) -> str:
    return write_predicate(writer, parsed(piece, "SELECT 1 WHERE").args["where"].this)


def _clause(writer: Writer, piece: Slice, target: Source, found: From) -> str:
    words = piece.words
    then = piece.find("THEN")
    matched = words[1:2] == ["MATCHED"]
    place = 2 if matched else 3
    if then is None or not (matched or words[1:3] == ["NOT", "MATCHED"]):
        raise syntax_error(piece.text[:40], piece.line())
    if words[place : place + 2] == ["BY", "SOURCE"]:
        raise refused("WHEN NOT MATCHED BY SOURCE", "Write DELETE or UPDATE ... WHERE NOT EXISTS behind the MERGE.")
    place += 2 if words[place : place + 2] == ["BY", "TARGET"] else 0
    more = ""
    if words[place] == "AND":
        more = " AND " + _condition(writer, piece.part(place + 1, then))
    elif place != then:
        raise syntax_error(words[place], piece.line(place))
    action = piece.part(then + 1, len(words))
    when = f"WHEN {'' if matched else 'NOT '}MATCHED{more} THEN "
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
    from servicebroker.tsql.translation.updates import settings_of  # it reads MERGE's neighbours too

    members = []
    for each in settings_of(piece):
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
        names = [parsed(each, "SELECT").expressions[0].name for each in piece.part(2, end).split()]
        place = end + 1
    if words[place : place + 2] != ["VALUES", "("] or piece.closing(place + 1) != len(words) - 1:
        raise syntax_error(piece.text[:40], piece.line())
    members = piece.part(place + 2, len(words) - 1).split()
    known = target.columns or {}
    if not names:
        names = [column.name for column in known.values() if not column.is_identity and not column.is_computed]
    if len(names) != len(members):
        raise TsqlError(213, "Column name or number of supplied values does not match table definition.")
    values = []
    for name, each in zip(names, members, strict=True):
        value = None if each.words == ["DEFAULT"] else parsed(each, "SELECT").expressions[0]
        values.append("DEFAULT" if value is None else into_column(write_value(writer, value), known.get(name.lower())))
    return f"INSERT ({', '.join(identifier(name) for name in names)}) VALUES ({', '.join(values)})"
