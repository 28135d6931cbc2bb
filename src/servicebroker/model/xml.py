"""Parse and validate XML from outside, which is hostile: no entities, DTD or network, and only known schemas.

The schemas are the documents of an XML schema collection."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lxml import etree

from servicebroker.model.wording import cleaned
from servicebroker.model.xml_problems import DTD, MAXIMUM_DEPTH, TOO_DEEP, describe, find_problem
from servicebroker.overriding import override

XSD = "http://www.w3.org/2001/XMLSchema"
XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"

# attributes of any XML document, which every collection may import
_XML_ATTRIBUTES = "".join(
    f'<xs:attribute name="{name}" type="xs:{kind}"/>'
    for name, kind in (("lang", "string"), ("space", "NCName"), ("base", "anyURI"), ("id", "ID"))
)
_SCHEMA = '<xs:schema xmlns:xs="{xsd}"{target}>{content}</xs:schema>'

MAX_XML_BYTES = 128 * 1024 * 1024  # bytes of a validated body; a type without validation accepts larger ones
MAX_TAGS = 2_000_000  # start and end tags of a validated body; finding their depth takes two seconds
MAX_TREE_PARTS = 2_000_000  # tags and attributes of a parsed tree, about 200 bytes each
STREAMED_FROM_BYTES = 1024 * 1024  # bytes; a smaller body is parsed to a tree, which is cheap
MAX_EXPLAINED_BYTES = 1024 * 1024  # bytes; a larger refused body gets the parser's message, which costs nothing
_LIMIT = "the limit for XML that is checked. Send smaller bodies, or use VALIDATION = NONE."
_CHUNK_BYTES = 64 * 1024  # bytes for one call of the streaming parser
_LONGEST_FAILURE = 1_000  # characters: a failure may quote a value as long as the body
_CONTENT = "body"  # the name of the element around parsed content, which messages of the parser contain
_DTD = re.compile(r"\ufeff?(?:\s|<!--.*?-->|<\?.*?\?>)*+<!DOCTYPE", re.DOTALL)  # possessive: no backtracking
# matches comments, CDATA and processing instructions without a group, an end tag as group 1, a start or empty-element
# tag as group 2; unclosed markup extends to the end, so that no text is scanned twice
_MARKUP = re.compile(
    rb"""<(?:!--.*?(?:-->|\Z)|!\[CDATA\[.*?(?:\]\]>|\Z)|\?.*?(?:\?>|\Z)|(/)[^>]*+>?|"""
    rb"""([^!?/>"'][^>"']*+(?:"[^"]*+"?[^>"']*+|'[^']*+'?[^>"']*+)*+)>?)""",
    re.DOTALL,
)
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?\sencoding\s*=\s*["']([^"'>]*)""")
_DECLARED_IN_TEXT = re.compile(_DECLARED.pattern.decode())
_DECLARATION_BYTES = 400  # bytes at the beginning of a body that are searched for a declaration
_TWO_BYTE_ENCODINGS = frozenset({"utf-16", "ucs-2", "iso-10646-ucs-2"})
_ASCII = bytes(range(128))
_NO_CHARACTER_HANDLER = "servicebroker_no_character"
# bytes that are no character become U+FFFE, which XML refuses
codecs.register_error(_NO_CHARACTER_HANDLER, lambda problem: ("\ufffe", problem.end))  # type: ignore[attr-defined]


def parse(content: bytes) -> etree._Element:
    """Return the root of a document.

    Its byte order mark or declaration gives the encoding; UTF-16 is recognized without either.

    Raises:
        etree.XMLSyntaxError: the document is not well-formed, or exceeds libxml2's limits of size and depth.
    """
    return etree.fromstring(content, _parser(_coding(content).parser_encoding))


