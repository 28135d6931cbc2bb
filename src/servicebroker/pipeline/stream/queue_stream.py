"""The stream of one queue: plans its batches, divides them into parts, and acknowledges them."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from servicebroker.model.errors import InstanceError, ServiceBrokerError
from servicebroker.pipeline.options import SourceOptions
from servicebroker.pipeline.queue_lease import QueueLease
from servicebroker.pipeline.stream import rows
from servicebroker.pipeline.stream.frontier import (
    Frontier,
    GroupPartition,
    QueuePosition,
    Slice,
    check_continuity,
    divide_slice,
    slice_between,
)
from servicebroker.pipeline.stream.stream_offsets import StreamOffsets

_log = logging.getLogger("servicebroker")
MIN_BACKGROUND_DELETE_ROWS = 10_000  # for fewer, a second connection costs more than it saves


class Budget(NamedTuple):
    """The limits of a batch: messages, and bytes of bodies, which a single message may exceed. None is no limit."""

    messages: int | None = None
    bytes: int | None = None

    def share(self, of: int) -> Budget:
        """Return the share of one of `of` queues that have not planned yet: at least one message and one byte."""
        return Budget(*(None if limit is None else max(1, -(-limit // of)) for limit in self))

    def without(self, messages: int, size: int) -> Budget:
        """Return the remaining budget."""
        used = (messages, size)
        pairs = zip(self, used, strict=True)
        return Budget(*(None if limit is None else max(0, limit - amount) for limit, amount in pairs))

    def plus(self, messages: int, size: int) -> Budget:
        """Return a larger budget."""
        pairs = zip(self, (messages, size), strict=True)
        return Budget(*(None if limit is None else limit + amount for limit, amount in pairs))

    @property
    def is_spent(self) -> bool:
        """True if nothing more fits."""
        return 0 in self


class BatchPlan(NamedTuple):
    """The next batch of a queue: its start and end, its rows, and whether it may wait for more messages."""

    start: Frontier
    end: Frontier
    window_slice: Slice
    may_wait: bool


class BackgroundDeleter:
    """Deletes acknowledged rows of a queue in a thread and on a connection of its own.

    Attributes:
        session: its process id in PostgreSQL.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._queue = QueueLease.open(options)
        self._thread = ThreadPoolExecutor(1, "servicebroker acknowledges")
        self._pending: Future[None] | None = None
        self.session = self._queue.connection.info.backend_pid

    def begin(self, offset: Frontier) -> None:
        """Begin to delete the rows up to `offset`."""
        self._pending = self._thread.submit(self._queue.remove_rows, offset)

    def wait(self) -> None:
        """Wait for the pending deletion.

        Raises:
            psycopg.Error: the deletion has failed.
        """
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def close(self) -> None:
        """Wait for the pending deletion. If it fails, the next stream of the queue repeats it."""
        try:
            self.wait()
        except psycopg.Error as problem:
            _log.warning("Rows that the sink has are still in the queue; the next stream deletes them: %s", problem)
        finally:
            self._thread.shutdown()
            self._queue.close()


