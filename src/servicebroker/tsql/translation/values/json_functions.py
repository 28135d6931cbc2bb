"""JSON functions whose arguments are not plain values, and the test for values that already are JSON."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.aggregates import order_text
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX, NULL_ON_NULL
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    allow_only,
    quote_string,
    typed_text,
    write_value,
    writes_value,
)
from servicebroker.tsql.translation.values.casts import document_moment, scaled_text
from servicebroker.tsql.translation.values.functions import SPECIAL, check_count, write_argument
from servicebroker.tsql.types import INT, NVARCHAR, VARIANT, SqlType

_JSON_FUNCTIONS = frozenset({CALL_PREFIX + "json_query", CALL_PREFIX + "json_modify", CALL_PREFIX + "json_array"})


def is_json(node: exp.Expression) -> bool:
    """Check whether a value is JSON already and needs no quoting: the result of a JSON function or FOR JSON."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _JSON_FUNCTIONS
    if isinstance(node, exp.Subquery):
        kind = node.this.args.get("for_") and node.this.args["for_"].args.get("kind")
        return "JSON" in str(kind)
    return isinstance(node, exp.JSONObject | exp.JSONObjectAgg | exp.JSONArrayAgg)


def json_text(text: str, sql_type: SqlType | None, raw: bool) -> str:
    """Write a value as JSON text, NULL if it is NULL. `raw` means that it is JSON already."""
    if raw:
        return text
    if sql_type == VARIANT:
        return f"tsql.variant_in_json({text})"
    if sql_type is not None and sql_type.name == "bit":
        return f"CASE {text} WHEN 1 THEN 'true' WHEN 0 THEN 'false' END"
    if sql_type is not None and sql_type.name in ("datetime2", "time"):
        text = scaled_text(text, sql_type, "126")
    if sql_type is not None and sql_type.name == "datetimeoffset":
        text = document_moment(text, sql_type)
    return f"tsql.json_text({text})"


def _write_member(writer: Writer, node: exp.Expression, nulls: bool) -> str:
    value = write_value(writer, node)
    if value.is_untyped and value.type is None:
        return "'null'" if nulls else "NULL"
    text = json_text(typed_text(value), value.type, is_json(node))
    return f"coalesce({text}, 'null')" if nulls else text


def _escape_document(text: str) -> Sql:
    return Sql(f"tsql.json_escaped({text})", NVARCHAR)


@writes_value(exp.JSONObject)
def _json_object(writer: Writer, node: exp.JSONObject) -> Sql:
    members = ", ".join(_write_members(writer, node, "JSON_OBJECT"))
    return _escape_document(f"'{{' || concat_ws(',', {members or quote_string('')}) || '}}'")


def _write_members(writer: Writer, node: exp.Expression, name: str) -> list[str]:
    nulls = str(node.args.get("null_handling") or "NULL ON NULL").upper() != "ABSENT ON NULL"
    members = []
    for item in node.expressions:
        if not isinstance(item, exp.JSONKeyValue):
            raise TsqlError(102, f"Incorrect syntax near '{name}'. A member is key:value.", severity=15)
        key = write_argument(write_value(writer, item.this), "s")
        members.append(f"tsql.json_text({key}) || ':' || {_write_member(writer, item.expression, nulls)}")
    return members


@writes_value(exp.JSONObjectAgg)
def _json_object_of_group(writer: Writer, node: exp.JSONObjectAgg) -> Sql:
    allow_only(node, "expressions", "null_handling")
    members = _write_members(writer, node, "JSON_OBJECTAGG")
    if len(members) != 1:
        raise TsqlError(102, "Incorrect syntax near 'JSON_OBJECTAGG'. It takes one key:value.", severity=15)
    (member,) = members
    return _escape_document(f"CASE WHEN count(*) > 0 THEN '{{' || coalesce(string_agg({member}, ','), '') || '}}' END")


@writes_value(exp.JSONArrayAgg)
def _json_array_of_group(writer: Writer, node: exp.JSONArrayAgg) -> Sql:
    allow_only(node, "this", "order", "null_handling")
    nulls = str(node.args.get("null_handling") or "").upper() == "NULL ON NULL"
    order = f" {order_text(writer, node.args['order'])}" if node.args.get("order") else ""
    members = f"string_agg({_write_member(writer, node.this, nulls)}, ','{order})"
    return _escape_document(f"CASE WHEN count(*) > 0 THEN '[' || coalesce({members}, '') || ']' END")


def _json_array(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    nulls = bool(nodes) and isinstance(nodes[-1], exp.Anonymous) and nodes[-1].name == NULL_ON_NULL
    members = [_write_member(writer, node, nulls) for node in (nodes[:-1] if nulls else nodes)]
    return _escape_document(f"'[' || concat_ws(',', {', '.join(members) or quote_string('')}) || ']'")


def _json_modify(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "json_modify")
    document, path, value = (write_value(writer, node) for node in nodes)
    if value.is_untyped and value.type is None:
        new = "NULL::json"
    elif is_json(nodes[2]):
        new = f"{value.text}::json"
    elif value.type is not None and value.type.name == "bit":
        new = f"to_json({value.text} <> 0)"
    else:
        new = f"to_json({typed_text(value)})"
    return Sql(f"tsql.json_modify({write_argument(document, 's')}, {write_argument(path, 's')}, {new})", NVARCHAR)


_JSON_KINDS = frozenset({"value", "array", "object", "scalar"})


def _isjson(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if not 1 <= len(nodes) <= 2:
        raise argument_count_error("isjson", 1, 2)
    text = write_argument(write_value(writer, nodes[0]), "s")
    if len(nodes) == 1:
        return Sql(f"tsql.isjson({text})", INT)
    kind = nodes[1].name.lower()
    if kind not in _JSON_KINDS:
        raise TsqlError(102, f"Incorrect syntax near '{nodes[1].name[:60]}'.", severity=15)
    return Sql(f"tsql.isjson({text}, {quote_string(kind)})", INT)


SPECIAL |= {"json_array": _json_array, "json_modify": _json_modify, "isjson": _isjson}
