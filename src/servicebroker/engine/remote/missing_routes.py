"""Requests to the dynamic routing service for a missing route or a missing remote service binding.

The rules: docs/reference/rules.md#dynamic-routing.

A request is a conversation that the broker begins: one for each service without a route or binding. It is pending until
the dynamic routing service ends the conversation (`route_answers.py`). If no route or binding exists then, the next
request has the message type FailedRoute or FailedRemoteServiceBinding instead of MissingRoute or
MissingRemoteServiceBinding.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from servicebroker.engine.conversation.begin import begin_dialog
from servicebroker.engine.conversation.endpoints import find_endpoint
from servicebroker.engine.delivery.parking import park
from servicebroker.model import names
from servicebroker.model.messages import xml_text
from servicebroker.operations.begin import BeginDialog
from servicebroker.protocol.routing import DYNAMIC_ROUTING_SERVICE, Ask
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import DELIVERY_CHANNEL
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


# The age of an answer from which the next request is MissingRoute again, not FailedRoute
ANSWER_RETENTION = timedelta(days=1)
ROUTE_REQUEST_RETRY = timedelta(seconds=60)  # the delay before the next request if an answer created no route


ROUTE, BINDING = "Route", "RemoteServiceBinding"  # the missing object, as in the names of the notices


def ask(database_id: int, missing: Ask, now: datetime) -> Steps[None]:
    """Request a route, unless a request is already pending or another session is sending it."""
    yield from _ask(database_id, ROUTE, missing, now)


def ask_for_binding(database_id: int, service: str, now: datetime) -> Steps[bool]:
    """Request a remote service binding for the target of a secure conversation. Returns True if it is pending."""
    rows = yield SQL("ask_for_binding.find_routes", (database_id, DYNAMIC_ROUTING_SERVICE, now))
    if not rows[0][0] or service == DYNAMIC_ROUTING_SERVICE:
        return False
    yield from _ask(database_id, BINDING, Ask(service, None), now)
    rows = yield SQL("ask_for_binding.find_route_requests", (database_id, BINDING, service))
    return bool(rows)


def _ask(database_id: int, about: str, missing: Ask, now: datetime) -> Steps[None]:
    """Begin the conversation of a request, and park its message. `about`: ROUTE or BINDING."""
    rows = yield SQL("ask.lock", (locks.ROUTE_REQUEST, missing.service, database_id, now - ROUTE_REQUEST_RETRY, about))
    is_ours, is_asked, was_useless = rows[0]
    if not is_ours or is_asked:
        return
    asking = BeginDialog(
        names.SERVICE_BROKER, DYNAMIC_ROUTING_SERVICE, contract=names.CONFIGURATION_NOTICE, encryption=False
    )
    handle = yield from begin_dialog(database_id, asking, now=now)
    rows = yield SQL(
        "ask.insert_route_requests", (database_id, missing.service, handle, now - ROUTE_REQUEST_RETRY, about)
    )
    if not rows:  # another session committed a request meanwhile
        yield SQL("ask.delete_last", (handle,))
        return
    endpoint = yield from find_endpoint(handle)
    name = ("Failed" if was_useless else "Missing") + about
    yield from park(endpoint, f"{names.CONFIGURATION_NOTICE}/{name}", [notice(name, missing)], "")
    yield SQL("ask.wake", (DELIVERY_CHANNEL,))


def forget_answered_requests(now: datetime) -> Steps[int]:
    """Delete answered requests older than `ANSWER_RETENTION`. Returns their number."""
    rows = yield SQL("forget_answered_requests", (now - ANSWER_RETENTION,))
    return int(rows[0][0])


def notice(name: str, missing: Ask) -> bytes:
    """Return the body of a request: MissingRoute, FailedRoute and the two for bindings."""
    service, broker = xml_text(missing.service), missing.broker_instance
    instance = f"<BROKER_INSTANCE>{xml_text(broker)}</BROKER_INSTANCE>" if broker else ""
    space = f"{names.CONFIGURATION_NOTICE}/{name}"
    return f'<{name} xmlns="{space}"><SERVICE_NAME>{service}</SERVICE_NAME>{instance}</{name}>'.encode()
