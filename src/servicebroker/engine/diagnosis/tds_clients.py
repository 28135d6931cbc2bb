"""SQL Server's clients, as the processes that serve them report: servers, connections, refusals."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class TdsServerStatus(NamedTuple):
    """A process that serves SQL Server's clients.

    Attributes:
        address: where it listens.
        has_own_certificate: True if it has made its certificate itself.
        clients: the clients that have signed in.
        sessions: those of them with a session of PostgreSQL; the others are idle.
        max_clients: the most that it lets in.
    """

    address: str
    has_own_certificate: bool
    clients: int
    sessions: int
    max_clients: int
    since: datetime


class TdsClientStatus(NamedTuple):
    """A client that has signed in. `backend`: its session of PostgreSQL, None while it is idle without one."""

    login: str
    program: str
    host: str
    address: str
    database: str
    is_encrypted: bool
    backend: int | None
    since: datetime


class TdsRefusalCount(NamedTuple):
    """Clients that were refused for one kind of reason: their number, and the last one."""

    kind: str
    times: int
    last_time: datetime
    last_address: str
    last_login: str
    last_text: str


def tds_servers() -> Steps[list[TdsServerStatus]]:
    """Return the processes that serve SQL Server's clients."""
    rows = yield SQL("tds_servers")
    return [TdsServerStatus(*row) for row in rows]


def connected_clients(most: int) -> Steps[list[TdsClientStatus]]:
    """Return the clients that are connected, those with a session first, at most `most`."""
    rows = yield SQL("connected_clients", (most,))
    return [TdsClientStatus(*row) for row in rows]


def tds_refusals() -> Steps[list[TdsRefusalCount]]:
    """Return the refusals of clients by kind, since their server started."""
    rows = yield SQL("tds_refusals")
    return [TdsRefusalCount(*row) for row in rows]
