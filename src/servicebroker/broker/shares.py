"""The shares of an instance: its conversations are divided among several relays, so that rounds overlap.

Each share has a relay, an inbox, a connection and a thread; those of the first one are the daemon's, which alone does
what is done once for an instance. How many there are follows load and cores (decision 253). The relays of the others,
with their connections, may be in processes of their own (decision 252).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg

from servicebroker.broker import metrics
from servicebroker.broker.inboxes import Inbox, Inboxes
from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.processes import ProcessExited, ShareProcess, Unstartable
from servicebroker.broker.relay import Relay
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.division import Division
from servicebroker.store.connection import connect, one_line
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import execute

NAME = "servicebroker serve"  # of the connections
ROUND_PAUSE_S = 0.02  # seconds between rounds that follow each other: many small transactions are carried together
BUSY_MESSAGES = 8  # messages that are much to do for one round
POLL_INTERVAL_S = 1.0  # seconds: how often a share looks when nothing wakes it
FIRST_POLL_S = 0.01  # seconds until it looks again at first: a SEND that began before it slept has not notified
MAX_THREADS = 4  # shares of one process: they compute one after the other
MAX_PROCESSES = 8  # shares at most that have processes of their own, where nobody has said how many
CORES_PER_SHARE = 2  # for each share, which keeps a thread and a server process busy
CORES_OF_ONE_PROCESS = 4  # cores that are used up by one process, its server's and those who send and receive
FULL_LOAD = 0.6  # part of the time that shares are in rounds, on average, and more are started
FULL_CPU = 0.8  # part of the time that this process computes, and more would only wait for each other
LOW_LOAD = 0.55  # part of the time for each share but one, and there is one less
LOOKS_TO_GROW, LOOKS_TO_SHRINK = 3, 10  # looks for which that has to last
GIVEN_UP = 60.0  # seconds until more connections are tried again
RESTART_INTERVAL_S = 2.0  # seconds between two that begin for one share

_log = logging.getLogger("servicebroker.broker")


@dataclass(slots=True, eq=False)
class Share:
    """A relay, its store where it is of this process, what has come for it, and how busy its rounds are."""

    relay: Relay | ShareProcess
    inbox: Inbox
    store: PostgresStore | None = None
    carried: int = 0  # messages, by the last round
    worked: float = 0.0  # seconds in rounds that carried something

    @property
    def wake_at(self) -> float:
        """When there is something to do, if nothing happens."""
        return min(self.relay.wake_at, self.inbox.wake_at)

    def works_with(self, opened: _Opened | ShareProcess) -> None:
        """From now on: the store of its relay, or the process that has both."""
        if isinstance(opened, ShareProcess):
            self.relay = opened
        else:
            self.store = opened.store


class _Opened(NamedTuple):
    """The connection and store of a share in this process; it may follow a process that was killed."""

    connection: DirectConnection
    store: PostgresStore
    follows: bool = False

    def ready(self) -> None:
        """Wait until the standby has what a killed process committed: only then may it be acknowledged."""
        if self.follows:
            self.store.prove()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def interrupt(self, patience: float) -> None:
        """Cancel what the server is at."""
        with suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=patience)


def open_share(
    url: str,
    clock: Callable[[], datetime],
    division: Division,
    kept: KeptDeliveries | None = None,
    *,
    follows: bool = False,
) -> _Opened:
    """A connection for that share."""
    with ExitStack() as stack:
        connection = stack.enter_context(connect(url, application_name=NAME))
        store = PostgresStore(connection, clock, division, kept)
        connection.add_notice_handler(store.notice)
        pin_plans(connection)
        stack.pop_all()
    return _Opened(connection, store, follows)


class Serving(NamedTuple):
    """A process that serves the instance, by the columns of servicebroker.serving_processes.

    Attributes:
        memory: bytes that are resident; None where the system does not tell.
        replaced: how often another one has taken its place.
        ending: how the last one has ended.
    """

    number: int
    process_id: int
    memory: int | None
    replaced: int = 0
    last_time: datetime | None = None
    ending: str | None = None


class Shares:
    """The shares of one daemon, whose thread calls every method.

    `make` makes a relay, `carry` runs a round; `count` of them, not as load asks for; `start` makes processes for them,
    with True in the place of one that was killed.

    Attributes:
        all: the first one is the share of the daemon's own thread and connection.
        is_awake: the daemon works, and nobody is notified of what is sent.
        problem: what has ended the thread of one of them; then all are to begin anew.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], datetime],
        inboxes: Inboxes,
        make: Callable[[], Relay],
        carry: Callable[[Share], int],
        count: int | None,
        start: Callable[[Division, bool], ShareProcess] | None = None,
    ) -> None:
        self._url = url
        self._clock = clock
        self._inboxes = inboxes
        self._make = make
        self._wanted = count
        self._carry = carry
        self._start = start
        self.all = [Share(make(), inboxes.shares[0])]
        self.is_awake = False
        self._load = self._new_load()
        self._store: PostgresStore | None = None  # of the first share
        self._opened: list[_Opened | ShareProcess] = []
        self._opening: Future[list[_Opened | ShareProcess]] | None = None
        self._replaced: dict[int, tuple[int, datetime, str]] = {}  # count, last time, and how that process had ended
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.problem: Exception | None = None
        self._try_at = 0.0
        self._told = ""

    # ---------------------------------------------------------------- beginning and ending

    def begin(self, store: PostgresStore) -> None:
        """Serve with the daemon's store alone; `adapt` brings the others."""
        self._store, self._load, self._try_at = store, self._new_load(), 0.0
        self.all[0].store = store
        self._divide([])

    def end(self) -> None:
        """The rounds that run are finished, then there is one share, which has forgotten everything."""
        self._stop()
        if self._opening is not None:
            self._opening.add_done_callback(_close)
        self.problem = self._opening = self._store = None
        self._shrink(1)
        self._inboxes.divide(1)
        self._load = self._new_load()
        self.forget()

    def forget(self) -> None:
        """Begin anew from what the database holds."""
        for share in self.all:
            share.relay.forget(len(self.all))
        self._inboxes.forget_links()

    def interrupt(self, patience: float) -> None:
        """Commits that wait for a standby would wait for ever. From any thread; nobody replaces who is killed here."""
        self._over.set()
        for one in list(self._opened):
            one.interrupt(patience)

    def _new_load(self) -> Load:
        return Load(in_processes=self._start is not None)

    def _divide(self, opened: list[_Opened | ShareProcess]) -> None:
        """Among the first one and these from now on: between rounds, and all find what is theirs in the database.

        Raises:
            Exception: the last round of one of them has failed, as when a commit has not reached its standby.
        """
        count = 1 + len(opened)
        self._stop()
        if self.problem is not None:
            for one in opened:
                one.close()
            raise self.problem
        self._shrink(count if self._start is None else 1)
        self._inboxes.divide(count)
        for number, inbox in list(enumerate(self._inboxes.shares))[len(self.all) :]:
            one = opened[number - 1]
            self.all.append(Share(one if isinstance(one, ShareProcess) else self._make(), inbox))
        for share, one in zip(self.all[1:], opened, strict=True):
            share.works_with(one)
        assert self._store is not None
        self._store.division = Division(0, count)
        self.forget()
        self._over, self._opened = threading.Event(), opened
        for number in range(1, count):
            name = f"servicebroker share {number}"
            thread = threading.Thread(target=self._run, args=(number, self._over), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads may be started: all begin anew, with one share for a while
                self._try_at = time.monotonic() + GIVEN_UP
                for one in opened[number - 1 :]:
                    one.close()
                raise
            self._threads.append(thread)

    def _open(self, count: int) -> Future[list[_Opened | ShareProcess]]:
        """Connections for all shares but the first, here or in processes: that takes a while, and rounds go on."""
        future: Future[list[_Opened | ShareProcess]] = Future()

        def work() -> None:
            try:
                future.set_result(self._opened_for([Division(number, count) for number in range(1, count)]))
            except Exception as problem:
                future.set_exception(problem)

        threading.Thread(target=work, name="servicebroker shares", daemon=True).start()
        return future

    def _opened_for(self, divisions: list[Division]) -> list[_Opened | ShareProcess]:
        kept = None if self._store is None else self._store.kept
        with ExitStack() as stack:
            opened: list[_Opened | ShareProcess] = []
            for division in divisions:
                one = (
                    self._start(division, False) if self._start else open_share(self._url, self._clock, division, kept)
                )
                opened.append(stack.enter_context(closing(one)))
            for one in opened:
                one.ready()
            stack.pop_all()
        return opened

    def _stop(self) -> None:
        self._over.set()
        self._inboxes.ring()
        for thread in self._threads:
            thread.join()
        self._threads, self._opened = [], []

    def _shrink(self, count: int) -> None:
        """Remove the last shares. Senders repeat what those would have passed on."""
        for share in self.all[count:]:
            share.relay.forwarding.drop_all(11293)
        del self.all[count:]

    # ---------------------------------------------------------------- while they run

    def show(self) -> None:
        """Show as metrics what the shares remember and hold."""
        held = [share.relay.forwarding.held for share in self.all]
        metrics.show_relays(
            sum(share.relay.remembered for share in self.all),
            sum(one[0] for one in held),
            sum(one[1] for one in held),
            sum(isinstance(share.relay, ShareProcess) for share in self.all) + 1,
        )

    def forwarded(self) -> list[tuple[object, ...]]:
        """Return the forwarded messages that the shares hold, for sys.dm_broker_forwarded_messages."""
        return [row for share in self.all for row in share.relay.forwarding.observed()]

    def serving(self) -> list[Serving]:
        """The processes that run their rounds."""
        pids = {1: os.getpid()} | {
            number: one.pid for number, one in enumerate(self._opened, 2) if isinstance(one, ShareProcess)
        }
        return [Serving(number, pid, _resident(pid), *self._replaced.get(number, ())) for number, pid in pids.items()]

    def adapt(self) -> None:
        """Each second: one more while they are busy, one less while they rest; or as many as are always wanted.

        They are opened beside those that run, and conversations are divided among them at a look after that.
        """
        if self._store is None:
            return
        count = len(self.all)
        try:
            if self._opening is None:
                wanted = self._wanted or self._load.wanted([share.worked for share in self.all])
                if wanted != count and time.monotonic() >= self._try_at:
                    self._opening = self._open(wanted)
                return
            if not self._opening.done():
                return
            opening, self._opening = self._opening, None
            opened = opening.result()
        except (psycopg.Error, InstanceError, OSError, RuntimeError) as problem:
            self._try_at = time.monotonic() + GIVEN_UP
            if self._told != (told := one_line(problem)):
                self._told = told
                _log.warning("It stays at %d rounds at a time: %s", count, told)
            return
        self._told = ""
        self._divide(opened)
        _log.info("Conversations are divided among %d rounds at a time.", len(self.all))

    def _run(self, number: int, over: threading.Event) -> None:
        """A share's thread, until it is told to end or fails. A process that somebody has killed is replaced."""
        count, share, division = len(self.all), self.all[number], Division(number, len(self.all))
        another: Callable[[], _Opened | ShareProcess] = partial(self._opened.__getitem__, number - 1)
        try:
            while True:
                began = time.monotonic()
                try:
                    self._opened[number - 1] = opened = another()
                    with closing(opened):
                        opened.ready()
                        share.works_with(opened)
                        self._rounds(share, over)
                    return
                except ProcessExited:
                    assert isinstance(opened, ShareProcess)
                    if not over.is_set():
                        self._note_killed(number + 1, opened.ending)
                        over.wait(max(0.0, began + RESTART_INTERVAL_S - time.monotonic()))
                    if over.is_set() or self._start is None:  # no process begins here to wait for its last commit
                        raise
                    another = partial(self._start, division, True)
                except Unstartable as problem:
                    _log.warning("What process %d of %d did is done in the first: %s", number + 1, count, problem)
                    share.relay = self._make()
                    share.relay.forget(count)
                    another = partial(open_share, self._url, self._clock, division, follows=True)
        except Exception as problem:
            self.problem = problem
            self._inboxes.ring()

    def _note_killed(self, number: int, ending: str) -> None:
        metrics.REPLACED.inc()
        times, *_ = self._replaced.get(number, (0,))
        self._replaced[number] = times + 1, self._clock(), ending
        _log.warning("Process %d of %d %s: another one takes its place.", number, len(self.all), ending)

    def _rounds(self, share: Share, over: threading.Event) -> None:
        """As the daemon's, but nobody notifies this one: while the daemon is awake it looks at each pace."""
        pause, bell = FIRST_POLL_S, share.inbox.bell
        while not over.is_set():
            if self._carry(share) >= BUSY_MESSAGES:
                pause = FIRST_POLL_S
                if share.wake_at > time.monotonic():
                    over.wait(ROUND_PAUSE_S)
                continue
            pause = (
                FIRST_POLL_S if share.carried else min(pause * 5, ROUND_PAUSE_S if self.is_awake else POLL_INTERVAL_S)
            )
            if bell.wait(min(pause, max(0.0, share.wake_at - time.monotonic()))):
                bell.clear()
                pause = FIRST_POLL_S


class Load:
    """The number of shares to have, by how busy the present ones are.

    Those that are in processes do not wait for what this one computes.
    """

    def __init__(self, *, in_processes: bool = False) -> None:
        self._in_processes = in_processes
        self._before: list[float] = []
        self._looked_at, self._computed = time.monotonic(), time.process_time()
        self._full = self._resting = 0  # looks

    def wanted(self, worked: list[float]) -> int:
        """Return how many from now on. `worked`: how long each has been in rounds in all."""
        now, computed, count = time.monotonic(), time.process_time(), len(worked)
        elapsed = max(now - self._looked_at, 1e-6)
        busy = [(one - before) / elapsed for one, before in zip(worked, self._before, strict=False)]
        computing = 0.0 if self._in_processes else (computed - self._computed) / elapsed
        is_known = len(self._before) == count
        self._before, self._looked_at, self._computed = worked, now, computed
        self._full = self._full + 1 if is_known and sum(busy) >= FULL_LOAD * count and computing < FULL_CPU else 0
        self._resting = self._resting + 1 if is_known and sum(busy) < LOW_LOAD * (count - 1) else 0
        if self._full >= LOOKS_TO_GROW and count < most(in_processes=self._in_processes):
            self._full = 0
            return count + 1
        if self._resting >= LOOKS_TO_SHRINK:
            self._resting = 0
            return count - 1
        return count


def _close(opening: Future[list[_Opened | ShareProcess]]) -> None:
    """Close connections that nobody waits for any more."""
    if opening.exception() is None:
        for one in opening.result():
            one.close()


def _resident(pid: int) -> int | None:
    """The memory of a process, in whole megabytes: less is no news."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # on another system, or it has just ended
        return None
    return (pages * os.sysconf("SC_PAGE_SIZE") >> 20) << 20


def most(*, in_processes: bool = False) -> int:
    """Shares at most, on the cores that this process may use."""
    return max(1, min(MAX_PROCESSES if in_processes else MAX_THREADS, cores() // CORES_PER_SHARE))


def are_many_cores() -> bool:
    """Return whether one Python process would be the bottleneck before the cores are."""
    return cores() > CORES_OF_ONE_PROCESS


def cores() -> int:
    """Return how many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pin_plans(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """By indexes, and kept: a plan for one array costs more than to run it, and one for an empty table is bad soon."""
    execute(
        connection,
        "shares.pin_plans",
        "select set_config(name, value, false) from (values ('plan_cache_mode', 'force_generic_plan'), "
        "('enable_seqscan', 'off'), ('enable_bitmapscan', 'off')) pinned (name, value)",
    )
