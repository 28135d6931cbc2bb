"""DROP CONTRACT, ALTER and DROP QUEUE (docs/reference/rules.md#queues).

The caller holds the lock of `lock_catalog`: definitions change one at a time.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, Queue, find_queue_uncached, find_user_object
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.conversation.failure import ConversationFailure, fail_endpoints, store_remote_error
from servicebroker.engine.conversation.retention import set_retention
from servicebroker.engine.delivery.transmission import deliver_everything, lock_delivery
from servicebroker.engine.security.authorization import authorize, contracts, forget_permissions
from servicebroker.engine.security.authorization import queue as queue_named
from servicebroker.model import names
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import Kind
from servicebroker.operations.contracts import DropContract
from servicebroker.operations.queues import AlterQueue
from servicebroker.store import locks
from servicebroker.store.queue import quoted
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import MONITORS_CHANNEL
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


# sets a new version in a row of servicebroker.queues, so that the queue's monitor restarts
RENEW_MONITOR = "monitor_version = nextval('servicebroker.catalog_versions')"
TABLES = {"queue": "arrival", "retained": "conversation"}  # the tables of a queue, each with the index to cluster by


def lock_catalog(principal: str = "") -> Statement:
    """Lock the catalog, so that definitions change one at a time. SEND and RECEIVE do not wait for this lock.

    Also sets the principal and the kind of client for the audit log, until the transaction ends.
    """
    return Statement(
        "alter.lock_catalog",
        f"select pg_advisory_xact_lock($1, 0), {audit_context_sql(2)}",
        (locks.CATALOG_CHANGE, principal, client_kind()),
    )


def lock_begins(number: int) -> Statement:
    """Lock a service or contract, by id, against new dialogs. Waits for transactions that have begun one."""
    return SQL("lock_begins", (locks.DIALOG_BEGIN, number))


# ---------------------------------------------------------------- contracts


def drop_contract(definer: Definer, operation: DropContract) -> Steps[None]:
    """Delete a contract that no other object uses. Both sides of its open conversations get the Error -8487."""
    database_id, name = definer.database_id, operation.name
    yield from authorize(definer.user, operation.permission, contracts([name]))
    contract_id = yield from find_user_object("drop", "service contract", database_id, name)
    for table, users in (("service_contract_usages", "services"), ("broker_priorities", "conversation priorities")):
        used = yield Statement(
            "alter.drop_contract.find_use",
            f"select from servicebroker.{table} where database_id = $1 and service_contract_id = $2 limit 1",
            (database_id, contract_id),
        )
        if used:
            raise BrokerError(3716, "service contract", name, users)
    yield lock_begins(contract_id)
    yield forget_permissions(database_id, Kind.CONTRACT, contract_id)
    both = yield from lock_conversations("database_id = $1 and service_contract_id = $2", database_id, contract_id)
    yield from fail_endpoints(both, BrokerError(8487))
    yield store_remote_error(both, ConversationFailure.of(BrokerError(8487)))
    for table in ("service_contract_message_usages", "service_contracts"):
        yield Statement(
            "alter.drop_contract.delete_contract",
            f"delete from servicebroker.{table} where database_id = $1 and service_contract_id = $2",
            (database_id, contract_id),
        )


def lock_conversations(condition: str, *parameters: object) -> Steps[list[UUID]]:
    """Lock both sides of every conversation with an endpoint that meets the condition. Returns all handles."""
    chosen = f"conversation_id in (select conversation_id from servicebroker.conversation_endpoints where {condition})"
    text = f"select conversation_handle from servicebroker.conversation_endpoints where {chosen}"
    yield Statement(
        "alter.lock_conversations.lock", f"{text} order by conversation_id, is_initiator for update", parameters
    )
    rows = yield Statement(
        "alter.lock_conversations.find_locked", text, parameters
    )  # read again, now that no other session holds one
    return [handle for (handle,) in rows]


def renew_versions(database_id: int | None = None) -> Statement:
    """Renew the catalog version of this database's queues, or of all, so that clients look up cached facts again."""
    return SQL("renew_versions", (database_id,))


def renew_routes(database_id: int | None = None) -> Statement:
    """Renew the routes version of this database, or of all, so that clients route again."""
    return SQL("renew_routes", (database_id,))


# ---------------------------------------------------------------- queues


def alter_queue(definer: Definer, operation: AlterQueue) -> Steps[list[UUID]]:
    """Change the options that the statement names, except for the activation.

    STATUS = ON delivers parked messages before the transaction ends. Conversations on which a session is sending are
    skipped and returned: the caller runs `deliver_conversation` for each.
    """
    catalog, database_id, name = definer.catalog, definer.database_id, operation.name
    queue = yield from find_user_queue("alter", database_id, name)
    yield SQL("alter_queue.note_change", (queue.queue_id,))
    left: list[UUID] = []
    if operation.poison_message_handling is not None:
        yield SQL("alter_queue.poison_handling", (queue.queue_id, operation.poison_message_handling))
    if operation.retention is not None:
        yield from set_retention(queue.queue_id, operation.retention)
        yield renew_versions()  # senders of this queue cache the version of the queue they send to
    if operation.status is not None:
        left = yield from set_status(catalog, queue.queue_id, operation.status, definer.clock())
    return left


