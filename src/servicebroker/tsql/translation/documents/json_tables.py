"""OPENJSON: a document as rows."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    allow_only,
    cast_to_text,
    quote_identifier,
    quote_string,
    write_value,
)
from servicebroker.tsql.translation.values.casts import cast_value, read_type
from servicebroker.tsql.types import INT, NVARCHAR, SqlType


def open_json(writer: Writer, node: exp.OpenJSON, alias: exp.Expression | None, sources: list[Source]) -> str:
    """Write OPENJSON(document [, path]) [WITH (column type ['path'] [AS JSON], ...)] in FROM."""
    allow_only(node, "this", "path", "expressions")
    document = write_value(writer, node.this)
    if document.kind not in ("string", None):
        document = cast_value(document, NVARCHAR)
    arguments = cast_to_text(document)
    path = node.args.get("path")
    if path:
        arguments += ", " + cast_to_text(write_value(writer, path))
    alias_name = alias.name if alias is not None and alias.name else "openjson"
    if not node.expressions:
        columns = {"key": NVARCHAR, "value": NVARCHAR, "type": INT}
        sources.append(Source(alias_name.lower(), {name: Column(name, sql_type) for name, sql_type in columns.items()}))
        return f"tsql.openjson({arguments}) AS {quote_identifier(alias_name)}"
    fields, columns_by_name = [], {}
    for item in node.expressions:
        name, sql_type, text = _field(item)
        fields.append(f"{text} AS {quote_identifier(name)}")
        columns_by_name[name.lower()] = Column(name, sql_type)
    sources.append(Source(alias_name.lower(), columns_by_name))
    rows = f"tsql.json_items({arguments}) AS document (item)"
    return f"LATERAL (SELECT {', '.join(fields)} FROM {rows}) AS {quote_identifier(alias_name)}"


def _field(node: exp.Expression) -> tuple[str, SqlType, str]:
    if not isinstance(node, exp.OpenJSONColumnDef):
        raise TsqlError(102, "Incorrect syntax in WITH of OPENJSON.", severity=15)
    allow_only(node, "this", "kind", "path", "as_json")
    name = node.name
    sql_type = read_type(node.args["kind"])
    path = node.args.get("path")
    written = path.name if isinstance(path, exp.Expression) else '$."' + name.replace('"', '\\"') + '"'
    whole = bool(node.args.get("as_json"))
    if whole and sql_type != NVARCHAR:
        raise TsqlError(13618, "AS JSON in WITH clause can only be specified for column of type nvarchar(max).")
    text = f"tsql.json_field(document.item, {quote_string(written)}, {'true' if whole else 'false'})"
    return name, sql_type, cast_value(Sql(text, NVARCHAR), sql_type).text
