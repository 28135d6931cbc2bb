"""Messages received from peers: verify and decrypt them, admit new conversations, and insert the messages into queues.

**The flow** in a round (`relay.py`), which is one transaction::

    frame -> parsed -> MessageOpener.open (a known conversation) or .begin (a new one) -> InboundWriter.arrived
    then, once for all frames:  InboundWriter.store, InboundWriter.settle -> COMMIT -> InboundWriter.committed

* `MessageOpener` verifies a message with the keys of its conversation. The first message of a new conversation is
  admitted, refused with an error to the sender, kept in `PendingOpenings` to be tried again, or dropped and logged.
* `InboundWriter` collects changes in memory. `store` inserts messages into queues. `settle` deletes acknowledged
  messages from the transmission queue, and writes errors and statuses. `committed` lets acknowledgements leave.

**The rules.**

* A message is acknowledged only after its commit. If it is dropped before, its sender repeats it.
* A row lock of another session delays a change: it stays in memory for a later round. No round waits for a lock.
* Memory is bounded, for each peer by its budget (`protocol/budgets.py`). Messages beyond a bound are dropped, and
  their senders repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from servicebroker.broker import journal, metrics
from servicebroker.broker.conversations import Conversations, Entry
from servicebroker.broker.dialog_security import Admitted, Denied, DialogSecurity
from servicebroker.broker.inboxes import Charges, peer_key
from servicebroker.broker.quotas import Quotas
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Arrival, Link
from servicebroker.engine.conversation.traces import MessageContext
from servicebroker.engine.remote import arriving
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.remote_opening import (
    BEING_ALTERED,
    CreatedTarget,
    NewTarget,
    TargetLocation,
    Unroutable,
    lifetime_of,
)
from servicebroker.model.conversation_events import CREATED, DROPPED, ConversationEvent
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.security.dialog_security import NO_SERVICE_MASTER_KEY
from servicebroker.model.states import EndpointState
from servicebroker.model.waiting import CLOCK_DIFFERS, UNANSWERED
from servicebroker.protocol.backoff import Backoff
from servicebroker.protocol.budgets import Budgets, over_budget
from servicebroker.protocol.conversation_states import BatchEvent, Storing
from servicebroker.protocol.dialog import Acknowledged, ClockDiffers, Diverged, Dropped, Failed, dropped_event
from servicebroker.protocol.dialog_keys import UNSECURED, SessionKeys
from servicebroker.protocol.envelope import (
    BrokerFailure,
    Content,
    Envelope,
    Header,
    Kind,
    Payload,
    check_addresses,
    encode,
    open_payload,
    parse,
    refusal,
)
from servicebroker.protocol.forwarding import Passage, unwrap
from servicebroker.protocol.incoming import Batch, Deliver
from servicebroker.protocol.unfinished import UnfinishedMessages
from servicebroker.protocol.wire_errors import CorruptedMessage

MAX_KEPT, MAX_KEPT_BYTES = 1_000, 4 * 1024 * 1024  # limits of `PendingOpenings`; beyond them the peers send again
TARGET_COST_BYTES = 2_000  # a new target counts as 20 small messages beside the bytes that are stored
MAX_TRACES_PER_CONVERSATION = 2_500  # a peer may send contexts of messages that are never stored


class ReceivedMessage(NamedTuple):
    """A message that arrived at `since` (monotonic seconds). `passage`: the forwarding header, if it was forwarded."""

    link: Link
    envelope: Envelope
    body: bytes
    passage: Passage | None
    since: float

    @property
    def header(self) -> Header:
        """The header of the message."""
        return self.envelope.header

    @property
    def key(self) -> tuple[UUID, bool]:
        """The key of the receiving endpoint: the conversation, and whether the endpoint is the initiator."""
        return self.header.conversation_id, not self.header.is_from_initiator


class OpenedMessage(NamedTuple):
    """A verified message, with the handle of its endpoint. `target` is the endpoint to create first, if it is new."""

    handle: UUID
    header: Header
    payload: Payload
    target: NewTarget | None = None


class PendingOpenings:
    """Messages to decide on later: their service is being altered, or the trust in their peer may still change.

    They wait in memory and are tried again with backoff. If they were dropped, their senders would repeat them only
    after seconds.
    """

    def __init__(self, seconds: Callable[[], float], budgets: Budgets) -> None:
        self._seconds = seconds
        self._budgets = budgets
        self._kept: list[ReceivedMessage] = []
        self._of_peer: Counter[object] = Counter()
        self._bytes = 0
        self._backoff = Backoff()

    @property
    def wake_at(self) -> float:
        """The time of the next attempt."""
        return self._backoff.at

    def keep(self, message: ReceivedMessage) -> bool:
        """Keep a message. Return False if the limits leave no room for it."""
        if len(self._kept) >= MAX_KEPT or self._bytes + len(message.body) > MAX_KEPT_BYTES:
            return False
        if self.over_budget(message) is not None:
            return False
        self._of_peer[peer_key(message.link)] += 1
        self._kept.append(message)
        self._bytes += len(message.body)
        return True

    def over_budget(self, message: ReceivedMessage) -> BrokerError | None:
        """Return why no more messages of this peer are kept, if its budget is used up."""
        most = self._budgets.of(message.link.owner).waiting_messages
        return over_budget("waiting_messages", most) if self._of_peer[peer_key(message.link)] >= most else None

    def take(self) -> list[ReceivedMessage]:
        """Return and remove all waiting messages if the next attempt is due; otherwise return []."""
        if not self._backoff.is_due(self._seconds()):
            return []
        messages, self._kept, self._bytes = self._kept, [], 0
        self._of_peer.clear()
        return messages

    def retry_now(self) -> None:
        """Make the next attempt due now, because the messages may have waited for a new link."""
        if self._kept:
            self._backoff.at = self._seconds()

    def schedule(self) -> None:
        """Schedule the next attempt: soon at first, and later each time while messages wait."""
        self._backoff.schedule(self._seconds(), is_left=bool(self._kept))


class _Beginning(NamedTuple):
    """An admitted first message of a conversation, with the queue of its target and its payload."""

    message: ReceivedMessage
    place: TargetLocation
    admitted: Admitted
    payload: Payload


class MessageOpener:
    """Verifies messages with the keys of their conversations, and prepares the targets of new conversations."""

    def __init__(
        self,
        conversations: Conversations,
        waiting: PendingOpenings,
        unfinished: UnfinishedMessages,
        security: DialogSecurity,
        charges: Charges,
        clock: Callable[[], datetime],
        chance: Random,
    ) -> None:
        self._conversations = conversations
        self._waiting = waiting
        self._unfinished = unfinished
        self._security = security
        self._charges = charges
        self._clock = clock
        self._chance = chance

    def open(self, store: Store, message: ReceivedMessage) -> OpenedMessage | None:
        """Return the verified message; None if it waits, was dropped and logged, or was answered with an error."""
        handle = self._conversations.find(*message.key)
        entry = None if handle is None else self._conversations.get(handle)
        if handle is None or entry is None:
            return self.begin(store, [message])[0]
        try:
            return self._open(store, message, handle, entry)
        except CorruptedMessage as problem:
            _report_corrupted(message, problem)
            return None

    def _open(self, store: Store, message: ReceivedMessage, handle: UUID, entry: Entry) -> OpenedMessage | None:
        header = message.header
        if entry.session is None:
            journal.undeliverable(dropped_event(28054, header.to_service, NO_SERVICE_MASTER_KEY), header, message.link)
            self._conversations.wanted.add(handle)  # the key may be readable when the peer sends again
            return None
        if header.exchange is not None:
            learned = self._security.learn(store, entry.endpoint, entry.session, header, message.link)
            if learned is None:
                return None
            entry.secure(*learned)
            return OpenedMessage(handle, header, _opened(message.envelope, learned[1]))
        payload = _opened(message.envelope, entry.session)
        if header.is_secured and not entry.endpoint.is_acknowledged:
            self._security.note_capabilities(entry.endpoint, header)
        return OpenedMessage(handle, header, payload)

    def begin(self, store: Store, messages: Sequence[ReceivedMessage]) -> dict[int, OpenedMessage | None]:
        """Begin the conversations that this instance does not know, for all messages of a round together.

        Returns the first message of each conversation, by its index in `messages`; None if it waits or was refused.
        """
        opened: dict[int, OpenedMessage | None] = {}
        beginnings: dict[tuple[UUID, bool], tuple[int, _Beginning]] = {}
        incomplete: Counter[str] = Counter()  # conversations of this round that begin with a fragment, by owner
        for index, message in enumerate(messages):
            if message.key in beginnings or self._conversations.find(*message.key) is not None:
                continue
            began = self._charges.now
            opened[index] = None
            owner, is_whole = message.link.owner, _is_whole_first(message.header)
            if not is_whole and (why := self._over_budget(message, incomplete[owner])) is not None:
                journal.over_budget(why, message.header, message.link)
                message.link.complain()
                continue
            try:
                beginning = self._beginning(store, message)
            except CorruptedMessage as problem:
                _report_corrupted(message, problem)
                beginning = None
            if beginning is not None:
                beginnings[message.key] = index, beginning
                incomplete[owner] += not is_whole
            self._charges.charge(message.link, began)
        if beginnings:
            began = self._charges.now
            opened.update(self._enter(store, dict(beginnings.values())))
            self._charges.charge_equally([beginning.message.link for _, beginning in beginnings.values()], began)
        return opened

    def _over_budget(self, message: ReceivedMessage, more: int) -> BrokerError | None:
        """Return why a fragment that begins a conversation is dropped, if a budget of its peer is used up.

        `more` is the number of such conversations of the peer in this round. Without this check the target would be
        created, and stay empty.
        """
        owner, header = message.link.owner, message.header
        if not self._unfinished.has_room(owner, more):
            return over_budget("openings", self._unfinished.max_openings(owner))
        allowance = self._unfinished.allowance(owner, header.conversation_id, header.fragments)
        if not (allowance.ahead if header.number else allowance.current):
            return over_budget("unfinished_bytes", self._unfinished.quota(owner))
        return None

    def _beginning(self, store: Store, message: ReceivedMessage) -> _Beginning | None:
        """Find the service of a new conversation and admit its first message.

        Returns None if the message waits, was dropped, or was refused. A secured message gets no unencrypted answer: if
        senders accepted these, an attacker could forge one that ends the conversation.
        """
        link, envelope, header = message.link, message.envelope, message.header
        payload = None if header.is_secured else _opened(envelope, UNSECURED)
        if header.kind not in (Kind.RUN, Kind.FRAGMENT):
            _drop_stranger(message, 11209, header.from_broker)
            return None
        if not header.is_from_initiator or header.opening is None:
            _drop_stranger(message, 11213)
            if not header.is_secured:
                refuse(link, header, BrokerFailure(-8462, RULES[8462].text))
            return None
        place = store.find_place(header, self._chance.randrange)
        if isinstance(place, TargetLocation):
            return self._admit(store, message, place, payload)
        if isinstance(place, Unroutable):
            if place == BEING_ALTERED:
                if self._waiting.keep(message):
                    return None
                if (over := self._waiting.over_budget(message)) is not None:
                    journal.over_budget(over, header, link)
                    link.complain()
                    return None
            why = RULES[place.number].text.format(header.to_service)
            _drop_stranger(message, 11210, header.to_service, header.from_broker, why)
            return None
        _drop_stranger(message, 11210, header.to_service, header.from_broker, place.description)
        if not header.is_secured:
            refuse(link, header, BrokerFailure(place.code, place.description))
        return None

    def _admit(
        self, store: Store, message: ReceivedMessage, place: TargetLocation, payload: Payload
    ) -> _Beginning | None:
        link, header = message.link, message.header
        admitted = self._security.admit(store, place.home, place.broker, header, link)
        if admitted is None:
            return None
        if header.is_secured:
            payload = _opened(message.envelope, admitted.session)
        if isinstance(admitted, Denied):
            refuse(link, header, admitted.failure, admitted.session)
            return None
        if header.is_secured and not self._is_dated(store, link, header, place.broker, admitted):
            return None
        if place.failure is not None:
            journal.undeliverable(dropped_event(11214, header.opening.contract if header.opening else ""), header, link)
            refuse(link, header, BrokerFailure(place.failure.code, place.failure.description), admitted.session)
            return None
        return _Beginning(message, place, admitted, payload)

    def _enter(self, store: Store, beginnings: dict[int, _Beginning]) -> Iterator[tuple[int, OpenedMessage]]:
        """Enter the targets of new conversations in memory. The database gets them together with their messages."""
        secured = self._security.secure([beginning.admitted for beginning in beginnings.values()])
        for (index, beginning), dialog in zip(beginnings.items(), secured, strict=True):
            header = beginning.message.header
            target = NewTarget(
                store.new_handle(),
                header,
                beginning.place.home,
                beginning.place.broker,
                lifetime_of(header, self._clock()),
                dialog.security,
                dialog.keys,
            )
            handle = self._conversations.enter(target.endpoint, dialog.session)
            yield index, OpenedMessage(handle, header, beginning.payload, target)

    def _is_dated(self, store: Store, link: Link, header: Header, broker: UUID, admitted: Admitted) -> bool:
        """Return whether a verified opening was sealed recently. If the clocks differ, send the local time back."""
        judged = self._security.judge_date(store, header, admitted.signer)
        if judged is None:
            return True
        journal.undeliverable(dropped_event(11221, judged.reason), header, link)
        if judged.clock is not None and link.room > 0:
            back = refusal(header, broker, is_secured=True)
            answer = structs.replace(back, kind=Kind.ACKNOWLEDGEMENT, clock=judged.clock)
            link.send(encode(answer, None, admitted.session.of(answer)))
        return False


class ArrivedTraces:
    """Trace contexts (OpenTelemetry) of received frames, kept until the messages of these frames are stored.

    A context is stored only with its message. A peer may send contexts for duplicates, for dropped messages, and for
    numbers that it never sends.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._noted: dict[UUID, dict[int, MessageContext]] = {}  # conversation handle -> message number -> context
        self._owners: dict[UUID, str] = {}  # conversation handle -> the owner whose budget they use
        self._counts: Counter[str] = Counter()  # owner -> number of contexts

    def note(self, owner: str, handle: UUID, header: Header) -> None:
        """Keep the contexts of a frame, as long as its owner's budget has room."""
        for offset, context in header.traces or ():
            known, owner = self._noted.setdefault(handle, {}), self._owners.setdefault(handle, owner)
            number = header.number + offset
            has_room = self._counts[owner] < self._budgets.of(owner).trace_contexts
            if number in known or not has_room or len(known) >= MAX_TRACES_PER_CONVERSATION:
                continue
            known[number] = MessageContext(header.conversation_id, header.is_from_initiator, number, context)
            self._counts[owner] += 1

    def take(self, stored: Mapping[UUID, Batch], postponed: Container[UUID]) -> list[MessageContext]:
        """Return the contexts of stored messages. Drop all others, except those of postponed conversations."""
        stored_contexts = [
            traced
            for handle, batch in stored.items()
            for number, traced in self._noted.get(handle, {}).items()
            if batch.has(number)
        ]
        self._noted = {handle: known for handle, known in self._noted.items() if handle in postponed}
        self._owners = {handle: self._owners[handle] for handle in self._noted}
        self._counts.clear()
        for handle, known in self._noted.items():
            self._counts[self._owners[handle]] += len(known)
        return stored_contexts


