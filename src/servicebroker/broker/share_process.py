"""The process of a share: rounds as its daemon asks for them (broker/processes.py).

`python -m servicebroker.broker.share_process DESCRIPTOR`. It has a relay and a connection to the database, and knows no
socket: links, peers and the log are asked and told through the daemon. It ends with the daemon, at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import closing
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from random import Random
from typing import Any
from weakref import WeakValueDictionary

import psycopg

from servicebroker.broker import metrics
from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.broker.peers import Peers
from servicebroker.broker.processes import (
    PROGRAM,
    TO_LINKS,
    TO_LOG,
    TO_PEERS,
    Begin,
    DaemonCall,
    Done,
    Failed,
    Question,
    Round,
    Session,
    StatusMessage,
)
from servicebroker.broker.relay import Relay
from servicebroker.broker.shares import open_share
from servicebroker.broker.transport.links import Arrival
from servicebroker.broker.transport.links import Link as AnyLink
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.model.errors import InstanceError
from servicebroker.model.security.peers import Mistrust
from servicebroker.protocol.mirroring import NEVER, Known
from servicebroker.protocol.routing import Address
from servicebroker.store.connection import one_line
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.running import execute
from servicebroker.store.statement_counts import counts_of, place_of

REPORT_INTERVAL_S = 1.0  # seconds between two times that it says how it stands


class Daemon:
    """The process that this one works for: what it is told waits for the end of the round.

    Attributes:
        rounds: how many it has asked for.
    """

    def __init__(self, connection: Connection) -> None:
        self.rounds = 0
        self._connection = connection
        self._told: list[DaemonCall] = []

    def hear(self) -> Any:
        """Return the daemon's next message. If the daemon has gone, end this process: no round has failed then."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            sys.exit(1)

    def say(self, what: object) -> None:
        """Answer it."""
        try:
            self._connection.send(what)
        except OSError:
            sys.exit(1)

    def ask(self, what: str, about: object) -> Any:
        """Ask the daemon for something that only it knows."""
        self.say(Question(what, about))
        return self.hear()

    def tell(self, whom: int | str, method: str, *arguments: object, **named: object) -> None:
        """A call for it to make."""
        self._told.append(DaemonCall(whom, method, arguments, named))

    def take_told(self) -> list[DaemonCall]:
        """Return the calls for the daemon since the last time."""
        taken, self._told = self._told, []
        return taken


class Link:
    """A connection that the daemon has."""

    def __init__(self, number: int, owner: str, daemon: Daemon) -> None:
        self.owner = owner
        self._number = number
        self._daemon = daemon
        self._room = 0
        self._round = 0  # of which this is the room

    @property
    def room(self) -> int:
        """Return how many bytes it takes, without what others have sent since the round began."""
        if self._round != self._daemon.rounds:
            self.grant(self._daemon.ask("room", self._number))
        return self._room

    def grant(self, room: int) -> None:
        """Set the bytes that the link takes in this round, of which the daemon does not know yet what was used."""
        if self._round != self._daemon.rounds:
            self._room, self._round = room, self._daemon.rounds

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """After the commit of this round."""
        self._room -= len(body)
        self._daemon.tell(self._number, "send", body, is_forwarded=is_forwarded)

    def complain(self) -> None:
        """Count a frame of the link that was for nothing."""
        self._daemon.tell(self._number, "complain")

    def refused(self, number: int, text: str) -> None:
        """Count a message of the link that was refused."""
        self._daemon.tell(self._number, "refused", number, text)

    def opened(self) -> None:
        """Count a conversation that the link has begun."""
        self._daemon.tell(self._number, "opened")

    def charge(self, seconds: float) -> None:
        """Charge the link for seconds of the round."""
        self._daemon.tell(self._number, "charge", seconds)


class Links:
    """The connections of the daemon, and where they lead, as it was said in this round."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._known: WeakValueDictionary[int, Link] = WeakValueDictionary()
        self._ways: dict[Address, AnyLink | str] = {}

    def begin(self) -> None:
        """Another round."""
        self._ways.clear()

    def find(self, number: int) -> Link | None:
        """The link of that number, where somebody remembers it."""
        return self._known.get(number)

    def link(self, number: int, owner: str) -> Link:
        """The one of that number."""
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = Link(number, owner, self._daemon)
        return found

    def reach(self, address: Address) -> AnyLink | str:
        """The link to an address, or why there is none yet."""
        if address not in self._ways:
            way = self._daemon.ask("reach", address)
            if not isinstance(way, str):
                number, owner, room = way
                way = self.link(number, owner)
                way.grant(room)
            self._ways[address] = way
        return self._ways[address]

    def ask(self, address: Address, known: Known) -> None:
        """Ask whoever is at that address whether it is the principal."""
        self._daemon.tell(TO_LINKS, "ask", address, known)


class KnownPeers(Peers):
    """The daemon's knowledge of peers."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon
        self._owner_at: dict[Address, str | None] = {}

    def begin(self, version: int, *, proves: bool) -> None:
        """Another round."""
        if version != self.version:
            self._owner_at.clear()
        self.version, self.proves = version, proves

    def owner_at(self, address: Address) -> str | None:
        """Return the owner at an address, as known when the round began."""
        if address not in self._owner_at:
            self._owner_at[address] = self._daemon.ask("owner_at", address)
        return self._owner_at[address]

    def mistrust(self, what: Mistrust, detail: str) -> None:
        """Have counted what a peer has done and may not."""
        self._daemon.tell(TO_PEERS, "mistrust", what, detail)


