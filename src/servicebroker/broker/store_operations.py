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
from servicebroker.engine.remote.departing import Claimed, Leaving, OutgoingLook, Reading, Settled, Snapshot
from servicebroker.engine.remote.local_topology import Database, LocalInstance, LocalService, LocalTopology
from servicebroker.engine.remote.mirrored_pairs import Row
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.remote_opening import NewTarget, Place, Unroutable
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

    Nobody is waited for: of rows that somebody else holds an operation says that it has not done them.

    Raises:
        psycopg.Error, InstanceError: from every operation; nothing of the round is to count.
    """

    def transaction(self) -> AbstractContextManager[object]:
        """All operations inside are one transaction; each of those outside is one of its own."""

    # ---------------------------------------------------------------- who has something to do

    def look(self, seen: Snapshot | None) -> OutgoingLook:
        """Find what waits in the transmission queue and was not visible to the look that returned `seen`."""

    def page(self, after: UUID, count: int) -> list[UUID]:
        """The next endpoints of which messages wait, in the order of their handles."""

    def endpoints(self, handles: Sequence[UUID]) -> list[RemoteEndpoint]:
        """Return the endpoints that have no peer in this instance."""

    def endpoints_of(self, keys: Sequence[tuple[UUID, bool]]) -> list[RemoteEndpoint]:
        """The endpoints of these conversations, each given with whether it is the initiator's."""

    def groups_of(self, handles: Sequence[UUID]) -> dict[UUID, UUID]:
        """The conversation groups of these endpoints."""

    def groups_left(self, groups: Collection[UUID]) -> set[UUID]:
        """Return the groups that still exist."""

    # ---------------------------------------------------------------- where it goes

    def route(self, departures: Sequence[RemoteEndpoint], here: LocalInstance) -> dict[UUID, Decision]:
        """Route each address. Ask the dynamic routing service for addresses without a route."""

    def route_arrivals(
        self, headers: Sequence[Header], here: LocalInstance, may_ask: Callable[[int, Ask], bool]
    ) -> list[Decision]:
        """Route each of these messages from outside.

        The dynamic routing service is asked for missing routes, if `may_ask` lets the message of that index do so.
        """

    def site(self) -> LocalTopology:
        """The databases of the instance, for `routes`."""

    def routes(self, located: LocalTopology, database: Database) -> RoutingTable:
        """The routes of a database."""

    def ask(self, database_id: int, missing: Ask) -> None:
        """Ask the dynamic routing service for a route, unless that was done."""

    def known_pairs(self, pairs: Iterable[Elsewhere]) -> dict[Elsewhere, KnownTimeline]:
        """Return the highest timeline seen of each mirrored pair."""

    def pairs(self) -> list[Elsewhere]:
        """Return the stored mirrored pairs to which a route leads."""

    def save_pairs(self, rows: Sequence[Row]) -> None:
        """Save the principal, the highest timeline and the explanation of mirrored pairs to which a route leads."""

    def claim(self, claims: Mapping[UUID, Claimed]) -> set[UUID]:
        """Claim conversations: their targets are in other instances from now on. Returns the claimed ones."""

    # ---------------------------------------------------------------- what leaves

    def read(self, wanted: dict[UUID, Reading], longest: int) -> dict[UUID, Leaving]:
        """The messages of each endpoint, where there are any; bodies up to `longest` bytes."""

    def read_fragment(self, handle: UUID, number: int, offset: int, length: int) -> bytes | None:
        """`length` bytes at `offset` of one message; None when it is gone."""

    def read_token(self, handle: UUID, number: int) -> bytes | None:
        """The token of one message that waits; None when it is gone, or has none."""

    def read_traces(self, header: Header, first: int, last: int) -> list[tuple[int, bytes]]:
        """The trace contexts of these messages, by their numbers."""

    def acknowledge(self, news: Mapping[UUID, Acknowledged]) -> Settled:
        """The peers have committed every message below these numbers: they go."""

    def acknowledge_traces(self, below: Mapping[UUID, int]) -> None:
        """The trace contexts of those messages go too."""

    def fail(self, failures: Mapping[UUID, BrokerFailure]) -> list[UUID]:
        """The peers' brokers have refused these conversations. Returns those for which that is done."""

    def diverge(self, diverged: Mapping[UUID, Diverged]) -> list[UUID]:
        """Fail conversations whose two sides have different histories. Returns the failed ones."""

    def note_old_copy(
        self, endpoint: RemoteEndpoint, far_broker: UUID | None, own: BrokerFailure, *, is_here: bool
    ) -> None:
        """One of the two databases was restored, and the conversation has ended with that Error."""

    def set_statuses(self, texts: dict[UUID, str]) -> None:
        """Why the messages of these endpoints wait; '' when they are on their way."""

    # ---------------------------------------------------------------- what arrives

    def find_place(self, header: Header, pick: Pick) -> Place | ConversationFailure | Unroutable:
        """Find the place for the target of a conversation that begins in another instance."""

    def new_handle(self) -> UUID:
        """Draw the handle of a target."""

    def store(
        self, batches: Mapping[UUID, Batch], owners: Mapping[UUID, str], targets: Mapping[UUID, NewTarget]
    ) -> arriving.Result:
        """Make targets, and store what has arrived for endpoints: of each its whole batch, or nothing.

        `owners` are those of the peers that have brought what is kept of messages that are not complete. The target of
        a conversation of which the initiator is in this instance, too, is not made.
        """

    def drop_openings(self, handles: Sequence[UUID]) -> list[UUID]:
        """Delete those of these targets of which no message was delivered and nothing is kept. Returns which."""

    def unfinished(self, handles: Sequence[UUID] | None = None) -> list[Stored]:
        """Return the incomplete messages of this share; only of these conversations, if given."""

    def drop_unfinished(self, handles: Sequence[UUID]) -> list[UUID]:
        """Delete it, of these conversations. Returns those of which nothing is kept now."""

    def store_traces(self, traced: Sequence[MessageContext]) -> None:
        """Store the trace contexts that came with messages."""

    def wake(self, queues: Collection[int]) -> None:
        """These queues have more to read."""

    # ---------------------------------------------------------------- what secures it

    def find_beginnings(self, handles: Sequence[UUID]) -> list[UndecidedDialog]:
        """Return the initiators whose security is not decided."""

    def find_certificates_of(self, owners: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[UserCertificate]]:
        """The certificates of these principals, each given with its database."""

    def find_certificates(self, database_id: int, thumbprints: Sequence[bytes]) -> dict[bytes, UserCertificate]:
        """The certificates of a database with these thumbprints."""

    def find_master_key(self, database_id: int) -> MasterKey | None:
        """The master key of a database."""

    def ask_for_binding(self, database_id: int, service: str) -> bool:
        """Ask the dynamic routing service for a remote service binding. Whether an answer is awaited."""

    def save_keys(self, keys: Mapping[UUID, Keys]) -> None:
        """Keep the session keys of conversations that have none yet."""

    def save_exchange(self, handle: UUID, exchange: bytes) -> None:
        """Keep our session key as other certificates than before have wrapped and signed it."""

    def save_second_keys(self, keys: Mapping[UUID, tuple[UUID, bytes]]) -> None:
        """Keep the keys of targets that initiators have learned: the identifier of each, and the key."""

    def find_broker(self, certificate_id: int, broker: UUID) -> KnownBroker:
        """Return the known capabilities and clock of a broker that signs by this certificate."""

    def save_broker(self, certificate_id: int, broker: UUID, capabilities: Sequence[str], ahead_until: int) -> None:
        """Add capabilities of a broker, and the latest time that its clock has shown while it was ahead of ours."""

    def find_target(self, home: LocalService) -> Target:
        """Return the service that a new conversation is for, and its queue."""

    def refused_keeper(self, target: Target, principal_id: int) -> BrokerError | None:
        """Why the session key must not be wrapped for a certificate of this principal, if it must not."""

    def refused_sender(self, target: Target, principal_id: int) -> BrokerError | None:
        """Why this principal may not send to the service, if it may not."""

    def refused_owner(self, target: Target) -> BrokerError | None:
        """Return why the service's owner may not receive from its queue, or None."""