class InboundWriter:
    """The changes that received messages cause, kept in memory until a round writes them.

    A batch holds the new messages of one conversation. A batch is postponed while another session has locked the rows,
    or while the broker of its database is disabled. Postponed batches are limited to `budget` bytes, as their senders
    count them, and to as many conversations as `Conversations` has room for. Batches beyond these limits are dropped;
    the peers repeat their messages.
    """

    def __init__(
        self,
        conversations: Conversations,
        charges: Charges,
        unfinished: UnfinishedMessages,
        budgets: Budgets,
        seconds: Callable[[], float],
        budget: int,
    ) -> None:
        self._conversations = conversations
        self._charges = charges
        self._unfinished = unfinished
        self.quotas = Quotas(conversations, unfinished, seconds)
        self._seconds = seconds
        self._budget = budget
        self._traces = ArrivedTraces(budgets)
        self._targets: dict[UUID, tuple[NewTarget, Link]] = {}  # endpoints to create, and the links of their messages
        self._postponed: dict[UUID, Batch] = {}
        # conversations of batches that were stored after a delay: their later messages follow in the next round
        self._behind: set[UUID] = set()
        self._stored: list[Batch] = []  # batches of this round
        self._acknowledged: dict[UUID, Acknowledged] = {}
        self._failed: dict[UUID, BrokerFailure] = {}
        self._diverged: dict[UUID, Diverged] = {}
        self._backoff = Backoff()
        self._dirty = self._written = 0  # transmission objects of this round, for the counters
        self._last_batch = seconds()

    @property
    def wake_at(self) -> float:
        """The time of the next write: now if messages follow a batch that was postponed, else the next retry."""
        return self._seconds() if self._behind else self._backoff.at

    def arrived(self, store: Store, link: Link, received: OpenedMessage) -> None:
        """Collect the changes that a message causes. `store` and `settle` write them."""
        handle, header, payload, target = received
        entry = self._conversations.get(handle)
        if entry is None:
            return
        if target is not None:
            self._targets[handle] = target, link
        journal.acknowledgement(header, is_sent=False)
        self._traces.note(link.owner, handle, header)
        number = entry.dialog.token_to_recall(header)
        recalled = None if number is None else store.read_token(handle, number)
        allowance = self._unfinished.allowance(link.owner, handle, header.fragments)
        for event in entry.dialog.arrived(header, payload, recalled, allowance):
            match event:
                case Acknowledged():
                    self._acknowledged[handle] = event
                    entry.note_acknowledgement(str(event.peer_broker))
                    self._conversations.acknowledged(entry, event.below)
                    if entry.status in (UNANSWERED, CLOCK_DIFFERS):
                        self._conversations.set_status(entry, "")
                case Failed():
                    self._failed[handle] = event.failure
                case Diverged():
                    self._diverged[handle] = event
                case ClockDiffers(clock):
                    entry.note_peer_clock(clock, self._seconds())
                    self._conversations.set_status(entry, CLOCK_DIFFERS)
                case Dropped():
                    journal.undeliverable(event, header, link)
                    if event.number == 11224 and entry.session is not None:
                        refuse(link, header, BrokerFailure(-8495, RULES[8495].text), entry.session)
        if isinstance(payload, tuple) and (entry.dialog.begun is not None or handle in self._unfinished):
            self.quotas.note(link, handle, entry)
        self._conversations.halt(entry)

    def store(self, store: Store, touched: set[UUID]) -> arriving.StoreResult | None:
        """Insert received messages into their queues. Return None if there was nothing to insert."""
        late = {handle: batch for handle, batch in self._postponed.items() if self._is_current(handle)}
        batches = late.copy()
        for handle in touched | self._behind:
            began = self._seconds()
            if (entry := self._conversations.get(handle)) and (batch := entry.dialog.batch()) is not None:
                batches[handle] = batch
            self._charges.charge_for(handle, began)
        self._postponed, self._behind, self._stored = {}, set(), []
        if not batches and not self._targets:
            self._traces.take({}, ())  # forget the contexts of duplicates
            return None
        self._on_batch_event(batches, BatchEvent.STORE_BEGUN)
        targets = {handle: target for handle, (target, _) in self._targets.items()}
        began = self._charges.now
        result = store.store(batches, self.quotas.owners(batches) if self._unfinished else {}, targets)
        if self._charges.are_shared:
            self._charges.charge_by_weight({handle: self._weight(handle) for handle in (*batches, *targets)}, began)
        self._note_made(store, result.made)
        self._on_batch_event(result.postponed, BatchEvent.ROW_LOCKED)
        stored = {handle: batches[handle] for handle in result.stored}
        if traced := self._traces.take(stored, {*result.postponed, *late}):
            store.store_traces(traced)
        self._stored = [batches[handle] for handle in result.stored]
        postponed = set(result.postponed)
        self._postponed = {handle: batch for handle, batch in batches.items() if handle in postponed}
        self._make_room()
        self._behind = late.keys() & set(result.stored)
        self._dirty += len(batches)
        self._written += len(result.stored)
        return result

    def _weight(self, handle: UUID) -> float:
        """Return the cost of storing a batch, in bytes: those of its messages, and `TARGET_COST_BYTES` for a target."""
        entry = self._conversations.get(handle)
        load = 0 if entry is None else entry.dialog.arriving
        return load + (TARGET_COST_BYTES if handle in self._targets else 0)

    def _note_made(self, store: Store, created: Mapping[UUID, CreatedTarget]) -> None:
        """Report the created targets. Drop the others: both sides of those conversations are in this instance."""
        groups = store.groups_of(list(created)) if created and journal.watches_conversations() else {}
        targets, self._targets = self._targets, {}
        for handle, (target, link) in targets.items():
            entry = self._conversations.get(handle)
            if handle not in created:
                journal.undeliverable(
                    dropped_event(11221, "both sides of the conversation are in this instance"), target.header, link
                )
                self._conversations.forget(handle)
            elif entry is not None:
                entry.note_made(created[handle])
                link.opened()
                journal.log_conversation(
                    ConversationEvent.DIALOG_CREATED, entry.endpoint, EndpointState.STARTED_INBOUND
                )
                if handle in groups:
                    journal.log_group(CREATED, groups[handle])

    @property
    def stored(self) -> int:
        """The number of messages that this round has stored."""
        return sum(batch.reached - batch.expected for batch in self._stored)

    def _make_room(self) -> None:
        """Drop postponed batches beyond the limits, the oldest first.

        The oldest may wait for a broker that is disabled for days. Most row locks are held for milliseconds.
        """
        loads = {
            handle: entry.dialog.arriving for handle in self._postponed if (entry := self._conversations.get(handle))
        }
        total, count = sum(loads.values()), len(loads)
        for handle in loads:
            if total <= self._budget and count <= self._conversations.capacity:
                break
            total, count = total - loads[handle], count - 1
            del self._postponed[handle]
            self._on_batch_event([handle], BatchEvent.TOO_MANY_POSTPONED)
            self.quotas.renote(handle)

    def _is_current(self, handle: UUID) -> bool:
        """Return whether a postponed batch still belongs to its dialog. If not, the peer repeats its messages."""
        entry = self._conversations.get(handle)
        return entry is not None and entry.storing is Storing.POSTPONED

    def _on_batch_event(self, handles: Iterable[UUID], event: BatchEvent) -> None:
        for handle in handles:
            if entry := self._conversations.get(handle):
                self._conversations.on_batch_event(entry, event)

    def committed(self, store: Store, result: arriving.StoreResult) -> None:
        """Handle the commit of the round: acknowledge stored messages with the next frame, and wake their readers."""
        metrics.ARRIVED.inc(self.stored)
        for handle, batch in zip(result.stored, self._stored, strict=True):
            metrics.ARRIVED_FRAGMENTS.inc(batch.fragments)
            if entry := self._conversations.get(handle):
                metrics.ARRIVED_BY_PRIORITY.labels(entry.endpoint.priority).inc(batch.reached - batch.expected)
                _report_stored(entry.endpoint, batch)
        if result.queues:
            store.wake(result.queues)
        if result.gone or result.closed:
            self.quotas.forget((*result.gone, *result.closed))
        for handle in result.gone:
            self._conversations.forget(handle)
        self._on_batch_event(result.stored, BatchEvent.COMMITTED)
        for handle in result.closed:
            if entry := self._conversations.get(handle):
                entry.dialog.close()
                self._conversations.halt(entry)
        for handle, failed in result.failures.items():
            if entry := self._conversations.get(handle):
                if failed.message_type:
                    journal.log_rejected(failed, entry.endpoint)
                journal.log_conversation(ConversationEvent.BROKER_ERROR, entry.endpoint, EndpointState.ERROR)
                entry.dialog.refuse(BrokerFailure(failed.code, failed.description))
                self._conversations.enqueue(handle)

    def settle(self, store: Store, *, is_traced: bool) -> tuple[dict[UUID, Acknowledged], list[UUID]]:
        """Write the acknowledgements and errors that peers have sent, and the reasons why outgoing messages wait.

        Returns the acknowledgements that this transaction commits, and the conversations that end with it.
        """
        settled: dict[UUID, Acknowledged] = {}
        ended: list[UUID] = []
        self._dirty += len(self._acknowledged) + len(self._failed) + len(self._diverged)
        if self._acknowledged:
            groups = store.groups_of(list(self._acknowledged)) if journal.watches_conversations() else {}
            began = self._charges.now
            acknowledged, ended = store.acknowledge(self._acknowledged)
            if self._charges.are_shared:
                self._charges.charge_by_weight(dict.fromkeys(self._acknowledged, 1.0), began)
            settled = {handle: self._acknowledged.pop(handle) for handle in acknowledged}
            self._reload_outdated(settled)
            self._report_ends(store, ended, groups)
            if is_traced:
                store.acknowledge_traces({handle: event.below for handle, event in settled.items()})
        if self._failed:
            for handle in store.fail(self._failed):
                failure = self._failed.pop(handle)
                self._written += 1
                if entry := self._conversations.get(handle):
                    if -failure.code in (9719, 9720):
                        self._note_restored(store, entry, failure)
                    journal.log_conversation(
                        ConversationEvent.RECEIVED_BROKER_ERROR, entry.endpoint, EndpointState.ERROR
                    )
        if self._diverged:
            for handle in store.diverge(self._diverged):
                diverged = self._diverged.pop(handle)
                self._written += 1
                if entry := self._conversations.get(handle):
                    self._note_restored(store, entry, diverged.own)
                    journal.log_conversation(ConversationEvent.BROKER_ERROR, entry.endpoint, EndpointState.ERROR)
        if statuses := self._conversations.take_statuses():
            store.set_statuses(statuses)
        self._dirty += len(statuses)
        self._written += len(settled) + len(statuses)
        return settled, ended

    def _reload_outdated(self, settled: dict[UUID, Acknowledged]) -> None:
        """Reload conversations that were read before these acknowledgements.

        Their state still counts messages that are deleted now.
        """
        for handle, event in settled.items():
            entry = self._conversations.get(handle)
            if entry is not None and entry.dialog.acknowledged_below < event.below:
                self._conversations.forget(handle)
                self._conversations.wanted.add(handle)

    def _note_restored(self, store: Store, entry: Entry, own: BrokerFailure) -> None:
        """Record that one of the two databases was restored from an old copy."""
        journal.transmission(entry.endpoint.conversation_id, own.description)
        peer_broker = entry.dialog.peer_broker
        store.note_old_copy(entry.endpoint, peer_broker, own, is_here=own.code == -9719)

    def count(self, touched: int, began: float) -> None:
        """Update the counters of Broker TO Statistics (transmission objects) after a committed round."""
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

    def _report_ends(self, store: Store, ended: list[UUID], groups: dict[UUID, UUID]) -> None:
        for handle in ended:
            if entry := self._conversations.get(handle):
                journal.log_conversation(ConversationEvent.RECEIVED_END_ACK, entry.endpoint, EndpointState.CLOSED)
        ended_groups = {groups[handle] for handle in ended if handle in groups}
        for group in sorted(ended_groups - store.existing_groups(ended_groups) if ended_groups else ()):
            journal.log_group(DROPPED, group)

    def schedule(self) -> None:
        """Schedule the next attempt for changes that are not written yet, with backoff."""
        now = self._seconds()
        self._backoff.is_due(now)
        self._backoff.schedule(
            now, is_left=bool(self._postponed or self._acknowledged or self._failed or self._diverged)
        )


