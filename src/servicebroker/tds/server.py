"""The server for SQL Server's clients: an event loop for their sockets, threads for their requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path

from servicebroker.api.instance import Instance
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.admission import Admission, SlotLimits
from servicebroker.tds.connection import SIGN_IN_TIMEOUT_S, ClientConnection
from servicebroker.tds.reporter import REPORT_INTERVAL_S, ReportedClient, ReportedServer, Reporter
from servicebroker.tds.request_memory import RequestMemory
from servicebroker.tds.sign_in import SignIn
from servicebroker.tds.sign_in_queue import SignInQueue
from servicebroker.tds.tls import TlsContexts

_log = logging.getLogger("servicebroker.tds")

DEFAULT_PORT = 1433
MAX_CONNECTIONS = 2_000
UNAUTHENTICATED = SlotLimits(
    in_all=1024, of_network=512
)  # connections before their login; a pool may open many at a time
_MAX_UNACCEPTED = 256
_STOP_TIMEOUT_S = 5.0  # the time for running requests to end
# a client whose machine vanished is noticed after about a minute
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class TdsServer:
    """Serves the clients of one instance.

    Attributes:
        loop: the event loop, in a thread of its own.
        contexts: the TLS settings.
        sign_in: lets clients in.
        sign_ins: the turns of sign-ins.
        reporter: tells status, doctor, metrics and views about the clients.
        memory: what the requests of all clients take.
        name: the name of the server, as in errors.
        is_stopping: True after `stop`.
    """

    def __init__(self, instance: Instance, contexts: TlsContexts) -> None:
        self.loop = asyncio.new_event_loop()
        self.contexts = contexts
        self.name = socket.gethostname()
        self.sign_in = SignIn(instance, self.name)
        self.is_stopping = False
        self._connections: set[ClientConnection] = set()
        self._unauthenticated: Admission[ClientConnection] = Admission(UNAUTHENTICATED)
        self.sign_ins: SignInQueue[ClientConnection] = SignInQueue(self.in_thread, self.in_loop)
        self.memory = RequestMemory()
        self.reporter = Reporter(instance)
        self._is_reporting = False
        self._workers = ThreadPoolExecutor(2 * MAX_CONNECTIONS, thread_name_prefix="servicebroker tds")
        self._thread = threading.Thread(target=self.loop.run_forever, name="servicebroker tds", daemon=True)

    def start(self, host: str, port: int) -> int:
        """Listen. Return the port.

        Raises:
            InstanceError: the address cannot be bound.
        """
        self._thread.start()
        try:
            listener = asyncio.run_coroutine_threadsafe(self._listen(host, port), self.loop).result()
        except OSError as problem:
            self._end_loop()
            raise InstanceError(
                f"Clients of SQL Server cannot be served at {host}:{port}: {problem.strerror or problem}."
            ) from None
        bound_port = int(listener.sockets[0].getsockname()[1])
        address = f"{host or '0.0.0.0'}:{bound_port}"
        self.reporter.server = ReportedServer(address, self.contexts.is_self_signed, MAX_CONNECTIONS)
        self.in_loop(self._report)
        return bound_port

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        self._listener = await self.loop.create_server(
            lambda: ClientConnection(self), host or None, port, backlog=_MAX_UNACCEPTED
        )
        return self._listener

    def stop(self) -> None:
        """Stop listening, cancel running requests, and close all sessions. Their transactions roll back."""
        self.is_stopping = True
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result()
        self._workers.shutdown(wait=True)
        self.sign_in.close()
        self._end_loop()
        self.reporter.close()

    async def _stop(self) -> None:
        self._listener.close()
        for connection in tuple(self._connections):
            connection.stop()
        end = self.loop.time() + _STOP_TIMEOUT_S
        while self._connections and self.loop.time() < end:
            await asyncio.sleep(0.01)
        for connection in tuple(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # until they have noticed

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _report(self) -> None:
        """Write the reports in a worker thread, and again after a while."""
        if self.is_stopping:
            return
        self.loop.call_later(REPORT_INTERVAL_S, self._report)
        if not self._is_reporting:
            self._is_reporting = True
            clients = {one.number: one.reported for one in self._connections if one.reported is not None}
            self.in_thread(lambda: self._write_report(clients))

    def _write_report(self, clients: Mapping[int, ReportedClient]) -> None:
        try:
            self.reporter.write(clients)
        finally:
            self._is_reporting = False

    # ------------------------------------------------------------ for connections

    @property
    def connection_count(self) -> int:
        """The number of clients that have signed in."""
        return len(self._connections) - len(self._unauthenticated)

    @property
    def is_full(self) -> bool:
        """True if no further client may sign in."""
        return self.connection_count >= MAX_CONNECTIONS

    def requires_encryption(self, address: str) -> bool:
        """Return False for clients of this machine, whose bytes leave it nowhere."""
        try:
            return not ip_address(address.partition("%")[0]).is_loopback
        except ValueError:
            return False

    def add(self, connection: ClientConnection, address: str) -> None:
        """Count a new connection. The oldest one without a login may lose its place."""
        self._connections.add(connection)
        transport = connection.transport
        if (own := transport.get_extra_info("socket")) is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                if hasattr(socket, option):
                    own.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        displaced = self._unauthenticated.expect(connection, address, self.loop.time() + SIGN_IN_TIMEOUT_S)
        if displaced is not None:
            displaced.abort()
        if self.is_stopping:
            connection.abort()

    def note_signed_in(self, connection: ClientConnection) -> None:
        """Note a login."""
        self._unauthenticated.leave(connection)

    def remove(self, connection: ClientConnection) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
        self._unauthenticated.leave(connection)
        self.sign_ins.leave(connection)

    def in_thread(self, work: Callable[[], object]) -> None:
        """Run work in a worker thread."""
        self._workers.submit(_logged, work)

    def in_loop(self, work: Callable[[], object]) -> None:
        """Run work in the event loop, from a worker thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(work)


def _logged(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        _log.exception("An end of a client's session failed.")


@contextlib.contextmanager
def serve_tds(
    instance: Instance, host: str, port: int, *, certificate: Path | None = None, key: Path | None = None
) -> Iterator[int]:
    """Serve SQL Server's clients at host and port during the block. Yield the port; port 0 chooses a free one.

    Raises:
        InstanceError: the address cannot be bound, or the certificate cannot be used.
    """
    server = TdsServer(instance, TlsContexts(certificate, key, socket.gethostname()))
    bound_port = server.start(host, port)
    try:
        yield bound_port
    finally:
        server.stop()
