"""What a round's transaction settles: arrivals are stored, acknowledged messages removed; told when it is durable."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from servicebroker.broker import journal, metrics
from servicebroker.broker.again import Again
from servicebroker.broker.lines import Lines
from servicebroker.broker.links import Link
from servicebroker.broker.reception import Received, refuse
from servicebroker.broker.relay_memory import Entry, Memory
from servicebroker.broker.store_operations import Store
from servicebroker.engine.conversation.traces import Traced
from servicebroker.engine.remote import arriving, remote_endpoints
from servicebroker.model.conversation_events import DROPPED, Deed
from servicebroker.model.errors import RULES
from servicebroker.model.states import EndpointState
from servicebroker.model.waiting import UNANSWERED
from servicebroker.protocol.dialog import Acknowledged, Apart, Dropped, Failed, Sending
from servicebroker.protocol.envelope import BrokerFailure, Content
from servicebroker.protocol.incoming import Batch, Deliver


class Settling:
    """What is to be written, and is kept until it is; somebody may hold the rows."""

    def __init__(
        self,
        memory: Memory,
        lines: Lines,
        seconds: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._lines = lines
        self._seconds = seconds
        self._traced: list[Traced] = []  # trace contexts that came with messages
        self._postponed: dict[UUID, Batch] = {}
        self._stored: list[Batch] = []  # by this round
        self._acknowledged: dict[UUID, Acknowledged] = {}
        self._failed: dict[UUID, BrokerFailure] = {}
        self._apart: dict[UUID, Apart] = {}
        self._again = Again(seconds)
        self._dirty = self._written = 0  # transmission objects, in this round
        self._last_batch = seconds()

    @property
    def wake_at(self) -> float:
        """When what could not be written is tried again."""
        return self._again.at

    def arrived(self, store: Store, link: Link, received: Received) -> None:
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
        number = entry.dialog.to_recall(header)
        recalled = None if number is None else store.read_token(handle, number)
        for event in entry.dialog.arrived(header, payload, recalled):
            match event:
                case Acknowledged():
                    self._acknowledged[handle] = event
                    self._memory.release(entry, event.below)
                    self._lines.weigh(entry)
                    if entry.status == UNANSWERED:
                        self._lines.say(entry, "")
                case Failed():
                    self._failed[handle] = event.failure
                case Apart():
                    self._apart[handle] = event
                    self._memory.release(entry)
                case Dropped():
                    journal.undeliverable(event, header, link)
                    if event.number == 11224 and entry.session is not None:
                        refuse(link, header, BrokerFailure(-8495, RULES[8495].text), entry.session)

    def store(self, store: Store, touched: set[UUID]) -> arriving.Result | None:
        """What has arrived goes into the queues; None when there was nothing."""
        batches = {handle: one for handle, one in self._postponed.items() if self._is_known(handle)}
        for handle in touched:
            if (entry := self._memory.get(handle)) and (batch := entry.dialog.batch()) is not None:
                batches[handle] = batch
                entry.is_storing = True
        self._postponed, self._stored = {}, []
        if not batches:
            return None
        result = store.store(batches)
        if self._traced:
            store.store_traces(self._traced)
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

    def committed(self, store: Store, result: arriving.Result) -> None:
        """What was stored is durable: it is acknowledged with the next frame."""
        metrics.ARRIVED.inc(self.stored)
        for handle, batch in zip(result.stored, self._stored, strict=True):
            metrics.ARRIVED_FRAGMENTS.inc(batch.fragments)
            if entry := self._memory.get(handle):
                many = batch.reached - batch.expected
                metrics.ARRIVED_BY_PRIORITY.labels(entry.endpoint.priority).inc(many)
                _tell(entry.endpoint, batch)
        if result.queues:
            store.wake(result.queues)
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
                journal.conversed(Deed.BROKER_ERROR, entry.endpoint, EndpointState.ERROR)
                entry.dialog.refuse(BrokerFailure(failed.code, failed.description))
                self._lines.line_up(handle)

    def settle(self, store: Store, *, is_traced: bool) -> tuple[dict[UUID, Acknowledged], list[UUID]]:
        """What the peers have said of our messages, and what we say of those that wait.

        Returns the acknowledgements that are committed with this transaction, and whose conversations end with it.
        """
        settled: dict[UUID, Acknowledged] = {}
        ended: list[UUID] = []
        self._dirty += len(self._acknowledged) + len(self._failed) + len(self._apart)
        if self._acknowledged:
            groups = store.groups_of(list(self._acknowledged)) if journal.watches_conversations() else {}
            done, ended = store.acknowledge(self._acknowledged)
            settled = {handle: self._acknowledged.pop(handle) for handle in done}
            self._tell_of_ends(store, ended, groups)
            if is_traced:
                store.acknowledge_traces({handle: event.below for handle, event in settled.items()})
        if self._failed:
            for handle in store.fail(self._failed):
                failure = self._failed.pop(handle)
                self._written += 1
                if entry := self._memory.get(handle):
                    if -failure.code in (9719, 9720):
                        self._note(store, entry, failure)
                    journal.conversed(Deed.RECEIVED_BROKER_ERROR, entry.endpoint, EndpointState.ERROR)
        if self._apart:
            for handle in store.part(self._apart):
                apart = self._apart.pop(handle)
                self._written += 1
                if entry := self._memory.get(handle):
                    self._note(store, entry, apart.own)
                    journal.conversed(Deed.BROKER_ERROR, entry.endpoint, EndpointState.ERROR)
        if statuses := self._lines.take_statuses():
            store.set_statuses(statuses)
        self._dirty += len(statuses)
        self._written += len(settled) + len(statuses)
        return settled, ended

    def _note(self, store: Store, entry: Entry, own: BrokerFailure) -> None:
        """One of the two databases was restored."""
        journal.transmission(entry.endpoint.conversation_id, own.description)
        far = entry.dialog.far_broker
        store.note_old_copy(entry.endpoint, far, own, is_here=own.code == -9719)

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

    def _tell_of_ends(self, store: Store, ended: list[UUID], groups: dict[UUID, UUID]) -> None:
        for handle in ended:
            if entry := self._memory.get(handle):
                journal.conversed(Deed.RECEIVED_END_ACK, entry.endpoint, EndpointState.CLOSED)
        was = {groups[handle] for handle in ended if handle in groups}
        for group in sorted(was - store.groups_left(was) if was else ()):
            journal.grouped(DROPPED, group)

    def plan_again(self) -> None:
        """Rows that somebody holds are tried again soon, and less often when that lasts."""
        self._again.has_come()
        self._again.plan(is_left=bool(self._postponed or self._acknowledged or self._failed or self._apart))


def _tell(endpoint: remote_endpoints.RemoteEndpoint, batch: Batch) -> None:
    """Broker:Conversation of what has been stored: messages, and what ends the conversation."""
    contents = [part.content for step in batch.steps if isinstance(step, Deliver) for part in step.parts]
    ends = [content for content in contents if content is not Content.DATA]
    journal.conversed(
        Deed.RECEIVED_MESSAGE, endpoint, EndpointState.CONVERSING, batch.reached - batch.expected - len(ends)
    )
    for content in ends:
        if content is Content.ERROR:
            journal.conversed(Deed.RECEIVED_ERROR, endpoint, EndpointState.ERROR)
        else:
            journal.conversed(Deed.RECEIVED_END, endpoint, EndpointState.DISCONNECTED_INBOUND)
