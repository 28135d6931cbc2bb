"""A daemon that divides its conversations among shares (partitions), in simulated time.

The decisions are those of `broker/sharing`. In the product `broker/shares.py`, `broker/processes.py` and
`broker/share_process.py` carry them out with threads, pipes and processes. Here events do: between two operations of a
share's round (transaction), another share may run a round, or the process of the share or the daemon may be killed.
Messages between a process and the daemon are pickled, as in a pipe.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

import psycopg

from servicebroker.broker.inboxes import Inbox
from servicebroker.broker.policy import Policy
from servicebroker.broker.relay import Relay
from servicebroker.broker.shares import RESTART_INTERVAL_S
from servicebroker.broker.sharing.growth import Growth, Load
from servicebroker.broker.sharing.lifecycle import FIRST_ACTIONS, Event, ShareAction, ShareLife, Stage
from servicebroker.broker.sharing.messages import ProcessExited, Question, StatusMessage
from servicebroker.broker.sharing.pace import DaemonPace, Mode, SharePace, Wait
from servicebroker.broker.sharing.remote_relay import RemoteRelay
from servicebroker.broker.sharing.share import Share, ShareSet
from servicebroker.broker.sharing.takeover import Challenges
from servicebroker.broker.sharing.worker import Calls, Surroundings, Worker
from servicebroker.broker.transport.links import Arrival, Link
from servicebroker.model.daemon_reports import Subject
from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.protocol.adjacent import LocalIdentity
from servicebroker.protocol.division import Division
from servicebroker.protocol.mirroring import IN_DOUBT, RoleReport
from servicebroker_lab.simulation.database_outages import RECONNECT_DELAY_S
from servicebroker_lab.simulation.links import Links
from servicebroker_lab.simulation.simulated_instance import (
    ROUND_DELAY_S,
    Daemon,
    DaemonKilled,
    FaultyStore,
    check_idle_rounds,
)
from servicebroker_lab.simulation.simulated_sockets import FaultyInboxes, Happening, ShippedNetwork
from servicebroker_lab.simulation.simulated_time import Loop

MAX_SHARES = 3
CHECK_INTERVAL_S = 1.0  # the time between two checks of lease, role and load
POLL_INTERVAL_S = 30.0  # one second in the product, but idle rounds would be most of a run
OPENING_TIME_S = 2.0  # maximum time to open connections and to start processes
ROUND_TIME_S = 0.01  # maximum time of a round, for the measurement of load
CLOSING_TIME_S = 0.1  # the time in which a daemon stops
HEAVY_LOAD = 0.9  # fraction of the time that each share spends in rounds, under load
INTERLEAVING_PROBABILITY = 0.1  # the probability of a round between two operations of another round
IDLE_KILL_FACTOR = 5.0  # kills of a process per idle second, relative to those between two operations

T = TypeVar("T")


class ShareKilled(Exception):
    """The process of a share was killed between two operations of its round."""


class ProcessStore(FaultyStore):
    """The store of a share in a process of its own, which may be killed without the daemon."""

    @override
    def _seam(self, name: str) -> None:
        if self._instance.world.loop.happens(self._instance.world.network.faults.share_killed):
            self._instance.trace("the process of share", self.division.number, "is killed at", name)
            raise ShareKilled
        super()._seam(name)


def copy_as_pipe(message: T) -> T:
    """Return a copy of a message, as a pipe makes it."""
    copy: T = pickle.loads(pickle.dumps(message))
    return copy


class Child(Calls):
    """The calls of a process to its daemon, which answers immediately."""

    def __init__(self, answer: Callable[[Question], object]) -> None:
        super().__init__()
        self._answer = answer

    def ask(self, what: str, about: object) -> Any:
        """Ask the daemon."""
        return copy_as_pipe(self._answer(copy_as_pipe(Question(what, about))))


class OpenedConnection(NamedTuple):
    """The connection of a share in the daemon's process."""

    store: FaultyStore
    is_dead: bool = False

    def close(self) -> None:
        """Close it."""


