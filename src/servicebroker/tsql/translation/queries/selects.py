"""SELECT: one query, or several joined by UNION, EXCEPT and INTERSECT."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.documents.for_json import for_json
from servicebroker.tsql.translation.documents.for_xml import for_xml
from servicebroker.tsql.translation.queries.aggregates import order_text, windows_text
from servicebroker.tsql.translation.queries.results import STAR, Output, Query, check_named, output_name
from servicebroker.tsql.translation.queries.sources import From, read_from
from servicebroker.tsql.translation.reading.hints import Hints, lock_before
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    closed_text,
    identifier,
    label,
    moment_text,
    only,
    query_of,
    unsupported,
    write_predicate,
    write_value,
)
from servicebroker.tsql.translation.values.alternatives import alike, either
from servicebroker.tsql.types import INT, SqlType, postgres_type

_QUERY = (
    "expressions",
    "distinct",
    "limit",
    "from_",
    "joins",
    "where",
    "group",
    "having",
    "windows",
    "order",
    "offset",
)


class Top(NamedTuple):
    """TOP of a statement that changes rows."""

    said: exp.Expression
    is_percent: bool


def query(writer: Writer, node: exp.Expression, *, outermost: bool, into: str = "") -> Query:
    """A query with its common table expressions."""
    with_ = node.args.get("with_")
    if with_ is not None:
        level: dict[str, dict[str, Column] | None] = {}
        writer.common.append(level)
        try:
            text = common(writer, with_, level)
            inner = _body(writer, node, outermost=outermost, into=into)
            return Query(f"{text} {inner.text}", inner.outputs)
        finally:
            writer.common.pop()
    return _body(writer, node, outermost=outermost, into=into)


@query_of(exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery)
def _inside_another(writer: Writer, node: exp.Expression) -> Query:
    return query(writer, node, outermost=False)


class CommonTable(NamedTuple):
    """A common table expression: `names` are those of its columns where they are listed, `text` is its query's."""

    name: str
    names: list[str]
    query: exp.Expression
    text: str


def common(writer: Writer, node: exp.With, level: dict[str, dict[str, Column] | None]) -> str:
    """WITH name AS (...), ... as it is written."""
    return with_text(common_tables(writer, node, level))


def with_text(tables: list[CommonTable]) -> str:
    """WITH in PostgreSQL; each may read itself, as is allowed under RECURSIVE."""
    parts = []
    for each in tables:
        columns = f" ({', '.join(identifier(column) for column in each.names)})" if each.names else ""
        parts.append(f"{identifier(each.name)}{columns} AS ({each.text})")
    return "WITH RECURSIVE " + ", ".join(parts)


def common_tables(writer: Writer, node: exp.With, level: dict[str, dict[str, Column] | None]) -> list[CommonTable]:
    """The common table expressions; `level` learns their columns."""
    made = []
    for each in node.expressions:
        alias = each.args["alias"]
        name, renamed = alias.name, [column.name for column in alias.args.get("columns") or []]
        level[name.lower()] = None  # of itself nothing is known
        inner = _counted(writer, each.this, name, renamed, level) or query(writer, each.this, outermost=False)
        check_named(inner.outputs, renamed, name)
        if inner.outputs is not None and all(output.type is not None for output in inner.outputs):
            found = renamed if len(renamed) == len(inner.outputs) else [output.name for output in inner.outputs]
            pairs = zip(found, inner.outputs, strict=True)
            level[name.lower()] = {own.lower(): Column(own, output.type) for own, output in pairs if output.type}
        made.append(CommonTable(name, renamed, each.this, inner.text))
    return made


_LEVEL = "tsql_level"  # a column beside those of a recursive common table expression


