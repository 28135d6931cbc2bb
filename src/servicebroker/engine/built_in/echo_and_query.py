"""The built-in service of each database: it sends an Echo back and answers a Query, the diagnosis by a peer.

See docs/reference/rules.md#built-in-objects.

Only target endpoints answer, so that two of these services never answer each other for ever.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from uuid import UUID

from servicebroker.engine.built_in.diagnostic_answers import answer_query
from servicebroker.engine.catalog.catalog import Catalog, Queue
from servicebroker.engine.conversation.end import end_conversation
from servicebroker.engine.conversation.receive import name_rows, receive, with_default_names
from servicebroker.engine.conversation.send import send
from servicebroker.engine.delivery.transmission import lock_available
from servicebroker.model import names
from servicebroker.model.arguments import OMITTED
from servicebroker.model.errors import BrokerError
from servicebroker.operations.end import EndConversation
from servicebroker.operations.receive import Receive
from servicebroker.operations.send import Send
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MAX_CONVERSATIONS = 100  # conversations answered in one transaction
MAX_MESSAGES = 100  # messages of each conversation answered in one transaction


def answer_built_in(now: datetime) -> Steps[bool]:
    """Answer messages in the built-in queues, and end conversations that the initiator has ended. Waits for no lock.

    Returns True if messages remain: more than the limits, or on a conversation that another session has locked.
    """
    rows = yield SQL(  # leaves out tables without a page, which have no message
        "answer_built_in.find_queues", (names.SERVICE_BROKER, names.FIRST_USER_ID)
    )
    is_left = False
    for row in rows:
        is_left |= yield from _answer_queue(Queue(*row), now)
    return is_left


def _answer_queue(queue: Queue, now: datetime) -> Steps[bool]:
    rows = yield Statement(
        "echo_and_query.answer_queue",
        "select conversation_handle, pg_try_advisory_xact_lock($1, uuid_hash(conversation_group_id)) "
        "and pg_try_advisory_xact_lock_shared($2, 0), has_lost_peer "  # `lock_parking`: no delivery of parked messages
        "from (select m.conversation_handle, m.conversation_group_id, "
        "e.far_handle is not null and peer.conversation_handle is null as has_lost_peer "
        f"from servicebroker.queue_{queue.queue_id} m "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        "left join servicebroker.conversation_endpoints peer on peer.conversation_handle = e.far_handle "
        "where not e.is_initiator group by 1, 2, 3 order by min(m.queuing_order) limit $3) waiting",
        (locks.CONVERSATION_GROUP, locks.PARKED_DELIVERY, MAX_CONVERSATIONS),
    )
    locked = {handle: has_lost_peer for handle, is_locked, has_lost_peer in rows if is_locked}
    with_locked_peer: set[UUID] = set()
    if locked:
        with_locked_peer = yield from lock_available([handle for handle, is_lost in locked.items() if not is_lost])
    answerable = [handle for handle, has_lost_peer in locked.items() if has_lost_peer or handle in with_locked_peer]
    is_left = len(answerable) < len(rows) or len(rows) == MAX_CONVERSATIONS
    for handle in answerable:
        is_left |= yield from _answer(queue, handle, now)
    return is_left


def _answer(queue: Queue, handle: UUID, now: datetime) -> Steps[bool]:
    """Answer the messages of a conversation one by one, because each may be large. Returns True if more may remain."""
    catalog = Catalog()
    next_message = Receive(queue.name, conversation_handle=handle).of_one
    for _ in range(MAX_MESSAGES):
        received = yield from receive(catalog, queue, next_message, now=now)
        if not received.rows:
            return False
        labels = with_default_names(catalog.labels[queue.database_id])  # names of newer objects may be missing
        (message,) = name_rows(received.rows, labels)
        with suppress(BrokerError):  # the initiator has ended meanwhile
            if message.message_type_name == names.ECHO:
                body = OMITTED if message.message_body is None else message.message_body
                yield from send(catalog, Send(handle, names.ECHO, body), now=now)
            elif message.message_type_name == names.QUERY:
                yield from answer_query(catalog, queue.database_id, message, now)
            else:  # EndDialog or Error
                yield from end_conversation(EndConversation(handle), now=now)
                return False
    return True
