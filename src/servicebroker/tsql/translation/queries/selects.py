"""SELECT: a single query, or several combined by UNION, EXCEPT and INTERSECT."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.collations import Collation, common_collation
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.documents.for_json import for_json
from servicebroker.tsql.translation.documents.for_xml import for_xml
from servicebroker.tsql.translation.queries.aggregates import order_text, windows_text
from servicebroker.tsql.translation.queries.folded_rows import (
    combine_rows,
    group_keys,
    groups_ignore_case,
    keep_distinct_rows,
    order_rows,
)
from servicebroker.tsql.translation.queries.recursion import check_recursion, has_exact_type
from servicebroker.tsql.translation.queries.results import (
    UNKNOWN_STAR,
    Output,
    Query,
    check_named,
    derived_column,
    output_name,
)
from servicebroker.tsql.translation.queries.sources import From, read_from
from servicebroker.tsql.translation.reading.hints import Hints, add_locks
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    allow_only,
    folded_text,
    node_not_supported,
    quote_identifier,
    quote_label,
    timestamp_text,
    typed_text,
    with_offset,
    write_predicate,
    write_value,
    writes_query,
)
from servicebroker.tsql.translation.values.casts import document_moment
from servicebroker.tsql.translation.values.comparability import check_combined, check_distinct, check_sortable
from servicebroker.tsql.translation.values.type_precedence import unify_types, union_type
from servicebroker.tsql.types import INT, NVARCHAR, SqlType, postgres_type

_SELECT_CLAUSES = (
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
    """TOP of a statement that changes rows, or of a query."""

    amount: exp.Expression
    is_percent: bool


def translate_query(writer: Writer, node: exp.Expression, *, outermost: bool, into: str = "") -> Query:
    """Translate a query with its common table expressions."""
    with_ = node.args.get("with_")
    if with_ is not None:
        level: dict[str, dict[str, Column] | None] = {}
        writer.common_tables.append(level)
        try:
            text = write_with(writer, with_, level)
            inner = _write_body(writer, node, outermost=outermost, into=into)
            return Query(f"{text} {inner.text}", inner.outputs)
        finally:
            writer.common_tables.pop()
    return _write_body(writer, node, outermost=outermost, into=into)


@writes_query(exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery)
def _write_nested_query(writer: Writer, node: exp.Expression) -> Query:
    return translate_query(writer, node, outermost=False)


class CommonTable(NamedTuple):
    """A common table expression. `names` are its listed columns, `text` is the SQL of its query."""

    name: str
    names: list[str]
    query: exp.Expression
    text: str


def write_with(writer: Writer, node: exp.With, level: dict[str, dict[str, Column] | None]) -> str:
    """Write WITH name AS (...), ..."""
    return with_text(translate_common_tables(writer, node, level))


def with_text(tables: list[CommonTable]) -> str:
    """Write WITH. PostgreSQL allows each expression to refer to itself under RECURSIVE."""
    parts = []
    for common_table in tables:
        columns = (
            f" ({', '.join(quote_identifier(column) for column in common_table.names)})" if common_table.names else ""
        )
        parts.append(f"{quote_identifier(common_table.name)}{columns} AS ({common_table.text})")
    return "WITH RECURSIVE " + ", ".join(parts)


def translate_common_tables(
    writer: Writer, node: exp.With, level: dict[str, dict[str, Column] | None]
) -> list[CommonTable]:
    """Translate common table expressions, and store their columns in `level`."""
    tables = []
    for item in node.expressions:
        alias = item.args["alias"]
        name, renamed = alias.name, [column.name for column in alias.args.get("columns") or []]
        level[name.lower()] = None  # unknown inside its own query
        check_recursion(item.this, name)
        inner = _count_recursion(writer, item.this, name, renamed, level) or translate_query(
            writer, item.this, outermost=False
        )
        check_named(inner.outputs, renamed, name)
        if inner.outputs is not None and all(output.type is not None for output in inner.outputs):
            column_names = renamed if len(renamed) == len(inner.outputs) else [output.name for output in inner.outputs]
            pairs = zip(column_names, inner.outputs, strict=True)
            level[name.lower()] = {
                column_name.lower(): derived_column(column_name, output.type, output)
                for column_name, output in pairs
                if output.type
            }
        tables.append(CommonTable(name, renamed, item.this, inner.text))
    return tables


_LEVEL_COLUMN = "tsql_level"  # extra column of a recursive common table expression


def _count_recursion(
    writer: Writer, node: exp.Expression, name: str, renamed: list[str], level: dict[str, dict[str, Column] | None]
) -> Query | None:
    """Write a recursive query that counts its levels, so that too many raise error 530.

    Return None for a query that is not recursive, and for one with a star over unknown columns.
    """
    if not isinstance(node, exp.Union) or node.args.get("distinct") or not isinstance(node.expression, exp.Select):
        return None
    recursive = node.expression.copy()
    itself = _find_self_reference(recursive, name)
    if itself is None or any(recursive.args.get(clause) for clause in ("distinct", "group", "limit", "with_")):
        return None
    recursive.append("expressions", exp.column(_LEVEL_COLUMN, itself.alias_or_name, quoted=True))
    left = translate_query(writer, node.this, outermost=False)
    if left.outputs is None:
        return None
    names = renamed if len(renamed) == len(left.outputs) else [output.name for output in left.outputs]
    types = [INT if output.is_null else output.type for output in left.outputs]
    level[name.lower()] = _add_level(names, types)
    right = translate_query(writer, recursive, outermost=False)
    if right.outputs is None or len(right.outputs) != len(names) + 1:
        level[name.lower()] = None
        return None
    columns, quoted_name = ", ".join(quote_identifier(column_name) for column_name in names), quote_identifier(name)
    firsts = ", ".join(
        _cast(quote_identifier(column_name), sql_type) for column_name, sql_type in zip(names, types, strict=True)
    )
    nexts = ", ".join(
        _match_anchor(name, *pair)
        for pair in zip(names, types, right.outputs, _exact_items(node.this, recursive), strict=False)
    )  # the last output is the level
    return Query(
        f"WITH RECURSIVE {quoted_name} ({columns}, {_LEVEL_COLUMN}) AS ((SELECT {firsts}, 0 FROM ({left.text}) AS first_rows ({columns})) UNION ALL "
        f"(SELECT {nexts}, tsql.level({_LEVEL_COLUMN}, {writer.max_recursion}) FROM ({right.text}) AS next_rows ({columns}, {_LEVEL_COLUMN}))) "
        f"SELECT {columns} FROM {quoted_name}",
        [output._replace(type=sql_type) for output, sql_type in zip(left.outputs, types, strict=True)],
    )


def _cast(text: str, sql_type: SqlType | None) -> str:
    return text if sql_type is None else f"{text}::{postgres_type(sql_type)}"


def _exact_items(anchor: exp.Expression, recursive: exp.Select) -> list[bool]:
    """Return for each column of the recursive part whether both lengths are known as SQL Server knows them."""
    first = anchor.unnest()
    pairs = zip_longest(first.expressions if isinstance(first, exp.Select) else (), recursive.expressions)
    return [left is not None and right is not None and all(map(has_exact_type, (left, right))) for left, right in pairs]


def _match_anchor(name: str, column: str, anchor_type: SqlType | None, recursive: Output, is_exact: bool) -> str:
    """Write a column of the recursive part with the type of the anchor's column.

    Raises:
        TsqlError: 240 the types differ. Lengths of strings and bytes may differ unless both are exact.
    """
    anchor, following = Sql("", anchor_type), Sql("", None if recursive.is_null else recursive.type)
    if anchor.type is None or following.type is None:
        return _cast(quote_identifier(column), anchor_type if recursive.is_null else None)
    is_alike = anchor.kind == following.kind and anchor.kind in ("string", "binary")
    is_alike = is_alike and not (is_exact and "sysname" not in (anchor.type.name, following.type.name))
    if not is_alike and anchor.type != following.type:
        raise TsqlError(
            240, f'Types don\'t match between the anchor and the recursive part in column "{column}" of recursive query '
            f'"{name}".',
        )  # fmt: skip
    return quote_identifier(column) if is_alike else _cast(quote_identifier(column), anchor_type)


def _add_level(names: list[str], types: list[SqlType | None]) -> dict[str, Column] | None:
    """Return the columns of a recursive expression, typed as in its anchor, or None if a type is unknown."""
    columns = {
        name.lower(): Column(name, sql_type)
        for name, sql_type in zip(names, types, strict=True)
        if sql_type is not None
    }
    return {**columns, _LEVEL_COLUMN: Column(_LEVEL_COLUMN, INT)} if len(columns) == len(names) else None


def _find_self_reference(node: exp.Select, name: str) -> exp.Table | None:
    """Return the table node by which a query reads the common table expression itself, or None."""
    from_ = node.args.get("from_")
    sources = [*([from_.this] if from_ is not None else []), *(join.this for join in node.args.get("joins") or [])]
    for source in sources:
        if not isinstance(source, exp.Table) or source.args.get("db") or not isinstance(source.this, exp.Identifier):
            continue
        identifier = source.this
        if (
            identifier.name.lower() == name.lower()
            and not identifier.args.get("temporary")
            and not identifier.args.get("global_")
        ):
            return source
    return None


def _write_body(writer: Writer, node: exp.Expression, *, outermost: bool, into: str) -> Query:
    """Write a query without its common table expressions: FOR XML, UNION, a nested query or SELECT."""
    for_ = node.args.get("for_")
    if for_ is not None:
        kind = str(getattr(for_.args.get("kind"), "name", for_.args.get("kind"))).upper()
        text, sql_type = (for_xml if kind == "XML" else for_json)(writer, node, for_)
        if not outermost:
            return Query(f"SELECT ({text}) AS {quote_label('')}", [Output("", text, sql_type)])
        name = f"{kind}_F52E2B61-18A1-11d1-B105-00805F49916B"
        document = f"SELECT document AS {quote_label(name)} FROM (SELECT ({text})) AS made (document) WHERE document IS NOT NULL"
        return Query(document, [Output(name, text, sql_type)])  # no rows instead of a NULL document
    if isinstance(node, exp.SetOperation):
        return _write_set_operation(writer, node, outermost=outermost, into=into)
    if isinstance(node, exp.Subquery):
        allow_only(node, "this")
        return translate_query(writer, node.this, outermost=outermost)
    if isinstance(node, exp.Select):
        return _write_select(writer, node, outermost=outermost, into=into)
    raise node_not_supported(node)


_SET_OPERATORS: dict[type[exp.Expression], str] = {exp.Union: "UNION", exp.Except: "EXCEPT", exp.Intersect: "INTERSECT"}


def _write_set_operation(writer: Writer, node: exp.SetOperation, *, outermost: bool, into: str) -> Query:
    """Write UNION, EXCEPT or INTERSECT. Columns of different types are converted."""
    allow_only(node, "this", "expression", "distinct", "order", "limit", "offset", "with_")
    writer.writes_document = False
    with writer.without_offsets():
        left = translate_query(writer, node.this, outermost=outermost, into=into)
        right = translate_query(writer, node.expression, outermost=False)
    operator, make = _SET_OPERATORS[type(node)], quote_label if outermost else _inner_label
    outputs = left.outputs
    texts = left.text, right.text
    if outputs is not None and right.outputs is not None and len(outputs) == len(right.outputs):
        columns = [_match_column(index, *pair) for index, pair in enumerate(zip(outputs, right.outputs, strict=True))]
        names = [make(output.name) for output in outputs]
        texts = (
            _rename_columns(texts[0], [text for _, text, _ in columns], names),
            _rename_columns(texts[1], [text for _, _, text in columns], names),
        )
        if node.args.get("distinct"):
            check_combined(sql_type for sql_type, _, _ in columns)
        outputs = [
            left_output._replace(
                type=sql_type,
                text=right_output.text if left_output.is_null else left_output.text,
                collation=common_collation((left_output.collation, right_output.collation), operator),
                value="",
            )
            for (sql_type, _, _), left_output, right_output in zip(columns, outputs, right.outputs, strict=True)
        ]
        if any(groups_ignore_case(writer, output) for output in outputs):
            text = f"({texts[0]}) {operator} ALL ({texts[1]})"
            if node.args.get("distinct"):
                text = combine_rows(writer, operator, texts, outputs, names)
            text = order_rows(writer, text, node.args.get("order"), outputs, names)
            return Query(text + _write_row_limit(writer, node, text), outputs)
    word = operator + ("" if node.args.get("distinct") else " ALL")
    tail = _write_tail(writer, node, _result_names(left.outputs, outermost))
    return Query(f"({texts[0]}) {word} ({texts[1]}){tail}", outputs)


def _match_column(index: int, left: Output, right: Output) -> tuple[SqlType | None, str, str]:
    """Return the common type of a column of two queries, and for each of them the converted column c0, c1, ...

    PostgreSQL combines neither strings with other types, nor the NULL of an inner UNION with a typed column.
    """
    field = f"c{index}"
    values = [Sql(field, operand.type) for operand in (left, right)]
    kinds = {value.kind for value in values}
    if "string" in kinds and kinds & {"number", "date", "uniqueidentifier"}:
        sql_type, (left_text, right_text) = unify_types(values)
        return sql_type, left_text, right_text
    sql_type = union_type(left.type, right.type)
    cast = field if sql_type is None or "string" in kinds else f"{field}::{postgres_type(sql_type)}"
    return sql_type, cast if left.is_null else field, cast if right.is_null else field


def _rename_columns(text: str, columns: list[str], names: list[str]) -> str:
    """Wrap a query to convert and rename its columns, unless nothing changes."""
    fields = [f"c{index}" for index in range(len(columns))]
    if columns == fields:
        return text
    select_list = ", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True))
    return f"SELECT {select_list} FROM ({text}) AS tsql_part ({', '.join(fields)})"


def _result_names(outputs: list[Output] | None, outermost: bool) -> dict[str, str]:
    """Return the result columns as ORDER BY refers to them."""
    make = quote_label if outermost else quote_identifier
    return {output.name.lower(): make(output.name) for output in outputs or [] if output.name}


def _write_select(writer: Writer, node: exp.Select, *, outermost: bool, into: str) -> Query:
    """Write a single SELECT."""
    allow_only(node, *_SELECT_CLAUSES, "with_", "into")
    if node.args.get("into") is not None and not into:
        raise TsqlError(156, "Incorrect syntax near the keyword 'INTO'.", severity=15)
    if not node.expressions:
        raise TsqlError(102, "Incorrect syntax near 'SELECT'.", severity=15)
    in_document, writer.writes_document = writer.writes_document, False
    from_clause = read_from(writer, node.args.get("from_"), node.args.get("joins") or [])
    with writer.query(from_clause.sources), group_keys(writer, node, from_clause.sources) as keys:
        with writer.grouped_by(keys):
            outputs = [
                output
                for part in node.expressions
                for output in write_output(writer, part, from_clause, outermost=outermost, in_document=in_document)
            ]
        assigned, writer.assigned = writer.assigned, {}  # visible in the select list only
        try:
            return Query(_write_text(writer, node, from_clause, outputs, outermost, keys), _known_outputs(outputs))
        finally:
            writer.assigned = assigned


def _known_outputs(outputs: list[Output]) -> list[Output] | None:
    return None if any(output.name == UNKNOWN_STAR for output in outputs) else outputs


def _write_text(
    writer: Writer, node: exp.Select, from_clause: From, outputs: list[Output], outermost: bool, keys: dict[str, str]
) -> str:
    """Write the clauses of a SELECT around its list of outputs. `keys` are the items of GROUP BY that ignore case."""
    is_distinct, is_folded = node.args.get("distinct") is not None, False
    if is_distinct:
        allow_only(node.args["distinct"])
        check_distinct(output.type for output in outputs)
        is_folded = _known_outputs(outputs) is not None and any(
            groups_ignore_case(writer, output) for output in outputs
        )
    parts = ["SELECT DISTINCT" if is_distinct and not is_folded else "SELECT"]
    parts.append(", ".join(output.text for output in outputs))
    locking, from_text = add_row_locks(writer, node, from_clause)
    if from_text:
        parts.append(from_text)
    if node.args.get("where"):
        parts.append("WHERE " + write_predicate(writer, node.args["where"].this))
    if node.args.get("group"):
        parts.append(_write_group(writer, node.args["group"]))
    _check_order(node.args.get("order"), outputs)
    with writer.grouped_by(keys):
        if node.args.get("having"):
            parts.append("HAVING " + write_predicate(writer, node.args["having"].this))
        whole = " ".join(parts) + windows_text(writer, node.args.get("windows") or [])
        if is_folded:
            labels = [(quote_label if outermost else _inner_label)(output.name) for output in outputs]
            whole = keep_distinct_rows(writer, whole, outputs, labels)
            whole = order_rows(writer, whole, node.args.get("order"), outputs, labels)
            return whole + _write_row_limit(writer, node, whole)
        if (
            writer.has_ordered_next_value and node.args.get("order") is not None
        ):  # numbers are drawn before rows are sorted
            labels = [(quote_label if outermost else _inner_label)(output.name) for output in outputs]
            whole = order_rows(writer, whole, node.args["order"], outputs, labels)
            return whole + _write_row_limit(writer, node, whole)
        plain = {item.unnest().name.lower() for item in node.expressions if isinstance(item.unnest(), exp.Column)}
        named = {name: text for name, text in _result_names(outputs, outermost).items() if name not in plain}
        if node.args.get("order") is not None and not is_distinct:
            named |= _folded_names(writer, outputs, named)
        return whole + _write_tail(writer, node, named, whole) + locking


def _check_order(order: exp.Expression | None, outputs: list[Output]) -> None:
    """Require result columns that ORDER BY may sort by, if it names them by number or alias.

    Raises:
        TsqlError: 305 xml, 306 text, ntext or image.
    """
    numbered: dict[str, Output] = {str(number): output for number, output in enumerate(outputs, 1)}
    named = {output.name.lower(): output for output in outputs if output.name}
    for item in order.expressions if order is not None else ():
        key = item.this
        is_name = isinstance(key, exp.Column) and not key.table
        output = named.get(key.name.lower()) if is_name else None
        if isinstance(key, exp.Literal) and not key.is_string:
            output = numbered.get(key.name)
        if output is not None:
            check_sortable(output.as_sql(""))


def _folded_names(writer: Writer, outputs: list[Output], named: dict[str, str]) -> dict[str, str]:
    """Return the SQL by which ORDER BY sorts result columns that ignore case, by their names and `#` numbers."""
    folded = [
        (number, output.name.lower(), f"lower({output.value})")
        for number, output in enumerate(outputs, 1)
        if output.value and groups_ignore_case(writer, output)
    ]
    numbers = {f"#{number}": text for number, _, text in folded}
    return numbers | {name: text for _, name, text in folded if name in named}


def add_row_locks(writer: Writer, node: exp.Select, from_clause: From) -> tuple[str, str]:
    """Return FOR UPDATE as the hints require, and FROM.

    If PostgreSQL does not allow FOR UPDATE in the query, FROM contains the locking query.
    """
    locking = [(source, hints) for source, hints in from_clause.hints if hints.locks_rows or hints.skips_locked]
    for source, hints in from_clause.hints:
        add_locks(writer, hints, source.table, source.alias, node.args.get("where"))
    if not locking:
        return "", from_clause.text
    grouped = any(node.args.get(name) for name in ("group", "having", "distinct")) or _has_aggregates(node)
    if not grouped:
        return "".join(
            f" FOR UPDATE OF {quote_identifier(source.alias)}{_wait_policy(hints)}" for source, hints in locking
        ), from_clause.text
    text = from_clause.text
    for source, hints in locking:
        plain = f"{source.table} AS {quote_identifier(source.alias)}"
        text = text.replace(
            plain,
            f"(SELECT * FROM {source.table} FOR UPDATE{_wait_policy(hints)}) AS {quote_identifier(source.alias)}",
            1,
        )
    return "", text


def _wait_policy(hints: Hints) -> str:
    return " SKIP LOCKED" if hints.skips_locked else "" if hints.waits else " NOWAIT"


def _has_aggregates(node: exp.Select) -> bool:
    return any(
        isinstance(inner, exp.AggFunc) and inner.find_ancestor(exp.Select) is node
        for part in node.expressions
        for inner in part.walk()
    ) or any(isinstance(inner, exp.Window) for part in node.expressions for inner in part.walk())


def _write_group(writer: Writer, node: exp.Group) -> str:
    allow_only(node, "expressions", "rollup", "cube")
    groups = ", ".join(_grouping(writer, item) for item in node.expressions)
    for form in ("rollup", "cube"):
        if node.args.get(form):  # the old spelling: GROUP BY a, b WITH ROLLUP
            groups = f"{form}({groups})"
    return "GROUP BY " + groups


def _grouping(writer: Writer, node: exp.Expression) -> str:
    """Write an item of GROUP BY: a value, a list, or ROLLUP, CUBE and GROUPING SETS."""
    if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
        form = {exp.Rollup: "rollup", exp.Cube: "cube", exp.GroupingSets: "grouping sets"}.get(type(node), "")
        return f"{form}({', '.join(_grouping(writer, item) for item in node.expressions)})"
    if isinstance(node, exp.Paren):
        return f"({_grouping(writer, node.this)})"
    value = write_value(writer, node)
    check_sortable(value)
    return folded_text(value) if writer.groups_ignore_case(value) else value.text


def _write_tail(writer: Writer, node: exp.Expression, named: dict[str, str], whole: str = "") -> str:
    """Write ORDER BY, OFFSET, and TOP or FETCH. `whole` is the query before them, whose rows TOP ... PERCENT counts."""
    order = node.args.get("order")
    text = f" {order_text(writer, order, named)}" if order is not None else ""
    return text + _write_row_limit(writer, node, whole)


def _write_row_limit(writer: Writer, node: exp.Expression, whole: str) -> str:
    """Write OFFSET, and TOP or FETCH."""
    text = ""
    order, limit, offset = (node.args.get(name) for name in ("order", "limit", "offset"))
    if offset is not None:
        text += f" OFFSET {_row_count(writer, offset.expression, 'rows_left_out')}"
    if limit is not None:
        text += _write_limit(writer, limit, whole, ordered=order is not None)
    return text


def _write_limit(writer: Writer, node: exp.Expression, whole: str, *, ordered: bool) -> str:
    options = node.args.get("limit_options")
    amount = node.args["count"] if isinstance(node, exp.Fetch) else node.expression
    number = row_count_sql(writer, Top(amount, options is not None and bool(options.args.get("percent"))), whole)
    if options is not None and options.args.get("with_ties"):
        if not ordered:
            raise TsqlError(1062, "The TOP N WITH TIES clause is not allowed without a corresponding ORDER BY clause.")
        return f" FETCH FIRST ({number}) ROWS WITH TIES"
    return f" LIMIT {number}"


def row_count_sql(writer: Writer, top: Top, whole: str) -> str:
    """Write the number of rows that TOP takes from the query `whole`."""
    return (
        f"({_percent_sql(writer, top.amount, whole)})"
        if top.is_percent
        else _row_count(writer, top.amount, "rows_taken")
    )


def _percent_sql(writer: Writer, node: exp.Expression, whole: str) -> str:
    """Write the number of rows for a percentage of a query, rounded up.

    Raises:
        TsqlError: 1031 the value is not a percentage.
    """
    inside = _unwrap_top(node)
    value = write_value(writer, inside)
    is_constant = isinstance(inside, exp.Literal | exp.Neg)
    if value.kind not in ("number", None) or (is_constant and not 0 <= float(inside.sql()) <= 100):
        raise TsqlError(1031, "Percent values must be between 0 and 100.", severity=15)
    return f"SELECT ceil(count(*) * ({value.text})::numeric / 100)::bigint FROM ({whole}) AS tsql_whole"


def apply_row_limit(writer: Writer, text: str) -> str:
    """Limit a query to the rows of SET ROWCOUNT."""
    row_limit = writer.scope.row_limit
    return f"SELECT * FROM ({text}) AS tsql_limited LIMIT {row_limit}" if row_limit else text


def _unwrap_top(node: exp.Expression) -> exp.Expression:
    """Return the value inside the parentheses of TOP."""
    inside = node.this if isinstance(node, exp.Paren) else node
    return exp.Subquery(this=inside) if isinstance(inside, exp.Select | exp.SetOperation) else inside


def _row_count(writer: Writer, node: exp.Expression, judge: str) -> str:
    """Write a number of rows: a constant, or an expression that a PostgreSQL function checks."""
    value = write_value(writer, _unwrap_top(node))
    if value.kind not in ("number", None):
        raise TsqlError(
            1060, "The number of rows provided for a TOP or FETCH clauses row count parameter must be an integer."
        )
    return value.text if value.text.isdigit() else f"tsql.{judge}(({value.text})::bigint)"


def write_output(
    writer: Writer, node: exp.Expression, from_clause: From, *, outermost: bool, in_document: bool = False
) -> list[Output]:
    """Write an item of the select list: a result column, or the columns of a star.

    In the query of a document, a datetimeoffset is text with its offset.
    """
    if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
        return _expand_star(writer, node, from_clause, outermost=outermost)
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
    if outermost:
        value = with_offset(writer, value)
    if in_document and value.offset is not None and value.type is not None:
        value = Sql(document_moment(value.text, value.type, value.offset()), NVARCHAR)
    text = f"{_result_text(value)} AS {quote_label(name) if outermost else _inner_label(name)}"
    return [
        Output(
            name, text, value.type, _source_alias(inside, from_clause), _source_column(inside, from_clause),
            typed_text(value), value.collation,
        )
    ]  # fmt: skip


def _source_alias(node: exp.Expression, from_clause: From) -> str:
    """Return the alias of the table that a column comes from, "" for any other expression."""
    if not isinstance(node, exp.Column):
        return ""
    if node.table:
        return node.table.lower()
    having = [source.alias for source in from_clause.sources if source.columns and node.name.lower() in source.columns]
    return having[0] if having else ""


def _source_column(node: exp.Expression, from_clause: From) -> Column | None:
    source = _source_alias(node, from_clause)
    columns = (
        next((visible.columns for visible in from_clause.sources if visible.alias == source), None) if source else None
    )
    return (columns or {}).get(node.name.lower())


def _result_text(value: Sql) -> str:
    return value.text if value.type is None else typed_text(value)


def _inner_label(name: str) -> str:
    return quote_identifier(name) if name else quote_label("")


def _expand_star(writer: Writer, node: exp.Expression, from_clause: From, *, outermost: bool) -> list[Output]:
    """Write the columns of a star. A table with unknown columns keeps the star."""
    prefix = node.table if isinstance(node, exp.Column) else ""
    alias = prefix.lower()
    allow_only(node, "this", "table", "db", "catalog")
    sources = [source for source in from_clause.sources if not alias or source.alias == alias]
    if not sources:
        if alias:
            raise TsqlError(
                107,
                f"The column prefix '{prefix}' does not match with a table name or alias name used in the query.",
            )
        raise TsqlError(263, "Must specify table to select from.")
    return [output for source in sources for output in _columns_of(writer, source, outermost)]


def _columns_of(writer: Writer, source: Source, outermost: bool) -> list[Output]:
    prefix = writer.alias(source.alias)
    if source.columns is None or (source.is_catalog and len(source.columns) < 3):
        return [Output(UNKNOWN_STAR, f"{prefix}.*", None)]
    make = quote_label if outermost else quote_identifier
    return [
        Output(
            column.name,
            f"{timestamp_text(f'{prefix}.{quote_identifier(column.name)}', column)} AS {make(column.name)}",
            column.type,
            source.alias,
            column,
            f"{prefix}.{quote_identifier(column.name)}",
            Collation(column.collation) if column.collation else None,
        )
        for column in source.columns.values()
        if column.name not in ("broker_database", _LEVEL_COLUMN)
    ]
