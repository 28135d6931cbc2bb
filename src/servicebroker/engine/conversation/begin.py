"""BEGIN DIALOG CONVERSATION and BEGIN CONVERSATION TIMER (docs/reference/rules.md#begin-dialog)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.delivery_paths import OwnSide
from servicebroker.engine.catalog.priorities import PRIORITY
from servicebroker.engine.conversation.endpoints import find_endpoint, lock_group, lock_group_of
from servicebroker.model import names
from servicebroker.model.arguments import CURRENT_DATABASE
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_ID
from servicebroker.model.states import EndpointState, Event, after
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog, RepeatedHandle
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)

# BEGIN DIALOG. A priority that the application gives is stored in far_priority until the target is opened and reads it.
_TEMPLATE = (
    "with service as materialized (select servicebroker.own_queue($3, $2, $4, $11::bigint) as queue_id), {keyed}"
    "grouped as (select coalesce($1::uuid, gen_random_uuid()) as id, queue_id, {handle} as handle from {source} "
    "where queue_id is not null), "
    "made as (insert into servicebroker.conversation_groups select id, $2 from grouped "
    "on conflict do nothing), "
    "begun as (insert into servicebroker.conversation_endpoints (conversation_handle, is_initiator, database_id, "
    "service_id, service_contract_id, conversation_group_id, queue_id, state, encryption, lifetime, far_service, "
    "far_broker_instance, priority, far_priority) "
    "select handle, true, $3, $2, $4, id, queue_id, 'SO', $5, $6, $7, $8, coalesce($12::smallint, "
    f"{PRIORITY.format(database='$3', contract='$4', local='$2', remote='$7')}), $12 from grouped "
    "returning conversation_handle, conversation_group_id, "
    "xmin <> pg_current_xact_id()::xid as under_savepoint) "
    "select conversation_handle, pg_advisory_xact_lock($9, uuid_hash(conversation_group_id)), "
    "case when under_savepoint then servicebroker.keep_lock(uuid_hash(conversation_group_id)) end from begun"
)
_DELETE_BATCH_KEYS = 1_000  # keys deleted in one transaction
_HANDLE = "coalesce($10::uuid, gen_random_uuid())"
_BEGIN = _TEMPLATE.format(keyed="", handle=_HANDLE, source="service")
# BEGIN DIALOG with an idempotency key. If two transactions insert the same key, the second waits for the first to end.
_BEGIN_ONCE = _TEMPLATE.format(
    keyed="keyed as (insert into servicebroker.idempotency_keys as k "
    f"select $2, $13, $14, {_HANDLE}, $16::timestamptz from service where queue_id is not null "
    "on conflict (service_id, principal_id, key) do update set conversation_handle = excluded.conversation_handle, "
    "expires_at = excluded.expires_at where k.expires_at <= $15 returning conversation_handle), ",
    handle="conversation_handle",
    source="service, keyed",
)


class Identity(NamedTuple):
    """The ids of a new conversation: its handle, and a group that is created unless it joins an existing group."""

    handle: UUID
    group: UUID


def begin_dialog(
    database_id: int,
    dialog: BeginDialog,
    *,
    now: datetime,
    identity: Identity | None = None,
    principal_id: int = DBO_ID,
) -> Steps[UUID]:
    """BEGIN DIALOG: insert an endpoint in the state STARTED_OUTBOUND. Sends nothing and does not look for the target.

    Returns the conversation handle. The group is locked until the transaction ends.

    Args:
        database_id: the database of the initiator.
        dialog: the statement. If its related group does not exist, the group is created with that id.
        now: the server's time.
        identity: the handle and group; without it the server draws them.
        principal_id: the principal to which an idempotency key of the statement belongs.

    Raises:
        BrokerError: what `BeginDialog.check` refuses, 8423 and 8425 unknown service or contract, 8426 unknown related
            conversation, 9610 a related group of another service.
    """
    dialog.check()
    if dialog.target_broker == CURRENT_DATABASE:
        yield _hold_database(database_id)
    handle = None
    while handle is None:  # None if an object changed between the two statements; then find_own_side reads it again
        own = yield from find_own_side(database_id, dialog)
        handle = yield from begin_at(database_id, own, dialog, now=now, identity=identity, principal_id=principal_id)
    return handle


def begin_at(
    database_id: int,
    own: OwnSide,
    dialog: BeginDialog,
    *,
    now: datetime,
    identity: Identity | None = None,
    principal_id: int = DBO_ID,
) -> Steps[UUID | None]:
    """BEGIN DIALOG with service and contract already looked up (`own`). None if they or a permission have changed.

    Raises:
        BrokerError: 8426 unknown related conversation, 9610 a related group of another service.
    """
    group = yield from _related_group(own.service_id, dialog)
    if group is None and identity is not None:
        group = identity.group
    broker = dialog.target_broker
    parameters = (
        group,
        own.service_id,
        database_id,
        own.contract_id,
        dialog.encryption,
        dialog.expiry(now),
        dialog.to_service,
        own.broker if broker == CURRENT_DATABASE else broker,
        locks.CONVERSATION_GROUP,
        None if identity is None else identity.handle,
        own.catalog_version,
        dialog.priority,
    )
    if dialog.idempotency_key is None:
        rows = yield Statement("begin.begin_at", _BEGIN, parameters, locks=True)
        return rows[0][0] if rows else None
    key = (principal_id, dialog.idempotency_key, now)
    rows = yield Statement("begin.begin_at.once", _BEGIN_ONCE, (*parameters, *key, dialog.key_expiry(now)), locks=True)
    if rows:
        begun: UUID = rows[0][0]
        return begun
    # the key exists, or an object has changed: return the handle of the key only to a caller that may still begin
    own_side = (database_id, own.contract_id, own.catalog_version)
    rows = yield SQL("begin_at.first", (own.service_id, *key, *own_side))
    return RepeatedHandle.of(rows[0][0]) if rows else None


def _hold_database(database_id: int) -> Statement:
    """Lock the database against a change of its broker identifier until this transaction ends."""
    return SQL("hold_database", (locks.DATABASE_BEGIN, database_id))


def find_own_side(database_id: int, dialog: BeginDialog) -> Steps[OwnSide]:
    """Find the service and the contract of a new conversation.

    Raises:
        BrokerError: 8423 no such service, 8425 no such contract, 8442 the database was dropped.
    """
    rows = yield SQL("find_own_side", (database_id, dialog.from_service, dialog.contract))
    if not rows:
        raise BrokerError(8442)
    own = OwnSide(*rows[0])
    if own.service_id is None:
        raise BrokerError(8423, dialog.from_service)
    if own.contract_id is None:
        raise BrokerError(8425, dialog.contract)
    return own


def begin_conversation_timer(operation: BeginConversationTimer, *, now: datetime) -> Steps[None]:
    """BEGIN CONVERSATION TIMER: set the endpoint's only timer, replacing an earlier one.

    When it fires, a DialogTimer message arrives in this side's own queue.

    Raises:
        BrokerError: what `BeginConversationTimer.check` refuses, 8426 unknown handle, 8458 wrong state, 8410 beyond the
            lifetime.
    """
    operation.check()
    handle = operation.handle
    yield from lock_group_of(handle)
    endpoint = yield from find_endpoint(handle)
    after(EndpointState(endpoint.state), Event.TIMER)
    at = now + timedelta(seconds=operation.timeout)
    if at > endpoint.lifetime:
        raise BrokerError(8410)
    yield Statement(  # every DialogTimer message has number 0: failures of an earlier one must not count for this one
        "begin.begin_conversation_timer",
        "with earlier_failures as (delete from servicebroker.failed_messages "
        f"where conversation_handle = $1 and message_type_id = {names.DIALOG_TIMER_ID}) "
        "update servicebroker.conversation_endpoints set dialog_timer = $2 where conversation_handle = $1",
        (handle, at),
    )


def forget_keys(now: datetime) -> Steps[int]:
    """Delete up to `_DELETE_BATCH_KEYS` expired idempotency keys. Returns their number."""
    rows = yield SQL("forget_keys", (now, _DELETE_BATCH_KEYS))
    return len(rows)


def _related_group(service_id: int, dialog: BeginDialog) -> Steps[UUID | None]:
    """Lock the group that the new conversation joins, so that it is not removed meanwhile. None for a new group.

    Raises:
        BrokerError: 8426 unknown related conversation, 9610 the group belongs to another service.
    """
    conversation, group = dialog.related_conversation, dialog.related_conversation_group
    if conversation is not None:
        group = yield from lock_group_of(conversation)
    elif group is None:
        return None
    else:
        yield lock_group(group)
    rows = yield SQL("related_group", (group,))
    if rows and rows[0][0] != service_id:
        clause = "RELATED_CONVERSATION" if conversation is not None else "RELATED_CONVERSATION_GROUP"
        raise BrokerError(9610, dialog.from_service, rows[0][1], clause, conversation or group)
    return group
