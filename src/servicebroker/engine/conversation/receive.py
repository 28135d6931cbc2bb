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


MAX_MESSAGES = 2_147_483_647  # TOP when none is given


class TakenRow(NamedTuple):
    """The columns of `receive_N` and `receive_groups_N` in store/queue.sql. Rows stay tuples, which are faster.

    `place` packs the rank in the conversation and the number of arrival; `kind` packs the numbers of contract and
    message type. The columns from `conversation_group_id` on are in the first row only, and hold for all of them;
    `receive_groups_N` returns them in each row.
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
    TakenRow._fields.index,
    ("conversation_handle", "kind", "conversation_group_id", "service_id", "transaction_id", "under_savepoint"),
)
_RANK_BITS, _TYPE_BITS = 61, 32  # below them in `place` the number of arrival, in `kind` that of the message type
_ORDER, _TYPE = (1 << _RANK_BITS) - 1, (1 << _TYPE_BITS) - 1


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
    """RECEIVE from a queue that was looked up.

    Without WHERE, takes the unlocked group with the oldest message of the highest priority. Its lock is held until the
    transaction ends. Returns no rows if there is nothing to take.

    Raises:
        InstanceError: a pipeline reads the queue.
    """
    operation.check()
    if queue.database_id not in catalog.labels:
        yield from find_labels(catalog, queue.database_id)  # first, so that received rows only need names
    most, handle, group = limits(operation)
    is_of_many = operation.groups > 1 or operation.leaves
    arguments = (most, now, operation.groups, operation.leaves) if is_of_many else (most, now, handle, group)
    if catalog.user is not None:
        rows = yield from _receive_permitted(catalog, catalog.user, queue, arguments, is_of_many=is_of_many)
    elif is_of_many:
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
        note_taken(catalog, queue.queue_id, received.rows)
    return received or Received((), 0)


def note_taken(catalog: Catalog, queue_id: int, rows: Rows) -> None:
    """Cache what the next verbs on the conversations of these messages need."""
    first = rows[0][_SERVICE]  # a row without a service id has that of the first row
    kinds = {row[_HANDLE]: (row[_SERVICE] or first, row[_KIND] >> _TYPE_BITS) for row in rows}
    ended = {row[_HANDLE] for row in rows if row[_KIND] & _TYPE == names.END_DIALOG_ID}
    catalog.note_received(queue_id, kinds, ended)


def limits(operation: Receive) -> tuple[int, UUID | None, UUID | None]:
    """Return TOP and WHERE as the functions of PostgreSQL take them: maximum count, conversation, group."""
    most = MAX_MESSAGES if operation.top is None else min(operation.top, MAX_MESSAGES)
    return most, operation.conversation_handle, operation.conversation_group_id


def read_received(rows: Rows, keep: Callable[[UUID], Statement]) -> Steps[Received | None]:
    """Return the rows of the queue's function as `Received`; None if it returned none.

    If the groups were locked under a savepoint, the statements that `keep` makes lock them for the session.
    """
    if not rows:
        return None
    if rows[0][0] is None:
        return Received((), 0)
    if rows[0][_UNDER_SAVEPOINT]:
        for group in dict.fromkeys(row[_GROUP] for row in rows if row[_GROUP] is not None):
            yield keep(group)
    return Received(rows, int.from_bytes(rows[0][_TRANSACTION], "big"))  # the driver returns an xid8 as bytes


def take(queue_id: int, messages: Sequence[Message]) -> Steps[int]:
    """Delete messages of one group that a `Hold` has read. Returns how many were still there."""
    rows = yield Statement(
        "receive.take",
        f"select servicebroker.take_{queue_id}($1, $2, $3)",
        (messages[0].conversation_group_id, *queue_places(messages)),
    )
    return int(rows[0][0])


def queue_places(messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Return the priorities and the orders of arrival by which `take_N` of store/queue.sql finds messages."""
    return [message.priority for message in messages], [message.queuing_order for message in messages]


