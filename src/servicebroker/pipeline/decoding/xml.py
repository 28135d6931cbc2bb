"""XML, with or without an XSD. Parsed as hostile input: no DTD, no entities, no network, and libxml2's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lxml import etree

from servicebroker.model.xml import NotXml, SchemaCollection, check_size, parse, read_schema
from servicebroker.pipeline.decoding.columns import MISSING, Column, Undecodable, convert_column, convert_text


class XmlDecoder:
    """Takes values of elements and attributes below the root. `a/b/@c` is a path; namespaces are ignored."""

    def __init__(self, columns: Sequence[Column], schema: bytes | None) -> None:
        if not columns:
            raise ValueError("xml needs columns")
        for column in columns:
            if not isinstance(column.source, str):
                raise ValueError(f"xml takes the path of '{column.name}' as one text, as in a/b/@c")
        self.columns = tuple(columns)
        self._paths = [_xpath(column.path) for column in columns]
        self._xsd = schema
        self._schemas: SchemaCollection | None = None
        if schema is not None:
            self._collection().check()

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
        return [
            convert_column(column, _value(root, path, column.path), convert_text)
            for column, path in zip(self.columns, self._paths, strict=True)
        ]


def _xpath(path: str) -> etree.XPath:
    steps = []
    for step in path.split("/"):
        name = step.removeprefix("@")
        if not name or any(mark in name for mark in "'\"@[]()"):
            raise ValueError(
                f"'{path}' is no path: give the names of elements, and @ before an attribute's, as in a/b/@c"
            )
        steps.append(f"{'@' if step.startswith('@') else ''}*[local-name()='{name}']")
    return etree.XPath("/".join(steps))


def _value(root: etree._Element, xpath: etree.XPath, path: str) -> Any:
    nodes: Any = xpath(root)
    if not nodes:
        return MISSING
    if len(nodes) > 1:
        raise Undecodable("wrong type", f"'{path}' occurs {len(nodes)} times")
    (node,) = nodes
    if isinstance(node, str):
        return str(node)
    nil = node.get("{http://www.w3.org/2001/XMLSchema-instance}nil")
    return None if nil in ("true", "1") else "".join(node.itertext())
