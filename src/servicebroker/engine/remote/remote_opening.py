"""The target of a conversation that begins in another instance: its place, and its endpoint."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.priorities import PRIORITY
from servicebroker.engine.conversation.failure import Failed
from servicebroker.engine.remote.site import Home, Located, find_site
from servicebroker.engine.security.session_keys import Keys
from servicebroker.model.errors import BrokerError
from servicebroker.protocol.envelope import Header
from servicebroker.protocol.routing import Conversation, Local, Pick, Refused, RoutingTable, classify
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class Unroutable(NamedTuple):
    """A message that is neither taken nor answered: the reason as in the event Broker:Message Undeliverable."""

    number: int


_NO_KEYS = (None,) * len(Keys._fields)
BEING_ALTERED = Unroutable(9797)  # the service is being created or altered


class Place(NamedTuple):
    """The place for the target of a conversation from another instance. `broker` is that of the database.

    `failure` is the error for the initiator, if the service is here and does not take the conversation.
    """

    home: Home
    broker: UUID
    failure: Failed | None = None


def find_place(catalog: Catalog, header: Header, now: datetime, pick: Pick) -> Steps[Place | Failed | Unroutable]:
    """Find the place for the target of a conversation that begins in another instance.

    The routes of msdb say whether the service is here (docs/reference/rules.md#routing).
    """
    opening = header.opening
    assert opening is not None
    rows = yield SQL(
        "find_place",  # as `opening.lock_service`, without waiting
        (locks.DELIVERY, locks.SERVICE, header.to_service),
    )
    if not rows[0][0]:
        return BEING_ALTERED
    located = yield from find_site([header.to_service], now, contract=opening.contract)
    return place_of(header, located, (yield from located.routes(catalog, located.msdb)), now, pick)


def place_of(
    header: Header, located: Located, outside: RoutingTable, now: datetime, pick: Pick
) -> Place | Failed | Unroutable:
    """Return the place by the routes of msdb."""
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
        return Failed.of(BrokerError(destination.number, header.to_service))
    if not isinstance(destination, Local):
        return Unroutable(getattr(destination, "number", 9750))
    home = located.homes[header.to_service, destination.broker_instance]
    opening, refused = header.opening, None
    assert opening is not None
    if home.contract_id is None:
        refused = Failed.of(BrokerError(8425, opening.contract))
    elif not home.accepted:
        refused = Failed.of(BrokerError(8408, header.to_service, opening.contract))
    return Place(home, UUID(destination.broker_instance), refused)


def insert_target(header: Header, home: Home, security: str, keys: Keys | None, now: datetime) -> Steps[UUID | None]:
    """Create the target endpoint, with its keys if it is secured.

    Returns its handle; None if both sides of that conversation are in this instance.
    """
    opening = header.opening
    assert opening is not None
    rows = yield Statement(
        "remote_opening.insert_target",
        "with target as ("
        "insert into servicebroker.conversation_endpoints (conversation_id, is_initiator, database_id, "
        "service_id, service_contract_id, conversation_group_id, queue_id, priority, state, encryption, lifetime, "
        "far_service, far_broker_instance, is_remote, security) "
        f"select $1, false, $2, $3, $4, gen_random_uuid(), $5, "
        f"{PRIORITY.format(database='$2', contract='$4', local='$3', remote='$8')}, "
        "'SI', $6, $7, $8, $9, true, $10::\"char\" "
        "on conflict do nothing returning conversation_handle, conversation_group_id, service_id), "
        "grouped as (insert into servicebroker.conversation_groups "
        "select conversation_group_id, service_id from target), "
        "counted as (insert into servicebroker.arrivals (conversation_handle) select conversation_handle from target), "
        "secured as (insert into servicebroker.conversation_keys "
        "select conversation_handle, $11::int, $12::int, $13::uuid, $14::bytea, $15::uuid, $16::bytea, $17::bytea "
        "from target where $13::uuid is not null) "
        "select conversation_handle from target",
        (
            header.conversation_id,
            home.database_id,
            home.service_id,
            home.contract_id,
            home.queue_id,
            opening.encryption,
            now + timedelta(seconds=opening.lifetime),
            header.from_service,
            str(header.from_broker),
            security,
            *(keys or _NO_KEYS),
        ),
    )
    return rows[0][0] if rows else None
