"""Runs the Spark query of one queue: reads its progress, and restarts it after failures."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import counted
from servicebroker.pipeline.definition import OldCheckpoint, QueueRule
from servicebroker.pipeline.held_back import DEFAULT_WAIT_S, HeldBack
from servicebroker.pipeline.quarantine_counts import Counts, by_message_type, describe
from servicebroker.pipeline.variables import mask_values

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_RETRY_DELAY_S = 1.0  # the pause after a failure; doubled with each failure in a row
MAX_RETRY_DELAY_S = 60.0
HELD_BACK_POLL_INTERVAL_S = 0.5  # the time between two checks whether an open transaction still holds messages back
MAX_STARTS_WITHOUT_BATCH = 5  # failed starts in a row after which a run with an end gives up

_log = logging.getLogger("servicebroker.pipeline")


class QueueState(StrEnum):
    """The state of a queue's query."""

    WAITING = "waits for its start"
    RUNNING = "runs"
    ENDED = "ended"
    HELD_BACK = "ended with messages held back"
    STOPPED = "was stopped"
    FAILED = "failed"


class RunningQuery(NamedTuple):
    """A running query, and a function that waits until its planning process has ended."""

    query: StreamingQuery
    wait_for_planner: Callable[[], None]


EventListener = Callable[["QueueRun", str], None]  # called with the name of a log event, or "queue stopped"


