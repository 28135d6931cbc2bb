"""RECEIVE: take the messages of conversation groups from the queue, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, Labels, Queue, find_labels
from servicebroker.engine.conversation.endpoints import keep_lock
from servicebroker.engine.security.authorization import authorize, queue_number
from servicebroker.model import names
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import Message
from servicebroker.model.security.permissions import User
from servicebroker.operations.receive import Receive
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Rows, Statement, Steps

SQL = SqlFile(__file__)


MAX_MESSAGES = 2_147_483_647  # messages; the limit of a RECEIVE without TOP, in effect none


class ReceivedRow(NamedTuple):
    """The columns of the SQL functions `receive_N` and `receive_groups_N` in store/queue.sql, N being the queue id.

    Only the field names are used: the rows stay plain tuples, which are faster.

    `place` packs two numbers: the rank in the conversation in the high bits, the queuing order in the low bits. `kind`
    packs contract id and message type id. `receive_N` returns the columns from `conversation_group_id` on in its first
    row only, for all rows; `receive_groups_N` returns them in each row.
    """

    descent: int  # minus the priority
    conversation_handle: bytes
    place: int
    message_sequence_number: int
    kind: int
    validation: str
    message_body: bytes | None
    message_enqueue_time: datetime
    conversation_group_id: UUID | None
    service_id: int | None
    transaction_id: bytes
    under_savepoint: bool


_HANDLE, _KIND, _GROUP, _SERVICE, _TRANSACTION, _UNDER_SAVEPOINT = map(
    ReceivedRow._fields.index,
    ("conversation_handle", "kind", "conversation_group_id", "service_id", "transaction_id", "under_savepoint"),
)
_ORDER_BITS = 61  # the low bits of `place`: the queuing order; above them the rank
_TYPE_BITS = 32  # the low bits of `kind`: the message type id; above them the contract id
_ORDER_MASK, _TYPE_MASK = (1 << _ORDER_BITS) - 1, (1 << _TYPE_BITS) - 1


class Received(NamedTuple):
    """The received rows, for `name_rows`, and the id of the transaction that received them."""

    rows: Rows
    transaction: int


def receive(
    catalog: Catalog,
    queue: Queue,
    operation: Receive,
    *,
    now: datetime,
) -> Steps[Received]:
    """RECEIVE from a queue.

    Without WHERE, the messages are those of one group: the unlocked group with the oldest message of the highest
    priority. The group stays locked until the transaction ends. Returns no rows if no message can be received.

    Raises:
        InstanceError: a pipeline reads the queue.
    """
    operation.check()
    if queue.database_id not in catalog.labels:
        yield from find_labels(catalog, queue.database_id)  # first, so that received rows only need names
    limit, handle, group = limits(operation)
    has_many_groups = operation.groups > 1 or operation.leaves
    arguments = (limit, now, operation.groups, operation.leaves) if has_many_groups else (limit, now, handle, group)
    if catalog.user is not None:
        rows = yield from _receive_permitted(catalog, catalog.user, queue, arguments, has_many_groups=has_many_groups)
    elif has_many_groups:
        rows = yield Statement(
            "conversation.receive.groups",
            f"select * from servicebroker.receive_groups_{queue.queue_id}($1, $2, $3, $4)",
            arguments,
            takes=True,
        )
    else:
        rows = yield Statement(
            "conversation.receive",
            f"select * from servicebroker.receive_{queue.queue_id}($1, $2, $3, $4)",
            arguments,
            takes=True,
        )
    received = yield from read_received(rows, keep_lock)
    if received is None:
        yield from _check(queue, handle, group)
    elif received.rows:
        cache_conversations(catalog, queue.queue_id, received.rows)
    return received or Received((), 0)


def cache_conversations(catalog: Catalog, queue_id: int, rows: Rows) -> None:
    """Cache service, contract and queue of the received conversations, for the SEND or END that follows on them."""
    first = rows[0][_SERVICE]  # a row without a service id has that of the first row
    kinds = {row[_HANDLE]: (row[_SERVICE] or first, row[_KIND] >> _TYPE_BITS) for row in rows}
    ended = {row[_HANDLE] for row in rows if row[_KIND] & _TYPE_MASK == names.END_DIALOG_ID}
    catalog.cache_received(queue_id, kinds, ended)


def limits(operation: Receive) -> tuple[int, UUID | None, UUID | None]:
    """Return TOP and WHERE as parameters of `receive_N`: the maximum count, the conversation, the group."""
    limit = MAX_MESSAGES if operation.top is None else min(operation.top, MAX_MESSAGES)
    return limit, operation.conversation_handle, operation.conversation_group_id


def read_received(rows: Rows, keep: Callable[[UUID], Statement]) -> Steps[Received | None]:
    """Return the rows of `receive_N` as `Received`; None if there is no row.

    One row of nulls means that the queue has no message to receive; `_check` finds the reason of no row at all. If the
    groups were locked under a savepoint, whose rollback would unlock them, the session locks each group with `keep`.
    """
    if not rows:
        return None
    if rows[0][0] is None:
        return Received((), 0)
    if rows[0][_UNDER_SAVEPOINT]:
        for group in dict.fromkeys(row[_GROUP] for row in rows if row[_GROUP] is not None):
            yield keep(group)
    return Received(rows, int.from_bytes(rows[0][_TRANSACTION], "big"))  # the driver returns an xid8 as bytes


class ReceivedState(NamedTuple):
    """The number of received messages of a group, and the stored facts of their conversation.

    The facts are None if the messages belong to several conversations, or if a principal's rights count in theirs.

    Attributes:
        state: the state of the endpoint.
        next_number: the sequence number of its next SEND.
        delivery_queue_id, peer_service_id: the queue and the service of its peer.
    """

    messages: int
    state: str | None = None
    next_number: int | None = None
    delivery_queue_id: int | None = None
    peer_service_id: int | None = None


def take(queue_id: int, messages: Sequence[Message]) -> Steps[ReceivedState]:
    """Delete messages of one group that a `Hold` has read."""
    rows = yield Statement(
        "receive.take",
        f"select servicebroker.take_{queue_id}($1, $2, $3), state, send_sequence, far_queue_id, far_service_id "
        "from (select) one left join servicebroker.conversation_endpoints "
        "on conversation_handle = $4 and principal_id is null and far_principal_id is null",
        (messages[0].conversation_group_id, *queue_places(messages), only_handle(messages)),
    )
    return ReceivedState(*rows[0])


def only_handle(messages: Sequence[Message]) -> UUID | None:
    """Return the handle of the messages' conversation; None if they belong to several."""
    first = messages[0].conversation_handle
    return first if all(message.conversation_handle == first for message in messages) else None


