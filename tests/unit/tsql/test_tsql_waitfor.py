"""The length of WAITFOR DELAY, and the time until the next WAITFOR TIME."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from servicebroker.tsql.interpreter.control import seconds_until
from servicebroker.tsql.statement_errors import TsqlError

NOW = datetime(2030, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "text", "seconds"),
    [
        ("DELAY", "00:00", 0),
        ("DELAY", "0:1", 60),
        ("DELAY", "00:00:05", 5),
        ("DELAY", "00:00:00.5", 0.5),
        ("DELAY", "00:00:00.05", 0.05),
        ("DELAY", "00:00:00:005", 0.005),
        ("DELAY", "00:00:00:5", 0.005),
        ("DELAY", " 23:59:59.999 ", 86399.999),
        ("TIME", "12:00:01", 0.5),
        ("TIME", "12:00:00.500", 0),
        ("TIME", "12:00", 86399.5),
        ("TIME", "00:00", 43199.5),
    ],
)
def test_seconds_of_a_waitfor(kind: str, text: str, seconds: float) -> None:
    assert seconds_until(kind, text, NOW) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "24:00", "00:60", "00:00:60", "00:00:00.1234", "1 day", "-1:00"])
def test_other_texts_are_no_time(text: str) -> None:
    with pytest.raises(TsqlError) as refused:
        seconds_until("DELAY", text, NOW)
    assert refused.value.number == 148
