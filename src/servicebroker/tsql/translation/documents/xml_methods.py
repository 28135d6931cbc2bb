"""The methods of xml: value(), query(), exist() and nodes()."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.syntax import MUTATOR
from servicebroker.tsql.translation.definitions.user_functions import scalar_call
from servicebroker.tsql.translation.documents.xml_changes import write_modify
from servicebroker.tsql.translation.documents.xml_paths import (
    NotJsonpath,
    Path,
    Stage,
    jsonpath_variables,
    number_variables,
    read_path,
    to_jsonpath,
)
from servicebroker.tsql.translation.documents.xquery import (
    BINARY_ENCODINGS,
    BINARY_TYPES,
    Compiler,
    DynamicContext,
    is_single,
)
from servicebroker.tsql.translation.documents.xquery_parser import Call, Expression, SqlReference, parse
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    not_supported,
    quote_identifier,
    quote_string,
    typed_text,
    write_value,
)
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import BIT, INT, NVARCHAR, VARBINARY, XML, SqlType, parse_type

NODE = SqlType("xml_node")  # the type of nodes(): a tree in jsonb


def write_method(writer: Writer, node: exp.Dot) -> Sql:
    """Write a method call on a value, or a call of a user-defined function.

    Raises:
        TsqlError: 174 wrong number of arguments, 8137 modify() outside of SET, 2389 the path of value() may find
            several nodes.
    """
    call = node.expression
    if isinstance(call, exp.Identifier):
        return _write_owner(writer, node)
    if not isinstance(call, exp.Anonymous):
        raise not_supported("A name of this many parts", "Name columns as table.column.")
    name = call.name.lower()
    if name == MUTATOR and len(call.expressions) == 1:
        return write_modify(writer, _write_owner(writer, node.this), _literal(call.expressions[0]), _shown(node.this))
    if name == "modify":
        raise TsqlError(
            8137,
            "Incorrect use of the XML data type method 'modify'. A non-mutator method is expected in this context.",
        )
    if name not in ("value", "query", "exist"):
        return scalar_call(writer, node)
    arguments = list(call.expressions)
    if len(arguments) != (2 if name == "value" else 1):
        raise TsqlError(174, f"The {name} function requires {2 if name == 'value' else 1} argument(s).", severity=15)
    xml = _write_owner(writer, node.this)
    _check_xml(xml)
    query = parse(_literal(arguments[0]), writer.namespaces)
    to = parse_type(_literal(arguments[1])) if name == "value" else XML
    try:
        if isinstance(query, SqlReference):  # its bytes must be encoded in base64
            raise NotJsonpath
        path = to_jsonpath(query, number_variables(writer))
        xml = _start_of(writer, path, xml)
    except NotJsonpath:
        return _compute_method(writer, name, query, xml, to)
    if name == "value":
        return _value(writer, xml, path, to)
    if path.function:
        return _compute_method(writer, name, query, xml, to)
    if name == "exist":
        return Sql(_apply_path(writer, "tsql.xml_exist", xml, path), BIT)
    return Sql(_apply_path(writer, "tsql.xml_query", xml, path), XML)


def _compute_method(writer: Writer, name: str, query: Expression, xml: Sql, to: SqlType) -> Sql:
    """Write a method whose expression is not a plain path."""
    is_item = xml.type == NODE
    tree = xml.text if is_item else _tree(writer, xml)
    within = DynamicContext("one.node", "one.node", is_item=is_item)
    if name == "value" and not is_single(query):
        raise _not_singleton_error()
    if name == "exist":
        result = f"(jsonb_array_length({Compiler(writer).sequence(query, within)}) > 0)::integer::smallint"
    elif name == "query":
        result = f"tsql.xq_content({Compiler(writer).sequence(query, within)})"
    else:
        result = f"tsql.xq_string({Compiler(writer).sequence(query, within)})"
    text = f"(SELECT {result} FROM (SELECT {tree} AS node) AS one WHERE one.node IS NOT NULL)"
    if name == "value":
        _check_type(to)
        if to.name in BINARY_TYPES:
            return _decode_bytes(text, query.name if isinstance(query, Call) else "", to)
        return cast_value(Sql(text, NVARCHAR), to)
    return Sql(text, BIT if name == "exist" else XML)


def write_nodes_call(
    writer: Writer, node: exp.Expression, alias: exp.Expression | None, sources: list[Source]
) -> str | None:
    """Write nodes() in FROM, as T(c). Return None for any other node."""
    call = node.expression if isinstance(node, exp.Dot) else node.this if isinstance(node, exp.Table) else None
    if not isinstance(call, exp.Anonymous) or call.name.lower() != "nodes":
        return None
    columns = [column.name for column in alias.args.get("columns") or []] if alias is not None else []
    if alias is None or len(columns) != 1 or len(call.expressions) != 1:
        raise TsqlError(102, "Incorrect syntax: nodes() is written as nodes('path') AS name(column).", severity=15)
    xml = _write_owner(writer, node.this) if isinstance(node, exp.Dot) else _table_owner(writer, node)
    path = _path(writer, call.expressions[0], xml)
    if path.function:
        raise not_supported(f"nodes() of {path.function}()")
    xml = _start_of(writer, path, xml)
    sources.append(Source(alias.name.lower(), {columns[0].lower(): Column(columns[0], NODE)}))
    name = f"{quote_identifier(alias.name)} ({quote_identifier(columns[0])})"
    walk = _climb_stages if writer.has_parent_steps else _walk_stages
    if path.stages[-1].place is None and writer.has_parent_steps:
        tree = walk(writer, xml, path, path.stages[:-1])
        return f"{_climbing_items(writer, tree, path, path.stages[-1])} AS {name}"
    if path.stages[-1].place is None:
        return f"{_apply_path(writer, 'tsql.xml_items', xml, path)} AS {name}"
    return f"(SELECT item FROM (SELECT {walk(writer, xml, path, path.stages)} AS item) one WHERE item IS NOT NULL) AS {name}"


def _write_owner(writer: Writer, node: exp.Expression) -> Sql:
    """Write the value that a method is called on."""
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        inside = node.this
        table = inside if isinstance(inside, exp.Identifier) else inside.args.get("expression")
        if not isinstance(table, exp.Identifier):
            raise syntax_error(node.expression.name, 0)
        return write_value(writer, exp.Column(this=node.expression.copy(), table=table.copy()))
    return write_value(writer, node)


def _shown(node: exp.Expression) -> str:
    return f"@{node.name}" if isinstance(node, exp.Parameter) else node.name


def _table_owner(writer: Writer, node: exp.Expression) -> Sql:
    db, catalog = node.args.get("db"), node.args.get("catalog")
    if isinstance(db, exp.Parameter):
        return write_value(writer, db)
    if not isinstance(db, exp.Identifier):
        raise not_supported("nodes() of this value", "Put it into a variable of type xml first.")
    column = exp.Column(this=db.copy())
    if isinstance(catalog, exp.Identifier):
        column.set("table", catalog.copy())
    return write_value(writer, column)


def _literal(node: exp.Expression) -> str:
    if not isinstance(node, exp.Literal | exp.National) or (isinstance(node, exp.Literal) and not node.is_string):
        raise TsqlError(8172, "The argument of the XML data type method must be a string literal.")
    return str(node.this)


def _path(writer: Writer, node: exp.Expression, xml: Sql) -> Path:
    _check_xml(xml)
    return read_path(_literal(node), writer.namespaces, number_variables(writer))


def _check_xml(xml: Sql) -> None:
    if xml.type is not None and xml.type.name not in ("xml", "xml_node"):
        raise TsqlError(258, f"Cannot call methods on {xml.type.name}.", severity=15)


def _start_of(writer: Writer, path: Path, xml: Sql) -> Sql:
    """Return the start of a path: of an absolute one on a node of nodes(), the node's document.

    Raises:
        NeedsParents: the nodes have been written without their parents.
    """
    if not path.is_absolute or xml.type != NODE:
        return xml
    return Sql(writer.document_of(xml.text), NODE)


def _tree(writer: Writer, xml: Sql) -> str:
    if xml.type != NODE:
        return f"tsql.xml_tree({typed_text(xml)})"
    return f"({xml.text} - 'u')" if writer.has_parent_steps else xml.text


def _walk_stages(writer: Writer, xml: Sql, path: Path, stages: tuple[Stage, ...]) -> str:
    text = _tree(writer, xml)
    for stage in stages:
        if stage.path:
            text = f"tsql.xml_item({text}, {quote_string(stage.path)}, {stage.place or 0}{jsonpath_variables(writer, path.variables)})"
    return text


def _climb_stages(writer: Writer, xml: Sql, path: Path, stages: tuple[Stage, ...]) -> str:
    """Write the node that stages find, with its parents."""
    text = xml.text if xml.type == NODE else _tree(writer, xml)
    for stage in stages:
        if stage.path:
            items = f"{_climbing_items(writer, text, path, stage)} WITH ORDINALITY AS found (item, place)"
            index = stage.place or 0
            order = f"found.place LIMIT 1 OFFSET {index}" if index >= 0 else f"found.place DESC LIMIT 1 OFFSET {~index}"
            text = f"(SELECT found.item FROM {items} ORDER BY {order})"
    return text


def _climbing_items(writer: Writer, tree: str, path: Path, stage: Stage) -> str:
    arguments = f"{quote_string(stage.path)}{jsonpath_variables(writer, path.variables)}"
    return f"tsql.xml_climbing_items({tree}, {arguments})"


def _apply_path(writer: Writer, function: str, xml: Sql, path: Path) -> str:
    """Write a function applied to all nodes that a path finds."""
    last = path.stages[-1]
    before = _walk_stages(writer, xml, path, path.stages[:-1])
    if last.place is not None:
        before, last = _walk_stages(writer, xml, path, path.stages), Stage("strict $", None)
    return f"{function}({before}, {quote_string(last.path or 'strict $')}{jsonpath_variables(writer, path.variables)})"


def _value(writer: Writer, xml: Sql, path: Path, to: SqlType) -> Sql:
    if not path.is_single:
        raise _not_singleton_error()
    _check_type(to)
    if path.function == "count":
        return cast_value(Sql(_apply_path(writer, "tsql.xml_count", xml, path), INT), to)
    text = _text(writer, xml, path)
    if to.name in BINARY_TYPES:
        return _decode_bytes(text, path.function, to)
    return cast_value(Sql(f"({text})", NVARCHAR), to)


def _decode_bytes(text: str, function: str, to: SqlType) -> Sql:
    """Write the bytes that a text encodes. `function` names the encoding, "" means base64."""
    coding = BINARY_ENCODINGS.get(function.removeprefix("xs:"), "base64")
    return cast_value(Sql(f"tsql.xq_bytes({text}, '{coding}')", VARBINARY), to)


def _not_singleton_error() -> TsqlError:
    return TsqlError(
        2389,
        "XQuery [value()]: 'value()' requires a singleton (or empty sequence), found operand of type 'xdt:untypedAtomic *'. "
        "Write (path)[1].",
    )


def _check_type(to: SqlType) -> None:
    if to.name == "xml":
        raise TsqlError(9500, "The data type 'xml' used in the VALUE method is invalid.")


def _text(writer: Writer, xml: Sql, path: Path) -> str:
    function = "tsql.xml_local_name" if path.function == "local-name" else "tsql.xml_string"
    return f"{function}({_walk_stages(writer, xml, path, path.stages)})"
