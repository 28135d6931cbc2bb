"""The child process that runs the rounds of a share (partition); the daemon's side is `remote_relay.py`.

The child process has no socket. Links, peers and the clock are those of the daemon: the message that starts a round
carries their state. During the round the child asks the daemon for anything else.
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
from servicebroker.model.security.peers import FalseClaim
from servicebroker.overriding import override
from servicebroker.protocol.mirroring import NEVER, KnownTimeline
from servicebroker.protocol.routing import Address

REPORT_INTERVAL_S = 1.0  # seconds between two status messages


class Daemon(Protocol):
    """The daemon, as its child process calls it. `tell` takes effect after the commit of the round.

    Attributes:
        rounds: the number of rounds that the daemon has started.
    """

    rounds: int

    def ask(self, what: str, about: object) -> Any:
        """Ask the daemon for a value, and wait for it. `what` names it (see `RemoteRelay.answer`)."""

    def tell(self, addressee: int | str, method: str, *arguments: object, **named: object) -> None:
        """Record a call that the daemon makes after this round."""


class Calls:
    """The calls that the daemon makes after the commit of the round."""

    def __init__(self) -> None:
        self.rounds = 0
        self._calls: list[DaemonCall] = []

    def tell(self, addressee: int | str, method: str, *arguments: object, **named: object) -> None:
        """Record a call."""
        self._calls.append(DaemonCall(addressee, method, arguments, named))

    def take_calls(self) -> list[DaemonCall]:
        """Return the recorded calls, and clear them."""
        calls, self._calls = self._calls, []
        return calls


class Link:
    """A connection of the daemon."""

    def __init__(self, number: int, owner: str, daemon: Daemon) -> None:
        self.owner = owner
        self._number = number
        self._daemon = daemon
        self._room = 0
        self._round = 0  # the round for which `_room` was set

    @property
    def room(self) -> int:
        """The bytes that the link accepts, as of the beginning of the round."""
        if self._round != self._daemon.rounds:
            self.grant(self._daemon.ask("room", self._number))
        return self._room

    def grant(self, room: int) -> None:
        """Set the bytes that the link accepts in this round. The daemon learns later how many were used."""
        if self._round != self._daemon.rounds:
            self._room, self._round = room, self._daemon.rounds

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """Send a frame after the commit of this round."""
        self._room -= len(body)
        self._daemon.tell(self._number, "send", body, is_forwarded=is_forwarded)

    def complain(self) -> None:
        """Count a useless frame of the link."""
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
    """The connections of the daemon and their addresses, as of this round."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._known: WeakValueDictionary[int, Link] = WeakValueDictionary()
        self._ways: dict[Address, AnyLink | str] = {}

    def begin(self) -> None:
        """Begin another round."""
        self._ways.clear()

    def find(self, number: int) -> Link | None:
        """Return the link with this number, if it is still referenced."""
        return self._known.get(number)

    def link(self, number: int, owner: str) -> Link:
        """Return the link with this number."""
        link = self._known.get(number)
        if link is None:
            link = self._known[number] = Link(number, owner, self._daemon)
        return link

    def reach(self, address: Address) -> AnyLink | str:
        """Return the link to an address, or the reason why there is none yet."""
        if address not in self._ways:
            answer = self._daemon.ask("reach", address)
            if not isinstance(answer, str):
                number, owner, room = answer
                answer = self.link(number, owner)
                answer.grant(room)
            self._ways[address] = answer
        return self._ways[address]

    def ask(self, address: Address, known: KnownTimeline) -> None:
        """Ask the broker at that address whether it is the principal."""
        self._daemon.tell(TO_LINKS, "ask", address, known)


class KnownPeers(Peers):
    """The daemon's knowledge of peers."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon
        self._owner_at: dict[Address, str | None] = {}

    def begin(self, version: int, *, proves: bool) -> None:
        """Begin another round. `version` is that of the daemon's knowledge of peers."""
        if version != self.version:
            self._owner_at.clear()
            self.budgets.apply(self._daemon.ask("budgets", None))
        self.version, self.proves = version, proves

    @override
    def owner_at(self, address: Address) -> str | None:
        """Return the owner at an address, as known when the round began."""
        if address not in self._owner_at:
            self._owner_at[address] = self._daemon.ask("owner_at", address)
        return self._owner_at[address]

    @override
    def mistrust(self, claim: FalseClaim, detail: str) -> None:
        """Have the daemon count an act that a peer is not allowed."""
        self._daemon.tell(TO_PEERS, "mistrust", claim, detail)


class DaemonsClock:
    """The daemon's clock: its last reading plus the `seconds` since. All processes share the counter `seconds`."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._then, self._seconds_then = datetime.min, 0.0

    def set(self, time: datetime, seconds: float) -> None:
        """Set the clock: `time` was the time when the counter showed `seconds`."""
        self._then, self._seconds_then = time, seconds

    def __call__(self) -> datetime:
        """Return the present time."""
        return self._then + timedelta(seconds=self._seconds() - self._seconds_then)


class Surroundings:
    """The links, peers, clock and addresses of the daemon, as a relay in a child process uses them."""

    def __init__(self, daemon: Daemon, seconds: Callable[[], float]) -> None:
        self.daemon = daemon
        self.links = Links(daemon)
        self.peers = KnownPeers(daemon)
        self.clock = DaemonsClock(seconds)
        self._here = LocalInstance()

    def here(self) -> LocalInstance:
        """Return the identity of this instance in routes."""
        return self._here

    def begin(self, order: Round) -> list[Arrival]:
        """Begin another round. Returns its received frames."""
        self.daemon.rounds += 1
        self.links.begin()
        self.clock.set(*order.time)
        self._here = order.here or self._here
        self.peers.begin(order.version, proves=order.proves)
        arrivals = [
            Arrival(self.links.link(number, owner), body, is_forwarded)
            for number, owner, body, is_forwarded in order.arrivals
        ]
        for number, room in order.rooms.items():
            if (link := self.links.find(number)) is not None:
                link.grant(room)
        return arrivals


class Worker:
    """Runs the rounds of one share. `status` returns a new status message."""

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
        """Return the message that rounds may begin."""
        return Done(0, NEVER, self._calls.take_calls(), None)

    def round(self, order: Round) -> Done:
        """Run one round. Returns its result and its calls, after its commit."""
        arrivals = self._around.begin(order)
        for method, arguments in order.events:
            self._dispatch_event(method, arguments)
        handled = self._relay.round(self._store, arrivals)
        wake_at, now = self._relay.wake_at, self._seconds()
        status = None
        if now >= self._report_at:
            self._report_at, status = now + REPORT_INTERVAL_S, self._status()
        return Done(handled, wake_at, self._calls.take_calls(), status)

    def end(self) -> Done:
        """Drop the forwarded messages: their senders repeat them. Returns the last message of this process."""
        self._relay.forwarding.drop_all(11293)
        return Done(0, NEVER, self._calls.take_calls(), self._status())

    def _dispatch_event(self, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "lost":
            number, status = arguments
            link = self._around.links.find(number)
            if link is not None:
                self._relay.lost(link, status)
        else:
            getattr(self._relay, method)(*arguments)