def _counted(
    writer: Writer, node: exp.Expression, name: str, renamed: list[str], level: dict[str, dict[str, Column] | None]
) -> Query | None:
    """A query that reads itself, each row with the level it was found at: too many of them are an error (530).

    None for one that does not, and for one with a star, whose columns nobody can list.
    """
    if not isinstance(node, exp.Union) or node.args.get("distinct") or not isinstance(node.expression, exp.Select):
        return None
    recursive = node.expression.copy()
    itself = _read_directly(recursive, name)
    if itself is None or any(recursive.args.get(each) for each in ("distinct", "group", "limit", "with_")):
        return None
    recursive.append("expressions", exp.column(_LEVEL, itself.alias_or_name, quoted=True))
    left = query(writer, node.this, outermost=False)
    if left.outputs is None:
        return None
    names = renamed if len(renamed) == len(left.outputs) else [output.name for output in left.outputs]
    types = [INT if output.is_null else output.type for output in left.outputs]
    level[name.lower()] = _with_level(names, types)
    right = query(writer, recursive, outermost=False)
    if right.outputs is None or len(right.outputs) != len(names) + 1:
        level[name.lower()] = None
        return None
    columns, own = ", ".join(identifier(each) for each in names), identifier(name)
    firsts = ", ".join(_cast(identifier(each), of) for each, of in zip(names, types, strict=True))
    nexts = ", ".join(
        _as_first(name, *each)
        for each in zip(names, types, right.outputs, strict=False)  # the last one is the level
    )
    return Query(
        f"WITH RECURSIVE {own} ({columns}, {_LEVEL}) AS ((SELECT {firsts}, 0 FROM ({left.text}) AS first_rows ({columns})) UNION ALL "
        f"(SELECT {nexts}, tsql.level({_LEVEL}, {writer.levels}) FROM ({right.text}) AS next_rows ({columns}, {_LEVEL}))) "
        f"SELECT {columns} FROM {own}",
        [output._replace(type=of) for output, of in zip(left.outputs, types, strict=True)],
    )


def _cast(text: str, of: SqlType | None) -> str:
    return text if of is None else f"{text}::{postgres_type(of)}"


def _as_first(name: str, column: str, first: SqlType | None, given: Output) -> str:
    """A column of the rows that are found next, as the first rows have it.

    Raises:
        TsqlError: 240 it has another type there. Lengths of strings and bytes may differ.
    """
    own, next_ = Sql("", first), Sql("", None if given.is_null else given.type)
    if own.type is None or next_.type is None:
        return _cast(identifier(column), first if given.is_null else None)
    is_alike = own.kind == next_.kind and own.kind in ("string", "binary")
    if not is_alike and own.type != next_.type:
        raise TsqlError(
            240, f'Types don\'t match between the anchor and the recursive part in column "{column}" of recursive query '
            f'"{name}".',
        )  # fmt: skip
    return identifier(column) if is_alike else _cast(identifier(column), first)


def _with_level(names: list[str], types: list[SqlType | None]) -> dict[str, Column] | None:
    """The columns of one that reads itself, as its first rows have them; None when nobody knows a type."""
    known = {name.lower(): Column(name, of) for name, of in zip(names, types, strict=True) if of is not None}
    return {**known, _LEVEL: Column(_LEVEL, INT)} if len(known) == len(names) else None


def _read_directly(node: exp.Select, name: str) -> exp.Table | None:
    """The common table expression of that name, where a query reads it in FROM or joins it."""
    from_ = node.args.get("from_")
    sources = [*([from_.this] if from_ is not None else []), *(join.this for join in node.args.get("joins") or [])]
    for each in sources:
        if not isinstance(each, exp.Table) or each.args.get("db") or not isinstance(each.this, exp.Identifier):
            continue
        own = each.this
        if own.name.lower() == name.lower() and not own.args.get("temporary") and not own.args.get("global_"):
            return each
    return None


def _body(writer: Writer, node: exp.Expression, *, outermost: bool, into: str) -> Query:
    for_ = node.args.get("for_")
    if for_ is not None:
        kind = str(getattr(for_.args.get("kind"), "name", for_.args.get("kind"))).upper()
        text, of = (for_xml if kind == "XML" else for_json)(writer, node, for_)
        if not outermost:
            return Query(f"SELECT ({text}) AS {label('')}", [Output("", text, of)])
        name = f"{kind}_F52E2B61-18A1-11d1-B105-00805F49916B"
        document = (
            f"SELECT document AS {label(name)} FROM (SELECT ({text})) AS made (document) WHERE document IS NOT NULL"
        )
        return Query(document, [Output(name, text, of)])  # a result without rows, where the query has none
    if isinstance(node, exp.SetOperation):
        return _joined(writer, node, outermost=outermost, into=into)
    if isinstance(node, exp.Subquery):
        only(node, "this")
        return query(writer, node.this, outermost=outermost)
    if isinstance(node, exp.Select):
        return _select(writer, node, outermost=outermost, into=into)
    raise unsupported(node)