@dataclass
class QueueRun:
    """The query of one queue, and its progress so far.

    Attributes:
        start: starts the query at its checkpoint.
        once: the query ends when it has read the available messages, and is retried `MAX_STARTS_WITHOUT_BATCH` times.
        batches, messages, bytes: totals written since the run began; bytes are those of bodies.
        seconds: duration of the last batch.
        restarts: number of restarts.
        reason: reason of the last restart, or of the final failure.
        behind: lag of the source (`QueueLease.progress`).
        on_event: called with each event.
        read_quarantine: returns the quarantine counts that the sink has written since the run began.
        quarantined: quarantine counts. They may include a batch that Spark has not reported yet.
        find_held_back: returns the messages that an open transaction holds back (`QueueLease.find_held_back`).
        wait_s: maximum wait of a query with `once` before its start, while messages are held back.
        held_back: messages that are still held back.
    """

    queue: QueueRule
    start: Callable[[], RunningQuery]
    once: bool
    clock: Callable[[], float] = time.monotonic
    state: QueueState = QueueState.WAITING
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    restarts: int = 0
    reason: str = ""
    behind: dict[str, Any] = field(default_factory=dict)
    on_event: EventListener = lambda queue_run, event: None
    read_quarantine: Callable[[], Counts] = Counter
    find_held_back: Callable[[HeldBack | None], HeldBack | None] = lambda before: None
    wait_s: float = DEFAULT_WAIT_S
    held_back: HeldBack | None = None
    quarantined: Counts = field(default_factory=Counter)
    _started: RunningQuery | None = None
    _next_start: float = 0.0  # time by `clock`
    _failures: int = 0  # since the last batch
    _batch: int = -1  # number of the last counted batch
    _read: tuple[int, int] = (0, 0)  # messages and bytes that the reader has counted since the last start
    _last_timestamp: object = None  # the timestamp of the last progress that was read
    _wait_end: float | None = None  # end of the wait for open transactions, by `clock`
    _wait_for_xids_below: int = 0  # the wait is for transactions with a lower id: those that were open when it began
    _start_s: float | None = None  # duration of the last start, until its event is logged
    _logged: Counts = field(default_factory=Counter)  # the part of `quarantined` that batch events have reported

    @property
    def label(self) -> str:
        """The name of the queue in the pipeline."""
        return self.queue.label

    @property
    def is_over(self) -> bool:
        """True if the query will not be started again."""
        return self.state in (QueueState.ENDED, QueueState.HELD_BACK, QueueState.STOPPED, QueueState.FAILED)

    @property
    def has_run(self) -> bool:
        """True if the last start of the query has succeeded."""
        return self.state in (QueueState.RUNNING, QueueState.ENDED, QueueState.HELD_BACK)

    @property
    def is_due(self) -> bool:
        """True if the query waits, and its start time is reached."""
        return self.state is QueueState.WAITING and self.clock() >= self._next_start

    def start_query(self) -> None:
        """Start the query. With `once`, do not start it yet while it must wait for messages that are held back."""
        if self.once and self._must_wait():
            return
        started_at = self.clock()
        try:
            self._started = self.start()
        except InstanceError as problem:
            # A continuous run continues when the checkpoint is removed; for a run with an end, a retry is useless.
            self._fail(str(problem), final=self.once and isinstance(problem, OldCheckpoint))
            return
        self.state = QueueState.RUNNING
        self._batch, self._read, self._last_timestamp = -1, (0, 0), None
        self._start_s = round(self.clock() - started_at, 1)

    def _must_wait(self) -> bool:
        """Return True, and plan the next check, while messages are held back and `wait_s` seconds have not passed.

        The wait is only for transactions that were open when it began. On a busy server, later transactions hold back
        newer messages all the time.
        """
        self.held_back = self.find_held_back(None)
        if self.held_back is None:
            return False
        now = self.clock()
        if self._wait_end is None:
            self._wait_end, self._wait_for_xids_below = now + self.wait_s, self.held_back.following
            text = f"waits up to {self.wait_s:g} s: {self.held_back}"
            self._log_event(logging.WARNING, "queue waits", text, held_back=self.held_back.messages)
        self._next_start = now + HELD_BACK_POLL_INTERVAL_S
        return now < self._wait_end and self.held_back.frontier < self._wait_for_xids_below

    def poll(self) -> None:
        """Read the progress that Spark has reported since the last poll, and handle the end or failure of the query."""
        from servicebroker.pipeline.failed_query import is_final, reason

        if self._started is None:
            return
        query = self._started.query
        is_active = query.isActive  # before exception(): a query that fails in between is handled at the next poll
        problem = query.exception()
        if self._start_s is not None and problem is None and (not is_active or _is_open(query)):
            self._log_event(logging.INFO, "queue started", "is read", seconds=self._start_s)
            self._start_s = None
        self._read_progress(query)
        self.update_quarantined()
        if problem is not None:
            self._release_query()
            self._fail(reason(problem), final=is_final(problem))
        elif not is_active:
            self._release_query()
            self._end()

    def _end(self) -> None:
        """Record and log the end of a query that has read all available messages."""
        if self.held_back is not None:
            self.held_back = self.find_held_back(self.held_back)
        if self.held_back is None:
            self.state = QueueState.ENDED
            text = f"has nothing more: {self.describe_totals()}"
            self._log_event(logging.INFO, "queue ended", text, **self.counts())
            return
        self.state = QueueState.HELD_BACK
        self.reason = f"{self.held_back}: {self.held_back.remedy}"
        text = f"has written {self.describe_totals()}, and {self.reason}"
        self._log_event(logging.WARNING, "queue ended", text, **self.counts())

    def stop(self) -> None:
        """Stop the query if it runs, and do not start it again."""
        if not self.is_over:
            self.on_event(self, "queue stopped")
            self.state = QueueState.STOPPED
        if self._started is not None:
            self._started.query.stop()
            self._release_query()

    def totals(self) -> dict[str, int]:
        """Return the totals since the run began."""
        return {
            "batches": self.batches,
            "messages": self.messages,
            "bytes": self.bytes,
            "quarantined": self.quarantined.total(),
            "restarts": self.restarts,
        }

    def counts(self) -> dict[str, Any]:
        """Return the totals, the messages held back, and the quarantine counts by message type and reason."""
        held_back = self.held_back.messages if self.held_back else 0
        return self.totals() | {"held_back": held_back, "quarantined_by_rule": by_message_type(self.quarantined)}

    def describe_totals(self) -> str:
        """Return the totals since the run began as a phrase."""
        phrase = f"{counted(self.messages, 'message')} in {counted(self.batches, 'batch', 'batches')}"
        return phrase + _quarantine_phrase(self.quarantined)

    def update_quarantined(self) -> None:
        """Read the quarantine counts that the sink has written."""
        self.quarantined = self.read_quarantine()

    def _release_query(self) -> None:
        """Forget the query, after its planning process has ended."""
        if self._started is not None:
            started, self._started = self._started, None
            started.wait_for_planner()

    def _fail(self, reason: str, *, final: bool) -> None:
        self.reason = reason = mask_values(reason)  # here, since lineage and callers of `Run` print it, too
        self._failures += 1
        if final or (self.once and self._failures == MAX_STARTS_WITHOUT_BATCH):
            self.state = QueueState.FAILED
            self._log_event(logging.ERROR, "queue failed", f"is not read any more: {reason}", reason=reason)
            return
        delay_s = min(FIRST_RETRY_DELAY_S * 2 ** (self._failures - 1), MAX_RETRY_DELAY_S)
        self.state, self._next_start = QueueState.WAITING, self.clock() + delay_s
        self.restarts += 1
        text = f"is started again in {delay_s:g} s (restart {self.restarts}): {reason}"
        self._log_event(logging.WARNING, "queue restarts", text, reason=reason, pause=delay_s, restarts=self.restarts)

    def _read_progress(self, query: StreamingQuery) -> None:
        """Add the batches that Spark has reported since the last call to the totals."""
        last = query.lastProgress
        if last is None or last.timestamp == self._last_timestamp:
            return
        self._last_timestamp = last.timestamp
        for progress in query.recentProgress:
            report = json.loads(progress.json)
            (source,) = report["sources"]
            offset = source.get("latestOffset")  # missing for a batch repeated after a start; the next report has it
            self.behind = offset or self.behind
            messages, size = self._count_new(offset or {})
            if report["batchId"] > self._batch and report["numInputRows"]:
                self._batch = report["batchId"]
                self._count_batch(messages, size, report["batchDuration"] / 1000)

    def _count_new(self, offset: dict[str, Any]) -> tuple[int, int]:
        """Add the messages and bytes that the reader has counted since the last report, and return them."""
        read = (offset.get("messagesRead", 0), offset.get("bytesRead", 0))
        if read <= self._read:
            return 0, 0
        messages, size = read[0] - self._read[0], read[1] - self._read[1]
        self._read = read
        self.messages += messages
        self.bytes += size
        return messages, size

    def _count_batch(self, messages: int, size: int, seconds: float) -> None:
        self._failures = 0
        self.batches += 1
        self.seconds = seconds
        read = f"{counted(messages, 'message')}, {size:,} bytes" if messages else "written again after a restart"
        lag = {key: self.behind.get(key, 0) for key in ("messagesBehind", "oldestMessageSeconds")}
        self.update_quarantined()
        quarantined, self._logged = self.quarantined - self._logged, self.quarantined
        text = (
            f"batch {self._batch}: {read}{_quarantine_phrase(quarantined)}, {seconds:.1f} s, "
            f"{lag['messagesBehind']:,} behind, the oldest of them {lag['oldestMessageSeconds']} s"
        )
        batch_fields = {"batch": self._batch, "messages": messages, "bytes": size, "seconds": seconds}
        quarantine_fields = {"quarantined": quarantined.total(), "quarantined_by_rule": by_message_type(quarantined)}
        level = logging.WARNING if quarantined else logging.INFO
        self._log_event(level, "batch", text, **batch_fields, **quarantine_fields, **lag)

    def _log_event(self, level: int, event: str, text: str, **fields: Any) -> None:
        event_fields = {"event": event, "queue": self.label, **fields}
        _log.log(level, "The queue '%s' %s", self.label, f"{text}.".replace("..", "."), extra={"fields": event_fields})
        self.on_event(self, event)


def _is_open(query: StreamingQuery) -> bool:
    """True if the process that plans the query has opened the queue: Spark has got offsets from it."""
    message = query.status["message"]
    return not message.startswith(("Initializing", "Getting offsets"))


def _quarantine_phrase(counts: Counts) -> str:
    """Return a phrase with the number of messages in quarantine, to append to the total; "" for none."""
    return f", {counts.total():,} in quarantine ({describe(counts)})" if counts else ""
