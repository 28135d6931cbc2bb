"""The readers of the Spark source: plan batches of queues, read their parts, and acknowledge rows that the sink has."""

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
from servicebroker.pipeline.open_database import OpenDatabase
from servicebroker.pipeline.options import SourceOptions
from servicebroker.pipeline.queue_lease import QueueLease, find_existing_queues, find_queues
from servicebroker.pipeline.stream import rows
from servicebroker.pipeline.stream.frontier import foreign_offset_error, slice_between
from servicebroker.pipeline.stream.queue_stream import BatchPlan, Budget, QueueStream, divide_into_parts
from servicebroker.pipeline.stream.stream_offsets import digest, is_last_end

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("servicebroker")
MULTI_QUEUE_VERSION = 2  # of offsets that name their queues; a single queue has the offset of the queue itself


class QueueReader(DataSourceReader):
    """Reads what a new stream would read now, and consumes nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return one part of a queue for each task; none if all queues are empty."""
        parts: list[rows.Part] = []
        for options in _options_by_queue(self._options):
            queue = QueueLease.open(options)
            try:
                window = queue.initial.opened(queue.position().frontier)
                end = queue.find_page_end(window, None)
                window_slice = slice_between(window, end) if end else None
                parts += divide_into_parts(options, queue, window_slice, options.min_partitions) if window_slice else []
            finally:
                queue.close()
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part, in a task."""
        return _read(self._options, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream, and acknowledges rows that the sink has committed.

    The offset of a single queue is its `Frontier`; of several queues `{"version": 2, "queues": {name: frontier}}`. Not
    for queries with asynchronous progress tracking: there, a start offset is not yet with the sink.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._streams: dict[str, QueueStream] = {}
        self._directory: OpenDatabase | None = None
        self._fixed: list[str] | None = None  # of an AvailableNow query: the queues that existed when it began
        self._missing: set[str] = set()  # dropped queues that were logged
        self._turn = 0
        self._waiting_since: float | None = None  # of a batch that is too small yet

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset with nothing read, the same at every call. An unknown queue in the option is an error."""
        names = self._options.queues or self._names()
        return self._joined({name: self._stream(name).initial for name in names})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxMessagesPerTrigger."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the present messages: later queues and messages are left to the next query."""
        streams = self._existing_streams()
        for stream in streams.values():
            stream.stop_here()
        self._fixed = list(streams)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing to read.

        Raises:
            InstanceError: the offset belongs to another server, another queue or another time, or to a checkpoint that
                is older than what a queue has given.
        """
        offsets = self._split(start)
        streams = self._existing_streams()
        self._check_gone(offsets, streams)
        self._check_known({name: offset for name, offset in offsets.items() if name in streams}, start)
        plans = self._planned(offsets, streams) or self._plans(offsets, streams, self._budget(limit))
        if not plans or self._must_wait(plans, is_all=isinstance(limit, ReadAllAvailable)):
            return start
        self._waiting_since = None
        ends = {name: streams[name].take(plan) for name, plan in plans.items()}
        unchanged = {name: offset for name, offset in offsets.items() if name in streams}
        return self._joined(unchanged | ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far behind the stream is, for `latestOffset` in Spark's progress.

        That is the `QueueStream.progress` of a single queue; of several queues, the progress of each and of all
        together. None if no queue has progress to report.
        """
        progress_by_name = {name: stream.progress() for name, stream in self._streams.items()}
        known_progress = {name: progress for name, progress in progress_by_name.items() if progress is not None}
        if not known_progress:
            return None
        if self._options.is_of_one_queue:
            (progress,) = known_progress.values()
            return progress
        combined = _combined_progress([*known_progress.values()])
        return {"version": MULTI_QUEUE_VERSION, "queues": known_progress, **combined}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch: the same rows for the same offsets at any time.

        Raises:
            InstanceError: as `latestOffset`; or the checkpoint is older than what a queue has given.
        """
        before, after = self._split(start), self._split(end)
        changed = self._existing([name for name, offset in after.items() if before.get(name) != offset])
        self._check_known({name: after[name] for name in changed}, start, end)
        count = max(1, -(-self._options.min_partitions // max(1, len(changed))))
        parts: list[rows.Part] = []
        for name in changed:
            stream = self._stream(name)
            parts += stream.parts(before.get(name) or stream.earliest, after[name], count)
        source, end_digest = self._source, digest(end)
        return [replace(part, source=source, end=end_digest) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part, in a task."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge everything up to `end`, since the sink has it. Mostly `latestOffset` has done so already."""
        offsets = self._split(end)
        existing = self._existing([*offsets])
        self._check_known({name: offsets[name] for name in existing}, end)
        for name in existing:
            self._stream(name).commit(offsets[name])

    def stop(self) -> None:
        """Release the queues."""
        for stream in self._streams.values():
            stream.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _existing_streams(self) -> dict[str, QueueStream]:
        """Return the streams of the queues that exist now, including new ones of the pattern.

        Streams of dropped queues are closed.
        """
        names = self._names()
        for name in self._streams.keys() - names:
            self._streams.pop(name).close()
        return {name: self._stream(name) for name in names}

    def _names(self) -> list[str]:
        """Return the queues to read that exist. If no listed queue exists, return the list, so that reading fails."""
        wanted = self._options.queues if self._fixed is None else self._fixed
        if not wanted and self._fixed is None:
            return _matching(self._options, self._database())
        return self._existing(wanted) or self._options.queues

    def _existing(self, names: list[str]) -> list[str]:
        """Return those of the queues that exist; all of them if a missing queue has to fail the query."""
        is_the_only_one = self._options.is_of_one_queue and names == self._options.queues
        if self._options.fail_on_data_loss or is_the_only_one or not names:
            return names
        existing = find_existing_queues(self._database(), names)
        if existing:  # if none is left, the query fails
            for name in {*names} - existing - self._missing:
                _log.warning(
                    "The queue '%s' does not exist any more. With failOnDataLoss=false the stream goes on without it.",
                    name,
                )
            self._missing = (self._missing | {*names}) - existing
        return [name for name in names if name in existing]

    def _database(self) -> OpenDatabase:
        """Return the broker database, in which queues are looked up."""
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
                f"The checkpoint has read the queue '{gone[0]}', which does not exist or is not named any more. "
                "Messages of it may be lost: put it back, or go on without it with the option "
                "'failOnDataLoss' = 'false'."
            )

    @property
    def _source(self) -> str:
        """A key of this source within its query, the same after every restart."""
        options = self._options
        return digest(f"{options.database} {options.queue or options.queue_pattern}".lower())

    def _check_known(self, offsets: Mapping[str, Any], *of_checkpoint: dict[str, Any]) -> None:
        """Refuse offsets that are not where their queues are.

        An offset of the checkpoint that ends the last batch of some query is accepted: it is no old copy.

        Raises:
            InstanceError: the checkpoint is older than what a queue has given, or ahead of that.
        """
        unknown = [name for name, offset in offsets.items() if not self._stream(name).is_known(offset)]
        if not unknown:
            return
        connection = self._database().connection
        if not any(is_last_end(connection, self._source, digest(offset)) for offset in of_checkpoint):
            raise self._stream(unknown[0]).refusal(offsets[unknown[0]])

    def _planned(self, offsets: Mapping[str, Any], streams: Mapping[str, QueueStream]) -> dict[str, BatchPlan]:
        """Return the batch that was planned from this start before and never acknowledged, with all its queues."""
        plans = {name: stream.planned_from(offsets.get(name)) for name, stream in streams.items()}
        return {name: plan for name, plan in plans.items() if plan is not None}

    def _plans(
        self, offsets: Mapping[str, Any], streams: Mapping[str, QueueStream], budget: Budget
    ) -> dict[str, BatchPlan]:
        """Return the plan of each queue for the next batch.

        Unused budget goes to the others, and queues begin in turn. What is left in the end goes to queues that have
        more: else a batch would be smaller whenever an empty queue comes last.
        """
        names = list(streams)
        self._turn += 1
        if names:
            names = names[self._turn % len(names) :] + names[: self._turn % len(names)]
        plans: dict[str, BatchPlan] = {}
        for index, name in enumerate(names):
            if budget.is_spent:
                break
            stream = streams[name]
            # A queue that appeared later under a pattern did not exist at the start, so all its messages are read.
            plan = stream.plan(offsets.get(name), budget.share(len(names) - index))
            if plan is not None:
                plans[name] = plan
                if len(names) > 1:
                    budget = budget.without(*stream.measure(plan.window_slice))
        for name, plan in plans.items() if len(names) > 1 else ():
            stream = streams[name]
            if not budget.is_spent and stream.has_more(plan):
                plans[name] = stream.extend(plan, budget.plus(*stream.measure(plan.window_slice)))
                before, after = stream.measure(plan.window_slice), stream.measure(plans[name].window_slice)
                budget = budget.without(after[0] - before[0], after[1] - before[1])
        return plans

    def _must_wait(self, plans: Mapping[str, BatchPlan], *, is_all: bool) -> bool:
        """True if a batch is still too small, and has not yet waited too long."""
        options = self._options
        if not options.has_minimum or self._fixed or is_all or not all(plan.may_wait for plan in plans.values()):
            return False
        now = time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since >= options.max_trigger_delay:
            return False
        sizes = [self._streams[name].measure(plan.window_slice) for name, plan in plans.items()]
        messages, size = (sum(column) for column in zip(*sizes, strict=True))
        minimums = (messages, options.min_messages_per_trigger), (size, options.min_bytes_per_trigger)
        return not any(minimum and size_so_far >= minimum for size_so_far, minimum in minimums)

    def _budget(self, limit: ReadLimit) -> Budget:
        if isinstance(limit, ReadAllAvailable):
            return Budget()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages_per_trigger
        return Budget(most, self._options.max_bytes_per_trigger or None)

    def _split(self, offset: dict[str, Any]) -> dict[str, Any]:
        """Return the offset of each queue. A query may go on with a part of the queues of its checkpoint.

        Raises:
            InstanceError: the offset is of a single queue, but the options name several; or of another source.
        """
        if not isinstance(offset, dict):
            raise foreign_offset_error(offset)
        if offset.get("version") == MULTI_QUEUE_VERSION:
            names: dict[str, str] = {name.lower(): name for name in self._options.queues}
            offsets: dict[str, Any] | None = offset.get("queues")
            if not isinstance(offsets, dict) or not all(isinstance(inner, dict) for inner in offsets.values()):
                raise foreign_offset_error(offset)
            return {names.get(name.lower(), name): queue_offset for name, queue_offset in offsets.items()}
        if not self._options.is_of_one_queue:
            raise InstanceError(
                "The checkpoint was written by a query that reads one queue, and this one reads several: start it with "
                "a new checkpoint location."
            )
        return {self._options.queues[0]: offset}

    def _joined(self, offsets: Mapping[str, Any]) -> dict[str, Any]:
        if self._options.is_of_one_queue:
            return dict(offsets[self._options.queues[0]])
        return {"version": MULTI_QUEUE_VERSION, "queues": dict(offsets)}


