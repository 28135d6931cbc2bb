"""Simulate mirrored pairs: senders with a mirrored route, a primary, its synchronous standby, and an operator.

Servers crash, lose each other and cannot be reached by some senders. An old primary may come back with commits that
only it has, and claim to be the primary. The senders choose a server by `protocol/mirroring.py`. A server claims to be
the primary by the rule of the daemon: it has committed since its start, together with its standby if that is
synchronous. In the end each sent message must be in the primary's log once, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from servicebroker.overriding import override
from servicebroker.protocol import mirroring
from servicebroker.protocol.mirroring import IN_DOUBT, KnownTimeline, Role, RoleReport
from servicebroker_lab.simulation.simulated_time import Loop
from servicebroker_lab.simulation.store import GuaranteeBroken

FAULTY_TIME_S = 200.0  # the part of a run that has faults
CALM_TIME_S = 60.0  # without faults, at the end
SILENT_COMMIT_S = 10.0  # a commit that waits longer makes the daemon report an unknown role
RETRY_DELAY_S = 4.0  # average time until a sender repeats unacknowledged messages
MESSAGE_COUNT = 40  # messages of each sender

Entry = tuple[int, int]  # sender, number


class Outcome(NamedTuple):
    """Counts of events in a successful run."""

    messages: int
    promotions: int
    changes: int  # changes of a sender to the other server


class _Server:
    """A server of the pair, with its daemon."""

    def __init__(self, name: str, *, is_standby: bool) -> None:
        self.name = name
        self.is_up = True
        self.is_standby = is_standby
        self.is_synchronous = not is_standby  # its commits wait for the standby
        self.is_proven = not is_standby  # its daemon has committed since it began
        self.timeline = 1
        self.log: list[Entry] = []
        self.busy: Callable[[], None] | None = None  # the continuation of a commit that waits for the standby
        self.busy_since = 0.0

    @override
    def __str__(self) -> str:
        return self.name

    def role_report(self, now: float) -> RoleReport:
        """Return the role and timeline that the daemon reports."""
        if self.is_standby:
            return RoleReport(Role.MIRROR, "c", self.timeline)
        is_stuck = self.busy is not None and now > self.busy_since + SILENT_COMMIT_S
        if not self.is_proven or is_stuck:
            return IN_DOUBT
        return RoleReport(Role.PRINCIPAL, "c", self.timeline, self.is_synchronous)

    def commit(self, entries: list[Entry], done: Callable[[], None], now: float) -> None:
        """Write entries, and call `done`: immediately, or after the standby has them."""
        self.log += entries
        if self.is_synchronous:
            self.busy, self.busy_since = done, now
        else:
            done()

    def crash(self) -> None:
        """Stop the server. It keeps its log, also entries that its standby has not received."""
        self.is_up = self.is_proven = False
        self.busy = None

    def start(self, now: float) -> None:
        """Start the server. Its daemon proves that it can commit before it claims to be the primary."""
        self.is_up = True
        if not self.is_standby:
            self.commit([], self._prove, now)

    def _prove(self) -> None:
        self.is_proven = True


class _Sender:
    """An instance with a mirrored route, and one conversation."""

    def __init__(self, index: int, run: Run) -> None:
        self.index, self.run = index, run
        self.pair = mirroring.first_use(KnownTimeline(), 0.0)
        self.sent = self.acknowledged = self.changes = 0
        self.chosen_last = -1
        self.cut_off: set[int] = set()  # servers that it cannot reach

    @override
    def __str__(self) -> str:
        return f"sender {self.index}"

    def forget(self) -> None:
        """Restart the sender's daemon, which remembers only the highest timeline."""
        self.pair = mirroring.first_use(self.pair.known, self.run.loop.now)
        self._ask()

    def becomes(self, pair: mirroring.Pair) -> None:
        """Apply a new state of the pair."""
        before, self.pair = self.pair, pair
        if pair.chosen != before.chosen:
            self.run.loop.trace(self, mirroring.explain_choice(pair, ("0", "1")))
            if pair.chosen is not None:
                self.changes += self.chosen_last not in (-1, pair.chosen)
                self.chosen_last = pair.chosen
                self.transmit()
        if pair.questions != before.questions:
            self._ask()

    def _ask(self) -> None:
        for side in (0, 1):
            self.run.later(lambda side=side: self.hear(side))  # type: ignore[misc]

    def hear(self, side: int) -> None:
        """Handle the answer of a server, or its absence."""
        now, server = self.run.loop.now, self.run.servers[side]
        if side in self.cut_off or not server.is_up:
            self.becomes(mirroring.unreachable(self.pair, side, "cut", now))
        else:
            self.becomes(mirroring.heard(self.pair, side, server.role_report(now), now))

    def transmit(self) -> None:
        """Send all unacknowledged messages to the chosen primary, if any."""
        side = self.pair.chosen
        if side is not None and self.acknowledged < self.sent and side not in self.cut_off:
            first, below = self.acknowledged, self.sent
            self.run.later(lambda: self.run.arrives(self, side, first, below))

    def told(self, below: int) -> None:
        """Delete the messages below a number, which were acknowledged."""
        self.acknowledged = max(self.acknowledged, below)


