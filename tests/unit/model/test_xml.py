"""XML from other programs: validation modes, hardening, XML schema collections."""

from __future__ import annotations

import multiprocessing
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from servicebroker.model import xml
from servicebroker.model.xml import (
    XSD,
    NotXml,
    SchemaCollection,
    SchemaDocument,
    parse_content,
    read_schema,
    validation_failure,
)
from servicebroker_lab.fuzzing.memory import limit_memory


@given(st.binary(min_size=1) | st.none())
def test_none_takes_any_body(body: bytes | None) -> None:
    assert validation_failure("N", body) is None


@given(st.binary(min_size=1))
def test_empty_takes_only_an_empty_body(body: bytes) -> None:
    assert validation_failure("E", None) is None
    assert validation_failure("E", body)


DECLARED = '<?xml version="1.0" encoding="ISO-8859-1"?>'


@pytest.mark.feature(9)
@pytest.mark.parametrize(
    "body",
    [
        *("<a/>", "<a>x</a>\n", "<a/><b/>", "one<a>é</a>two<a/>", "text alone", "", " \n", "&lt;", "<![CDATA[<]]>"),
        *("<!-- said --><?do it?>", "<body/>", f"{DECLARED}é<a/>", '<?xml version="1.0"?>', "<a xml:lang='de'/>"),
        "<a>" * 128 + "</a>" * 128,
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_xml_takes_content(body: str, encoding: str) -> None:
    """Accept several roots, text, and an empty value, with or without declaration, in every detectable encoding."""
    if encoding != "latin-1" and DECLARED in body:
        body = body.removeprefix(DECLARED)
    if encoding == "latin-1" and DECLARED not in body:
        body = body.replace("é", "e")
    content = body.encode(encoding)
    assert validation_failure("X", content) is None
    written = re.sub(r"^<\?xml .*?\?>", "", body).replace("&lt;", "<").replace("<![CDATA[<]]>", "<")
    assert "".join(parse_content(content).itertext()) == "".join(re.sub(r"<[^ ].*?>", "", written))


def test_an_empty_body_is_valid() -> None:
    assert validation_failure("X", None) is None


@pytest.mark.feature(9)
@pytest.mark.parametrize(
    ("body", "number", "problem"),
    [
        ("<a>", 9400, "line 1"),
        ("<a/>\n</b>", 9436, "line 2, character 4"),
        ("<a>&</a>", 9421, "line 1, character 5"),
        ('<?xml version="1.0"?>\n<a>&</a>', 9421, "line 2, character 5"),
        ("</body><body>", 9455, "line 1"),  # the name of the wrapper element
        ("</body><!--", 9455, "line 1"),
        ("<a/>&b;", 9448, "undeclared entity"),
        ("<p:a/>", 9459, "undeclared prefix"),
        ("a ]]> b", 9454, "]]>"),
        ("\0", 9420, "line 1"),
        ("<a>\0</a>", 9420, "line 1"),
        (' <?xml version="1.0"?><a/>', 9438, "not at the beginning"),
        ("<?xml ", 9400, "line 1"),
        ("<!DOCTYPE a><a/>", 6359, "DTD"),
        ('<?xml version="1.0"?> <!-- <!DOCTYPE --><?do?><!DOCTYPE a SYSTEM "a.dtd"><a/>', 6359, "DTD"),
        ("<a/><!DOCTYPE a>", 6359, "DTD"),
        ("<a>" * 129 + "</a>" * 129, 6335, "128"),
        ("<a>" * 128 + "<b/>" + "</a>" * 128, 6335, "128"),
        ("<a>" * 1000 + "</a>" * 1000, 6335, "128"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_invalid_content_is_refused(body: str, number: int, problem: str, encoding: str) -> None:
    with pytest.raises(NotXml, match=re.escape(problem)) as error:
        parse_content(body.encode(encoding))
    assert error.value.number == number
    assert validation_failure("X", body.encode(encoding)) == str(error.value)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<a>\xff</a>", "line 1, character 4, illegal xml character"),
        (b"\xff", "line 1, character 1, illegal xml character"),
        (b"\xef\xbb\xbf\xe9", "line 1"),
        ("<a/>".encode("utf-32"), "line 1"),
        (b"\xff\xfe<", "line 1"),
        (b'<?xml version="1.0" encoding="no-such"?><a/>', "character 40, unable to switch the encoding"),
        (b'<?xml version="1.0" encoding="utf-16"?><a/>', "character 39, unable to switch the encoding"),
    ],
)
def test_xml_in_another_encoding_is_refused(body: bytes, problem: str) -> None:
    assert problem in (validation_failure("X", body) or "")


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda inner: b"<a>" + inner + b"</a>"))
def test_validation_never_raises(body: bytes) -> None:
    failure = validation_failure("X", body)
    assert failure is None or isinstance(failure, str)


@given(st.text("<>/!?-[]&;a \n", max_size=30))
def test_content_is_valid_if_an_element_may_contain_it(text: str) -> None:
    """Text that would close the wrapper element is not content."""
    try:
        etree.fromstring(f"<other>{text}</other>".encode())
        fits = not text.lstrip().startswith("<?xml ")
    except etree.XMLSyntaxError:
        fits = False
    assert (validation_failure("X", text.encode()) is None) is fits


def test_many_comments_before_a_possible_dtd_take_no_time() -> None:
    began = time.monotonic()
    assert validation_failure("X", b"<!---->" * 50_000 + b"<")
    assert time.monotonic() - began < 2


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
        ("utf-8", "utf-16", True),
        ("utf-16", "utf-8", True),
        ("utf-8", "latin-1", True),
        ("klingon", "utf-8", True),
    ],
)
def test_the_declared_encoding_must_be_the_actual_one(declared: str, encoded: str, fails: bool) -> None:
    body = f'<?xml version="1.0" encoding="{declared}"?><a>é</a>'.encode(encoded)
    assert bool(validation_failure("X", body)) is fails