class SimulatedProcess(RemoteRelay):
    """The relay of a share in a process of its own, and that process."""

    def __init__(self, daemon: DividedDaemon, division: Division) -> None:
        instance, loop = daemon.instance, daemon.loop
        self._daemon = daemon
        self.is_dead = False

        def seconds() -> float:
            return loop.now

        super().__init__(daemon.links, daemon.links.peers, daemon.here, instance.clock, seconds)
        calls = Child(self.answer)
        around = Surroundings(calls, seconds)
        rng = Random(daemon.rng.getrandbits(64))
        self._relay = daemon.make_relay(around.links, around.clock, rng, around.here, around.peers)
        self._relay.forget(division.shares)
        self._worker = Worker(
            calls, around, self._relay, ProcessStore(instance, daemon, division), seconds, self._new_status
        )
        self.take(copy_as_pipe(self._worker.ready()))

    @override
    def round(self, arrivals: list[Arrival]) -> int:
        """Run a round. The process may be killed before it, in it, or before it can report the result."""
        if self.is_dead:
            raise ProcessExited
        try:
            result = self._worker.round(copy_as_pipe(self.order(arrivals)))
        except ShareKilled:
            self.is_dead = True
            raise ProcessExited from None
        except (psycopg.Error, InstanceError) as problem:
            self.is_dead = True
            raise InstanceError(str(problem)) from problem
        if self._daemon.loop.happens(self._daemon.instance.world.network.faults.share_killed):
            self._daemon.instance.trace("a process is killed before it reports its round")
            self.is_dead = True
            raise ProcessExited
        return self.take(copy_as_pipe(result))

    def close(self) -> None:
        """End the process and its session."""
        if not self.is_dead:
            self.is_dead = True
            self.take(copy_as_pipe(self._worker.end()))

    def _new_status(self) -> StatusMessage:
        forwarding = self._relay.forwarding
        return StatusMessage(self._relay.remembered, forwarding.held, forwarding.observed(), {}, ((b"", b"", b""), {}))


class InterruptibleWait:
    """The wait of a share between two rounds, which an event in its inbox may end.

    `on_end` is called at the end, with True if an event has ended the wait.
    """

    def __init__(self, loop: Loop, inbox: Inbox, on_end: Callable[[bool], None]) -> None:
        self._loop = loop
        self._inbox = inbox
        self._on_end = on_end
        self._wait: object = None
        self._is_interruptible = False

    def begin(self, wait: Wait) -> None:
        """Begin a new wait."""
        self._wait = wait_now = object()
        self._is_interruptible = wait.is_interruptible
        self._loop.after(max(wait.seconds, ROUND_DELAY_S), lambda: self._end(wait_now, was_woken=False))
        self.check_event()

    def check_event(self) -> None:
        """End the wait if the event of the inbox is set."""
        if self._wait is not None and self._is_interruptible and self._inbox.wake_event.is_set():
            wait_now, self._is_interruptible = self._wait, False
            self._loop.after(ROUND_DELAY_S, lambda: self._end(wait_now, was_woken=True))

    def cancel(self) -> None:
        """Cancel the wait."""
        self._wait = None

    def _end(self, wait: object, *, was_woken: bool) -> None:
        if wait is self._wait:
            self._wait = None
            if was_woken:
                self._inbox.wake_event.clear()
            self._on_end(was_woken)


