"""Aggregates and window functions."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    allow_only,
    cast_to_text,
    folded_text,
    node_not_supported,
    not_supported,
    operator_of,
    quote_identifier,
    typed_text,
    write_value,
    writes_value,
)
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.translation.values.comparability import check_counted, check_sortable, check_totaled
from servicebroker.tsql.translation.values.expressions import money_in_bounds
from servicebroker.tsql.translation.values.functions import SPECIAL, InvalidArgument, check_count
from servicebroker.tsql.types import BIGINT, FLOAT, INT, NVARCHAR, VARIANT, XML, SqlType


def _operand(writer: Writer, node: exp.Expression) -> tuple[str, Sql]:
    """Return "DISTINCT " or "", and the aggregated value."""
    if isinstance(node, exp.Distinct):
        allow_only(node, "expressions")
        if len(node.expressions) != 1:
            raise TsqlError(102, "Incorrect syntax near ','.", severity=15)
        return "DISTINCT ", write_value(writer, node.expressions[0])
    return "", write_value(writer, node)


@writes_value(exp.Count)
def _count(writer: Writer, node: exp.Count) -> Sql:
    allow_only(node, "this", "big_int")
    sql_type = BIGINT if node.args.get("big_int") else INT
    cast = "" if sql_type == BIGINT else "::integer"
    if isinstance(node.this, exp.Star):
        return Sql(f"count(*){cast}", sql_type)
    distinct, value = _operand(writer, node.this)
    check_counted(value, is_distinct=bool(distinct))
    text = folded_text(value) if distinct and writer.groups_ignore_case(value) else typed_text(value)
    return Sql(f"count({distinct}{text}){cast}", sql_type)


@writes_value(exp.Min, exp.Max)
def _extreme(writer: Writer, node: exp.Min | exp.Max) -> Sql:
    allow_only(node, "this")
    _, value = _operand(writer, node.this)
    if value.type == VARIANT:
        raise TsqlError(8117, "Operand data type sql_variant is invalid for min and max operator. Use CAST.")
    name = "min" if isinstance(node, exp.Min) else "max"
    check_totaled(value, name)
    if value.kind == "uniqueidentifier":
        return Sql(f"{name}({value.text}::text)::uuid", value.type)
    function = f"tsql.{name}_folded" if writer.groups_ignore_case(value) else name
    return Sql(f"{function}({typed_text(value)})", value.type)


@writes_value(exp.Sum, exp.Avg)
def _total(writer: Writer, node: exp.Sum | exp.Avg) -> Sql:
    return _write_total(writer, node, "")


def _write_total(writer: Writer, node: exp.Sum | exp.Avg, over: str) -> Sql:
    """Write SUM and AVG, with the result type of SQL Server. `over` is the OVER clause of each call."""
    allow_only(node, "this")
    distinct, value = _operand(writer, node.this)
    name = "sum" if isinstance(node, exp.Sum) else "avg"
    check_totaled(value, name)
    text = f"{name}({distinct}{value.text}){over}"
    kind = value.type.name if value.type else ""
    if kind in ("tinyint", "smallint", "int", "bit"):
        return Sql(f"trunc({text})::integer" if name == "avg" else f"{text}::integer", INT)
    if kind == "bigint":
        return Sql(f"trunc({text})::bigint", BIGINT)
    if value.kind == "string" or value.type == VARIANT:
        raise TsqlError(8117, f"Operand data type {kind} is invalid for {name} operator.")
    if value.type is None and name == "avg":  # AVG of integers is an integer
        whole = f"pg_typeof(sum({distinct}{value.text}){over}) = 'bigint'::regtype"
        return Sql(f"(CASE WHEN {whole} THEN trunc({text}) ELSE {text} END)")
    if kind in ("money", "smallmoney"):
        return money_in_bounds(text, SqlType("money"))
    if kind == "decimal" and value.type is not None:
        scale = max(value.type.scale or 0, 6) if name == "avg" else value.type.scale or 0
        return Sql(f"trunc({text}, {scale})" if name == "avg" else text, SqlType("decimal", None, 38, scale))
    return Sql(text, value.type)


_DEVIATIONS = {"stdev": "stddev_samp", "stdevp": "stddev_pop", "var": "var_samp", "varp": "var_pop"}


def _deviation(name: str) -> Callable[[Writer, list[exp.Expression]], Sql]:
    """Return the writer of a deviation or variance, computed as float."""

    def write(writer: Writer, nodes: list[exp.Expression]) -> Sql:
        check_count(nodes, 1, name)
        distinct, value = _operand(writer, nodes[0])
        if value.kind not in ("number", None):
            raise TsqlError(8117, f"Operand data type {value.type} is invalid for {name} operator.")
        return Sql(f"{_DEVIATIONS[name]}({distinct}{value.text}::float8)", FLOAT)

    return write


def _checksum(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 1, "checksum_agg")
    distinct, value = _operand(writer, nodes[0])
    if value.type is not None and value.type.name not in ("int", "smallint", "tinyint"):
        raise TsqlError(8117, f"Operand data type {value.type} is invalid for checksum_agg operator.")
    return Sql(f"bit_xor({distinct}{value.text}::integer)", INT)


def _grouping_bits(writer: Writer, nodes: list[exp.Expression]) -> str:
    """Write a call of grouping(), whose bits tell over which of the columns a row totals."""
    with writer.ungrouped():
        values = [write_value(writer, node) for node in nodes]
    texts = [folded_text(value) if writer.groups_ignore_case(value) else value.text for value in values]
    return f"grouping({', '.join(texts)})"


def _grouping(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 1, "grouping")
    return Sql(f"{_grouping_bits(writer, nodes)}::smallint", SqlType("tinyint"))


def _grouping_id(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if not nodes:
        raise argument_count_error("grouping_id", 1, 32)
    return Sql(_grouping_bits(writer, nodes), INT)


SPECIAL |= {
    **{name: _deviation(name) for name in _DEVIATIONS},
    "checksum_agg": _checksum,
    "grouping": _grouping,
    "grouping_id": _grouping_id,
}


def _percentile(writer: Writer, node: exp.WithinGroup, over: str) -> Sql | None:
    """Write PERCENTILE_CONT or PERCENTILE_DISC, which need OVER in SQL Server. Return None for another function.

    Raises:
        TsqlError: 10755 several expressions in ORDER BY, 8117 the ordered value is not a number.
    """
    call, order = node.this, node.expression
    name = call.name.lower().removeprefix(CALL_PREFIX) if isinstance(call, exp.Anonymous) else ""
    if name not in _PERCENTILES or not isinstance(order, exp.Order):
        return None
    check_count(call.expressions, 1, name)
    if len(order.expressions) != 1:
        raise TsqlError(10755, f"The function '{name.upper()}' takes one expression in ORDER BY.", severity=15)
    part, (by,) = write_value(writer, call.expressions[0]).text, order.expressions
    value, is_down = write_value(writer, by.this), str(bool(by.args.get("desc"))).lower()
    if name == "percentile_cont" and value.kind not in ("number", None):
        raise TsqlError(8117, f"Operand data type {value.type} is invalid for percentile_cont operator.")
    text, sql_type = (f"{value.text}::float8", FLOAT) if name == "percentile_cont" else (typed_text(value), value.type)
    values = f"array_agg({text}) FILTER (WHERE {text} IS NOT NULL) {over}"
    return Sql(f"tsql.{name}({values}, {part}::float8, {is_down})", sql_type)


_PERCENTILES = ("percentile_cont", "percentile_disc")


def _over_required(name: str) -> Callable[[Writer, list[exp.Expression]], Sql]:
    def write(writer: Writer, nodes: list[exp.Expression]) -> Sql:
        raise TsqlError(10753, f"The function '{name}' must have an OVER clause.", severity=15)

    return write


SPECIAL |= {name: _over_required(name) for name in _PERCENTILES}


@writes_value(exp.ApproxDistinct)
def _distinct_values(writer: Writer, node: exp.ApproxDistinct) -> Sql:
    allow_only(node, "this")
    value = write_value(writer, node.this)
    text = folded_text(value) if writer.groups_ignore_case(value) else typed_text(value)
    return Sql(f"count(DISTINCT {text})", BIGINT)


@writes_value(exp.GroupConcat)
def _string_agg(writer: Writer, node: exp.GroupConcat) -> Sql:
    allow_only(node, "this", "separator")
    order = ""
    operand = node.this
    if isinstance(operand, exp.Order):
        order = " " + order_text(writer, operand)
        operand = operand.this
    value = write_value(writer, operand)
    if value.type == XML:
        raise InvalidArgument(XML).named(writer, "string_agg", [operand])
    text = cast_value(value, NVARCHAR).text
    return Sql(f"string_agg({text}, {cast_to_text(write_value(writer, node.args['separator']))}{order})", NVARCHAR)


def order_text(writer: Writer, node: exp.Order, named: dict[str, str] | None = None) -> str:
    """Write ORDER BY. NULL sorts lowest, as in SQL Server. `named` maps names of result columns to their SQL."""
    parts = []
    for item in node.expressions:
        if not isinstance(item, exp.Ordered):
            raise node_not_supported(item)
        allow_only(item, "this", "desc", "nulls_first")
        parts.append(_ordered(writer, item, named or {}))
    return "ORDER BY " + ", ".join(parts)


def direction_text(node: exp.Expression) -> str:
    """Write the direction of an item of ORDER BY. NULL sorts lowest."""
    return " DESC NULLS LAST" if node.args.get("desc") else " NULLS FIRST"


def _ordered(writer: Writer, node: exp.Ordered, named: dict[str, str]) -> str:
    """Write an item of ORDER BY."""
    key = node.this
    down = direction_text(node)
    if isinstance(key, exp.Literal) and not key.is_string:
        return named.get(f"#{key.this}", str(key.this)) + down
    if isinstance(key, exp.Column) and not key.table and key.name.lower() in named:
        return named[key.name.lower()] + down
    if (
        isinstance(key, exp.Subquery)
        and isinstance(key.this, exp.Select)
        and isinstance(key.this.expressions[0], exp.Null)
    ):
        return "NULL::integer"
    value = write_value(writer, key)
    check_sortable(value)
    if writer.groups_ignore_case(value):
        return folded_text(value) + down
    if value.type == VARIANT:
        parts = ("variant_rank", "variant_number", "variant_raw")
        return ", ".join(f"tsql.{part}({value.text}){down}" for part in parts)
    if isinstance(key, exp.Column):
        source_column = writer.column(key.table.lower(), key.name.lower())
        if source_column is not None and not source_column[1].is_nullable:
            return value.text + (" DESC" if node.args.get("desc") else "")
    return typed_text(value) + down


UNORDERED = "unordered"  # marks a window of ours, whose rows come as they are
_ORDERED_FUNCTIONS: dict[type[exp.Expression], str] = {
    exp.RowNumber: "ROW_NUMBER",
    exp.Rank: "RANK",
    exp.DenseRank: "DENSE_RANK",
    exp.Ntile: "NTILE",
    exp.Lag: "LAG",
    exp.Lead: "LEAD",
    exp.FirstValue: "FIRST_VALUE",
    exp.LastValue: "LAST_VALUE",
    exp.CumeDist: "CUME_DIST",
    exp.PercentRank: "PERCENT_RANK",
}


@writes_value(exp.Window)
def _window(writer: Writer, node: exp.Window) -> Sql:
    """Write a function with OVER.

    A cast or rounding around the aggregate must enclose OVER too.
    """
    allow_only(node, "this", "partition_by", "order", "spec", "over", "alias")
    name = _ORDERED_FUNCTIONS.get(type(node.this))
    if name and not (node.args.get("order") or node.args.get("alias") or node.meta.get(UNORDERED)):
        raise TsqlError(4112, f"The function '{name}' must have an OVER clause with ORDER BY.", severity=15)
    over = f"OVER {_definition(writer, node)}"
    percentile = _percentile(writer, node.this, over) if isinstance(node.this, exp.WithinGroup) else None
    if percentile is not None:
        return percentile
    if isinstance(node.this, exp.Sum | exp.Avg):
        return _write_total(writer, node.this, f" {over}")
    function = _write_window_function(writer, node.this)
    text = function.text
    cast = text.find("::")  # count(*)::integer: OVER belongs after the call
    if cast > 0 and text.endswith("::integer"):
        return Sql(f"({text.removesuffix('::integer')} {over})::integer", function.type)
    return Sql(f"{text} {over}", function.type)


def windows_text(writer: Writer, nodes: list[exp.Expression]) -> str:
    """Write the WINDOW clause of a query, which names window definitions."""
    named = [f"{quote_identifier(node.this.name)} AS {_definition(writer, node, is_named=True)}" for node in nodes]
    return f" WINDOW {', '.join(named)}" if named else ""


def _definition(writer: Writer, node: exp.Expression, *, is_named: bool = False) -> str:
    """Write a window definition, which may extend a named one."""
    base = [quote_identifier(node.args["alias"].name)] if node.args.get("alias") else []
    parts = []
    if node.args.get("partition_by"):
        values = [write_value(writer, item) for item in node.args["partition_by"]]
        for value in values:
            check_sortable(value)
        texts = [folded_text(value) if writer.groups_ignore_case(value) else value.text for value in values]
        parts.append("PARTITION BY " + ", ".join(texts))
    if node.args.get("order"):
        parts.append(order_text(writer, node.args["order"]))
    spec = node.args.get("spec")
    if spec is not None:
        parts.append(_write_frame(spec))
    return base[0] if base and not parts and not is_named else f"({' '.join(base + parts)})"


_RANK_FUNCTIONS: dict[type[exp.Expression], str] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
}


def _write_window_function(writer: Writer, node: exp.Expression) -> Sql:
    """Write the function before OVER."""
    if isinstance(node, exp.WithinGroup):
        node = node.this
    if isinstance(node, exp.GroupConcat):
        raise TsqlError(
            4113,
            "The function 'STRING_AGG' is not a valid windowing function, and cannot be used with the OVER clause.",
        )
    if type(node) in _RANK_FUNCTIONS:
        if any(node.args.values()):
            raise node_not_supported(node)
        return Sql(f"{_RANK_FUNCTIONS[type(node)]}()", BIGINT)
    if isinstance(node, exp.CumeDist | exp.PercentRank):
        return Sql(f"{'cume_dist' if isinstance(node, exp.CumeDist) else 'percent_rank'}()", FLOAT)
    if isinstance(node, exp.Anonymous) and node.name.lower().removeprefix(CALL_PREFIX) in (
        *_DEVIATIONS,
        "checksum_agg",
    ):
        return write_value(writer, node)
    if isinstance(node, exp.Ntile):
        return Sql(f"ntile({write_value(writer, node.this).text}::integer)", BIGINT)
    if isinstance(node, exp.FirstValue | exp.LastValue):
        allow_only(node, "this")
        value = write_value(writer, node.this)
        return Sql(f"{'first' if isinstance(node, exp.FirstValue) else 'last'}_value({value.text})", value.type)
    if isinstance(node, exp.Lag | exp.Lead):
        allow_only(node, "this", "offset", "default")
        value = write_value(writer, node.this)
        rest = [write_value(writer, node.args["offset"]).text] if node.args.get("offset") else []
        if node.args.get("default"):
            default = write_value(writer, node.args["default"])
            if value.type is not None and value.kind != "string" and default.type != value.type:
                default = cast_value(default, value.type)
            rest.append(default.text)
        return Sql(f"{'lag' if isinstance(node, exp.Lag) else 'lead'}({', '.join([value.text, *rest])})", value.type)
    if isinstance(node, exp.Count | exp.Min | exp.Max):
        return write_value(writer, node)
    called = (
        node.name.removeprefix(CALL_PREFIX) if isinstance(node, exp.Anonymous) else operator_of(node).replace(" ", "_")
    )
    raise not_supported(f"{called.upper()[:60]} OVER")


def _write_frame(spec: exp.WindowSpec) -> str:
    """Write the frame of a window: ROWS or RANGE with its bounds."""
    allow_only(spec, "kind", "start", "start_side", "end", "end_side")

    def bound(limit: object, side: object) -> str:
        text = limit.name if isinstance(limit, exp.Expression) else str(limit)
        if text.upper() not in ("UNBOUNDED", "CURRENT ROW") and not text.isdigit():
            raise not_supported(f"The window frame bound {text[:40]}")
        return f"{text} {side}" if side else text

    start = bound(spec.args["start"], spec.args.get("start_side"))
    end = spec.args.get("end")
    if not end:
        return f"{spec.args['kind']} {start}"
    return f"{spec.args['kind']} BETWEEN {start} AND {bound(end, spec.args.get('end_side'))}"


_WINDOW_FUNCTIONS: dict[type[exp.Expression], str] = {
    exp.RowNumber: "row_number",
    exp.Ntile: "ntile",
    exp.CumeDist: "cume_dist",
    exp.PercentRank: "percent_rank",
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
}


@writes_value(*_WINDOW_FUNCTIONS)
def _without_over(writer: Writer, node: exp.Expression) -> Sql:
    raise TsqlError(10753, f"The function '{_WINDOW_FUNCTIONS[type(node)]}' must have an OVER clause.", severity=15)
