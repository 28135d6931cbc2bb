"""Reports about the server for status, doctor, metrics and views: its address, its clients, the refused ones.

A session of PostgreSQL of its own carries them: its pid names the rows. What has changed is written once a second.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import psycopg

from servicebroker.api.instance import Instance
from servicebroker.model.errors import InstanceError
from servicebroker.model.security.client_refusals import ClientRefusal
from servicebroker.model.wording import cleaned
from servicebroker.store.connection import connect
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import run
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)
_log = logging.getLogger("servicebroker.tds")

REPORT_INTERVAL_S = 1.0
_APPLICATION = "servicebroker clients"


class ReportedServer(NamedTuple):
    """A server, as in servicebroker.tds_servers."""

    address: str
    has_own_certificate: bool
    max_clients: int


class ReportedClient(NamedTuple):
    """A client that has signed in, as in servicebroker.tds_clients."""

    login: str
    host: str
    program: str
    library: str
    address: str
    is_encrypted: bool
    database: str
    backend: int | None


class _Refused(NamedTuple):
    times: int
    last_time: datetime
    address: str
    login: str
    text: str


class Reporter:
    """Writes the reports of one server. `write` is called by one thread at a time, `note_refusal` by any.

    Attributes:
        server: the server, once it listens.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.server = ReportedServer("", has_own_certificate=True, max_clients=0)
        self._connection: DirectConnection | None = None
        self._clients: Mapping[int, ReportedClient] = {}  # as they are written
        self._refused: dict[ClientRefusal, _Refused] = {}
        self._written_refused: dict[ClientRefusal, _Refused] = {}
        self._lock = threading.Lock()

    def note_refusal(self, kind: ClientRefusal, address: str, login: str = "", text: str = "") -> None:
        """Count a client that was refused."""
        with self._lock:
            before = self._refused.get(kind)
            now = self._instance.clock()
            times = 1 if before is None else before.times + 1
            self._refused[kind] = _Refused(times, now, address, cleaned(login), cleaned(text))

    def write(self, clients: Mapping[int, ReportedClient]) -> None:
        """Write what has changed. While PostgreSQL does not answer, do nothing."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._instance.url, application_name=_APPLICATION)
                self._clients, self._written_refused = {}, {}
                run(self._connection, _begin(self.server))
            with self._lock:
                refused = dict(self._refused)
            changed = {number: one for number, one in clients.items() if self._clients.get(number) != one}
            gone = [number for number in self._clients if number not in clients]
            news = {kind: one for kind, one in refused.items() if self._written_refused.get(kind) != one}
            run(self._connection, _save(changed, gone, news))
            self._clients, self._written_refused = dict(clients), refused
        except (psycopg.Error, InstanceError) as problem:
            _log.debug("The clients cannot be reported: %s", problem)
            self.close()

    def close(self) -> None:
        """End the session. The rows then no longer count."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def _begin(server: ReportedServer) -> Steps[None]:
    yield SQL("begin.delete_servers")
    yield SQL("begin.delete_clients")
    yield SQL("begin.delete_refusals")
    yield SQL("begin.insert_server", tuple(server))


def _save(
    changed: Mapping[int, ReportedClient], gone: list[int], refused: Mapping[ClientRefusal, _Refused]
) -> Steps[None]:
    if gone:
        yield SQL("save.delete_clients", (gone,))
    if changed:
        columns = zip(*changed.values(), strict=True)
        yield SQL("save.upsert_clients", (list(changed), *map(list, columns)))
    if refused:
        columns = zip(*refused.values(), strict=True)
        yield SQL("save.upsert_refusals", ([str(kind) for kind in refused], *map(list, columns)))