class ShareTask:
    """The task of a share other than the daemon's own. In the product it is a thread."""

    def __init__(self, daemon: DividedDaemon, number: int, opened: OpenedConnection | SimulatedProcess) -> None:
        self._daemon = daemon
        self._number = number
        self.share = daemon.all[number]
        self.opened: OpenedConnection | SimulatedProcess | None = opened
        self.life = ShareLife()
        self.rest = InterruptibleWait(daemon.loop, self.share.inbox, self._after_wait)
        self._pace = SharePace(POLL_INTERVAL_S)
        self._began = daemon.loop.now
        self._opens_until = 0.0
        self._is_stopped = False
        self._is_starting = False
        self._problem: Exception | None = None

    def begin(self) -> None:
        """Start the share."""
        self._carry_out(FIRST_ACTIONS)

    def end(self) -> None:
        """Stop the share, and wait for its end."""
        self._is_stopped = True
        self.rest.cancel()
        if self._is_starting:
            self._on_started()
        elif self.life.stage in (Stage.SERVING, Stage.PAUSING):
            self._happens(Event.STOP_REQUESTED)

    def abandon(self) -> None:
        """Stop without any further action, because the daemon was killed."""
        self._is_stopped, self._is_starting = True, False
        self.rest.cancel()

    def round(self) -> None:
        """Run a round, and begin the wait for the next one."""
        self.rest.cancel()
        try:
            self._daemon.run(self.share)
        except ProcessExited as problem:
            self._problem = problem
            self._happens(Event.EXITED)
        except (psycopg.Error, InstanceError) as problem:
            self._problem = problem
            self._happens(Event.ERROR)
        else:
            now, share = self._daemon.loop.now, self.share
            is_polling = self._daemon.is_polling
            self.rest.begin(self._pace.after_round(share.handled, share.wake_at, now, is_polling=is_polling))

    def _after_wait(self, was_woken: bool) -> None:
        if was_woken:
            self._pace.on_wake()
        self._daemon.run_killable(self.round)

    def _happens(self, event: Event) -> None:
        self._carry_out(self.life.on_event(event))

    def _carry_out(self, actions: Sequence[ShareAction]) -> None:
        for act in actions:
            event = self._do(act)
            if event is not None:
                self._happens(event)
                return

    def _do(self, act: ShareAction) -> Event | None:
        daemon, loop = self._daemon, self._daemon.loop
        match act:
            case ShareAction.AWAIT:
                self._is_starting = True
                if self._opens_until > loop.now:
                    loop.at(self._opens_until, self._on_started)
                else:
                    self._on_started()
            case ShareAction.RUN_ROUNDS:
                if self._is_stopped:
                    return Event.STOP_REQUESTED
                assert self.opened is not None
                self.share.use_connection(self.opened)
                self.rest.begin(Wait(0.0, is_interruptible=False))
            case ShareAction.CLOSE:
                process, self.opened = self.opened, None
                if process is not None:
                    process.close()
            case ShareAction.COUNT_KILLED:
                daemon.instance.trace("another process replaces that of share", self._number)
            case ShareAction.PAUSE:
                loop.after(max(0.0, self._began + RESTART_INTERVAL_S - loop.now), self._on_paused)
            case ShareAction.REPLACE:
                if loop.happens(daemon.instance.world.network.faults.unstartable):
                    return Event.UNSTARTABLE
                self.opened = SimulatedProcess(daemon, self._division)
                self._opens_until = loop.now + OPENING_TIME_S * loop.random.random()
            case ShareAction.OPEN_IN_DAEMON:
                daemon.instance.trace("share", self._number, "goes on in the daemon's process")
                daemon.shares.move_into_daemon(self.share)
                self.opened = OpenedConnection(FaultyStore(daemon.instance, daemon, self._division))
            case ShareAction.REPORT_PROBLEM:
                assert self._problem is not None
                daemon.fail(self._problem)
        return None

    @property
    def _division(self) -> Division:
        return Division(self._number, len(self._daemon.all))

    def _on_started(self) -> None:
        if not self._is_starting:
            return
        self._is_starting = False
        if self.opened is not None and self.opened.is_dead:
            self._problem = ProcessExited()
            self._happens(Event.EXITED_AT_END if self._is_stopped else Event.EXITED)
        else:
            self._happens(Event.READY)

    def _on_paused(self) -> None:
        if not self._is_stopped and self.life.stage is Stage.PAUSING:
            self._began = self._daemon.loop.now
            self._happens(Event.PAUSED)