class NotXml(ValueError):
    """The error for a body that the type xml refuses.

    `number` is its error: 9400 to 9460 (`xml_problems.TEXTS`), 6359 a DTD, 6335 nested too deeply, 6365 too large.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


def parse_content(body: bytes) -> etree._Element:
    """Parse content like SQL Server's type xml: one root, several, text between them, or nothing.

    The encoding is found as by `parse`. Returns an element that contains the content.

    Raises:
        NotXml: it is not well-formed, has a DTD, declares another encoding than its own, is too large, or elements are
            nested more than 128 deep.
    """
    coding = _coding(body)
    _check_declaration(body, coding)
    check_size(body, attributes=True)
    start = _begin(body, coding)
    opened, closed = _wrapper_tags(coding)
    try:
        content = etree.fromstring(
            b"".join((body[:start], opened, body[start:], closed)), _parser(coding.parser_encoding)
        )
    except etree.XMLSyntaxError as problem:
        raise _not_well_formed(problem, body, start, coding) from None
    _check_depth(body, coding)
    return content


def check_content(body: bytes) -> None:
    """Refuse content that the type xml refuses, as `parse_content`; a large body is read in pieces, without a tree.

    Raises:
        NotXml: as `parse_content`.
    """
    if len(body) <= STREAMED_FROM_BYTES:
        parse_content(body)
        return
    coding = _coding(body)
    _check_declaration(body, coding)
    check_size(body, attributes=False)
    start = _begin(body, coding)
    opened, closed = _wrapper_tags(coding)
    target: Any = _IgnoreEvents()
    parser = etree.XMLParser(target=target, encoding=coding.parser_encoding, **_HARDENED)
    try:
        parser.feed(body[:start] + opened)
        for offset in range(start, len(body), _CHUNK_BYTES):
            parser.feed(body[offset : offset + _CHUNK_BYTES])
        parser.feed(closed)
        parser.close()
    except etree.XMLSyntaxError as problem:
        raise _not_well_formed(problem, body, start, coding) from None
    _check_depth(body, coding)


class _IgnoreEvents:
    """The parser target of the streaming parser, which ignores all events."""

    def close(self) -> None:
        """See lxml's parser targets."""


def _wrapper_tags(coding: _Coding) -> tuple[bytes, bytes]:
    return f"<{_CONTENT}>".encode(coding.codec), f"</{_CONTENT}>".encode(coding.codec)


def check_size(body: bytes, *, attributes: bool) -> None:
    """Refuse a body that would cost too much memory or time, by counting bytes. `attributes`: count attributes as well.

    Raises:
        NotXml: 6365 it has too many bytes, tags, or attributes; 9402 it declares an encoding whose tags cannot be
            counted in bytes, such as UTF-7.
    """
    if len(body) > MAX_XML_BYTES:
        raise NotXml(6365, f"The XML has more than {MAX_XML_BYTES:,} bytes, {_LIMIT}")
    coding = _coding(body)
    if coding.unsupported:
        name = cleaned(coding.unsupported, 40)
        raise NotXml(9402, f"The encoding '{name}' is not supported, or not the one it is written in: use UTF-8.")
    codec = coding.codec
    tags = body.count("<".encode(codec))
    if tags > MAX_TAGS:
        raise NotXml(6365, f"The XML has more than {MAX_TAGS:,} tags, {_LIMIT}")
    if attributes and tags + body.count("=".encode(codec)) > MAX_TREE_PARTS:
        raise NotXml(6365, f"The XML has more than {MAX_TREE_PARTS:,} tags and attributes, {_LIMIT}")


def _check_depth(body: bytes, coding: _Coding) -> None:
    """Refuse a well-formed document whose elements are nested too deeply.

    Raises:
        NotXml: 6335.
    """
    if body.count("</".encode(coding.codec)) < MAXIMUM_DEPTH:
        return
    text = body if coding.is_ascii else body.decode(coding.codec, "replace").encode()
    depth = 0
    for markup in _MARKUP.finditer(text):
        if markup[1]:
            depth -= 1
        elif markup[2]:
            if depth == MAXIMUM_DEPTH:
                raise NotXml(*TOO_DEEP)
            depth += not markup[2].endswith(b"/")


def _not_well_formed(problem: etree.XMLSyntaxError, body: bytes, start: int, coding: _Coding) -> NotXml:
    """Return the first violation with SQL Server's text; for a large body with the parser's message."""
    if _DTD.match(body[:STREAMED_FROM_BYTES].decode(coding.codec, "replace")):
        return NotXml(*DTD)
    if len(body) <= MAX_EXPLAINED_BYTES:
        explained = find_problem(body[coding.mark :].decode(coding.codec, _NO_CHARACTER_HANDLER))
        if explained is not None:
            return NotXml(*explained)
    number = 9420 if problem.code == etree.ErrorTypes.ERR_INVALID_CHAR else 9400  # type: ignore[attr-defined]
    return NotXml(number, f"XML parsing: {_message_in_body(problem, body[:start].decode(coding.codec, 'replace'))}")


def declares_encoding(text: str) -> bool:
    """Return True if a text begins with a declaration that names an encoding."""
    return _DECLARED_IN_TEXT.match(text) is not None


