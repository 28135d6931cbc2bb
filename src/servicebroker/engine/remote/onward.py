"""Where a message goes that no endpoint of this instance is for, and that does not begin one here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.remote.missing_routes import ask
from servicebroker.engine.remote.site import Here, find_site, picking
from servicebroker.protocol.envelope import Header
from servicebroker.protocol.routing import Ask, Conversation, Decision, RoutingTable, classify
from servicebroker.store.statements import Steps


def route_arrivals(catalog: Catalog, headers: Sequence[Header], here: Here, now: datetime) -> Steps[list[Decision]]:
    """What the routes of msdb say of each of these messages from outside.

    Chance is the conversation's identifier: all of its messages take the same way.
    """
    located = yield from find_site(list({header.to_service for header in headers}), now, here)
    outside = yield from located.routes(catalog, located.msdb)
    site = located.site_of(located.msdb)
    decisions = []
    for header in headers:
        broker = None if header.to_broker is None else str(header.to_broker)
        conversation = Conversation(header.to_service, broker, None, not header.is_from_initiator)
        chance = header.conversation_id.int % 2**53 / 2**53
        decision = classify(conversation, RoutingTable(()), outside, site, now, picking(chance))
        if isinstance(decision.destination, Ask) and located.msdb is not None:
            yield from ask(located.msdb.database_id, decision.destination, now)
        decisions.append(decision)
    return decisions