_SETS: dict[type[exp.Expression], str] = {exp.Union: "UNION", exp.Except: "EXCEPT", exp.Intersect: "INTERSECT"}


def _joined(writer: Writer, node: exp.SetOperation, *, outermost: bool, into: str) -> Query:
    only(node, "this", "expression", "distinct", "order", "limit", "offset", "with_")
    left = query(writer, node.this, outermost=outermost, into=into)
    right = query(writer, node.expression, outermost=False)
    word = _SETS[type(node)] + ("" if node.args.get("distinct") else " ALL")
    tail = _tail(writer, node, _named(left.outputs, outermost))
    outputs = left.outputs
    texts = left.text, right.text
    if outputs is not None and right.outputs is not None and len(outputs) == len(right.outputs):
        columns = [_matched(place, *pair) for place, pair in enumerate(zip(outputs, right.outputs, strict=True))]
        names = [(label if outermost else _inner)(each.name) for each in outputs]
        texts = (
            _brought(texts[0], [text for _, text, _ in columns], names),
            _brought(texts[1], [text for _, _, text in columns], names),
        )
        outputs = [
            one._replace(type=of, text=other.text if one.is_null else one.text)
            for (of, _, _), one, other in zip(columns, outputs, right.outputs, strict=True)
        ]
    return Query(f"({texts[0]}) {word} ({texts[1]}){tail}", outputs)


def _matched(place: int, left: Output, right: Output) -> tuple[SqlType | None, str, str]:
    """The type of a column of two queries, and what each of them has there, c0, c1, ..., brought to that.

    PostgreSQL joins neither strings with what is none, nor a NULL that two queries have joined before.
    """
    own = f"c{place}"
    values = [Sql(own, each.type) for each in (left, right)]
    kinds = {value.kind for value in values}
    if "string" in kinds and kinds & {"number", "date", "uniqueidentifier"}:
        of, (one, other) = alike(values)
        return of, one, other
    of = either(left.type, right.type)
    cast = own if of is None or "string" in kinds else f"{own}::{postgres_type(of)}"
    return of, cast if left.is_null else own, cast if right.is_null else own


def _brought(text: str, columns: list[str], names: list[str]) -> str:
    """A query, its columns as they are called here, where that changes something."""
    fields = [f"c{place}" for place in range(len(columns))]
    if columns == fields:
        return text
    listed = ", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True))
    return f"SELECT {listed} FROM ({text}) AS tsql_part ({', '.join(fields)})"


def _named(outputs: list[Output] | None, outermost: bool) -> dict[str, str]:
    """What ORDER BY calls the columns of the result."""
    make = label if outermost else identifier
    return {output.name.lower(): make(output.name) for output in outputs or [] if output.name}


def _select(writer: Writer, node: exp.Select, *, outermost: bool, into: str) -> Query:
    only(node, *_QUERY, "with_", "into")
    if node.args.get("into") is not None and not into:
        raise TsqlError(156, "Incorrect syntax near the keyword 'INTO'.", severity=15)
    if not node.expressions:
        raise TsqlError(102, "Incorrect syntax near 'SELECT'.", severity=15)
    found = read_from(writer, node.args.get("from_"), node.args.get("joins") or [])
    with writer.query(found.sources):
        outputs = [each for part in node.expressions for each in output(writer, part, found, outermost=outermost)]
        assigned, writer.assigned = writer.assigned, {}  # seen to the right in the list, and nowhere else
        try:
            return Query(_text(writer, node, found, outputs, outermost), _known(outputs))
        finally:
            writer.assigned = assigned


def _known(outputs: list[Output]) -> list[Output] | None:
    return None if any(output.name == STAR for output in outputs) else outputs


def _text(writer: Writer, node: exp.Select, found: From, outputs: list[Output], outermost: bool) -> str:
    parts = ["SELECT" + (" DISTINCT" if node.args.get("distinct") else "")]
    if node.args.get("distinct") is not None:
        only(node.args["distinct"])
    parts.append(", ".join(each.text for each in outputs))
    locking, from_text = locked(writer, node, found)
    if from_text:
        parts.append(from_text)
    if node.args.get("where"):
        parts.append("WHERE " + write_predicate(writer, node.args["where"].this))
    if node.args.get("group"):
        parts.append(_group(writer, node.args["group"]))
    if node.args.get("having"):
        parts.append("HAVING " + write_predicate(writer, node.args["having"].this))
    windows = windows_text(writer, node.args.get("windows") or [])
    plain = {each.name.lower() for each in node.expressions if isinstance(each, exp.Column)}
    named = {name: text for name, text in _named(outputs, outermost).items() if name not in plain}
    whole = " ".join(parts) + windows
    return whole + _tail(writer, node, named, whole) + locking


