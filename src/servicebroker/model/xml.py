"""XML from outside is hostile: parsed without entities, DTD or network, and validated against nothing but the
documents of an XML schema collection."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lxml import etree

XSD = "http://www.w3.org/2001/XMLSchema"
XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"

# every collection may import the attributes that any XML document has
_XML_ATTRIBUTES = "".join(
    f'<xs:attribute name="{name}" type="xs:{kind}"/>'
    for name, kind in (("lang", "string"), ("space", "NCName"), ("base", "anyURI"), ("id", "ID"))
)
_SCHEMA = '<xs:schema xmlns:xs="{xsd}"{target}>{content}</xs:schema>'

MAXIMUM_DEPTH = 128  # of elements in the type xml
_CONTENT = "body"  # what surrounds content while it is parsed; the parser's messages name it
_DTD = re.compile(
    r"\ufeff?(?:\s|<!--.*?-->|<\?.*?\?>)*+<!DOCTYPE", re.DOTALL
)  # what was passed once is not tried again
_is_too_deep = etree.XPath(f"boolean({'/*' * (MAXIMUM_DEPTH + 2)})")


def parse(content: bytes) -> etree._Element:
    """The root of a document. Its encoding is what its mark or declaration says; UTF-16 is known without either.

    Raises:
        etree.XMLSyntaxError: it is not well-formed, or too large or deep for libxml2's usual limits.
    """
    return etree.fromstring(content, _parser(_coding(content).unmarked))


class NotXml(ValueError):
    """What the type xml does not take; `number` is its error: 9400, 6359 for a DTD, 6335 nested too deeply."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


def parse_content(body: bytes) -> etree._Element:
    """What the type xml of the server takes as content: one root, several, text between them, or nothing.

    The encoding is found as by `parse`. Returns an element that has the content inside.

    Raises:
        NotXml: it is not well-formed, has a DTD, or elements are nested more than 128 deep.
    """
    coding = _coding(body)
    start = _begin(body, coding)
    opened, closed = f"<{_CONTENT}>".encode(coding.codec), f"</{_CONTENT}>".encode(coding.codec)
    try:
        content = etree.fromstring(b"".join((body[:start], opened, body[start:], closed)), _parser(coding.unmarked))
    except etree.XMLSyntaxError as problem:
        if _DTD.match(body.decode(coding.codec, "replace")):
            raise NotXml(6359, "A DTD is not allowed.") from None
        raise NotXml(9400, _in_body(problem, body[:start].decode(coding.codec, "replace"))) from None
    if body.count(b"<") > MAXIMUM_DEPTH and _is_too_deep(content):
        raise NotXml(6335, f"Elements are nested more than {MAXIMUM_DEPTH} deep.")
    return content


def content_text(content: etree._Element) -> str:
    """What `parse_content` has returned, as text without a declaration."""
    return etree.tostring(content, encoding="unicode")[len(f"<{_CONTENT}>") : -len(f"</{_CONTENT}>")]


def validation_failure(validation: str, body: bytes | None, schemas: SchemaCollection | None = None) -> str | None:
    """Why `body` breaks its message type's validation letter, None when it holds.

    N takes anything, E only an empty body, X what the type xml takes, with `schemas` only roots that are valid by them.
    """
    if validation == "E":
        return None if body is None else "The body must be empty."
    if validation == "X":
        try:
            content = parse_content(body or b"")
        except NotXml as problem:
            return str(problem)
        failures = (schemas.failure(root) for root in content.iterchildren("*")) if schemas else ()
        return next((failure for failure in failures if failure), None)
    return None


class SchemaDocument(NamedTuple):
    """One schema as it is kept: its target namespace, '' for none, and its text in UTF-8 without a DTD."""

    target_namespace: str
    content: bytes


def read_schema(text: str | bytes) -> SchemaDocument:
    """A schema as it was given.

    Raises:
        ValueError: it is no XML schema, has a DTD, or reaches outside of its collection.
    """
    try:
        root = parse(text) if isinstance(text, bytes) else etree.fromstring(text.encode(), _parser("utf-8"))
    except etree.XMLSyntaxError as problem:
        raise ValueError(str(problem)) from None
    if root.tag != f"{{{XSD}}}schema":
        raise ValueError(f"Its root is {root.tag}, not schema of the namespace {XSD}.")
    if _has_dtd(root):
        raise ValueError("It has a DTD.")
    for name in ("include", "redefine"):
        if root.find(f"{{{XSD}}}{name}") is not None:
            raise ValueError(f"xs:{name} is not supported: a collection takes several documents of one namespace.")
    return SchemaDocument(root.get("targetNamespace", ""), etree.tostring(root, encoding="utf-8"))


