"""A share (partition), its rounds, and the division of an instance's conversations among several shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from servicebroker.broker.inboxes import Answered, Inbox, Inboxes, Lost, Outdated, Reached, Unreached
from servicebroker.broker.relay import Relay
from servicebroker.broker.sharing.remote_relay import RemoteRelay
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Arrival
from servicebroker.protocol.division import Division
from servicebroker.protocol.mirroring import KnownTimeline

ROUND_FRAMES = 2_000  # frames and events in a round (one transaction)


class DividedStore(Store, Protocol):
    """A store that reads the conversations of one share."""

    division: Division


class OpenedHere(Protocol):
    """A database connection of a share in the daemon's process."""

    @property
    def store(self) -> Store:
        """The store on it."""


@dataclass(slots=True, eq=False)
class Share:
    """A share: its relay, its inbox, its store (if in this process), and the load of its rounds."""

    relay: Relay | RemoteRelay
    inbox: Inbox
    store: Store | None = None
    handled: int = 0  # messages in the last round
    worked: float = 0.0  # total seconds of rounds with messages

    @property
    def wake_at(self) -> float:
        """The time when the share has work, even if no message arrives."""
        return min(self.relay.wake_at, self.inbox.wake_at)

    def use_connection(self, opened: OpenedHere | RemoteRelay) -> None:
        """Use a connection with its store, or a child process that has both."""
        if isinstance(opened, RemoteRelay):
            self.relay = opened
        else:
            self.store = opened.store

    def run_round(self, seconds: Callable[[], float], challenge: Callable[[KnownTimeline], object]) -> int:
        """Run one round. Returns the number of handled messages.

        `challenge` is called when a peer knows a higher timeline of this cluster.

        Raises:
            psycopg.Error, InstanceError: nothing of the round was committed.
        """
        began = seconds()
        events = self.inbox.take(ROUND_FRAMES)
        arrivals = []
        for input_event in events:
            match input_event:
                case Arrival():
                    arrivals.append(input_event)
                case Lost():
                    self.relay.lost(input_event.link, input_event.status)
                case Reached():
                    self.relay.reached(input_event.address)
                case Unreached():
                    self.relay.unreached(input_event.address, input_event.status)
                case Answered():
                    self.relay.on_peer_role(input_event.address, input_event.role_report)
                case Outdated():
                    challenge(input_event.known)
        handled = self._round(arrivals)
        passed = seconds() - began
        self.inbox.account_round(passed)
        self.handled = max(handled, min(len(events), 1))
        self.worked += passed if self.handled else 0.0
        return self.handled

    def _round(self, arrivals: list[Arrival]) -> int:
        if isinstance(self.relay, RemoteRelay):
            return self.relay.round(arrivals)
        assert self.store is not None
        return self.relay.round(self.store, arrivals)


class ShareSet:
    """The shares of one daemon. `make` makes a relay. With `in_processes` the others have relays in child processes.

    Attributes:
        all: the shares; the first one is the daemon's own.
    """

    def __init__(self, make: Callable[[], Relay], inboxes: Inboxes, *, in_processes: bool) -> None:
        self._make = make
        self._inboxes = inboxes
        self._in_processes = in_processes
        self.all = [Share(make(), inboxes.shares[0])]

    def divide(self, store: DividedStore, opened: Sequence[OpenedHere | RemoteRelay]) -> None:
        """Divide all conversations among the first share and these, between rounds.

        `store` is that of the first share. All relays restart from the database.
        """
        count = 1 + len(opened)
        self._shrink(1 if self._in_processes else count)
        self._inboxes.divide(count)
        for number in range(len(self.all), count):
            opened_share = opened[number - 1]
            self.all.append(
                Share(
                    opened_share if isinstance(opened_share, RemoteRelay) else self._make(),
                    self._inboxes.shares[number],
                )
            )
        for share, opened_share in zip(self.all[1:], opened, strict=True):
            share.use_connection(opened_share)
        store.division = Division(0, count)
        self.forget()

    def unite(self) -> None:
        """Go back to one share with an empty memory."""
        self._shrink(1)
        self._inboxes.divide(1)
        self.forget()

    def forget(self) -> None:
        """Empty the memory of all relays, which then restart from the database."""
        for share in self.all:
            share.relay.forget(len(self.all))
        self._inboxes.forget_links()

    def move_into_daemon(self, share: Share) -> None:
        """Give a share a relay in this process, because no child process can be started."""
        share.relay = self._make()
        share.relay.forget(len(self.all))

    def _shrink(self, count: int) -> None:
        """Remove the last shares and their forwarded messages, which the senders repeat."""
        for share in self.all[count:]:
            share.relay.forwarding.drop_all(11293)
        del self.all[count:]
