"""Replay: put a dead letter back into its queue.

If its conversation is open on both sides, the message is queued there, behind the other messages. Otherwise it gets a
new conversation, so that its handler can answer:

* A message to the target is sent again by the initiator's service, on a new dialog.
* A message to the initiator is queued on a new dialog that the receiving service begins.

One transaction does all of this and removes the dead letter.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, find_usages
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.begin import begin_dialog
from servicebroker.engine.conversation.endpoints import Endpoint, find_endpoint, lock_conversation
from servicebroker.engine.conversation.failed_messages import DeadLetterId, discard, unknown_dead_letter
from servicebroker.engine.conversation.send import send
from servicebroker.model import names
from servicebroker.model.arguments import CURRENT_DATABASE, OMITTED, stored_body
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import read_error
from servicebroker.model.states import EndpointState
from servicebroker.model.xml import validation_failure
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.dead_letters import ReplayMessage
from servicebroker.operations.send import Send
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_OPEN = {EndpointState.STARTED_OUTBOUND, EndpointState.STARTED_INBOUND, EndpointState.CONVERSING}
_HAS_ENDED = {EndpointState.DISCONNECTED_OUTBOUND, EndpointState.CLOSED}
_RANKS = {names.DIALOG_TIMER_ID: enqueue.RANK_TIMER, names.ERROR_ID: enqueue.RANK_ERROR}


class Replayed(NamedTuple):
    """The replayed message, and the initiator's handle if a new conversation was begun for it."""

    message: DeadLetterId
    new_conversation: UUID | None


class _DeadLetter(NamedTuple):
    """A dead letter. `is_for_target` is None if the contract allows both sides to send its message type."""

    handle: UUID
    number: int
    type_id: int
    message_type: str
    validation: str
    body: bytes | None
    service: str
    contract: str
    far_service: str | None
    has_far_service: bool
    is_for_target: bool | None


def replay(
    catalog: Catalog, database_id: int, operation: ReplayMessage, *, now: datetime, maximum_body: int
) -> Steps[Replayed]:
    """Put a dead letter back into its queue, with the operation's new body if it has one.

    If the operation names a sending service, the message always gets a new conversation.

    Raises:
        BrokerError: 402 no dead letter with that number, or an invalid body; what BEGIN DIALOG raises.
        InstanceError: its conversation has ended, and a new one cannot be begun.
    """
    set_aside_id, sender, is_edited = operation.set_aside_id, operation.from_service, operation.is_edited
    message = yield from _find(database_id, set_aside_id)
    endpoint = yield from _lock(message.handle)
    if is_edited:
        message = message._replace(body=stored_body(operation.body, maximum_body))
    handle = None
    is_for_target = message.is_for_target if endpoint is None else not endpoint.is_initiator
    if sender is None and endpoint is not None and endpoint.state in _OPEN:
        yield from _enqueue(catalog, endpoint, message, is_edited=is_edited)
    elif sender is not None or (is_for_target is not False and message.has_far_service and _is_sent(message)):
        handle = yield from _send(catalog, database_id, message, sender or message.far_service or "", now, maximum_body)
    elif not is_for_target or not _is_sent(message):
        handle = yield from _begin(catalog, database_id, message, now, is_edited=is_edited)
    elif endpoint is not None and endpoint.state not in _HAS_ENDED:
        yield from _enqueue(catalog, endpoint, message, is_edited=is_edited)
    else:
        raise InstanceError(
            f"Message {set_aside_id} cannot be replayed on a new conversation: its conversation has ended, and its "
            f"sender '{message.far_service}' is not a service of this database. Name a service that sends it instead "
            "(--from), or export it."
        )
    return Replayed((yield from discard(database_id, set_aside_id)), handle)


def _is_sent(message: _DeadLetter) -> bool:
    """Check whether an application sent the message: DialogTimer, Error and EndDialog come from the broker."""
    return message.type_id not in (names.DIALOG_TIMER_ID, names.ERROR_ID, names.END_DIALOG_ID)


def _find(database_id: int, set_aside_id: int) -> Steps[_DeadLetter]:
    rows = yield SQL("find", (database_id, set_aside_id))
    if not rows:
        raise unknown_dead_letter(set_aside_id)
    return _DeadLetter(*rows[0])


def _lock(handle: UUID) -> Steps[Endpoint | None]:
    """Lock and return the endpoint that received the message; None if it was removed."""
    try:
        endpoint, _ = yield from lock_conversation(handle)
    except BrokerError:
        return None
    return endpoint


def _enqueue(catalog: Catalog, endpoint: Endpoint, message: _DeadLetter, *, is_edited: bool) -> Steps[None]:
    """Put the message into the endpoint's queue, behind the queued messages, with its sequence number."""
    if is_edited:
        yield from _check(catalog, endpoint, message)
    yield Statement(
        "replay.enqueue",
        enqueue.replay(endpoint.queue_id),
        (
            endpoint.conversation_handle,
            message.number,
            message.type_id,
            message.validation,
            message.body,
            _RANKS.get(message.type_id, enqueue.RANK_DATA),
        ),
    )


def _check(catalog: Catalog, endpoint: Endpoint, message: _DeadLetter) -> Steps[None]:
    """Check a new body against the message type, as SEND does.

    Raises:
        BrokerError: 402 the body is invalid.
    """
    rows = yield SQL("check", (endpoint.queue_id,))
    usages = yield from find_usages(catalog, endpoint.database_id, endpoint.service_contract_id, rows[0][0])
    usage = usages.get(message.message_type)
    failure = validation_failure(message.validation, message.body, usage.schemas if usage else None)
    if failure is not None:
        raise BrokerError(402, "the new body", f"refused by the message type: {failure}", "valid")


def _begin(catalog: Catalog, database_id: int, message: _DeadLetter, now: datetime, *, is_edited: bool) -> Steps[UUID]:
    """Begin a dialog of the service that received the message, and queue the message on it. Returns the handle."""
    dialog = BeginDialog(message.service, message.far_service or message.service, contract=message.contract)
    handle = yield from begin_dialog(database_id, dialog, now=now)
    yield from _enqueue(catalog, (yield from find_endpoint(handle)), message, is_edited=is_edited)
    return handle


def _send(
    catalog: Catalog, database_id: int, message: _DeadLetter, sender: str, now: datetime, maximum_body: int
) -> Steps[UUID]:
    """Send the message on a new dialog to the service of this database that received it. Returns the handle.

    Raises:
        InstanceError: that service refuses the message, which would fail the new conversation.
    """
    dialog = BeginDialog(
        sender, message.service, broker_instance=CURRENT_DATABASE, contract=message.contract, encryption=False
    )
    handle = yield from begin_dialog(database_id, dialog, now=now)
    body = OMITTED if message.body is None else message.body
    yield from send(catalog, Send(handle, message.message_type, body), now=now, maximum_body=maximum_body)
    endpoint = yield from find_endpoint(handle)
    if endpoint.state == EndpointState.ERROR:
        rows = yield Statement(
            "replay.send.why",
            f"select message_body from servicebroker.queue_{endpoint.queue_id} where priority = $1 "
            f"and conversation_group_id = $2 and conversation_handle = $3 and message_type_id = {names.ERROR_ID}",
            (endpoint.priority, endpoint.conversation_group_id, handle),
        )
        raise InstanceError(f"'{message.service}' refuses the message: {read_error(rows[0][0])[1]}")
    return handle
