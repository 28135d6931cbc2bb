"""The relay: rounds that move messages from the transmission queue to links, and from links into queues.

A round is one transaction. It stores received messages, deletes acknowledged ones, and finds messages that were
committed since the last round. Acknowledgements are sent only after its commit. The relay has no socket: the caller
gives it links (connections to peers) and their frames. If the database connection is lost, the relay drops its memory
and reads everything from the database again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from random import Random
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.arrivals import InboundWriter, MessageOpener, PendingOpenings, ReceivedMessage, parse_frame
from servicebroker.broker.conversations import MAX_CONVERSATIONS, Conversations
from servicebroker.broker.departures import BODY_BUDGET_BYTES, Finding, Frames, Readahead
from servicebroker.broker.dialog_security import DialogSecurity
from servicebroker.broker.forwarding import Forwarding
from servicebroker.broker.inboxes import Charges
from servicebroker.broker.matching import Matching
from servicebroker.broker.mirrors import Mirrors
from servicebroker.broker.peers import Peers
from servicebroker.broker.quotas import NONE_EXPIRED
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Arrival, Link, Links
from servicebroker.broker.trust import Trust
from servicebroker.engine.remote.departing import Snapshot
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.protocol.budgets import Budgets, RouteRequests, UnansweredAddresses, over_budget
from servicebroker.protocol.limits import LIMITS, Limits
from servicebroker.protocol.mirroring import RoleReport
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address, Ask, Decision
from servicebroker.protocol.unfinished import UnfinishedMessages
from servicebroker.protocol.wire_errors import CorruptedMessage
from servicebroker.store.keys.key_files import KeyFolder


class Relay:
    """The conversations of one instance with others. Not thread-safe: one thread runs its rounds.

    Args:
        seconds: a clock that never goes back.
        capacity: the number of conversations in memory.
        budget: bytes of bodies that wait for links, and as many that wait for row locks.
        keys: the service master key, for secured conversations.
        peers: what connections prove about peers; without it nothing is proved.
        budgets: replace those of `peers`.
    """

    def __init__(
        self,
        links: Links,
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
        chance: Random,
        here: Callable[[], LocalInstance] = LocalInstance,
        capacity: int = MAX_CONVERSATIONS,
        keys: KeyFolder | None = None,
        peers: Peers | None = None,
        limits: Limits = LIMITS,
        budget: int = BODY_BUDGET_BYTES,
        budgets: Budgets | None = None,
    ) -> None:
        self._peers = peers or Peers()
        self._budgets = budgets or self._peers.budgets
        self._unanswered = UnansweredAddresses(self._budgets)
        self._route_requests = RouteRequests(self._budgets)
        self._security = DialogSecurity(keys, clock)
        self._links = links
        self._clock = clock
        self._seconds = seconds
        self._chance = chance
        self._here = here
        self._capacity = capacity
        self._limits = limits
        self._budget = budget
        self.mirrors = Mirrors(links, seconds)
        self.forwarding = Forwarding(links, self.mirrors, self._unanswered, seconds, chance.getrandbits)
        self.forget()

    def forget(self, shares: int = 1) -> None:
        """Drop all memory and restart from the database, after a lost connection or a write by another process.

        `shares`: the number of relays of this instance, which divide the memory among them.
        """
        clock, seconds, security = self._clock, self._seconds, self._security
        capacity = max(1, self._capacity // shares)
        security.forget()
        self._conversations = Conversations(
            self._links, clock, seconds, self._chance.random, capacity, self._limits, security.session
        )
        self._charges = Charges(seconds)
        self._waiting = PendingOpenings(seconds, self._budgets)
        self._trust = Trust(
            self._links, self._peers, self._waiting, self._unanswered, self._route_requests, self._here, clock, seconds
        )
        self._unfinished = UnfinishedMessages(self._limits, self._budgets, shares)
        self._opener = MessageOpener(
            self._conversations, self._waiting, self._unfinished, security, self._charges, clock, self._chance
        )
        self._writer = InboundWriter(
            self._conversations, self._charges, self._unfinished, self._budgets, seconds, self._budget // shares
        )
        self._finding = Finding(self._conversations, security, seconds)
        self._matching = Matching(self._conversations, security, self.mirrors, self._links, self._here)
        self._readahead = Readahead(self._conversations, self._limits.fragment_size, seconds, self._budget, shares)
        self._frames = Frames(self._conversations, self._charges, self._limits.fragment_size, clock, seconds)
        self._routes = 0  # version of the routes
        # The snapshot of the last round; an equal one means that nothing was committed
        self.snapshot: Snapshot | None = None
        self._is_traced = False  # messages have trace contexts
        self.mirrors.forget_told()
        self.forwarding.shares = self._unanswered.shares = self._route_requests.shares = shares

    def round(self, store: Store, arrivals: Iterable[Arrival]) -> int:
        """Run one transaction, and send what it allows. Returns the number of handled messages.

        Raises:
            psycopg.Error, InstanceError: nothing was committed. Call `forget`; peers will send the messages again.
        """
        began = self._seconds()
        self._charges.begin()
        with store.transaction():
            if self.snapshot is None:  # conversations entered from here on include all that this snapshot shows
                self.snapshot = store.look(None).snapshot
                self._writer.quotas.load(store)
            touched = self._take(store, list(arrivals))
            stored = self._writer.store(store, touched)
            settled, ended = self._writer.settle(store, is_traced=self._is_traced)
            look = store.look(self.snapshot)
            touched |= self._conversations.enable(look.disabled)
            touched |= self._matching.on_routes(store, look.routes)
            if self.mirrors.are_used:
                touched |= self._matching.on_mirrors(store)
            touched |= self._finding.due(store)
            touched |= self._finding.find(store, look.waiting)
            self._matching.match(store, touched)
            touched |= self._readahead.offer(store, touched)
            is_due = self._unfinished.is_due(self._seconds())
            expired = self._writer.quotas.expire(store) if is_due else NONE_EXPIRED
        self.snapshot, self._routes, self._is_traced = look.snapshot, look.routes, look.traced
        self._writer.count(len(touched), began)
        if stored is not None:
            self._writer.committed(store, stored)
        if expired.handles:
            self._writer.quotas.expired(expired)
        for handle, event in settled.items():
            if entry := self._conversations.get(handle):
                entry.dialog.deleted(event)
        for handle in touched:
            self._conversations.enqueue(handle)
        sent = self._frames.send(store, is_traced=self._is_traced)
        if self.forwarding.wake_at < NEVER:
            sent += self.forwarding.send(self._here())
        for handle in ended:
            self._conversations.forget(handle)
        if self._conversations.make_room():
            self._finding.missed()
        self._charges.tell()
        self._writer.schedule()
        self._waiting.schedule()
        return max(len(touched), self._writer.stored + sent)

    @property
    def remembered(self) -> int:
        """The number of conversations in memory."""
        return len(self._conversations)

    @property
    def wake_at(self) -> float:
        """The time when the next round has work, even if no message arrives."""
        inbound = self._waiting, self._writer, self._unfinished
        outbound = self._conversations, self._finding, self._readahead, self.forwarding
        next_timer = min(part.wake_at for part in (*inbound, *outbound))
        return min(next_timer, self.mirrors.wake_at) if self.mirrors.are_used else next_timer

    def on_peer_role(self, address: Address, role_report: RoleReport) -> None:
        """Handle the answer of a mirrored pair's broker: whether it is the principal."""
        self.mirrors.heard(address, role_report)

    def reached(self, address: Address) -> None:
        """Handle a new link to an address: waiting conversations may send immediately."""
        self._unanswered.reached(address)
        self._conversations.reached(address)
        self._finding.reached()
        self._waiting.retry_now()

    def unreached(self, address: Address, status: str) -> None:
        """Handle the failure to connect to an address, with the reason."""
        self.mirrors.unreached(address, status)
        self._conversations.unreached(address, status)

    def lost(self, link: Link, status: str) -> None:
        """Handle the end of a link: its messages are sent again, immediately if there is another link."""
        for address in self._conversations.lost(link, status):
            if not isinstance(self._links.reach(address), str):
                self.reached(address)

    def _take(self, store: Store, arrivals: list[Arrival]) -> set[UUID]:
        messages, now = self._waiting.take(), self._seconds()
        for arrival in arrivals:
            try:
                messages.append(parse_frame(arrival, now))
            except CorruptedMessage as problem:
                journal.not_taken(problem, arrival.link)
                arrival.link.complain()
        unknown = [key for key in {message.key for message in messages} if self._conversations.find(*key) is None]
        # touched even if the message is dropped: pages skip the waiting messages of a conversation in memory
        touched = {self._conversations.enter(endpoint) for endpoint in (store.endpoints_of(unknown) if unknown else ())}
        local = self._pass_on(store, messages)
        opened = self._opener.begin(store, local)
        for index, message in enumerate(local):
            began = self._seconds()
            received = opened[index] if index in opened else self._opener.open(store, message)
            if received is not None:
                self._writer.arrived(store, message.link, received)
                self._charges.note_sender(received.handle, message.link)
                touched.add(received.handle)
            self._charges.charge(message.link, began)
        if self._security.learned:
            self._security.save(store)
        return touched

    def _pass_on(self, store: Store, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Hand messages for other instances to the forwarder, and drop those that their peer may not send.

        Returns the messages for this instance.
        """
        here, proves = self._here(), self._peers.proves
        if proves:
            self._trust.on_routes(self._routes)
        unknown = [message for message in messages if self._conversations.find(*message.key) is None]
        decided: dict[int, Decision] = {}
        if unknown:
            decisions = store.route_arrivals(
                [message.header for message in unknown], here, lambda index, ask: self._may_ask(unknown[index], ask)
            )
            self._matching.ask_new_pairs(store, decisions)
            decided = {id(message): decision for message, decision in zip(unknown, decisions, strict=True)}
        local = []
        for message in messages:
            decision, handle = decided.get(id(message)), self._conversations.find(*message.key)
            entry = None if handle is None else self._conversations.get(handle)
            if proves and not self._trust.takes(store, message, entry, decision):
                continue
            if decision is None or not self.forwarding.takes(message, decision, here):
                local.append(message)
        return local

    def _may_ask(self, message: ReceivedMessage, missing: Ask) -> bool:
        """Return whether a message may cause a request for a missing route, and report it if not."""
        owner = message.link.owner
        if self._route_requests.may_ask(owner, missing, self._seconds()):
            return True
        journal.over_budget(
            over_budget("route_requests", self._budgets.of(owner).route_requests), message.header, message.link
        )
        return False
