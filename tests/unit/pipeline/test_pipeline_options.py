"""Numbers among the options of the Spark formats."""

from __future__ import annotations

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.options import whole_number


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("7", 7), (" 5 ", 5)])
def test_a_number_lies_between_its_bounds_or_on_them(text: str, number: int) -> None:
    assert whole_number({"claimtimeout": text}, "claimTimeout", 4, 3, 7) == number


@pytest.mark.parametrize("text", ["2", "8", "-3", "", "five", "5.0"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(InstanceError, match="'claimTimeout' must be a whole number from 3 to 7, not"):
        whole_number({"claimtimeout": text}, "claimTimeout", 4, 3, 7)


def test_an_option_that_is_left_out_has_its_default() -> None:
    assert whole_number({}, "claimTimeout", 4, 3, 7) == 4
