"""Trust in peers: a message is accepted only from a peer that may be its source.

A message with dialog security is proven by its key, whichever peer has carried it. Any other message is accepted only
from a peer that a route of ours names for the sending service. That may be the sender's instance, a forwarder, or one
of a mirrored pair. Routes and peers are looked up in memory.
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
from servicebroker.model.security.peers import MESSAGES, Mistrust
from servicebroker.protocol.budgets import NamedAddresses, RouteRequests, over_budget
from servicebroker.protocol.envelope import Header
from servicebroker.protocol.routing import Address, Ask, Decision, Elsewhere, Local, RoutingTable, asks, ways

SOURCE_TIMEOUT_S = 4.0  # seconds that a message waits until it is known who is where; then its sender tries again
MAX_SOURCES = 10_000  # sources that were found to be right


class Source(NamedTuple):
    """The stated source of a message, and our broker that it is for; None if it is to be forwarded."""

    service: str
    broker: str
    database: str | None


class Trust:
    """Judges what links bring. One thread uses it, as it does the relay."""

    def __init__(
        self,
        links: Links,
        peers: Peers,
        waiting: PendingOpenings,
        named: NamedAddresses,
        route_requests: RouteRequests,
        here: Callable[[], LocalInstance],
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
    ) -> None:
        self._links = links
        self._peers = peers
        self._waiting = waiting
        self._named = named
        self._route_requests = route_requests
        self._here = here
        self._clock = clock
        self._seconds = seconds
        self._located: LocalTopology | None = None
        self._is_fresh = False  # looked up in this round
        self._basis: tuple[int, int] = (0, 0)  # routes and peers, as they were when these were found to be right:
        self._right: set[tuple[str, Source]] = set()
        self._routes = 0
        self._over: BrokerError | None = None  # why the message that is judged cannot become right

    def on_routes(self, version: int) -> None:
        """A round begins, and the routes were of that version when the last one looked."""
        self._is_fresh = False
        if version != self._routes:
            self._routes, self._located = version, None

    def takes(self, store: Store, came: ReceivedMessage, entry: Entry | None, decision: Decision | None) -> bool:
        """Return whether a message is taken now. A message that waits until its peer is known is not."""
        source, self._over = _source(came.header, entry, decision), None
        if source is None or self._is_right(store, came.link.owner, source):
            return True
        is_early = self._seconds() - came.since < SOURCE_TIMEOUT_S
        if is_early and self._may_become_right(store, came.link.owner, source):
            if self._waiting.keep(came):
                return False
            self._over = self._over or self._waiting.over_budget(came)
        came.link.complain()
        if self._over is not None:
            journal.over_budget(self._over, came.header, came.link)
            return False
        where = f"{source.service} at broker {source.broker}, conversation {came.header.conversation_id}"
        self._peers.mistrust(Mistrust(came.link.owner, MESSAGES), where)
        return False

    def _is_right(self, store: Store, owner: str, source: Source) -> bool:
        """Return whether a route names the peer as this source. Routes are read again before the answer is no."""
        basis = self._routes, self._peers.version
        if basis != self._basis:
            self._basis = basis
            self._right.clear()
        if (owner, source) in self._right:
            return True
        found = owner in self._owners(store, owner, source).values()
        if not found and not self._is_fresh:
            self._located = None
            found = owner in self._owners(store, owner, source).values()
        if found:
            if len(self._right) >= MAX_SOURCES:
                self._right.clear()
            self._right.add((owner, source))
        return found

    def _owners(self, store: Store, brings: str, source: Source) -> dict[Address, str | None]:
        """Return the owners at the addresses of the routes; None where nobody has answered yet.

        `brings` is the owner of the message, whose budget a new connection to an address counts for.
        """
        there = ways(source.service, source.broker, self._tables(store, source), self._clock()) - self._here().addresses
        owners = {address: self._peers.owner_at(address) for address in sorted(there)}
        for address in [address for address, owner in owners.items() if owner is None]:
            link = self._reach(brings, address)
            owners[address] = None if isinstance(link, str) else link.owner
        return owners

    def _reach(self, brings: str, address: Address) -> Link | str:
        """Return the link to an address that a message names, or why there is none; '' while it is being opened."""
        if not self._named.may_ask(brings, address, self._seconds()):
            self._over = over_budget("addresses", self._peers.budgets.of(brings).addresses)
            return self._over.text
        link = self._links.reach(address)
        if not isinstance(link, str):
            self._named.reached(address)
        return link

    def _may_become_right(self, store: Store, brings: str, source: Source) -> bool:
        """Return whether a connection to a possible source is being made, or a route is being requested."""
        owners = self._owners(store, brings, source)
        if owners or source.database is None:
            return any(owner is None and self._reach(brings, address) == "" for address, owner in owners.items())
        assert self._located is not None
        tables = self._tables(store, source)
        if not any(asks(source.service, table, self._clock()) for table in tables):
            return False
        if not self._route_requests.may_ask(brings, source, self._seconds()):
            self._over = over_budget("route_requests", self._peers.budgets.of(brings).route_requests)
            return False
        for database in self._located.databases:
            if database.broker == source.database:
                store.ask(database.database_id, Ask(source.service, source.broker))
        return True

    def _tables(self, store: Store, source: Source) -> list[RoutingTable]:
        """Return the routes that name the peers from which a message of this source may come."""
        if self._located is None:
            self._located, self._is_fresh = store.site(), True
        counting = [one for one in self._located.databases if one.is_msdb or one.broker == source.database]
        return [store.routes(self._located, one) for one in counting]


def _source(header: Header, entry: Entry | None, decision: Decision | None) -> Source | None:
    """Return the source that the link must prove; None if the seal proves it, or if the message has no effect."""
    broker, database = str(header.from_broker), str(header.to_broker) if header.to_broker else None
    if entry is not None:
        endpoint = entry.endpoint
        if endpoint.security in (Security.ANONYMOUS, Security.FULL):
            return None
        known = entry.dialog.far_broker or endpoint.routed_broker or broker
        return Source(endpoint.far_service, str(known), str(endpoint.own_broker))
    destination = decision.destination if decision else None
    if isinstance(destination, Elsewhere):
        return None if header.is_secured else Source(header.from_service, broker, None)
    if isinstance(destination, Local):
        database = destination.broker_instance
    if header.is_secured and (header.exchange is None or header.exchange.source):
        return None  # the signer began the conversation; without a signature none begins
    return None if database is None else Source(header.from_service, broker, database)
