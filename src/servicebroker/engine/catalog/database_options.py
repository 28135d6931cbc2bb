"""ALTER DATABASE ... SET, the options for the broker (docs/reference/rules.md#databases)."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from servicebroker.engine.catalog.alter import lock_conversations, renew_routes, renew_versions
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.read_only import check_writable
from servicebroker.engine.conversation.endpoints import remove_endpoints
from servicebroker.engine.conversation.failure import (
    ConversationFailure,
    delete_parked,
    fail_endpoints,
    store_remote_error,
)
from servicebroker.engine.conversation.retention import purge_queue
from servicebroker.engine.delivery.transmission import deliver_everything, lock_delivery
from servicebroker.engine.security.logins import demand_administrator
from servicebroker.model.errors import BrokerError
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


def enable_broker(catalog: Catalog, database_id: int, now: datetime) -> Steps[list[UUID]]:
    """ENABLE_BROKER: deliver parked messages. Returns the handles that `deliver_everything` has skipped.

    Raises:
        BrokerError: 9772 an enabled database has the same identifier.
    """
    yield lock_delivery()
    rows = yield SQL("enable_broker.find_same_identifier", (database_id,))
    if rows[0][1]:
        raise BrokerError(9772, rows[0][0])
    yield from _set_broker_enabled(database_id, True)
    return (yield from deliver_everything(catalog, now))


def disable_broker(database_id: int) -> Steps[None]:
    """DISABLE_BROKER: messages from and to its services wait in the transmission queue from now on."""
    yield from _set_broker_enabled(database_id, False)


def new_broker(database_id: int) -> Steps[None]:
    """NEW_BROKER: set a new identifier and remove every conversation, without a message to the peers.

    A peer in another database gets the Error -8462 at its next SEND. The caller runs ENABLE_BROKER afterwards.
    """
    rows = yield SQL("new_broker.find_queues", (database_id,))
    queues = [queue_id for (queue_id,) in rows]
    for queue_id in queues:  # first, to wait for readers before this transaction locks endpoints that they may use
        yield from purge_queue(queue_id, "true")
    handles = yield from lock_conversations("database_id = $1", database_id)
    rows = yield SQL("new_broker.find_endpoints", (database_id,))
    own = {handle for (handle,) in rows}
    peers = [handle for handle in handles if handle not in own]
    rows = yield SQL("new_broker.update_endpoints", (peers,))
    yield delete_parked(handles)
    yield from remove_endpoints([*own, *(handle for handle, state in rows if state == "DO")])
    for queue_id in queues:
        yield from purge_queue(queue_id, "true")
    yield SQL("new_broker.delete_groups", (database_id,))
    yield SQL("new_broker.update_databases", (database_id,))


def error_broker_conversations(database_id: int) -> Steps[None]:
    """ERROR_BROKER_CONVERSATIONS: every conversation gets the Error -9719 in this database, and -9720 at its peer.

    The caller runs ENABLE_BROKER afterwards.
    """
    handles = yield from lock_conversations("database_id = $1", database_id)
    rows = yield SQL("error_broker_conversations.find_endpoints", (database_id,))
    own = {handle for (handle,) in rows}
    yield from fail_endpoints(list(own), BrokerError(9719))
    yield store_remote_error(own, ConversationFailure.of(BrokerError(9720)))
    yield from fail_endpoints([handle for handle in handles if handle not in own], BrokerError(9720))


def honor_broker_priority(database_id: int, honor: bool) -> Steps[None]:
    """HONOR_BROKER_PRIORITY: set whether transmission to other instances follows the priorities."""
    yield SQL("honor_broker_priority", (database_id, honor))


def set_trustworthy(database_id: int, trustworthy: bool) -> Steps[None]:
    """TRUSTWORTHY: set whether users of this database may be more than guest in other databases (`api/database.py`).

    Raises:
        BrokerError: 15247 the caller is not an administrator.
    """
    yield from demand_administrator()
    yield SQL("set_trustworthy", (database_id, trustworthy))


def _set_broker_enabled(database_id: int, enabled: bool) -> Steps[None]:
    yield from check_writable(database_id)
    yield SQL("set_broker_enabled", (database_id, enabled))
    yield renew_versions()
    yield renew_routes(database_id)  # messages parked for its services may have a route to another instance
