"""SQL rows become named values. A part that is a value with parts of its own takes several columns."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from servicebroker.store.rows import build_row


class Key(NamedTuple):
    number: int | None
    names: list[str]


class Owner(NamedTuple):
    name: str
    key: Key
    spare: Key | None


def test_a_field_that_is_a_value_takes_a_column_for_each_of_its_fields() -> None:
    assert build_row(Owner, ("web", 1, ["a"], 2, [])) == Owner("web", Key(1, ["a"]), Key(2, []))


def test_an_optional_value_is_none_where_its_first_column_is_null() -> None:
    assert build_row(Owner, ("web", None, ["a"], None, None)) == Owner("web", Key(None, ["a"]), None)


def test_columns_that_are_left_over_are_the_callers() -> None:
    assert build_row(Key, (1, [], "more")) == Key(1, [])


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(TypeError):
        build_row(Key, (1,))
