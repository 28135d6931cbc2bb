"""Trust in peers: a message is accepted only from a peer that may be its source.

The key of a message with dialog security proves its sender, whichever peer has forwarded it. Any other message is
accepted only from a peer that a local route names for the sending service. That may be the sender's instance, a
forwarder, or one broker of a mirrored pair. Routes and peers are looked up in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from servicebroker.broker import journal
from servicebroker.broker.arrivals import PendingOpenings, ReceivedMessage
from servicebroker.broker.conversations import Entry
from servicebroker.broker.peers import Peers
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Link, Links
from servicebroker.engine.remote.local_topology import LocalInstance, LocalTopology
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.dialog_security import Security
from servicebroker.model.security.peers import MESSAGES, FalseClaim
from servicebroker.protocol.budgets import RouteRequests, UnansweredAddresses, over_budget
from servicebroker.protocol.envelope import Header
from servicebroker.protocol.routing import Address, Ask, Decision, Elsewhere, Local, RoutingTable, asks, ways

SOURCE_TIMEOUT_S = 4.0  # seconds that a message waits until its peer is known; then its sender repeats it
MAX_SOURCES = 10_000  # accepted sources in memory


class Source(NamedTuple):
    """The stated source of a message. `database`: the local broker that gets it; None if it is to be forwarded."""

    service: str
    broker: str
    database: str | None


class Trust:
    """Decides whether received messages are accepted. Not thread-safe: the relay's thread uses it."""

    def __init__(
        self,
        links: Links,
        peers: Peers,
        waiting: PendingOpenings,
        unanswered: UnansweredAddresses,
        route_requests: RouteRequests,
        here: Callable[[], LocalInstance],
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
    ) -> None:
        self._links = links
        self._peers = peers
        self._waiting = waiting
        self._unanswered = unanswered
        self._route_requests = route_requests
        self._here = here
        self._clock = clock
        self._seconds = seconds
        self._located: LocalTopology | None = None
        self._is_fresh = False  # the routes were read in this round
        self._basis: tuple[int, int] = (0, 0)  # versions of routes and peers for which `_right` holds
        self._right: set[tuple[str, Source]] = set()  # (owner, source) pairs that were accepted
        self._routes = 0
        self._over: BrokerError | None = None  # the budget that the present message exceeds

    def on_routes(self, version: int) -> None:
        """Begin a round. `version`: that of the routes in the last round."""
        self._is_fresh = False
        if version != self._routes:
            self._routes, self._located = version, None

    def takes(self, store: Store, message: ReceivedMessage, entry: Entry | None, decision: Decision | None) -> bool:
        """Return whether a message is accepted now. If its peer may still become known, keep it and return False."""
        source, self._over = _source(message.header, entry, decision), None
        if source is None or self._is_right(store, message.link.owner, source):
            return True
        is_early = self._seconds() - message.since < SOURCE_TIMEOUT_S
        if is_early and self._may_become_right(store, message.link.owner, source):
            if self._waiting.keep(message):
                return False
            self._over = self._over or self._waiting.over_budget(message)
        message.link.complain()
        if self._over is not None:
            journal.over_budget(self._over, message.header, message.link)
            return False
        source_text = f"{source.service} at broker {source.broker}, conversation {message.header.conversation_id}"
        self._peers.mistrust(FalseClaim(message.link.owner, MESSAGES), source_text)
        return False

    def _is_right(self, store: Store, owner: str, source: Source) -> bool:
        """Return whether a route names the peer as this source. Routes are read again before the answer is no."""
        basis = self._routes, self._peers.version
        if basis != self._basis:
            self._basis = basis
            self._right.clear()
        if (owner, source) in self._right:
            return True
        is_named = owner in self._owners(store, owner, source).values()
        if not is_named and not self._is_fresh:
            self._located = None
            is_named = owner in self._owners(store, owner, source).values()
        if is_named:
            if len(self._right) >= MAX_SOURCES:
                self._right.clear()
            self._right.add((owner, source))
        return is_named

    def _owners(self, store: Store, sender: str, source: Source) -> dict[Address, str | None]:
        """Return the owners at the addresses of the routes; None for an address that has not answered yet.

        `sender` is the owner of the message. A new connection to an address counts for its budget.
        """
        addresses = (
            ways(source.service, source.broker, self._tables(store, source), self._clock()) - self._here().addresses
        )
        owners = {address: self._peers.owner_at(address) for address in sorted(addresses)}
        for address in [address for address, owner in owners.items() if owner is None]:
            link = self._reach(sender, address)
            owners[address] = None if isinstance(link, str) else link.owner
        return owners

    def _reach(self, sender: str, address: Address) -> Link | str:
        """Return the link to an address that a message names, or why there is none; '' while it is being opened."""
        if not self._unanswered.may_connect(sender, address, self._seconds()):
            self._over = over_budget("addresses", self._peers.budgets.of(sender).addresses)
            return self._over.text
        link = self._links.reach(address)
        if not isinstance(link, str):
            self._unanswered.reached(address)
        return link

    def _may_become_right(self, store: Store, sender: str, source: Source) -> bool:
        """Return whether a connection to a possible source is being made, or a route is being requested."""
        owners = self._owners(store, sender, source)
        if owners or source.database is None:
            return any(owner is None and self._reach(sender, address) == "" for address, owner in owners.items())
        assert self._located is not None
        tables = self._tables(store, source)
        if not any(asks(source.service, table, self._clock()) for table in tables):
            return False
        if not self._route_requests.may_ask(sender, source, self._seconds()):
            self._over = over_budget("route_requests", self._peers.budgets.of(sender).route_requests)
            return False
        for database in self._located.databases:
            if database.broker == source.database:
                store.ask(database.database_id, Ask(source.service, source.broker))
        return True

    def _tables(self, store: Store, source: Source) -> list[RoutingTable]:
        """Return the routes that name the peers of this source: those of msdb and of the receiver."""
        if self._located is None:
            self._located, self._is_fresh = store.site(), True
        databases = [db for db in self._located.databases if db.is_msdb or db.broker == source.database]
        return [store.routes(self._located, database) for database in databases]


def _source(header: Header, entry: Entry | None, decision: Decision | None) -> Source | None:
    """Return the source that the link must prove; None if dialog security proves it, or the message has no effect."""
    broker, database = str(header.from_broker), str(header.to_broker) if header.to_broker else None
    if entry is not None:
        endpoint = entry.endpoint
        if endpoint.security in (Security.ANONYMOUS, Security.FULL):
            return None
        known = entry.dialog.peer_broker or endpoint.routed_broker or broker
        return Source(endpoint.far_service, str(known), str(endpoint.own_broker))
    destination = decision.destination if decision else None
    if isinstance(destination, Elsewhere):
        return None if header.is_secured else Source(header.from_service, broker, None)
    if isinstance(destination, Local):
        database = destination.broker_instance
    if header.is_secured and (header.exchange is None or header.exchange.source):
        return None  # the signer began the conversation; without a signature none begins
    return None if database is None else Source(header.from_service, broker, database)
