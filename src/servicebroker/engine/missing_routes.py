"""Asking the dynamic routing service for a route that is missing (reference 03 section 3).

A request is a conversation of the broker itself, one for each service that no route leads to. It is pending until the
dynamic routing service ends it, see `route_answers.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from servicebroker.engine.begin import begin_dialog
from servicebroker.engine.endpoints import find_endpoint
from servicebroker.engine.parking import park
from servicebroker.model import names
from servicebroker.model.messages import xml_text
from servicebroker.protocol.routing import DYNAMIC_ROUTING_SERVICE, Ask
from servicebroker.store import locks
from servicebroker.store.statements import Statement, Steps
from servicebroker.store.verbs import DELIVERY_CHANNEL

ASK_AGAIN = timedelta(seconds=60)  # after an answer that brought no route


def ask(database_id: int, missing: Ask, now: datetime) -> Steps[None]:
    """Send MissingRoute, unless that was done; whoever does it at the same moment does it for us."""
    rows = yield Statement(
        "select pg_try_advisory_xact_lock($1, hashtext($2)), exists (select from servicebroker.route_requests "
        "where database_id = $3 and service_name = $2 and (answered is null or answered > $4))",
        (locks.ROUTE_REQUEST, missing.service, database_id, now - ASK_AGAIN),
    )
    is_ours, is_asked = rows[0]
    if not is_ours or is_asked:
        return
    handle = yield from begin_dialog(
        database_id,
        names.SERVICE_BROKER,
        DYNAMIC_ROUTING_SERVICE,
        contract=names.CONFIGURATION_NOTICE,
        encryption=False,
        now=now,
    )
    rows = yield Statement(
        "insert into servicebroker.route_requests as r (database_id, service_name, conversation_handle) "
        "values ($1, $2, $3) on conflict (database_id, service_name) do update "
        "set conversation_handle = $3, answered = null where r.answered <= $4 returning 1",
        (database_id, missing.service, handle, now - ASK_AGAIN),
    )
    if not rows:  # committed by another one since we looked
        yield Statement(
            "with gone as (delete from servicebroker.conversation_endpoints where conversation_handle = $1 "
            "returning conversation_group_id) "
            "delete from servicebroker.conversation_groups g using gone "
            "where g.conversation_group_id = gone.conversation_group_id",
            (handle,),
        )
        return
    endpoint = yield from find_endpoint(handle)
    yield from park(endpoint, names.MISSING_ROUTE, [missing_route(missing)], "")
    yield Statement("select pg_notify($1, '')", (DELIVERY_CHANNEL,))


def missing_route(missing: Ask) -> bytes:
    """The body of MissingRoute."""
    service, broker = xml_text(missing.service), missing.broker_instance
    instance = f"<BROKER_INSTANCE>{xml_text(broker)}</BROKER_INSTANCE>" if broker else ""
    return (
        f'<MissingRoute xmlns="{names.MISSING_ROUTE}"><SERVICE_NAME>{service}</SERVICE_NAME>{instance}</MissingRoute>'
    ).encode()
