"""Numbers in scripts with more digits than Python parses (4,300), or with digits of another alphabet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from servicebroker.tsql.check import check
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.parser.token_reader import parse_number
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.tokens import batches
from servicebroker.tsql.types import NVARCHAR, parse_type
from servicebroker.tsql.whole_numbers import MAX_DIGITS, is_whole, parse_whole_number

GRAMMAR = Path(__file__).parents[2] / "grammar"
LONG = "9" * 5000
FORMS = {
    "whole": LONG,
    "decimal": f"{LONG}.5",
    "fraction": f"0.{LONG}",
    "float": f"1e{LONG}",
    "binary": f"0x{LONG}F",
    "signs": "-+5",
    "arabic": "\u0663",
    "superscript": "\u00b2",
}


def with_another_number(form: str) -> Iterator[str]:
    """Yield the sentences of the whole grammar with each number replaced in turn."""
    for file in sorted(GRAMMAR.glob("*.sql")):
        for batch in batches(file.read_text()):
            tokens = batch.tokens
            text = tokens.source[tokens.starts[0] : tokens.ends[-2]]
            for match in re.finditer(r"(?<![\w.#@$])\d+(?!\w)", text):
                yield text[: match.start()] + form + text[match.end() :]


@pytest.mark.parametrize("form", FORMS)
def test_no_number_of_the_grammar_ends_the_reader(form: str) -> None:
    """`tsql check` parses and translates. An invalid number is an error of the statement, not of Python."""
    count = 0
    for text in with_another_number(FORMS[form]):
        count += 1
        for found in check(text):
            assert found.statement
    assert count > 1000


def test_a_whole_number_has_38_digits() -> None:
    most = "9" * MAX_DIGITS
    assert parse_whole_number(most) == int(most)
    assert parse_whole_number(f"-000{most}") == -int(most)
    for text in (f"9{most}", f"-9{most}", LONG, "1" + "0" * 4400):
        with pytest.raises(TsqlError, match="maximum precision 38") as error:
            parse_whole_number(text, 7)
        assert (error.value.number, error.value.severity, error.value.line) == (1007, 15, 7)
    assert parse_whole_number("0" * 5000 + "7") == 7


@pytest.mark.parametrize("text", ["", "-", "+", "--5", "-+5", "5-", "1_000", " 5", "\u0663", "\u00b2", "1.5", "1e5"])
def test_other_texts_are_not_whole_numbers(text: str) -> None:
    assert not is_whole(text)


@pytest.mark.parametrize(("text", "refusal"), [(LONG, 1007), ("1e400", 168), (f"1e{LONG}", 168)])
def test_a_literal_that_is_too_large(text: str, refusal: int) -> None:
    with pytest.raises(TsqlError) as error:
        parse_number(text)
    assert error.value.number == refusal
    assert len(error.value.text) < 200


@pytest.mark.parametrize(
    ("value", "target", "refusal"),
    [
        (LONG, "int", 248),
        (LONG, "bigint", 8115),
        (LONG, "decimal(38, 0)", 8115),
        (LONG, "money", 8115),
        (LONG, "smallmoney", 8115),
        (f"-{LONG}", "money", 8115),
        (LONG, "float", 8115),
        (LONG, "real", 8115),
        (f"1e{LONG}", "float", 8115),
        (LONG, "bit", 248),
        (LONG, "datetime", 241),
        (LONG, "time", 241),
        (LONG, "uniqueidentifier", 8169),
        (1e300, "int", 232),
        (1e300, "money", 8115),
        (1e300, "decimal(38, 0)", 8115),
        (1e300, "datetime", 8115),
        (float("inf"), "int", 8115),
        (float("inf"), "datetime", 8115),
        (10**30, "varbinary(8)", 8115),
    ],
)
def test_a_value_that_does_not_fit(value: object, target: str, refusal: int) -> None:
    with pytest.raises(TsqlError) as error:
        convert(value, NVARCHAR if isinstance(value, str) else None, parse_type(target))
    assert error.value.number == refusal
