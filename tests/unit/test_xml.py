"""XML from outside: validation letters, hardening, XML schema collections."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.model.xml import XSD, SchemaCollection, SchemaDocument, read_schema, validation_failure


@given(st.binary(min_size=1) | st.none())
def test_none_takes_any_body(body: bytes | None) -> None:
    assert validation_failure("N", body) is None


@given(st.binary(min_size=1))
def test_empty_takes_only_an_empty_body(body: bytes) -> None:
    assert validation_failure("E", None) is None
    assert validation_failure("E", body)


@pytest.mark.parametrize(
    "body",
    [b"<a/>", "<a>é</a>".encode("utf-16"), b'<?xml version="1.0" encoding="ISO-8859-1"?><a>\xe9</a>', b"<a>x</a>\n"],
)
def test_xml_takes_well_formed_documents(body: bytes) -> None:
    assert validation_failure("X", body) is None


@pytest.mark.parametrize(
    "body", [None, b"", b"<a>", b"a", b"<a/><b/>", b"<a>\xff</a>", b'<?xml version="1.0" encoding="no-such"?><a/>']
)
def test_xml_refuses_what_is_not_well_formed(body: bytes | None) -> None:
    assert validation_failure("X", body)


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda inner: b"<a>" + inner + b"</a>"))
def test_validation_never_raises(body: bytes) -> None:
    failure = validation_failure("X", body)
    assert failure is None or isinstance(failure, str)


def test_entities_are_not_expanded() -> None:
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 30))
    bomb = f'<!DOCTYPE b [<!ENTITY l0 "ha">{laughs}]><b>&l29;</b>'.encode()
    began = time.monotonic()
    validation_failure("X", bomb)
    assert time.monotonic() - began < 1


# ---------------------------------------------------------------- encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_the_encodings_of_unicode_need_no_declaration(encoding: str) -> None:
    assert validation_failure("X", "<a>é€😀</a>".encode(encoding)) is None


@pytest.mark.parametrize(
    ("declared", "encoded", "fails"),
    [
        ("utf-8", "utf-8", False),
        ("utf-16", "utf-16", False),
        ("utf-16", "utf-16-le", False),
        ("ISO-8859-1", "latin-1", False),
        ("windows-1252", "cp1252", False),
        ("utf-8", "utf-16", False),  # the mark says more than the declaration
        ("utf-16", "utf-8", True),
        ("utf-8", "latin-1", True),
        ("klingon", "utf-8", True),
    ],
)
def test_what_a_document_declares_of_its_encoding(declared: str, encoded: str, fails: bool) -> None:
    body = f'<?xml version="1.0" encoding="{declared}"?><a>é</a>'.encode(encoded)
    assert bool(validation_failure("X", body)) is fails


# ---------------------------------------------------------------- schema collections


def schema(content: str, namespace: str = "", attributes: str = "") -> str:
    target = f'targetNamespace="{namespace}"' if namespace else ""
    return f'<xs:schema xmlns:xs="{XSD}" {target} {attributes}>{content}</xs:schema>'


def collection(*texts: str | bytes) -> SchemaCollection:
    found = SchemaCollection([read_schema(text) for text in texts])
    found.check()
    return found


ELEMENT = '<xs:element name="{}" type="xs:int"/>'
ORDER = schema(
    '<xs:import namespace="urn:types"/>'
    '<xs:import namespace="http://www.w3.org/XML/1998/namespace" schemaLocation="http://www.w3.org/2001/xml.xsd"/>'
    '<xs:element name="order"><xs:complexType><xs:simpleContent><xs:extension base="t:count">'
    '<xs:attribute ref="xml:lang"/></xs:extension></xs:simpleContent></xs:complexType></xs:element>',
    "urn:order",
    'xmlns:t="urn:types"',
)
COUNT = (
    '<xs:simpleType name="count"><xs:restriction base="xs:int"><xs:minInclusive value="1"/></xs:restriction>'
    "</xs:simpleType>"
)
TYPES = schema(f'<xs:import namespace="urn:order" schemaLocation="elsewhere.xsd"/>{COUNT}', "urn:types")
MORE_TYPES = schema(ELEMENT.format("more"), "urn:types")
PLAIN = schema(ELEMENT.format("plain"))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<order xmlns="urn:order" xml:lang="de">7</order>', None),
        ('<more xmlns="urn:types">7</more>', None),
        ("<plain>7</plain>", None),
        ('<order xmlns="urn:order">0</order>', "less than the minimum.*line 1"),
        ('<order xmlns="urn:order" wrong="1">7</order>', "wrong"),
        ("<plain>x</plain>", "xs:int"),
        ("<order>7</order>", "No matching global declaration"),
        ("<plain>", "line 1"),
        ("<!DOCTYPE plain><plain>7</plain>", "DTD"),
        ('<!DOCTYPE plain [<!ENTITY seven "7">]><plain>&seven;</plain>', "DTD"),
    ],
)
def test_a_document_is_valid_by_one_of_the_schemas(body: str, problem: str | None) -> None:
    found = validation_failure("X", body.encode(), collection(ORDER, TYPES, MORE_TYPES, PLAIN))
    if problem is None:
        assert found is None
    else:
        assert found is not None
        with pytest.raises(ValueError, match=problem):
            raise ValueError(found)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "latin-1"])
def test_a_schema_may_come_in_any_encoding(encoding: str) -> None:
    declaration = '<?xml version="1.0" encoding="ISO-8859-1"?>' if encoding == "latin-1" else ""
    text = declaration + schema(ELEMENT.format("größe"))
    for given_text in (text, text.encode(encoding)):
        found = collection(given_text)
        assert validation_failure("X", "<größe>7</größe>".encode(), found) is None
        assert validation_failure("X", "<größe>x</größe>".encode(), found)


def test_a_kept_schema_compiles_as_the_given_one() -> None:
    kept = [SchemaDocument(*read_schema(text)) for text in (ORDER, TYPES)]
    assert [document.target_namespace for document in kept] == ["urn:order", "urn:types"]
    assert SchemaCollection(kept).failure is not None
    assert validation_failure("X", b'<order xmlns="urn:order">7</order>', SchemaCollection(kept)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty|Document"),
        ("<xs:schema", "line 1"),
        ("<schema/>", "Its root is schema"),
        ('<schema xmlns="urn:x"/>', "Its root is {urn:x}schema"),
        (schema('<xs:element name="a" type="xs:nope"/>'), "nope"),
        (schema('<xs:element name="a" type="b:c"/>', attributes='xmlns:b="urn:b"'), "urn:b"),
        (schema('<xs:import namespace="urn:b" schemaLocation="b.xsd"/>'), "'urn:b', which is not in the collection"),
        (schema('<xs:include schemaLocation="b.xsd"/>'), "xs:include is not supported"),
        (schema('<xs:redefine schemaLocation="b.xsd"/>'), "xs:redefine is not supported"),
        (f"<!DOCTYPE x []>{PLAIN}", "DTD"),
        (schema(ELEMENT.format("a") * 2), "already"),
        ("<!DOCTYPE x [" + '<!ENTITY a "a">' * 3 + "]>" + PLAIN, "DTD"),
        ("<a>" * 300 + "</a>" * 300, "depth|Excessive"),
    ],
)
def test_what_is_no_schema_says_why(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        collection(text)


@pytest.mark.parametrize(
    "reach",
    [
        '<xs:include schemaLocation="{place}"/>',
        '<xs:redefine schemaLocation="{place}"/>',
        '<xs:import namespace="urn:stolen" schemaLocation="{place}"/>',
        '<xs:import schemaLocation="{place}"/>',
    ],
)
def test_a_schema_reads_no_file(tmp_path: Path, reach: str) -> None:
    stolen = tmp_path / "stolen.xsd"
    stolen.write_text(schema(ELEMENT.format("stolen"), "urn:stolen"))
    for place in (str(stolen), f"file://{stolen}"):
        with pytest.raises(ValueError, match=r"not supported|not in the collection"):
            collection(schema(reach.format(place=place), "urn:mine"))
    # even when the namespace is there, it is the collection's schema that is taken
    taken = collection(
        schema(f'<xs:import namespace="urn:stolen" schemaLocation="{stolen}"/>', "urn:mine"),
        schema(ELEMENT.format("ours"), "urn:stolen"),
    )
    assert validation_failure("X", b'<ours xmlns="urn:stolen">7</ours>', taken) is None
    assert validation_failure("X", b'<stolen xmlns="urn:stolen">7</stolen>', taken)


def test_an_entity_in_a_schema_reads_no_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("xs:int")
    text = f'<!DOCTYPE s [<!ENTITY e SYSTEM "file://{secret}">]>' + schema('<xs:element name="a" type="&e;"/>')
    with pytest.raises(ValueError, match=r"DTD|entity|external"):
        collection(text)


def test_a_document_names_no_schema_of_its_own(tmp_path: Path) -> None:
    stolen = tmp_path / "stolen.xsd"
    stolen.write_text(schema(ELEMENT.format("stolen")))
    body = (
        f'<stolen xmlns:xsi="{XSD}-instance" xsi:noNamespaceSchemaLocation="{stolen}" '
        f'xsi:schemaLocation="urn:x file://{stolen}">7</stolen>'
    )
    assert "No matching global declaration" in (validation_failure("X", body.encode(), collection(PLAIN)) or "")
