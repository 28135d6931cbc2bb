"""The rows of sys.dm_broker_connections, which exist while the daemon runs, and the stored counts of refusals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from servicebroker.store.running import execute


class Observed(NamedTuple):
    """One connection, by the columns of servicebroker.broker_connections. Times are UTC."""

    connection_id: UUID
    state: int  # 1 NEW, 2 CONNECTING, 3 CONNECTED, 4 LOGGED_IN, 5 CLOSED
    connect_time: datetime
    login_time: datetime | None
    principal_name: str | None
    peer_certificate_id: int | None
    remote_address: str
    last_activity_time: datetime
    is_accept: bool
    login_state: int
    is_encrypted: bool
    authentication: str | None
    is_receive_flow_controlled: bool
    is_send_flow_controlled: bool
    total_bytes_sent: int
    total_bytes_received: int
    total_fragments_sent: int
    total_fragments_received: int
    total_sends: int
    total_receives: int
    peer_arbitration_id: UUID | None


class ConnectionRefusals(NamedTuple):
    """The refusals of peers for one reason: how often, and the latest peer."""

    times: int
    last_peer: str


def write(connection: psycopg.Connection[Any], connections: Sequence[Observed]) -> None:
    """Write the rows of the present connections."""
    show(connection, "broker_connections", Observed._fields, connections)


def count(connection: psycopg.Connection[Any], refused: Mapping[int, ConnectionRefusals], now: datetime) -> None:
    """Add these refusals to the stored counts."""
    execute(
        connection,
        "connections.count",
        "insert into servicebroker.refused_connections as r (number, refused, last_time, last_peer) "
        "select number, refused, $4, peer from unnest($1::int[], $2::bigint[], $3::text[]) n (number, refused, peer) "
        "on conflict (number) do update set refused = r.refused + excluded.refused, last_time = excluded.last_time, "
        "last_peer = excluded.last_peer",
        list(refused),
        [counted.times for counted in refused.values()],
        [counted.last_peer for counted in refused.values()],
        now,
    )


def show(
    connection: psycopg.Connection[Any], table: str, columns: Sequence[str], rows: Iterable[Iterable[object]]
) -> None:
    """Replace the rows of an unlogged table, with the pid of the session. The commit waits for no disk."""
    documents = [
        {name: value if isinstance(value, int | None) else str(value) for name, value in zip(columns, row, strict=True)}
        for row in rows
    ]
    with connection.transaction():
        execute(connection, "connections.show.clear", f"delete from servicebroker.{table}")
        if documents:
            execute(
                connection,
                "connections.show.fill",
                f"insert into servicebroker.{table} (pid, {', '.join(columns)}) "
                f"select pg_backend_pid(), {', '.join(columns)} "
                f"from jsonb_populate_recordset(null::servicebroker.{table}, $1)",
                Jsonb(documents),
            )
