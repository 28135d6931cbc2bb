"""Options of the Spark formats: numbers, and hostile values."""

from __future__ import annotations

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.options import source_options, whole_number


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("7", 7), (" 5 ", 5)])
def test_a_number_lies_between_its_bounds_or_on_them(text: str, number: int) -> None:
    assert whole_number({"claimtimeout": text}, "claimTimeout", 4, 3, 7) == number


@pytest.mark.parametrize("text", ["2", "8", "-3", "", "five", "5.0"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(InstanceError, match="'claimTimeout' must be a whole number from 3 to 7, not"):
        whole_number({"claimtimeout": text}, "claimTimeout", 4, 3, 7)


def test_an_option_that_is_left_out_has_its_default() -> None:
    assert whole_number({}, "claimTimeout", 4, 3, 7) == 4


OPTIONS = {"instance": "./data", "database": "D"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queuePattern": "a{99999999999}"}, "'queuePattern' is not a regular expression: the repetition number"),
        ({"queuePattern": "(" * 5000}, "'queuePattern' is "),
        ({"queue": "Q", "maxMessagesPerTrigger": "9" * 5000}, "must be a whole number from 1 to 2147483647, not '9999"),
        ({"queue": "Q", "ack": "x\n" * 5000}, r"must be delete or archive, not 'x\\nx"),
        ({"queue": "Q", "x\x1b[31m" * 5000: "1"}, r"has no option 'x\\x1b"),
        ({"queue": "Q", "Queue": "R"}, "given twice"),
        ({"queue": "Q," * 5000}, "'queue' names a queue twice"),
    ],
    ids=range(7),
)
def test_an_option_that_is_refused_is_shown_on_one_short_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(InstanceError, match=message) as refusal:
        source_options(OPTIONS | options)
    text = str(refusal.value)
    assert len(text) < 1000
    assert text.isprintable()
