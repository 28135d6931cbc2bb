from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.model.messages import xml_text
from servicebroker.model.names import QUERY
from servicebroker.model.service_diagnostic import asked_service

names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), min_size=1)


@given(names, st.sampled_from(["utf-8", "utf-16"]))
def test_the_name_is_read_in_either_encoding(name: str, encoding: str) -> None:
    body = f'<Query xmlns="{QUERY}">\n <SERVICE_NAME>{xml_text(name)}</SERVICE_NAME>\n</Query>'
    assert asked_service(body.encode(encoding)) == name


@given(st.binary())
def test_reading_fails_only_with_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        asked_service(body)