def _combined_progress(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the progress of several queues as one: sums, and the worst of ages and of blocking transactions."""
    worst = max(reports, key=lambda report: report.get("blockingSeconds", -1))
    progress = {key: sum(report[key] for report in reports) for key in ("messagesRead", "bytesRead", "messagesBehind")}
    progress["frontierLag"] = max(report["frontierLag"] for report in reports)
    ages = [report["oldestMessageSeconds"] for report in reports if "oldestMessageSeconds" in report]
    return (
        progress
        | ({"oldestMessageSeconds": max(ages)} if ages else {})
        | {key: worst[key] for key in worst if key.startswith("blocking")}
    )


def _options_by_queue(options: SourceOptions) -> list[SourceOptions]:
    """Return the options of each queue."""
    names = options.queues
    if not names:
        with closing(OpenDatabase.open(options.instance, options.database)) as database:
            names = _matching(options, database)
    return [replace(options, queue=name, queue_pattern="") for name in names]


def _matching(options: SourceOptions, database: OpenDatabase) -> list[str]:
    """Return the queues that match the pattern."""
    pattern = re.compile(options.queue_pattern, re.IGNORECASE)
    return [name for name in find_queues(database) if pattern.fullmatch(name)]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Return the rows of a part. If there are no parts, Spark makes up a part of another class."""
    if not isinstance(partition, rows.Part):
        return iter(())
    return iter([rows.part_row(partition)]) if options.delivers_parts else rows.read(partition)
