"""The statements that put messages into queues; no other module does so.

Each statement reads what a message needs from the row of the sending endpoint, and updates that row first. So its row
lock orders the messages of a conversation. Under the lock the sequence number is drawn, and the stamp is raised to at
least the transaction id and the conversation's last stamp. The queuing order is drawn after that.

`far_...` columns of an endpoint describe its peer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from servicebroker.engine.catalog.priorities import PRIORITY
from servicebroker.engine.conversation.shared_bodies import NEW_REFERENCE_SQL
from servicebroker.model import names
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Bodies, Statement

SQL = SqlFile(__file__)


_COLUMNS = (
    "message_sequence_number, stamp, conversation_group_id, conversation_handle, service_id, "
    "service_contract_id, message_type_id, priority, rank, bucket, validation, message_body"
)
_ADDRESS = "far_handle, far_group_id, far_priority, far_service_id, far_contract_id"
_TO_PEER = (
    "far_group_id, far_handle, far_service_id, far_contract_id"  # group, handle, service and contract of a message
)
_BUCKET = "(uuid_hash(far_group_id) & 1023)::smallint"
_OWN = "e.conversation_group_id, e.conversation_handle, e.service_id, e.service_contract_id"
_OWN_BUCKET = "(uuid_hash(e.conversation_group_id) & 1023)::smallint"
_FRAGMENTS = (
    "(select string_agg(f.message_body, ''::bytea order by f.fragment) from servicebroker.arrived_fragments f "
    "where f.conversation_handle = {handle} and f.message_sequence_number = {number})"
)
_BEGUN = "'SO'"  # the state before the first SEND
_STARTED = "'SI', 'CO'"  # states that may send to another instance
_CERTAIN = ") select max(message_sequence_number), 1 / count(*) from arrived"
_CERTAIN_PRIORITY = ") select max(priority), 1 / count(*) from arrived"
_UNLOCK = f"pg_advisory_unlock({locks.CONVERSATION_GROUP}, kept)"
_STAMP = "last_stamp = greatest(last_stamp, pg_current_xact_id())"


def _converses(now: int, states: str = "'CO'") -> str:
    """Return a condition on state and lifetime. `is true` keeps the planner from using an index for it."""
    return f"(state in ({states}) and lifetime > ${now}) is true"


RANK_TIMER, RANK_ERROR, RANK_DATA = 0, 1, 2
HAS_ENDED, IN_ANOTHER_INSTANCE = 0, -1  # END CONVERSATION: in place of the id of the peer's queue
MAX_BATCH_BYTES = 64 * 1024 * 1024  # bytes of the bodies in one statement


def split_batch(contents: Sequence[bytes | None]) -> list[Bodies]:
    """Split the bodies of a batch into lists that each fit into one statement, keeping their order."""
    portions = [Bodies()]
    size = 0
    for content in contents:
        size += len(content or b"")
        if size > MAX_BATCH_BYTES and portions[-1]:
            portions.append(Bodies())
            size = len(content or b"")
        portions[-1].append(content)
    return portions


@functools.lru_cache(maxsize=1024)
def send(queue_id: int, *, certain: bool = False) -> str:
    """SEND of one message to the peer in that queue.

    Parameters: handle, message type id, validation code, body, the time, the queue's catalog version. Returns a row
    with the sequence number. Returns no row, with nothing written, if the endpoint is not conversing, its lifetime has
    run out, or its peer has another queue. The same if the queue is off or its version has changed. With `certain` the
    statement fails in all these cases (a division by zero), so that a pipeline of statements stops.
    """
    before, after = (", arrived as (", _CERTAIN) if certain else (" ", "")
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + 1, {_STAMP} "
        f"where conversation_handle = $1 and {_converses(5)} and {_delivers_to(queue_id, 6)} "
        f"returning send_sequence - 1 as number, last_stamp, {_ADDRESS}){before}"
        f"insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select number, last_stamp, {_TO_PEER}, $2, far_priority, {RANK_DATA}, {_BUCKET}, $3, $4 from sender "
        f"returning message_sequence_number, {_wake(queue_id, 'conversation_group_id')}{after}"
    )


@functools.lru_cache(maxsize=1024)
def send_answer(queue_id: int, *, certain: bool = False) -> str:
    """SEND of one message on a received conversation, whose peer is guessed from an earlier conversation.

    Parameters: those of `send`. Then values that the endpoint must have: service id, contract id, is_initiator, service
    id and contract id of the peer. Returns a row with sequence number and priority; no row as `send`, or if a value
    differs.

    With `certain` the endpoint must have the sequence number of a last parameter, too, or the statement divides by
    zero. The row has the priority.
    """
    before, number, after = " ", "", ""
    if certain:
        before, number, after = ", arrived as (", " and send_sequence = $12", _CERTAIN_PRIORITY
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + 1, {_STAMP} "
        f"where conversation_handle = $1 and {_converses(5)} and {_delivers_to(queue_id, 6)} "
        f"and (service_id = $7 and service_contract_id = $8 and is_initiator = $9 and far_service_id = $10 "
        f"and far_contract_id = $11 and principal_id is null and far_principal_id is null{number}) is true "
        f"returning send_sequence - 1 as number, last_stamp, {_ADDRESS}){before}"
        f"insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select number, last_stamp, {_TO_PEER}, $2, far_priority, {RANK_DATA}, {_BUCKET}, $3, $4 from sender "
        f"returning message_sequence_number, priority, {_wake(queue_id, 'conversation_group_id')}{after}"
    )


@functools.lru_cache(maxsize=1024)
def send_shared(queue_id: int) -> str:
    """SEND of one message on each of several locked endpoints, to their peers in that queue.

    Parameters: handles (an array), message type id, validation code, the id of the shared body (null for an empty
    body), the queue's catalog version. Returns handle and sequence number of each message that was sent. For other
    handles there is no row, as for `send`.
    """
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + 1, {_STAMP} "
        f"where conversation_handle = any ($1) and state = 'CO' and {_delivers_to(queue_id, 5)} "
        f"returning conversation_handle, send_sequence - 1 as number, last_stamp, {_ADDRESS}, "
        f"case when $4::bigint is not null then {NEW_REFERENCE_SQL} end as reader), "
        f"refers as (insert into servicebroker.shared_body_readers (reader, body_id) "
        f"select reader, $4 from sender where reader is not null), "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}, is_shared) "
        f"select number, last_stamp, {_TO_PEER}, $2, far_priority, {RANK_DATA}, {_BUCKET}, $3, reader, "
        f"reader is not null from sender) "
        f"select conversation_handle, number, {_wake(queue_id)} from sender"
    )


@functools.lru_cache(maxsize=1024)
def send_batch(queue_id: int) -> str:
    """SEND of many messages of one type to the peer in that queue, in their order.

    Parameters: handle, message type id, validation code, bodies (an array), their count, the time, the queue's catalog
    version. Returns a row with the first sequence number; no row as `send`.
    """
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + $5, {_STAMP} "
        f"where conversation_handle = $1 and {_converses(6)} and {_delivers_to(queue_id, 7)} "
        f"returning send_sequence - $5 as number, last_stamp, {_ADDRESS}), "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select number + place - 1, last_stamp, {_TO_PEER}, $2, far_priority, {RANK_DATA}, {_BUCKET}, $3, body "
        f"from sender, unnest($4::bytea[]) with ordinality as message (body, place) order by place) "
        f"select number, {_wake(queue_id, 'far_group_id')} from sender"
    )


@functools.lru_cache(maxsize=1024)
def send_many(queue_id: int) -> str:
    """SEND of many messages on many conversations to their peers in that queue, in order on each conversation.

    A run is a list of consecutive messages of one type on one conversation.

    Parameters: handles (an array, in locking order), message count of each handle. Arrays with a value for each run:
    index of the handle (from 1), number of the handle's messages before the run, number of messages in the run. Further
    arrays for each run: index of its first body (from 1), message type id, validation code. Then the bodies, the time,
    the queue's catalog version. Returns index and first sequence number of each handle whose messages were sent.
    """
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + given.many, {_STAMP} "
        f"from (select * from unnest($1::uuid[], $2::int[]) with ordinality as g (handle, many, which) "
        f"order by which) given "
        f"where conversation_handle = handle and {_converses(10)} and {_delivers_to(queue_id, 11)} "
        f"returning which, send_sequence - given.many as number, last_stamp, {_ADDRESS}), "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select number + first + i, last_stamp, {_TO_PEER}, type, far_priority, {RANK_DATA}, {_BUCKET}, "
        f"validation, body "
        f'from unnest($3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::"char"[]) '
        f"as run (which, first, many, start, type, validation) join sender using (which) "
        f"cross join lateral generate_series(0, run.many - 1) i "
        f"join unnest($9::bytea[]) with ordinality as message (body, place) on place = start + i order by place) "
        f"select which::int, number, {_wake(queue_id, 'far_group_id')} from sender"
    )


@functools.lru_cache(maxsize=1024)
def send_staged(queue_id: int) -> str:
    """SEND of a piece, messages of one type that the Spark writer has put into the table writer_stage, in order.

    Bodies and numbers are generated side by side, so the server neither copies nor sorts the array.

    Parameters: handle, message type id, validation code, the piece's attempt and number, its message count, the time,
    the queue's catalog version. Returns as `send_batch`.
    """
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + $6, {_STAMP} "
        f"where conversation_handle = $1 and {_converses(7)} and {_delivers_to(queue_id, 8)} "
        f"returning send_sequence - $6 as number, last_stamp, {_ADDRESS}, {_BUCKET} as bucket), "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select generate_series(number, number + $6 - 1), last_stamp, {_TO_PEER}, $2, far_priority, {RANK_DATA}, "
        f"bucket, $3, unnest(w.bodies) from sender, servicebroker.writer_stage w "
        f"where w.attempt = $4 and w.piece = $5) "
        f"select number, {_wake(queue_id)} from sender"
    )


# an idle daemon is listed in waiting_readers under queue id 0, which stands for the transmission queue
WAKE_TRANSMITTER = (
    "case when exists (select from servicebroker.waiting_readers where queue_id = 0) "
    "then pg_notify('servicebroker', '0') end"
)

# Condition: neither the row `t` of the transmission queue nor an earlier one of its conversation is delayed. The index
# on delayed_until has rows of delayed messages only, so without any the search costs almost nothing.
IS_FREE = (
    "not exists (select from servicebroker.transmission_queue h where h.conversation_handle = t.conversation_handle "
    "and h.delayed_until is not null and h.message_sequence_number <= t.message_sequence_number)"
)

_TOKEN = "substr(uuid_send(gen_random_uuid()), 1, 8)"  # as the column's default; takes 2 µs


def _transmit(count: str, now: int, messages: str, more_conditions: str = "") -> str:
    """Return the SEND of messages of one type to another instance, in order: rows of the transmission queue.

    `count` is the number of messages, as SQL; `now` the parameter with the time. `messages` selects the rows from
    `sender`. The messages share one token, because it is only compared with the token of a message with the same number
    (decision 180). No row, with nothing written, if the endpoint is not conversing, its lifetime has run out, or its
    peer is not known to be remote. The same if its own queue has RETENTION on, which a cached path does not know.
    """
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + {count}, state = 'CO' "
        f"where conversation_handle = $1 and is_remote and {_converses(now, _STARTED)} "
        f"and not (select is_retention_enabled from servicebroker.queues q "
        f"where q.queue_id = conversation_endpoints.queue_id){more_conditions} "
        f"returning send_sequence - {count} as number, {_TOKEN} as token), "
        f"sent as (insert into servicebroker.transmission_queue "
        f"(conversation_handle, message_sequence_number, message_type_name, message_body, token) {messages}) "
        f"select number, {WAKE_TRANSMITTER} from sender"
    )


# Parameters: handle, message type, bodies (an array), their count, the time.
TRANSMIT = _transmit(
    "$4",
    5,
    "select $1, number + place - 1, $2, body, token "
    "from sender, unnest($3::bytea[]) with ordinality as m (body, place)",
)

# SEND of one message on a received conversation whose peer is presumed to be in another instance. Parameters: handle,
# message type, body, the time. Then values that the endpoint must have: service id, contract id, is_initiator.
TRANSMIT_ANSWER = _transmit(
    "1",
    4,
    "select $1, number, $2, $3::bytea, token from sender",
    " and (service_id = $5 and service_contract_id = $6 and is_initiator = $7) is true",
)


# `_PATH` checks and locks a cached delivery path (`DeliveryPath.parameters`). Parameters of the initiator's side:
# database, service, contract, queue, its catalog version, version of the routes, broker, name of the target service. Of
# the target's side: database, service, contract, queue, catalog version, broker, name of the initiator service. If one
# of these values has changed, there is no row, and nothing is written.
_OWN_PRIORITY = PRIORITY.format(database="$1::int", contract="$3::int", local="$2::int", remote="$8::text")
_FAR_PRIORITY = PRIORITY.format(database="$9::int", contract="$11::int", local="$10::int", remote="$15::text")
_PATH = (
    "way as materialized (select servicebroker.hold_way($1::int, $2::int, $3::int, $4::int, $5::bigint, $6::bigint, "
    "$7::text, $8::text, $9::int, $10::int, $11::int, $12::int, $13::bigint, $14::text) as is_open, "
    f"{_OWN_PRIORITY} as priority, {_FAR_PRIORITY} as far_priority, pg_current_xact_id() as stamp)"
)
_NEW_IDS = "gen_random_uuid() as conversation, gen_random_uuid() as far_handle, gen_random_uuid() as far_group"
_ENDPOINTS = (
    "insert into servicebroker.conversation_endpoints (conversation_handle, conversation_id, is_initiator, "
    "database_id, service_id, service_contract_id, conversation_group_id, queue_id, priority, state, encryption, "
    "lifetime, dialog_timer, far_service, far_broker_instance, far_handle, far_group_id, far_queue_id, "
    "far_service_id, far_contract_id, far_priority, send_sequence, last_stamp) "
)
_TARGET = (
    "select far_handle, conversation, false, $9::int, $10::int, $11::int, far_group, $12::int, far_priority, 'CO', "
    "encryption, lifetime, null, $15::text, $7::text, handle, own_group, $4::int, $2::int, $3::int, priority, 0, "
    "'0'::xid8 from dialog"
)
_BOTH_BEGUN = (
    "grouped as (insert into servicebroker.conversation_groups select own_group, $2::int from dialog "
    "union all select far_group, $10::int from dialog), "
    f"begun as ({_ENDPOINTS}"
    "select handle, conversation, true, $1::int, $2::int, $3::int, own_group, $4::int, priority, 'CO', encryption, "
    "lifetime, dialog_timer, $8::text, $14::text, far_handle, far_group, $12::int, $10::int, $11::int, far_priority, "
    f"messages, stamp from dialog union all {_TARGET})"
)
# The target's priority: that of BEGIN DIALOG, if one was given and the target is in the same database.
_TARGET_PRIORITY = "coalesce(case when $1::int = $9::int then e.far_priority end, a.far_priority)"
_NEW_BUCKET = "(uuid_hash(far_group) & 1023)::smallint"
_OWN_LOCK = f"pg_advisory_xact_lock({locks.CONVERSATION_GROUP}, uuid_hash(own_group))"


@functools.lru_cache(maxsize=1024)
def begin_and_send(queue_id: int) -> str:
    """BEGIN DIALOG and SEND of its first message; the target endpoint is created on that queue.

    Parameters: those of `_PATH`; handle, group, end of the lifetime, encryption, due time of the timer (or null);
    message type id, validation code, body. Returns a row with the priority of the message.
    """
    return (
        f"with {_PATH}, dialog as materialized (select $16::uuid as handle, $17::uuid as own_group, "
        f"$18::timestamptz as lifetime, $19::boolean as encryption, $20::timestamptz as dialog_timer, 1 as messages, "
        f"{_NEW_IDS}, way.* from way where is_open), {_BOTH_BEGUN}, "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select 0, stamp, far_group, far_handle, $10::int, $11::int, $21::int, far_priority, {RANK_DATA}, "
        f"""{_NEW_BUCKET}, $22::"char", $23::bytea from dialog) {_lock_and_wake(queue_id)}"""
    )


@functools.lru_cache(maxsize=1024)
def begin_and_send_many(queue_id: int) -> str:
    """BEGIN DIALOG and SEND for several dialogs between the same two services, each with its messages in order.

    Parameters: those of `_PATH`. Arrays with a value for each dialog: handle, group, end of the lifetime, encryption,
    timer, message count. Arrays with a value for each message: index of the dialog (from 1), sequence number, message
    type id, validation code, body. Returns a row for each dialog: the priority of its messages.
    """
    return (
        f"with {_PATH}, dialog as materialized (select d.*, {_NEW_IDS}, way.* from way, "
        f"unnest($16::uuid[], $17::uuid[], $18::timestamptz[], $19::boolean[], $20::timestamptz[], $21::int[]) "
        f"with ordinality as d (handle, own_group, lifetime, encryption, dialog_timer, messages, which) "
        f"where is_open), {_BOTH_BEGUN}, "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select number, stamp, far_group, far_handle, $10::int, $11::int, type, far_priority, {RANK_DATA}, "
        f"{_NEW_BUCKET}, validation, body "
        f"""from unnest($22::int[], $23::int[], $24::int[], $25::"char"[], $26::bytea[]) with ordinality """
        f"as message (which, number, type, validation, body, place) join dialog using (which) order by place) "
        f"{_lock_and_wake(queue_id)}"
    )


@functools.lru_cache(maxsize=1024)
def open_and_send(queue_id: int) -> str:
    """SEND of the first message of a dialog that was begun before; the target endpoint is created on that queue.

    Parameters: those of `_PATH`; handle, the time; message type id, validation code, body. Returns a row with the
    priority of the message. Also returns no row if the dialog has already sent or its lifetime has run out.
    """
    return (
        f"with {_PATH}, addressed as materialized (select {_NEW_IDS}, way.* from way where is_open), "
        f"dialog as (update servicebroker.conversation_endpoints e set send_sequence = 1, last_stamp = stamp, "
        f"state = 'CO', far_handle = a.far_handle, far_group_id = a.far_group, far_queue_id = $12::int, "
        f"far_service_id = $10::int, far_contract_id = $11::int, far_priority = {_TARGET_PRIORITY}, "
        f"far_broker_instance = $14::text from addressed a "
        f"where conversation_handle = $16::uuid and send_sequence = 0 and e.far_handle is null and not is_remote "
        f"and {_converses(17, _BEGUN)} "
        f"returning e.conversation_handle as handle, e.conversation_group_id as own_group, e.conversation_id as "
        f"conversation, e.encryption, e.lifetime, e.priority, a.stamp, a.far_handle, a.far_group, e.far_priority), "
        f"grouped as (insert into servicebroker.conversation_groups select far_group, $10::int from dialog), "
        f"begun as ({_ENDPOINTS}{_TARGET}), "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select 0, stamp, far_group, far_handle, $10::int, $11::int, $18::int, far_priority, {RANK_DATA}, "
        f"""{_NEW_BUCKET}, $19::"char", $20::bytea from dialog) """
        f"select far_priority, {_wake(queue_id, 'far_group')} from dialog"
    )


# BEGIN DIALOG and SEND for dialogs between the same two services, the target in another instance. The messages are
# stored in the transmission queue. Parameters: those of the initiator's side of `_PATH`, and the broker that BEGIN
# DIALOG names. Arrays as for `begin_and_send_many`, with names of message types instead of ids and validation codes.
# Then the transmission status of the messages. Returns a row for each dialog; none, with nothing written, if a cached
# value has changed.
BEGIN_AND_TRANSMIT = (
    "with way as materialized (select servicebroker.hold_departure($1::int, $2::int, $3::int, $4::int, $5::bigint, "
    "$6::bigint, $7::text, $8::text) as is_open, "
    f"{_OWN_PRIORITY} as priority), "
    "dialog as materialized (select d.*, way.priority from way, "
    "unnest($10::uuid[], $11::uuid[], $12::timestamptz[], $13::boolean[], $14::timestamptz[], $15::int[]) "
    "with ordinality as d (handle, own_group, lifetime, encryption, dialog_timer, messages, which) where is_open), "
    "grouped as (insert into servicebroker.conversation_groups select own_group, $2::int from dialog), "
    "begun as (insert into servicebroker.conversation_endpoints (conversation_handle, is_initiator, database_id, "
    "service_id, service_contract_id, conversation_group_id, queue_id, priority, state, encryption, lifetime, "
    "dialog_timer, far_service, far_broker_instance, send_sequence) "
    "select handle, true, $1::int, $2::int, $3::int, own_group, $4::int, priority, 'CO', encryption, lifetime, "
    "dialog_timer, $8::text, $9::text, messages from dialog), "
    "sent as (insert into servicebroker.transmission_queue (conversation_handle, message_sequence_number, "
    "message_type_name, message_body, transmission_status) select handle, number, type, body, $20::text "
    "from unnest($16::int[], $17::int[], $18::text[], $19::bytea[]) with ordinality "
    "as message (which, number, type, body, place) join dialog using (which) order by place) "
    f"select {_OWN_LOCK}, {WAKE_TRANSMITTER} from dialog"
)


def tell_peer(queue_id: int) -> str:
    """Insert EndDialog or Error into the peer's queue, whatever the state of the sending endpoint, which is locked.

    Parameters: handle, message type id, validation code, body, rank.
    """
    return (
        f"with sender as ("
        f"update servicebroker.conversation_endpoints set send_sequence = send_sequence + 1, {_STAMP} "
        f"where conversation_handle = $1 returning send_sequence - 1 as number, last_stamp, {_ADDRESS}) "
        f"insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select number, last_stamp, {_TO_PEER}, $2, far_priority, $5, {_BUCKET}, $3, $4 from sender "
        f"returning message_sequence_number, {_wake(queue_id)}"
    )


@functools.lru_cache(maxsize=1024)
def end_dialog(queue_id: int, peer_queue: int, *, certain: bool = False) -> str:
    """END CONVERSATION in one statement: close this side in its queue, and insert EndDialog into the peer's queue.

    `peer_queue` is HAS_ENDED or IN_ANOTHER_INSTANCE if the peer has ended or is in another instance. Parameters:
    handle, the time, the catalog version of `queue_id` or null. The functions `end_dialog`, `end_remote` and
    `finish_dialog` of store/queue.sql decide whether one statement is enough. Returns a row: whether END was done,
    whether closed endpoints are due for removal, the key of a lock.
    With `certain` the statement divides by zero if it was not done. Then the transaction has locked the group before
    the savepoint that END finds, so the session need not keep that lock.
    """
    done, kept = "done", "kept"
    if certain:
        done, kept = "1 / done::int", f"case when kept is not null then {_UNLOCK} end"
    if peer_queue == HAS_ENDED:
        return f"select {done}, is_due, {kept} from servicebroker.finish_dialog_{queue_id}($1, $2, $3)"
    if peer_queue == IN_ANOTHER_INSTANCE:
        return (
            f"select {done}, is_due, {kept}, case when is_told then {WAKE_TRANSMITTER} end "
            f"from servicebroker.end_remote_{queue_id}($1, $2, $3)"
        )
    return (
        f"with ended as materialized (select * from servicebroker.end_dialog_{queue_id}($1, $2, {peer_queue}, $3)), "
        f"told as (insert into servicebroker.queue_{peer_queue} ({_COLUMNS}) "
        f"select number, stamp, {_TO_PEER}, {names.END_DIALOG_ID}, far_priority, {RANK_DATA}, {_BUCKET}, 'E', null "
        f"from ended where number is not null returning {_wake(peer_queue, 'conversation_group_id')}) "
        f"select {done}, is_due, {kept} from ended"
    )


def deliver(queue_id: int) -> str:
    """Deliver parked messages of these endpoints, except delayed ones, to their peers in that queue.

    If no delayed message remains, `far_queue_id` is set, so that the next SEND delivers directly. Conversations are
    ordered by the time at which they were parked. Messages keep their sequence numbers.

    Parameters: handles (an array). Returns a row with an array: the priority of each delivered application message.
    """
    return (
        f"with waiting as ("
        f"delete from servicebroker.transmission_queue t "
        f"where conversation_handle = any ($1) and {IS_FREE} returning *), "
        f"sender as (update servicebroker.conversation_endpoints e set far_queue_id = "
        f"case when not exists (select from servicebroker.transmission_queue h where h.conversation_handle = "
        f"e.conversation_handle and h.delayed_until is not null) then {queue_id} end, {_STAMP} "
        f"where conversation_handle = any ($1) returning conversation_handle, last_stamp, {_ADDRESS}), "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}, is_shared) "
        f"select w.message_sequence_number, last_stamp, {_TO_PEER}, t.message_type_id, far_priority, "
        f"case when w.is_conversation_error then {RANK_ERROR} else {RANK_DATA} end, {_BUCKET}, t.validation, "
        f"w.message_body, w.is_shared from waiting w join sender using (conversation_handle) "
        f"join servicebroker.queues q on q.queue_id = {queue_id} "
        f"join servicebroker.message_types t on t.database_id = q.database_id and t.name = w.message_type_name "
        f"order by min(w.enqueue_time) over (partition by w.conversation_handle), w.conversation_handle, "
        f"w.message_sequence_number) "
        f"select array_agg(far_priority) filter (where not is_end_of_dialog and not is_conversation_error), "
        f"{_wake(queue_id)} from waiting join sender using (conversation_handle)"
    )


def insert_arrived(queue_id: int) -> str:
    """Insert messages from another instance. The caller has locked the endpoints' `arrivals` (remote/arriving.py).

    The statement does not notify readers: the caller does that with `wake` after its commit.

    A run is a list of consecutive messages that differ only in number and body. Parameters: arrays with a value for
    each run: handle, first sequence number, count, index of the first body (from 1), message type id. Further arrays
    for each run: validation code, rank, and whether the body was stored as fragments in arrived_fragments. Then the
    bodies.
    """
    fragments = _FRAGMENTS.format(handle="handle", number="first + i")
    return _ARRIVE.format(
        queue=queue_id,
        stamp="a.last_stamp",
        body=f"case when fragmented and body is null then {fragments} else body end",
        runs='$1::uuid[], $2::bigint[], $3::int[], $4::int[], $5::int[], $6::"char"[], $7::smallint[], $8::boolean[]',
        columns="handle, first, many, start, type, validation, rank, fragmented",
        endpoints="servicebroker.conversation_endpoints",
        more="join servicebroker.arrivals a on a.conversation_handle = handle",
        bodies="$9",
    )


def arrive_first(queue_id: int, endpoints: str, first: int) -> str:
    """Return the insert of `insert_arrived` for first messages, as a part of the statement that creates the endpoints.

    `endpoints` is the name of that part. The parameters are those of `insert_arrived` without the fragments, numbered
    from `first` on.
    """
    types = ("uuid", "bigint", "int", "int", "int", '"char"', "smallint")
    return _ARRIVE.format(
        queue=queue_id,
        stamp="pg_current_xact_id()",
        body="body",
        runs=", ".join(f"${first + index}::{name}[]" for index, name in enumerate(types)),
        columns="handle, first, many, start, type, validation, rank",
        endpoints=endpoints,
        more="",
        bodies=f"${first + len(types)}",
    )


_ARRIVE = (
    f"insert into servicebroker.queue_{{queue}} ({_COLUMNS}) "
    f"select first + i, {{stamp}}, {_OWN}, type, e.priority, rank, {_OWN_BUCKET}, validation, {{body}} "
    "from unnest({runs}) r ({columns}) join {endpoints} e on e.conversation_handle = handle {more} "
    "cross join lateral generate_series(0, many - 1) i "
    "join unnest({bodies}::bytea[]) with ordinality m (body, place) on place = start + i order by place"
)


def insert_kept(queue_id: int) -> str:
    """Insert, in order, messages that arrived while the queue was off, from arrived_fragments.

    The caller deletes them there. Parameters: handles (an array).
    """
    return (
        f"with stamped as ("
        f"update servicebroker.arrivals set {_STAMP} where conversation_handle = any ($1) returning *), "
        f"arrived as (insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select k.number, a.last_stamp, {_OWN}, t.message_type_id, e.priority, "
        f"case when k.content = 2 then {RANK_ERROR} else {RANK_DATA} end, {_OWN_BUCKET}, t.validation, "
        f"{_FRAGMENTS.format(handle='a.conversation_handle', number='k.number')} "
        f"from stamped a join servicebroker.conversation_endpoints e using (conversation_handle) "
        f"cross join lateral (select message_sequence_number as number, min(content) as content, "
        f"  min(message_type_name) as type, min(enqueue_time) as time from servicebroker.arrived_fragments f "
        f"  where f.conversation_handle = a.conversation_handle and message_sequence_number < a.receive_sequence "
        f"  group by 1) k "
        f"join servicebroker.message_types t on t.database_id = e.database_id and t.name = k.type "
        f"order by min(k.time) over (partition by a.conversation_handle), a.conversation_handle, k.number returning 1) "
        f"select count(*), {_wake(queue_id)} from arrived"
    )


def tell_self(queue_id: int) -> str:
    """Put an Error of the broker into the own queue of these endpoints, and set them to the state ER.

    Its stamp is at least that of each message that the peer has sent, so that no pipeline reads it before those.
    Parameters: handles (an array), message type id, validation code, body.
    """
    return (
        f"with receiver as ("
        f"update servicebroker.conversation_endpoints set state = 'ER', can_expire = false "
        f"where conversation_handle = any ($1) "
        f"returning *) "
        f"insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select 0, greatest(pg_current_xact_id(), (select last_stamp from servicebroker.conversation_endpoints peer "
        f"where peer.conversation_handle = receiver.far_handle), (select a.last_stamp from servicebroker.arrivals a "
        f"where a.conversation_handle = receiver.conversation_handle)), conversation_group_id, conversation_handle, "
        f"service_id, service_contract_id, $2, priority, {RANK_ERROR}, "
        f"(uuid_hash(conversation_group_id) & 1023)::smallint, $3, $4 from receiver "
        f"returning message_sequence_number, {_wake(queue_id)}"
    )


def replay(queue_id: int) -> str:
    """Put a dead letter back into the queue from which it was received, with its sequence number.

    Parameters: handle, sequence number, message type id, validation code, body, rank.
    """
    return (
        f"with sender as (update servicebroker.conversation_endpoints set {_STAMP} where far_handle = $1 "
        f"returning last_stamp), "
        f"arriving as (update servicebroker.arrivals set {_STAMP} where conversation_handle = $1 returning last_stamp) "
        f"insert into servicebroker.queue_{queue_id} ({_COLUMNS}) "
        f"select $2, greatest(pg_current_xact_id(), (select last_stamp from sender), "
        f"(select last_stamp from arriving)), "
        f"{_OWN}, $3, e.priority, $6, {_OWN_BUCKET}, $4, $5 "
        f"from servicebroker.conversation_endpoints e where e.conversation_handle = $1 "
        f"returning message_sequence_number, {_wake(queue_id)}"
    )


def wake(queue_ids: Sequence[int]) -> Statement:
    """Wake sessions that wait for these queues, after the commit of the messages.

    Runs in a transaction of its own, which does not wait for the disk. A reader that begins to wait later finds the
    messages itself.
    """
    return SQL("wake", (list(queue_ids),))


def _delivers_to(queue_id: int, version: int) -> str:
    """Return a condition: the peer's queue is `queue_id`, on and unaltered. `is true` keeps it a filter of the row."""
    return (
        f"(far_queue_id = {queue_id} and exists ("
        f"select from servicebroker.queues where queue_id = {queue_id} and is_enqueue_enabled "
        f"and catalog_version = ${version})) is true"
    )


def _lock_and_wake(queue_id: int) -> str:
    """Return the last part of a statement: lock the initiators' groups, and wake readers of the target's queue."""
    return f"select far_priority, {_OWN_LOCK}, {_wake(queue_id, 'far_group')} from dialog"


def _wake(queue_id: int, group: str | None = None) -> str:
    """Return an expression that notifies readers, if a reader waits for the queue: NOTIFY locks the server at commit.

    If all messages belong to one group, its hash goes with the notification: one reader is enough
    (api/aio/notifier.py).
    """
    payload = f"'{queue_id} ' || uuid_hash({group})" if group else f"'{queue_id}'"
    return (
        f"case when exists (select from servicebroker.waiting_readers where queue_id = {queue_id}) "
        f"then pg_notify('servicebroker', {payload}) end"
    )
