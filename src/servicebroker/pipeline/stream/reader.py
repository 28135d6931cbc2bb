"""What the Spark source does: it plans batches of queues, reads their parts, and acknowledges what the sink has."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.attachment import Attachment, find_queues, which_are_there
from servicebroker.pipeline.connecting import OpenDatabase
from servicebroker.pipeline.options import SourceOptions
from servicebroker.pipeline.stream import rows
from servicebroker.pipeline.stream.frontier import between
from servicebroker.pipeline.stream.queue_stream import Budget, Plan, QueueStream, parts_of
from servicebroker.pipeline.stream.stream_offsets import digest, is_last_end, refuse_old

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("servicebroker")
SEVERAL = 2  # the version of offsets that name queues; those of one queue are that queue's


class QueueReader(DataSourceReader):
    """Reads what a new stream would read now, and leaves it where it is."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One part of a queue for each task; none when all are empty."""
        found: list[rows.Part] = []
        for options in _each(self._options):
            queue = Attachment.open(options)
            try:
                window = queue.initial.opened(queue.now().frontier)
                end = queue.page_end(window, None)
                piece = between(window, end) if end else None
                found += parts_of(options, queue, piece, options.min_partitions) if piece else []
            finally:
                queue.close()
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in a task."""
        return _read(self._options, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream, and acknowledges what the sink has committed.

    The offset of one queue is its `Frontier`; of several `{"version": 2, "queues": {name: frontier}}`.
    Not for queries with asynchronous progress tracking: there, a start offset is not yet with the sink.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._streams: dict[str, QueueStream] = {}
        self._directory: OpenDatabase | None = None
        self._fixed: list[str] | None = None  # of an AvailableNow query: the queues that were there when it began
        self._missed: set[str] = set()  # queues that are gone, and it was said
        self._turn = 0
        self._waits_since: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Nothing read; the same at every call. A queue that is named and was never there is told."""
        names = self._options.queues or self._names()
        return self._joined({name: self._stream(name).initial for name in names})

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option maxMessagesPerTrigger."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what is available now: later queues and messages are for the next query."""
        found = self._found()
        for stream in found.values():
            stream.stop_here()
        self._fixed = list(found)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing to read.

        Raises:
            InstanceError: the offset belongs to another server, another queue or another time, or to a checkpoint that
                is older than what a queue has given.
        """
        before = self._split(start)
        streams = self._found()
        self._check_gone(before, streams)
        self._check_old({name: one for name, one in before.items() if name in streams}, start)
        plans = self._planned(before, streams) or self._plans(before, streams, self._budget(limit))
        if not plans or self._waits(plans, is_all=isinstance(limit, ReadAllAvailable)):
            return start
        self._waits_since = None
        ends = {name: streams[name].take(plan) for name, plan in plans.items()}
        kept = {name: offset for name, offset in before.items() if name in streams}
        return self._joined(kept | ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far behind the stream is: `latestOffset` of the source in Spark's progress.

        That is what `QueueStream.progress` tells of its queue; of several, of each and of all together.
        """
        told = {name: stream.progress() for name, stream in self._streams.items()}
        known = {name: one for name, one in told.items() if one is not None}
        if not known:
            return None
        if self._options.is_of_one_queue:
            (one,) = known.values()
            return one
        return {"version": SEVERAL, "queues": known, **_together([*known.values()])}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, the same rows for the same offsets at any time.

        Raises:
            InstanceError: as `latestOffset`; the checkpoint is older than what a queue has given.
        """
        before, after = self._split(start), self._split(end)
        changed = self._there([name for name, offset in after.items() if before.get(name) != offset])
        self._check_old({name: after[name] for name in changed}, start, end)
        count = max(1, -(-self._options.min_partitions // max(1, len(changed))))
        found: list[rows.Part] = []
        for name in changed:
            stream = self._stream(name)
            found += stream.parts(before.get(name) or stream.earliest, after[name], count)
        source, end_digest = self._source, digest(end)
        return [replace(part, source=source, end=end_digest) for part in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in a task."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is with the sink; mostly acknowledged already by `latestOffset`."""
        offsets = self._split(end)
        there = self._there([*offsets])
        self._check_old({name: offsets[name] for name in there}, end)
        for name in there:
            self._stream(name).commit(offsets[name])

    def stop(self) -> None:
        """Let the queues go."""
        for stream in self._streams.values():
            stream.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _found(self) -> dict[str, QueueStream]:
        """The queues that are there now; with a pattern others may have come. Those that are gone are let go."""
        names = self._names()
        for name in self._streams.keys() - names:
            self._streams.pop(name).close()
        return {name: self._stream(name) for name in names}

    def _names(self) -> list[str]:
        """What to read now, as far as it is there. A list of which nothing is left is told as it is."""
        wanted = self._options.queues if self._fixed is None else self._fixed
        if not wanted and self._fixed is None:
            return _matching(self._options, self._database())
        return self._there(wanted) or self._options.queues

    def _there(self, names: list[str]) -> list[str]:
        """Those of the queues that are there; all of them where the one that is gone ends the query."""
        is_the_only_one = self._options.is_of_one_queue and names == self._options.queues
        if self._options.fail_on_data_loss or is_the_only_one or not names:
            return names
        there = which_are_there(self._database(), names)
        if there:  # else it does not go on
            for name in {*names} - there - self._missed:
                _log.warning(
                    "The queue '%s' is not there any more. With failOnDataLoss=false the stream goes on without it.",
                    name,
                )
            self._missed = (self._missed | {*names}) - there
        return [name for name in names if name in there]

    def _database(self) -> OpenDatabase:
        """The broker database, where one looks what is there."""
        if self._directory is None:
            self._directory = OpenDatabase.open(self._options.instance, self._options.database)
        return self._directory

    def _stream(self, name: str) -> QueueStream:
        if name not in self._streams:
            self._streams[name] = QueueStream(replace(self._options, queue=name, queue_pattern=""))
        return self._streams[name]

    def _check_gone(self, before: Mapping[str, Any], streams: Mapping[str, QueueStream]) -> None:
        gone = [name for name in before if name not in streams]
        if gone and self._options.fail_on_data_loss:
            raise InstanceError(
                f"The checkpoint has read the queue '{gone[0]}', which is not there or not asked for any more. "
                "Messages of it may be lost: put it back, or go on without it with the option "
                "'failOnDataLoss' = 'false'."
            )

    @property
    def _source(self) -> str:
        """What tells this source from the others of its query, and stays the same from start to start."""
        options = self._options
        return digest(f"{options.database} {options.queue or options.queue_pattern}".lower())

    def _check_old(self, offsets: Mapping[str, Any], *of_checkpoint: dict[str, Any]) -> None:
        """Refuse offsets of queues that have given more since, unless the checkpoint's are the last of some query.

        Raises:
            InstanceError: the checkpoint is older than what a queue has given.
        """
        old = [name for name, offset in offsets.items() if not self._stream(name).is_known(offset)]
        if not old:
            return
        connection = self._database().connection
        if not any(is_last_end(connection, self._source, digest(offset)) for offset in of_checkpoint):
            raise refuse_old(old[0])

    def _planned(self, before: Mapping[str, Any], streams: Mapping[str, QueueStream]) -> dict[str, Plan]:
        """The batch that was planned from this start before, of all its queues, where nobody has acknowledged it."""
        found = {name: stream.planned_from(before.get(name)) for name, stream in streams.items()}
        return {name: plan for name, plan in found.items() if plan is not None}

    def _plans(self, before: Mapping[str, Any], streams: Mapping[str, QueueStream], budget: Budget) -> dict[str, Plan]:
        """What each queue has for the next batch. What one does not need is for the others; each begins in its turn."""
        names = list(streams)
        self._turn += 1
        if names:
            names = names[self._turn % len(names) :] + names[: self._turn % len(names)]
        found: dict[str, Plan] = {}
        for place, name in enumerate(names):
            if budget.is_spent:
                break
            stream = streams[name]
            # what comes under a pattern later has not been there at the start: all of it is for this stream
            plan = stream.plan(before.get(name), budget.share(len(names) - place))
            if plan is not None:
                found[name] = plan
                if len(names) > 1:
                    budget = budget.without(*stream.measure(plan.piece))
        return found

    def _waits(self, plans: Mapping[str, Plan], *, is_all: bool) -> bool:
        """Whether a batch is too small yet, and young enough to wait for more."""
        options = self._options
        if not options.has_minimum or self._fixed or is_all or not all(plan.may_wait for plan in plans.values()):
            return False
        now = time.monotonic()
        self._waits_since = now if self._waits_since is None else self._waits_since
        if now - self._waits_since >= options.max_trigger_delay:
            return False
        sizes = [self._streams[name].measure(plan.piece) for name, plan in plans.items()]
        messages, size = (sum(column) for column in zip(*sizes, strict=True))
        enough = (messages, options.min_messages_per_trigger), (size, options.min_bytes_per_trigger)
        return not any(least and has >= least for has, least in enough)

    def _budget(self, limit: ReadLimit) -> Budget:
        if isinstance(limit, ReadAllAvailable):
            return Budget()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages_per_trigger
        return Budget(most, self._options.max_bytes_per_trigger or None)

    def _split(self, offset: dict[str, Any]) -> dict[str, Any]:
        """The offset of each queue. One of several queues is read on where the others are not asked for any more.

        Raises:
            InstanceError: it is one of a single queue, and there are several here.
        """
        if offset.get("version") == SEVERAL:
            asked = {name.lower(): name for name in self._options.queues}
            return {asked.get(name.lower(), name): one for name, one in offset["queues"].items()}
        if not self._options.is_of_one_queue:
            raise InstanceError(
                "The checkpoint was written by a query that reads one queue, and this one reads several: start it with "
                "a new checkpoint location."
            )
        return {self._options.queues[0]: offset}

    def _joined(self, offsets: Mapping[str, Any]) -> dict[str, Any]:
        if self._options.is_of_one_queue:
            return dict(offsets[self._options.queues[0]])
        return {"version": SEVERAL, "queues": dict(offsets)}