class SchemaCollection:
    """Schemas that import each other and nothing else. Compiled when it is first used."""

    def __init__(self, documents: Sequence[SchemaDocument]) -> None:
        self._documents = documents

    def failure(self, root: etree._Element) -> str | None:
        """Why a root, of what has no DTD, is not valid by any of the schemas; None when it is."""
        try:
            self._compiled.assertValid(root)
        except etree.DocumentInvalid as problem:
            return str(problem)
        return None

    def check(self) -> None:
        """Compile.

        Raises:
            ValueError: the schemas break the rules of XML Schema, or import a namespace that is not in the collection.
        """
        try:
            _ = self._compiled
        except (etree.XMLSchemaParseError, etree.XMLSyntaxError) as problem:
            raise ValueError(str(problem)) from None

    @functools.cached_property
    def _compiled(self) -> etree.XMLSchema:
        """One schema that imports every namespace; the schemas of one namespace are joined by an inclusion."""
        places, members = _places(self._documents)
        texts = {places[XML_NAMESPACE]: _schema(XML_NAMESPACE, _XML_ATTRIBUTES)}
        for namespace, documents in members.items():
            names = [f"{places[namespace]}/{number}" for number, _ in enumerate(documents)]
            texts[places[namespace]] = _schema(namespace, "".join(f'<xs:include schemaLocation="{n}"/>' for n in names))
            for name, document in zip(names, documents, strict=True):
                texts[name] = _with_places(document.content, places)
        imports = "".join(_import(namespace, places[namespace]) for namespace in members)
        parser = _parser()
        parser.resolvers.add(_OnlyThese(texts))
        return etree.XMLSchema(etree.fromstring(_schema("servicebroker:collection", imports), parser))


class _OnlyThese(etree.Resolver):
    """Finds the documents of a collection. Anything else is an empty document, which is no schema."""

    def __init__(self, texts: dict[str, bytes]) -> None:
        self._texts = texts

    def resolve(self, system_url: str, public_id: str, context: Any) -> Any:  # type: ignore[override] # as it is called
        """The document at a place, looked for nowhere else."""
        return self.resolve_string(self._texts.get(system_url, b""), context, base_url=system_url)


def _places(documents: Sequence[SchemaDocument]) -> tuple[dict[str, str], dict[str, list[SchemaDocument]]]:
    """Where each namespace is found by an import, and its documents."""
    members: dict[str, list[SchemaDocument]] = {}
    for document in documents:
        members.setdefault(document.target_namespace, []).append(document)
    places = {namespace: f"collection:{number}" for number, namespace in enumerate(members)}
    places.setdefault(XML_NAMESPACE, "collection:xml")
    return places, members


def _with_places(content: bytes, places: dict[str, str]) -> bytes:
    """A schema whose imports lead to the other schemas of its collection, wherever they led before.

    Raises:
        ValueError: it imports what is not there.
    """
    root = parse(content)
    for element in root.iter(f"{{{XSD}}}import"):
        namespace = element.get("namespace", "")
        if namespace not in places:
            raise ValueError(f"It imports the namespace '{namespace}', which is not in the collection.")
        element.set("schemaLocation", places[namespace])
    return etree.tostring(root, encoding="utf-8")


def _schema(namespace: str, content: str) -> bytes:
    target = f" targetNamespace={_quoted(namespace)}" if namespace else ""
    return _SCHEMA.format(xsd=XSD, target=target, content=content).encode()


def _import(namespace: str, place: str) -> str:
    return f'<xs:import{f" namespace={_quoted(namespace)}" if namespace else ""} schemaLocation="{place}"/>'


def _quoted(value: str) -> str:
    from xml.sax.saxutils import quoteattr  # here, since it loads an HTTP client, 40 ms for every process of ours

    return quoteattr(value)


def _has_dtd(root: etree._Element) -> bool:
    return root.getroottree().docinfo.internalDTD is not None


class _Coding(NamedTuple):
    """How a body writes ASCII: the codec, the length of its byte order mark, and what tells the parser without one."""

    codec: str
    mark: int = 0
    unmarked: str | None = None


_MARKED = {
    mark: _Coding(codec, len(mark))
    for mark, codec in (
        (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
    )
}  # fmt: skip


def _coding(body: bytes) -> _Coding:
    """XML has no NUL: where one of the first two bytes is, each character has two."""
    for mark, coding in _MARKED.items():
        if body.startswith(mark):
            return coding
    if body[1:2] == b"\0":
        return _Coding("utf-16-le", unmarked="UTF-16LE")
    return _Coding("utf-16-be", unmarked="UTF-16BE") if body[:1] == b"\0" else _Coding("latin-1")


def _begin(body: bytes, coding: _Coding) -> int:
    """Where content begins: behind the mark, and behind a declaration."""
    codec, mark, _ = coding
    declaration, end = "<?xml".encode(codec), "?>".encode(codec)
    behind = mark + len(declaration)
    if not body.startswith(declaration, mark) or not body[behind : behind + 2].decode(codec, "ignore")[:1].isspace():
        return mark
    found = body.find(end, behind)
    return found + len(end) if found >= 0 else mark


def _in_body(problem: etree.XMLSyntaxError, before: str) -> str:
    """What the parser says, at its place in the body, without the tag that we have put behind `before`."""
    line, column = problem.position
    said = (problem.msg or "").removesuffix(f", line {line}, column {column}").strip()
    *lines, last = before.split("\n")
    if line == len(lines) + 1 and column > len(last):
        column = max(1, column - len(f"<{_CONTENT}>"))
    return f"{said}, line {line}, column {column}"


def _parser(encoding: str | None = None) -> etree.XMLParser:
    return etree.XMLParser(encoding=encoding, resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
