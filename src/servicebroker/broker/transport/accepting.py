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

from servicebroker.protocol.admission import Admission, Places

MOST_UNPROVEN = 1_024  # connections at a daemon
RESERVED_DESCRIPTORS = 64  # not for connections from outside, but for files, databases and our own links
LISTEN_BACKLOG = 1_024  # connections that the system holds until they are accepted
ACCEPTED_AT_ONCE = 8  # accepted at a time: then the loop reads what those before have said, which may prove them
SWEEP_INTERVAL_S = 0.25  # between two looks for those that are late
SHORTAGE_PAUSE_S = 0.25  # without a descriptor nothing is accepted for so long

_NO_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # the machine has no IPv6
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger("servicebroker.broker")


class Why(enum.Enum):
    """Why an unproven connection is ended."""

    LATE = "it was too slow"
    DISPLACED = "too many connections have proved nothing"


class Visitor:
    """An accepted connection. Its protocol tells how far it is, and sets `end`: what ends it then."""

    def __init__(self, acceptor: Acceptor, host: str) -> None:
        self.host = host
        self.end: Callable[[Why], None] = lambda why: self.cancel()
        self.connecting: asyncio.Task[object] | None = None
        self.is_ended = False  # the connection has lost its place, and gets none again
        self._acceptor = acceptor

    def expect(self, seconds: float) -> None:
        """Give the peer so long for its next step; it has proved nothing until then."""
        self._acceptor.expect(self, seconds)

    def prove(self) -> None:
        """Take the connection out of the unproven ones: it keeps its descriptor, and has no deadline."""
        self._acceptor.prove(self)

    def leave(self) -> None:
        """Forget a closed connection."""
        self._acceptor.forget(self)

    def cancel(self) -> None:
        """End the connection while it has no protocol yet."""
        if self.connecting is not None:
            self.connecting.cancel()


class Terms(NamedTuple):
    """The terms of connections from outside.

    Attributes:
        places: of unproven connections.
        first_step: seconds until the protocol knows of the connection: with TLS, for the handshake.
        most: connections, proved or not; None where descriptors alone bound them.
    """

    places: Places
    first_step: float
    most: int | None = None


class Acceptor:
    """Accepts what comes to listening sockets, in the running event loop."""

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
        """The port on which it listens."""
        return int(self._listening[0].getsockname()[1])

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections of these sockets, which are bound."""
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(LISTEN_BACKLOG)
            self._listening.append(listening)
        self._accept_again()

    def close(self) -> None:
        """Accept no more; those whose protocol does not know of them yet are ended."""
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()
        if self._timer is not None:
            self._timer.cancel()
        for visitor in self._visitors:
            visitor.cancel()

    # ---------------------------------------------------------------- of visitors

    def expect(self, visitor: Visitor, seconds: float) -> None:
        """See `Visitor.expect`."""
        if visitor in self._visitors and not visitor.is_ended:
            displaced = self._admission.expect(visitor, visitor.host, self._loop.time() + seconds)
            if displaced is not None:
                self._end(displaced, Why.DISPLACED)

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
            self._end(visitor, Why.LATE)

    def _end(self, visitor: Visitor, why: Why) -> None:
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
                continue  # of the connection that is no more, not of ours
            self._receive(accepted, str(name[0]))

    def _receive(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        if self._is_full(accepted) and not self._end_oldest():
            accepted.close()
            self._tell_of_shortage("every one of them has proved itself")
            return
        visitor = Visitor(self, host)
        self._visitors.add(visitor)
        self.expect(visitor, self._terms.first_step)
        connecting = self._loop.connect_accepted_socket(lambda: self._make_protocol(visitor), accepted, ssl=self._tls)
        visitor.connecting = self._loop.create_task(connecting)
        visitor.connecting.add_done_callback(partial(self._connected, visitor, accepted))

    def _connected(self, visitor: Visitor, accepted: socket.socket, connecting: asyncio.Task[object]) -> None:
        """The protocol knows of the connection now, or never will."""
        visitor.connecting = None  # with its result or exception, it and what serves the connection hold each other
        problem = asyncio.CancelledError() if connecting.cancelled() else connecting.exception()
        if problem is None:
            return
        accepted.close()
        visitor.leave()
        if not isinstance(problem, OSError | asyncio.CancelledError):  # OSError: no TLS is spoken, or nobody is there
            raise problem
        problem.__traceback__ = None  # its frames hold the exception, and 256 KB of TLS, until a collection of garbage

    def _is_full(self, accepted: socket.socket) -> bool:
        """Return whether a connection is one too many. The system gives the lowest descriptor that is free."""
        most = self._terms.most
        return accepted.fileno() >= descriptors() - RESERVED_DESCRIPTORS or (
            most is not None and len(self._visitors) >= most
        )

    def _end_oldest(self) -> bool:
        oldest = self._admission.oldest()
        if oldest is None:
            return False
        self._end(oldest, Why.DISPLACED)
        return True

    def _wait_for_descriptors(self, problem: OSError) -> None:
        self._end_oldest()
        for listening in self._listening:
            self._loop.remove_reader(listening)
        self._loop.call_later(SHORTAGE_PAUSE_S, self._accept_again)
        self._tell_of_shortage(os.strerror(problem.errno or 0))

    def _tell_of_shortage(self, why: str) -> None:
        fields = {"event": "Connections", "subclass": "Shortage"}
        text = f"A connection was not accepted: there are {len(self._visitors)}, and {why}."
        _log.warning("%s", text, extra={"fields": fields})


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at a port of each address of a host; an empty host is every address of the machine.

    Raises:
        OSError: a socket cannot be bound.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in found:
            made.append(_bound(family, (address[0], port, *address[2:])))
            port = made[0].getsockname()[1]  # of port 0: the same one everywhere
    except OSError as problem:
        if not (made and not host and problem.errno in _NO_FAMILY):
            for one in made:
                one.close()
            raise
    return made


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(LISTEN_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def share() -> Places:
    """Return the places of unproven connections at a daemon: a quarter of the descriptors, half of it for a network."""
    in_all = min(MOST_UNPROVEN, max(2, descriptors() // 4))
    return Places(in_all, in_all // 2)


def descriptors() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
