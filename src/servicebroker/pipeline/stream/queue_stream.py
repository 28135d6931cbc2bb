"""One queue of a stream: its batches are planned, divided into parts, and acknowledged."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from servicebroker.model.errors import InstanceError, ServiceBrokerError
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.options import SourceOptions
from servicebroker.pipeline.stream import rows
from servicebroker.pipeline.stream.frontier import Frontier, Now, Share, Slice, between, check_continuity, divided
from servicebroker.pipeline.stream.stream_offsets import StreamOffsets

_log = logging.getLogger("servicebroker")
LARGE = 10_000  # messages: a second connection is worth its while


class Budget(NamedTuple):
    """How much a batch may have, None for any amount: messages, and bytes of bodies, which one message may exceed."""

    messages: int | None = None
    bytes: int | None = None

    def share(self, of: int) -> Budget:
        """What one of so many queues may have, that have not had theirs; at least one message and one byte."""
        return Budget(*(None if most is None else max(1, -(-most // of)) for most in self))

    def without(self, messages: int, size: int) -> Budget:
        """What is left."""
        had = (messages, size)
        return Budget(*(None if most is None else max(0, most - one) for most, one in zip(self, had, strict=True)))

    @property
    def is_spent(self) -> bool:
        """Nothing more fits."""
        return 0 in self


class Plan(NamedTuple):
    """The next batch of a queue: from where to where, and whether it may wait until there is more."""

    start: Frontier
    end: Frontier
    piece: Slice
    may_wait: bool


class Beside:
    """Deletes acknowledged rows of a queue in a thread and on a connection of its own.

    Attributes:
        session: its number in PostgreSQL.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._queue = Attachment.open(options)
        self._thread = ThreadPoolExecutor(1, "servicebroker acknowledges")
        self._under_way: Future[None] | None = None
        self.session = self._queue.connection.info.backend_pid

    def begin(self, offset: Frontier) -> None:
        """The rows up to `offset` leave the queue."""
        self._under_way = self._thread.submit(self._queue.remove_rows, offset)

    def settle(self) -> None:
        """Wait for what is under way.

        Raises:
            psycopg.Error: it has failed.
        """
        under_way, self._under_way = self._under_way, None
        if under_way:
            under_way.result()

    def close(self) -> None:
        """Wait for what is under way. What fails of it, the next stream of the queue does anew."""
        try:
            self.settle()
        except psycopg.Error as problem:
            _log.warning("What the sink has of a queue was not acknowledged; the next stream does it: %s", problem)
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
        self._queue: Attachment | None = None
        self._offsets: StreamOffsets | None = None  # with the queue
        self._beside: Beside | None = None  # from the first large batch on
        self._acknowledged: Frontier | None = None
        self._planned: Frontier | None = None
        self._read_to: Frontier | None = None
        self._began_anew = False
        self._measured: tuple[Slice, tuple[int, int]] | None = None
        self._target: int | None = None  # the frontier that ends an AvailableNow query
        self._told_last: dict[str, Any] | None = None  # of a queue that has been read to it
        self.read = {"messagesRead": 0, "bytesRead": 0}

    @property
    def _is_done(self) -> bool:
        """An AvailableNow query has read and acknowledged all of it, and let it go."""
        return self._told_last is not None

    @property
    def initial(self) -> dict[str, Any]:
        """The offset of a stream that has read nothing; the same at every call."""
        return self._attached().initial.to_json()

    @property
    def earliest(self) -> dict[str, Any]:
        """The offset before everything, wherever a stream begins."""
        return replace(self._attached().initial, lo=0, hi=0).to_json()

    def stop_here(self) -> None:
        """What there is now is all that will be read. An open transaction holds the frontier back, as everywhere."""
        self._target = self._attached().now().frontier

    def is_known(self, offset: dict[str, Any]) -> bool:
        """Whether a stream at `offset` has read all that has left the queue.

        Raises:
            InstanceError: the offset belongs to another server, another queue or another time.
        """
        ours = [one.to_json() for one in (self._planned, self._acknowledged) if one is not None]
        if self._is_done or offset in ours:
            return True
        queue = self._attached()
        known = self._continued(Frontier.from_json(offset), queue.now())
        return known is None or self._noted().is_known(known)

    def planned_from(self, start: dict[str, Any] | None) -> Plan | None:
        """The batch that was planned from `start` before and that nobody has acknowledged: it is planned again."""
        if self._is_done:
            return None
        offset = Frontier.from_json(start or self.earliest)
        end = self._noted().planned_from(offset)
        if end is None or self._continued(offset, self._attached().now()) is None:
            return None
        self._settle()
        self.acknowledge(offset)
        piece = between(offset, end)
        assert piece is not None
        return Plan(offset, end, piece, may_wait=False)

    def plan(self, start: dict[str, Any] | None, budget: Budget) -> Plan | None:
        """The batch that follows `start`, None when there is nothing to read; without `start`, that before everything.

        Spark plans a batch from `start` only after the sink has committed everything up to it, so `start` is
        acknowledged here: `commit` would come too late, and never for the last batch of a query.

        Raises:
            InstanceError: the offset belongs to another server, another queue or another time.
            psycopg.Error: what was deleted while the last batch was read is there still.
        """
        if self._is_done:
            return None
        self._settle()
        queue = self._attached()
        now = queue.now()
        offset = self._continued(Frontier.from_json(start or self.earliest), now) or queue.initial
        self.acknowledge(offset)
        hi = now.frontier if self._target is None else self._target
        begins, may_wait = offset, False  # what a batch has left of a window does not wait
        end = queue.page_end(offset, *budget)
        if end is None:
            self._settle()  # an offset of the next window does not cover this one
        if end is None and offset.hi < hi:
            begins, may_wait = offset.opened(hi), True
            end = queue.page_end(begins, *budget)
        self._planned = offset
        if end is None:
            if self._target is not None:  # the query ends now: whoever waits finds the queue free
                self._told_last = queue.progress(offset)
                self.close()
            return None
        piece = between(begins, end)
        assert piece is not None
        return Plan(offset, end, piece, may_wait)

    def measure(self, piece: Slice) -> tuple[int, int]:
        """How many messages a batch has, and how many bytes their bodies. The last answer is remembered."""
        if self._measured is None or self._measured[0] != piece:
            system_messages = self._options.include_system_messages
            self._measured = piece, self._attached().measure(piece, system_messages=system_messages)
        return self._measured[1]

    def take(self, plan: Plan) -> dict[str, Any]:
        """The plan is carried out. Returns the offset that it ends at."""
        self._planned = plan.end
        self._count(plan.piece, plan.end)
        # Also keeps the frontier of a new window beyond a crash, as `frontier.KEEP_FRONTIER` does.
        self._noted().note_planned(plan.start, plan.end)
        return plan.end.to_json()

    def parts(self, start: dict[str, Any], end: dict[str, Any], count: int) -> list[rows.Part]:
        """The tasks of a batch, the same rows for the same offsets at any time."""
        queue = self._attached()
        now = queue.now()
        last = self._continued(Frontier.from_json(end), now)
        if last is None:
            return []  # a batch that was planned in another life of the server
        first = self._continued(Frontier.from_json(start), now) or queue.initial
        piece = between(first, last)
        if piece is None:
            return []
        self._count(piece, last)
        return parts_of(self._options, queue, piece, count)

    def _count(self, piece: Slice, end: Frontier) -> None:
        """Once for each batch: when it is planned, for Spark asks for its progress next, or when it comes again."""
        if end != self._read_to:
            messages, size = self.measure(piece)
            self.read["messagesRead"] += messages
            self.read["bytesRead"] += size
            self._read_to = end

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is with the sink; mostly acknowledged already by `plan`.

        Of a queue that is done everything is, and it is not ours any more.
        """
        offset = Frontier.from_json(end)
        if self._is_done or offset == self._acknowledged:
            return
        known = self._continued(offset, self._attached().now())
        if known is not None:
            self.acknowledge(known)

    def acknowledge(self, offset: Frontier) -> None:
        """Everything up to `offset` leaves the queue: now, or while the next batch is read.

        To delete the rows of a large batch takes a third of the time in which Spark reads the next one. They can wait
        where it is of the same window: its offset covers them too, so that they go with it after a crash. What ends
        conversations is done before the next batch is planned, since an END takes rows of that.
        """
        if offset == self._acknowledged:
            return
        self._settle()
        queue = self._attached()
        if not offset.is_initial:
            self._noted().note_acknowledged(offset)
        rows = queue.look(offset, self._options.end_of_stream)
        is_large = self._measured is not None and self._measured[1][0] >= LARGE
        has_only_rows = rows is not None and rows.are_all and not queue.archives
        if is_large and has_only_rows and queue.goes_on(offset) and (beside := self._opened_beside()):
            beside.begin(offset)
        elif rows:
            queue.acknowledge(offset, rows)
        self._acknowledged = offset

    def _opened_beside(self) -> Beside | None:
        """The second connection. Where none is to be had it goes without."""
        try:
            self._beside = self._beside or Beside(self._options)
        except (ServiceBrokerError, psycopg.Error) as problem:
            _log.warning("Rows are not deleted while the next batch is read: %s", problem)
        return self._beside

    def _settle(self) -> None:
        """Wait for rows that are deleted meanwhile."""
        try:
            if self._beside:
                self._beside.settle()
        except BaseException:
            self._acknowledged = None
            raise

    def progress(self) -> dict[str, Any] | None:
        """The offset that was planned last, and how far behind it is (`Attachment.progress`); None before.

        None too when the queue was dropped since: whether that ends the query is said when it is planned next.
        """
        if self._planned is None:
            return None
        behind = self._told_last if self._queue is None else None
        try:
            behind = behind or self._attached().progress(self._planned, self._ours)
            return self._planned.to_json() | self.read | behind
        except psycopg.errors.UndefinedTable:
            return None

    @property
    def _ours(self) -> list[int]:
        """The session that deletes."""
        return [self._beside.session] if self._beside else []

    def close(self) -> None:
        """Let the queue go, when what is under way is done."""
        try:
            if self._beside:
                self._beside.close()
        finally:
            if self._queue:
                self._queue.close()
            self._beside = self._queue = self._offsets = None

    def _noted(self) -> StreamOffsets:
        """What the queue has given, read when the queue is ours."""
        if self._offsets is None:
            queue = self._attached()
            self._offsets = StreamOffsets(queue.connection, queue.queue_id, queue.initial)
        return self._offsets

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


def parts_of(options: SourceOptions, queue: Attachment, piece: Slice, count: int) -> list[rows.Part]:
    """A slice of a queue in `count` parts."""
    if options.partitioning == "range":
        shares = [(one, Share(0, 1)) for one in divided(piece, count)]
    else:
        shares = [(piece, Share(number, count)) for number in range(count)]
    kinds = (queue.reads_archive(piece.lo), options.include_system_messages)
    where = (options.instance, queue.queue_name, queue.queue_id, queue.database_id)
    return [rows.Part(*where, *share, *kinds) for share in shares]