def queue_places(messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Return priorities and queuing orders: the parameters by which `take_N` of store/queue.sql finds messages."""
    return [message.priority for message in messages], [message.queuing_order for message in messages]


def _receive_permitted(
    catalog: Catalog, user: User, queue: Queue, arguments: tuple[object, ...], *, has_many_groups: bool
) -> Steps[Rows]:
    """RECEIVE for a principal that is not dbo: one statement while its cached permission is valid.

    The statement takes no message if the queue's catalog version differs from that of the permission check. Then the
    permission is checked again.
    """
    number = queue.queue_id
    function = f"receive_groups_{number}" if has_many_groups else f"receive_{number}"
    current = f"(select catalog_version from servicebroker.queues where queue_id = {number})"
    top = f"case when {current} = $5 then $1 else 0 end"
    while True:
        version = catalog.receivable.get(number)
        if version is not None:
            rows = yield Statement(
                "receive.receive_permitted.receive",
                f"select * from servicebroker.{function}({top}, $2, $3, $4)",
                (*arguments, version),
                takes=True,
            )
            if rows:
                return rows
        rows = yield Statement("receive.receive_permitted.find_permissions", f"select {current}")
        current_version = rows[0][0]
        if current_version in (None, version):  # the queue was dropped, or is empty
            return ()
        yield from authorize(user, Receive.permission, queue_number(number))
        catalog.receivable[number] = current_version


def service_changes(queue: Queue) -> Steps[int]:
    """Return how often services of the queue were altered or dropped. A waiting reader compares it with the last value.

    Raises:
        BrokerError: 15151 the queue was dropped.
    """
    rows = yield SQL("service_changes", (queue.queue_id,))
    return read_change_count(rows, queue)


def read_change_count(rows: Rows, queue: Queue) -> int:
    """Return the number in the only row.

    Raises:
        BrokerError: 15151 there is no row.
    """
    if not rows:
        raise BrokerError(15151, "find", "queue", queue.name)
    return int(rows[0][0])


def get_conversation_group(queue: Queue, *, now: datetime) -> Steps[UUID | None]:
    """GET CONVERSATION GROUP: lock and return the group from which RECEIVE would take messages; None if there is none.

    Raises:
        BrokerError: 9617 queue disabled, 15151 queue dropped.
        InstanceError: a pipeline reads the queue.
    """
    rows = yield Statement(
        "receive.get_conversation_group",
        "select conversation_group_id, servicebroker.lock_group(conversation_group_id) "
        f"from servicebroker.receive_{queue.queue_id}(1, $1, only_lock => true)",
        (now,),
        locks=True,
    )
    if not rows:
        yield from _check(queue, None, None)
        return None
    group: UUID = rows[0][0]
    return group


def with_default_names(labels: Labels) -> Labels:
    """Return the names with '' for every unknown id, whose object was dropped."""
    return Labels(*(defaultdict(str, names) for names in labels))


def name_rows(rows: Rows, labels: Labels) -> list[Message]:
    """Return the received rows as messages, with names in place of ids.

    If every row has a group id, the messages are of several groups, one group after the other (`ReceivedRow`).

    Raises:
        KeyError: an id has no name in `labels`. Its object is newer than the cache, or was dropped.
    """
    if not rows:
        return []
    if len(rows) > 1 and rows[-1][_GROUP] is not None:
        return [message for group_rows in split_by_group(rows) for message in _named_group(group_rows, labels)]
    return _named_group(rows, labels)


def split_by_group(rows: Rows) -> list[Rows]:
    """Split the rows by group. Each row must have a group id."""
    return [list(group_rows) for _, group_rows in groupby(rows, itemgetter(_GROUP))]


def _named_group(rows: Rows, labels: Labels) -> list[Message]:
    """Return the rows of one group as messages; the first row has the group and the service."""
    services, contracts, types = labels
    group, service = rows[0][_GROUP], rows[0][_SERVICE]
    service_name = services[service]
    handles = {handle: UUID(bytes=handle) for handle in {row[_HANDLE] for row in rows}}
    kinds = {
        kind: (contracts[kind >> _TYPE_BITS], kind >> _TYPE_BITS, types[kind & _TYPE_MASK], kind & _TYPE_MASK)
        for kind in {row[_KIND] for row in rows}
    }
    new = tuple.__new__  # Message(...) takes twice as long
    return [
        new(
            Message,
            (  # one tuple literal is faster than joining parts
                0,
                -descent,
                place & _ORDER_MASK,
                group,
                handles[handle],
                number,
                service_name,
                service,
                contract,
                contract_id,
                message_type,
                type_id,
                validation,
                body,
                time,
            ),
        )
        for descent, handle, place, number, kind, validation, body, time, _, _, _, _ in sorted(rows)
        for contract, contract_id, message_type, type_id in (kinds[kind],)
    ]


def _check(queue: Queue, handle: UUID | None, group: UUID | None) -> Steps[None]:
    """Raise the reason why nothing can be received; return if the queue is only empty."""
    rows = yield SQL("check", (queue.queue_id, handle, group, locks.PIPELINE_QUEUE))
    raise_unreceivable(rows, queue, handle, group)


def raise_unreceivable(rows: Rows, queue: Queue, handle: UUID | None, group: UUID | None) -> None:
    """Raise the reason why nothing can be received, from the row of `receive.sql`, `check`.

    Raises:
        BrokerError: 15151 queue dropped, 9617 queue disabled, 8426 unknown conversation, 8436 unknown group.
        InstanceError: a pipeline reads the queue.
    """
    if not rows:
        raise BrokerError(15151, "find", "queue", queue.name)
    is_enabled, has_conversation, has_group, is_read_by_pipeline = rows[0]
    if not is_enabled:
        raise BrokerError(9617, queue.name)
    if is_read_by_pipeline:
        raise refuse_pipeline(f"'{queue.name}'")
    if handle is not None and not has_conversation:
        raise BrokerError(8426, handle)
    if group is not None and not has_group:
        raise BrokerError(8436, group)


def keep_off_pipelines(queue_id: int) -> Steps[None]:
    """Raise if a pipeline reads the queue; otherwise no pipeline can start on it until the transaction ends.

    For callers that move messages within the queue or out of it. A pipeline plans batches by position, and would read
    moved messages again.

    Raises:
        InstanceError: a pipeline reads the queue.
    """
    rows = yield SQL("keep_off_pipelines", (locks.PIPELINE_QUEUE, queue_id))
    if not rows[0][0]:
        raise refuse_pipeline(f"'{rows[0][1]}'")


def refuse_pipeline(queue: str) -> InstanceError:
    """Return the error for a queue that a pipeline reads: a pipeline must be its only reader."""
    return InstanceError(
        f"A pipeline reads the queue {queue}: until it stops, nobody else can RECEIVE from the queue or MOVE its "
        "conversations."
    )
