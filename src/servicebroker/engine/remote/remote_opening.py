"""Targets of conversations that begin in another instance: find their services, and create their endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.priorities import PRIORITY
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.failure import ConversationFailure
from servicebroker.engine.remote.local_topology import LocalService, LocalTopology, find_topology
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.security.session_keys import Keys
from servicebroker.model.arguments import DEFAULT_LEVEL
from servicebroker.model.errors import BrokerError
from servicebroker.model.states import EndpointState
from servicebroker.protocol.envelope import Header, Opening
from servicebroker.protocol.routing import Conversation, Local, Pick, Refused, RoutingTable, classify
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Bodies, Statement, Steps

SQL = SqlFile(__file__)


class Unroutable(NamedTuple):
    """The result for a message that is dropped without an answer.

    `number` is the error number in the event Broker:Message Undeliverable.
    """

    number: int


BEING_ALTERED = Unroutable(9797)  # another session is creating or altering the service


class TargetLocation(NamedTuple):
    """The service for the target of a conversation, and the broker identifier of its database.

    `failure` is the Error for the initiator, if the service refuses the conversation.
    """

    home: LocalService
    broker: UUID
    failure: ConversationFailure | None = None


class NewTarget(NamedTuple):
    """A target endpoint to create for a first message. `broker` is the broker identifier of its database."""

    conversation_handle: UUID
    header: Header
    home: LocalService
    broker: UUID
    lifetime: datetime
    security: str
    keys: Keys | None = None

    @property
    def opening(self) -> Opening:
        """The initiator's description of the conversation: contract, lifetime, encryption."""
        assert self.header.opening is not None
        return self.header.opening

    @property
    def endpoint(self) -> RemoteEndpoint:
        """The endpoint to create, with the default priority in place of the one that the statement sets."""
        header, opening = self.header, self.opening
        return RemoteEndpoint(
            conversation_handle=self.conversation_handle,
            conversation_id=header.conversation_id,
            is_initiator=False,
            database_id=self.home.database_id,
            own_broker=self.broker,
            is_enabled=True,
            own_service=header.to_service,
            far_service=header.from_service,
            peer_broker=str(header.from_broker),
            routed_broker=None,
            contract=opening.contract,
            lifetime=self.lifetime,
            encryption=opening.encryption,
            priority=DEFAULT_LEVEL,
            honors_priority=False,
            state=EndpointState.STARTED_INBOUND.value,
            is_remote=True,
            is_acknowledged=False,
            first=0,
            send_sequence=0,
            receive_sequence=0,
            failure=None,
            kept={},
            security=self.security,
            keys=self.keys,
        )


class CreatedTarget(NamedTuple):
    """The values of a created target that the statement has determined."""

    priority: int
    honors_priority: bool
    by_service_master_key: bytes | None


def lock_service(service: str) -> Steps[bool]:
    """Lock a service against changes until the transaction ends. Returns False if another session is changing it."""
    rows = yield SQL(
        "lock_service",  # as `opening.lock_service`, but without waiting
        (locks.PARKED_DELIVERY, locks.SERVICE_NAME, service),
    )
    return bool(rows[0][0])


def locate(catalog: Catalog, service: str, contract: str, now: datetime) -> Steps[tuple[LocalTopology, RoutingTable]]:
    """Return the databases that have the service, and the routes of msdb, which apply to this conversation."""
    located = yield from find_topology([service], now, contract=contract)
    return located, (yield from located.routes(catalog, located.msdb))


def locate_target(
    header: Header, located: LocalTopology, outside: RoutingTable, now: datetime, pick: Pick
) -> TargetLocation | ConversationFailure | Unroutable:
    """Return the service for the target of a conversation that begins in another instance.

    `outside` are the routes of msdb: they decide whether the service is in this instance
    (docs/reference/rules.md#routing). `pick` makes random choices.
    """
    decision = classify(
        Conversation(header.to_service, str(header.to_broker) if header.to_broker else None),
        RoutingTable(()),
        outside,
        located.site_of(located.msdb),
        now,
        pick,
    )
    destination = decision.destination
    if isinstance(destination, Refused):
        return ConversationFailure.of(BrokerError(destination.number, header.to_service))
    if not isinstance(destination, Local):
        return Unroutable(getattr(destination, "number", 9750))
    home = located.homes[header.to_service, destination.broker_instance]
    opening, refused = header.opening, None
    assert opening is not None
    if home.contract_id is None:
        refused = ConversationFailure.of(BrokerError(8425, opening.contract))
    elif not home.accepted:
        refused = ConversationFailure.of(BrokerError(8408, header.to_service, opening.contract))
    return TargetLocation(home, UUID(destination.broker_instance), refused)


def lifetime_of(header: Header, now: datetime) -> datetime:
    """Return the end of the lifetime of a conversation that begins now."""
    assert header.opening is not None
    return now + timedelta(seconds=header.opening.lifetime)


class FirstMessages(NamedTuple):
    """The values that a target gets with its first messages: the next number to arrive, and the last one's token."""

    reached: int
    token: bytes | None


