"""A daemon that divides its conversations among shares: the decisions of `broker/sharing`, in simulated time.

`broker/shares.py`, `broker/processes.py` and `broker/share_process.py` carry them out with threads, pipes and
processes. Here events take their place: between two operations of one share's round there may be a round of another
one, or its process, or the daemon, is gone. What passes between a process and the daemon is pickled, as in a pipe.
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
from servicebroker.protocol.adjacent import LocalIdentity
from servicebroker.protocol.division import Division
from servicebroker.protocol.mirroring import IN_DOUBT, RoleReport
from servicebroker_lab.simulation.database_outages import RECONNECT_DELAY_S
from servicebroker_lab.simulation.links import Links
from servicebroker_lab.simulation.simulated_instance import (
    ROUND_DELAY_S,
    Daemon,
    FaultyStore,
    Killed,
    check_idle_rounds,
)
from servicebroker_lab.simulation.simulated_sockets import FaultyInboxes, Happening, ShippedNetwork
from servicebroker_lab.simulation.simulated_time import Loop

MOST_SHARES = 3
LOOK_INTERVAL_S = 1.0  # seconds
POLL_INTERVAL_S = 30.0  # seconds: a daemon's is one second, and rounds in calm time would be most of a run
OPENING_TIME_S = 2.0  # seconds that connections and processes take at most
ROUND_TIME_S = 0.01  # seconds that a round takes at most, as far as turns are concerned
CLOSING_TIME_S = 0.1  # seconds that a daemon takes to stop
HEAVY_LOAD = 0.9  # part of the time that each share is in rounds, while there is load
INTERLEAVING_PROBABILITY = 0.1  # probability of a round between two operations of another one
IDLE_DEATHS = 5.0  # a process is so many times as likely to be killed in an idle second as between two operations

T = TypeVar("T")


class ShareKilled(Exception):
    """The process of a share is gone, between two steps of its round."""


class ProcessStore(FaultyStore):
    """The store of a share in a process of its own, which may be killed alone."""

    def _seam(self, name: str) -> None:
        if self._instance.world.loop.happens(self._instance.world.network.faults.share_killed):
            self._instance.trace("the process of share", self.division.number, "is killed at", name)
            raise ShareKilled
        super()._seam(name)


def piped(message: T) -> T:
    """Return the message as it comes out of a pipe."""
    copy: T = pickle.loads(pickle.dumps(message))
    return copy


class Child(Calls):
    """The calls of a process, whose questions its daemon answers at once."""

    def __init__(self, answer: Callable[[Question], object]) -> None:
        super().__init__()
        self._answer = answer

    def ask(self, what: str, about: object) -> Any:
        """Ask the daemon."""
        return piped(self._answer(piped(Question(what, about))))


class Opened(NamedTuple):
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
        chance = Random(daemon.chance.getrandbits(64))
        self._relay = daemon.make_relay(around.links, around.clock, chance, around.here, around.peers)
        self._relay.forget(division.shares)
        self._worker = Worker(
            calls, around, self._relay, ProcessStore(instance, daemon, division), seconds, self._new_status
        )
        self.take(piped(self._worker.ready()))

    def round(self, arrivals: list[Arrival]) -> int:
        """Run a round, unless the process is dead before it, within it, or before it can tell of it."""
        if self.is_dead:
            raise ProcessExited
        try:
            done = self._worker.round(piped(self.order(arrivals)))
        except ShareKilled:
            self.is_dead = True
            raise ProcessExited from None
        except (psycopg.Error, InstanceError) as problem:
            self.is_dead = True
            raise InstanceError(str(problem)) from problem
        if self._daemon.loop.happens(self._daemon.instance.world.network.faults.share_killed):
            self._daemon.instance.trace("a process is killed before it tells of its round")
            self.is_dead = True
            raise ProcessExited
        return self.take(piped(done))

    def close(self) -> None:
        """End the process and its session."""
        if not self.is_dead:
            self.is_dead = True
            self.take(piped(self._worker.end()))

    def _new_status(self) -> StatusMessage:
        forwarding = self._relay.forwarding
        return StatusMessage(self._relay.remembered, forwarding.held, forwarding.observed(), {}, ((b"", b"", b""), {}))


class Rest:
    """The wait of a share between two rounds, which its bell may end. `then` is told whether it has."""

    def __init__(self, loop: Loop, inbox: Inbox, then: Callable[[bool], None]) -> None:
        self._loop = loop
        self._inbox = inbox
        self._then = then
        self._wait: object = None
        self._hears = False

    def begin(self, wait: Wait) -> None:
        """Wait anew."""
        self._wait = wait_now = object()
        self._hears = wait.is_interruptible
        self._loop.after(max(wait.seconds, ROUND_DELAY_S), lambda: self._end(wait_now, was_woken=False))
        self.hear()

    def hear(self) -> None:
        """The bell may have rung."""
        if self._wait is not None and self._hears and self._inbox.wake_event.is_set():
            wait_now, self._hears = self._wait, False
            self._loop.after(ROUND_DELAY_S, lambda: self._end(wait_now, was_woken=True))

    def cancel(self) -> None:
        """Wait no longer, for nothing."""
        self._wait = None

    def _end(self, wait: object, *, was_woken: bool) -> None:
        if wait is self._wait:
            self._wait = None
            if was_woken:
                self._inbox.wake_event.clear()
            self._then(was_woken)


class ShareTask:
    """One share beside the daemon's own: what a thread does for it."""

    def __init__(self, daemon: DividedDaemon, number: int, opened: Opened | SimulatedProcess) -> None:
        self._daemon = daemon
        self._number = number
        self.share = daemon.all[number]
        self.opened: Opened | SimulatedProcess | None = opened
        self.life = ShareLife()
        self.rest = Rest(daemon.loop, self.share.inbox, self._rested)
        self._pace = SharePace(POLL_INTERVAL_S)
        self._began = daemon.loop.now
        self._opens_until = 0.0
        self._is_over = False
        self._is_starting = False
        self._problem: Exception | None = None

    def begin(self) -> None:
        """Begin its life."""
        self._carry_out(FIRST_ACTIONS)

    def end(self) -> None:
        """Tell it to end, and wait for that."""
        self._is_over = True
        self.rest.cancel()
        if self._is_starting:
            self._started()
        elif self.life.stage in (Stage.SERVING, Stage.PAUSING):
            self._happens(Event.STOP_REQUESTED)

    def abandon(self) -> None:
        """The daemon is gone."""
        self._is_over, self._is_starting = True, False
        self.rest.cancel()

    def round(self) -> None:
        """One round, and the wait for the next one."""
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

    def _rested(self, was_woken: bool) -> None:
        if was_woken:
            self._pace.on_wake()
        self._daemon.guarded(self.round)

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
                    loop.at(self._opens_until, self._started)
                else:
                    self._started()
            case ShareAction.RUN_ROUNDS:
                if self._is_over:
                    return Event.STOP_REQUESTED
                assert self.opened is not None
                self.share.use_connection(self.opened)
                self.rest.begin(Wait(0.0, is_interruptible=False))
            case ShareAction.CLOSE:
                opened, self.opened = self.opened, None
                if opened is not None:
                    opened.close()
            case ShareAction.COUNT_KILLED:
                daemon.instance.trace("another process takes the place of that of share", self._number)
            case ShareAction.PAUSE:
                loop.after(max(0.0, self._began + RESTART_INTERVAL_S - loop.now), self._paused)
            case ShareAction.REPLACE:
                if loop.happens(daemon.instance.world.network.faults.unstartable):
                    return Event.UNSTARTABLE
                self.opened = SimulatedProcess(daemon, self._division)
                self._opens_until = loop.now + OPENING_TIME_S * loop.random.random()
            case ShareAction.OPEN_IN_DAEMON:
                daemon.instance.trace("share", self._number, "goes on in the daemon's process")
                daemon.shares.move_into_daemon(self.share)
                self.opened = Opened(FaultyStore(daemon.instance, daemon, self._division))
            case ShareAction.REPORT_PROBLEM:
                assert self._problem is not None
                daemon.fail(self._problem)
        return None

    @property
    def _division(self) -> Division:
        return Division(self._number, len(self._daemon.all))

    def _started(self) -> None:
        if not self._is_starting:
            return
        self._is_starting = False
        if self.opened is not None and self.opened.is_dead:
            self._problem = ProcessExited()
            self._happens(Event.EXITED_AT_END if self._is_over else Event.EXITED)
        else:
            self._happens(Event.READY)

    def _paused(self) -> None:
        if not self._is_over and self.life.stage is Stage.PAUSING:
            self._began = self._daemon.loop.now
            self._happens(Event.PAUSED)


