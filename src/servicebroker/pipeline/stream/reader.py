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
from servicebroker.overriding import override
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
MULTI_QUEUE_VERSION = 2  # version of offsets of several queues; a single queue has its own offset


class QueueReader(DataSourceReader):
    """Reads the messages that a new stream would read now, without consuming them (`spark.read`)."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @override
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

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part, in a task."""
        return _read(self._options, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream, and acknowledges rows that the sink has committed (`spark.readStream`).

    The offset of a single queue is its `Frontier`; of several queues `{"version": 2, "queues": {name: frontier}}`.
    Asynchronous progress tracking is not supported: with it, Spark plans from offsets that the sink does not have yet.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._streams: dict[str, QueueStream] = {}
        self._opened_database: OpenDatabase | None = None
        self._queues_at_start: list[str] | None = None  # only of an AvailableNow query
        self._missing: set[str] = set()  # dropped queues for which a warning was logged
        self._turn = 0  # number of plans, by which queues begin in turn
        self._waiting_since: float | None = None  # the monotonic time since which a batch is smaller than its minimum

    @override
    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a stream that has read nothing. Every call returns the same offset.

        Raises:
            BrokerError: a queue of the option does not exist.
        """
        names = self._options.queues or self._names()
        return self._joined({name: self._stream(name).initial for name in names})

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxMessagesPerTrigger."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the present queues and messages. The next query reads later ones."""
        streams = self._existing_streams()
        for stream in streams.values():
            stream.limit_to_present()
        self._queues_at_start = list(streams)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offset of the next batch; `start` if there is nothing to read.

        Raises:
            InstanceError: the offset belongs to another server or queue, or to a server restored to an earlier time;
                or the checkpoint is an old copy.
        """
        offsets = self._split(start)
        streams = self._existing_streams()
        self._check_for_dropped(offsets, streams)
        self._check_known({name: offset for name, offset in offsets.items() if name in streams}, start)
        plans = self._repeated_plans(offsets, streams) or self._new_plans(offsets, streams, self._budget(limit))
        if not plans or self._must_wait(plans, is_all=isinstance(limit, ReadAllAvailable)):
            return start
        self._waiting_since = None
        ends = {name: streams[name].record_plan(plan) for name, plan in plans.items()}
        unchanged = {name: offset for name, offset in offsets.items() if name in streams}
        return self._joined(unchanged | ends)

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the lag of the stream, which Spark's progress shows as `latestOffset`.

        For a single queue, this is `QueueStream.progress`. For several queues, it has the progress of each queue and
        totals. None if no queue has progress to report.
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

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. The same offsets give the same rows at any time.

        Raises:
            InstanceError: as `latestOffset`.
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

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part, in a task."""
        return _read(self._options, partition)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge all rows up to `end`, which the sink has. Usually `latestOffset` has already done so."""
        offsets = self._split(end)
        existing = self._existing([*offsets])
        self._check_known({name: offsets[name] for name in existing}, end)
        for name in existing:
            self._stream(name).commit(offsets[name])

    @override
    def stop(self) -> None:
        """Release the queues, and close the connections."""
        for stream in self._streams.values():
            stream.close()
        if self._opened_database is not None:
            self._opened_database.close()
            self._opened_database = None

    def _existing_streams(self) -> dict[str, QueueStream]:
        """Return the streams of the existing queues by name, including new queues that match the pattern.

        Close the streams of dropped queues.
        """
        names = self._names()
        for name in self._streams.keys() - names:
            self._streams.pop(name).close()
        return {name: self._stream(name) for name in names}

    def _names(self) -> list[str]:
        """Return the names of existing queues to read.

        If none of the option's queues exists, return all of them, so that reading fails.
        """
        names = self._options.queues if self._queues_at_start is None else self._queues_at_start
        if not names and self._queues_at_start is None:
            return _matching(self._options, self._database())
        return self._existing(names) or self._options.queues

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
        """Return a connection for looking up queues, which is opened at the first call."""
        if self._opened_database is None:
            self._opened_database = OpenDatabase.open(self._options.instance, self._options.database)
        return self._opened_database

    def _stream(self, name: str) -> QueueStream:
        if name not in self._streams:
            self._streams[name] = QueueStream(replace(self._options, queue=name, queue_pattern=""))
        return self._streams[name]

    def _check_for_dropped(self, offsets: Mapping[str, Any], streams: Mapping[str, QueueStream]) -> None:
        dropped = [name for name in offsets if name not in streams]
        if dropped and self._options.fail_on_data_loss:
            raise InstanceError(
                f"The checkpoint has read the queue '{dropped[0]}', which does not exist or is not named any more. "
                "Messages of it may be lost: put it back, or go on without it with the option "
                "'failOnDataLoss' = 'false'."
            )

    @property
    def _source(self) -> str:
        """The key by which `stream_batches` identifies this source. It is the same after every restart."""
        options = self._options
        return digest(f"{options.database} {options.queue or options.queue_pattern}".lower())

    def _check_known(self, offsets: Mapping[str, Any], *of_checkpoint: dict[str, Any]) -> None:
        """Check offsets against the record of each queue (`stream_offsets.py`).

        An unknown offset is accepted if an offset in `of_checkpoint` ends the last batch of a query.

        Raises:
            InstanceError: the checkpoint is older than the acknowledged offset of a queue, or ahead of the queue.
        """
        unknown = [name for name, offset in offsets.items() if not self._stream(name).is_known(offset)]
        if not unknown:
            return
        connection = self._database().connection
        if not any(is_last_end(connection, self._source, digest(offset)) for offset in of_checkpoint):
            raise self._stream(unknown[0]).refusal(offsets[unknown[0]])

    def _repeated_plans(self, offsets: Mapping[str, Any], streams: Mapping[str, QueueStream]) -> dict[str, BatchPlan]:
        """Return by queue the plans of a batch that was planned from these offsets and never acknowledged."""
        plans = {name: stream.planned_from(offsets.get(name)) for name, stream in streams.items()}
        return {name: plan for name, plan in plans.items() if plan is not None}

    def _new_plans(
        self, offsets: Mapping[str, Any], streams: Mapping[str, QueueStream], budget: Budget
    ) -> dict[str, BatchPlan]:
        """Return by queue the plans of the next batch.

        Each queue gets a share of the budget. Budget that a queue does not use goes to the queues after it. The rest
        goes to queues that have more messages. The queues take turns in coming first.
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
        """True if a batch is smaller than its minimum, and has not waited for `max_trigger_delay` seconds yet."""
        options = self._options
        if (
            not options.has_minimum
            or self._queues_at_start
            or is_all
            or not all(plan.may_wait for plan in plans.values())
        ):
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
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages_per_trigger
        return Budget(max_rows, self._options.max_bytes_per_trigger or None)

    def _split(self, offset: dict[str, Any]) -> dict[str, Any]:
        """Return the offset of each queue. The options may name only some of the checkpoint's queues.

        Raises:
            InstanceError: the offset is of a single queue, but the options name several; or it is of another source.
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
        """Return the offset of the stream, from the offset of each queue: the reverse of `_split`."""
        if self._options.is_of_one_queue:
            return dict(offsets[self._options.queues[0]])
        return {"version": MULTI_QUEUE_VERSION, "queues": dict(offsets)}


def _combined_progress(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the combined progress of several queues: sums, the largest lag and age, and the oldest blocker."""
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
    """Return the rows of a part. If there are no parts, Spark passes a partition of another class."""
    if not isinstance(partition, rows.Part):
        return iter(())
    return iter([rows.part_row(partition)]) if options.delivers_parts else rows.read(partition)
