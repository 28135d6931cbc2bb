"""The queue monitor: the decision whether a queue gets another reader, as a pure function.

The rules: docs/reference/rules.md#queue-monitors.

    monitor = NEW
    monitor, decision = look(monitor, seen, settings, now)

`now` is in seconds of any monotonic clock. After every ALTER QUEUE the caller restarts with NEW. The first call with a
receivable message starts one reader immediately. The caller has checked that the queue and its activation are ON.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

READER_INTERVAL_S = 5.0  # seconds between two readers under load, and between attempts to start what cannot be started


class MonitorState(StrEnum):
    """The state of a queue's monitor, as in sys.dm_broker_queue_monitors."""

    INACTIVE = "INACTIVE"  # no message is receivable
    NOTIFIED = "NOTIFIED"  # a reader was requested, and no RECEIVE was executed since
    RECEIVES_OCCURRING = "RECEIVES_OCCURRING"


class Decision(Enum):
    """The action after a check of the queue."""

    NOTHING = 0
    ACTIVATE = 1  # start one procedure, or send the notifications
    LIMIT = 2  # another reader is needed, but MAX_QUEUE_READERS are running


class Settings(NamedTuple):
    """ACTIVATION of a queue. With `external`, notifications are sent instead, and readers are not counted."""

    max_readers: int
    interval: float = READER_INTERVAL_S
    external: bool = False


class Seen(NamedTuple):
    """The state of a queue. The three counters cover all sessions, and restart after a server crash.

    Attributes:
        receivable: a message waits in a group without a lock.
        arrivals: messages that have arrived.
        receives: RECEIVE and GET CONVERSATION GROUP that were executed.
        empty: those without a result. RECEIVE WHERE does not count: a reader of one group has not checked the queue.
        waiting: sessions that wait for a message.
        running: activated procedures.
    """

    receivable: bool
    arrivals: int = 0
    receives: int = 0
    empty: int = 0
    waiting: int = 0
    running: int = 0


class Monitor(NamedTuple):
    """The memory of a queue between two checks. Times are values of `now`; None: never.

    Attributes:
        seen: the state at the last check.
        quiet_since: the time since which `empty` has not risen while messages were receivable.
        found_nothing: the last RECEIVE was an empty one.
        activated_at: `arrivals` when the last reader was requested.
        retry_at: the time to replace a reader that could not be started, or died without RECEIVE.
        last_empty: the time of the last rise of `empty`.
        last_activated: the time of the last request for a reader.
    """

    state: MonitorState = MonitorState.INACTIVE
    seen: Seen | None = None
    quiet_since: float = 0.0
    found_nothing: bool = False
    activated_at: int = 0
    retry_at: float | None = None
    last_empty: float | None = None
    last_activated: float | None = None


NEW = Monitor()


def look(monitor: Monitor, seen: Seen, settings: Settings, now: float) -> tuple[Monitor, Decision]:
    """Decide after a check of the queue. Returns the new monitor, and the action."""
    begins = monitor.seen is None
    monitor = _observe(monitor, seen, now)
    if not seen.receivable or (monitor.state == MonitorState.NOTIFIED and monitor.retry_at is None):
        return monitor, Decision.NOTHING
    if monitor.retry_at is not None and now < monitor.retry_at:
        return monitor, Decision.NOTHING
    nobody_reads = seen.running == 0 and not settings.external
    if monitor.state != MonitorState.RECEIVES_OCCURRING:
        if seen.running == 0 or begins:
            return _activate(monitor, seen, settings, now)
        monitor = monitor._replace(state=MonitorState.RECEIVES_OCCURRING, quiet_since=now)
    elif nobody_reads and not (monitor.found_nothing and monitor.activated_at == seen.arrivals):
        return _activate(monitor, seen, settings, now)  # the last reader has ended, and not because the queue was empty
    if now >= monitor.quiet_since + settings.interval:
        return _activate(monitor, seen, settings, now)
    return monitor, Decision.NOTHING


def could_not_start(monitor: Monitor, settings: Settings, now: float) -> Monitor:
    """Handle a procedure that is missing or may not run: retry after the interval."""
    return monitor._replace(state=MonitorState.INACTIVE, retry_at=now + settings.interval)


def died(monitor: Monitor, settings: Settings, now: float) -> Monitor:
    """Replace a reader that died, after the interval and unless a RECEIVE is executed before."""
    if monitor.state != MonitorState.NOTIFIED:
        return monitor
    return monitor._replace(retry_at=now + settings.interval)


def _observe(monitor: Monitor, seen: Seen, now: float) -> Monitor:
    """Update the monitor with the changes since the last check: RECEIVEs, empty ones, and receivable messages."""
    before = monitor.seen or seen
    if seen.empty != before.empty:
        monitor = monitor._replace(quiet_since=now, last_empty=now, found_nothing=True)
    elif seen.receives != before.receives:
        monitor = monitor._replace(found_nothing=False)
    if seen.receives != before.receives and monitor.state == MonitorState.NOTIFIED:
        monitor = monitor._replace(state=MonitorState.RECEIVES_OCCURRING, quiet_since=now, retry_at=None)
    if not seen.receivable and monitor.state == MonitorState.RECEIVES_OCCURRING:
        monitor = monitor._replace(state=MonitorState.INACTIVE)
    if seen.receivable and (monitor.seen is None or not before.receivable):
        monitor = monitor._replace(quiet_since=now)
    return monitor._replace(seen=seen)


def _activate(monitor: Monitor, seen: Seen, settings: Settings, now: float) -> tuple[Monitor, Decision]:
    """Start one more reader, if allowed. First, readers that wait in RECEIVE have the interval to take the messages."""
    if seen.waiting and now < monitor.quiet_since + settings.interval:
        return monitor, Decision.NOTHING
    if seen.running >= settings.max_readers and not settings.external:
        return monitor._replace(quiet_since=now), Decision.LIMIT
    is_first = seen.running == 0 or settings.external
    monitor = monitor._replace(
        state=MonitorState.NOTIFIED if is_first else MonitorState.RECEIVES_OCCURRING,
        quiet_since=now,
        activated_at=seen.arrivals,
        retry_at=None,
        last_activated=now,
    )
    return monitor, Decision.ACTIVATE
