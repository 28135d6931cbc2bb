"""The HTTP server of metrics and health. A request costs a thread, and mostly a connection: their number is limited.

A connection without a complete request holds one of a few places (protocol/admission.py); the oldest is dropped for a
new one. A complete request is answered while its network has fewer than its share of requests, and with 503 otherwise.
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
from servicebroker.model.wording import shown
from servicebroker.protocol.admission import Admission, Places, network_of

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

UNASKED = Places(in_all=16, of_network=8)  # connections without a complete request
REQUESTS = Places(in_all=16, of_network=4)  # answered at a time
READ_TIMEOUT_S = 10.0
HIGHEST_PORT = 65_535
HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]\s]*)):(?P<port>[0-9]{1,5})")

_log = logging.getLogger("servicebroker.broker")


@contextmanager
def served(application: WSGIApplication, host: str, port: int, *, subject: str = "The metrics") -> Iterator[int]:
    """Serve a WSGI application there as long as the block runs; yields the port, which is a free one for 0.

    `subject` begins the sentence of the error.

    Raises:
        InstanceError: nothing can listen there.
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
    """Return host and port of HOST:PORT; an empty host is every address of the machine.

    Raises:
        BrokerError: 402 no HOST:PORT.
    """
    found = HOST_AND_PORT.fullmatch(text)
    if found is None or int(found["port"]) > HIGHEST_PORT:
        raise BrokerError(402, option, shown(text), "HOST:PORT")
    return found["v6"] or found["host"], int(found["port"])


class _Handler(WSGIRequestHandler):
    """A request, which is not logged on standard error."""

    server: _Server
    timeout = READ_TIMEOUT_S

    def parse_request(self) -> bool:
        """Read the head of the request. Return whether it is answered now."""
        if not super().parse_request():
            return False
        if self.server.begin_request(self.connection):
            return True
        self.send_error(503, "Too many requests at once")
        return False

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.address_family = family
        self._unasked: Admission[socket.socket] = Admission(UNASKED)
        self._requests: dict[socket.socket, str] = {}  # with their networks
        self._lock = threading.Lock()
        super().__init__(address[:2], _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Read the request in a thread."""
        with self._lock:
            displaced = self._unasked.expect(request, client_address[0], float("inf"))
        if displaced is not None:
            with suppress(OSError):  # the connection is closed
                displaced.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def begin_request(self, request: socket.socket) -> bool:
        """Count a complete request. Return False if too many are answered now."""
        with suppress(OSError), self._lock:
            network = network_of(request.getpeername()[0])
            self._unasked.leave(request)
            of_networks = Counter(self._requests.values())
            if of_networks.total() < REQUESTS.in_all and of_networks[network] < REQUESTS.of_network:
                self._requests[request] = network
                return True
        return False

    def shutdown_request(self, request: Any) -> None:
        """Free the place of a finished request."""
        with self._lock:
            self._unasked.leave(request)
            self._requests.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request; mostly the other side has gone or is silent."""
        fields = {"event": "Metrics", "subclass": "Scrape", "peer": f"{client_address[0]}:"}
        _log.info("A scrape from %s has failed.", client_address[0], extra={"fields": fields})