def _check_declaration(body: bytes, coding: _Coding) -> None:
    """Refuse a body that declares an encoding with another number of bytes per character, or one that is not supported.

    Raises:
        NotXml: 9402.
    """
    before = body[coding.mark : _DECLARATION_BYTES].decode(coding.codec, "replace")
    declared = _DECLARED_IN_TEXT.match(before)
    if declared is None:
        return
    is_two_byte = declared[1].lower() in _TWO_BYTE_ENCODINGS
    if coding.unsupported or is_two_byte != coding.codec.startswith("utf-16"):
        raise NotXml(*describe(9402, before, before.find(">")))


def content_text(content: etree._Element) -> str:
    """Return the content of an element from `parse_content`, as text without a declaration."""
    return etree.tostring(content, encoding="unicode")[len(f"<{_CONTENT}>") : -len(f"</{_CONTENT}>")]


def content_source(body: bytes) -> str:
    """Return the text of content that `parse_content` accepts, without byte order mark and declaration."""
    coding = _coding(body)
    return body[_begin(body, coding) :].decode(coding.codec)


def validation_failure(validation: str, body: bytes | None, schemas: SchemaCollection | None = None) -> str | None:
    """Return why `body` fails its message type's validation, None if it passes.

    N accepts any body, E only an empty one, X content of the type xml; with `schemas` all roots must be valid by them.
    """
    try:
        return _failure(validation, body, schemas)
    except Exception as problem:  # of any kind: an unreadable body must not stop other messages
        return cleaned(f"The body cannot be validated: {type(problem).__name__} {problem}")


def _failure(validation: str, body: bytes | None, schemas: SchemaCollection | None) -> str | None:
    if validation == "E":
        return None if body is None else "The body must be empty."
    if validation != "X":
        return None
    try:
        if schemas is None:
            check_content(body or b"")
            return None
        content = parse_content(body or b"")
    except NotXml as problem:
        return str(problem)
    failures = (schemas.failure(root) for root in content.iterchildren("*"))
    return next((failure[:_LONGEST_FAILURE] for failure in failures if failure), None)


class SchemaDocument(NamedTuple):
    """One stored schema: its target namespace, '' for none, and its text in UTF-8 without a DTD."""

    target_namespace: str
    content: bytes


