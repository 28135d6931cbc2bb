"""The daemon's side of a share whose rounds run in a child process; the child's side is `worker.py`.

The child knows links by numbers. It learns of their events with the next round. Frames that a round sends on links come
back after its commit, and are sent here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from servicebroker.broker import metrics
from servicebroker.broker.forwarding import Row
from servicebroker.broker.peers import Peers
from servicebroker.broker.sharing.messages import (
    TO_LINKS,
    TO_LOG,
    DaemonCall,
    Done,
    Question,
    Round,
    StatusMessage,
)
from servicebroker.broker.transport.links import Arrival, Link, Links
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.protocol.mirroring import NEVER, Standing
from servicebroker.protocol.routing import Address
from servicebroker.store.statement_counts import counts_at


class Held(NamedTuple):
    """The forwarded messages that a share holds, as its process has reported."""

    held: tuple[int, int]
    rows: Sequence[Row]

    def drop_all(self, number: int) -> None:
        """Do nothing: the process has dropped them when it ended."""

    def observed(self) -> Sequence[Row]:
        """Return the rows of sys.dm_broker_forwarded_messages."""
        return self.rows


class RemoteRelay:
    """A relay in another process, as the daemon sees it. How a round gets there is left to its subclass."""

    def __init__(
        self,
        links: Links,
        peers: Peers,
        here: Callable[[], LocalInstance],
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
    ) -> None:
        self._links = links
        self._peers = peers
        self._here = here
        self._clock = clock
        self._seconds = seconds
        self._said: LocalInstance | None = None
        self._numbers: WeakKeyDictionary[Link, int] = WeakKeyDictionary()
        self._known: WeakValueDictionary[int, Link] = WeakValueDictionary()
        self._next = count(1)
        self._busy: set[int] = set()  # links that the last round has sent on
        self._happened: list[tuple[str, tuple[Any, ...]]] = []
        self._seen: StatusMessage | None = None
        self.wake_at = NEVER

    def round(self, arrivals: list[Arrival]) -> int:
        """Have one round run there. Returns how much there was to do, in messages.

        Raises:
            ProcessExited: the process was killed; all that it has committed is in the database.
            InstanceError, RuntimeError: the round has failed.
        """
        raise NotImplementedError

    def order(self, arrivals: list[Arrival]) -> Round:
        """Return the message that asks for a round."""
        brought = [(self._number(one.link), one.link.owner, one.body, one.is_forwarded) for one in arrivals]
        self._busy.update(number for number, *_ in brought)
        rooms = {number: link.room for number in self._busy if (link := self._known.get(number)) is not None}
        self._busy.clear()
        happened, self._happened = self._happened, []
        here = self._here()
        news = None if here == self._said else here
        self._said = here
        time = self._clock(), self._seconds()
        return Round(time, news, self._peers.proves, self._peers.version, rooms, happened, brought)

    def answer(self, question: Question) -> object:
        """Return the answer to a question that the process asks in a round."""
        match question.what:
            case "reach":
                way = self._links.reach(question.about)
                return way if isinstance(way, str) else (self._number(way), way.owner, way.room)
            case "room":
                link = self._known.get(question.about)
                return 0 if link is None else link.room
            case "budgets":
                return self._peers.budgets.amounts
            case _:
                return self._peers.owner_at(question.about)

    def take(self, done: Done) -> int:
        """Send the messages of a committed round. Returns the amount of work, in messages."""
        for told in done.told:
            self._tell(told)
        if done.seen is not None:
            self._seen = done.seen
            metrics.add(done.seen.counted)
            place, statements = done.seen.statements
            counts_at(place).add_all(statements)
        self.wake_at = done.wake_at
        return done.carried

    def _tell(self, told: DaemonCall) -> None:
        match told.whom:
            case int(number):
                self._busy.add(number)
                link = self._known.get(number)
                if link is not None:  # a link that is over may be forgotten by now
                    getattr(link, told.method)(*told.arguments, **told.named)
            case str(whom) if whom == TO_LOG:
                logger, *record = told.arguments
                logging.getLogger(logger).log(*record, **told.named)
            case whom:
                getattr(self._links if whom == TO_LINKS else self._peers, told.method)(*told.arguments)

    def _number(self, link: Link) -> int:
        """Return the number by which the child process knows a link."""
        number = self._numbers.get(link)
        if number is None:
            number = self._numbers[link] = next(self._next)
            self._known[number] = link
        return number

    # ---------------------------------------------------------------- as a relay

    def forget(self, shares: int = 1) -> None:
        """Do nothing: the process has just begun, and remembers nothing."""

    def lost(self, link: Link, status: str) -> None:
        """Handle the end of a link."""
        if link in self._numbers:
            self._happened.append(("lost", (self._numbers[link], status)))

    def reached(self, address: Address) -> None:
        """Handle a new link to an address."""
        self._happened.append(("reached", (address,)))

    def unreached(self, address: Address, status: str) -> None:
        """Handle the failure to connect to an address, with the reason."""
        self._happened.append(("unreached", (address, status)))

    def on_peer_role(self, address: Address, standing: Standing) -> None:
        """Handle the answer of a broker whether it is the principal of its pair."""
        self._happened.append(("on_peer_role", (address, standing)))

    @property
    def remembered(self) -> int:
        """Return how many conversations it has in memory, as it has said lately."""
        return 0 if self._seen is None else self._seen.remembered

    @property
    def forwarding(self) -> Held:
        """The forwarded messages that it holds, as it last reported."""
        return Held((0, 0), ()) if self._seen is None else Held(self._seen.held, self._seen.forwarded)