class DividedDaemon(Daemon):
    """A daemon whose number of shares follows the load, or is set by the run."""

    @override
    def make_links(self, me: LocalIdentity) -> Links | ShippedNetwork:
        """Return the product's connections, or simulated ones if peers authenticate by certificates."""
        self._taker = 0
        self.inboxes = FaultyInboxes(lambda: self.loop.now, lambda: self._taker, self.tell, self.bring)
        if self.instance.world.proves:
            links = super().make_links(me)
            assert isinstance(links, Links)
            links.inboxes = self.inboxes
            return links
        network = self.instance.world.network
        shipped = ShippedNetwork(network, self.instance.index, me, self.inboxes, self.instance.clock)
        shipped.apply(self.instance.policy())
        return shipped

    @override
    def begin(self) -> None:
        """Create the first share, and serve."""
        self._in_processes = self.instance.world.in_processes
        self._challenges = Challenges()
        self._apart = Random(self.rng.getrandbits(64))
        self._passed = 0.0  # seconds of rounds
        self.shares = ShareSet(self._make, self.inboxes, in_processes=self._in_processes)
        self._growth = Growth(self._new_load())
        self._store = FaultyStore(self.instance, self, Division())
        self._tasks: list[ShareTask] = []
        self._rest = InterruptibleWait(self.loop, self.inboxes.shares[0], self._after_wait)
        self._running: list[Share] = []  # a round within the round of another one
        self._rounds_in_vain: Counter[int] = Counter()
        self._ready: list[OpenedConnection | SimulatedProcess] | None = None  # new shares, before the division
        self._problem: Exception | None = None
        self._connections = 0  # counts the starts of `_serve`, to recognize stale events
        self._is_heavy = False
        self._pace = DaemonPace(POLL_INTERVAL_S)
        self._serve()

    @property
    def all(self) -> list[Share]:
        """All shares."""
        return self.shares.all

    @override
    @property
    def wake_ats(self) -> list[float]:
        """The time of the next timer of each relay."""
        return [share.relay.wake_at for share in self.all]

    @property
    def is_polling(self) -> bool:
        """True while the daemon polls, so that a SEND sends no notification."""
        return self._pace.mode is Mode.POLL

    @override
    def want(self, count: int | None) -> None:
        """Set the number of shares; None lets it follow the load. The load may change, too."""
        self._growth.fixed = count
        self._is_heavy = self._apart.random() < 0.6

    @override
    def stop_endpoint(self) -> None:
        """Stop or disable the endpoint, and start it again later."""
        links, random = self.links, self.loop.random
        if isinstance(links, ShippedNetwork):
            self.instance.trace("its endpoint is stopped")
            self.instance.reports.tell(Subject.ENDPOINT, "It is stopped.")
            links.apply(random.choice((Policy(silence=9748), Policy(refusal=28080, silence=9666))))
            self.loop.after(10 * random.random(), lambda: self._start_endpoint(links))

    @override
    def retire(self) -> None:
        """Stop as the product does: end the rounds of the shares, and notify peers."""
        self.instance.trace("is told to stop")
        self._stop()
        self._rest.cancel()
        self._connections += 1
        self.shares.unite()
        if isinstance(self.links, ShippedNetwork):
            self.links.begin_to_close()
        self.loop.after(CLOSING_TIME_S, lambda: self.instance.crash(self))

    def _start_endpoint(self, links: ShippedNetwork) -> None:
        self.instance.reports.tell(Subject.ENDPOINT, "")
        if not self.is_over:
            self.instance.trace("its endpoint is started")
            links.apply(self.instance.policy())

    def _new_load(self) -> Load:
        return Load(MAX_SHARES, self.loop.now, 0.0, in_processes=self._in_processes)

    def _make(self) -> Relay:
        rng = Random(self.rng.getrandbits(64))
        return self.make_relay(self.links, self.instance.clock, rng, self.here, self.links.peers)

    # ---------------------------------------------------------------- start and end

    def _serve(self) -> None:
        """Begin to serve with one share, after connecting to the database."""
        if self.is_over:
            return
        self._connections += 1
        self._store = FaultyStore(self.instance, self, Division())
        self._growth.begin(self._new_load())
        self.all[0].store = self._store
        self._challenges.refute()
        self._announce_role(self.instance.role_report())
        self._divide([])
        self._pace = DaemonPace(POLL_INTERVAL_S)
        self._rest.begin(Wait(0.0, is_interruptible=False))
        self._check(self._connections)

    def _divide(self, opened: list[OpenedConnection | SimulatedProcess]) -> None:
        self._stop()
        if self._problem is not None:
            for new in opened:
                new.close()
            raise self._problem
        self.shares.divide(self._store, opened)
        self._tasks = [ShareTask(self, number, new) for number, new in enumerate(opened, 1)]
        for task in self._tasks:
            task.begin()

    def _announce_role(self, role_report: RoleReport) -> None:
        """Report the role of the server to peers."""
        if isinstance(self.links, ShippedNetwork):
            self.links.announce_role(role_report)

    def _stop(self) -> None:
        for task in self._tasks:
            task.end()
        self._tasks = []

    @override
    def _begin_anew(self, problem: Exception) -> None:
        """Start again after a failure, with a new connection to the database."""
        self.instance.trace("begins anew:", problem)
        self._announce_role(IN_DOUBT)
        self._stop()
        self._rest.cancel()
        self._connections += 1
        self._problem = self._ready = None
        self.shares.unite()
        self._growth.begin(self._new_load())
        self.loop.after(RECONNECT_DELAY_S, self._serve)

    @override
    def kill(self) -> None:
        """Drop everything in memory, with the processes of shares."""
        self.is_over = True
        self._rest.cancel()
        for task in self._tasks:
            task.abandon()
        self.links.crash()

    def fail(self, problem: Exception) -> None:
        """Record the failure of a share, for the daemon's next round."""
        self._problem = problem
        self.inboxes.wake()
        self._check_events()

    # ---------------------------------------------------------------- events

    @override
    def poke(self) -> None:
        """Wake the shares, because a connection can send again."""
        self.inboxes.wake()
        self._check_events()

    @override
    def notify(self) -> None:
        """Handle a committed SEND, which sends a notification only while the daemon listens."""
        if not self.is_polling:
            self.poke()

    @override
    def tell(self, happening: Happening) -> None:
        """Record an event of a connection."""
        self.instance.trace(*happening)
        self.inboxes.enter(happening)
        self._check_events()

    @override
    def take(self, link: Link, body: bytes, *, is_forwarded: bool) -> None:
        """Put a message into the inbox of its share, for the next round."""
        if not self.is_over:
            self.inboxes.enter(Arrival(link, body, is_forwarded))
            self._check_events()

    def _check_events(self) -> None:
        """End the waits of the shares whose event is set."""
        self._rest.check_event()
        for task in self._tasks:
            task.rest.check_event()

    # ---------------------------------------------------------------- rounds

    def run_killable(self, action: Callable[[], None]) -> None:
        """Run an action in which the daemon may be killed."""
        if self.is_over:
            return
        try:
            action()
        except DaemonKilled:
            self.instance.crash(self)

    def run(self, share: Share) -> None:
        """Run a round of a share.

        Raises:
            ProcessExited, psycopg.Error, InstanceError: the round has failed.
        """
        number, taker = self.all.index(share), self._taker
        self._taker = number + 1
        self._running.append(share)
        is_in_vain = not len(share.inbox)
        try:
            share.run_round(self._watch, self._challenges.take)
        finally:
            self._running.pop()
            self._taker = taker
        self.instance.remember(self.links.peers)
        # not after the loss of the lease: another daemon may have removed the rows that this one wants to read
        is_hasty = self.has_lease and is_in_vain and share.relay.wake_at <= self.loop.now
        self._rounds_in_vain[number] = check_idle_rounds(
            self.instance, self._rounds_in_vain[number] + 1 if is_hasty else 0
        )

    def _watch(self) -> float:
        """Return a simulated stopwatch for rounds, which take no time of the run."""
        self._passed += ROUND_TIME_S * self._apart.random()
        return self._passed

    @override
    def _round(self) -> None:
        """Run a round of the first share, and begin the wait for the next one."""
        self._rest.cancel()
        try:
            if self._problem is not None:
                raise self._problem
            self.run(self.all[0])
        except (psycopg.Error, InstanceError) as problem:
            self._problem = problem
            if self._running:  # another share is in a round, which has to end first
                self._rest.begin(Wait(0.0, is_interruptible=False))
            else:
                self._begin_anew(problem)
            return
        handled_count = max(share.handled for share in self.all)
        self._rest.begin(self._pace.after_round(handled_count, self.all[0].wake_at, self.loop.now))

    def _after_wait(self, was_woken: bool) -> None:
        mode = self._pace.mode
        self._pace.waited(self.all[0].wake_at, self.loop.now, was_woken=was_woken)
        if self._pace.mode is not mode:
            if self._pace.mode is Mode.LISTEN:
                self.inboxes.shares[0].wake_event.clear()
            for share in self.all[1:]:
                share.inbox.wake_event.set()
            self._check_events()
        self.run_killable(self._round)

    @override
    def interleave(self) -> None:
        """Run a round of another share, perhaps, between two operations of a round."""
        if len(self.all) < 2 or not self.loop.happens(INTERLEAVING_PROBABILITY):
            return
        turns: list[tuple[Share, Callable[[], None]]] = [(self.all[0], self._round)]
        turns += [(task.share, task.round) for task in self._tasks if task.life.stage is Stage.SERVING]
        due = [turn for share, turn in turns if share not in self._running and self._is_due(share)]
        if due:
            self.loop.random.choice(due)()

    def _is_due(self, share: Share) -> bool:
        return len(share.inbox) > 0 or share.inbox.wake_event.is_set() or share.wake_at <= self.loop.now + ROUND_DELAY_S

    @override
    def seam(self, store: FaultyStore, name: str) -> None:
        """Kill the daemon by a fault, or if the session of the first share has lost the lease."""
        is_lost = not self.has_lease and store.division.number == 0
        if is_lost or self.loop.happens(self.instance.world.network.faults.killed):
            self.instance.trace("is killed at", name)
            raise DaemonKilled

    # ---------------------------------------------------------------- number of shares

    def _check(self, connection: int) -> None:
        """Check lease, role and load once a second, until `_serve` starts again."""
        if self.is_over or connection != self._connections:
            return
        self.loop.after(CHECK_INTERVAL_S, lambda: self._check(connection))
        if not self.has_lease:
            self.instance.trace("has lost its lease")
            self.instance.crash(self)
            return
        self._announce_role(self.instance.role_report())
        if isinstance(self.links, ShippedNetwork):
            self.links.observe()
            self.links.backlog()
            self.links.take_refused()
            self.links.refusals.take()
        self.remembered = sum(share.relay.remembered for share in self.all)
        self.forwarded = [row for share in self.all for row in share.relay.forwarding.observed()]
        for share in self.all:
            share.worked += HEAVY_LOAD if self._is_heavy else 0.0
        for task in self._tasks:
            opened, faults = task.opened, self.instance.world.network.faults
            if isinstance(opened, SimulatedProcess) and self.loop.happens(IDLE_KILL_FACTOR * faults.share_killed):
                self.instance.trace("an idle process is killed")
                opened.is_dead = True
        try:
            self._adapt(connection)
        except (psycopg.Error, InstanceError) as problem:
            self._begin_anew(problem)

    def _adapt(self, connection: int) -> None:
        if self._growth.is_opening:
            if self._ready is not None:
                opened, self._ready = self._ready, None
                self._growth.opened()
                self._divide(opened)
                self.instance.trace("has", len(self.all), "shares")
            return
        expected = self._growth.wanted_now([share.worked for share in self.all], self.loop.now, 0.0)
        if expected is not None:
            delay = OPENING_TIME_S * self.loop.random.random()
            self.loop.after(delay, lambda: self._open(expected, connection))

    def _open(self, count: int, connection: int) -> None:
        if self.is_over or connection != self._connections:
            return
        if self.loop.happens(self.instance.world.network.faults.unstartable):
            self.instance.trace("no other process can be started")
            self._growth.failed("no process", self.loop.now)
            return
        divisions = [Division(number, count) for number in range(1, count)]
        if self._in_processes:
            self._ready = [SimulatedProcess(self, division) for division in divisions]
        else:
            self._ready = [OpenedConnection(FaultyStore(self.instance, self, division)) for division in divisions]