class DividedDaemon(Daemon):
    """The daemon, whose number of shares follows load, or is what the run wants."""

    def make_links(self, me: LocalIdentity) -> Links | ShippedNetwork:
        """The connections as they ship, where nothing is proved."""
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

    def begin(self) -> None:
        """Make the first share, and serve."""
        self._in_processes = self.instance.world.in_processes
        self._challenges = Challenges()
        self._apart = Random(self.chance.getrandbits(64))
        self._passed = 0.0  # seconds of rounds
        self.shares = ShareSet(self._make, self.inboxes, in_processes=self._in_processes)
        self._growth = Growth(self._new_load())
        self._store = FaultyStore(self.instance, self, Division())
        self._tasks: list[ShareTask] = []
        self._rest = Rest(self.loop, self.inboxes.shares[0], self._rested)
        self._running: list[Share] = []  # a round within the round of another one
        self._rounds_in_vain: Counter[int] = Counter()
        self._ready: list[Opened | SimulatedProcess] | None = None  # opened, and not divided among yet
        self._problem: Exception | None = None
        self._connections = 0  # the number of its beginnings
        self._is_heavy = False
        self._pace = DaemonPace(POLL_INTERVAL_S)
        self._serve()

    @property
    def all(self) -> list[Share]:
        """The shares."""
        return self.shares.all

    @property
    def wake_ats(self) -> list[float]:
        """When each of its relays has something to do."""
        return [share.relay.wake_at for share in self.all]

    @property
    def is_polling(self) -> bool:
        """Return whether nobody notifies of a SEND."""
        return self._pace.mode is Mode.POLL

    def want(self, count: int | None) -> None:
        """Have so many shares, or as many as load asks for; and load may change."""
        self._growth.fixed = count
        self._is_heavy = self._apart.random() < 0.6

    def stop_endpoint(self) -> None:
        """Stop the endpoint or disable it, and start it again."""
        links, random = self.links, self.loop.random
        if isinstance(links, ShippedNetwork):
            self.instance.trace("its endpoint is stopped")
            self.instance.reports.tell(Subject.ENDPOINT, "It is stopped.")
            links.apply(random.choice((Policy(silence=9748), Policy(refusal=28080, silence=9666))))
            self.loop.after(10 * random.random(), lambda: self._start_endpoint(links))

    def retire(self) -> None:
        """Stop as the daemon does: shares end their rounds, and peers are told."""
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
        return Load(MOST_SHARES, self.loop.now, 0.0, in_processes=self._in_processes)

    def _make(self) -> Relay:
        chance = Random(self.chance.getrandbits(64))
        return self.make_relay(self.links, self.instance.clock, chance, self.here, self.links.peers)

    # ---------------------------------------------------------------- beginning and ending

    def _serve(self) -> None:
        """The database is there: begin with one share."""
        if self.is_over:
            return
        self._connections += 1
        self._store = FaultyStore(self.instance, self, Division())
        self._growth.begin(self._new_load())
        self.all[0].store = self._store
        self._challenges.refute()
        self._stand(self.instance.role_report())
        self._divide([])
        self._pace = DaemonPace(POLL_INTERVAL_S)
        self._rest.begin(Wait(0.0, is_interruptible=False))
        self._look_again(self._connections)

    def _divide(self, opened: list[Opened | SimulatedProcess]) -> None:
        self._stop()
        if self._problem is not None:
            for one in opened:
                one.close()
            raise self._problem
        self.shares.divide(self._store, opened)
        self._tasks = [ShareTask(self, number, one) for number, one in enumerate(opened, 1)]
        for task in self._tasks:
            task.begin()

    def _stand(self, role_report: RoleReport) -> None:
        """Tell peers what the server is."""
        if isinstance(self.links, ShippedNetwork):
            self.links.announce_role(role_report)

    def _stop(self) -> None:
        for task in self._tasks:
            task.end()
        self._tasks = []

    def _begin_anew(self, problem: Exception) -> None:
        self.instance.trace("begins anew:", problem)
        self._stand(IN_DOUBT)
        self._stop()
        self._rest.cancel()
        self._connections += 1
        self._problem = self._ready = None
        self.shares.unite()
        self._growth.begin(self._new_load())
        self.loop.after(RECONNECT_DELAY_S, self._serve)

    def kill(self) -> None:
        """All that is in memory goes, and its processes with it."""
        self.is_over = True
        self._rest.cancel()
        for task in self._tasks:
            task.abandon()
        self.links.crash()

    def fail(self, problem: Exception) -> None:
        """A share has failed: the daemon learns of it in its next round."""
        self._problem = problem
        self.inboxes.wake()
        self._hear()

    # ---------------------------------------------------------------- what comes

    def poke(self) -> None:
        """A link takes more."""
        self.inboxes.wake()
        self._hear()

    def notify(self) -> None:
        """A SEND is committed: it notifies only while the daemon listens."""
        if not self.is_polling:
            self.poke()

    def tell(self, happening: Happening) -> None:
        """Something has happened to a link."""
        self.instance.trace(*happening)
        self.inboxes.enter(happening)
        self._hear()

    def take(self, link: Link, body: bytes, *, is_forwarded: bool) -> None:
        """A message is there, for the next round of its share."""
        if not self.is_over:
            self.inboxes.enter(Arrival(link, body, is_forwarded))
            self._hear()

    def _hear(self) -> None:
        self._rest.hear()
        for task in self._tasks:
            task.rest.hear()

    # ---------------------------------------------------------------- rounds

    def guarded(self, action: Callable[[], None]) -> None:
        """Do something from which the daemon may not come back."""
        if self.is_over:
            return
        try:
            action()
        except Killed:
            self.instance.crash(self)

    def run(self, share: Share) -> None:
        """One round of a share.

        Raises:
            ProcessExited, psycopg.Error, InstanceError: it has failed.
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
        # Until it learns that it has lost the lease, another daemon may remove what it is to read.
        is_hasty = self.has_lease and is_in_vain and share.relay.wake_at <= self.loop.now
        self._rounds_in_vain[number] = check_idle_rounds(
            self.instance, self._rounds_in_vain[number] + 1 if is_hasty else 0
        )

    def _watch(self) -> float:
        """A stopwatch for rounds, which take no time of the run."""
        self._passed += ROUND_TIME_S * self._apart.random()
        return self._passed

    def _round(self) -> None:
        """One round of the first share, and the wait for the next one."""
        self._rest.cancel()
        try:
            if self._problem is not None:
                raise self._problem
            self.run(self.all[0])
        except (psycopg.Error, InstanceError) as problem:
            self._problem = problem
            if self._running:  # waits for the rounds of others
                self._rest.begin(Wait(0.0, is_interruptible=False))
            else:
                self._begin_anew(problem)
            return
        handled = max(share.handled for share in self.all)
        self._rest.begin(self._pace.after_round(handled, self.all[0].wake_at, self.loop.now))

    def _rested(self, was_woken: bool) -> None:
        mode = self._pace.mode
        self._pace.waited(self.all[0].wake_at, self.loop.now, was_woken=was_woken)
        if self._pace.mode is not mode:
            if self._pace.mode is Mode.LISTEN:
                self.inboxes.shares[0].wake_event.clear()
            for share in self.all[1:]:
                share.inbox.wake_event.set()
            self._hear()
        self.guarded(self._round)

    def interleave(self) -> None:
        """Perhaps run a round of another share, in the midst of one."""
        if len(self.all) < 2 or not self.loop.happens(INTERLEAVING_PROBABILITY):
            return
        turns: list[tuple[Share, Callable[[], None]]] = [(self.all[0], self._round)]
        turns += [(task.share, task.round) for task in self._tasks if task.life.stage is Stage.SERVING]
        due = [turn for share, turn in turns if share not in self._running and self._is_due(share)]
        if due:
            self.loop.random.choice(due)()

    def _is_due(self, share: Share) -> bool:
        return len(share.inbox) > 0 or share.inbox.wake_event.is_set() or share.wake_at <= self.loop.now + ROUND_DELAY_S

    def seam(self, store: FaultyStore, name: str) -> None:
        """The lease is that of the first share's session: the others learn later that it is another one's."""
        is_lost = not self.has_lease and store.division.number == 0
        if is_lost or self.loop.happens(self.instance.world.network.faults.killed):
            self.instance.trace("is killed at", name)
            raise Killed

    # ---------------------------------------------------------------- how many

    def _look_again(self, connection: int) -> None:
        """Look each second, as long as this connection lasts."""
        if self.is_over or connection != self._connections:
            return
        self.loop.after(LOOK_INTERVAL_S, lambda: self._look_again(connection))
        if not self.has_lease:
            self.instance.trace("has lost its lease")
            self.instance.crash(self)
            return
        self._stand(self.instance.role_report())
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
            if isinstance(opened, SimulatedProcess) and self.loop.happens(IDLE_DEATHS * faults.share_killed):
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
        wanted = self._growth.wanted_now([share.worked for share in self.all], self.loop.now, 0.0)
        if wanted is not None:
            delay = OPENING_TIME_S * self.loop.random.random()
            self.loop.after(delay, lambda: self._open(wanted, connection))

    def _open(self, count: int, connection: int) -> None:
        if self.is_over or connection != self._connections:
            return
        if self.loop.happens(self.instance.world.network.faults.unstartable):
            self.instance.trace("no other process can be had")
            self._growth.failed("no process", self.loop.now)
            return
        divisions = [Division(number, count) for number in range(1, count)]
        if self._in_processes:
            self._ready = [SimulatedProcess(self, one) for one in divisions]
        else:
            self._ready = [Opened(FaultyStore(self.instance, self, one)) for one in divisions]
