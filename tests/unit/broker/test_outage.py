"""The log repeats messages about an outage at increasing intervals only."""

from __future__ import annotations

import logging

import pytest

from servicebroker.store.outage import Outage


def test_the_same_message_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    outage = Outage(logging.getLogger("servicebroker.test"), "Lost", lambda: now)
    for second in range(130):
        now = float(second)
        outage.report(OSError("refused"))
    assert [record.getMessage() for record in caplog.records] == ["Lost: refused"] * 3
    outage.report(OSError("another\nproblem"))
    outage.end()
    outage.report(OSError("another problem"))
    assert [record.getMessage() for record in caplog.records[3:]] == ["Lost: another problem"] * 2
