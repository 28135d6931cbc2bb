from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from servicebroker.model.errors import ERROR_NAMESPACE
from servicebroker.model.messages import error_body, read_error, validation_failure

readable = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"))


@given(st.integers(-(2**31), 2**31 - 1), readable)
def test_an_error_is_read_as_it_was_written(code: int, description: str) -> None:
    assert read_error(error_body(code, description)) == (code, description)


@given(st.integers(-(2**31), 2**31 - 1), st.text())
def test_every_description_arrives_readable(code: int, description: str) -> None:
    read, text = read_error(error_body(code, description))
    assert read == code
    assert len(text) == len(description.replace("\r\n", "\n"))


@pytest.mark.feature(92)
def test_an_error_body_is_utf_16_with_a_mark_and_has_code_and_description() -> None:
    body = error_body(-8490, "no <service> & 'none'")
    assert body[:2] in (b"\xff\xfe", b"\xfe\xff")
    root = etree.fromstring(body)
    assert root.tag == f"{{{ERROR_NAMESPACE}}}Error"
    assert [child.tag.rpartition("}")[2] for child in root] == ["Code", "Description"]
    assert root.findtext(f"{{{ERROR_NAMESPACE}}}Code") == "-8490"
    assert root.findtext(f"{{{ERROR_NAMESPACE}}}Description") == "no <service> & 'none'"


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"not xml",
        b"<Error/>",
        b"<Error><Code>1</Code></Error>",
        f'<Error xmlns="{ERROR_NAMESPACE}"><Code>x</Code></Error>'.encode(),
        f'<Error xmlns="{ERROR_NAMESPACE}"><Code/></Error>'.encode(),
    ],
)
def test_what_is_no_error_message_raises_value_error(body: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"not an Error message"):
        read_error(body)  # type: ignore[arg-type]


@given(st.binary())
def test_reading_an_error_fails_only_with_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an Error message"):
        read_error(body)


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


def test_files_are_not_read(tmp_path: object) -> None:
    secret = f"{tmp_path}/secret"
    with open(secret, "w") as file:
        file.write("42")
    code = (
        f'<!DOCTYPE e [<!ENTITY x SYSTEM "file://{secret}">]><Error xmlns="{ERROR_NAMESPACE}"><Code>&x;</Code></Error>'
    )
    with pytest.raises(ValueError, match="not an Error message"):
        read_error(code.encode())
