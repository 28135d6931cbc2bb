"""Clients of SQL Server: SEND, RECEIVE and sign-in through TDS, against the same in a T-SQL session in process.

The server runs in a process of its own, as `servicebroker serve` does. The client reads no value but checks that each
response ends without an error, so that the server is measured and not a driver.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.model.errors import InstanceError
from servicebroker.tds.packets import PacketType
from servicebroker.tds.server import serve_tds
from servicebroker.tsql.types import SqlType
from servicebroker_lab.benchmarks.measured_system import BATCH_MESSAGES, Implementation, System, batches, text_body
from servicebroker_lab.benchmarks.report import OURS
from servicebroker_lab.benchmarks.scenarios import BASELINE, IDLE_S, TDS_SENDERS
from servicebroker_lab.benchmarks.sender_process import SenderProcess, shares
from servicebroker_lab.tds_client import RawClient, batch_message, call, packets, parameter

if TYPE_CHECKING:
    from servicebroker.tsql.session import Session

DATABASE, PASSWORD = "Tds", "Bench 1"
_DEFINITIONS = """
CREATE MESSAGE TYPE [//bench/Body] VALIDATION = NONE
CREATE CONTRACT [//bench/Sending] ([//bench/Body] SENT BY INITIATOR)
CREATE QUEUE SendingQueue
CREATE QUEUE TakingQueue
CREATE QUEUE IdleQueue
CREATE SERVICE [//bench/Sender] ON QUEUE SendingQueue
CREATE SERVICE [//bench/Taker] ON QUEUE TakingQueue ([//bench/Sending])
GO
CREATE PROCEDURE dbo.SendBody @handle UNIQUEIDENTIFIER, @body VARBINARY(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SEND ON CONVERSATION @handle MESSAGE TYPE [//bench/Body] (@body)
END
"""
_RECEIVE = (
    f"WAITFOR (RECEIVE TOP ({BATCH_MESSAGES}) conversation_handle, message_type_name, message_body FROM TakingQueue), "
    "TIMEOUT 5000"
)
_IDLE = "WAITFOR (RECEIVE TOP (1) * FROM IdleQueue)"
_SETTLING_S = 2.0  # the time in which all receivers begin to wait
_HANDLE, _BODY = SqlType("uniqueidentifier"), SqlType("varbinary", -1)
_DONE_BYTES = 13


@contextmanager
def _serving(url: str) -> Iterator[Callable[[], int]]:
    """Serve an instance's clients, and yield a function that returns the port."""
    with Instance(url, upkeep=None) as instance, serve_tds(instance, "127.0.0.1", 0) as port:
        yield lambda: port


class TdsClients:
    """Clients that send and receive through TDS."""

    name = OURS

    def __init__(self, instance: Instance) -> None:
        self.version = version("servicebroker")
        self._instance = instance
        self._body = text_body().encode()
        self._server: SenderProcess | None = None
        self._port = 0
        self._receivers = ExitStack()
        self._database: Database
        self._handles: list[UUID] = []

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for each scenario of TDS."""
        rpc, waitfor, known = "EXEC by RPC", "WAITFOR (RECEIVE TOP (1000) ...)", "a password that was right before"
        senders = f"{TDS_SENDERS} clients"
        return {
            "tds-send": [Implementation(rpc, "one client", self._begin, partial(self._send_all, 1))],
            "tds-senders": [Implementation(rpc, senders, self._begin, partial(self._send_all, TDS_SENDERS))],
            "tds-receive": [Implementation(waitfor, "three columns", self._fill, self._receive)],
            "tds-connect": [Implementation("connect, with TLS", known, self._begin, self._connect)],
            "tds-idle": [Implementation(_IDLE, "a connection each", self._begin_waiting, self._wait)],
        }.get(scenario, [])

    def close(self) -> None:
        """End the receivers and the server."""
        self._receivers.close()
        if self._server is not None:
            self._server.close()

    def _begin(self, messages: int) -> None:
        if self._server is None:
            self._database = set_up(self._instance)
            self._handles = [begin(self._database) for _ in range(TDS_SENDERS)]
            self._server = SenderProcess(_serving, self._instance.url)
            self._server.during(lambda: None)
            self._port = self._server.answer
        drain(self._database)

    def _fill(self, messages: int) -> None:
        self._begin(messages)
        fill(self._database, self._handles[0], self._body, messages)

    def _client(self, *, encrypts: bool = False) -> RawClient:
        client = RawClient(self._port)
        if b"\xad" not in client.sign_in("sa", PASSWORD, DATABASE, encrypts=encrypts):
            raise InstanceError("A benchmark is broken: its login was refused.")
        return client

    def _send_all(self, clients: int, messages: int) -> int:
        with ThreadPoolExecutor(clients) as threads:
            return sum(threads.map(self._send, self._handles[:clients], shares(messages, clients)))

    def _send(self, handle: UUID, messages: int) -> int:
        values = parameter("", _HANDLE, handle), parameter("", _BODY, self._body)
        request = packets(PacketType.RPC, call("dbo.SendBody", *values))
        with self._client() as client:
            for _ in range(messages):
                _ask(client, request)
        return messages

    def _receive(self, messages: int) -> int:
        request = packets(PacketType.SQL_BATCH, batch_message(_RECEIVE))
        received = 0
        with self._client() as client:
            while received < messages:
                response = _ask(client, request)
                received += struct.unpack("<Q", response[-8:])[0]
        return received

    def _connect(self, messages: int) -> int:
        for _ in range(messages):
            with self._client(encrypts=True):
                pass
        return messages

    def _begin_waiting(self, messages: int) -> None:
        """Let receivers begin to wait. A message of the scenario is a receiver."""
        self._begin(messages)
        self._receivers.close()
        request = packets(PacketType.SQL_BATCH, batch_message(_IDLE))
        for _ in range(messages):
            self._receivers.enter_context(self._client()).write(request)
        time.sleep(_SETTLING_S)

    def _wait(self, messages: int) -> int:
        time.sleep(IDLE_S)
        return messages


class SessionInProcess:
    """The same statements in a T-SQL session of this process."""

    name = BASELINE

    def __init__(self, instance: Instance) -> None:
        self.version = version("servicebroker")
        self._instance = instance
        self._body = text_body().encode()
        self._database: Database
        self._handles: list[UUID] = []

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for each of the compared scenarios, none for others."""
        return {
            "tds-send": [Implementation("the same EXEC in process", "", self._begin, self._send)],
            "tds-receive": [Implementation("the same statement in process", "", self._fill, self._receive)],
        }.get(scenario, [])

    def close(self) -> None:
        """Close nothing: the instance belongs to who opened it."""

    def _begin(self, messages: int) -> None:
        self._database = set_up(self._instance)
        self._handles = self._handles or [begin(self._database)]
        drain(self._database)

    def _fill(self, messages: int) -> None:
        self._begin(messages)
        fill(self._database, self._handles[0], self._body, messages)

    def _send(self, messages: int) -> int:
        parameters = {"handle": self._handles[0], "body": self._body}
        with self._session() as session:
            for _ in range(messages):
                session.execute("EXEC dbo.SendBody @handle, @body", parameters)
        return messages

    def _receive(self, messages: int) -> int:
        received = 0
        with self._session() as session:
            while received < messages:
                received += len(session.execute(_RECEIVE).rows)
        return received

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with self._database.tsql_session() as session:
            yield session


def set_up(instance: Instance) -> Database:
    """Return the database of these benchmarks. Make it and its objects at the first call."""
    try:
        return instance.database(DATABASE)
    except Exception:
        database = instance.database(DATABASE, create=True)
        database.execute_tsql(_DEFINITIONS)
        instance.database("master", create=True).execute_tsql(f"ALTER LOGIN sa WITH PASSWORD = '{PASSWORD}'")
        return database


def begin(database: Database) -> UUID:
    """Begin a conversation to send on."""
    return database.begin_dialog("//bench/Sender", "//bench/Taker", contract="//bench/Sending", encryption=False)


def drain(database: Database) -> None:
    """Empty the queue."""
    while database.receive("TakingQueue"):
        pass


def fill(database: Database, handle: UUID, body: bytes, messages: int) -> None:
    """Put messages into the queue."""
    for size in batches(messages):
        database.send_batch(handle, "//bench/Body", [body] * size)


def _ask(client: RawClient, request: bytes) -> bytes:
    """Send a request, and return its response.

    Raises:
        InstanceError: the response has an error, or the connection was closed.
    """
    client.write(request)
    response = client.read()
    if len(response) < _DONE_BYTES or int.from_bytes(response[1 - _DONE_BYTES : 3 - _DONE_BYTES], "little") & 2:
        raise InstanceError("A benchmark is broken: its request has failed.")
    return response


def tds_systems(instance: Instance) -> list[System]:
    """Ours, and the baseline."""
    return [TdsClients(instance), SessionInProcess(instance)]