def _together(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The progress of several queues as one: sums, and of what is old or held back the worst."""
    worst = max(told, key=lambda one: one.get("blockingSeconds", -1))
    found = {key: sum(one[key] for one in told) for key in ("messagesRead", "bytesRead", "messagesBehind")}
    found["frontierLag"] = max(one["frontierLag"] for one in told)
    ages = [one["oldestMessageSeconds"] for one in told if "oldestMessageSeconds" in one]
    return (
        found
        | ({"oldestMessageSeconds": max(ages)} if ages else {})
        | {key: worst[key] for key in worst if key.startswith("blocking")}
    )


def _each(options: SourceOptions) -> list[SourceOptions]:
    """The options of each queue."""
    names = options.queues
    if not names:
        with closing(OpenDatabase.open(options.instance, options.database)) as database:
            names = _matching(options, database)
    return [replace(options, queue=name, queue_pattern="") for name in names]


def _matching(options: SourceOptions, database: OpenDatabase) -> list[str]:
    """The queues that the pattern is for."""
    pattern = re.compile(options.queue_pattern, re.IGNORECASE)
    return [name for name in find_queues(database) if pattern.fullmatch(name)]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a part. Spark makes up a part of another kind when there is none."""
    if not isinstance(partition, rows.Part):
        return iter(())
    return iter([rows.announced(partition)]) if options.delivers_parts else rows.read(partition)
