"""The age limit of the first message of a secured conversation: an older one may be a replay, and is refused.

A closed target endpoint is kept for `REPLAY_PROTECTION`, by the clock of its broker, and while it exists a replay is
recognized. An attacker who has recorded the first frame can send it again after the endpoint was deleted. By then the
frame is at least as old as `REPLAY_PROTECTION`. So the target accepts only younger frames. `CLOCK_ALLOWANCE` covers the
difference of the two clocks and the time in transit.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from servicebroker.model.states import REPLAY_PROTECTION

CLOCK_ALLOWANCE = timedelta(minutes=10)  # more leaves less time in transit, less refuses clocks that differ by minutes
MAX_AGE = REPLAY_PROTECTION - CLOCK_ALLOWANCE  # the greatest age of an opening that is accepted


def is_fresh(sealed_at: int, now: datetime) -> bool:
    """Return whether a frame that was sealed at this time (seconds since 1970) may open a conversation."""
    return not is_ahead(sealed_at, now) and now.timestamp() - sealed_at < MAX_AGE.total_seconds()


def is_ahead(time: int, now: datetime) -> bool:
    """Return whether a time (seconds since 1970) is further ahead than clocks may differ."""
    return time - now.timestamp() > CLOCK_ALLOWANCE.total_seconds()