@pytest.mark.parametrize("encoding", ["UTF-7", "HZ", "ISO-2022-KR", "ISO-2022-JP", "C99", "JAVA"])
def test_an_encoding_whose_tags_cannot_be_counted_is_refused(encoding: str) -> None:
    body = f"<?xml version=\"1.0\"\n encoding = '{encoding}'?><a/>".encode()
    assert "unable to switch the encoding" in (validation_failure("X", body) or "")


@pytest.mark.parametrize(
    "encoding", ["shift_jis", "big5", "gb18030", "euc-jp", "koi8-r", "windows-1251", "windows-874"]
)
def test_depth_is_found_in_encodings_that_extend_ascii(encoding: str) -> None:
    deep = f'<?xml version="1.0" encoding="{encoding}"?>' + "<a>" * 129 + "</a>" * 129
    assert "128 deep" in (validation_failure("X", deep.encode()) or "")


def test_a_bracket_within_a_character_ends_no_section() -> None:
    inner = "<![CDATA[\u30be]>" + "</a>" * 100 + "]]>" + "<a>" * 100 + "</a>" * 100
    body = '<?xml version="1.0" encoding="shift_jis"?>' + "<a>" * 100 + inner + "</a>" * 100
    assert b"\x83]]>" in body.encode("shift_jis")
    assert "128 deep" in (validation_failure("X", body.encode("shift_jis")) or "")


# ---------------------------------------------------------------- schema collections


def schema(content: str, namespace: str = "", attributes: str = "") -> str:
    target = f'targetNamespace="{namespace}"' if namespace else ""
    return f'<xs:schema xmlns:xs="{XSD}" {target} {attributes}>{content}</xs:schema>'


def collection(*texts: str | bytes) -> SchemaCollection:
    schemas = SchemaCollection([read_schema(text) for text in texts])
    schemas.check()
    return schemas


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
        ('<plain>7</plain><more xmlns="urn:types">7</more> and <plain>8</plain>', None),
        ("no root", None),
        ("", None),
        ("<plain>7</plain><plain>x</plain>", "xs:int"),
        ("<plain>7</plain><nowhere/>", "No matching global declaration"),
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
    failure = validation_failure("X", body.encode(), collection(ORDER, TYPES, MORE_TYPES, PLAIN))
    if problem is None:
        assert failure is None
    else:
        assert failure is not None
        with pytest.raises(ValueError, match=problem):
            raise ValueError(failure)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "latin-1"])
def test_a_schema_may_come_in_any_encoding(encoding: str) -> None:
    declaration = '<?xml version="1.0" encoding="ISO-8859-1"?>' if encoding == "latin-1" else ""
    text = declaration + schema(ELEMENT.format("größe"))
    for given_text in (text, text.encode(encoding)):
        schemas = collection(given_text)
        assert validation_failure("X", "<größe>7</größe>".encode(), schemas) is None
        assert validation_failure("X", "<größe>x</größe>".encode(), schemas)


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
def test_an_invalid_schema_has_a_reason(text: str, problem: str) -> None:
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
    # the collection's schema is used even if the namespace exists elsewhere
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


