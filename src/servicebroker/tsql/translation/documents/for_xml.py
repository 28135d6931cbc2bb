"""FOR XML RAW, AUTO and PATH. The document is built as text."""

from __future__ import annotations

import re
from itertools import groupby, takewhile

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.documents.document_options import read_options, translate_rows
from servicebroker.tsql.translation.queries.results import Output
from servicebroker.tsql.translation.text_writer import Writer, quote_string
from servicebroker.tsql.translation.values.casts import document_moment, scaled_text
from servicebroker.tsql.types import NVARCHAR, VARIANT, XML, SqlType

_OPTIONS = frozenset(
    {"RAW", "AUTO", "PATH", "ROOT", "TYPE", "ELEMENTS", "ELEMENTS XSINIL", "ELEMENTS ABSENT", "BINARY BASE64"}
)
_INLINE_NAMES = frozenset({"", "*", "text()", "node()", "data()"})
# delimit values of data(), so that a blank can be put between adjacent ones; XML cannot contain these characters
_DATA_BEGIN, _DATA_END = "chr(1)", "chr(2)"
_INSTRUCTION = re.compile(r"processing-instruction\(([\w.\-]+)\)")
_XSI_NAMESPACE = "http://www.w3.org/2001/XMLSchema-instance"


def for_xml(writer: Writer, node: exp.Expression, clause: exp.Expression) -> tuple[str, SqlType]:
    """Write the query as one document: a scalar query, null for no rows.

    Raises:
        TsqlError: 40515 EXPLICIT and schemas, 6800 AUTO without a table.
    """
    options = read_options(clause, _OPTIONS, "FOR XML")
    rows = translate_rows(writer, node)
    elements = any(option.startswith("ELEMENTS") for option in options) or "PATH" in options
    paths = [_element_path(output, elements, is_path="PATH" in options) for output in rows.outputs]
    members = [
        (path, f"c{number}", output) for number, (path, output) in enumerate(zip(paths, rows.outputs, strict=True))
    ]
    nil = "ELEMENTS XSINIL" in options
    declared = _namespace_declarations(writer, nil)
    root = (options["ROOT"] or "root") if "ROOT" in options else ""
    on_top = "" if root else declared
    if "AUTO" in options:
        text, source = _write_nested(_levels(node, members), rows.text, on_top, nil)
    else:
        name = _row_name(options)
        row = _write_element(name, members, on_top, nil) if name else _write_content(members, nil)
        text, source = f"string_agg({row}, '')", rows.text
    if any(path[-1] == "data()" for path in paths):
        text = f"translate(replace({text}, {_DATA_END} || {_DATA_BEGIN}, ' '), {_DATA_BEGIN} || {_DATA_END}, '')"
    if root:
        text = f"{quote_string(f'<{_xml_name(root)}{declared}>')} || {text} || {quote_string(f'</{_xml_name(root)}>')}"
    is_typed = "TYPE" in options
    return f"SELECT tsql.xml_document({text}, {is_typed}) FROM {source}", XML if is_typed else NVARCHAR


Member = tuple[list[str], str, Output]


def _row_name(options: dict[str, str]) -> str:
    option = options["RAW" if "RAW" in options else "PATH"] or "row"
    return "" if option == "''" else _xml_name(option)


# ---------------------------------------------------------------- AUTO


def _levels(node: exp.Expression, members: list[Member]) -> list[tuple[str, list[Member]]]:
    """Group the columns by table, in the order in which the select list mentions the tables.

    A column of no table joins the group of the column before it.
    """
    names = _table_names(node)
    groups: dict[str, list[Member]] = {}
    source = next((output.source for _, _, output in members if output.source in names), next(iter(names)))
    for member in members:
        source = member[2].source if member[2].source in names else source
        groups.setdefault(source, []).append(member)
    return [(names[source], group_members) for source, group_members in groups.items()]