class Run:
    """The servers, senders and faults of a seed."""

    def __init__(self, seed: int, trace: Callable[[str], object] | None = None) -> None:
        self.loop = Loop(seed, trace)
        random = self.loop.random
        self.servers = [_Server("server 0", is_standby=False), _Server("server 1", is_standby=True)]
        self.primary = 0  # as the operator sees it
        self.is_replicating = True
        self.promotions = 0
        self.senders = [_Sender(index, self) for index in range(random.randint(1, 3))]
        for sender in self.senders:
            sender.forget()
            for _ in range(MESSAGE_COUNT):
                self.loop.at(random.random() * FAULTY_TIME_S, lambda sender=sender: self._send(sender))  # type: ignore[misc]
        self._replicate()
        self._watch()
        self._operate()
        self._trouble()

    def finish(self) -> Outcome:
        """Run to the end, and check the guarantees.

        Raises:
            GuaranteeBroken: a guarantee was broken.
        """
        self.loop.run(FAULTY_TIME_S)
        self.loop.trace("run", "faults stop")
        self._heal()
        self.loop.run(FAULTY_TIME_S + CALM_TIME_S)
        log = self.servers[self.primary].log
        for sender in self.senders:
            stored = [number for index, number in log if index == sender.index]
            if stored != list(range(sender.sent)) or sender.acknowledged != sender.sent:
                raise GuaranteeBroken(
                    f"{sender} has sent {sender.sent}, {sender.acknowledged} acknowledged; stored are {stored}"
                )
        return Outcome(len(log), self.promotions, sum(sender.changes for sender in self.senders))

    def later(self, action: Callable[[], None]) -> None:
        """Call `action` after a random network delay."""
        self.loop.after(0.01 + self.loop.random.random() * self.loop.random.choice((0.1, 0.1, 3.0)), action)

    # ---------------------------------------------------------------- messages

    def _send(self, sender: _Sender) -> None:
        sender.sent += 1
        sender.transmit()

    def arrives(self, sender: _Sender, side: int, first: int, below: int) -> None:
        """Store messages at a daemon, in one transaction at a time. The acknowledgement follows its commit."""
        server = self.servers[side]
        if side in sender.cut_off or not server.is_up or server.is_standby or not server.is_proven or server.busy:
            return
        stored = sum(index == sender.index for index, _ in server.log)
        if first > stored:
            raise GuaranteeBroken(f"{server} gets {first} of {sender} and has only those below {stored}")
        new = [(sender.index, number) for number in range(stored, below)]
        reached = max(stored, below)

        def acknowledge() -> None:
            self.loop.trace(server, "acknowledges", sender, "below", reached)
            self.later(lambda: None if side in sender.cut_off else sender.told(reached))

        if new:
            server.commit(new, acknowledge, self.loop.now)
        else:
            acknowledge()

    def _watch(self) -> None:
        """Let senders check the role of their server, notice lost servers, and repeat messages."""
        for sender in self.senders:
            sender.becomes(mirroring.tick(sender.pair, self.loop.now))
            if sender.pair.chosen is not None:
                sender.hear(sender.pair.chosen)
            if self.loop.random.random() < 1.0 / RETRY_DELAY_S:
                sender.transmit()
        self.loop.after(1.0, self._watch)

    # ---------------------------------------------------------------- servers

    def _replicate(self) -> None:
        """Copy the primary's log to its standby, and finish the commits that waited for it."""
        primary, standby = self.servers[self.primary], self.servers[1 - self.primary]
        if self.is_replicating and primary.is_up and standby.is_up and standby.is_standby:
            standby.log, standby.timeline = list(primary.log), primary.timeline
            primary.is_synchronous = True
            done, primary.busy = primary.busy, None
            if done is not None:
                done()
        self.loop.after(self.loop.random.random() * 0.2, self._replicate)

    def _operate(self) -> None:
        """Act as the operator: promote the standby of a lost primary, and make a returning primary a standby."""
        random = self.loop.random
        primary, standby = self.servers[self.primary], self.servers[1 - self.primary]
        if (
            not (primary.is_up and self.is_replicating)
            and standby.is_up
            and standby.is_standby
            and primary.is_synchronous
        ):
            if random.random() < 0.5:
                self.promotions += 1
                standby.is_standby, standby.is_synchronous, standby.timeline = False, False, primary.timeline + 1
                self.primary, self.is_replicating = 1 - self.primary, True
                standby.start(self.loop.now)
                self.loop.trace("operator", "promotes", standby)
        elif standby.is_up and not standby.is_standby and random.random() < 0.3:
            standby.crash()
            standby.is_standby, standby.is_synchronous = True, False
            standby.start(self.loop.now)
            self.loop.trace("operator", "makes a standby of", standby)
        if self.loop.now < FAULTY_TIME_S:
            self.loop.after(random.random() * 10, self._operate)

    # ---------------------------------------------------------------- faults

    def _trouble(self) -> None:
        random = self.loop.random
        if self.loop.now >= FAULTY_TIME_S:
            return
        server = random.choice(self.servers)
        sender = random.choice(self.senders)
        match random.randrange(6):
            case 0 | 1 if server.is_up:
                self.loop.trace(server, "crashes")
                server.crash()
                self.loop.after(random.random() * 30, lambda: self._restart(server))
            case 2:
                self.is_replicating = not self.is_replicating
                self.loop.trace("replication", "is on" if self.is_replicating else "is cut")
            case 3:
                sender.cut_off = set(random.sample((0, 1), random.randint(0, 2)))
                self.loop.trace(sender, "cannot reach", sorted(sender.cut_off))
            case 4:
                sender.cut_off = set()
            case _:
                sender.forget()
        self.loop.after(random.random() * 10, self._trouble)

    def _restart(self, server: _Server) -> None:
        if not server.is_up:
            self.loop.trace(server, "comes back")
            server.start(self.loop.now)

    def _heal(self) -> None:
        """Stop all faults, and make the other server a standby."""
        self.is_replicating = True
        for sender in self.senders:
            sender.cut_off = set()
        primary, standby = self.servers[self.primary], self.servers[1 - self.primary]
        standby.crash()
        standby.is_standby = True
        for server in (primary, standby):
            if not server.is_up:
                server.start(self.loop.now)


def run(seed: int, trace: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed.

    Raises:
        GuaranteeBroken: a guarantee was broken. Another run of the seed breaks it again.
    """
    return Run(seed, trace).finish()
