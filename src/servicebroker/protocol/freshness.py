"""The age of the first message of a secured conversation: what is too old may be a replay, and opens nothing.

A target's endpoint stays for `REPLAY_PROTECTION` after it has closed, by the clock of its broker. Whoever keeps a frame
that opened it can bring the frame again once the endpoint has gone. By then the frame is at least as old as the
endpoint was kept, so the target takes only what was sealed later. Two clocks differ, and a message is on its way for a
while: `CLOCK_ALLOWANCE` is left for both.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from servicebroker.model.states import REPLAY_PROTECTION

CLOCK_ALLOWANCE = timedelta(minutes=10)  # more leaves less time for the way, less refuses clocks that differ by minutes
MAX_AGE = REPLAY_PROTECTION - CLOCK_ALLOWANCE  # of an opening that is taken


def is_fresh(sealed_at: int, now: datetime) -> bool:
    """Return whether a frame that was sealed at that time, in seconds since 1970, may open a conversation."""
    return not is_ahead(sealed_at, now) and now.timestamp() - sealed_at < MAX_AGE.total_seconds()


def is_ahead(moment: int, now: datetime) -> bool:
    """Return whether that time, in seconds since 1970, lies further ahead than clocks may differ."""
    return moment - now.timestamp() > CLOCK_ALLOWANCE.total_seconds()
