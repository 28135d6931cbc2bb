"""Shares in processes of their own: their rounds run there, their inboxes and all links stay here (decision 252).

The thread of such a share asks its process for each round. What has come goes there; what the round has to say to
links, to peers and to the log comes back after its commit, and is said here. So the network, its turns and its limits
know nothing of processes. What only is known here a process asks for while its round runs.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import psycopg

from servicebroker.broker import metrics
from servicebroker.broker.forwarding import Row
from servicebroker.broker.peers import Peers
from servicebroker.broker.transport.links import Arrival, Link, Links
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.division import Division
from servicebroker.protocol.mirroring import NEVER, Standing
from servicebroker.protocol.routing import Address
from servicebroker.store.connection import connect, one_line
from servicebroker.store.running import execute
from servicebroker.store.statement_counts import Place, counts_at

MODULE = "servicebroker.broker.share_process"
CLOSE_TIMEOUT_S = 5.0  # seconds that a process has to end by itself, and then its session
TO_LINKS, TO_PEERS, TO_LOG = "links", "peers", "log"  # addressees of a call, beside links


def program_on_disk() -> list[tuple[str, int]]:
    """Return the files of the program with their times: a process that starts after an upgrade runs another one."""
    place = Path(__file__).parents[1]
    return sorted((str(file.relative_to(place)), file.stat().st_mtime_ns) for file in place.rglob("*.py"))


PROGRAM = program_on_disk()  # when this process has begun


class Begin(NamedTuple):
    """The order to begin. The process sends its program, connects to the database, and sends `Session` and `Done`.

    Attributes:
        follows: one that was killed, whose last commit may not have reached the standby.
    """

    url: str
    keys: Path | None
    division: Division
    level: int  # of the log
    follows: bool


class Session(NamedTuple):
    """Of a process with PostgreSQL."""

    pid: int
    began: datetime


class Round(NamedTuple):
    """The input of a round that only the daemon knows.

    Attributes:
        time: of the daemon's clock, and the moment of that, which is the same in all processes.
        here: None while it is what was said last.
        version: of what is known of peers.
        rooms: of links, by number: those of which it is likely to be asked.
        happened: calls of the relay.
        arrivals: number and owner of the link, the body, whether it was forwarded.
    """

    time: tuple[datetime, float]
    here: LocalInstance | None
    proves: bool
    version: int
    rooms: dict[int, int]
    happened: list[tuple[str, tuple[Any, ...]]]
    arrivals: list[tuple[int, str, bytes, bool]]


class Question(NamedTuple):
    """A process wants to know something of the links or the peers."""

    what: str
    about: Any


class DaemonCall(NamedTuple):
    """A call to be made here: of a link by its number, or of the links, the peers, the log."""

    whom: int | str
    method: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]


class StatusMessage(NamedTuple):
    """The state of a process, once a second: what it remembers and holds, and its counts since the last one."""

    remembered: int
    held: tuple[int, int]
    forwarded: Sequence[Row]
    counted: metrics.Counted
    statements: tuple[Place, dict[str, tuple[int, float]]]


class Done(NamedTuple):
    """A round is over, and committed."""

    carried: int
    wake_at: float
    told: list[DaemonCall]
    seen: StatusMessage | None


class Failed(NamedTuple):
    """The failure of a round; the process ends."""

    is_of_database: bool
    text: str
    trace: str


class ProcessExited(InstanceError):
    """A process has ended without a word."""

    def __init__(self) -> None:
        super().__init__("The process of a share has ended.")


class Unstartable(InstanceError):
    """No process can be had that does what this one asks for."""


class Held(NamedTuple):
    """The forwarded messages that a share holds, as its process has reported."""

    held: tuple[int, int]
    rows: Sequence[Row]

    def drop_all(self, number: int) -> None:
        """The process has done so when it ended."""

    def observed(self) -> Sequence[Row]:
        """For sys.dm_broker_forwarded_messages."""
        return self.rows


class ShareProcess:
    """The relay of one share, in a process that ends with `close`, or with this process.

    One thread runs its rounds; `interrupt` is for any.
    """

    def __init__(
        self, begin: Begin, links: Links, peers: Peers, here: Callable[[], LocalInstance],
        clock: Callable[[], datetime], seconds: Callable[[], float],
    ) -> None:  # fmt: skip
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
        self._is_idle = self._is_ready = False  # the process waits for a question; it has connected
        self._url = begin.url
        self._session: Session | None = None
        self.wake_at = NEVER
        try:
            self._connection, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
                    stdin=subprocess.PIPE,  # the process ends when the other end is closed
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for this process, which lets it finish
                )
        except OSError as problem:  # as where a user may have no more of them
            raise Unstartable(f"No process can be started: {one_line(problem)}.") from problem
        with suppress(ProcessExited):  # `ready` says so
            self._say(begin)

    def ready(self) -> None:
        """Wait until it has connected.

        Raises:
            Unstartable: it is another program than this one, or none that runs.
            Gone, InstanceError: it has not.
        """
        if self._is_ready:
            return
        try:
            if self._hear() != PROGRAM:
                raise Unstartable(
                    "Another version was installed since the daemon began, so no process can join it: start it again."
                )
            self._session = self._hear()
            self._take(self._hear())
        except ProcessExited as gone:
            if self._process.wait() >= 0:  # the process was not killed
                raise Unstartable(f"A process {self.ending} as it began.") from gone
            raise
        self._is_ready = True

    def close(self) -> None:
        """Have it end: what it has counted is counted, and its transaction is over."""
        assert self._process.stdin is not None
        impatient = threading.Timer(CLOSE_TIMEOUT_S if self._is_idle else 0.0, self._process.kill)
        with ExitStack() as stack:
            stack.callback(self._end_session)
            stack.callback(self._process.wait)
            stack.enter_context(self._process.stdin)  # which has it end, whatever went wrong here
            stack.enter_context(self._connection)
            stack.callback(impatient.cancel)
            impatient.start()
            if self._is_idle:
                with suppress(InstanceError, RuntimeError):
                    self._say(None)
                    self._take(self._hear())
            self._process.wait()

    def _end_session(self) -> None:
        """PostgreSQL does not notice that it was killed, as long as a lock or a standby is waited for."""
        if self._session is None or self._process.returncode == 0:
            return
        with suppress(psycopg.Error, InstanceError), connect(self._url) as connection:  # without a server there is none
            execute(
                connection,
                "processes.end_session",
                "select pg_terminate_backend(pid, $3) from pg_stat_activity where pid = $1 and backend_start = $2",
                *self._session,
                int(CLOSE_TIMEOUT_S * 1000),
            )

    def interrupt(self, patience: float) -> None:
        """A commit that waits for a standby would wait for ever: whose thread this is ends its session."""
        self._process.kill()

    @property
    def ending(self) -> str:
        """Return how it has ended, when it has."""
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed ({signal.Signals(-code).name})" if -code in set(signal.Signals) else f"was killed ({-code})"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    # ---------------------------------------------------------------- as a relay

    def round(self, arrivals: list[Arrival]) -> int:
        """One round there, and what it has to say. Returns how much there was to do, in messages.

        Raises:
            Gone: the process was killed; all that it has committed is in the database.
            InstanceError, RuntimeError: the round has failed.
        """
        brought = [(self._number(one.link), one.link.owner, one.body, one.is_forwarded) for one in arrivals]
        self._busy.update(number for number, *_ in brought)
        rooms = {number: link.room for number in self._busy if (link := self._known.get(number)) is not None}
        self._busy.clear()
        happened, self._happened = self._happened, []
        here = self._here()
        news = None if here == self._said else here
        self._said = here
        time = self._clock(), self._seconds()
        self._say(Round(time, news, self._peers.proves, self._peers.version, rooms, happened, brought))
        while isinstance(answer := self._hear(), Question):
            self._say(self._answered(answer))
        return self._take(answer)

    def forget(self, shares: int = 1) -> None:
        """Do nothing: the process has just begun, and remembers nothing."""

    def lost(self, link: Link, status: str) -> None:
        """A link is over."""
        if link in self._numbers:
            self._happened.append(("lost", (self._numbers[link], status)))

    def reached(self, address: Address) -> None:
        """There is a link to that address now."""
        self._happened.append(("reached", (address,)))

    def unreached(self, address: Address, status: str) -> None:
        """There is no link to that address, and why."""
        self._happened.append(("unreached", (address, status)))

    def on_peer_role(self, address: Address, standing: Standing) -> None:
        """The broker at that address has said whether it is the principal."""
        self._happened.append(("on_peer_role", (address, standing)))

    @property
    def remembered(self) -> int:
        """Return how many conversations it has in memory, as it has said lately."""
        return 0 if self._seen is None else self._seen.remembered

    @property
    def forwarding(self) -> Held:
        """The forwarded messages that it holds, as it last reported."""
        return Held((0, 0), ()) if self._seen is None else Held(self._seen.held, self._seen.forwarded)

    # ---------------------------------------------------------------- what is said

    def _say(self, what: object) -> None:
        self._is_idle = False
        try:
            self._connection.send(what)
        except OSError as problem:
            raise ProcessExited from problem

    def _hear(self) -> Any:
        try:
            heard = self._connection.recv()
        except (EOFError, OSError) as problem:
            raise ProcessExited from problem
        if isinstance(heard, Failed):
            failure = InstanceError(heard.text) if heard.is_of_database else RuntimeError(heard.text)
            failure.add_note(heard.trace)
            raise failure
        return heard

    def _take(self, done: Done) -> int:
        assert isinstance(done, Done)
        self._is_idle = True
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

    def _answered(self, ask: Question) -> object:
        """Return the answer to a question that a process asks in a round."""
        match ask.what:
            case "reach":
                way = self._links.reach(ask.about)
                return way if isinstance(way, str) else (self._number(way), way.owner, way.room)
            case "room":
                link = self._known.get(ask.about)
                return 0 if link is None else link.room
            case _:
                return self._peers.owner_at(ask.about)

    def _number(self, link: Link) -> int:
        """By which the process knows it."""
        number = self._numbers.get(link)
        if number is None:
            number = self._numbers[link] = next(self._next)
            self._known[number] = link
        return number