@pytest.mark.parametrize("nested", [127, 128, 129, 200])
@pytest.mark.parametrize(
    "leaf",
    ["<a/>", "<a b='/>'/>", "text", "<!-- <a><b> -->", "<![CDATA[<a><b>]]>", "<?a <b>?>", '<a b="<"/>'],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_depth_is_found_as_a_tree_has_it(nested: int, leaf: str, encoding: str) -> None:
    body = ("<x>" * nested + leaf + "</x>" * nested + "<y c='>'>" * 3 + "</y>" * 3).encode(encoding)
    try:
        tree = etree.fromstring(f"<r>{body.decode(encoding)}</r>".encode(encoding))
    except etree.XMLSyntaxError:
        assert validation_failure("X", body)
        return
    depth = max(len(list(element.iterancestors())) for element in tree.iter() if isinstance(element.tag, str))
    assert (validation_failure("X", body) is None) == (depth <= 128)


PIECES = ["text", "&amp;", "<!-- - -->", "<![CDATA[<]]>", "<?pi x?>", "<e/>", "<e a='1'/>", "&x;", "<e", "</e>", "]]>"]
DOCUMENTS = st.recursive(
    st.sampled_from([*PIECES, "<e a=1/>", "&#0;"]),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: "<n a='\"' b=\"'>\">" + "".join(parts) + "</n>"),
    max_leaves=12,
)


@given(st.lists(DOCUMENTS, max_size=4).map("".join), st.sampled_from(["utf-8", "utf-16"]))
def test_streamed_validation_agrees_with_that_of_a_tree(text: str, encoding: str) -> None:
    body = text.encode(encoding)
    judged = []
    for streamed_from in (1 << 30, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(xml, "STREAMED_FROM_BYTES", streamed_from)
            patch.setattr(xml, "_CHUNK_BYTES", 7)
            try:
                xml.check_content(body)
                judged.append(None)
            except NotXml as error:
                judged.append(error.number)
    assert judged[0] == judged[1]


UTF_7 = b'<?xml version="1.0" encoding="UTF-7"?>'
LARGE = {
    "elements": (b"<r>" + b"<a/>" * 26_000_000 + b"</r>", "tags"),
    "tags": (b"<r>" + b"<a></a>" * 1_100_000 + b"</r>", "tags"),
    "bytes": (b"<r>" + b"<a>" + b"x" * (xml.MAX_XML_BYTES + 1), "bytes"),
    "attributes of one element": (b"<r " + b" ".join(b'a%d="1"' % i for i in range(1_000_000)) + b"/>", "limit"),
    "deep": (b"<a>" * 200_000, "128 deep"),
    "hidden tags": (UTF_7 + b"<r>" + b"+ADw-a/+AD4-" * 9_000_000 + b"</r>", "switch the encoding"),
    "hidden ends of comments": (UTF_7 + b"<a></a>" * 130 + b"<!----+AD4-" * 50_000, "switch the encoding"),
    "not closed": (b"<r>" + b"<a/>" * 900_000, "mismatch"),
}


def judge(name: str, channel: Any) -> None:
    """Validate in a process that may allocate 1 GB more."""
    body, _ = LARGE[name]
    limit_memory(1 << 30)
    channel.send(validation_failure("X", body))


@pytest.mark.parametrize("name", LARGE)
def test_a_body_that_would_cost_much_is_refused_within_bounds(name: str) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=judge, args=(name, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(20), "still busy after 20 s"
        assert LARGE[name][1] in ours.recv()
    finally:
        process.kill()
        process.join()


def test_a_large_document_of_few_parts_is_taken() -> None:
    assert validation_failure("X", b"<r>" + b"<a>%s</a>" % (b"x" * 1_000_000) * 60 + b"</r>") is None


def test_any_exception_of_the_validation_refuses_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem in (MemoryError(), etree.XPathEvalError("no"), etree.XMLSchemaParseError("no"), RecursionError("no")):
        monkeypatch.setattr(xml, "check_content", lambda body, problem=problem: (_ for _ in ()).throw(problem))
        failure = validation_failure("X", b"<a/>")
        assert failure is not None
        assert failure.startswith(f"The body cannot be validated: {type(problem).__name__}")


def test_a_long_value_is_not_quoted_whole() -> None:
    schema = read_schema(f'<xs:schema xmlns:xs="{XSD}"><xs:element name="a" type="xs:int"/></xs:schema>')
    failure = validation_failure("X", b"<a>" + b"x" * 1_000_000 + b"</a>", SchemaCollection([schema]))
    assert failure
    assert len(failure) <= 1_000
