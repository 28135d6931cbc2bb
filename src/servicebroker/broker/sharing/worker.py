"""The rounds of a share in its child process; the daemon's side is `remote_relay.py`.

The child process has no socket. Links, peers and the clock are those of the daemon: the message that begins a round
brings them. During the round the child asks the daemon for other facts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Protocol
from weakref import WeakValueDictionary

from servicebroker.broker.peers import Peers
from servicebroker.broker.relay import Relay
from servicebroker.broker.sharing.messages import TO_LINKS, TO_PEERS, DaemonCall, Done, Round, StatusMessage
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Arrival
from servicebroker.broker.transport.links import Link as AnyLink
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.model.security.peers import Mistrust
from servicebroker.protocol.mirroring import NEVER, Known
from servicebroker.protocol.routing import Address

REPORT_INTERVAL_S = 1.0  # seconds between two status messages


class Daemon(Protocol):
    """The daemon, as its process reaches it: calls wait for the end of the round.

    Attributes:
        rounds: how many it has asked for.
    """

    rounds: int

    def ask(self, what: str, about: object) -> Any:
        """Ask the daemon for something that only it knows."""

    def tell(self, whom: int | str, method: str, *arguments: object, **named: object) -> None:
        """Note a call that the daemon is to make after this round."""


class Calls:
    """The calls that the daemon is to make once the round is committed."""

    def __init__(self) -> None:
        self.rounds = 0
        self._told: list[DaemonCall] = []

    def tell(self, whom: int | str, method: str, *arguments: object, **named: object) -> None:
        """Note a call."""
        self._told.append(DaemonCall(whom, method, arguments, named))

    def take_told(self) -> list[DaemonCall]:
        """Return the calls since the last time."""
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
        """Set the bytes that the link accepts in this round. The daemon learns later how many were used."""
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
        """Return the link of that number, if it is still referenced."""
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
        """Ask the broker at that address whether it is the principal."""
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
            self.budgets.obey(self._daemon.ask("budgets", None))
        self.version, self.proves = version, proves

    def owner_at(self, address: Address) -> str | None:
        """Return the owner at an address, as known when the round began."""
        if address not in self._owner_at:
            self._owner_at[address] = self._daemon.ask("owner_at", address)
        return self._owner_at[address]

    def mistrust(self, what: Mistrust, detail: str) -> None:
        """Have counted what a peer has done and may not."""
        self._daemon.tell(TO_PEERS, "mistrust", what, detail)


class DaemonsClock:
    """The daemon's clock, carried on by `seconds`, which are the same in all processes."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._then, self._moment = datetime.min, 0.0

    def set(self, then: datetime, moment: float) -> None:
        """Set the clock: the time at a moment that all processes share."""
        self._then, self._moment = then, moment

    def __call__(self) -> datetime:
        """The time now."""
        return self._then + timedelta(seconds=self._seconds() - self._moment)


class Surroundings:
    """The links, peers, clock and addresses of the daemon, as a relay in its process sees them."""

    def __init__(self, daemon: Daemon, seconds: Callable[[], float]) -> None:
        self.daemon = daemon
        self.links = Links(daemon)
        self.peers = KnownPeers(daemon)
        self.clock = DaemonsClock(seconds)
        self._here = LocalInstance()

    def here(self) -> LocalInstance:
        """Return the identity of this instance in routes."""
        return self._here

    def begin(self, wanted: Round) -> list[Arrival]:
        """Another round. Returns what has arrived for it."""
        self.daemon.rounds += 1
        self.links.begin()
        self.clock.set(*wanted.time)
        self._here = wanted.here or self._here
        self.peers.begin(wanted.version, proves=wanted.proves)
        brought = [
            Arrival(self.links.link(number, owner), body, is_forwarded)
            for number, owner, body, is_forwarded in wanted.arrivals
        ]
        for number, room in wanted.rooms.items():
            if (link := self.links.find(number)) is not None:
                link.grant(room)
        return brought


class Worker:
    """Runs the rounds of one share. `status` makes a status message."""

    def __init__(
        self,
        calls: Calls,
        around: Surroundings,
        relay: Relay,
        store: Store,
        seconds: Callable[[], float],
        status: Callable[[], StatusMessage],
    ) -> None:
        self._calls = calls
        self._around = around
        self._relay = relay
        self._store = store
        self._seconds = seconds
        self._status = status
        self._report_at = 0.0

    def ready(self) -> Done:
        """Return the message that says that rounds may begin."""
        return Done(0, NEVER, self._calls.take_told(), None)

    def round(self, wanted: Round) -> Done:
        """Run one round. Returns what it has to say, after its commit."""
        brought = self._around.begin(wanted)
        for method, arguments in wanted.happened:
            self._happens(method, arguments)
        carried = self._relay.round(self._store, brought)
        wake_at, now = self._relay.wake_at, self._seconds()
        seen = None
        if now >= self._report_at:
            self._report_at, seen = now + REPORT_INTERVAL_S, self._status()
        return Done(carried, wake_at, self._calls.take_told(), seen)

    def end(self) -> Done:
        """Drop the messages of others, whose senders repeat them. Returns the last message."""
        self._relay.forwarding.drop_all(11293)
        return Done(0, NEVER, self._calls.take_told(), self._status())

    def _happens(self, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "lost":
            number, status = arguments
            link = self._around.links.find(number)
            if link is not None:
                self._relay.lost(link, status)
        else:
            getattr(self._relay, method)(*arguments)
