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
from servicebroker.broker.arrivals import InboundWriter, MessageOpener, PendingOpenings, ReceivedMessage, parsed
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
from servicebroker.protocol.budgets import Budgets, NamedAddresses, RouteRequests, over_budget
from servicebroker.protocol.limits import LIMITS, Limits
from servicebroker.protocol.mirroring import Standing
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address, Ask, Decision
from servicebroker.protocol.unfinished import UnfinishedMessages
from servicebroker.protocol.wire_errors import CorruptedMessage
from servicebroker.store.keys.key_files import KeyFolder


class Relay:
    """The conversations of one instance with others. Not thread-safe: one thread runs its rounds.

    `seconds` never goes back; `capacity` is how many conversations it remembers at a time, `budget` how many bytes of
    bodies that wait for links, and of those that wait for rows; `keys` has the service master key, for secure
    conversations; `peers` says what links prove, nothing without it. `budgets` take the place of those of `peers`.
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
        self._named = NamedAddresses(self._budgets)
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
        self.forwarding = Forwarding(links, self.mirrors, self._named, seconds, chance.getrandbits)
        self.forget()

    def forget(self, shares: int = 1) -> None:
        """Drop all memory and restart from the database, after a lost connection or a write by another process.

        So many relays share the instance, and what memory there is for it.
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
            self._links, self._peers, self._waiting, self._named, self._route_requests, self._here, clock, seconds
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
        self._routes = 0  # their version
        self.snapshot: Snapshot | None = None  # of the last round: while it stays the same nothing was committed
        self._is_traced = False  # messages have trace contexts
        self.mirrors.forget_told()
        self.forwarding.shares = self._named.shares = self._route_requests.shares = shares

    def round(self, store: Store, arrivals: Iterable[Arrival]) -> int:
        """One transaction, and what may be sent after it. Returns how much there was to do, in messages; 0 if nothing.

        Raises:
            psycopg.Error, InstanceError: nothing of it is to count. Call `forget`; the arrivals will come again.
        """
        began = self._seconds()
        self._charges.begin()
        with store.transaction():
            if self.snapshot is None:  # conversations entered from here on have all that this look has seen
                self.snapshot = store.look(None).snapshot
                self._writer.quotas.load(store)
            touched = self._take(store, list(arrivals))
            stored = self._writer.store(store, touched)
            settled, ended = self._writer.settle(store, is_traced=self._is_traced)
            look = store.look(self.snapshot)
            touched |= self._conversations.enable(look.disabled)
            touched |= self._matching.see_routes(store, look.routes)
            if self.mirrors.are_used:
                touched |= self._matching.see_mirrors(store)
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
            self._conversations.line_up(handle)
        sent = self._frames.send(store, is_traced=self._is_traced)
        if self.forwarding.wake_at < NEVER:
            sent += self.forwarding.send(self._here())
        for handle in ended:
            self._conversations.forget(handle)
        if self._conversations.make_room():
            self._finding.missed()
        self._charges.tell()
        self._writer.plan_again()
        self._waiting.plan_again()
        return max(len(touched), self._writer.stored + sent)

    @property
    def remembered(self) -> int:
        """Return how many conversations it has in memory."""
        return len(self._conversations)

    @property
    def wake_at(self) -> float:
        """When the next round has something to do, if nothing arrives and nothing is sent."""
        arriving = self._waiting, self._writer, self._unfinished
        leaving = self._conversations, self._finding, self._readahead, self.forwarding
        at = min(part.wake_at for part in (*arriving, *leaving))
        return min(at, self.mirrors.wake_at) if self.mirrors.are_used else at

    def on_peer_role(self, address: Address, standing: Standing) -> None:
        """Handle the answer of a broker whether it is the principal of its pair."""
        self.mirrors.heard(address, standing)

    def reached(self, address: Address) -> None:
        """Handle a new link to an address: conversations that wait for it may send at once."""
        self._named.reached(address)
        self._conversations.reached(address)
        self._finding.reached()
        self._waiting.hurry()

    def unreached(self, address: Address, status: str) -> None:
        """Handle the failure to connect to an address, with the reason."""
        self.mirrors.unreached(address, status)
        self._conversations.unreached(address, status)

    def lost(self, link: Link, status: str) -> None:
        """Handle the end of a link: its messages are sent again, at once if another link has taken its place."""
        for address in self._conversations.lost(link, status):
            if not isinstance(self._links.reach(address), str):
                self.reached(address)

    def _take(self, store: Store, arrivals: list[Arrival]) -> set[UUID]:
        came, now = self._waiting.take(), self._seconds()
        for arrival in arrivals:
            try:
                came.append(parsed(arrival, now))
            except CorruptedMessage as problem:
                journal.not_taken(problem, arrival.link)
                arrival.link.complain()
        unknown = [key for key in {one.key for one in came} if self._conversations.find(*key) is None]
        # also if its message is not taken: no page finds what it sends while it is in memory
        touched = {self._conversations.enter(endpoint) for endpoint in (store.endpoints_of(unknown) if unknown else ())}
        ours = self._pass_on(store, came)
        opened = self._opener.begin(store, ours)
        for place, one in enumerate(ours):
            began = self._seconds()
            received = opened[place] if place in opened else self._opener.open(store, one)
            if received is not None:
                self._writer.arrived(store, one.link, received)
                self._charges.note_bringer(received.handle, one.link)
                touched.add(received.handle)
            self._charges.charge(one.link, began)
        if self._security.learned:
            self._security.save(store)
        return touched

    def _pass_on(self, store: Store, came: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Hand messages for other instances to the forwarder, and drop those that their peer may not bring.

        Returns the others.
        """
        here, proves = self._here(), self._peers.proves
        if proves:
            self._trust.see_routes(self._routes)
        strangers = [one for one in came if self._conversations.find(*one.key) is None]
        decided: dict[int, Decision] = {}
        if strangers:
            decisions = store.route_arrivals(
                [one.header for one in strangers], here, lambda place, missing: self._may_ask(strangers[place], missing)
            )
            self._matching.acquaint(store, decisions)
            decided = {id(one): decision for one, decision in zip(strangers, decisions, strict=True)}
        ours = []
        for one in came:
            decision, handle = decided.get(id(one)), self._conversations.find(*one.key)
            entry = None if handle is None else self._conversations.get(handle)
            if proves and not self._trust.takes(store, one, entry, decision):
                continue
            if decision is None or not self.forwarding.takes(one, decision, here):
                ours.append(one)
        return ours

    def _may_ask(self, came: ReceivedMessage, missing: Ask) -> bool:
        """Return whether a message may cause a request for a missing route, and report it if not."""
        owner = came.link.owner
        if self._route_requests.may_ask(owner, missing, self._seconds()):
            return True
        journal.over_budget(
            over_budget("route_requests", self._budgets.of(owner).route_requests), came.header, came.link
        )
        return False
