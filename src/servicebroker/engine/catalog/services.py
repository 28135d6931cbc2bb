"""ALTER and DROP SERVICE (docs/reference/rules.md#services). The caller holds the lock of `lock_catalog`."""

from __future__ import annotations

from uuid import UUID

from servicebroker.engine.catalog.alter import (
    lock_begins,
    lock_conversations,
    renew_routes,
    renew_versions,
    wake_readers,
)
from servicebroker.engine.catalog.catalog import contract_ids, find_queue_uncached, lock_service_alone
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.conversation.endpoints import remove_endpoints
from servicebroker.engine.conversation.failure import delete_parked, fail_endpoints
from servicebroker.engine.conversation.receive import keep_off_pipelines
from servicebroker.engine.conversation.retention import move_to_queue, purge_queue
from servicebroker.engine.security import authorization as rights
from servicebroker.model import names
from servicebroker.model.arguments import checked_contracts
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import Kind
from servicebroker.operations.services import AlterService, DropService
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


def alter_service(definer: Definer, operation: AlterService) -> Steps[None]:
    """Change the queue and the contracts of a service.

    Messages of the service are moved to a new queue. The caller runs `deliver_free` for messages that were stored
    beside the old queue.
    """
    database_id, queue = definer.database_id, operation.queue
    needed = [rights.service(operation.name), rights.contracts(operation.add_contracts)]
    needed += [] if queue is None else [rights.queue(queue)]
    yield from rights.authorize(definer.user, operation.permission, *needed)
    name = names.checked("service", operation.name)
    to_add, to_drop = checked_contracts(operation.add_contracts), checked_contracts(operation.drop_contracts)
    yield lock_service_alone(name)
    service_id, old_queue, _ = yield from _find("alter", database_id, name)
    added = yield from contract_ids(database_id, to_add)
    dropped = yield from contract_ids(database_id, to_drop)
    if both := added.keys() & dropped.keys():
        raise BrokerError(8404, min(both))
    new_queue = old_queue if queue is None else (yield from find_queue_uncached("find", database_id, queue)).queue_id
    if new_queue == old_queue and not added and not dropped:
        raise BrokerError(8493, name)
    for contract, contract_id in added.items():
        yield from _add_contract(database_id, service_id, contract, contract_id)
    for contract, contract_id in dropped.items():
        yield from _drop_contract(service_id, contract, contract_id)
    if new_queue != old_queue:
        yield from _move(service_id, old_queue, new_queue)
        yield renew_versions()  # the permission to send on its conversations depends on the queue
    yield _raise_change_count(old_queue)
    yield wake_readers(old_queue)


def drop_service(definer: Definer, operation: DropService) -> Steps[None]:
    """Delete the service, its messages and its conversations. RECEIVEs that wait for its queue raise 8468."""
    database_id, name = definer.database_id, operation.name
    yield from rights.authorize(definer.user, operation.permission, rights.service(name))
    names.checked("service", name)
    yield lock_service_alone(name)
    service_id, queue_id, named = yield from _find("drop", database_id, name)
    if named:
        raise BrokerError(3716, "service", name, "conversation priorities")
    yield lock_begins(service_id)
    yield from _delete_messages(
        queue_id, service_id
    )  # first, so that we wait for readers before we hold rows they may want
    yield from _remove_endpoints("service_id = $1", service_id, error=BrokerError(8470))
    yield from _delete_messages(queue_id, service_id)
    yield SQL("drop_service.delete_groups", (service_id,))
    yield rights.forget_permissions(database_id, Kind.SERVICE, service_id)
    yield SQL("drop_service.delete_services", (service_id,))
    yield _raise_change_count(queue_id)
    yield wake_readers(queue_id)
    yield renew_routes(database_id)  # messages parked for it may have a route to another instance


def _remove_endpoints(condition: str, number: int, *, error: BrokerError) -> Steps[list[UUID]]:
    """Remove every endpoint that meets the condition; other peers get the Error. Returns the removed handles."""
    handles = yield from lock_conversations(condition, number)
    rows = yield Statement(
        "services.remove_endpoints",
        f"select conversation_handle from servicebroker.conversation_endpoints where {condition}",
        (number,),
    )
    own = [handle for (handle,) in rows]
    yield from fail_endpoints([handle for handle in handles if handle not in set(own)], error)
    if own:
        yield delete_parked(own)
        yield from remove_endpoints(own)
    return own


def _find(action: str, database_id: int, name: str) -> Steps[tuple[int, int, bool]]:
    rows = yield SQL("find", (database_id, name))
    if not rows:
        raise BrokerError(15151, action, "service", name)
    if rows[0][0] < names.FIRST_USER_ID:
        raise BrokerError(9663)
    return rows[0][0], rows[0][1], rows[0][2]


def _add_contract(database_id: int, service_id: int, contract: str, contract_id: int) -> Steps[None]:
    rows = yield SQL("add_contract", (database_id, service_id, contract_id))
    if not rows:
        raise BrokerError(8404, contract)


def _drop_contract(service_id: int, contract: str, contract_id: int) -> Steps[None]:
    rows = yield SQL("drop_contract", (service_id, contract_id))
    if not rows:
        raise BrokerError(15151, "drop", "service contract", contract)


def _move(service_id: int, old: int, new: int) -> Steps[None]:
    """Move the service's endpoints and messages to another queue.

    The messages get new stamps and queuing orders, under the locks of the senders' endpoints. So later messages get
    higher ones, and no reader has passed them already.
    """
    yield from keep_off_pipelines(old)
    yield lock_begins(service_id)
    yield Statement(  # first, to wait for readers before this transaction locks the endpoints on which they answer
        "services.move.lock_messages",
        f"select count(*) from (select from servicebroker.queue_{old} where service_id = $1 for update) as messages",
        (service_id,),
    )
    yield from lock_conversations("service_id = $1", service_id)
    yield SQL("move.update_endpoints", (service_id, new))
    yield SQL("move.update_peers", (service_id, new))
    yield SQL("move.update_arrivals", (service_id,))
    yield SQL("move.update_services", (service_id, new))
    rows = yield SQL("move.find_columns", (str(old),))
    columns = ", ".join(name for (name,) in rows)
    yield Statement(
        "services.move.move_messages",
        f"with moved as (delete from servicebroker.queue_{old} where service_id = $1 returning *) "
        f"insert into servicebroker.queue_{new} (stamp, {columns}) "
        f"select greatest(stamp, pg_current_xact_id()), {columns} from moved order by queuing_order",
        (service_id,),
    )
    yield from move_to_queue(service_id, old, new)
    yield wake_readers(new)


def _delete_messages(queue_id: int, service_id: int) -> Steps[None]:
    return purge_queue(queue_id, "service_id = $1", service_id)


def _raise_change_count(queue_id: int) -> Statement:
    return SQL("raise_change_count", (queue_id,))