def _receive_permitted(
    catalog: Catalog, user: User, queue: Queue, arguments: tuple[object, ...], *, is_of_many: bool
) -> Steps[Rows]:
    """RECEIVE for a principal that is not dbo. The statement takes nothing if the cached permissions are out of date.

    Then permissions are checked again; so the usual RECEIVE is a single statement here too.
    """
    number = queue.queue_id
    function = f"receive_groups_{number}" if is_of_many else f"receive_{number}"
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
        found = yield Statement("receive.receive_permitted.find_permissions", f"select {current}")
        if found[0][0] in (None, version):  # the queue was dropped, or is empty
            return ()
        yield from authorize(user, Receive.permission, queue_number(number))
        catalog.receivable[number] = found[0][0]


def service_changes(queue: Queue) -> Steps[int]:
    """Return how often services of the queue were altered or dropped: a waiting reader compares it.

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
    """GET CONVERSATION GROUP FROM queue: lock and return the group that RECEIVE would take from; None without messages.

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
    """Return messages in the order of the rows, with names for ids. The first row has common values (queue.sql).

    If each row names its group, they are messages of several groups, one group after the other.

    Raises:
        KeyError: a name is missing. Its object is newer than the cache, or was dropped.
    """
    if not rows:
        return []
    if len(rows) > 1 and rows[-1][_GROUP] is not None:
        return [message for own in split_by_group(rows) for message in _named_group(own, labels)]
    return _named_group(rows, labels)


def split_by_group(rows: Rows) -> list[Rows]:
    """Split the rows by group, if each row names its group."""
    return [list(own) for _, own in groupby(rows, itemgetter(_GROUP))]


def _named_group(rows: Rows, labels: Labels) -> list[Message]:
    services, contracts, types = labels
    group, service = rows[0][_GROUP], rows[0][_SERVICE]
    service_name = services[service]
    handles = {handle: UUID(bytes=handle) for handle in {row[_HANDLE] for row in rows}}
    kinds = {
        kind: (contracts[kind >> _TYPE_BITS], kind >> _TYPE_BITS, types[kind & _TYPE], kind & _TYPE)
        for kind in {row[_KIND] for row in rows}
    }
    new = tuple.__new__  # Message(...) takes twice as long
    return [
        new(
            Message,
            (  # one tuple literal is faster than joining parts
                0,
                -descent,
                place & _ORDER,
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
    """Raise the reason why nothing can be received. The row: queue on, handle known, group known, read by a pipeline.

    Raises:
        BrokerError: 15151, 9617, 8426, 8436.
        InstanceError: a pipeline reads the queue.
    """
    if not rows:
        raise BrokerError(15151, "find", "queue", queue.name)
    enabled, handle_known, group_known, owned = rows[0]
    if not enabled:
        raise BrokerError(9617, queue.name)
    if owned:
        raise refuse_pipeline(f"'{queue.name}'")
    if handle is not None and not handle_known:
        raise BrokerError(8426, handle)
    if group is not None and not group_known:
        raise BrokerError(8436, group)


def keep_off_pipelines(queue_id: int) -> Steps[None]:
    """Raise if a pipeline reads the queue; otherwise keep pipelines away until the transaction ends.

    Callers are about to move messages within or out of the queue. A pipeline has planned batches, and would read moved
    messages again.

    Raises:
        InstanceError: a pipeline reads the queue.
    """
    rows = yield SQL("keep_off_pipelines", (locks.PIPELINE_QUEUE, queue_id))
    if not rows[0][0]:
        raise refuse_pipeline(f"'{rows[0][1]}'")


def refuse_pipeline(queue: str) -> InstanceError:
    """Return the error for a queue whose only reader is a pipeline."""
    return InstanceError(
        f"A pipeline reads the queue {queue}: until it stops, nobody else can RECEIVE from the queue or MOVE its "
        "conversations."
    )
