"""Openings may begin a conversation up to a certain age. None does so twice, whatever the clocks show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.model.states import REPLAY_PROTECTION
from servicebroker.protocol.freshness import CLOCK_ALLOWANCE, MAX_AGE, is_fresh

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [(0, True), (19.9, True), (20, False), (10_000, False), (-10, True), (-10.1, False), (-10_000, False)],
)
def test_the_age_at_which_an_opening_is_taken(minutes: float, expected: bool) -> None:
    sealed_at = NOW - timedelta(minutes=minutes)
    assert is_fresh(int(sealed_at.timestamp()), NOW) is expected


@pytest.mark.parametrize("sealed_at", [0, 2**40])
def test_impossible_dates_are_not_fresh(sealed_at: int) -> None:
    assert not is_fresh(sealed_at, NOW)


@given(behind=st.integers(-int(CLOCK_ALLOWANCE.total_seconds()), 10**6), kept=MINUTES, on_its_way=st.floats(0, 300))
def test_an_opening_is_too_old_once_its_conversation_is_forgotten(behind: int, kept: int, on_its_way: float) -> None:
    """`behind`: seconds by which the initiator's clock is behind the target's; at least minus the allowance."""
    sealed = NOW - timedelta(seconds=behind)
    closed = NOW + timedelta(seconds=on_its_way)
    forgotten = closed + REPLAY_PROTECTION + timedelta(minutes=kept)
    assert not is_fresh(int(sealed.timestamp()), forgotten)


@given(seconds=st.integers(-int(CLOCK_ALLOWANCE.total_seconds()), int(CLOCK_ALLOWANCE.total_seconds())))
def test_clocks_within_the_allowance_leave_ten_minutes_for_the_way(seconds: int) -> None:
    sealed = NOW + timedelta(seconds=seconds)
    assert MAX_AGE == 2 * CLOCK_ALLOWANCE
    assert is_fresh(int(sealed.timestamp()), NOW)
    assert is_fresh(int(sealed.timestamp()), NOW + timedelta(minutes=9.9))
