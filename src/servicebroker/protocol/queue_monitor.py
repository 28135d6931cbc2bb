"""The queue monitor: the decision whether a queue gets another reader, as a pure function.

The rules: docs/reference/rules.md#queue-monitors.

    monitor = NEW
    monitor, decision = look(monitor, seen, settings, now)

`now` is in seconds of any monotonic clock. After every ALTER QUEUE the caller begins with NEW again. The first look
that sees a message starts one reader at once. The caller has checked that the queue and its activation are ON.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

READER_INTERVAL_S = 5.0  # seconds between two readers under load, and between attempts to start what cannot be started


class MonitorState(StrEnum):
    """The state of a queue's monitor, as in sys.dm_broker_queue_monitors."""

    INACTIVE = "INACTIVE"  # no message is receivable
    NOTIFIED = "NOTIFIED"  # a reader was asked for, and nobody has executed RECEIVE since
    RECEIVES_OCCURRING = "RECEIVES_OCCURRING"


class Decision(Enum):
    """The action that a look leads to."""

    NOTHING = 0
    ACTIVATE = 1  # start one procedure, or send the notifications
    LIMIT = 2  # one more was wanted, but MAX_QUEUE_READERS are running


class Settings(NamedTuple):
    """ACTIVATION of a queue. With `external`, notifications are sent instead, and nobody counts who reads."""

    max_readers: int
    interval: float = READER_INTERVAL_S
    external: bool = False


class Seen(NamedTuple):
    """The state of a queue at one moment. The three counters count all sessions, and restart after a server crash.

    Attributes:
        receivable: whether a message waits in a group that nobody has locked.
        arrivals: messages that have come.
        receives: RECEIVE and GET CONVERSATION GROUP that were executed.
        empty: how many of those returned nothing, but for RECEIVE WHERE: who drains a group has not seen the queue.
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
    """The memory of a queue between two looks. Times are those of `now`, None for never.

    Attributes:
        seen: the last look.
        quiet_since: since when `empty` has not risen while messages were receivable.
        found_nothing: whether `empty` rose when `receives` was last seen to.
        activated_at: how many messages had come when a reader was last asked for.
        retry_at: when a reader is started in place of one that could not be started, or died without RECEIVE.
        last_empty: when `empty` was last seen to rise.
        last_activated: when a reader was last asked for.
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
    """Judge a look at the queue. Returns the monitor from now on, and the action."""
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
        return _activate(monitor, seen, settings, now)  # the last one has left, and not because there was nothing
    if now >= monitor.quiet_since + settings.interval:
        return _activate(monitor, seen, settings, now)
    return monitor, Decision.NOTHING


def could_not_start(monitor: Monitor, settings: Settings, now: float) -> Monitor:
    """The procedure that was asked for is missing, or may not run: it is tried again after the interval."""
    return monitor._replace(state=MonitorState.INACTIVE, retry_at=now + settings.interval)


def died(monitor: Monitor, settings: Settings, now: float) -> Monitor:
    """Start a reader after the interval in place of one that died, unless somebody executes RECEIVE before."""
    if monitor.state != MonitorState.NOTIFIED:
        return monitor
    return monitor._replace(retry_at=now + settings.interval)


def _observe(monitor: Monitor, seen: Seen, now: float) -> Monitor:
    """Note what happened since the last look: RECEIVEs, empty ones among them, and whether messages are left."""
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
