"""The HTTP server of metrics and health probes.

A request costs a thread, and often a connection to PostgreSQL, so both kinds of clients are limited. A connection
without a complete request takes one of a few slots (protocol/admission.py); if all are taken, the oldest such
connection is closed. A complete request is refused with 503 if too many are in progress, in all or from its network.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.wording import short_repr
from servicebroker.overriding import override
from servicebroker.protocol.admission import Admission, SlotLimits, network_of

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

UNFINISHED = SlotLimits(in_all=16, of_network=8)  # connections without a complete request
REQUESTS = SlotLimits(in_all=16, of_network=4)  # requests in progress
READ_TIMEOUT_S = 10.0  # the time for a client to send its request
HIGHEST_PORT = 65_535
HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]\s]*)):(?P<port>[0-9]{1,5})")

_log = logging.getLogger("servicebroker.broker")


@contextmanager
def serve_wsgi(application: WSGIApplication, host: str, port: int, *, subject: str = "The metrics") -> Iterator[int]:
    """Serve a WSGI application at host and port during the block. Yield the port; port 0 chooses a free one.

    `subject` names the application in the error.

    Raises:
        InstanceError: the address cannot be bound.
    """
    address_of_host = host or "0.0.0.0"
    try:
        family, _, _, _, address = socket.getaddrinfo(address_of_host, port, type=socket.SOCK_STREAM)[0]
        server = _Server(family, address)
    except OSError as problem:
        raise InstanceError(f"{subject} cannot be served at {host}:{port}: {problem.strerror or problem}.") from None
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, name="servicebroker http", daemon=True)
    thread.start()
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT. An empty host means all interfaces. `option` names the option in the error.

    Raises:
        BrokerError: 402 `text` is not HOST:PORT.
    """
    match = HOST_AND_PORT.fullmatch(text)
    if match is None or int(match["port"]) > HIGHEST_PORT:
        raise BrokerError(402, option, short_repr(text), "HOST:PORT")
    return match["v6"] or match["host"], int(match["port"])


class _Handler(WSGIRequestHandler):
    """The handler of one request. It does not log the request on standard error."""

    server: _Server
    timeout = READ_TIMEOUT_S

    @override
    def parse_request(self) -> bool:
        """Read the head of the request. Return False if the request was refused or is malformed."""
        if not super().parse_request():
            return False
        if self.server.begin_request(self.connection):
            return True
        self.send_error(503, "Too many requests at once")
        return False

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Do not log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.address_family = family
        self._unfinished: Admission[socket.socket] = Admission(UNFINISHED)
        self._requests: dict[socket.socket, str] = {}  # the network of each request in progress
        self._lock = threading.Lock()
        super().__init__(address[:2], _Handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        """Read and answer the request in a thread."""
        with self._lock:
            displaced = self._unfinished.expect(request, client_address[0], float("inf"))
        if displaced is not None:
            with suppress(OSError):  # the connection was closed already
                displaced.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def begin_request(self, request: socket.socket) -> bool:
        """Count a complete request as in progress. Return False if too many are."""
        with suppress(OSError), self._lock:
            network = network_of(request.getpeername()[0])
            self._unfinished.leave(request)
            counts = Counter(self._requests.values())
            if counts.total() < REQUESTS.in_all and counts[network] < REQUESTS.of_network:
                self._requests[request] = network
                return True
        return False

    @override
    def shutdown_request(self, request: Any) -> None:
        """Free the slot of a finished request."""
        with self._lock:
            self._unfinished.leave(request)
            self._requests.pop(request, None)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request; usually the client has closed the connection or sends nothing."""
        fields = {"event": "Metrics", "subclass": "Scrape", "peer": f"{client_address[0]}:"}
        _log.info("A scrape from %s has failed.", client_address[0], extra={"fields": fields})