class QueueStream:
    """A queue that a stream owns, from its first use until `close`.

    Attributes:
        read: messages and bytes of bodies in the batches since the start.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._queue: QueueLease | None = None
        self._offsets: StreamOffsets | None = None  # opened with the queue
        self._deleter: BackgroundDeleter | None = None  # opened by the first large batch
        self._acknowledged: Frontier | None = None
        self._planned: Frontier | None = None
        self._read_to: Frontier | None = None
        self._has_started_over = False
        self._measured: tuple[Slice, tuple[int, int]] | None = None
        self._target: int | None = None  # the frontier up to which an AvailableNow query reads
        self._last_progress: dict[str, Any] | None = None  # of an AvailableNow query that has read all of the queue
        self.read = {"messagesRead": 0, "bytesRead": 0}

    @property
    def _is_done(self) -> bool:
        """True if an AvailableNow query has read and acknowledged all of the queue, and released it."""
        return self._last_progress is not None

    @property
    def initial(self) -> dict[str, Any]:
        """The offset of a stream that has read nothing, the same at every call."""
        return self._owned_queue().initial.to_json()

    @property
    def earliest(self) -> dict[str, Any]:
        """The offset before all messages, whatever the starting offset of the stream is."""
        return replace(self._owned_queue().initial, lo=0, hi=0).to_json()

    def stop_here(self) -> None:
        """Read only the present messages. As always, an open transaction holds the frontier back."""
        self._target = self._owned_queue().position().frontier

    def is_known(self, offset: dict[str, Any]) -> bool:
        """True if a stream may continue at `offset`: it is recorded, planned or initial, or there is no record of it.

        Raises:
            InstanceError: the offset belongs to another server, another queue or another time.
        """
        own_offsets = [own.to_json() for own in (self._planned, self._acknowledged) if own is not None]
        if self._is_done or offset in own_offsets:
            return True
        queue = self._owned_queue()
        known = self._continue_from(Frontier.from_json(offset), queue.position())
        return known is None or self._stream_offsets().is_known(known)

    def refusal(self, offset: dict[str, Any]) -> InstanceError:
        """Return the error for an offset that is not known."""
        return self._stream_offsets().refusal(Frontier.from_json(offset), self._owned_queue().queue_name)

    def planned_from(self, start: dict[str, Any] | None) -> BatchPlan | None:
        """Return the batch that was planned from `start` before and never acknowledged, to plan it again.

        None without such a batch.
        """
        if self._is_done:
            return None
        offset = Frontier.from_json(start or self.earliest)
        end = self._stream_offsets().planned_from(offset)
        if end is None or self._continue_from(offset, self._owned_queue().position()) is None:
            return None
        self._wait_for_deletion()
        self.acknowledge(offset)
        window_slice = slice_between(offset, end)
        assert window_slice is not None
        return BatchPlan(offset, end, window_slice, may_wait=False)

    def plan(self, start: dict[str, Any] | None, budget: Budget) -> BatchPlan | None:
        """Return the batch after `start`, None if there is nothing to read. Without `start`, begin before all messages.

        Spark plans a batch from `start` only after the sink has committed everything up to it. So `start` is
        acknowledged here: `commit` would come too late, and never for the last batch of a query.

        Raises:
            InstanceError: the offset belongs to another server, another queue or another time.
            psycopg.Error: the deletion during the last batch has failed.
        """
        if self._is_done:
            return None
        self._wait_for_deletion()
        queue = self._owned_queue()
        position = queue.position()
        offset = self._continue_from(Frontier.from_json(start or self.earliest), position) or queue.initial
        self.acknowledge(offset)
        hi = position.frontier if self._target is None else self._target
        page_start, may_wait = offset, False  # the rest of a window does not wait for more messages
        end = queue.find_page_end(offset, *budget)
        if end is None:
            self._wait_for_deletion()  # offsets of the next window do not cover rows of this one
        if end is None and offset.hi < hi:
            page_start, may_wait = offset.opened(hi), True
            end = queue.find_page_end(page_start, *budget)
        self._planned = offset
        if end is None:
            if self._target is not None:  # the query ends now, so the queue must be free for the next reader
                self._last_progress = queue.progress(offset)
                self.close()
            return None
        window_slice = slice_between(page_start, end)
        assert window_slice is not None
        return BatchPlan(offset, end, window_slice, may_wait)

    def has_more(self, plan: BatchPlan) -> bool:
        """True if the window of a plan has further rows."""
        return self._owned_queue().has_more_rows(plan.end)

    def extend(self, plan: BatchPlan, budget: Budget) -> BatchPlan:
        """Return the plan with as many rows of its window as the budget allows."""
        page_start = plan.end.read_to(plan.window_slice.after)
        end = self._owned_queue().find_page_end(page_start, *budget) or plan.end
        return plan._replace(end=end, window_slice=plan.window_slice._replace(upto=end.queuing_order))

    def measure(self, window_slice: Slice) -> tuple[int, int]:
        """Return the number of messages of a batch, and the bytes of their bodies. The last answer is cached."""
        if self._measured is None or self._measured[0] != window_slice:
            system_messages = self._options.include_system_messages
            self._measured = window_slice, self._owned_queue().measure(window_slice, system_messages=system_messages)
        return self._measured[1]

    def take(self, plan: BatchPlan) -> dict[str, Any]:
        """Record the plan as Spark's next batch, and return its end offset."""
        self._planned = plan.end
        self._count(plan.window_slice, plan.end)
        # This commit also keeps the frontier of a new window valid after a crash, as `frontier.KEEP_FRONTIER` does.
        self._stream_offsets().record_planned(plan.start, plan.end)
        return plan.end.to_json()

    def parts(self, start: dict[str, Any], end: dict[str, Any], count: int) -> list[rows.Part]:
        """Return the tasks of a batch: the same rows for the same offsets at any time."""
        queue = self._owned_queue()
        position = queue.position()
        last = self._continue_from(Frontier.from_json(end), position)
        if last is None:
            return []  # a batch of another server or time
        first = self._continue_from(Frontier.from_json(start), position) or queue.initial
        window_slice = slice_between(first, last)
        if window_slice is None:
            return []
        self._count(window_slice, last)
        return divide_into_parts(self._options, queue, window_slice, count)

    def _count(self, window_slice: Slice, end: Frontier) -> None:
        """Add a batch to `read` once: when it is planned, since Spark asks for progress next, or repeated."""
        if end != self._read_to:
            messages, size = self.measure(window_slice)
            self.read["messagesRead"] += messages
            self.read["bytesRead"] += size
            self._read_to = end

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge everything up to `end`, since the sink has it. Mostly `plan` has done so already.

        A queue that is done is acknowledged completely, and no longer owned.
        """
        offset = Frontier.from_json(end)
        if self._is_done or offset == self._acknowledged:
            return
        known = self._continue_from(offset, self._owned_queue().position())
        if known is not None:
            self.acknowledge(known)

    def acknowledge(self, offset: Frontier) -> None:
        """Remove everything up to `offset` from the queue: now, or while the next batch is read.

        Deleting the rows of a large batch takes a third of the time in which Spark reads the next one. The deletion can
        wait if the next batch is of the same window: its offset covers these rows too, so that they are deleted with it
        after a crash. Conversations are ended before the next batch is planned, since an END takes rows of that batch.
        """
        if offset == self._acknowledged:
            return
        self._wait_for_deletion()
        queue = self._owned_queue()
        if not offset.is_initial:
            self._stream_offsets().record_acknowledged(offset)
        rows = queue.find_rows(offset, self._options.end_of_stream)
        is_large = self._measured is not None and self._measured[1][0] >= MIN_BACKGROUND_DELETE_ROWS
        has_only_rows = rows is not None and rows.need_only_deletion and not queue.archives
        if is_large and has_only_rows and queue.has_more_rows(offset) and (deleter := self._open_deleter()):
            deleter.begin(offset)
        elif rows:
            queue.acknowledge(offset, rows)
        self._acknowledged = offset

    def _open_deleter(self) -> BackgroundDeleter | None:
        """Return the background deleter; None if it cannot connect."""
        try:
            self._deleter = self._deleter or BackgroundDeleter(self._options)
        except (ServiceBrokerError, psycopg.Error) as problem:
            _log.warning("Rows are not deleted while the next batch is read: %s", problem)
        return self._deleter

    def _wait_for_deletion(self) -> None:
        """Wait for rows that are being deleted in the background."""
        try:
            if self._deleter:
                self._deleter.wait()
        except BaseException:
            self._acknowledged = None
            raise

    def progress(self) -> dict[str, Any] | None:
        """Return the offset that was planned last, and its lag (`QueueLease.progress`); None before the first plan.

        Also None after the queue was dropped: the next plan decides if that ends the query.
        """
        if self._planned is None:
            return None
        behind = self._last_progress if self._queue is None else None
        try:
            behind = behind or self._owned_queue().progress(self._planned, self._own_sessions)
            return self._planned.to_json() | self.read | behind
        except psycopg.errors.UndefinedTable:
            return None

    @property
    def _own_sessions(self) -> list[int]:
        """The sessions of this stream beside the planning one."""
        return [self._deleter.session] if self._deleter else []

    def close(self) -> None:
        """Release the queue, after any pending deletion."""
        try:
            if self._deleter:
                self._deleter.close()
        finally:
            if self._queue:
                self._queue.close()
            self._deleter = self._queue = self._offsets = None

    def _stream_offsets(self) -> StreamOffsets:
        """Return the record of what the queue has given, read once the queue is owned."""
        if self._offsets is None:
            queue = self._owned_queue()
            self._offsets = StreamOffsets(queue.connection, queue.queue_id, queue.initial)
        return self._offsets

    def _owned_queue(self) -> QueueLease:
        """Return the queue, owned. Opened at first use, since Spark also copies readers into other processes."""
        if self._queue is None:
            queue = QueueLease.open(self._options)
            try:
                queue.claim(self._options.claim_timeout)
            except BaseException:
                queue.close()
                raise
            self._queue = queue
        return self._queue

    def _continue_from(self, offset: Frontier, position: QueuePosition) -> Frontier | None:
        """Return the offset; None if it means nothing here and failOnDataLoss=false makes the stream start over.

        Raises:
            InstanceError: the offset means nothing here.
        """
        here = self._owned_queue().initial
        try:
            check_continuity(offset, here, position)
        except InstanceError as problem:
            if self._options.fail_on_data_loss:
                raise
            if not self._has_started_over:
                _log.warning("%s With failOnDataLoss=false the stream starts over.", problem)
            self._has_started_over = True
            return None
        return replace(offset, database_oid=here.database_oid)


def divide_into_parts(options: SourceOptions, queue: QueueLease, window_slice: Slice, count: int) -> list[rows.Part]:
    """Divide a slice of a queue into `count` parts."""
    if options.partitioning == "range":
        parts = [(part_slice, GroupPartition(0, 1)) for part_slice in divide_slice(window_slice, count)]
    else:
        parts = [(window_slice, GroupPartition(number, count)) for number in range(count)]
    kinds = (queue.reads_archive(window_slice.lo), options.include_system_messages)
    location = (options.instance, queue.queue_name, queue.queue_id, queue.database_id)
    return [rows.Part(*location, *part, *kinds) for part in parts]