def locked(writer: Writer, node: exp.Select, found: From) -> tuple[str, str]:
    """FOR UPDATE as the hints have it, and FROM; where PostgreSQL cannot lock so, FROM locks by itself."""
    asked = [(source, hints) for source, hints in found.hints if hints.locks_rows or hints.skips_locked]
    for source, hints in found.hints:
        lock_before(writer, hints, source.table, source.alias, node.args.get("where"))
    if not asked:
        return "", found.text
    grouped = any(node.args.get(name) for name in ("group", "having", "distinct")) or _aggregates(node)
    if not grouped:
        return "".join(
            f" FOR UPDATE OF {identifier(source.alias)}{_waiting(hints)}" for source, hints in asked
        ), found.text
    text = found.text
    for source, hints in asked:
        plain = f"{source.table} AS {identifier(source.alias)}"
        text = text.replace(
            plain, f"(SELECT * FROM {source.table} FOR UPDATE{_waiting(hints)}) AS {identifier(source.alias)}", 1
        )
    return "", text


def _waiting(hints: Hints) -> str:
    return " SKIP LOCKED" if hints.skips_locked else "" if hints.waits else " NOWAIT"


def _aggregates(node: exp.Select) -> bool:
    return any(
        isinstance(each, exp.AggFunc) and each.find_ancestor(exp.Select) is node
        for part in node.expressions
        for each in part.walk()
    ) or any(isinstance(each, exp.Window) for part in node.expressions for each in part.walk())


def _group(writer: Writer, node: exp.Group) -> str:
    only(node, "expressions", "rollup", "cube")
    groups = ", ".join(_grouping(writer, each) for each in node.expressions)
    for form in ("rollup", "cube"):
        if node.args.get(form):  # the old spelling: GROUP BY a, b WITH ROLLUP
            groups = f"{form}({groups})"
    return "GROUP BY " + groups


def _grouping(writer: Writer, node: exp.Expression) -> str:
    """What GROUP BY takes: a value, a list of them, or what stands for several such lists."""
    if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
        form = {exp.Rollup: "rollup", exp.Cube: "cube", exp.GroupingSets: "grouping sets"}.get(type(node), "")
        return f"{form}({', '.join(_grouping(writer, each) for each in node.expressions)})"
    if isinstance(node, exp.Paren):
        return f"({_grouping(writer, node.this)})"
    return write_value(writer, node).text


def _tail(writer: Writer, node: exp.Expression, named: dict[str, str], whole: str = "") -> str:
    """ORDER BY, OFFSET, and TOP or FETCH; `whole` is the query before them, of which TOP ... PERCENT takes a part."""
    text = ""
    order, limit, offset = (node.args.get(name) for name in ("order", "limit", "offset"))
    if order is not None:
        text += " " + order_text(writer, order, named)
    if offset is not None:
        text += f" OFFSET {_row_count(writer, offset.expression, 'rows_left_out')}"
    if limit is not None:
        text += _limit(writer, limit, whole, ordered=order is not None)
    return text


def _limit(writer: Writer, node: exp.Expression, whole: str, *, ordered: bool) -> str:
    options = node.args.get("limit_options")
    said = node.args["count"] if isinstance(node, exp.Fetch) else node.expression
    number = rows_taken(writer, Top(said, options is not None and bool(options.args.get("percent"))), whole)
    if options is not None and options.args.get("with_ties"):
        if not ordered:
            raise TsqlError(1062, "The TOP N WITH TIES clause is not allowed without a corresponding ORDER BY clause.")
        return f" FETCH FIRST ({number}) ROWS WITH TIES"
    return f" LIMIT {number}"


def rows_taken(writer: Writer, top: Top, whole: str) -> str:
    """How many rows TOP takes of `whole`, a query."""
    return f"({_part_of(writer, top.said, whole)})" if top.is_percent else _row_count(writer, top.said, "rows_taken")


