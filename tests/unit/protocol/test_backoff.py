"""The backoff between attempts to get a resource that another holder has."""

from __future__ import annotations

from servicebroker.protocol.backoff import FIRST_RETRY_S, LAST_RETRY_S, Backoff
from servicebroker.protocol.outgoing import NEVER


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    backoff, now, pauses = Backoff(), 100.0, []
    while len(pauses) < 8:
        backoff.schedule(now, is_left=True)
        assert not backoff.is_due(backoff.at - 0.001)
        pauses.append(backoff.at - now)
        now = backoff.at
        assert backoff.is_due(now)
    expected = [min(FIRST_RETRY_S * 2**n, LAST_RETRY_S) for n in range(8)]
    assert [round(pause, 6) for pause in pauses] == expected
    assert pauses[-1] == LAST_RETRY_S


def test_an_attempt_that_leaves_nothing_begins_anew() -> None:
    backoff = Backoff()
    for now in (1.0, 2.0, 4.0):
        backoff.schedule(now, is_left=True)
        assert backoff.is_due(now + LAST_RETRY_S)
    backoff.schedule(8.0, is_left=False)
    assert backoff.at == NEVER
    backoff.schedule(9.0, is_left=True)
    assert backoff.at == 9.0 + FIRST_RETRY_S


def test_an_attempt_that_is_planned_is_not_put_off() -> None:
    backoff = Backoff()
    backoff.schedule(1.0, is_left=True)
    backoff.schedule(1.01, is_left=True)
    assert backoff.at == 1.0 + FIRST_RETRY_S