def read_schema(text: str | bytes) -> SchemaDocument:
    """Return the text of a schema as a document.

    Raises:
        ValueError: the text is not an XML schema, has a DTD, or refers to documents outside of its collection.
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
    """Schemas that import only each other, compiled at the first use."""

    def __init__(self, documents: Sequence[SchemaDocument]) -> None:
        self._documents = documents

    def failure(self, root: etree._Element) -> str | None:
        """Return why a root element is not valid by any of the schemas, or None."""
        try:
            self._compiled.assertValid(root)
        except etree.DocumentInvalid as problem:
            return str(problem)
        return None

    def check(self) -> None:
        """Compile the schemas.

        Raises:
            ValueError: the schemas break the rules of XML Schema, or import a namespace that is not in the collection.
        """
        try:
            _ = self._compiled
        except (etree.XMLSchemaParseError, etree.XMLSyntaxError) as problem:
            raise ValueError(str(problem)) from None

    @functools.cached_property
    def _compiled(self) -> etree.XMLSchema:
        """Return one schema that imports every namespace. Schemas of one namespace are joined by an inclusion."""
        locations, members = _locations(self._documents)
        texts = {locations[XML_NAMESPACE]: _schema(XML_NAMESPACE, _XML_ATTRIBUTES)}
        for namespace, documents in members.items():
            names = [f"{locations[namespace]}/{number}" for number, _ in enumerate(documents)]
            texts[locations[namespace]] = _schema(
                namespace, "".join(f'<xs:include schemaLocation="{n}"/>' for n in names)
            )
            for name, document in zip(names, documents, strict=True):
                texts[name] = _with_locations(document.content, locations)
        imports = "".join(_import(namespace, locations[namespace]) for namespace in members)
        parser = _parser()
        parser.resolvers.add(_OnlyThese(texts))
        return etree.XMLSchema(etree.fromstring(_schema("servicebroker:collection", imports), parser))


class _OnlyThese(etree.Resolver):
    """Resolves the documents of a collection. Any other location is an empty document, which is not a schema."""

    def __init__(self, texts: dict[str, bytes]) -> None:
        self._texts = texts

    @override
    def resolve(self, system_url: str, public_id: str, context: Any) -> Any:  # type: ignore[override] # as it is called
        """Return the document at a location, from the collection only."""
        return self.resolve_string(self._texts.get(system_url, b""), context, base_url=system_url)


def _locations(documents: Sequence[SchemaDocument]) -> tuple[dict[str, str], dict[str, list[SchemaDocument]]]:
    """Return the location of each namespace for imports, and its documents."""
    members: dict[str, list[SchemaDocument]] = {}
    for document in documents:
        members.setdefault(document.target_namespace, []).append(document)
    locations = {namespace: f"collection:{number}" for number, namespace in enumerate(members)}
    locations.setdefault(XML_NAMESPACE, "collection:xml")
    return locations, members


def _with_locations(content: bytes, locations: dict[str, str]) -> bytes:
    """Return a schema whose imports lead to the schemas of its collection, in place of other locations.

    Raises:
        ValueError: it imports a namespace that the collection lacks.
    """
    root = parse(content)
    for element in root.iter(f"{{{XSD}}}import"):
        namespace = element.get("namespace", "")
        if namespace not in locations:
            raise ValueError(f"It imports the namespace '{namespace}', which is not in the collection.")
        element.set("schemaLocation", locations[namespace])
    return etree.tostring(root, encoding="utf-8")


def _schema(namespace: str, content: str) -> bytes:
    target = f" targetNamespace={_quoted(namespace)}" if namespace else ""
    return _SCHEMA.format(xsd=XSD, target=target, content=content).encode()


def _import(namespace: str, location: str) -> str:
    return f'<xs:import{f" namespace={_quoted(namespace)}" if namespace else ""} schemaLocation="{location}"/>'


def _quoted(value: str) -> str:
    from xml.sax.saxutils import quoteattr  # a lazy import: it loads an HTTP client, 40 ms for each process

    return quoteattr(value)


def _has_dtd(root: etree._Element) -> bool:
    return root.getroottree().docinfo.internalDTD is not None


class _Coding(NamedTuple):
    """The encoding of a body: its codec, and the length of its byte order mark (`mark`).

    `parser_encoding`: the encoding to force in the parser; None if the parser finds it itself.

    `unsupported`: the declared encoding, if tags cannot be counted in the body's bytes.
    """

    codec: str
    mark: int = 0
    parser_encoding: str | None = None
    unsupported: str = ""

    @property
    def is_ascii(self) -> bool:
        """True if a byte below 128 always stands for its ASCII character."""
        return self.codec in ("utf-8", "latin-1", "ascii") or self.codec.startswith(("iso8859", "cp125"))


_MARKED = {
    mark: _Coding(codec, len(mark))
    for mark, codec in (
        (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
    )
}  # fmt: skip


def _coding(body: bytes) -> _Coding:
    """Return the encoding of a body. XML has no NUL, so a NUL in the first two bytes means two bytes per character."""
    for mark, coding in _MARKED.items():
        if body.startswith(mark):
            return coding
    if body[1:2] == b"\0":
        return _Coding("utf-16-le", parser_encoding="UTF-16LE")
    if body[:1] == b"\0":
        return _Coding("utf-16-be", parser_encoding="UTF-16BE")
    declaration = _DECLARED.match(body)
    if declaration is None:
        return _Coding("utf-8")
    declared = declaration[1].decode("latin-1")
    codec = _codec(declared)
    return _Coding("latin-1", unsupported=declared) if codec is None else _Coding(codec)


@functools.lru_cache(maxsize=100)
def _codec(encoding: str) -> str | None:
    """Return Python's name of an encoding in which ASCII bytes always mean ASCII; None for others."""
    try:
        codec = codecs.lookup(re.sub("^windows-", "cp", encoding.lower())).name
        is_extended = _ASCII.decode(codec) == _ASCII.decode("ascii") and not codec.startswith("iso2022")
    except (LookupError, UnicodeError):
        return None
    return codec if is_extended else None


def _begin(body: bytes, coding: _Coding) -> int:
    """Return the position where content begins: after the mark and the declaration."""
    codec, mark = coding.codec, coding.mark
    declaration, end = "<?xml".encode(codec), "?>".encode(codec)
    after = mark + len(declaration)
    if not body.startswith(declaration, mark) or not body[after : after + 2].decode(codec, "ignore")[:1].isspace():
        return mark
    position = body.find(end, after)
    return position + len(end) if position >= 0 else mark


def _message_in_body(problem: etree.XMLSyntaxError, before: str) -> str:
    """Return the parser's message with the position in the body, without the tag that was added after `before`."""
    line, column = problem.position
    text = (problem.msg or "").removesuffix(f", line {line}, column {column}").strip()
    *lines, last = before.split("\n")
    if line == len(lines) + 1 and column > len(last):
        column = max(1, column - len(f"<{_CONTENT}>"))
    return f"{text}, line {line}, column {column}"


def _parser(encoding: str | None = None) -> etree.XMLParser:
    return etree.XMLParser(encoding=encoding, **_HARDENED)


_HARDENED: Any = {"resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": False}
