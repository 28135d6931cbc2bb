"""Old copies: databases that were restored, recognized because the two sides of a conversation disagree. For doctor."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.model.wording import cleaned
from servicebroker.protocol.envelope import BrokerFailure
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement

SQL = SqlFile(__file__)


def note(
    endpoint: RemoteEndpoint, peer_broker: UUID | None, own: BrokerFailure, now: datetime, *, is_here: bool
) -> Statement:
    """Record a conversation that ended with the Error `own` because the database of one side was restored.

    `is_here`: this instance has the restored database.
    """
    return SQL(
        "note",
        (
            endpoint.own_broker,
            "" if peer_broker is None else str(peer_broker),
            is_here,
            endpoint.far_service,
            now,
            cleaned(own.description),  # may come from the peer
        ),
    )