def _table_names(node: exp.Expression) -> dict[str, str]:
    """Return the tables of a query by name in lower case, with the names of their elements."""
    first = node
    while isinstance(first, exp.SetOperation):
        first = first.this
    from_ = first.args.get("from_")
    if from_ is None:
        raise TsqlError(6800, "FOR XML AUTO requires at least one table for generating XML tags. Use FOR XML RAW or add a "
                        "FROM clause with a table name.")  # fmt: skip
    tables = [from_.this, *(join.this for join in [*(first.args.get("joins") or []), *_inner_joins(from_.this)])]
    return {table.alias_or_name.lower(): _xml_name(_table_label(table)) for table in tables}


def _inner_joins(table: exp.Expression) -> list[exp.Expression]:
    return list(table.args.get("joins") or [])


def _table_label(table: exp.Expression) -> str:
    if isinstance(table, exp.Table) and not table.alias:
        return ".".join(part.name for part in table.parts)
    return table.alias_or_name


def _write_nested(levels: list[tuple[str, list[Member]]], rows: str, declared: str, nil: bool) -> tuple[str, str]:
    """Write the document and its FROM. Adjacent rows with equal outer columns share the outer elements."""
    *outer, (name, members) = levels
    leaf = _write_element(name, members, "" if outer else declared, nil)
    if not outer:
        return f"string_agg({leaf}, '')", rows
    opened = [
        _write_opening(name, members, "" if place else declared, nil) for place, (name, members) in enumerate(outer)
    ]
    numbered = f"SELECT row_number() OVER () AS place, document.* FROM {rows}"
    texts = ", ".join(f"{text} AS opened{level}" for level, text in enumerate(opened))
    source = f"SELECT place, {texts}, {leaf} AS inside FROM ({numbered}) document"
    changes = [
        f"opened{level} IS DISTINCT FROM lag(opened{level}) OVER (ORDER BY place)" for level in range(len(outer))
    ]
    begins = ", ".join(f"{' OR '.join(changes[: level + 1])} AS begins{level}" for level in range(len(outer)))
    source = f"SELECT *, {begins} FROM ({source}) document"
    groups = ", ".join(
        f"count(*) FILTER (WHERE begins{level}) OVER (ORDER BY place) AS group{level}" for level in range(len(outer))
    )
    source = f"SELECT *, {groups} FROM ({source}) document"
    for level in range(len(outer) - 1, -1, -1):
        outer_columns = "".join(
            f"min(opened{above}) AS opened{above}, min(group{above}) AS group{above}, " for above in range(level)
        )
        inside = (
            f"min(opened{level}) || string_agg(inside, '' ORDER BY place) || {quote_string(f'</{outer[level][0]}>')}"
        )
        source = f"SELECT {outer_columns}min(place) AS place, {inside} AS inside FROM ({source}) document GROUP BY group{level}"
    return "string_agg(inside, '' ORDER BY place)", f"({source}) document"


def _namespace_declarations(writer: Writer, nil: bool) -> str:
    namespaces = dict(sorted(writer.namespaces.items()))
    if nil:
        namespaces["xsi"] = _XSI_NAMESPACE
    return "".join(f' xmlns{":" if prefix else ""}{prefix}="{_escaped(uri)}"' for prefix, uri in namespaces.items())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def _element_path(output: Output, elements: bool, *, is_path: bool) -> list[str]:
    if not is_path:
        if not output.name:
            raise TsqlError(
                6809,
                "Unnamed tables cannot be used as XML identifiers as well as unnamed columns cannot be used for attribute names.",
            )
        return [output.name if elements else f"@{output.name}"]
    return output.name.split("/") if output.name not in _INLINE_NAMES else [output.name]


def _xml_name(text: str) -> str:
    """Return an XML name. Characters that are not allowed in it are written as _x0020_."""
    escaped = re.sub(r"[^\w.:\-]", lambda sign: f"_x{ord(sign[0]):04X}_", text)
    return escaped if re.match(r"[^\W\d]", escaped) else f"_x{ord(escaped[0]):04X}_{escaped[1:]}"


