"""Which databases were found to be old copies, since the two sides of conversations disagree; doctor tells it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.model.wording import cleaned
from servicebroker.protocol.envelope import BrokerFailure
from servicebroker.store.statements import Statement


def note(
    endpoint: RemoteEndpoint, far_broker: UUID | None, own: BrokerFailure, now: datetime, *, is_here: bool
) -> Statement:
    """Its conversation has ended with the Error `own`, since the database of one side was restored."""
    return Statement(
        "old_copies.note",
        "insert into servicebroker.old_copies as o values ($1, $2, $3, $4, 1, $5, $6) "
        "on conflict (own_broker, far_broker, is_here) do update set times = o.times + 1, "
        "far_service = excluded.far_service, last_time = excluded.last_time, last_detail = excluded.last_detail",
        (
            endpoint.own_broker,
            "" if far_broker is None else str(far_broker),
            is_here,
            endpoint.far_service,
            now,
            cleaned(own.description),  # a peer may have made it
        ),
    )
