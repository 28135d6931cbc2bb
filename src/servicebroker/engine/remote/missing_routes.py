"""Asking the dynamic routing service for a missing route, or remote service binding.

The rules: docs/reference/rules.md#asking-for-routes.

A request is a conversation of the broker itself, one for each service that no route leads to, or that has no binding.
It is pending until the dynamic routing service ends it, see `route_answers.py`. Where the answer has brought none the
next request says so: FailedRoute, FailedRemoteServiceBinding.
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
from servicebroker.store.sql_verbs import DELIVERY_CHANNEL
from servicebroker.store.statements import Statement, Steps

ASK_AGAIN = timedelta(seconds=60)  # after an answer that brought no route


ROUTE, BINDING = "Route", "RemoteServiceBinding"  # what is missing, as the notices' names end


def ask(database_id: int, missing: Ask, now: datetime) -> Steps[None]:
    """Send MissingRoute, unless that was done; whoever does it at the same moment does it for us."""
    yield from _ask(database_id, ROUTE, missing, now)


def ask_for_binding(database_id: int, service: str, now: datetime) -> Steps[bool]:
    """Send MissingRemoteServiceBinding for the target of a secure conversation. Whether an answer is awaited."""
    rows = yield Statement(
        "missing_routes.ask_for_binding.find_routes",
        "select exists (select from servicebroker.routes where database_id = $1 and remote_service_name = $2 "
        "and (lifetime is null or lifetime > $3))",
        (database_id, DYNAMIC_ROUTING_SERVICE, now),
    )
    if not rows[0][0] or service == DYNAMIC_ROUTING_SERVICE:
        return False
    yield from _ask(database_id, BINDING, Ask(service, None), now)
    rows = yield Statement(
        "missing_routes.ask_for_binding.find_route_requests",
        "select from servicebroker.route_requests "
        "where database_id = $1 and about = $2 and service_name = $3 and answered is null",
        (database_id, BINDING, service),
    )
    return bool(rows)


def _ask(database_id: int, about: str, missing: Ask, now: datetime) -> Steps[None]:
    rows = yield Statement(
        "missing_routes.ask.lock",
        "select pg_try_advisory_xact_lock($1, hashtext($2)), exists (select from servicebroker.route_requests "
        "where database_id = $3 and about = $5 and service_name = $2 and (answered is null or answered > $4)), "
        "exists (select from servicebroker.route_requests "
        "where database_id = $3 and about = $5 and service_name = $2 and was_useless)",
        (locks.ROUTE_REQUEST, missing.service, database_id, now - ASK_AGAIN, about),
    )
    is_ours, is_asked, was_useless = rows[0]
    if not is_ours or is_asked:
        return
    asking = BeginDialog(
        names.SERVICE_BROKER, DYNAMIC_ROUTING_SERVICE, contract=names.CONFIGURATION_NOTICE, encryption=False
    )
    handle = yield from begin_dialog(database_id, asking, now=now)
    rows = yield Statement(
        "missing_routes.ask.insert_route_requests",
        "insert into servicebroker.route_requests as r (database_id, about, service_name, conversation_handle) "
        "values ($1, $5, $2, $3) on conflict (database_id, about, service_name) do update "
        "set conversation_handle = $3, answered = null where r.answered <= $4 returning 1",
        (database_id, missing.service, handle, now - ASK_AGAIN, about),
    )
    if not rows:  # committed by another one since we looked
        yield Statement(
            "missing_routes.ask.delete_last",
            "with gone as (delete from servicebroker.conversation_endpoints where conversation_handle = $1 "
            "returning conversation_group_id) "
            "delete from servicebroker.conversation_groups g using gone "
            "where g.conversation_group_id = gone.conversation_group_id",
            (handle,),
        )
        return
    endpoint = yield from find_endpoint(handle)
    name = ("Failed" if was_useless else "Missing") + about
    yield from park(endpoint, f"{names.CONFIGURATION_NOTICE}/{name}", [notice(name, missing)], "")
    yield Statement("missing_routes.ask.wake", "select pg_notify($1, '')", (DELIVERY_CHANNEL,))


def notice(name: str, missing: Ask) -> bytes:
    """The body of MissingRoute, and of its like."""
    service, broker = xml_text(missing.service), missing.broker_instance
    instance = f"<BROKER_INSTANCE>{xml_text(broker)}</BROKER_INSTANCE>" if broker else ""
    space = f"{names.CONFIGURATION_NOTICE}/{name}"
    return f'<{name} xmlns="{space}"><SERVICE_NAME>{service}</SERVICE_NAME>{instance}</{name}>'.encode()
