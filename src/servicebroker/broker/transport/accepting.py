"""Accept connections, with limits for unauthenticated peers: a part of the file descriptors, a deadline for each step.

The server of asyncio is not used. It accepts every connection, and logs a hundred lines with each attempt when
descriptors run out. With TLS, it gives a silent client a minute before our code learns of the connection.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from servicebroker.protocol.admission import Admission, SlotLimits

MAX_UNPROVEN = 1_024  # unauthenticated connections of a daemon
RESERVED_DESCRIPTORS = 64  # kept for files, databases and outgoing links
LISTEN_BACKLOG = 1_024  # connections that the kernel queues until they are accepted
ACCEPTED_AT_ONCE = 8  # connections per callback, so that the loop can authenticate earlier ones in between
SWEEP_INTERVAL_S = 0.25  # seconds between two checks of the deadlines
SHORTAGE_PAUSE_S = 0.25  # seconds without accepting after a shortage of descriptors

_NO_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # the machine has no IPv6
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger("servicebroker.broker")


class EndReason(enum.Enum):
    """The reason why an unauthenticated connection is ended."""

    LATE = "it was too slow"
    DISPLACED = "too many connections have proved nothing"


class Visitor:
    """An accepted connection. Its protocol reports its progress, and sets `end`, the callback that ends it."""

    def __init__(self, acceptor: Acceptor, host: str) -> None:
        self.host = host
        self.end: Callable[[EndReason], None] = lambda why: self.cancel()
        self.connecting: asyncio.Task[object] | None = None
        self.is_ended = False  # the connection is being ended, and takes no place again
        self._acceptor = acceptor

    def expect(self, seconds: float) -> None:
        """Give the peer this time for its next step of authentication."""
        self._acceptor.expect(self, seconds)

    def prove(self) -> None:
        """Record that the peer is authenticated: it keeps its descriptor, and has no deadline."""
        self._acceptor.prove(self)

    def leave(self) -> None:
        """Forget a closed connection."""
        self._acceptor.forget(self)

    def cancel(self) -> None:
        """End the connection while it has no protocol yet."""
        if self.connecting is not None:
            self.connecting.cancel()


class Terms(NamedTuple):
    """The limits of accepted connections.

    Attributes:
        places: the numbers of unauthenticated connections.
        first_step: seconds until the protocol gets the connection: with TLS, for the handshake.
        max_connections: authenticated ones included; None if only descriptors limit them.
    """

    places: SlotLimits
    first_step: float
    max_connections: int | None = None


class Acceptor:
    """Accepts connections of listening sockets, in the running event loop."""

    def __init__(
        self, make_protocol: Callable[[Visitor], asyncio.Protocol], terms: Terms, tls: ssl.SSLContext | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_protocol, self._terms, self._tls = make_protocol, terms, tls
        self._admission: Admission[Visitor] = Admission(terms.places)
        self._visitors: set[Visitor] = set()
        self._listening: list[socket.socket] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sweep()

    @property
    def port(self) -> int:
        """The listening port."""
        return int(self._listening[0].getsockname()[1])

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections of these bound sockets."""
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(LISTEN_BACKLOG)
            self._listening.append(listening)
        self._accept_again()

    def close(self) -> None:
        """Accept no more. Connections that no protocol has yet are ended."""
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()
        if self._timer is not None:
            self._timer.cancel()
        for visitor in self._visitors:
            visitor.cancel()

    # ---------------------------------------------------------------- deadlines

    def expect(self, visitor: Visitor, seconds: float) -> None:
        """See `Visitor.expect`."""
        if visitor in self._visitors and not visitor.is_ended:
            displaced = self._admission.expect(visitor, visitor.host, self._loop.time() + seconds)
            if displaced is not None:
                self._end(displaced, EndReason.DISPLACED)

    def prove(self, visitor: Visitor) -> None:
        """See `Visitor.prove`."""
        self._admission.leave(visitor)

    def forget(self, visitor: Visitor) -> None:
        """See `Visitor.leave`."""
        self._visitors.discard(visitor)
        self._admission.leave(visitor)

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        for visitor in self._admission.overdue(self._loop.time()):
            self._end(visitor, EndReason.LATE)

    def _end(self, visitor: Visitor, why: EndReason) -> None:
        self._admission.leave(visitor)
        visitor.is_ended = True
        visitor.end(why)

    # ---------------------------------------------------------------- accepting

    def _accept_again(self) -> None:
        for listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, name = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as problem:
                if problem.errno in _SHORTAGES:
                    self._wait_for_descriptors(problem)
                    return
                continue  # an error of the accepted connection, not of the listening socket
            self._receive(accepted, str(name[0]))

    def _receive(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        if self._is_full(accepted) and not self._end_oldest():
            accepted.close()
            self._log_shortage("every one of them has proved itself")
            return
        visitor = Visitor(self, host)
        self._visitors.add(visitor)
        self.expect(visitor, self._terms.first_step)
        connecting = self._loop.connect_accepted_socket(lambda: self._make_protocol(visitor), accepted, ssl=self._tls)
        visitor.connecting = self._loop.create_task(connecting)
        visitor.connecting.add_done_callback(partial(self._connected, visitor, accepted))

    def _connected(self, visitor: Visitor, accepted: socket.socket, connecting: asyncio.Task[object]) -> None:
        """Handle the result of the handshake: the protocol has the connection, or the connection is closed."""
        visitor.connecting = None  # else the task and the connection reference each other in a cycle
        problem = asyncio.CancelledError() if connecting.cancelled() else connecting.exception()
        if problem is None:
            return
        accepted.close()
        visitor.leave()
        if not isinstance(problem, OSError | asyncio.CancelledError):  # OSError: the peer speaks no TLS, or has gone
            raise problem
        problem.__traceback__ = None  # its frames keep 256 KB of TLS alive until a garbage collection

    def _is_full(self, accepted: socket.socket) -> bool:
        """Return whether a connection exceeds the limits. The kernel always gives the lowest free descriptor."""
        max_connections = self._terms.max_connections
        return accepted.fileno() >= descriptors() - RESERVED_DESCRIPTORS or (
            max_connections is not None and len(self._visitors) >= max_connections
        )

    def _end_oldest(self) -> bool:
        oldest = self._admission.oldest()
        if oldest is None:
            return False
        self._end(oldest, EndReason.DISPLACED)
        return True

    def _wait_for_descriptors(self, problem: OSError) -> None:
        self._end_oldest()
        for listening in self._listening:
            self._loop.remove_reader(listening)
        self._loop.call_later(SHORTAGE_PAUSE_S, self._accept_again)
        self._log_shortage(os.strerror(problem.errno or 0))

    def _log_shortage(self, why: str) -> None:
        fields = {"event": "Connections", "subclass": "Shortage"}
        text = f"A connection was not accepted: there are {len(self._visitors)}, and {why}."
        _log.warning("%s", text, extra={"fields": fields})


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at a port of each address of a host; '' means all interfaces.

    Raises:
        OSError: a socket cannot be bound.
    """
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in addresses:
            sockets.append(_bound(family, (address[0], port, *address[2:])))
            port = sockets[0].getsockname()[1]  # if port 0: one port for all addresses
    except OSError as problem:
        if not (sockets and not host and problem.errno in _NO_FAMILY):
            for bound in sockets:
                bound.close()
            raise
    return sockets


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def unproven_places() -> SlotLimits:
    """Return the limits of unauthenticated connections: a quarter of the descriptors, half of that for one network."""
    total = min(MAX_UNPROVEN, max(2, descriptors() // 4))
    return SlotLimits(total, total // 2)


def descriptors() -> int:
    """Return the maximum number of descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
