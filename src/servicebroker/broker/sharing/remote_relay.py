"""The daemon's side of a share (partition) whose rounds run in a child process; the child's side is `worker.py`.

The child process identifies links by numbers. The message that starts a round carries the events of links since the
last round. The frames of a round come back after its commit, and the daemon sends them.
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
from servicebroker.protocol.mirroring import NEVER, RoleReport
from servicebroker.protocol.routing import Address
from servicebroker.store.statement_counts import counts_for


class ForwardingReport(NamedTuple):
    """The forwarded messages that a share holds, by the last report of its process. `held`: their count and bytes."""

    held: tuple[int, int]
    rows: Sequence[Row]

    def drop_all(self, number: int) -> None:
        """Do nothing: the process dropped them when it ended."""

    def observed(self) -> Sequence[Row]:
        """Return the rows of sys.dm_broker_forwarded_messages."""
        return self.rows


class RemoteRelay:
    """The daemon's proxy of a relay in a child process. A subclass transports the rounds."""

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
        self._sent_instance: LocalInstance | None = None
        self._numbers: WeakKeyDictionary[Link, int] = WeakKeyDictionary()
        self._known: WeakValueDictionary[int, Link] = WeakValueDictionary()
        self._next = count(1)
        self._busy: set[int] = set()  # links that the last round has sent on
        self._events: list[tuple[str, tuple[Any, ...]]] = []
        self._status: StatusMessage | None = None
        self.wake_at = NEVER

    def round(self, arrivals: list[Arrival]) -> int:
        """Have the process run one round. Returns the number of messages.

        Raises:
            ProcessExited: the process was killed. Its committed work is in the database.
            InstanceError, RuntimeError: the round has failed.
        """
        raise NotImplementedError

    def order(self, arrivals: list[Arrival]) -> Round:
        """Return the message that asks for a round."""
        brought = [
            (self._number(arrival.link), arrival.link.owner, arrival.body, arrival.is_forwarded) for arrival in arrivals
        ]
        self._busy.update(number for number, *_ in brought)
        rooms = {number: link.room for number in self._busy if (link := self._known.get(number)) is not None}
        self._busy.clear()
        events, self._events = self._events, []
        here = self._here()
        changed = None if here == self._sent_instance else here
        self._sent_instance = here
        time = self._clock(), self._seconds()
        return Round(time, changed, self._peers.proves, self._peers.version, rooms, events, brought)

    def answer(self, question: Question) -> object:
        """Return the answer to a question that the process asks in a round."""
        match question.what:
            case "reach":
                link = self._links.reach(question.about)
                return link if isinstance(link, str) else (self._number(link), link.owner, link.room)
            case "room":
                found_link = self._known.get(question.about)
                return 0 if found_link is None else found_link.room
            case "budgets":
                return self._peers.budgets.amounts
            case _:
                return self._peers.owner_at(question.about)

    def take(self, done: Done) -> int:
        """Make the calls of a committed round, which send its messages. Returns the number of handled messages."""
        for call in done.calls:
            self._make(call)
        if done.status is not None:
            self._status = done.status
            metrics.add(done.status.counted)
            place, statements = done.status.statements
            counts_for(place).add_all(statements)
        self.wake_at = done.wake_at
        return done.handled

    def _make(self, call: DaemonCall) -> None:
        match call.addressee:
            case int(number):
                self._busy.add(number)
                link = self._known.get(number)
                if link is not None:  # a closed link may be forgotten by now
                    getattr(link, call.method)(*call.arguments, **call.named)
            case str(addressee) if addressee == TO_LOG:
                logger, *record = call.arguments
                logging.getLogger(logger).log(*record, **call.named)
            case addressee:
                getattr(self._links if addressee == TO_LINKS else self._peers, call.method)(*call.arguments)

    def _number(self, link: Link) -> int:
        """Return the number by which the child process knows a link."""
        number = self._numbers.get(link)
        if number is None:
            number = self._numbers[link] = next(self._next)
            self._known[number] = link
        return number

    # ---------------------------------------------------------------- as a relay

    def forget(self, shares: int = 1) -> None:
        """Do nothing: the process has just started, and has nothing in memory."""

    def lost(self, link: Link, status: str) -> None:
        """Handle the end of a link."""
        if link in self._numbers:
            self._events.append(("lost", (self._numbers[link], status)))

    def reached(self, address: Address) -> None:
        """Handle a new link to an address."""
        self._events.append(("reached", (address,)))

    def unreached(self, address: Address, status: str) -> None:
        """Handle the failure to connect to an address, with the reason."""
        self._events.append(("unreached", (address, status)))

    def on_peer_role(self, address: Address, role_report: RoleReport) -> None:
        """Handle the answer of a mirrored pair's broker: whether it is the principal."""
        self._events.append(("on_peer_role", (address, role_report)))

    @property
    def remembered(self) -> int:
        """The number of conversations in the process's memory, by its last report."""
        return 0 if self._status is None else self._status.remembered

    @property
    def forwarding(self) -> ForwardingReport:
        """The forwarded messages that the process holds, by its last report."""
        return (
            ForwardingReport((0, 0), ())
            if self._status is None
            else ForwardingReport(self._status.held, self._status.forwarded)
        )
