from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from servicebroker.model.errors import ERROR_NAMESPACE
from servicebroker.model.messages import error_body, read_error

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
def test_read_error_refuses_other_bodies(body: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"not an Error message"):
        read_error(body)  # type: ignore[arg-type]


@given(st.binary())
def test_reading_an_error_fails_only_with_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an Error message"):
        read_error(body)


def test_files_are_not_read(tmp_path: object) -> None:
    secret = f"{tmp_path}/secret"
    with open(secret, "w") as file:
        file.write("42")
    code = (
        f'<!DOCTYPE e [<!ENTITY x SYSTEM "file://{secret}">]><Error xmlns="{ERROR_NAMESPACE}"><Code>&x;</Code></Error>'
    )
    with pytest.raises(ValueError, match="not an Error message"):
        read_error(code.encode())
