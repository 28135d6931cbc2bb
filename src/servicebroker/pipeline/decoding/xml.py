"""Decodes XML, with or without an XSD. Parses it as untrusted: no DTD, no entities, no network, libxml2's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lxml import etree

from servicebroker.model.xml import NotXml, SchemaCollection, check_size, parse, read_schema
from servicebroker.overriding import override
from servicebroker.pipeline.decoding.columns import MISSING, Column, Undecodable, convert_column, convert_text
from servicebroker.pipeline.decoding.kinds import Array, Kind, Map, Plain, Struct, parse_kind, parts

_NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"


class XmlDecoder:
    """Reads values of elements and attributes below the root, by paths such as `a/b/@c`. Namespaces are ignored.

    An array has a value for each repetition of an element. A struct has fields for the elements and attributes in an
    element.
    """

    def __init__(self, columns: Sequence[Column], schema: bytes | None) -> None:
        if not columns:
            raise ValueError("xml needs columns")
        for column in columns:
            if not isinstance(column.source, str):
                raise ValueError(f"in xml the path of '{column.name}' is one text, such as a/b/@c")
            if _has_map(parse_kind(column.kind)):
                raise ValueError(f"xml has no maps: give '{column.name}' a struct or an array")
        self.columns = tuple(columns)
        self._paths = [(_xpath(column.path), parse_kind(column.kind)) for column in columns]
        self._xsd = schema
        self._schemas: SchemaCollection | None = None
        if schema is not None:
            self._collection().check()

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {"columns": self.columns, "xsd": self._xsd}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["columns"], state["xsd"])  # type: ignore[misc] # compiled schemas cannot be pickled

    def _collection(self) -> SchemaCollection:
        if self._schemas is None:
            self._schemas = SchemaCollection([read_schema(self._xsd or b"")])
        return self._schemas

    def decode(self, body: bytes | None) -> list[Any]:
        """Decode a document; see `Decoder`."""
        if not body:
            raise Undecodable("empty", "the body is empty")
        try:
            check_size(body, attributes=True)
        except NotXml as problem:
            raise Undecodable("wrong encoding" if problem.number == 9402 else "too many values", str(problem)) from None
        try:
            root = parse(body)
        except (etree.XMLSyntaxError, ValueError) as problem:
            raise Undecodable("malformed", str(problem)) from None
        if root.getroottree().docinfo.internalDTD is not None:
            raise Undecodable("malformed", "the document has a DTD")
        failure = self._collection().failure(root) if self._xsd is not None else None
        if failure:
            raise Undecodable("invalid", failure)
        values = []
        for column, (xpath, kind) in zip(self.columns, self._paths, strict=True):
            nodes: Any = xpath(root)
            value = _value(nodes, kind, column.path, column.is_optional)
            values.append(convert_column(column, value, convert_text))
        return values


def _has_map(kind: Kind) -> bool:
    return isinstance(kind, Map) or any(_has_map(field.kind) for field in parts(kind))


def _xpath(path: str) -> etree.XPath:
    steps = []
    for step in path.split("/"):
        name = step.removeprefix("@")
        if not name or any(mark in name for mark in "'\"@[]()"):
            raise ValueError(
                f"'{path}' is not a path: give the names of elements, and @ before an attribute's, as in a/b/@c"
            )
        steps.append(f"{'@' if step.startswith('@') else ''}*[local-name()='{name}']")
    return etree.XPath("/".join(steps))


def _value(nodes: list[Any], kind: Kind, path: str, is_optional: bool) -> Any:
    """Return the content of the nodes at a path, for `convert_column`: a string, a list or a dictionary.

    Without nodes, return [] for an array that is not optional, and MISSING for other types.
    """
    if isinstance(kind, Array):
        if not nodes and is_optional:
            return MISSING
        return [
            _value([node], kind.item.kind, f"{path}[{number}]", kind.item.is_optional)
            for number, node in enumerate(nodes)
        ]
    if not nodes:
        return MISSING
    if len(nodes) > 1:
        raise Undecodable("wrong type", f"'{path}' occurs {len(nodes)} times: an array<{kind}> takes all of them")
    (node,) = nodes
    if not isinstance(node, str) and node.get(_NIL) in ("true", "1"):
        return None
    match kind:
        case Struct() if not isinstance(node, str):
            return {
                field.name: _value(_inner(node, field.name), field.kind, f"{path}/{field.name}", field.is_optional)
                for field in kind.fields
            }
        case Plain() | Struct():
            return str(node) if isinstance(node, str) else "".join(node.itertext())
    raise TypeError(kind)


def _inner(element: etree._Element, name: str) -> list[Any]:
    """Return the child elements with a name; if there are none, the attribute with that name."""
    elements: list[Any] = [child for child in element.iterchildren("*") if etree.QName(child).localname == name]
    if elements:
        return elements
    return [value for key, value in element.attrib.items() if etree.QName(key).localname == name]