def parse_frame(arrival: Arrival, now: float) -> ReceivedMessage:
    """Parse a frame into a message.

    Raises:
        CorruptedMessage: no broker would send such a frame, or a name contains NUL, which PostgreSQL cannot store.
    """
    passage, body = unwrap(arrival.body) if arrival.is_forwarded else (None, arrival.body)
    envelope = parse(body)
    header = envelope.header
    check_addresses(header)
    _check(header.to_service, header.from_service, header.opening.contract if header.opening else "")
    return ReceivedMessage(arrival.link, envelope, body, passage, now)


def _is_whole_first(header: Header) -> bool:
    """Return whether a frame holds the first message of a conversation, and all of it."""
    return header.number == 0 and header.fragments == 1


def _opened(envelope: Envelope, session: SessionKeys) -> Payload:
    payload = open_payload(envelope, session.of(envelope.header))
    if isinstance(payload, tuple):
        _check(*(part.message_type for part in payload))
    return payload


def _check(*names: str) -> None:
    if any("\0" in name for name in names):
        raise CorruptedMessage(11235, "a name contains the character NUL")


def refuse(link: Link, header: Header, failure: BrokerFailure, session: SessionKeys = UNSECURED) -> None:
    """Answer a message without a local endpoint with an error, unless the peer is too slow to read answers."""
    if link.room <= 0:
        return
    is_secured = session.first.is_secured
    answer = refusal(header, header.to_broker or header.conversation_id, is_secured=is_secured)
    link.send(encode(answer, failure, session.of(answer)))


