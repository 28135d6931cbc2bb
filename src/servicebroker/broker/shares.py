"""The shares of an instance: its conversations are divided among several relays, so that rounds overlap.

Each share has a relay, an inbox, a connection and a thread; those of the first one are the daemon's, which alone does
what is done once for an instance. How many there are follows load and cores (decision 253).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import psycopg

from servicebroker.broker import metrics
from servicebroker.broker.inboxes import Inbox, Inboxes
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.relay import Relay
from servicebroker.broker.store_operations import Store
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.division import Division
from servicebroker.store.connection import connect, one_line
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import execute

NAME = "servicebroker serve"  # of the connections
PACE = 0.02  # seconds between rounds that follow each other: many small transactions are carried together
MANY = 8  # messages that are much to do for one round
FALLBACK = 1.0  # seconds: how often a share looks when nothing wakes it
SOON = 0.01  # seconds until it looks again at first: a SEND that began before it slept has not notified
MOST = 4  # shares of one process: they compute one after the other
CORES = 2  # for each share, which keeps a thread and a server process busy
FULL = 0.6  # part of the time that all shares are in rounds, and more are started
COMPUTING = 0.8  # part of the time that this process computes, and more would only wait for each other
REST = 0.4  # part of the time for each share but one, and there is one less
SOME, LONG = 3, 10  # looks for which that has to last
GIVEN_UP = 60.0  # seconds until more connections are tried again

_log = logging.getLogger("servicebroker.broker")


@dataclass(slots=True, eq=False)
class Share:
    """A relay, what has come for it, and how busy its rounds are."""

    relay: Relay
    inbox: Inbox
    carried: int = 0  # messages, by the last round
    worked: float = 0.0  # seconds in rounds that carried something

    @property
    def wake_at(self) -> float:
        """When there is something to do, if nothing happens."""
        return min(self.relay.wake_at, self.inbox.wake_at)


class _Opened(NamedTuple):
    connection: DirectConnection
    store: PostgresStore


class Shares:
    """Those of one daemon, whose thread calls all of it.

    `make` makes a relay, `carry` runs a round; `count` of them, not as load asks for.

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
        carry: Callable[[Share, Store], int],
        count: int | None,
    ) -> None:
        self._url = url
        self._clock = clock
        self._inboxes = inboxes
        self._make = make
        self._wanted = count
        self._carry = carry
        self.all = [Share(make(), inboxes.shares[0])]
        self.is_awake = False
        self._load = Load()
        self._store: PostgresStore | None = None  # of the first share
        self._opened: list[_Opened] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.problem: Exception | None = None
        self._try_at = 0.0

    # ---------------------------------------------------------------- beginning and ending

    def begin(self, store: PostgresStore) -> None:
        """Serve with the daemon's store, and as many others as are always wanted."""
        self._store, self._load = store, Load()
        self._divide(self._open(self._wanted or 1))

    def end(self) -> None:
        """The rounds that run are finished, then there is one share, which has forgotten everything."""
        self._stop()
        self.problem = None
        self._shrink(1)
        self._inboxes.divide(1)
        self._load = Load()
        self.forget()

    def forget(self) -> None:
        """Begin anew from what the database holds."""
        for share in self.all:
            share.relay.forget(len(self.all))
        self._inboxes.forget_links()

    def interrupt(self, patience: float) -> None:
        """Commits that wait for a standby would wait for ever. From any thread."""
        for one in self._opened:
            with suppress(psycopg.Error):
                one.connection.cancel_safe(timeout=patience)

    def _divide(self, opened: list[_Opened]) -> None:
        """Among the first one and these from now on: between rounds, and all find what is theirs in the database.

        Raises:
            Exception: the last round of one of them has failed, as when a commit has not reached its standby.
        """
        count = 1 + len(opened)
        self._stop()
        if self.problem is not None:
            for one in opened:
                one.connection.close()
            raise self.problem
        self._shrink(count)
        self._inboxes.divide(count)
        self.all += [Share(self._make(), inbox) for inbox in self._inboxes.shares[len(self.all) :]]
        assert self._store is not None
        self._store.division = Division(0, count)
        self.forget()
        self._over, self._opened = threading.Event(), opened
        for share, one in zip(self.all[1:], opened, strict=True):
            name = f"servicebroker share {one.store.division.number}"
            self._threads.append(threading.Thread(target=self._run, args=(share, one), name=name, daemon=True))
            self._threads[-1].start()

    def _open(self, count: int) -> list[_Opened]:
        """Connections for all shares but the first."""
        with ExitStack() as stack:
            opened = []
            for number in range(1, count):
                connection = stack.enter_context(connect(self._url, application_name=NAME))
                store = PostgresStore(connection, self._clock, Division(number, count))
                connection.add_notice_handler(store.notice)
                pin_plans(connection)
                opened.append(_Opened(connection, store))
            stack.pop_all()
        return opened

    def _stop(self) -> None:
        self._over.set()
        self._inboxes.ring()
        for thread in self._threads:
            thread.join()
        self._threads, self._opened = [], []

    def _shrink(self, count: int) -> None:
        """What a share that goes would have passed on is sent again by its sender."""
        for share in self.all[count:]:
            share.relay.forwarding.drop_all(11293)
        del self.all[count:]

    # ---------------------------------------------------------------- while they run

    def show(self) -> None:
        """What they remember and hold, as metrics."""
        held = [share.relay.forwarding.held for share in self.all]
        metrics.show_relays(
            sum(share.relay.remembered for share in self.all),
            sum(one[0] for one in held),
            sum(one[1] for one in held),
        )

    def forwarded(self) -> list[tuple[object, ...]]:
        """What they hold for others, for sys.dm_broker_forwarded_messages."""
        return [row for share in self.all for row in share.relay.forwarding.observed()]

    def adapt(self) -> None:
        """Each second: one more while all are busy, one less while they rest."""
        count = len(self.all)
        wanted = self._load.wanted([share.worked for share in self.all])
        if self._wanted is not None or wanted == count or time.monotonic() < self._try_at:
            return
        try:
            opened = self._open(wanted)
        except (psycopg.Error, InstanceError) as problem:
            self._try_at = time.monotonic() + GIVEN_UP
            _log.warning("It stays at %d rounds at a time: %s", count, one_line(problem))
            return
        self._divide(opened)
        _log.info("Conversations are divided among %d rounds at a time.", wanted)

    def _run(self, share: Share, opened: _Opened) -> None:
        """A share's thread, until it is told to end or fails."""
        try:
            with opened.connection:
                self._rounds(share, opened.store, self._over)
        except Exception as problem:
            self.problem = problem
            self._inboxes.ring()

    def _rounds(self, share: Share, store: Store, over: threading.Event) -> None:
        """As the daemon's, but nobody notifies this one: while the daemon is awake it looks at each pace."""
        pause, bell = SOON, share.inbox.bell
        while not over.is_set():
            if self._carry(share, store) >= MANY:
                pause = SOON
                if share.wake_at > time.monotonic():
                    over.wait(PACE)
                continue
            pause = SOON if share.carried else min(pause * 5, PACE if self.is_awake else FALLBACK)
            if bell.wait(min(pause, max(0.0, share.wake_at - time.monotonic()))):
                bell.clear()
                pause = SOON


