"""What the Spark source does: it plans batches of a queue, reads their parts, and acknowledges what the sink has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline import rows
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.frontier import Frontier, Now, Share, Slice, between, check_continuity, divided
from servicebroker.pipeline.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("servicebroker")


class QueueReader(DataSourceReader):
    """Reads what a new stream would read now, and leaves it where it is."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One part of the queue for each task; none when it is empty."""
        queue = Attachment.open(self._options)
        try:
            window = queue.initial.opened(queue.now().frontier)
            end = queue.page_end(window, None)
            return _parts(self._options, queue, between(window, end) if end else None)
        finally:
            queue.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in a task."""
        return _read(self._options, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream, and acknowledges what the sink has committed.

    Not for queries with asynchronous progress tracking: there, a start offset is not yet with the sink.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._queue: Attachment | None = None
        self._acknowledged: Frontier | None = None
        self._planned: Frontier | None = None
        self._read = {"messagesRead": 0, "bytesRead": 0}  # in the batches up to the one that ends at
        self._read_to: Frontier | None = None
        self._told_last: dict[str, Any] | None = None  # what is behind a query that has read what was available
        self._began_anew = False
        self._target: int | None = None  # the frontier that ends an AvailableNow query

    def initialOffset(self) -> dict[str, Any]:
        """Nothing read; the same at every call."""
        return self._attached().initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option maxMessagesPerTrigger."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what is available now. An open transaction holds the frontier back, here as everywhere."""
        self._target = self._attached().now().frontier

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing to read.

        Spark plans a batch from `start` only after the sink has committed everything up to it, so `start` is
        acknowledged here: `commit` would come too late, and never for the last batch of a query.

        Raises:
            InstanceError: the offset belongs to another server, another queue or another time.
        """
        queue = self._attached()
        now = queue.now()
        offset = self._continued(Frontier.from_json(start), now) or queue.initial
        self._acknowledge(offset)
        at_most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        hi = now.frontier if self._target is None else self._target
        end = queue.page_end(offset, at_most)
        if end is None and offset.hi < hi:
            end = queue.page_end(offset.opened(hi), at_most)
            if end:
                queue.keep_frontier()
        self._planned = end or offset
        if end is not None:
            self._count(between(offset, end), end)
        elif self._target is not None:
            self._told_last = queue.progress(offset)
            self.stop()  # the query ends now, and whoever waits for that is to find the queue free
        return end.to_json() if end else start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far behind the stream is (`Attachment.progress`): `latestOffset` of the source in Spark's progress.

        With it go `messagesRead` and `bytesRead`: how many messages were in the batches so far, and how many bytes
        their bodies.
        """
        if self._planned is None:
            return None
        behind = self._told_last if self._queue is None else None
        return self._planned.to_json() | self._read | (behind or self._attached().progress(self._planned))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, the same rows for the same offsets at any time."""
        queue = self._attached()
        now = queue.now()
        last = self._continued(Frontier.from_json(end), now)
        if last is None:
            return []  # a batch that was planned in another life of the server
        first = self._continued(Frontier.from_json(start), now) or queue.initial
        piece = between(first, last)
        self._count(piece, last)
        return _parts(self._options, queue, piece)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in a task."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is with the sink; mostly acknowledged already by `latestOffset`."""
        offset = self._continued(Frontier.from_json(end), self._attached().now())
        if offset is not None:
            self._acknowledge(offset)

    def stop(self) -> None:
        """Let the queue go."""
        if self._queue:
            self._queue.close()
            self._queue = None

    def _attached(self) -> Attachment:
        """The queue, owned. Opened at the first use, since Spark also copies readers into other processes."""
        if self._queue is None:
            queue = Attachment.open(self._options)
            try:
                queue.claim(self._options.claim_timeout)
            except BaseException:
                queue.close()
                raise
            self._queue = queue
        return self._queue

    def _continued(self, offset: Frontier, now: Now) -> Frontier | None:
        """The offset, or None where it means nothing here and the stream begins anew, as failOnDataLoss=false wants.

        Raises:
            InstanceError: it means nothing here.
        """
        here = self._attached().initial
        try:
            check_continuity(offset, here, now)
        except InstanceError as problem:
            if self._options.fail_on_data_loss:
                raise
            if not self._began_anew:
                _log.warning("%s With failOnDataLoss=false the stream begins anew.", problem)
            self._began_anew = True
            return None
        return replace(offset, database_oid=here.database_oid)

    def _count(self, piece: Slice | None, end: Frontier) -> None:
        """Once for each batch: when it is planned, for Spark asks for its progress next, or when it comes again."""
        if piece is not None and end != self._read_to:
            messages, size = self._attached().measure(piece, system_messages=self._options.include_system_messages)
            self._read["messagesRead"] += messages
            self._read["bytesRead"] += size
            self._read_to = end

    def _acknowledge(self, offset: Frontier) -> None:
        if offset != self._acknowledged:
            self._attached().acknowledge(offset, self._options.end_of_stream)
            self._acknowledged = offset


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a part. Spark makes up a part of another kind when there is none."""
    if not isinstance(partition, rows.Part):
        return iter(())
    return iter([rows.announced(partition)]) if options.delivers_parts else rows.read(partition)


def _parts(options: SourceOptions, queue: Attachment, piece: Slice | None) -> list[InputPartition]:
    if piece is None:
        return []
    parts = options.min_partitions
    if options.partitioning == "range":
        shares = [(one, Share(0, 1)) for one in divided(piece, parts)]
    else:
        shares = [(piece, Share(number, parts)) for number in range(parts)]
    kinds = (queue.reads_archive(piece.lo), options.include_system_messages)
    where = (options.instance, queue.queue_name, queue.queue_id, queue.database_id)
    return [rows.Part(*where, *share, *kinds) for share in shares]