def _part_of(writer: Writer, node: exp.Expression, whole: str) -> str:
    """How many rows so many percent of a query are, rounded up.

    Raises:
        TsqlError: 1031 it is no percentage.
    """
    inside = _inside(node)
    value = write_value(writer, inside)
    is_constant = isinstance(inside, exp.Literal | exp.Neg)
    if value.kind not in ("number", None) or (is_constant and not 0 <= float(inside.sql()) <= 100):
        raise TsqlError(1031, "Percent values must be between 0 and 100.", severity=15)
    return f"SELECT ceil(count(*) * ({value.text})::numeric / 100)::bigint FROM ({whole}) AS tsql_whole"


def limited(writer: Writer, text: str) -> str:
    """A query of a statement that SET ROWCOUNT ends after so many rows."""
    most = writer.scope.most
    return f"SELECT * FROM ({text}) AS tsql_limited LIMIT {most}" if most else text


def _inside(node: exp.Expression) -> exp.Expression:
    """The value that stands between the parentheses of TOP."""
    inside = node.this if isinstance(node, exp.Paren) else node
    return exp.Subquery(this=inside) if isinstance(inside, exp.Select | exp.SetOperation) else inside


def _row_count(writer: Writer, node: exp.Expression, judge: str) -> str:
    """How many rows: a number, or an expression of one, which a function of PostgreSQL judges."""
    value = write_value(writer, _inside(node))
    if value.kind not in ("number", None):
        raise TsqlError(
            1060, "The number of rows provided for a TOP or FETCH clauses row count parameter must be an integer."
        )
    return value.text if value.text.isdigit() else f"tsql.{judge}(({value.text})::bigint)"


def output(writer: Writer, node: exp.Expression, found: From, *, outermost: bool) -> list[Output]:
    """A part of the list of SELECT: a column of the result, or those that a star stands for."""
    if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
        return _star(writer, node, found, outermost=outermost)
    name, inside = output_name(node)
    if isinstance(inside, exp.EQ):
        raise TsqlError(
            141 if isinstance(inside.this, exp.Parameter) else 102,
            "A SELECT statement that assigns a value to a variable must not be combined with data-retrieval operations."
            if isinstance(inside.this, exp.Parameter)
            else "Incorrect syntax near '='.",
            severity=15,
        )
    value = write_value(writer, inside)
    text = f"{_shown(value)} AS {label(name) if outermost else _inner(name)}"
    return [Output(name, text, value.type, _source(inside, found), _column(inside, found))]


def _source(node: exp.Expression, found: From) -> str:
    if not isinstance(node, exp.Column):
        return ""
    if node.table:
        return node.table.lower()
    having = [source.alias for source in found.sources if source.columns and node.name.lower() in source.columns]
    return having[0] if having else ""


def _column(node: exp.Expression, found: From) -> Column | None:
    source = _source(node, found)
    columns = next((each.columns for each in found.sources if each.alias == source), None) if source else None
    return (columns or {}).get(node.name.lower())


def _shown(value: Sql) -> str:
    return value.text if value.type is None else closed_text(value)


def _inner(name: str) -> str:
    return identifier(name) if name else label("")


def _star(writer: Writer, node: exp.Expression, found: From, *, outermost: bool) -> list[Output]:
    prefix = node.table if isinstance(node, exp.Column) else ""
    alias = prefix.lower()
    only(node, "this", "table", "db", "catalog")
    sources = [source for source in found.sources if not alias or source.alias == alias]
    if not sources:
        if alias:
            raise TsqlError(
                107,
                f"The column prefix '{prefix}' does not match with a table name or alias name used in the query.",
            )
        raise TsqlError(263, "Must specify table to select from.")
    return [each for source in sources for each in _columns_of(writer, source, outermost)]


def _columns_of(writer: Writer, source: Source, outermost: bool) -> list[Output]:
    prefix = writer.alias(source.alias)
    if source.columns is None or (source.is_catalog and len(source.columns) < 3):
        return [Output(STAR, f"{prefix}.*", None)]
    make = label if outermost else identifier
    return [
        Output(
            column.name,
            f"{moment_text(f'{prefix}.{identifier(column.name)}', column)} AS {make(column.name)}",
            column.type,
            source.alias,
            column,
        )
        for column in source.columns.values()
        if column.name not in ("broker_database", _LEVEL)
    ]
