"""What a round's transaction settles: arrivals are stored, acknowledged messages removed; told when it is durable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from servicebroker.broker import journal, metrics
from servicebroker.broker.lines import Lines
from servicebroker.broker.links import Link
from servicebroker.broker.reception import Received, refuse
from servicebroker.broker.relay_memory import Memory
from servicebroker.broker.round_transaction import LATER, SOON, Do, alone
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation import enqueue, traces
from servicebroker.engine.conversation.traces import Traced
from servicebroker.engine.remote import arriving, departing, remote_endpoints
from servicebroker.model.conversation_events import DROPPED, Deed
from servicebroker.model.errors import RULES
from servicebroker.model.states import State
from servicebroker.protocol.dialog import Acknowledged, Dropped, Failed, Sending
from servicebroker.protocol.envelope import Content, Failure
from servicebroker.protocol.incoming import Batch, Deliver
from servicebroker.protocol.outgoing import NEVER


class Settling:
    """What is to be written, and is kept until it is; somebody may hold the rows."""

    def __init__(
        self,
        memory: Memory,
        lines: Lines,
        catalog: Catalog,
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._lines = lines
        self._catalog = catalog
        self._clock = clock
        self._seconds = seconds
        self._traced: list[Traced] = []  # trace contexts that came with messages
        self._postponed: dict[UUID, Batch] = {}
        self._stored: list[Batch] = []  # by this round
        self._acknowledged: dict[UUID, Acknowledged] = {}
        self._failed: dict[UUID, Failure] = {}
        self._again_at, self._pause = NEVER, SOON
        self._dirty = self._written = 0  # transmission objects, in this round
        self._last_batch = seconds()

    @property
    def wake_at(self) -> float:
        """When what could not be written is tried again."""
        return self._again_at

    def arrived(self, link: Link, received: Received) -> None:
        """What a message changes is noted, until it is written."""
        handle, header, payload = received
        entry = self._memory.get(handle)
        if entry is None:
            return
        journal.acknowledgement(header, is_sent=False)
        for place, context in header.traces or ():
            self._traced.append(
                Traced(header.conversation_id, header.is_from_initiator, header.number + place, context)
            )
        for event in entry.dialog.arrived(header, payload):
            match event:
                case Acknowledged():
                    self._acknowledged[handle] = event
                    self._memory.release(entry, event.below)
                    self._lines.weigh(entry)
                case Failed():
                    self._failed[handle] = event.failure
                case Dropped():
                    journal.undeliverable(event, header, link)
                    if event.number == 11224 and entry.session is not None:
                        refuse(link, header, Failure(-8495, RULES[8495].text), entry.session)

    def store(self, do: Do, touched: set[UUID]) -> arriving.Result | None:
        """What has arrived goes into the queues; None when there was nothing."""
        batches = {handle: one for handle, one in self._postponed.items() if self._is_known(handle)}
        for handle in touched:
            if (entry := self._memory.get(handle)) and (batch := entry.dialog.batch()) is not None:
                batches[handle] = batch
                entry.is_storing = True
        self._postponed, self._stored = {}, []
        if not batches:
            return None
        result: arriving.Result = do(arriving.store(self._catalog, batches, self._clock()))
        if self._traced:
            do(alone(traces.arrived(self._traced, self._clock())))
            self._traced = []
        self._stored = [batches[handle] for handle in result.stored]
        self._postponed = {handle: batches[handle] for handle in result.postponed}
        self._dirty += len(batches)
        self._written += len(result.stored)
        return result

    @property
    def stored(self) -> int:
        """How many messages this round has stored."""
        return sum(batch.reached - batch.expected for batch in self._stored)

    def _is_known(self, handle: UUID) -> bool:
        """Whether its batch is still that of its dialog; else the peer sends it again."""
        entry = self._memory.get(handle)
        return entry is not None and entry.is_storing

    def committed(self, do: Do, result: arriving.Result) -> None:
        """What was stored is durable: it is acknowledged with the next frame."""
        metrics.ARRIVED.inc(self.stored)
        for handle, batch in zip(result.stored, self._stored, strict=True):
            metrics.ARRIVED_FRAGMENTS.inc(batch.fragments)
            if entry := self._memory.get(handle):
                many = batch.reached - batch.expected
                metrics.ARRIVED_BY_PRIORITY.labels(entry.endpoint.priority).inc(many)
                _tell(entry.endpoint, batch)
        if result.queues:
            do(alone(enqueue.wake(list(result.queues))))
        for handle in result.gone:
            self._lines.forget(handle)
        for handle in result.stored:
            if (entry := self._memory.get(handle)) and entry.is_storing:  # not one that was looked up again meanwhile
                entry.is_storing = False
                entry.dialog.committed()
                if entry.dialog.sending is Sending.HELD:
                    self._lines.say(entry, entry.dialog.status)
                self._lines.line_up(handle)
        for handle in result.closed:
            if entry := self._memory.get(handle):
                entry.dialog.close()
        for handle, failed in result.failures.items():
            if entry := self._memory.get(handle):
                if failed.message_type:
                    journal.rejected(failed, entry.endpoint)
                journal.conversed(Deed.BROKER_ERROR, entry.endpoint, State.ERROR)
                entry.dialog.refuse(Failure(failed.code, failed.description))
                self._lines.line_up(handle)

    def settle(self, do: Do, do_lazily: Do, *, is_traced: bool) -> tuple[dict[UUID, Acknowledged], list[UUID]]:
        """What the peers have said of our messages, and what we say of those that wait.

        Returns the acknowledgements that are committed with this transaction, and whose conversations end with it.
        """
        settled, ended = {}, []
        self._dirty += len(self._acknowledged) + len(self._failed)
        if self._acknowledged:
            groups = do(remote_endpoints.groups_of(list(self._acknowledged))) if journal.watches_conversations() else {}
            done, ended = do_lazily(departing.acknowledge(self._acknowledged, self._clock()))
            settled = {handle: self._acknowledged.pop(handle) for handle in done}
            self._tell_of_ends(do, ended, groups)
            if is_traced:
                do(alone(traces.delivered({handle: event.below for handle, event in settled.items()})))
        if self._failed:
            for handle in do(departing.fail(self._failed, self._clock())):
                del self._failed[handle]
                self._written += 1
                if entry := self._memory.get(handle):
                    journal.conversed(Deed.RECEIVED_BROKER_ERROR, entry.endpoint, State.ERROR)
        if statuses := self._lines.take_statuses():
            do(alone(departing.set_statuses(statuses)))
        self._dirty += len(statuses)
        self._written += len(settled) + len(statuses)
        return settled, ended

    def count(self, touched: int, began: float) -> None:
        """Broker TO Statistics of a round that is committed."""
        metrics.OBJECT_GETS.inc(touched)
        metrics.OBJECTS_DIRTY.inc(self._dirty)
        if self._written:
            now = self._seconds()
            metrics.OBJECT_WRITES.inc(self._written)
            metrics.BATCHES.inc()
            metrics.BATCH_SECONDS.inc(now - began)
            metrics.BETWEEN_SECONDS.inc(now - self._last_batch)
            self._last_batch = now
        self._dirty = self._written = 0

    def _tell_of_ends(self, do: Do, ended: list[UUID], groups: dict[UUID, UUID]) -> None:
        for handle in ended:
            if entry := self._memory.get(handle):
                journal.conversed(Deed.RECEIVED_END_ACK, entry.endpoint, State.CLOSED)
        was = {groups[handle] for handle in ended if handle in groups}
        for group in sorted(was - do(remote_endpoints.groups_left(was)) if was else ()):
            journal.grouped(DROPPED, group)

    def plan_again(self) -> None:
        """Rows that somebody holds are tried again soon, and less often when that lasts."""
        if self._postponed or self._acknowledged or self._failed:
            now = self._seconds()
            if now >= self._again_at or self._again_at == NEVER:
                self._again_at = now + self._pause
                self._pause = min(self._pause * 2, LATER)
        else:
            self._again_at, self._pause = NEVER, SOON


def _tell(endpoint: remote_endpoints.Remote, batch: Batch) -> None:
    """Broker:Conversation of what has been stored: messages, and what ends the conversation."""
    contents = [part.content for step in batch.steps if isinstance(step, Deliver) for part in step.parts]
    ends = [content for content in contents if content is not Content.DATA]
    journal.conversed(Deed.RECEIVED_MESSAGE, endpoint, State.CONVERSING, batch.reached - batch.expected - len(ends))
    for content in ends:
        if content is Content.ERROR:
            journal.conversed(Deed.RECEIVED_ERROR, endpoint, State.ERROR)
        else:
            journal.conversed(Deed.RECEIVED_END, endpoint, State.DISCONNECTED_INBOUND)
