"""Sends one batch of the Spark writer as messages, once and in one transaction, over recycled conversations.

A writer sends on N conversations in parallel (option `conversations`). Each has a number, its slot. The conversation of
a slot is replaced after a number of messages, after a time, or when the options no longer match it. The old
conversation then gets a last message, of the type in the option `endOfStream`. The target ends its side on that
message, and the next batch of any writer ends the initiator's side.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.routes import explain_route
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.begin import begin_dialog
from servicebroker.engine.conversation.end import end_conversation
from servicebroker.engine.conversation.endpoints import find_endpoint
from servicebroker.engine.conversation.send import send, send_batch
from servicebroker.model.errors import RULES, BrokerError, InstanceError
from servicebroker.model.messages import read_error
from servicebroker.model.names import ERROR_ID
from servicebroker.model.states import EndpointState
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.end import EndConversation
from servicebroker.operations.send import Send, SendBatch
from servicebroker.pipeline.options import WriterOptions
from servicebroker.pipeline.staging import combine_digests
from servicebroker.protocol.routing import Delayed
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


SEND_ID_RETENTION = timedelta(days=30)  # a batch job is recognised by its sendId for 30 days
STAGE_RETENTION = timedelta(days=1)  # staged rows of dead writers are deleted after a day
_INVALID_BODY = (-8430, -9615)  # codes of the Error message for a body that its validation refuses
_CONVERSATION_OVER = (8426, 8427, 8429)  # error numbers: unknown handle, already ended, a state without SEND
_MAX_ENDED_PER_BATCH = 1000  # conversations, to bound the locks of one transaction
# The FROM clause for a writer's conversations, with the arguments of their BEGIN DIALOG.
_FROM_CONVERSATIONS = (
    "from servicebroker.writer_conversations c "
    "left join servicebroker.conversation_endpoints e using (conversation_handle) "
    "left join servicebroker.services s on s.service_id = e.service_id "
    "left join servicebroker.service_contracts k "
    "on k.database_id = e.database_id and k.service_contract_id = e.service_contract_id "
)
# True if the arguments of BEGIN DIALOG match the present options. `_option_values` returns the parameters $4 to $8.
_OPTIONS_MATCH = (
    "(e.database_id = $4 and s.name = $5 and e.far_service = $6 and k.name = $7 and e.encryption = $8) is true"
)
MAX_REFUSALS_PER_SLOT = 500  # failed conversations of a slot per batch: each one holds locks until the transaction ends

_log = logging.getLogger("servicebroker")


class Staged(NamedTuple):
    """The staged rows of one successful task.

    Attributes:
        attempt: identifies the task's rows in the stage.
        messages: number of rows.
        digest: a `Digest` for a batch job, a `Checksum` for a streaming query.
    """

    attempt: UUID
    messages: int
    digest: int = 0


class _Piece(NamedTuple):
    """A staged piece (see `staging.py`): messages of one type for one slot."""

    slot: int
    attempt: UUID
    number: int
    message_type: str
    messages: int


@dataclass
class Sender:
    """A streaming query or batch job that sends a batch.

    Attributes:
        writer: name of the query or job in `servicebroker.writers`.
        catalog: cached catalog of the instance.
        is_job: a batch job, which ends its conversations with its only batch.
        target_is_known: a route to `toService` was found in this batch.
    """

    writer: str
    database_id: int
    options: WriterOptions
    catalog: Catalog
    is_job: bool
    target_is_known: bool = False


def send_staged(sender: Sender, batch: int, staged: Sequence[Staged], now: datetime) -> Steps[bool]:
    """Send the staged rows of all tasks in the order of `staged`. A batch job then ends all its conversations.

    Returns False, and sends nothing, if the batch was already sent.

    Raises:
        InstanceError: the stage has lost rows, as after a server crash; too many bodies are refused; the sendId belongs
            to other rows; no route leads to the target; or the checkpoint is an old copy.
        BrokerError: the errors of BEGIN DIALOG and SEND.
    """
    expected = sum(task.messages for task in staged)
    is_new = _record_job(sender, staged, expected) if sender.is_job else _record_batch(sender, batch, staged, expected)
    if not (yield from is_new):
        yield from _delete_staged(sender.writer, now)
        return False
    pieces = yield from _pieces(staged)
    if sum(piece.messages for piece in pieces) != expected:
        raise InstanceError("The staged rows are gone, as after a crash of the server: run the batch again.")
    for slot, slot_pieces in groupby(pieces, lambda piece: piece.slot):
        yield from _send_slot(sender, slot, list(slot_pieces), now)
    yield from _end_outdated(sender, now, 0 if sender.is_job else sender.options.conversations)
    yield from _delete_staged(sender.writer, now)
    yield from _end_answered(now)
    return True


def _record_batch(sender: Sender, batch: int, staged: Sequence[Staged], messages: int) -> Steps[bool]:
    """Record a batch of a query. Returns False if the batch is already recorded.

    Spark repeats only the last batch, with the same rows.

    Raises:
        InstanceError: a later batch is recorded, or this batch had other rows. So the checkpoint is an old copy.
    """
    digest = combine_digests(task.digest for task in staged)
    inserted = yield SQL("record_batch.insert", (sender.writer, batch, messages, digest))
    if inserted:
        return True
    ((last, count, known),) = yield SQL("record_batch.find", (sender.writer,))
    has_other_digest = digest != known and 0 not in (digest, known)  # 0: recorded by a version without digests
    if (last, count) == (batch, messages) and not has_other_digest:
        return False
    difference = "other rows" if count == messages else f"{messages:,}"
    progress = f"goes on with batch {batch}" if last > batch else f"has {difference} for that batch"
    raise InstanceError(
        f"Batch {last} of this query was sent already, with {count:,} rows, and its checkpoint {progress}. The "
        "checkpoint is an old copy, or two queries use it. Nothing was sent. Find out which rows were sent, then start "
        "the query with a new checkpoint location."
    )


def _record_job(sender: Sender, staged: Sequence[Staged], messages: int) -> Steps[bool]:
    """Record a batch job under its sendId. A job has one batch, with the digest of its rows as batch number.

    Returns False if the job is already recorded, or has no rows.

    Raises:
        InstanceError: the sendId belongs to other rows.
    """
    digest = combine_digests(task.digest for task in staged)
    if messages and (yield SQL("record_job.insert", (sender.writer, digest, messages))):
        return True
    rows = yield SQL("record_job.find", (sender.writer,))
    for known, count, sent_at in rows:
        has_other_digest = digest != known and 0 not in (digest, known)  # 0: recorded by a version without digests
        if count != messages or has_other_digest:
            earlier_rows = f"{count:,} rows" if count != messages else f"{count:,} rows with other bodies or types"
            raise InstanceError(
                f"The sendId '{sender.options.send_id}' was used for other rows: {earlier_rows} were sent under it on "
                f"{sent_at:%Y-%m-%d at %H:%M}, these are {messages:,}. Nothing is sent: give these rows their own "
                "sendId."
            )
    return False


def _pieces(staged: Sequence[Staged]) -> Steps[list[_Piece]]:
    """Return the staged pieces, ordered by slot, then by task in the order of `staged`."""
    rows = yield SQL("pieces", ([task.attempt for task in staged],))
    return [_Piece(*row) for row in rows]


def _send_slot(sender: Sender, slot: int, pieces: list[_Piece], now: datetime) -> Steps[None]:
    """Send the pieces of a slot. A body that the target refuses ends its conversation; a new one gets the rest."""
    handle, sent = yield from _conversation(sender, slot, now)
    refusals = 0
    for piece in pieces:
        if sent >= sender.options.recycle_after:
            yield from _end_stream(sender, handle, now)
            handle, sent = yield from _begin(sender, slot, now)
        try:
            sent_count = yield from _send_piece(sender.catalog, handle, piece, now)
        except BrokerError as refused:
            if refused.number not in _CONVERSATION_OVER:
                raise
            yield _retire(handle)  # the target has ended it
            sent_count = 0
        bodies = (yield from _bodies(piece)) if sent_count < piece.messages else []
        while sent_count < piece.messages:
            if refusals == MAX_REFUSALS_PER_SLOT:
                raise InstanceError(
                    f"The batch is not sent: {refusals} of its conversations have failed, most likely because that "
                    f"many bodies are not valid {piece.message_type}. Leave such rows out, or give them another type."
                )
            refusals += 1
            handle, sent = yield from _begin(sender, slot, now)
            sent_count += yield from _send_bodies(sender.catalog, handle, piece.message_type, bodies[sent_count:], now)
        sent += piece.messages
    yield SQL("send_slot", (handle, sent))


def _send_piece(catalog: Catalog, handle: UUID, piece: _Piece, now: datetime) -> Steps[int]:
    """Send a piece, up to the first body that the target refuses. Returns the number of messages done.

    If the target does not validate bodies, one statement copies them inside the server. Otherwise each is a SEND.
    """
    channel = catalog.channels.get(handle)
    own = channel.own_usages.get(piece.message_type) if channel else None
    peer = channel.peer_usages.get(piece.message_type) if channel else None
    is_permitted = channel and own and peer and own.allows(channel.is_initiator) and peer.allows(True)
    if channel and peer and is_permitted and peer.validation == "N":  # N: NONE
        staged_piece = (piece.attempt, piece.number, piece.messages, now, channel.catalog_version)
        rows = yield Statement(
            "sending.send_piece",
            enqueue.send_staged(channel.delivery_queue_id),
            (handle, peer.message_type_id, peer.validation, *staged_piece),
        )
        if rows:
            return piece.messages
    return (yield from _send_bodies(catalog, handle, piece.message_type, (yield from _bodies(piece)), now))


def _bodies(piece: _Piece) -> Steps[list[bytes]]:
    ((bodies,),) = yield SQL("bodies", (piece.attempt, piece.number))
    return [body or b"" for body in bodies]


def _send_bodies(catalog: Catalog, handle: UUID, message_type: str, bodies: list[bytes], now: datetime) -> Steps[int]:
    """Send bodies until the target refuses one, which ends the conversation with an error.

    Returns the number of bodies done, including a refused one.
    """
    before = yield from find_endpoint(handle)
    yield from send_batch(catalog, SendBatch(handle, message_type, bodies), now=now)
    endpoint = yield from find_endpoint(handle)
    if endpoint.state != EndpointState.ERROR:
        return len(bodies)
    for code, description in (yield from _errors(handle, endpoint.queue_id)):
        if code not in _INVALID_BODY:  # the error is not about the body, so the next body would fail too
            raise InstanceError(f"The batch is not sent: its conversation failed with error {code}: {description}")
    yield _retire(handle)
    if before.is_blocked or endpoint.is_blocked:  # waiting messages were dropped with the conversation
        return 0
    return endpoint.send_sequence - before.send_sequence + 1


def _conversation(sender: Sender, slot: int, now: datetime) -> Steps[tuple[UUID, int]]:
    """Return the conversation of a slot, and the number of messages sent on it.

    A new conversation replaces one that is too old or ended, or that an earlier start began with other options.
    """
    rows = yield Statement(
        "sending.conversation",
        "select c.conversation_handle, c.sent, c.begun_at, e.state in ('SO', 'SI', 'CO') and e.lifetime > $3, "
        f"{_OPTIONS_MATCH} {_FROM_CONVERSATIONS}where c.writer = $1 and c.slot = $2 and c.is_in_use",
        (sender.writer, slot, now, *_option_values(sender)),
    )
    if rows:
        handle, sent, begun_at, is_usable, options_match = rows[0]
        if is_usable and options_match and begun_at + timedelta(seconds=sender.options.recycle_seconds) > now:
            return handle, sent
        if is_usable:
            yield from _end_stream(sender, handle, now)
        else:
            yield _retire(handle)
    return (yield from _begin(sender, slot, now))


def _option_values(sender: Sender) -> tuple[object, ...]:
    """Return the parameters of `_OPTIONS_MATCH`: the arguments of BEGIN DIALOG that `_begin` uses."""
    options = sender.options
    return sender.database_id, options.from_service, options.to_service, options.contract, options.encryption


def _begin(sender: Sender, slot: int, now: datetime) -> Steps[tuple[UUID, int]]:
    options = sender.options
    if options.refuses_unknown_target and not sender.target_is_known:
        yield from _check_target(sender, now)
    dialog = BeginDialog(
        options.from_service, options.to_service, contract=options.contract, encryption=options.encryption
    )
    handle = yield from begin_dialog(sender.database_id, dialog, now=now)
    yield SQL("begin", (handle, sender.writer, slot, now))
    return handle, 0


def _check_target(sender: Sender, now: datetime) -> Steps[None]:
    """Check that a route leads to the target. A service without a route is more often mistyped than not yet created.

    Raises:
        InstanceError: no route leads to the service, so every message would wait.
    """
    service = sender.options.to_service
    explanation = yield from explain_route(sender.catalog, sender.database_id, service, None, now)
    destinations = [decision.destination for decision in explanation.decisions]
    reasons = [destination.number for destination in destinations if isinstance(destination, Delayed)]
    if len(reasons) == len(destinations):
        raise InstanceError(
            f"No route leads to '{service}', so nothing is sent: {RULES[reasons[0]].text.format(service)} Correct "
            "the option 'toService', create the service or a route to it, or let the messages wait for that with "
            "the option 'unknownTarget' = 'wait'."
        )
    sender.target_is_known = True


def _end_stream(sender: Sender, handle: UUID, now: datetime) -> Steps[None]:
    """Retire a conversation, and send its last message, of the type in the option `endOfStream`.

    A conversation of an earlier start may have a contract without that type. It then ends without the message.
    """
    yield _retire(handle)
    try:
        yield from send(sender.catalog, Send(handle, sender.options.end_of_stream, b""), now=now)
    except BrokerError as refused:
        if refused.number in _CONVERSATION_OVER:
            return
        if sender.is_job:  # a job ends only conversations of its own options
            raise
        _log.warning("The conversation %s ends without '%s': %s", handle, sender.options.end_of_stream, refused)
        yield from _end(handle, now)


def _end(handle: UUID, now: datetime) -> Steps[None]:
    try:
        yield from end_conversation(EndConversation(handle), now=now)
    except BrokerError as refused:
        if refused.number not in _CONVERSATION_OVER:
            raise


def _retire(handle: UUID) -> Statement:
    """Return the statement by which a conversation is no longer used by its slot."""
    return SQL("retire", (handle,))


def _end_outdated(sender: Sender, now: datetime, slots: int) -> Steps[None]:
    """End conversations that are too old or have other options, and all in slots from number `slots` on."""
    oldest = now - timedelta(seconds=sender.options.recycle_seconds)
    rows = yield Statement(
        "sending.end_outdated",
        f"select c.conversation_handle {_FROM_CONVERSATIONS}where c.writer = $1 and c.is_in_use "
        f"and (c.slot >= $2 or c.begun_at <= $3 or not {_OPTIONS_MATCH}) order by c.slot",
        (sender.writer, slots, oldest, *_option_values(sender)),
    )
    for (handle,) in rows:
        yield from _end_stream(sender, handle, now)


def _delete_staged(writer: str, now: datetime) -> Steps[None]:
    """Delete this writer's staged rows, expired staged rows of any writer, and expired records of writers."""
    yield SQL("delete_staged.delete_writer_stage", (writer, now - STAGE_RETENTION))
    yield SQL("delete_staged.delete_writers", (now - SEND_ID_RETENTION,))


def _end_answered(now: datetime) -> Steps[None]:
    """End the initiator's side of conversations, of any writer, that their targets have ended."""
    rows = yield SQL("end_answered.find_answered", (_MAX_ENDED_PER_BATCH,))
    for handle, queue_id, state in rows:
        if state == "ER":
            for error in (yield from _errors(handle, queue_id)):
                _log.warning("The conversation %s failed with error %s: %s", handle, *error)
        yield from _end(handle, now)
    yield SQL("end_answered.delete_conversations")


def _errors(handle: UUID, queue_id: int) -> Steps[list[tuple[int, str]]]:
    """Return (code, description) of each Error message of a conversation."""
    rows = yield Statement(
        "sending.errors",
        f"select message_body from servicebroker.queue_{queue_id} "
        "where conversation_handle = $1 and message_type_id = $2 and not is_shared",
        (handle, ERROR_ID),
    )
    return [read_error(body or b"") for (body,) in rows]
