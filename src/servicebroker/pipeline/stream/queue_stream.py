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
MIN_BACKGROUND_DELETE_ROWS = 10_000  # the fewest rows for a second connection, which costs more than it saves for fewer


class Budget(NamedTuple):
    """The remaining limits of a batch: messages, and bytes of bodies. None means no limit.

    A batch has at least one message, whose body may exceed the limit of bytes.
    """

    messages: int | None = None
    bytes: int | None = None

    def share(self, queues: int) -> Budget:
        """Return an equal share for one of `queues` queues: at least one message and one byte."""
        return Budget(*(None if limit is None else max(1, -(-limit // queues)) for limit in self))

    def without(self, messages: int, size: int) -> Budget:
        """Return the budget less these messages and bytes."""
        used = (messages, size)
        pairs = zip(self, used, strict=True)
        return Budget(*(None if limit is None else max(0, limit - amount) for limit, amount in pairs))

    def plus(self, messages: int, size: int) -> Budget:
        """Return the budget with these messages and bytes added."""
        pairs = zip(self, (messages, size), strict=True)
        return Budget(*(None if limit is None else limit + amount for limit, amount in pairs))

    @property
    def is_spent(self) -> bool:
        """True if a limit is used up."""
        return 0 in self


class BatchPlan(NamedTuple):
    """The next batch of a queue: its start and end offsets, its rows, and whether it may wait for more messages."""

    start: Frontier
    end: Frontier
    window_slice: Slice
    may_wait: bool


class BackgroundDeleter:
    """Deletes acknowledged rows of a queue in a thread of its own, on a connection of its own.

    Attributes:
        session: process id of the connection's session in PostgreSQL.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._queue = QueueLease.open(options)
        self._thread = ThreadPoolExecutor(1, "servicebroker acknowledges")
        self._pending: Future[None] | None = None
        self.session = self._queue.connection.info.backend_pid

    def begin(self, offset: Frontier) -> None:
        """Start deleting the rows up to `offset`."""
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
        """Wait for the pending deletion, and close the connection. The next stream repeats a failed deletion."""
        try:
            self.wait()
        except psycopg.Error as problem:
            _log.warning("Rows that the sink has are still in the queue; the next stream deletes them: %s", problem)
        finally:
            self._thread.shutdown()
            self._queue.close()


class QueueStream:
    """The stream of one queue. It owns the queue by a lock, from the first use until `close`.

    Attributes:
        read: messages, and bytes of bodies, in the batches since the start.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._queue: QueueLease | None = None
        self._offsets: StreamOffsets | None = None  # opened with the queue
        self._deleter: BackgroundDeleter | None = None  # opened by the first large batch
        self._acknowledged: Frontier | None = None  # the offset up to which this stream has acknowledged rows
        self._planned: Frontier | None = None  # end of the last planned batch
        self._read_to: Frontier | None = None  # end of the last batch that `read` counts
        self._has_started_over = False  # True if it has started over, which needs failOnDataLoss=false
        self._measured: tuple[Slice, tuple[int, int]] | None = None  # last slice, with its messages and bytes
        self._target: int | None = None  # the frontier up to which an AvailableNow query reads
        self._last_progress: dict[str, Any] | None = None  # set when an AvailableNow query has read the whole queue
        self.read = {"messagesRead": 0, "bytesRead": 0}

    @property
    def _is_done(self) -> bool:
        """True if an AvailableNow query has read and acknowledged all of the queue, and released it."""
        return self._last_progress is not None

    @property
    def initial(self) -> dict[str, Any]:
        """The offset of a stream that has read nothing. It never changes."""
        return self._owned_queue().initial.to_json()

    @property
    def earliest(self) -> dict[str, Any]:
        """The offset before all messages, whatever the starting offset of the stream is."""
        return replace(self._owned_queue().initial, lo=0, hi=0).to_json()

    def limit_to_present(self) -> None:
        """Read only the present messages. Messages that an open transaction holds back are not read."""
        self._target = self._owned_queue().position().frontier

    def is_known(self, offset: dict[str, Any]) -> bool:
        """True if a stream may continue at `offset`: the offset is recorded, planned or initial, or there is no record.

        Raises:
            InstanceError: as `plan`.
        """
        own_offsets = [own.to_json() for own in (self._planned, self._acknowledged) if own is not None]
        if self._is_done or offset in own_offsets:
            return True
        queue = self._owned_queue()
        known = self._continue_from(Frontier.from_json(offset), queue.position())
        return known is None or self._stream_offsets().is_known(known)

    def refusal(self, offset: dict[str, Any]) -> InstanceError:
        """Return the error for an offset for which `is_known` is False."""
        return self._stream_offsets().refusal(Frontier.from_json(offset), self._owned_queue().queue_name)

    def planned_from(self, start: dict[str, Any] | None) -> BatchPlan | None:
        """Return a batch that was planned from `start` and never acknowledged, to be repeated; None without one."""
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
        """Return the batch after `start`; None if there is nothing to read. Without `start`, begin before all messages.

        Also acknowledges the rows up to `start`: Spark plans a batch only after the sink has committed all rows before
        it. `commit` comes too late for that, and not at all for the last batch of a query.

        Raises:
            InstanceError: the offset belongs to another server or queue, or to a server restored to an earlier time.
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
            self._wait_for_deletion()  # after a crash, an offset of the next window would not delete rows of this one
        if end is None and offset.hi < hi:
            page_start, may_wait = offset.opened(hi), True
            end = queue.find_page_end(page_start, *budget)
        self._planned = offset
        if end is None:
            if self._target is not None:  # the query ends now: free the queue for the next reader
                self._last_progress = queue.progress(offset)
                self.close()
            return None
        window_slice = slice_between(page_start, end)
        assert window_slice is not None
        return BatchPlan(offset, end, window_slice, may_wait)

    def has_more(self, plan: BatchPlan) -> bool:
        """True if the window of a plan has more rows after its end."""
        return self._owned_queue().has_more_rows(plan.end)

    def extend(self, plan: BatchPlan, budget: Budget) -> BatchPlan:
        """Return the plan with a later end: as many rows of its window as the budget allows."""
        page_start = plan.end.read_to(plan.window_slice.after)
        end = self._owned_queue().find_page_end(page_start, *budget) or plan.end
        return plan._replace(end=end, window_slice=plan.window_slice._replace(upto=end.queuing_order))

    def measure(self, window_slice: Slice) -> tuple[int, int]:
        """Return the number of messages in a slice, and the bytes of their bodies. The last result is cached."""
        if self._measured is None or self._measured[0] != window_slice:
            system_messages = self._options.include_system_messages
            self._measured = window_slice, self._owned_queue().measure(window_slice, system_messages=system_messages)
        return self._measured[1]

    def record_plan(self, plan: BatchPlan) -> dict[str, Any]:
        """Record the plan as Spark's next batch, and return its end offset."""
        self._planned = plan.end
        self._count(plan.window_slice, plan.end)
        # This commit also keeps the frontier of a new window valid after a crash, as `frontier.KEEP_FRONTIER` does.
        self._stream_offsets().record_planned(plan.start, plan.end)
        return plan.end.to_json()

    def parts(self, start: dict[str, Any], end: dict[str, Any], count: int) -> list[rows.Part]:
        """Return the tasks of a batch, about `count`. The same offsets give the same rows at any time."""
        queue = self._owned_queue()
        position = queue.position()
        last = self._continue_from(Frontier.from_json(end), position)
        if last is None:
            return []  # a batch of another server, or from before a restore
        first = self._continue_from(Frontier.from_json(start), position) or queue.initial
        window_slice = slice_between(first, last)
        if window_slice is None:
            return []
        self._count(window_slice, last)
        return divide_into_parts(self._options, queue, window_slice, count)

    def _count(self, window_slice: Slice, end: Frontier) -> None:
        """Add a batch to `read`, once: when it is planned, before Spark asks for progress, or when it is repeated."""
        if end != self._read_to:
            messages, size = self.measure(window_slice)
            self.read["messagesRead"] += messages
            self.read["bytesRead"] += size
            self._read_to = end

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge all rows up to `end`, which the sink has. Usually `plan` has already done so.

        If `_is_done`, the queue is acknowledged completely, and this stream does not own it any more.
        """
        offset = Frontier.from_json(end)
        if self._is_done or offset == self._acknowledged:
            return
        known = self._continue_from(offset, self._owned_queue().position())
        if known is not None:
            self.acknowledge(known)

    def acknowledge(self, offset: Frontier) -> None:
        """Delete all rows up to `offset` from the queue: now, or while the next batch is read.

        Deleting a large batch takes a third of the time in which Spark reads the next one. If the next batch is in the
        same window, a background deletion is safe: after a crash, the next batch's offset deletes these rows too.
        Conversations end before the next batch is planned, because END CONVERSATION deletes rows of that batch.
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
        """Return the background deleter, connected at the first call; None if it cannot connect."""
        try:
            self._deleter = self._deleter or BackgroundDeleter(self._options)
        except (ServiceBrokerError, psycopg.Error) as problem:
            _log.warning("Rows are not deleted while the next batch is read: %s", problem)
        return self._deleter

    def _wait_for_deletion(self) -> None:
        """Wait for the background deletion. If it has failed, its rows count as not acknowledged."""
        try:
            if self._deleter:
                self._deleter.wait()
        except BaseException:
            self._acknowledged = None
            raise

    def progress(self) -> dict[str, Any] | None:
        """Return the last planned offset and its lag (`QueueLease.progress`); None before the first plan.

        Also None if the queue was dropped. The next plan then decides whether the query fails.
        """
        if self._planned is None:
            return None
        lag = self._last_progress if self._queue is None else None
        try:
            lag = lag or self._owned_queue().progress(self._planned, self._own_sessions)
            return self._planned.to_json() | self.read | lag
        except psycopg.errors.UndefinedTable:
            return None

    @property
    def _own_sessions(self) -> list[int]:
        """Process ids of this stream's sessions in PostgreSQL, except the planning one."""
        return [self._deleter.session] if self._deleter else []

    def close(self) -> None:
        """Release the queue, after a pending deletion has ended."""
        try:
            if self._deleter:
                self._deleter.close()
        finally:
            if self._queue:
                self._queue.close()
            self._deleter = self._queue = self._offsets = None

    def _stream_offsets(self) -> StreamOffsets:
        """Return the record of the queue's offsets, which is read when the queue is owned."""
        if self._offsets is None:
            queue = self._owned_queue()
            self._offsets = StreamOffsets(queue.connection, queue.queue_id, queue.initial)
        return self._offsets

    def _owned_queue(self) -> QueueLease:
        """Open and own the queue at the first call, and return it. Spark also copies readers into other processes."""
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
        """Return the offset; None if it does not fit this queue and failOnDataLoss=false makes the stream start over.

        Raises:
            InstanceError: the offset does not fit this queue (`check_continuity`).
        """
        initial = self._owned_queue().initial
        try:
            check_continuity(offset, initial, position)
        except InstanceError as problem:
            if self._options.fail_on_data_loss:
                raise
            if not self._has_started_over:
                _log.warning("%s With failOnDataLoss=false the stream starts over.", problem)
            self._has_started_over = True
            return None
        return replace(offset, database_oid=initial.database_oid)


def divide_into_parts(options: SourceOptions, queue: QueueLease, window_slice: Slice, count: int) -> list[rows.Part]:
    """Divide a slice of a queue into parts for `count` tasks."""
    if options.partitioning == "range":
        parts = [(part_slice, GroupPartition(0, 1)) for part_slice in divide_slice(window_slice, count)]
    else:
        parts = [(window_slice, GroupPartition(number, count)) for number in range(count)]
    kinds = (queue.reads_archive(window_slice.lo), options.include_system_messages)
    location = (options.instance, queue.queue_name, queue.queue_id, queue.database_id)
    return [rows.Part(*location, *part, *kinds) for part in parts]
