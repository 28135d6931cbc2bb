"""Answers to requests: receive those that arrived, and handle or drop late ones (model/requests.py, decision 504).

A request is a dialog whose application waits for the answer. The conversation group's id shows that a conversation is a
request, until when the application waits, and whether a late answer is dropped or handled.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation.end import end_conversation
from servicebroker.engine.conversation.endpoints import keep_lock
from servicebroker.engine.conversation.receive import Received, cache_conversations, read_received
from servicebroker.engine.delivery.transmission import lock_available
from servicebroker.model.errors import BrokerError
from servicebroker.model.requests import LateAnswerTreatment, groups_of, is_request, late_groups
from servicebroker.operations.end import EndConversation
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Rows, Statement, Steps

SQL = SqlFile(__file__)


MAX_LATE = 100  # late answers found or dropped in one transaction
HIGHEST_PRIORITY = 10


class AnswerQueue(NamedTuple):
    """The queue into which answers on a conversation are delivered. `name` is valid for RECEIVE."""

    queue_id: int
    name: str


class LateAnswer(NamedTuple):
    """A request whose answer is late: its conversation group and handle."""

    group: UUID
    handle: UUID


def find_answer_queue(database_id: int, handle: UUID) -> Steps[AnswerQueue]:
    """Return the queue of this side of a conversation.

    Raises:
        BrokerError: 8426 no such conversation in the database.
    """
    rows = yield SQL("find_answer_queue", (handle, database_id))
    return answer_queue_of(rows, handle)


def answer_queue_of(rows: Rows, handle: UUID) -> AnswerQueue:
    """Return the queue in the only row.

    Raises:
        BrokerError: 8426 there is no row.
    """
    if not rows:
        raise BrokerError(8426, handle)
    return AnswerQueue(*rows[0])


def find_answered(queue_id: int, handles: Sequence[UUID]) -> Steps[list[UUID]]:
    """Return the conversations that have messages in the queue, or have been moved to another queue."""
    rows = yield Statement(
        "requests.find_answered",
        "select e.conversation_handle from servicebroker.conversation_endpoints e "
        f"where e.conversation_handle = any ($1) and (e.queue_id <> {queue_id} or exists "
        f"(select from servicebroker.queue_{queue_id} m where m.priority = e.priority "
        "and m.conversation_group_id = e.conversation_group_id and m.conversation_handle = e.conversation_handle))",
        (list(handles),),
    )
    return [handle for (handle,) in rows]


def receive_answers(catalog: Catalog, queue_id: int, handles: Sequence[UUID]) -> Steps[Received]:
    """RECEIVE the answers of several requests in one statement. Leaves out requests whose late answers are handled.

    Conversations whose group another session has locked are left out. Returns no answers if the queue is off, has a
    queue monitor, is read by a pipeline, or retains messages: then RECEIVE has to be used.
    """
    locked = yield Statement(
        "requests.receive_answers.lock",
        "select conversation_handle, conversation_group_id, priority from servicebroker.conversation_endpoints e "
        f"where conversation_handle = any ($1) and queue_id = {queue_id} "
        "and conversation_group_id between $2 and $3 and case when exists ("
        f"select from servicebroker.queue_{queue_id} m where m.priority = e.priority "
        "and m.conversation_group_id = e.conversation_group_id and m.conversation_handle = e.conversation_handle) "
        f"then pg_try_advisory_xact_lock({locks.CONVERSATION_GROUP}, uuid_hash(e.conversation_group_id)) end",
        (list(handles), *groups_of(LateAnswerTreatment.DROP)),
    )
    if not locked:
        return Received((), 0)
    # One DELETE for all requests. The columns are those of `ReceivedRow` (receive.py): rank and queuing order in one
    # bigint, contract and message type in one bigint.
    # `offset 0` keeps the subquery, so the index is searched once for each handle.
    rows = yield Statement(
        "requests.receive_answers",
        "with open_queue as materialized (select from servicebroker.queues "
        f"where queue_id = {queue_id} and is_receive_enabled and not is_monitored and not keeps_retained "
        f"and pg_try_advisory_xact_lock_shared({locks.PIPELINE_QUEUE}, {queue_id})), "
        f"deleted as (delete from servicebroker.queue_{queue_id} where ctid = any (array("
        "select m.ctid from open_queue, "
        "unnest($1::uuid[], $2::uuid[], $3::smallint[]) as locked (handle, group_id, priority) "
        f"cross join lateral (select q.ctid from servicebroker.queue_{queue_id} q where q.priority = locked.priority "
        "and q.conversation_group_id = locked.group_id and q.conversation_handle = locked.handle offset 0) m)) "
        "returning *, xmax as deleter) "
        "select (-priority)::smallint, uuid_send(conversation_handle), rank::bigint << 61 | queuing_order, "
        "message_sequence_number, service_contract_id::bigint << 32 | message_type_id, validation, "
        "case when is_shared then servicebroker.take_shared_body(message_body) else message_body end, "
        "message_enqueue_time, conversation_group_id, service_id, pg_current_xact_id(), "
        "deleter <> pg_current_xact_id()::xid from deleted order by conversation_group_id",
        tuple([*column] for column in zip(*locked, strict=True)),
    )
    received = yield from read_received(rows, keep_lock)
    if received is None:
        return Received((), 0)
    cache_conversations(catalog, queue_id, received.rows)
    return received


def find_late(
    queue_id: int, now: datetime, treatment: LateAnswerTreatment, *, arrived_before: datetime | None = None
) -> Steps[list[LateAnswer]]:
    """Return requests whose answer in the queue is late, at most MAX_LATE of the oldest.

    `arrived_before`: only answers that have arrived before this time.
    """
    arrived = "" if arrived_before is None else "and message_enqueue_time < $3 "
    rows = yield Statement(
        "requests.find_late",
        "select conversation_group_id, conversation_handle from (select distinct m.conversation_group_id, "
        f"m.conversation_handle from generate_series(1, {HIGHEST_PRIORITY}) as priorities (priority) "
        f"cross join lateral (select conversation_group_id, conversation_handle from servicebroker.queue_{queue_id} "
        f"where priority = priorities.priority and conversation_group_id between $1 and $2 {arrived}"
        f"order by conversation_group_id limit {MAX_LATE}) m) late order by 1",
        (*late_groups(now, treatment), *(() if arrived_before is None else (arrived_before,))),
    )
    return late_of(rows)


def late_of(rows: Rows) -> list[LateAnswer]:
    """Return the rows whose group belongs to a request."""
    return [LateAnswer(*row) for row in rows if is_request(row[0])]


class LateAnswerCount(NamedTuple):
    """The number of late answers in a queue, at most MAX_LATE, and whether they are dropped or handled."""

    queue: str
    answers: int
    are_dropped: bool


def count_late(now: datetime) -> Steps[list[LateAnswerCount]]:
    """Count the late answers in each queue, without those that have arrived after `now`.

    Maintenance drops them twice a minute, so a recent one is no problem yet, however late it is.
    """
    counts = []
    for treatment in LateAnswerTreatment:
        rows = yield SQL("count_late", late_groups(now, treatment))
        for queue_id, name in rows:
            answers = yield from find_late(queue_id, now, treatment, arrived_before=now)
            if answers:
                counts.append(LateAnswerCount(name, len(answers), treatment is LateAnswerTreatment.DROP))
    return counts


def drop_late_answers(now: datetime) -> Steps[int]:
    """End requests whose late answers are dropped, and return their number. Skips requests that are locked.

    Only queues with groups of such requests are searched, so queues without requests cost nothing.
    """
    rows = yield SQL("drop_late_answers.find_queues", late_groups(now, LateAnswerTreatment.DROP))
    dropped = 0
    for (queue_id,) in rows:
        late = yield from find_late(queue_id, now, LateAnswerTreatment.DROP)
        for handle in (yield from _lock_available_requests(late)):
            with suppress(BrokerError):  # ended since the query
                yield from end_conversation(EndConversation(handle), now=now)
                dropped += 1
    return dropped


def _lock_available_requests(late: Sequence[LateAnswer]) -> Steps[set[UUID]]:
    """Lock the groups and endpoints of these requests, and return the handles. Skips those that are locked."""
    rows = yield SQL(
        "lock_available_requests",
        ([answer.handle for answer in late], [answer.group for answer in late], locks.CONVERSATION_GROUP),
    )
    return (yield from lock_available([handle for (handle,) in rows]))
