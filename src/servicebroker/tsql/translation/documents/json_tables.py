"""OPENJSON: a document as rows."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    as_text,
    identifier,
    only,
    string,
    write_value,
)
from servicebroker.tsql.translation.values.conversions import converted, type_of_node
from servicebroker.tsql.types import INT, NVARCHAR, SqlType


def open_json(writer: Writer, node: exp.OpenJSON, alias: exp.Expression | None, sources: list[Source]) -> str:
    """OPENJSON(document [, path]) [WITH (column type ['path'] [AS JSON], ...)] in FROM."""
    only(node, "this", "path", "expressions")
    document = write_value(writer, node.this)
    if document.kind not in ("string", None):
        document = converted(document, NVARCHAR)
    arguments = as_text(document)
    path = node.args.get("path")
    if path:
        arguments += ", " + as_text(write_value(writer, path))
    known = alias.name if alias is not None and alias.name else "openjson"
    if not node.expressions:
        columns = {"key": NVARCHAR, "value": NVARCHAR, "type": INT}
        sources.append(Source(known.lower(), {name: Column(name, of) for name, of in columns.items()}))
        return f"tsql.openjson({arguments}) AS {identifier(known)}"
    fields, found = [], {}
    for each in node.expressions:
        name, of, text = _field(each)
        fields.append(f"{text} AS {identifier(name)}")
        found[name.lower()] = Column(name, of)
    sources.append(Source(known.lower(), found))
    rows = f"tsql.json_items({arguments}) AS document (item)"
    return f"LATERAL (SELECT {', '.join(fields)} FROM {rows}) AS {identifier(known)}"


def _field(node: exp.Expression) -> tuple[str, SqlType, str]:
    if not isinstance(node, exp.OpenJSONColumnDef):
        raise TsqlError(102, "Incorrect syntax in WITH of OPENJSON.", severity=15)
    only(node, "this", "kind", "path", "as_json")
    name = node.name
    of = type_of_node(node.args["kind"])
    path = node.args.get("path")
    written = path.name if isinstance(path, exp.Expression) else '$."' + name.replace('"', '\\"') + '"'
    whole = bool(node.args.get("as_json"))
    if whole and of != NVARCHAR:
        raise TsqlError(13618, "AS JSON in WITH clause can only be specified for column of type nvarchar(max).")
    text = f"tsql.json_field(document.item, {string(written)}, {'true' if whole else 'false'})"
    return name, of, converted(Sql(text, NVARCHAR), of).text