class DaemonsLog(logging.Handler):
    """A log handler that hands records to the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{''.join(traceback.format_exception(*record.exc_info))}"
        extra = {"fields": record.fields} if hasattr(record, "fields") else None
        self._daemon.tell(TO_LOG, "log", record.name, record.levelno, "%s", text, extra=extra)


class DaemonsClock:
    """The daemon's clock, carried on by one that is the same in all processes."""

    def __init__(self) -> None:
        self._then, self._moment = datetime.min, 0.0

    def set(self, then: datetime, moment: float) -> None:
        """Set the clock: the time at a moment that all processes share."""
        self._then, self._moment = then, moment

    def __call__(self) -> datetime:
        """The time now."""
        return self._then + timedelta(seconds=time.monotonic() - self._moment)


class Worker:
    """Runs the rounds of one share."""

    def __init__(self, daemon: Daemon, begin: Begin) -> None:
        self._daemon = daemon
        self._clock = DaemonsClock()
        self._here = LocalInstance()
        self._links = Links(daemon)
        self._peers = KnownPeers(daemon)
        self._keys = None if begin.keys is None else KeyFolder(begin.keys)
        self._relay = Relay(
            self._links,
            self._clock,
            time.monotonic,
            Random(),
            lambda: self._here,
            keys=self._keys,
            peers=self._peers,
        )
        self._relay.forget(begin.division.shares)
        self._kept = KeptDeliveries(begin.url, self._clock)
        self._opened = open_share(begin.url, self._clock, begin.division, self._kept, follows=begin.follows)
        self._look_at = 0.0

    def serve(self) -> None:
        """Until the daemon wants no more rounds."""
        daemon = self._daemon
        with closing(self._kept), closing(self._opened):
            daemon.say(self._session())
            self._opened.ready()
            daemon.say(Done(0, NEVER, daemon.take_told(), None))
            while (wanted := daemon.hear()) is not None:
                daemon.say(self._round(wanted))
            self._relay.forwarding.drop_all(11293)
            daemon.say(Done(0, NEVER, daemon.take_told(), self._seen()))

    def _session(self) -> Session:
        ((pid, began),) = execute(
            self._opened.connection,
            "share_process.session",
            "select pid, backend_start from pg_stat_activity where pid = pg_backend_pid()",
        )
        return Session(pid, began)

    def _round(self, wanted: Round) -> Done:
        self._daemon.rounds += 1
        self._links.begin()
        self._clock.set(*wanted.time)
        self._here = wanted.here or self._here
        self._peers.begin(wanted.version, proves=wanted.proves)
        brought = [
            Arrival(self._links.link(number, owner), body, is_forwarded)
            for number, owner, body, is_forwarded in wanted.arrivals
        ]
        for number, room in wanted.rooms.items():
            if (link := self._links.find(number)) is not None:
                link.grant(room)
        for method, arguments in wanted.happened:
            self._happens(method, arguments)
        carried = self._relay.round(self._opened.store, brought)
        wake_at, now = self._relay.wake_at, time.monotonic()
        seen = None
        if now >= self._look_at:
            self._look_at, seen = now + REPORT_INTERVAL_S, self._seen()
        return Done(carried, wake_at, self._daemon.take_told(), seen)

    def _happens(self, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "lost":
            number, status = arguments
            link = self._links.find(number)
            if link is not None:
                self._relay.lost(link, status)
        else:
            getattr(self._relay, method)(*arguments)

    def _seen(self) -> StatusMessage:
        forwarding = self._relay.forwarding
        statements = place_of(self._opened.connection), counts_of(self._opened.connection).take()
        return StatusMessage(
            self._relay.remembered, forwarding.held, forwarding.observed(), metrics.take_counted(), statements
        )


def _end_with_the_daemon() -> None:
    """End this process when the daemon has gone: then nobody holds the other end of the standard input."""
    os.read(0, 1)
    os._exit(1)


def main(descriptor: int) -> None:
    """Serve the daemon at the other end of that socket."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a signal to all processes of a service: the daemon ends this one
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_daemon, daemon=True).start()
    with Connection(descriptor) as connection:
        daemon = Daemon(connection)
        daemon.say(PROGRAM)  # before anything that another program would not understand
        begin: Begin = daemon.hear()
        logging.basicConfig(handlers=[DaemonsLog(daemon)], level=logging.WARNING)
        logging.getLogger("servicebroker").setLevel(begin.level)
        try:
            Worker(daemon, begin).serve()
        except Exception as problem:
            of_database = isinstance(problem, psycopg.Error | InstanceError)
            text = one_line(problem) if of_database else f"{type(problem).__name__}: {one_line(problem)}"
            daemon.say(Failed(of_database, text, traceback.format_exc()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