def set_status(catalog: Catalog, queue_id: int, status: bool, now: datetime) -> Steps[list[UUID]]:
    """Switch a queue on or off, and wake its waiting readers. ON runs `deliver_everything` and returns its result."""
    if status:
        yield lock_delivery()
    yield Statement(
        "alter.set_status",
        "update servicebroker.queues set is_receive_enabled = $2, is_enqueue_enabled = $2, "
        f"{RENEW_MONITOR} where queue_id = $1",
        (queue_id, status),
    )
    yield wake_readers(queue_id)
    yield wake_monitors()
    if status:
        return (yield from deliver_everything(catalog, now))
    return []


def rebuild_queue(definer: Definer, operation: AlterQueue, table: str) -> Steps[None]:
    """ALTER QUEUE REBUILD of one of the queue's `TABLES`: give free space back. Readers and senders wait meanwhile.

    Each table needs a transaction of its own, because a session that uses one table may be about to use the other.
    """
    yield from authorize(definer.user, operation.permission, queue_named(operation.name))
    queue_id = (yield from find_user_queue("alter", definer.database_id, operation.name)).queue_id
    index = f"{table}_{queue_id}_{TABLES[table]}"
    yield Statement("alter.rebuild_queue", f"cluster servicebroker.{table}_{queue_id} using {index}", prepared=False)


def reorganize_queue(queue_id: int) -> Steps[None]:
    """ALTER QUEUE REORGANIZE: truncate free space at the end of the tables, reuse free space inside. No session waits.

    It cannot run inside a transaction.
    """
    tables = ", ".join(f"servicebroker.{table}_{queue_id}" for table in TABLES)
    yield Statement("alter.reorganize_queue", f"vacuum (truncate) {tables}", prepared=False)


def find_user_queue(action: str, database_id: int, name: str) -> Steps[Queue]:
    """Return a queue that is not built in, as `find_queue_uncached` does.

    Raises:
        BrokerError: 15151 it does not exist, 9663 it is built in.
    """
    queue = yield from find_queue_uncached(action, database_id, name)
    if queue.queue_id < names.FIRST_USER_ID:
        raise BrokerError(9663)
    return queue


def drop_queue(database_id: int, name: str) -> Steps[Queue]:
    """DROP QUEUE, first half: delete the queue's row, so that it cannot be found. `remove_dropped_queue` does the rest.

    Two transactions are needed, because the table cannot be dropped while a waiting reader has it open.

    Raises:
        BrokerError: 3716 a service uses it, 15151 it does not exist.
    """
    queue = yield from find_user_queue("drop", database_id, name)
    used = yield SQL("drop_queue.find_services", (queue.queue_id,))
    if used:
        raise BrokerError(3716, "queue", name, "services")
    yield forget_permissions(database_id, Kind.QUEUE, queue.queue_id)
    rows = yield SQL("drop_queue.delete_queues", (queue.queue_id,))
    yield Statement(
        "alter.drop_queue.drop_view", f"drop view if exists {quoted(rows[0][0])}.{quoted(rows[0][1])}", prepared=False
    )
    yield wake_readers(queue.queue_id)
    yield wake_monitors()
    return queue


def find_dropped_queues() -> Steps[list[int]]:
    """Return dropped queues whose tables still exist."""
    rows = yield SQL("find_dropped_queues")
    return [queue_id for (queue_id,) in rows]


def remove_dropped_queue(queue_id: int) -> Steps[None]:
    """Drop tables, sequences and functions of a dropped queue, once no session has them open."""
    rows = yield SQL("remove_dropped_queue.find_functions", (str(queue_id),))
    for (function,) in rows:
        yield Statement(
            "alter.remove_dropped_queue.drop_function", f"drop function if exists {function}", prepared=False
        )
    for table in ("archived", "retained", "queue"):
        yield Statement(
            "alter.remove_dropped_queue.drop_table",
            f"drop table if exists servicebroker.{table}_{queue_id}",
            prepared=False,
        )
    for sequence in ("order", "receives", "empty_receives"):
        yield Statement(
            "alter.remove_dropped_queue.drop_sequence",
            f"drop sequence if exists servicebroker.queue_{queue_id}_{sequence}",
            prepared=False,
        )


def wake_readers(queue_id: int) -> Statement:
    """Wake all readers that wait for the queue, so that they check its state: the payload is the negated queue id."""
    return SQL("wake_readers", (str(-queue_id),))


def wake_monitors() -> Statement:
    """Notify processes that run queue monitors to read their definitions again."""
    return Statement("alter.wake_monitors", f"notify {MONITORS_CHANNEL}", prepared=False)
