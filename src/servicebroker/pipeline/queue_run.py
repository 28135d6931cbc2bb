"""The query of one queue: what it has landed, and when it is started again after it has failed."""

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
from servicebroker.pipeline.quarantine_counts import Counts, in_words, nested

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_PAUSE = 1.0  # seconds from a failure to the next start; from failure to failure twice as long
LONGEST_PAUSE = 60.0
STARTS = 5  # of a query that is to end, without a batch in between

_log = logging.getLogger("servicebroker.pipeline")


class State(StrEnum):
    """How the query of a queue stands."""

    WAITS = "waits for its start"
    RUNS = "runs"
    ENDED = "ended"
    FAILED = "failed"


class Started(NamedTuple):
    """A query, and how one returns when what it leaves behind has ended."""

    query: StreamingQuery
    clear: Callable[[], None]


Hear = Callable[["QueueRun", str], None]  # with the name of an event of the log, or "queue stopped"


@dataclass
class QueueRun:
    """The query of one queue, and what it has told so far.

    Attributes:
        start: starts the query where it has stopped.
        once: it is to end, and not to be tried for ever.
        batches, messages, bytes: that have landed since the run began; bytes of bodies.
        seconds: that the last batch took.
        restarts: how often it was started again.
        reason: why it was, or why it has failed.
        behind: what the source says of how far behind it is (`Attachment.progress`).
        hear: is called with each event.
        noted: returns what the sink has noted of the quarantine since the run began.
        quarantined: of the messages, those in quarantine; they may be known before Spark reports their batch.
    """

    queue: QueueRule
    start: Callable[[], Started]
    once: bool
    clock: Callable[[], float] = time.monotonic
    state: State = State.WAITS
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    restarts: int = 0
    reason: str = ""
    behind: dict[str, Any] = field(default_factory=dict)
    hear: Hear = lambda one, event: None
    noted: Callable[[], Counts] = Counter
    quarantined: Counts = field(default_factory=Counter)
    _started: Started | None = None
    _due: float = 0.0
    _failures: int = 0  # since the last batch
    _batch: int = -1
    _read: tuple[int, int] = (0, 0)  # messages and bytes that the reader of this start has counted
    _latest: object = None
    _told: Counts = field(default_factory=Counter)  # of the quarantined, those of batches that were told

    @property
    def label(self) -> str:
        """What tells it from the other queues of the pipeline."""
        return self.queue.label

    @property
    def is_over(self) -> bool:
        """It will not be started any more."""
        return self.state in (State.ENDED, State.FAILED)

    @property
    def is_due(self) -> bool:
        """It is to be started now."""
        return self.state is State.WAITS and self.clock() >= self._due

    def begin(self) -> None:
        """Start the query."""
        began = self.clock()
        try:
            self._started = self.start()
        except InstanceError as problem:
            # a run that goes on finds it when somebody has removed it; one that is to end would try in vain
            self._fail(str(problem), final=self.once and isinstance(problem, OldCheckpoint))
            return
        self.state = State.RUNS
        self._batch, self._read, self._latest = -1, (0, 0), None
        self._tell(logging.INFO, "queue started", "is read", seconds=round(self.clock() - began, 1))

    def look(self) -> None:
        """Take in what Spark has reported since the last look."""
        from servicebroker.pipeline.failed_query import is_final, reason

        if self._started is None:
            return
        query = self._started.query
        is_active = query.isActive  # asked first: a query that breaks in between is seen at the next look
        problem = query.exception()
        self._take_in(query)
        self.take_quarantined()
        if problem is not None:
            self._clear()
            self._fail(reason(problem), final=is_final(problem))
        elif not is_active:
            self._clear()
            self.state = State.ENDED
            self._tell(logging.INFO, "queue ended", f"has nothing more: {self.landed()}", **self.figures())

    def stop(self) -> None:
        """End the query, if it runs."""
        if not self.is_over:
            self.hear(self, "queue stopped")
        if self._started is not None:
            self._started.query.stop()
            self._clear()

    def totals(self) -> dict[str, int]:
        """What has landed since the run began."""
        return {
            "batches": self.batches,
            "messages": self.messages,
            "bytes": self.bytes,
            "quarantined": self.quarantined.total(),
            "restarts": self.restarts,
        }

    def figures(self) -> dict[str, Any]:
        """The totals, and what is in quarantine by message type and reason."""
        return self.totals() | {"quarantined_by_rule": nested(self.quarantined)}

    def landed(self) -> str:
        """What has landed since the run began, in words."""
        read = f"{counted(self.messages, 'message')} in {counted(self.batches, 'batch', 'batches')}"
        return read + _in_quarantine(self.quarantined)

    def take_quarantined(self) -> None:
        """Take in what the sink has noted."""
        self.quarantined = self.noted()

    def _clear(self) -> None:
        if self._started is not None:
            started, self._started = self._started, None
            started.clear()

    def _fail(self, reason: str, *, final: bool) -> None:
        self.reason = reason
        self._failures += 1
        if final or (self.once and self._failures == STARTS):
            self.state = State.FAILED
            self._tell(logging.ERROR, "queue failed", f"is not read any more: {reason}", reason=reason)
            return
        pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
        self.state, self._due = State.WAITS, self.clock() + pause
        self.restarts += 1
        said = f"is started again in {pause:g} s (restart {self.restarts}): {reason}"
        self._tell(logging.WARNING, "queue restarts", said, reason=reason, pause=pause, restarts=self.restarts)

    def _take_in(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None or last.timestamp == self._latest:
            return
        self._latest = last.timestamp
        for progress in query.recentProgress:
            told = json.loads(progress.json)
            (source,) = told["sources"]
            reported = source.get("latestOffset")  # not of a batch that comes again after a start: it is with the next
            self.behind = reported or self.behind
            messages, size = self._newly_read(reported or {})
            if told["batchId"] > self._batch and told["numInputRows"]:
                self._batch = told["batchId"]
                self._landed_batch(messages, size, told["batchDuration"] / 1000)

    def _newly_read(self, reported: dict[str, Any]) -> tuple[int, int]:
        """Messages and bytes that have landed since the last report of this start, which are counted."""
        read = (reported.get("messagesRead", 0), reported.get("bytesRead", 0))
        if read <= self._read:
            return 0, 0
        messages, size = read[0] - self._read[0], read[1] - self._read[1]
        self._read = read
        self.messages += messages
        self.bytes += size
        return messages, size

    def _landed_batch(self, messages: int, size: int, seconds: float) -> None:
        self._failures = 0
        self.batches += 1
        self.seconds = seconds
        read = f"{counted(messages, 'message')}, {size:,} bytes" if messages else "again after a start"
        lag = {key: self.behind.get(key, 0) for key in ("messagesBehind", "oldestMessageSeconds")}
        self.take_quarantined()
        quarantined, self._told = self.quarantined - self._told, self.quarantined
        said = (
            f"batch {self._batch}: {read}{_in_quarantine(quarantined)}, {seconds:.1f} s, "
            f"{lag['messagesBehind']:,} behind, the oldest of them {lag['oldestMessageSeconds']} s"
        )
        figures = {"batch": self._batch, "messages": messages, "bytes": size, "seconds": seconds}
        bad = {"quarantined": quarantined.total(), "quarantined_by_rule": nested(quarantined)}
        self._tell(logging.WARNING if quarantined else logging.INFO, "batch", said, **figures, **bad, **lag)

    def _tell(self, level: int, event: str, said: str, **fields: Any) -> None:
        told = {"event": event, "queue": self.label, **fields}
        _log.log(level, "The queue '%s' %s", self.label, f"{said}.".replace("..", "."), extra={"fields": told})
        self.hear(self, event)


def _in_quarantine(counts: Counts) -> str:
    """How many messages are in quarantine, behind the number of all; "" where none is."""
    return f", {counts.total():,} in quarantine ({in_words(counts)})" if counts else ""
