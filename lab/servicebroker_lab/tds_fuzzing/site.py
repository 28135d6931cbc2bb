"""A server for TDS in this process, with an honest client, and what is left of the sessions of others."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import servicebroker as sb
from servicebroker.store.running import execute
from servicebroker.tds.server import TdsServer
from servicebroker.tds.sign_in import FailedAttempts
from servicebroker.tds.tls import TlsContexts
from servicebroker.tsql import login_passwords
from servicebroker_lab.error_log import ErrorLog
from servicebroker_lab.tds_client import RawClient, parse_response

DATABASE, SERVICE, QUEUE, CONTRACT, PASSWORD = "Fuzzed", "//fuzz/Service", "FuzzQueue", "//fuzz/Contract", "Secret 1"
SETTLING_TIMEOUT_S = 20.0
MAX_GROWTH_BYTES = 300 * 2**20
_CHEAP_COST = 2  # the cost of hashing sa's password: low, so that a sign-in does not take 40 ms
_SETTLED_RUNS = 100  # cases until the caches of the process are warm

_DEFINITIONS = f"""
CREATE CONTRACT [{CONTRACT}] ([DEFAULT] SENT BY ANY)
CREATE QUEUE {QUEUE}
CREATE SERVICE [{SERVICE}] ON QUEUE {QUEUE} ([{CONTRACT}])
CREATE TABLE Kept (id int PRIMARY KEY, text nvarchar(100))
GO
CREATE PROCEDURE Twice @n int OUTPUT, @text nvarchar(max) = N'default' AS
BEGIN
    SET @n = 2 * @n
    SELECT @n AS n, @text AS text
    RETURN 7
END
"""


class Site:
    """The server of an instance, served in this process.

    Attributes:
        port: its port.
        log: the log of this process.
    """

    def __init__(self, instance: sb.Instance) -> None:
        self._instance = instance
        self._server = TdsServer(instance, TlsContexts(None, None, "localhost"))
        self._honest: RawClient
        self._cases = 0
        self._first_bytes = 0
        self.port = 0
        self.log = ErrorLog()

    def __enter__(self) -> Self:
        self._instance.database(DATABASE, create=True).execute_tsql(_DEFINITIONS)
        cost, login_passwords._COST_N = login_passwords._COST_N, _CHEAP_COST
        try:
            self._instance.database("master", create=True).execute_tsql(f"ALTER LOGIN sa WITH PASSWORD = '{PASSWORD}'")
        finally:
            login_passwords._COST_N = cost
        logging.getLogger().addHandler(self.log)
        self.port = self._server.start("127.0.0.1", 0)
        self._honest = RawClient(self.port)
        self._honest.sign_in("sa", PASSWORD, DATABASE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        self._honest.socket.close()
        self._server.stop()
        logging.getLogger().removeHandler(self.log)

    def ask_honestly(self, number: int) -> bool:
        """Return True if the honest client gets its answer."""
        return parse_response(self._honest.batch(f"SELECT {number}")).rows == [(number,)]

    def settle(self) -> str:
        """Wait until nobody but the honest client is left. Return what stays, "" for nothing."""
        self._server.sign_in._attempts = FailedAttempts()
        end = time.monotonic() + SETTLING_TIMEOUT_S
        while left := self._left():
            if time.monotonic() > end:
                return left
            time.sleep(0.002)
        return ""

    def _left(self) -> str:
        if (connections := len(self._server._connections)) != 1:
            return f"{connections - 1} connections stay"
        with self._instance.connection() as connection:
            ((sessions,),) = execute(
                connection,
                "tds_fuzzing.sessions",
                "select count(*) from pg_stat_activity "
                "where datname = current_database() and application_name like 'servicebroker tds%'",
            )
        return f"{sessions - 1} sessions of PostgreSQL stay" if sessions > 1 else ""

    def growth_bytes(self) -> int:
        """Return by how much the process has grown since its caches were warm."""
        self._cases += 1
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if self._cases <= _SETTLED_RUNS:
            self._first_bytes = resident
        return resident - self._first_bytes
