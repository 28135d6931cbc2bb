"""The target's side of a new conversation: found by name, and made when the first message arrives."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.endpoints import Endpoint, never_opened
from servicebroker.engine.priorities import PRIORITY
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.store import locks
from servicebroker.store.statements import Statement, Steps

NOT_HERE, BUSY = RULES[9796].text, RULES[9749].text


class Outcome(NamedTuple):
    """Nothing set: the target endpoint exists. Else why the conversation fails, or why its messages wait."""

    refusal: BrokerError | None = None
    waits: str = ""


def lock_service(name: str) -> Statement:
    """Whoever may find no service of that name, and make messages wait for it, says so before it locks anything.

    CREATE, ALTER and DROP SERVICE take the name's lock alone: they see all that waits, or the sender sees what
    they did. For the other lock see `lock_parking`.
    """
    return Statement(
        "select pg_advisory_xact_lock_shared($1, 0), pg_advisory_xact_lock_shared($2, hashtext($3))",
        (locks.DELIVERY, locks.SERVICE, name),
    )


def open_target(initiator: Endpoint) -> Steps[Outcome]:
    """Create the target endpoint of a conversation whose first message is about to be delivered.

    The service is looked for in the initiator's own database first, then in the others (reference 03 section 2
    step 3); with a broker instance only in that one. Not finding it is no error: messages wait. The caller has
    called `lock_service` before it locked the initiator.
    """
    if not initiator.is_initiator or (initiator.send_sequence and not (yield from never_opened(initiator))):
        return Outcome(refusal=BrokerError(8462))
    if initiator.obstacle:
        return Outcome(waits=initiator.obstacle)
    rows = yield Statement(
        "select s.service_id, s.queue_id, s.database_id, c.service_contract_id, u.service_id is not null, "
        "mine.name, q.is_enqueue_enabled "
        "from servicebroker.services s "
        "join servicebroker.queues q on q.queue_id = s.queue_id "
        "join servicebroker.databases d on d.database_id = s.database_id and d.is_broker_enabled "
        "join servicebroker.service_contracts mine "
        "  on mine.database_id = $2 and mine.service_contract_id = $3 "
        "left join servicebroker.service_contracts c on c.database_id = s.database_id and c.name = mine.name "
        "left join servicebroker.service_contract_usages u "
        "  on u.service_id = s.service_id and u.service_contract_id = c.service_contract_id "
        "where s.name = $1 and ($4::text is null or d.service_broker_guid::text = $4) "
        "order by s.database_id <> $2, s.database_id limit 1",
        (
            initiator.far_service,
            initiator.database_id,
            initiator.service_contract_id,
            initiator.far_broker_instance,
        ),
    )
    if not rows:
        return (yield from _missing(initiator))
    service_id, queue_id, database_id, contract_id, accepted, contract, is_open = rows[0]
    if not accepted:
        return Outcome(refusal=BrokerError(8408, initiator.far_service, contract))
    if not is_open:
        return Outcome(waits=BUSY)
    yield Statement(
        "with target as ("
        "insert into servicebroker.conversation_endpoints (conversation_id, is_initiator, database_id, "
        "service_id, service_contract_id, conversation_group_id, queue_id, priority, state, encryption, lifetime, "
        "far_service, far_broker_instance, far_handle, far_group_id, far_queue_id, far_service_id, "
        "far_contract_id, far_priority) "
        f"select e.conversation_id, false, $2, $3, $4, gen_random_uuid(), $5, "
        f"{PRIORITY.format(database='$2', contract='$4', local='$3', remote='s.name')}, "
        "'CO', e.encryption, e.lifetime, "
        "s.name, d.service_broker_guid::text, e.conversation_handle, e.conversation_group_id, e.queue_id, "
        "e.service_id, e.service_contract_id, e.priority "
        "from servicebroker.conversation_endpoints e "
        "join servicebroker.services s on s.service_id = e.service_id "
        "join servicebroker.databases d on d.database_id = e.database_id where e.conversation_handle = $1 "
        "returning *), "
        "grouped as (insert into servicebroker.conversation_groups "
        "select conversation_group_id, service_id from target) "
        "update servicebroker.conversation_endpoints e set state = case e.state when 'SO' then 'CO' else e.state end, "
        "far_handle = t.conversation_handle, "
        "far_group_id = t.conversation_group_id, far_queue_id = t.queue_id, far_service_id = t.service_id, "
        "far_contract_id = t.service_contract_id, far_priority = t.priority, far_broker_instance = "
        "(select service_broker_guid::text from servicebroker.databases where database_id = $2) "
        "from target t where e.conversation_handle = $1",
        (initiator.conversation_handle, database_id, service_id, contract_id, queue_id),
    )
    return Outcome()


def _missing(initiator: Endpoint) -> Steps[Outcome]:
    """A database that was named and is here, but has no such service, is an error; anything else waits."""
    if initiator.far_broker_instance is not None:
        rows = yield Statement(
            "select from servicebroker.databases where service_broker_guid::text = $1 and is_broker_enabled",
            (initiator.far_broker_instance,),
        )
        if rows:
            return Outcome(refusal=BrokerError(8490, initiator.far_service))
    return Outcome(waits=NOT_HERE)
