"""The contract ServiceDiagnostic: a sender queries the state of a service to which it may send.

The rules: docs/reference/rules.md#built-in-objects. Names and directions of the three message types are those of SQL
Server; the form of their bodies is this product's.
"""

from __future__ import annotations

from datetime import datetime

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation.end import end_conversation
from servicebroker.engine.conversation.endpoints import Endpoint, find_endpoint
from servicebroker.engine.conversation.send import send
from servicebroker.engine.remote.admission import find_target, refused_sender
from servicebroker.engine.security.authorization import refused_arrival
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message
from servicebroker.model.security.permissions import PUBLIC_ID
from servicebroker.model.service_diagnostic import ServiceState, asked_service, description_body, status_body
from servicebroker.operations.end import EndConversation
from servicebroker.operations.send import Send
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


def answer_query(catalog: Catalog, database_id: int, query: Message, now: datetime) -> Steps[None]:
    """Answer with a Status, and a Description if the initiator may send to the service.

    A malformed Query ends the dialog with an error.

    Raises:
        BrokerError: the conversation does not exist any more, or the initiator has ended it.
    """
    handle = query.conversation_handle
    endpoint = yield from find_endpoint(handle)
    try:
        service = asked_service(query.message_body or b"")
    except ValueError as problem:
        where = (endpoint.conversation_id, 1, query.message_sequence_number)
        error = BrokerError(9615, names.QUERY, problem, *where)
        yield from end_conversation(EndConversation(handle, error=(error.number, error.text)), now=now)
        return
    rows = yield SQL("answer_query", (database_id, service))
    ((broker, service_id, is_enabled, contracts),) = rows
    is_known = service_id is not None and (yield from _may_send(endpoint, service_id))
    state = ServiceState.UNKNOWN if not is_known else ServiceState.READY if is_enabled else ServiceState.DISABLED
    yield from send(catalog, Send(handle, names.STATUS, status_body(service, broker, state)), now=now)
    if is_known:
        yield from send(catalog, Send(handle, names.DESCRIPTION, description_body(service, contracts)), now=now)


def _may_send(endpoint: Endpoint, service_id: int) -> Steps[bool]:
    """Check whether this endpoint's initiator could begin a conversation with the service."""
    if endpoint.peer_handle is not None:
        initiator = yield from find_endpoint(endpoint.peer_handle)
        return (yield from refused_arrival(initiator, service_id)) is None
    rows = yield SQL("may_send", (endpoint.conversation_handle,))
    principal_id = rows[0][0] if rows else PUBLIC_ID  # 0, which is public, for an unauthenticated initiator
    target = yield from find_target(endpoint.database_id, service_id)
    return (yield from refused_sender(target, principal_id)) is None