class Load:
    """How many shares are wanted, by how busy those are that there are."""

    def __init__(self) -> None:
        self._before: list[float] = []
        self._looked_at, self._computed = time.monotonic(), time.process_time()
        self._full = self._resting = 0  # looks

    def wanted(self, worked: list[float]) -> int:
        """How many from now on. `worked`: how long each has been in rounds in all."""
        now, computed, count = time.monotonic(), time.process_time(), len(worked)
        elapsed = max(now - self._looked_at, 1e-6)
        busy = [(one - before) / elapsed for one, before in zip(worked, self._before, strict=False)]
        computing = (computed - self._computed) / elapsed
        is_known = len(self._before) == count
        self._before, self._looked_at, self._computed = worked, now, computed
        self._full = self._full + 1 if is_known and min(busy) >= FULL and computing < COMPUTING else 0
        self._resting = self._resting + 1 if is_known and sum(busy) < REST * (count - 1) else 0
        if self._full >= SOME and count < most():
            self._full = 0
            return count + 1
        if self._resting >= LONG:
            self._resting = 0
            return count - 1
        return count


def most() -> int:
    """Shares at most, on the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST, cores // CORES))


def pin_plans(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """By indexes, and kept: a plan for one array costs more than to run it, and one for an empty table is bad soon."""
    execute(
        connection,
        "shares.pin_plans",
        "select set_config(name, value, false) from (values ('plan_cache_mode', 'force_generic_plan'), "
        "('enable_seqscan', 'off'), ('enable_bitmapscan', 'off')) pinned (name, value)",
    )
