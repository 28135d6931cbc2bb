"""One batch of the Spark writer becomes messages, in one transaction: once, over recycled conversations.

Each slot of a writer has a conversation. After a number of messages, or an hour, or when the options have changed whom
it is between, it gets a message that ends its stream, and the next one takes its place; when the target has ended its
side, ours is ended with the next batch of any writer.
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
from servicebroker.pipeline.staging import together
from servicebroker.protocol.routing import Delayed
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


REMEMBERED = timedelta(days=30)  # how long the sendId of a batch job stands for it
ABANDONED = timedelta(days=1)  # what no batch of its writer has collected since
_INVALID_BODY = (-8430, -9615)
_GONE = (8426, 8427, 8429)  # unknown handle, already ended, a state in which nothing can be sent
_SWEPT = 1000  # conversations
# A writer's conversations with what they were begun with, and whether the options still say so: `_said` from $4 on.
_AS_BEGUN = (
    "from servicebroker.writer_conversations c "
    "left join servicebroker.conversation_endpoints e using (conversation_handle) "
    "left join servicebroker.services s on s.service_id = e.service_id "
    "left join servicebroker.service_contracts k "
    "on k.database_id = e.database_id and k.service_contract_id = e.service_contract_id "
)
_AS_SAID = "(e.database_id = $4 and s.name = $5 and e.far_service = $6 and k.name = $7 and e.encryption = $8) is true"
MOST_REFUSALS = 500  # conversations of a slot that fail in one batch: each holds locks until it ends

_log = logging.getLogger("servicebroker")


class Staged(NamedTuple):
    """What a successful task has staged, and a digest of the rows: `Digest` of a batch job, `Checksum` of a stream."""

    attempt: UUID
    messages: int
    digest: int = 0


class _Piece(NamedTuple):
    slot: int
    attempt: UUID
    number: int
    message_type: str
    messages: int


@dataclass
class Sender:
    """A query or batch job that sends a batch: its name, its place, and what it may remember.

    `is_job`: its streams end with it. `target_is_known`: somebody was found behind `toService`, in this batch.
    """

    writer: str
    database_id: int
    options: WriterOptions
    catalog: Catalog
    is_job: bool
    target_is_known: bool = False


def send_staged(sender: Sender, batch: int, staged: Sequence[Staged], now: datetime) -> Steps[bool]:
    """Send what the tasks of a batch have staged, in the order of `staged`; of a batch job, end every stream after it.

    False, and nothing done, when the batch is sent already.

    Raises:
        InstanceError: the stage has lost rows, as after a crash of the server; too many bodies are refused; the sendId
            stands for other rows, or the target for nobody; the checkpoint is an old one.
        BrokerError: what BEGIN DIALOG and SEND raise.
    """
    expected = sum(one.messages for one in staged)
    noted = _note_job(sender, staged, expected) if sender.is_job else _note_batch(sender, batch, staged, expected)
    if not (yield from noted):
        yield from _collect(sender.writer, now)
        return False
    pieces = yield from _pieces(staged)
    if sum(piece.messages for piece in pieces) != expected:
        raise InstanceError(
            "What the tasks have staged is not there any more, as after a crash of the server: run the batch again."
        )
    for slot, run in groupby(pieces, lambda piece: piece.slot):
        yield from _send_slot(sender, slot, list(run), now)
    yield from _end_streams(sender, now, 0 if sender.is_job else sender.options.conversations)
    yield from _collect(sender.writer, now)
    yield from _end_answered(now)
    return True


def _note_batch(sender: Sender, batch: int, staged: Sequence[Staged], messages: int) -> Steps[bool]:
    """Note a batch of a query. False when it is noted already.

    Raises:
        InstanceError: a later one is, and Spark repeats only the last, or it had other rows, as of an old checkpoint.
    """
    digest = together(one.digest for one in staged)
    noted = yield SQL("note_batch.insert", (sender.writer, batch, messages, digest))
    if noted:
        return True
    ((last, count, known),) = yield SQL("note_batch.find", (sender.writer,))
    is_another = digest != known and 0 not in (digest, known)  # 0: of a version that kept none
    if (last, count) == (batch, messages) and not is_another:
        return False
    others = "other rows" if count == messages else f"{messages:,}"
    what = f"goes on with batch {batch}" if last > batch else f"has {others} for that batch"
    raise InstanceError(
        f"Batch {last} of this query was sent already, with {count:,} rows, and its checkpoint {what}: it is an old "
        "copy, or not the only one. Nothing is sent: start the query with a new checkpoint location, after looking "
        "which of its rows were sent."
    )


def _note_job(sender: Sender, staged: Sequence[Staged], messages: int) -> Steps[bool]:
    """Note a batch job under its sendId: its rows are its only batch, and the digest of them is its number.

    False when it is noted already, or has no rows.

    Raises:
        InstanceError: the sendId stands for other rows.
    """
    digest = together(one.digest for one in staged)
    if messages and (yield SQL("note_job.insert", (sender.writer, digest, messages))):
        return True
    rows = yield SQL("note_job.find", (sender.writer,))
    for known, count, at in rows:
        is_another = digest != known and 0 not in (digest, known)  # 0: of a version that kept none
        if count != messages or is_another:
            how = f"{count:,} rows" if count != messages else f"{count:,} rows with other bodies or types"
            raise InstanceError(
                f"The sendId '{sender.options.send_id}' was used for other rows: {how} were sent under it on "
                f"{at:%Y-%m-%d at %H:%M}, these are {messages:,}. Nothing is sent: give these rows a sendId of their "
                "own."
            )
    return False


def _pieces(staged: Sequence[Staged]) -> Steps[list[_Piece]]:
    """Every piece, slot by slot, and in a slot task by task."""
    rows = yield SQL("pieces", ([one.attempt for one in staged],))
    return [_Piece(*row) for row in rows]


def _send_slot(sender: Sender, slot: int, pieces: list[_Piece], now: datetime) -> Steps[None]:
    handle, sent = yield from _conversation(sender, slot, now)
    refusals = 0
    for piece in pieces:
        if sent >= sender.options.recycle_after:
            yield from _end_stream(sender, handle, now)
            handle, sent = yield from _begin(sender, slot, now)
        try:
            done = yield from _send_piece(sender.catalog, handle, piece, now)
        except BrokerError as refused:
            if refused.number not in _GONE:
                raise
            yield _retire(handle)  # its target has ended it
            done = 0
        bodies = (yield from _bodies(piece)) if done < piece.messages else []
        while done < piece.messages:
            if refusals == MOST_REFUSALS:
                raise InstanceError(
                    f"The batch is not sent: {refusals} conversations of it have failed, most likely since that many "
                    f"bodies are no {piece.message_type}. Leave such rows out, or give them another type."
                )
            refusals += 1
            handle, sent = yield from _begin(sender, slot, now)
            done += yield from _send_bodies(sender.catalog, handle, piece.message_type, bodies[done:], now)
        sent += piece.messages
    yield SQL("send_slot", (handle, sent))


def _send_piece(catalog: Catalog, handle: UUID, piece: _Piece, now: datetime) -> Steps[int]:
    """Returns how many messages of a piece, from its first on, need not be sent any more.

    Inside the server when nobody has to look at the bodies, else as any SEND.
    """
    channel = catalog.channels.get(handle)
    near = channel.near.get(piece.message_type) if channel else None
    far = channel.far.get(piece.message_type) if channel else None
    if channel and near and far and near.allows(channel.is_initiator) and far.allows(True) and far.validation == "N":
        place = (piece.attempt, piece.number, piece.messages, now, channel.catalog_version)
        rows = yield Statement(
            "sending.send_piece",
            enqueue.send_staged(channel.far_queue_id),
            (handle, far.message_type_id, far.validation, *place),
        )
        if rows:
            return piece.messages
    return (yield from _send_bodies(catalog, handle, piece.message_type, (yield from _bodies(piece)), now))


def _bodies(piece: _Piece) -> Steps[list[bytes]]:
    ((bodies,),) = yield SQL("bodies", (piece.attempt, piece.number))
    return [body or b"" for body in bodies]


def _send_bodies(catalog: Catalog, handle: UUID, message_type: str, bodies: list[bytes], now: datetime) -> Steps[int]:
    """Up to a body that the target refuses, with which the conversation has failed. Returns how many are done with."""
    before = yield from find_endpoint(handle)
    yield from send_batch(catalog, SendBatch(handle, message_type, bodies), now=now)
    endpoint = yield from find_endpoint(handle)
    if endpoint.state != EndpointState.ERROR:
        return len(bodies)
    for code, description in (yield from _errors(handle, endpoint.queue_id)):
        if code not in _INVALID_BODY:  # no other body would do better
            raise InstanceError(f"The batch is not sent: its conversation failed with error {code}: {description}")
    yield _retire(handle)
    if before.is_blocked or endpoint.is_blocked:  # what waited was dropped with it
        return 0
    return endpoint.send_sequence - before.send_sequence + 1


def _conversation(sender: Sender, slot: int, now: datetime) -> Steps[tuple[UUID, int]]:
    """The slot's conversation and how many messages it has had; a new one for one that is old or ended.

    So too for one of an earlier start, whose options said otherwise between whom it is, by which contract and how.
    """
    rows = yield Statement(
        "sending.conversation",
        "select c.conversation_handle, c.sent, c.begun_at, e.state in ('SO', 'SI', 'CO') and e.lifetime > $3, "
        f"{_AS_SAID} {_AS_BEGUN}where c.writer = $1 and c.slot = $2 and c.is_in_use",
        (sender.writer, slot, now, *_said(sender)),
    )
    if rows:
        handle, sent, begun_at, is_usable, is_as_said = rows[0]
        if is_usable and is_as_said and begun_at + timedelta(seconds=sender.options.recycle_seconds) > now:
            return handle, sent
        if is_usable:
            yield from _end_stream(sender, handle, now)
        else:
            yield _retire(handle)
    return (yield from _begin(sender, slot, now))


def _said(sender: Sender) -> tuple[object, ...]:
    """What `_AS_SAID` compares: all that `_begin` says of a conversation."""
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
    """A service that no route leads to now is a mistyped one more often than one that is still to come.

    Raises:
        InstanceError: whatever is sent would wait.
    """
    service = sender.options.to_service
    found = yield from explain_route(sender.catalog, sender.database_id, service, None, now)
    whys = [one.destination.number for one in found.decisions if isinstance(one.destination, Delayed)]
    if len(whys) == len(found.decisions):
        raise InstanceError(
            f"The service '{service}' leads nowhere, so nothing is sent: {RULES[whys[0]].text.format(service)} Mend "
            "the option 'toService', create the service or a route to it, or let the messages wait for that with "
            "the option 'unknownTarget' = 'wait'."
        )
    sender.target_is_known = True


def _end_stream(sender: Sender, handle: UUID, now: datetime) -> Steps[None]:
    """A conversation of an earlier start may have another contract: it ends without the message, and no batch fails."""
    yield _retire(handle)
    try:
        yield from send(sender.catalog, Send(handle, sender.options.end_of_stream, b""), now=now)
    except BrokerError as refused:
        if refused.number in _GONE:
            return
        if sender.is_job:  # it has begun all that it ends
            raise
        _log.warning("The conversation %s ends without '%s': %s", handle, sender.options.end_of_stream, refused)
        yield from _end(handle, now)


def _end(handle: UUID, now: datetime) -> Steps[None]:
    try:
        yield from end_conversation(EndConversation(handle), now=now)
    except BrokerError as refused:
        if refused.number not in _GONE:
            raise


def _retire(handle: UUID) -> Statement:
    return SQL("retire", (handle,))


def _end_streams(sender: Sender, now: datetime, slots: int) -> Steps[None]:
    """End the streams of all slots but the first `slots`, and what no row has come for and none would be sent on."""
    oldest = now - timedelta(seconds=sender.options.recycle_seconds)
    rows = yield Statement(
        "sending.end_streams",
        f"select c.conversation_handle {_AS_BEGUN}where c.writer = $1 and c.is_in_use "
        f"and (c.slot >= $2 or c.begun_at <= $3 or not {_AS_SAID}) order by c.slot",
        (sender.writer, slots, oldest, *_said(sender)),
    )
    for (handle,) in rows:
        yield from _end_stream(sender, handle, now)


def _collect(writer: str, now: datetime) -> Steps[None]:
    """Remove this batch's stage, what failed attempts of this writer have left, and what nobody will come for."""
    yield SQL("collect.delete_writer_stage", (writer, now - ABANDONED))
    yield SQL("collect.delete_writers", (now - REMEMBERED,))


def _end_answered(now: datetime) -> Steps[None]:
    """End our side of conversations that their targets have ended, of any writer."""
    rows = yield SQL("end_answered.find_answered", (_SWEPT,))
    for handle, queue_id, state in rows:
        if state == "ER":
            for error in (yield from _errors(handle, queue_id)):
                _log.warning("The conversation %s failed with error %s: %s", handle, *error)
        yield from _end(handle, now)
    yield SQL("end_answered.delete_conversations")


def _errors(handle: UUID, queue_id: int) -> Steps[list[tuple[int, str]]]:
    """Code and description of the Errors that have come for a conversation."""
    rows = yield Statement(
        "sending.errors",
        f"select message_body from servicebroker.queue_{queue_id} "
        "where conversation_handle = $1 and message_type_id = $2 and not is_shared",
        (handle, ERROR_ID),
    )
    return [read_error(body or b"") for (body,) in rows]
