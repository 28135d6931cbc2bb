from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.model import names
from support import refused

any_name = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=128)


@pytest.mark.feature(25)
def test_a_name_has_1_to_128_characters() -> None:
    assert names.checked("service", "é" * 128) == "é" * 128
    for wrong in ("", "x" * 129, "a\0b", "\ud800"):
        with refused(15151, "service"):
            names.checked("service", wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", ["list"], object()])
def test_a_name_is_a_str(wrong: object) -> None:
    with refused(402, "the queue name", type(wrong).__name__):
        names.checked("queue", wrong)


def test_the_error_about_a_long_name_is_short() -> None:
    with refused(15151, "1 to 128"):
        names.checked("queue", "x" * 100_000)


def test_a_queue_may_not_begin_with_a_hash_but_may_hold_one() -> None:
    assert names.checked_queue("a#b") == "a#b"
    with refused(15151, "#"):
        names.checked_queue("#temporary")


@given(st.lists(any_name, min_size=1, max_size=3))
def test_a_postgres_name_fits_and_is_stable(parts: list[str]) -> None:
    name = names.postgres_name(*parts)
    assert 0 < len(name.encode()) <= names.POSTGRES_IDENTIFIER
    assert name == names.postgres_name(*parts)


@given(any_name)
def test_a_taken_postgres_name_gets_another_one(part: str) -> None:
    first = names.postgres_name(part)
    second = names.postgres_name(part, taken=frozenset([first]))
    assert second != first
    assert len(second.encode()) <= names.POSTGRES_IDENTIFIER


def test_long_names_with_the_same_beginning_stay_apart() -> None:
    assert names.postgres_name("x" * 100 + "1") != names.postgres_name("x" * 100 + "2")


@pytest.mark.parametrize("parts", [("pg", "dbo"), ("PG_x", "dbo"), ("information", "schema")])
def test_a_schema_of_postgresql_itself_is_never_used(parts: tuple[str, str]) -> None:
    name = names.postgres_name(*parts)
    assert not name.startswith("pg_")
    assert name != "information_schema"


@pytest.mark.parametrize(
    ("written", "schema", "queue"),
    [
        ("Q", "dbo", "Q"),
        ("sales.Q", "sales", "Q"),
        ("[a.b]", "dbo", "a.b"),
        ("[a.b].[c d]", "a.b", "c d"),
        ("sales.[we]]ird]", "sales", "we]ird"),
        ("quo\"te's", "dbo", "quo\"te's"),
        ("queue über 1", "dbo", "queue über 1"),
    ],
)
def test_a_queue_name_has_a_schema(written: str, schema: str, queue: str) -> None:
    assert names.split_queue_name(written) == (schema, queue)


@pytest.mark.parametrize("written", ["a.b.c", "[a].[b].[c]"])
def test_a_queue_name_with_too_many_parts_is_refused(written: str) -> None:
    with refused(9609, written):
        names.split_queue_name(written)


@pytest.mark.parametrize("written", ["[", "[]", "a..b", ".a", "a.", "[a", "a]", "[a]b", "a[b]", "we[ird]"])
def test_a_queue_name_that_makes_no_sense_is_refused(written: str) -> None:
    with refused(15151, written):
        names.split_queue_name(written)


@pytest.mark.feature(101)
def test_system_message_types_have_their_names_to_the_byte() -> None:
    names_by_id = {row.message_type_id: (row.name, row.validation) for row in names.SYSTEM_MESSAGE_TYPES}
    broker = "http://schemas.microsoft.com/SQL/ServiceBroker/"
    assert names_by_id[1] == (broker + "Error", "X")
    assert names_by_id[2] == (broker + "EndDialog", "E")
    assert names_by_id[5] == (broker + "DialogTimer", "E")
    assert names_by_id[14] == ("DEFAULT", "N")
    assert sorted(names_by_id) == list(range(1, 15))