def _write_element(name: str, members: list[Member], declared: str, nil: bool) -> str:
    """Write an element."""
    start, rest = _write_start(name, members, declared)
    if not rest:
        return f"{start} || '/>'"
    return f"{start} || coalesce('>' || nullif({_write_content(rest, nil)}, '') || {quote_string(f'</{name}>')}, '/>')"


def _late_attribute(name: str) -> TsqlError:
    """Build error 6852: an attribute after text or elements of its element."""
    return TsqlError(
        6852,
        f"Attribute-centric column '{name}' must not come after a non-attribute-centric sibling in XML hierarchy in FOR "
        "XML PATH.",
    )


def _write_opening(name: str, members: list[Member], declared: str, nil: bool) -> str:
    """Write the start of an element that contains other elements."""
    start, rest = _write_start(name, members, declared)
    return f"({start} || '>' || {_write_content(rest, nil)})" if rest else f"({start} || '>')"


def _write_start(name: str, members: list[Member], declared: str) -> tuple[str, list[Member]]:
    """Write name and attributes of an element. Return it with the members that are not attributes."""
    attributes = [member for member in members if member[0][0].startswith("@")]
    leading = takewhile(lambda member: member[0][0].startswith("@"), members)
    if len(list(leading)) < len(attributes):
        late = next(output for path, _, output in reversed(members) if path[0].startswith("@"))
        raise _late_attribute(late.name)
    parts = [quote_string(f"<{name}{declared}")]
    parts += [
        f"coalesce({quote_string(f' {_xml_name(path[0][1:])}=' + chr(34))} || tsql.xml_attribute({_value_text(field, output)}) || '\"', '')"
        for path, field, output in attributes
    ]
    return " || ".join(parts), [member for member in members if not member[0][0].startswith("@")]


def _write_content(members: list[Member], nil: bool) -> str:
    parts = []
    for inner, group in groupby(members, key=lambda member: (len(member[0]) > 1, member[0][0])):
        group_members = list(group)
        if not inner[0]:
            parts += [_write_leaf(path[0], field, output, nil) for path, field, output in group_members]
        else:
            below = [(path[1:], field, output) for path, field, output in group_members]
            fields = ", ".join(field for _, field, _ in below)
            parts.append(
                f"CASE WHEN num_nonnulls({fields}) = 0 THEN '' ELSE {_write_element(_xml_name(inner[1]), below, '', nil)} END"
            )
    return "(" + (" || ".join(parts) or "''") + ")"


def _value_text(field: str, output: Output) -> str:
    if output.type is not None and output.type.name in ("datetime2", "time"):
        field = scaled_text(field, output.type, "126")
    if output.type == VARIANT:
        return f"tsql.variant_in_xml({field})"
    if output.type is not None and output.type.name == "datetimeoffset":
        return document_moment(field, output.type)
    return f"tsql.xml_text({field})"


def _write_leaf(name: str, field: str, output: Output, nil: bool) -> str:
    inside = field if output.type == XML else f"tsql.xml_escaped({_value_text(field, output)})"
    if name.startswith("@"):
        raise _late_attribute(name)
    if name == "data()":
        return f"coalesce({_DATA_BEGIN} || {inside} || {_DATA_END}, '')"
    if name in _INLINE_NAMES:
        return f"coalesce({inside}, '')"
    instruction = _INSTRUCTION.fullmatch(name)
    if name == "comment()" or instruction is not None:
        begin, end = ("<!--", "-->") if instruction is None else (f"<?{instruction[1]} ", "?>")
        return f"coalesce({quote_string(begin)} || {_value_text(field, output)} || '{end}', '')"
    whole = f"{quote_string(f'<{_xml_name(name)}>')} || {inside} || {quote_string(f'</{_xml_name(name)}>')}"
    otherwise = quote_string(f'<{_xml_name(name)} xsi:nil="true"/>') if nil else "''"
    return f"coalesce({whole}, {otherwise})"
