"""The shares (partitions) of a daemon's conversations: several relays, whose rounds run in parallel.

Each share has a relay, an inbox, a database connection and a thread. The first share is the daemon's own; its thread
also does the work that an instance needs only once. The number of shares follows load and cores (decision 253). The
relays and connections of the other shares may be in child processes.

`broker/sharing` makes the decisions; this file has the threads and connections that carry them out.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import psycopg

from servicebroker.broker import metrics
from servicebroker.broker.inboxes import Inboxes
from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.processes import ShareProcess
from servicebroker.broker.relay import Relay
from servicebroker.broker.sharing.growth import Growth, Load
from servicebroker.broker.sharing.lifecycle import FIRST_ACTIONS, Event, ShareAction, ShareLife
from servicebroker.broker.sharing.messages import ProcessExited, Unstartable
from servicebroker.broker.sharing.pace import SharePace, Wait
from servicebroker.broker.sharing.share import Share, ShareSet
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.division import Division
from servicebroker.store.connection import connect, one_line
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import execute

NAME = "servicebroker serve"  # application_name of the connections
MAX_THREADS = 4  # shares of one process: only one of them runs Python at a time
MAX_PROCESSES = 8  # shares in child processes, unless --processes gives a number
CORES_PER_SHARE = 2  # cores for one share: its thread and its PostgreSQL backend
CORES_OF_ONE_PROCESS = 4  # cores in use by a daemon of one process, its backend, a sender and a reader
RESTART_INTERVAL_S = 2.0  # seconds between two child processes of one share
# Deadlines of a round, in ms. Rounds avoid row locks and locked queues, so only a lock of one of the broker's own
# tables makes one wait. Commits have no deadline, because they may wait for a standby (postgres_store.py).
LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 120_000
DEADLINE_ERRORS = psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled

_log = logging.getLogger("servicebroker.broker")


class _Opened(NamedTuple):
    """The connection and store of a share in this process. `follows`: it replaces a killed process."""

    connection: DirectConnection
    store: PostgresStore
    follows: bool = False

    def ready(self) -> None:
        """Wait until the standby has the last commit of a killed process. Only then may it be acknowledged."""
        if self.follows:
            self.store.prove()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def interrupt(self, timeout: float) -> None:
        """Cancel the running statement."""
        with suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=timeout)


def open_share(
    url: str,
    clock: Callable[[], datetime],
    division: Division,
    kept: KeptDeliveries | None = None,
    *,
    follows: bool = False,
) -> _Opened:
    """Return a connection with the store of one share."""
    with ExitStack() as stack:
        connection = stack.enter_context(connect(url, application_name=NAME))
        store = PostgresStore(connection, clock, division, kept)
        connection.add_notice_handler(store.notice)
        prepare_session(connection)
        stack.pop_all()
    return _Opened(connection, store, follows)


class Serving(NamedTuple):
    """A process that serves the instance, by the columns of servicebroker.serving_processes.

    Attributes:
        memory: resident bytes; None if the operating system does not report them.
        replaced: how often the process was replaced.
        ending: how the last process ended.
    """

    number: int
    process_id: int
    memory: int | None
    replaced: int = 0
    last_time: datetime | None = None
    ending: str | None = None


class Shares:
    """The shares of one daemon, whose thread calls every method.

    Args:
        make: makes a relay.
        run_round: runs one round of a share.
        count: the fixed number of shares; None lets the load decide.
        start: starts a child process for a share; its second argument is True if it replaces a killed one.

    Attributes:
        is_polling: the daemon polls, and senders send no NOTIFY.
        problem: the error that has ended a share's thread. Then all shares must restart.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], datetime],
        inboxes: Inboxes,
        make: Callable[[], Relay],
        run_round: Callable[[Share], int],
        count: int | None,
        start: Callable[[Division, bool], ShareProcess] | None = None,
    ) -> None:
        self._url = url
        self._clock = clock
        self._inboxes = inboxes
        self._run_share_round = run_round
        self._start = start
        self._set = ShareSet(make, inboxes, in_processes=start is not None)
        self.is_polling = False
        self._growth = Growth(self._new_load(), count)
        self._store: PostgresStore | None = None  # the store of the first share
        self._opened: list[_Opened | ShareProcess] = []
        self._opening: Future[list[_Opened | ShareProcess]] | None = None
        self._replaced: dict[int, tuple[int, datetime, str]] = {}  # count, last time, and how that process had ended
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.problem: Exception | None = None

    @property
    def all(self) -> list[Share]:
        """The shares; the first one is the daemon's own."""
        return self._set.all

    # ---------------------------------------------------------------- beginning and ending

    def begin(self, store: PostgresStore) -> None:
        """Begin with the daemon's own share. `adapt` adds others."""
        self._store = store
        self._growth.begin(self._new_load())
        self.all[0].store = store
        self._divide([])

    def end(self) -> None:
        """Finish the running rounds, and go back to one share with an empty memory."""
        self._stop()
        if self._opening is not None:
            self._opening.add_done_callback(_close)
        self.problem = self._opening = self._store = None
        self._set.unite()
        self._growth.begin(self._new_load())

    def interrupt(self, timeout: float) -> None:
        """Cancel commits that wait for a standby. May be called from any thread. No killed process is replaced then."""
        self._over.set()
        for opened in list(self._opened):
            opened.interrupt(timeout)

    def _new_load(self) -> Load:
        in_processes = self._start is not None
        return Load(
            max_shares(in_processes=in_processes), time.monotonic(), time.process_time(), in_processes=in_processes
        )

    def _divide(self, opened: list[_Opened | ShareProcess]) -> None:
        """Divide the conversations among the first share and these, between rounds. All restart from the database.

        Raises:
            Exception: the last round of a share has failed, for example because a commit has not reached the standby.
        """
        self._stop()
        if self.problem is not None:
            for share in opened:
                share.close()
            raise self.problem
        assert self._store is not None
        self._set.divide(self._store, opened)
        self._over, self._opened = threading.Event(), opened
        for number in range(1, len(self.all)):
            name = f"servicebroker share {number}"
            thread = threading.Thread(target=_ShareThread(self, number, self._over).run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads can be started: restart with one share for a while
                self._growth.rest(time.monotonic())
                for share in opened[number - 1 :]:
                    share.close()
                raise
            self._threads.append(thread)

    def _open(self, count: int) -> Future[list[_Opened | ShareProcess]]:
        """Open the other shares in a thread, while rounds go on: threads of this process, or child processes."""
        future: Future[list[_Opened | ShareProcess]] = Future()

        def work() -> None:
            try:
                future.set_result(self._open_shares([Division(number, count) for number in range(1, count)]))
            except Exception as problem:
                future.set_exception(problem)

        threading.Thread(target=work, name="servicebroker shares", daemon=True).start()
        return future

    def _open_shares(self, divisions: list[Division]) -> list[_Opened | ShareProcess]:
        deliveries = None if self._store is None else self._store.kept
        with ExitStack() as stack:
            opened: list[_Opened | ShareProcess] = []
            for division in divisions:
                share = (
                    self._start(division, False)
                    if self._start
                    else open_share(self._url, self._clock, division, deliveries)
                )
                opened.append(stack.enter_context(closing(share)))
            for share in opened:
                share.ready()
            stack.pop_all()
        return opened

    def _stop(self) -> None:
        self._over.set()
        self._inboxes.wake()
        for thread in self._threads:
            thread.join()
        self._threads, self._opened = [], []

    # ---------------------------------------------------------------- while they run

    def show(self) -> None:
        """Update the metrics of the shares' memory."""
        held = [share.relay.forwarding.held for share in self.all]
        metrics.show_relays(
            sum(share.relay.remembered for share in self.all),
            sum(count for count, _ in held),
            sum(size for _, size in held),
            sum(isinstance(share.relay, ShareProcess) for share in self.all) + 1,
        )

    def forwarded(self) -> list[tuple[object, ...]]:
        """Return the forwarded messages that the shares hold, for sys.dm_broker_forwarded_messages."""
        return [row for share in self.all for row in share.relay.forwarding.observed()]

    def serving(self) -> list[Serving]:
        """Return the processes that run the rounds."""
        pids = {1: os.getpid()} | {
            number: share.pid for number, share in enumerate(self._opened, 2) if isinstance(share, ShareProcess)
        }
        return [Serving(number, pid, _resident(pid), *self._replaced.get(number, ())) for number, pid in pids.items()]

    def adapt(self) -> None:
        """Adapt the number of shares to the load, or to the fixed number. Called once a second.

        New shares are opened while the present ones run. A later call divides the conversations among them.
        """
        if self._store is None:
            return
        count = len(self.all)
        try:
            if self._opening is None:
                worked = [share.worked for share in self.all]
                wanted = self._growth.wanted_now(worked, time.monotonic(), time.process_time())
                if wanted is not None:
                    self._opening = self._open(wanted)
                return
            if not self._opening.done():
                return
            opening, self._opening = self._opening, None
            opened = opening.result()
        except (psycopg.Error, InstanceError, OSError, RuntimeError) as problem:
            if self._growth.failed(reason := one_line(problem), time.monotonic()):
                _log.warning("The number of parallel rounds stays at %d: %s", count, reason)
            return
        self._growth.opened()
        self._divide(opened)
        _log.info("Conversations are divided among %d rounds at a time.", len(self.all))

    def fail(self, problem: Exception) -> None:
        """Record that the thread of a share has failed, so that all shares restart."""
        self.problem = problem
        self._inboxes.wake()

    def note_killed(self, number: int, ending: str) -> None:
        """Count a killed process."""
        metrics.REPLACED.inc()
        times, *_ = self._replaced.get(number, (0,))
        self._replaced[number] = times + 1, self._clock(), ending
        _log.warning("Process %d of %d %s: another one takes its place.", number, len(self.all), ending)

    def rounds(self, share: Share, over: threading.Event) -> None:
        """Run the rounds of a share until it ends."""
        pace, wake_event = SharePace(), share.inbox.wake_event
        while not over.is_set():
            handled = self._run_share_round(share)
            wait = pace.after_round(handled, share.wake_at, time.monotonic(), is_polling=self.is_polling)
            if _wait(wait, wake_event, over):
                pace.on_wake()

    def opened_at(self, number: int) -> _Opened | ShareProcess:
        """Return the connection or process of a share."""
        return self._opened[number - 1]

    def replace(self, number: int) -> ShareProcess:
        """Start a process in the place of one that was killed.

        Raises:
            Unstartable: no process can be started.
        """
        assert self._start is not None
        self._opened[number - 1] = started = self._start(Division(number, len(self.all)), True)
        return started

    def open_here(self, number: int, problem: Exception | None) -> _Opened:
        """Run the share in this process, because no child process can be started."""
        count, share = len(self.all), self.all[number]
        _log.warning("The daemon itself does the work of process %d of %d: %s", number + 1, count, problem)
        self._set.move_into_daemon(share)
        self._opened[number - 1] = opened = open_share(self._url, self._clock, Division(number, count), follows=True)
        return opened


class _ShareThread:
    """The thread of a share, which carries out the actions of `sharing/lifecycle.py` until the share ends or fails."""

    def __init__(self, shares: Shares, number: int, over: threading.Event) -> None:
        self._shares = shares
        self._number = number
        self._over = over
        self._share = shares.all[number]
        self._opened: _Opened | ShareProcess | None = shares.opened_at(number)
        self._began = time.monotonic()
        self._problem: Exception | None = None

    def run(self) -> None:
        """Carry out the actions of one step after the other."""
        life, actions = ShareLife(), list(FIRST_ACTIONS)
        try:
            while actions:
                event = self._attempt(actions.pop(0))
                if event is not None:
                    actions = list(life.on_event(event))
        except RuntimeError as problem:  # an impossible event: a share without a thread must be reported
            self._shares.fail(problem)

    def _attempt(self, act: ShareAction) -> Event | None:
        try:
            return self._do(act)
        except ProcessExited as problem:
            self._problem = problem
            return Event.EXITED_AT_END if self._over.is_set() else Event.EXITED
        except Unstartable as problem:
            self._problem = problem
            return Event.UNSTARTABLE
        except Exception as problem:
            self._problem = problem
            return Event.ERROR

    def _do(self, act: ShareAction) -> Event | None:
        """Carry out an act. Returns the event that it ends with, if any."""
        match act:
            case ShareAction.AWAIT:
                assert self._opened is not None
                self._opened.ready()
                return Event.READY
            case ShareAction.RUN_ROUNDS:
                assert self._opened is not None
                self._share.use_connection(self._opened)
                self._shares.rounds(self._share, self._over)
                return Event.STOP_REQUESTED
            case ShareAction.CLOSE:
                opened, self._opened = self._opened, None
                if opened is not None:
                    opened.close()
            case ShareAction.COUNT_KILLED:
                self._shares.note_killed(self._number + 1, self._ending)
            case ShareAction.PAUSE:
                is_over = self._over.wait(max(0.0, self._began + RESTART_INTERVAL_S - time.monotonic()))
                return Event.STOP_REQUESTED if is_over else Event.PAUSED
            case ShareAction.REPLACE:
                self._began = time.monotonic()
                self._opened = self._shares.replace(self._number)
            case ShareAction.OPEN_IN_DAEMON:
                self._began = time.monotonic()
                self._opened = self._shares.open_here(self._number, self._problem)
            case ShareAction.REPORT_PROBLEM:
                assert self._problem is not None
                self._shares.fail(self._problem)
        return None

    @property
    def _ending(self) -> str:
        """The way in which the process has ended."""
        ended = self._shares.opened_at(self._number)
        assert isinstance(ended, ShareProcess)
        return ended.ending


def _wait(wait: Wait, wake_event: threading.Event, over: threading.Event) -> bool:
    """Wait. Returns whether the wake event has ended the wait."""
    if not wait.is_interruptible:
        over.wait(wait.seconds)
        return False
    if wake_event.wait(wait.seconds):
        wake_event.clear()
        return True
    return False


def _close(opening: Future[list[_Opened | ShareProcess]]) -> None:
    """Close opened shares that are no longer needed."""
    if opening.exception() is None:
        for share_connection in opening.result():
            share_connection.close()


def _resident(pid: int) -> int | None:
    """Return the memory of a process, in whole megabytes, or None. Smaller changes are not reported."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # on another system, or it has just ended
        return None
    return (pages * os.sysconf("SC_PAGE_SIZE") >> 20) << 20


def max_shares(*, in_processes: bool = False) -> int:
    """Return the maximum number of shares, by the cores that this process may use."""
    return max(1, min(MAX_PROCESSES if in_processes else MAX_THREADS, cores() // CORES_PER_SHARE))


def has_many_cores() -> bool:
    """Return whether this process may use more cores than a daemon of one process needs."""
    return cores() > CORES_OF_ONE_PROCESS


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_session(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Set deadlines for the statements of rounds. Make the session use generic plans with index scans.

    Planning these statements costs more than running them. A plan for an empty table is slow once it has rows.
    """
    execute(
        connection,
        "shares.prepare_session",
        "select set_config(name, value, false) from (values ('plan_cache_mode', 'force_generic_plan'), "
        "('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('lock_timeout', $1), ('statement_timeout', $2)) "
        "pinned (name, value)",
        str(LOCK_TIMEOUT_MS),
        str(STATEMENT_TIMEOUT_MS),
    )
