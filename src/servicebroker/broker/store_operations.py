"""The interface between rounds and their store, so that the relay contains no SQL and no driver.

`broker/postgres_store.py` implements it with PostgreSQL, and the simulator in memory (`simulation/store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from servicebroker.engine.conversation.failure import ConversationFailure
from servicebroker.engine.conversation.traces import MessageContext
from servicebroker.engine.remote import arriving
from servicebroker.engine.remote.admission import Target
from servicebroker.engine.remote.departing import (
    AcknowledgedEndpoints,
    Claimed,
    OutgoingMessages,
    OutgoingPoll,
    ReadRequest,
    Snapshot,
)
from servicebroker.engine.remote.local_topology import Database, LocalInstance, LocalService, LocalTopology
from servicebroker.engine.remote.mirrored_pairs import StoredPair
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.remote_opening import NewTarget, TargetLocation, Unroutable
from servicebroker.engine.security.known_brokers import KnownBroker
from servicebroker.engine.security.master_keys import MasterKey
from servicebroker.engine.security.session_keys import Keys, UndecidedDialog
from servicebroker.engine.security.user_certificates import UserCertificate
from servicebroker.model.errors import BrokerError
from servicebroker.protocol.dialog import Acknowledged, Diverged
from servicebroker.protocol.envelope import BrokerFailure, Header
from servicebroker.protocol.incoming import Batch
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.routing import Ask, Decision, Elsewhere, Pick, RoutingTable
from servicebroker.protocol.unfinished import Stored


class Store(Protocol):
    """The tables of one instance, over one connection.

    No operation waits for a row lock. It skips rows that another session has locked, and reports the others as done.

    Raises:
        psycopg.Error, InstanceError: from every operation; nothing of the round is committed.
    """

    def transaction(self) -> AbstractContextManager[object]:
        """Run the operations inside as one transaction. Each operation outside is a transaction of its own."""

    # ---------------------------------------------------------------- conversations with messages

    def look(self, seen: Snapshot | None) -> OutgoingPoll:
        """Find messages in the transmission queue that were not visible in the snapshot `seen`."""

    def page(self, after: UUID, count: int) -> list[UUID]:
        """Return the next endpoints with waiting messages, in the order of their handles."""

    def endpoints(self, handles: Sequence[UUID]) -> list[RemoteEndpoint]:
        """Return the endpoints that have no peer in this instance."""

    def endpoints_of(self, keys: Sequence[tuple[UUID, bool]]) -> list[RemoteEndpoint]:
        """Return the endpoints with these keys: conversation, and whether the endpoint is the initiator's."""

    def groups_of(self, handles: Sequence[UUID]) -> dict[UUID, UUID]:
        """Return the conversation groups of these endpoints."""

    def existing_groups(self, groups: Collection[UUID]) -> set[UUID]:
        """Return the groups that still exist."""

    # ---------------------------------------------------------------- routes

    def route(self, departures: Sequence[RemoteEndpoint], here: LocalInstance) -> dict[UUID, Decision]:
        """Route each address. Ask the dynamic routing service for addresses without a route."""

    def route_arrivals(
        self, headers: Sequence[Header], here: LocalInstance, may_ask: Callable[[int, Ask], bool]
    ) -> list[Decision]:
        """Route each of these messages of peers.

        The dynamic routing service is asked for missing routes, if `may_ask` allows that for the message's index.
        """

    def site(self) -> LocalTopology:
        """Return the databases of the instance, for `routes`."""

    def routes(self, located: LocalTopology, database: Database) -> RoutingTable:
        """Return the routes of a database."""

    def ask(self, database_id: int, missing: Ask) -> None:
        """Ask the dynamic routing service for a route, unless a request is pending."""

    def known_pairs(self, pairs: Iterable[Elsewhere]) -> dict[Elsewhere, KnownTimeline]:
        """Return the highest known timeline of each mirrored pair."""

    def find_routed_pairs(self) -> list[Elsewhere]:
        """Return the stored mirrored pairs to which a route leads."""

    def save_pairs(self, rows: Sequence[StoredPair]) -> None:
        """Save the principal, the highest timeline and the explanation of mirrored pairs to which a route leads."""

    def claim(self, claims: Mapping[UUID, Claimed]) -> set[UUID]:
        """Claim conversations: their targets are in other instances from now on. Returns the claimed ones."""

    # ---------------------------------------------------------------- outgoing messages

    def read(self, wanted: dict[UUID, ReadRequest], longest: int) -> dict[UUID, OutgoingMessages]:
        """Return the waiting messages of endpoints that have any. Bodies longer than `longest` bytes are left out."""

    def read_fragment(self, handle: UUID, number: int, offset: int, length: int) -> bytes | None:
        """Return `length` bytes at `offset` of one message; None if it was deleted."""

    def read_token(self, handle: UUID, number: int) -> bytes | None:
        """Return the token of one waiting message; None if it was deleted, or has none."""

    def read_traces(self, header: Header, first: int, last: int) -> list[tuple[int, bytes]]:
        """Return the trace contexts of these messages, with their numbers."""

    def acknowledge(self, news: Mapping[UUID, Acknowledged]) -> AcknowledgedEndpoints:
        """Delete the messages below these numbers: the peers have committed them."""

    def acknowledge_traces(self, below: Mapping[UUID, int]) -> None:
        """Delete the trace contexts of messages below these numbers."""

    def fail(self, failures: Mapping[UUID, BrokerFailure]) -> list[UUID]:
        """Fail conversations that the peers' brokers have refused. Returns the failed ones."""

    def diverge(self, diverged: Mapping[UUID, Diverged]) -> list[UUID]:
        """Fail conversations whose two sides have different histories. Returns the failed ones."""

    def note_old_copy(
        self, endpoint: RemoteEndpoint, peer_broker: UUID | None, own: BrokerFailure, *, is_here: bool
    ) -> None:
        """Record that one of the two databases was restored, which has ended the conversation with this Error."""

    def set_statuses(self, texts: dict[UUID, str]) -> None:
        """Set the transmission_status of endpoints: why their messages wait, or '' while they are sent."""

    # ---------------------------------------------------------------- received messages

    def find_place(self, header: Header, pick: Pick) -> TargetLocation | ConversationFailure | Unroutable:
        """Find the service and the database for the target of a new conversation of another instance."""

    def new_handle(self) -> UUID:
        """Draw the handle of a target."""

    def store(
        self, batches: Mapping[UUID, Batch], owners: Mapping[UUID, str], targets: Mapping[UUID, NewTarget]
    ) -> arriving.StoreResult:
        """Create targets, and store received messages: of each endpoint the whole batch, or nothing.

        `owners`: the owners of the peers that have sent incomplete messages. No target is created if the initiator is
        in this instance as well.
        """

    def drop_openings(self, handles: Sequence[UUID]) -> list[UUID]:
        """Delete targets without any delivered or stored message. Returns the deleted ones."""

    def unfinished(self, handles: Sequence[UUID] | None = None) -> list[Stored]:
        """Return the incomplete messages of this share; only of these conversations, if given."""

    def drop_unfinished(self, handles: Sequence[UUID]) -> list[UUID]:
        """Delete the incomplete messages of these conversations. Returns those without any left."""

    def store_traces(self, traced: Sequence[MessageContext]) -> None:
        """Store the trace contexts of received messages."""

    def wake(self, queues: Collection[int]) -> None:
        """Wake the readers of these queues."""

    # ---------------------------------------------------------------- dialog security

    def find_beginnings(self, handles: Sequence[UUID]) -> list[UndecidedDialog]:
        """Return the initiators whose security is not decided."""

    def find_certificates_of(self, owners: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[UserCertificate]]:
        """Return the certificates of these principals: (database, principal) -> certificates."""

    def find_certificates(self, database_id: int, thumbprints: Sequence[bytes]) -> dict[bytes, UserCertificate]:
        """Return the certificates of a database with these thumbprints."""

    def find_master_key(self, database_id: int) -> MasterKey | None:
        """Return the master key of a database, or None."""

    def ask_for_binding(self, database_id: int, service: str) -> bool:
        """Ask the dynamic routing service for a remote service binding. Returns whether an answer is expected."""

    def save_keys(self, keys: Mapping[UUID, Keys]) -> None:
        """Store the session keys of conversations without stored keys."""

    def save_exchange(self, handle: UUID, exchange: bytes) -> None:
        """Store the own session key, wrapped and signed by new certificates."""

    def save_second_keys(self, keys: Mapping[UUID, tuple[UUID, bytes]]) -> None:
        """Store the keys of targets that initiators have learned: key identifier and key."""

    def find_broker(self, certificate_id: int, broker: UUID) -> KnownBroker:
        """Return the known capabilities and clock of a broker that signs with this certificate."""

    def save_broker(self, certificate_id: int, broker: UUID, capabilities: Sequence[str], ahead_until: int) -> None:
        """Add capabilities of a broker, and the latest time of its clock while it was ahead of the local one."""

    def find_target(self, home: LocalService) -> Target:
        """Return the service that a new conversation is for, and its queue."""

    def refused_keeper(self, target: Target, principal_id: int) -> BrokerError | None:
        """Return why the session key may not be wrapped for a certificate of this principal, or None."""

    def refused_sender(self, target: Target, principal_id: int) -> BrokerError | None:
        """Return why this principal may not send to the service, or None."""

    def refused_owner(self, target: Target) -> BrokerError | None:
        """Return why the service's owner may not receive from its queue, or None."""
