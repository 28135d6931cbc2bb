"""Open the target of a conversation: find the service by name, and create the target endpoint for the first message."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.catalog.catalog import Catalog, find_labels
from servicebroker.engine.catalog.priorities import PRIORITY
from servicebroker.engine.conversation.endpoints import Endpoint, is_unopened
from servicebroker.engine.delivery.impersonation import Actor, find_actor
from servicebroker.engine.remote.local_topology import ChancePick, find_topology
from servicebroker.engine.remote.missing_routes import ask
from servicebroker.engine.security.authorization import refused_arrival
from servicebroker.model import waiting
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.protocol.routing import (
    Ask,
    Conversation,
    Elsewhere,
    Local,
    Refused,
    classify,
)
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


NO_TRANSPORT = RULES[9748].text.format("Service Broker")


class StableRoute(NamedTuple):
    """A result of routing that may be cached: the broker to which the routes lead, and the version of these routes.

    While the routes have this version, they lead every conversation of the same two services and contract there.
    """

    routes_version: int
    broker: str


class OpeningResult(NamedTuple):
    """The result of `open_target`. Without `refusal` and `waiting_reason` the target exists now.

    Attributes:
        refusal: the error for the conversation.
        waiting_reason: the reason to park messages: their transmission status.
        stable_route: the route to cache; None if it may not be cached.
        remote_routes_version: the version of the routes, if every conversation of the same two services and contract
            leaves the instance under them.
    """

    refusal: BrokerError | None = None
    waiting_reason: str = ""
    stable_route: StableRoute | None = None
    remote_routes_version: int | None = None


def lock_service(name: str) -> Statement:
    """Lock the service's name, shared, before any other lock: this transaction may park messages for the service.

    CREATE, ALTER and DROP SERVICE lock the name exclusively. So either they see every parked message, or the sender
    sees their change. The statement also takes the lock of `lock_parking`.
    """
    return SQL("lock_service", (locks.PARKED_DELIVERY, locks.SERVICE_NAME, name))


def open_target(catalog: Catalog, initiator: Endpoint, now: datetime) -> Steps[OpeningResult]:
    """Create the target endpoint of a conversation, before its first message is delivered.

    The routes of the initiator's database decide in which database (docs/reference/rules.md#routing). A missing service
    is not an error: messages wait for it. The caller has called `lock_service` before it locked the initiator.
    """
    if not initiator.is_initiator or (initiator.send_sequence and not (yield from is_unopened(initiator))):
        return OpeningResult(refusal=BrokerError(8462))
    if initiator.obstacle:
        return OpeningResult(waiting_reason=initiator.obstacle)
    contract = yield from _contract_name(catalog, initiator)
    located = yield from find_topology(
        [initiator.far_service], now, contract=contract, database_id=initiator.database_id
    )
    own = located.find(initiator.database_id)
    routes = yield from located.routes(catalog, own)
    pick = ChancePick(located.chance)
    decision = classify(
        Conversation(initiator.far_service, initiator.far_broker_instance, own.broker),
        routes,
        (yield from located.routes(catalog, located.msdb)),
        located.site_of(own),
        now,
        pick,
    )
    destination = decision.destination
    if isinstance(destination, Refused):
        return OpeningResult(refusal=BrokerError(destination.number, initiator.far_service))
    if isinstance(destination, Elsewhere):
        is_certain = not pick.was_asked or routes.leads_away(initiator.far_service, located.site.addresses)
        is_stable = is_certain and routes.is_timeless and not decision.through_outside and not located.homes
        return OpeningResult(
            waiting_reason=NO_TRANSPORT, remote_routes_version=own.routes_version if is_stable else None
        )
    if isinstance(destination, Ask):
        lacking = located.msdb if decision.through_outside and located.msdb else own
        yield from ask(lacking.database_id, destination, now)
        return OpeningResult(waiting_reason=RULES[9770].text)
    if not isinstance(destination, Local):
        return OpeningResult(waiting_reason=RULES[destination.number].text.format(initiator.far_service))
    home = located.homes[initiator.far_service, destination.broker_instance]
    actor = None
    if home.is_bound and home.database_id != initiator.database_id:
        actor = yield from find_actor(catalog, initiator, home, now)
    if actor is not None and actor.waits:
        return OpeningResult(waiting_reason=actor.waits)
    if refused := (yield from refused_arrival(_acting(initiator, actor), home.service_id)):
        return OpeningResult(refusal=_explained(refused, actor))
    if home.contract_id is None:
        return OpeningResult(refusal=BrokerError(8425, contract))
    if not home.accepted:
        return OpeningResult(refusal=BrokerError(8408, initiator.far_service, contract))
    if not home.is_open:
        return OpeningResult(waiting_reason=waiting.TARGET_QUEUE_OFF)
    yield Statement(
        "opening.open_target",
        "with target as ("
        "insert into servicebroker.conversation_endpoints (conversation_id, is_initiator, database_id, "
        "service_id, service_contract_id, conversation_group_id, queue_id, priority, state, encryption, lifetime, "
        "far_service, far_broker_instance, far_handle, far_group_id, far_queue_id, far_service_id, "
        "far_contract_id, far_priority, principal_id, far_principal_id) "
        f"select e.conversation_id, false, $2, $3, $4, gen_random_uuid(), $5, "
        "coalesce(case when e.database_id = $2 then e.far_priority end, "
        f"{PRIORITY.format(database='$2', contract='$4', local='$3', remote='s.name')}), "
        "'CO', e.encryption, e.lifetime, "
        "s.name, d.service_broker_guid::text, e.conversation_handle, e.conversation_group_id, e.queue_id, "
        "e.service_id, e.service_contract_id, e.priority, $6::int, $7::int "
        "from servicebroker.conversation_endpoints e "
        "join servicebroker.services s on s.service_id = e.service_id "
        "join servicebroker.databases d on d.database_id = e.database_id where e.conversation_handle = $1 "
        "returning *), "
        "grouped as (insert into servicebroker.conversation_groups "
        "select conversation_group_id, service_id from target) "
        "update servicebroker.conversation_endpoints e set state = case e.state when 'SO' then 'CO' else e.state end, "
        "far_handle = t.conversation_handle, "
        "far_group_id = t.conversation_group_id, far_queue_id = t.queue_id, far_service_id = t.service_id, "
        "far_contract_id = t.service_contract_id, far_priority = t.priority, "
        "principal_id = $8, far_principal_id = $9, far_broker_instance = "
        "(select service_broker_guid::text from servicebroker.databases where database_id = $2) "
        "from target t where e.conversation_handle = $1",
        (
            *(initiator.conversation_handle, home.database_id, home.service_id, home.contract_id, home.queue_id),
            *((None,) * 4 if actor is None else (actor.keeper_id, actor.principal_id, actor.owner_id, actor.bound_id)),
        ),
    )
    lasts = routes.is_timeless and not pick.was_asked and not decision.through_outside and actor is None
    if not lasts or (home.database_id != initiator.database_id and len(located.homes) > 1):
        return OpeningResult()
    return OpeningResult(stable_route=StableRoute(own.routes_version, destination.broker_instance))


def _acting(initiator: Endpoint, actor: Actor | None) -> Endpoint:
    return initiator if actor is None else initiator._replace(acts_as=actor.principal_id)


def _explained(refused: BrokerError, actor: Actor | None) -> BrokerError:
    if actor is not None and actor.why_public:
        refused.hint = f"The remote service binding proves nothing, and it acts as public. {actor.why_public}"
    return refused


def _contract_name(catalog: Catalog, initiator: Endpoint) -> Steps[str]:
    labels = yield from find_labels(catalog, initiator.database_id)
    if initiator.service_contract_id not in labels.contracts:
        labels = yield from find_labels(catalog, initiator.database_id, anew=True)
    return labels.contracts[initiator.service_contract_id]