def insert_targets(targets: Sequence[NewTarget]) -> Steps[dict[UUID, CreatedTarget]]:
    """Create target endpoints, with their session keys if they have dialog security. Returns the created ones.

    A target is not created if the initiator of its conversation is in this instance.
    """
    rows = yield Statement("remote_opening.insert_targets", _INSERT_TARGETS, _columns(targets))
    return {handle: CreatedTarget(*row) for handle, *row in rows}


def insert_with_messages(
    queue_id: int,
    targets: Sequence[NewTarget],
    messages: Sequence[FirstMessages],
    runs: Sequence[Sequence[object]],
    bodies: Bodies,
) -> Steps[dict[UUID, CreatedTarget]]:
    """Create the targets of one queue together with their first messages, in one statement.

    `runs` and `bodies` are those of `enqueue.arrive_first`. Returns as `insert_targets`.
    """
    rows = yield Statement(
        "remote_opening.insert_with_messages",
        _INSERT_WITH_MESSAGES.format(arrived=enqueue.arrive_first(queue_id, "target", _FIRST_RUN)),
        (
            *_columns(targets),
            [message.reached for message in messages],
            Bodies(message.token for message in messages),
            *map(list, zip(*runs, strict=True)),
            bodies,
        ),
    )
    return {handle: CreatedTarget(*row) for handle, *row in rows}


def _columns(targets: Sequence[NewTarget]) -> tuple[Sequence[object], ...]:
    """Return the parameters of `_WANTED`, an array for each column. Arrays of bytes are sent in binary format."""
    columns: list[Sequence[object]] = [
        [target.conversation_handle for target in targets],
        [target.header.conversation_id for target in targets],
        [target.home.database_id for target in targets],
        [target.home.service_id for target in targets],
        [target.home.contract_id for target in targets],
        [target.home.queue_id for target in targets],
        [target.opening.encryption for target in targets],
        [target.lifetime for target in targets],
        [target.header.from_service for target in targets],
        [str(target.header.from_broker) for target in targets],
        [target.security for target in targets],
    ]
    keys = zip(*(target.keys or _NO_KEYS for target in targets), strict=True)
    for name, column in zip(Keys._fields, keys, strict=True):
        columns.append(Bodies(column) if name in _BYTES else list(column))
    return tuple(columns)


_NO_KEYS = (None,) * len(Keys._fields)
_BYTES = ("first_key", "second_key", "exchange")
_PRIORITY = PRIORITY.format(
    database="n.database_id", contract="n.contract_id", local="n.service_id", remote="n.far_service"
)
_WANTED = (
    "with wanted as materialized (select * from unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::int[], "
    "$6::int[], $7::boolean[], $8::timestamptz[], $9::text[], $10::text[], $11::text[], "
    "$12::int[], $13::int[], $14::uuid[], $15::bytea[], $16::uuid[], $17::bytea[], $18::bytea[]{arrays}) "
    "n (handle, conversation_id, database_id, service_id, contract_id, queue_id, encryption, lifetime, far_service, "
    "far_broker, security, principal_id, far_principal_id, first_key_id, first_key, second_key_id, second_key, "
    "exchange{columns})), "
    "target as (insert into servicebroker.conversation_endpoints (conversation_handle, conversation_id, is_initiator, "
    "database_id, service_id, service_contract_id, conversation_group_id, queue_id, priority, state, encryption, "
    "lifetime, far_service, far_broker_instance, is_remote, security) "
    "select handle, conversation_id, false, database_id, service_id, contract_id, gen_random_uuid(), queue_id, "
    f"{_PRIORITY}, '{{state}}', encryption, lifetime, far_service, far_broker, true, security::\"char\" from wanted n "
    "on conflict do nothing returning *), "
    "grouped as (insert into servicebroker.conversation_groups "
    "select conversation_group_id, service_id from target), "
    "secured as (insert into servicebroker.conversation_keys select t.conversation_handle, n.principal_id, "
    "n.far_principal_id, n.first_key_id, n.first_key, n.second_key_id, n.second_key, n.exchange "
    "from target t join wanted n on n.handle = t.conversation_handle where n.first_key_id is not null), "
)
_CREATED_TARGETS_SQL = (
    " select t.conversation_handle, t.priority::int, d.is_honor_broker_priority_on, "
    "case when t.security <> 'N' then m.by_service_master_key end "
    "from target t join servicebroker.databases d using (database_id) "
    "left join servicebroker.master_keys m using (database_id)"
)
_INSERT_TARGETS = (
    _WANTED.format(arrays="", columns="", state=EndpointState.STARTED_INBOUND.value)
    + "counted as (insert into servicebroker.arrivals (conversation_handle, opened_at) "
    "select conversation_handle, clock_timestamp() from target)" + _CREATED_TARGETS_SQL
)
_FIRST_RUN = 21  # the first parameter of `enqueue.arrive_first`
_INSERT_WITH_MESSAGES = (
    _WANTED.format(
        arrays=", $19::bigint[], $20::bytea[]", columns=", reached, token", state=EndpointState.CONVERSING.value
    )
    + "counted as (insert into servicebroker.arrivals (conversation_handle, receive_sequence, token, last_stamp) "
    "select t.conversation_handle, n.reached, n.token, pg_current_xact_id() "
    "from target t join wanted n on n.handle = t.conversation_handle), "
    "arrived as ({arrived})" + _CREATED_TARGETS_SQL
)
