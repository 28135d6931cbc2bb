"""FOR XML RAW, AUTO and PATH: the document is put together as text."""

from __future__ import annotations

import re
from itertools import groupby

from sqlglot import exp

from servicebroker.tsql.errors import TsqlError
from servicebroker.tsql.translation.documents import options_of, rows_of
from servicebroker.tsql.translation.selects import Output
from servicebroker.tsql.translation.writer import Writer, refused, string
from servicebroker.tsql.types import NVARCHAR, XML, SqlType

_KNOWN = frozenset(
    {"RAW", "AUTO", "PATH", "ROOT", "TYPE", "ELEMENTS", "ELEMENTS XSINIL", "ELEMENTS ABSENT", "BINARY BASE64"}
)
_INLINE = frozenset({"", "*", "text()", "node()", "data()"})
_NIL = "http://www.w3.org/2001/XMLSchema-instance"


def for_xml(writer: Writer, node: exp.Expression, clause: exp.Expression) -> tuple[str, SqlType]:
    """The query as one document: a scalar query, null without rows.

    Raises:
        TsqlError: 40515 for EXPLICIT, schemas, and AUTO over several tables.
    """
    options = options_of(clause, _KNOWN, "FOR XML")
    rows = rows_of(writer, node)
    name = _row_name(node, options)
    elements = any(option.startswith("ELEMENTS") for option in options) or "PATH" in options
    paths = [_path(each, elements, is_path="PATH" in options) for each in rows.outputs]
    members = [(path, f"c{number}", each) for number, (path, each) in enumerate(zip(paths, rows.outputs, strict=True))]
    nil = "ELEMENTS XSINIL" in options
    declared = _declared(writer, nil)
    root = (options["ROOT"] or "root") if "ROOT" in options else ""
    row = _element(name, members, "" if root else declared, nil) if name else _content(members, nil)
    text = f"string_agg({row}, '')"
    if root:
        text = f"{string(f'<{_name(root)}{declared}>')} || {text} || {string(f'</{_name(root)}>')}"
    return f"SELECT {text} FROM {rows.text}", XML if "TYPE" in options else NVARCHAR


Member = tuple[list[str], str, Output]


def _row_name(node: exp.Expression, options: dict[str, str]) -> str:
    for kind in ("RAW", "PATH"):
        if kind in options:
            given = options[kind] or "row"
            return "" if given == "''" else _name(given)
    from_ = node.args.get("from_")
    if from_ is None or node.args.get("joins"):
        raise refused("FOR XML AUTO over several tables", "Use FOR XML PATH, with a nested query for inner elements.")
    return _name(from_.this.alias_or_name)


def _declared(writer: Writer, nil: bool) -> str:
    found = dict(sorted(writer.namespaces.items()))
    if nil:
        found["xsi"] = _NIL
    return "".join(f' xmlns{":" if prefix else ""}{prefix}="{_escaped(uri)}"' for prefix, uri in found.items())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def _path(output: Output, elements: bool, *, is_path: bool) -> list[str]:
    if not is_path:
        if not output.name:
            raise TsqlError(
                6809,
                "Unnamed tables cannot be used as XML identifiers as well as unnamed columns cannot be used for attribute names.",
            )
        return [output.name if elements else f"@{output.name}"]
    return output.name.split("/") if output.name not in _INLINE else [output.name]


def _name(text: str) -> str:
    """A name of XML: signs that it cannot have are written as _x0020_."""
    found = re.sub(r"[^\w.:\-]", lambda sign: f"_x{ord(sign[0]):04X}_", text)
    return found if re.match(r"[^\W\d]", found) else f"_x{ord(found[0]):04X}_{found[1:]}"


def _element(name: str, members: list[Member], declared: str, nil: bool) -> str:
    """An element of which attributes come first."""
    attributes = [member for member in members if member[0][0].startswith("@")]
    rest = [member for member in members if not member[0][0].startswith("@")]
    parts = [string(f"<{name}{declared}")]
    parts += [
        f"coalesce({string(f' {_name(path[0][1:])}=' + chr(34))} || tsql.xml_attribute(tsql.xml_text({field})) || '\"', '')"
        for path, field, _ in attributes
    ]
    opening = " || ".join(parts)
    if not rest:
        return f"{opening} || '/>'"
    return f"{opening} || coalesce('>' || nullif({_content(rest, nil)}, '') || {string(f'</{name}>')}, '/>')"


def _content(members: list[Member], nil: bool) -> str:
    parts = []
    for inner, group in groupby(members, key=lambda member: (len(member[0]) > 1, member[0][0])):
        several = list(group)
        if not inner[0]:
            parts += [_leaf(path[0], field, output, nil) for path, field, output in several]
        else:
            below = [(path[1:], field, output) for path, field, output in several]
            fields = ", ".join(field for _, field, _ in below)
            parts.append(
                f"CASE WHEN num_nonnulls({fields}) = 0 THEN '' ELSE {_element(_name(inner[1]), below, '', nil)} END"
            )
    return "(" + (" || ".join(parts) or "''") + ")"


def _leaf(name: str, field: str, output: Output, nil: bool) -> str:
    inside = field if output.type == XML else f"tsql.xml_escaped(tsql.xml_text({field}))"
    if name.startswith("@"):
        raise TsqlError(
            6852,
            f"Attribute-centric column '{name}' must not come after a non-attribute-centric sibling in XML hierarchy in FOR XML PATH.",
        )
    if name in _INLINE:
        return f"coalesce({inside}, '')"
    whole = f"{string(f'<{_name(name)}>')} || {inside} || {string(f'</{_name(name)}>')}"
    otherwise = string(f'<{_name(name)} xsi:nil="true"/>') if nil else "''"
    return f"coalesce({whole}, {otherwise})"