def _report_corrupted(message: ReceivedMessage, problem: CorruptedMessage) -> None:
    """Report a message that was corrupted on the way, or that no broker would send."""
    journal.not_taken(problem, message.link)
    message.link.complain()


def _drop_stranger(message: ReceivedMessage, number: int, *values: object) -> None:
    """Drop and log a message without a local conversation. A peer that sends many of them is read less often."""
    journal.undeliverable(dropped_event(number, *values), message.header, message.link)
    message.link.complain()


def _report_stored(endpoint: RemoteEndpoint, batch: Batch) -> None:
    """Record the events Broker:Conversation of a stored batch: its messages, and the end of the conversation."""
    contents = [part.content for step in batch.steps if isinstance(step, Deliver) for part in step.parts]
    ends = [content for content in contents if content is not Content.DATA]
    journal.log_conversation(
        ConversationEvent.RECEIVED_MESSAGE,
        endpoint,
        EndpointState.CONVERSING,
        batch.reached - batch.expected - len(ends),
    )
    for content in ends:
        if content is Content.ERROR:
            journal.log_conversation(ConversationEvent.RECEIVED_ERROR, endpoint, EndpointState.ERROR)
        else:
            journal.log_conversation(ConversationEvent.RECEIVED_END, endpoint, EndpointState.DISCONNECTED_INBOUND)
