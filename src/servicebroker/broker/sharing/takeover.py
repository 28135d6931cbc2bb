"""The state machine of a process until it serves the instance: phases, events, and the actions for each.

Several processes may want to serve an instance; one does. It holds the lease (an advisory lock), its server is no
standby, and a commit has proved that the server is the principal of its cluster. The others wait. A process that waits
for the lease has no connections to peers. A process whose server is a standby reports that to peers, and drops
messages.

Each connection to the database begins at `Phase.ASKING`. The caller (`broker/daemon.py`) carries out the actions of a
step in order. If an action ends with an event, the remaining actions are dropped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.protocol.mirroring import KnownTimeline, RoleReport

PROMOTION_INTERVAL_S = 0.5  # seconds between checks whether the standby was promoted
LEASE_INTERVAL_S = 2.0  # seconds between attempts to get the lease
PROOF_INTERVAL_S = 1.0  # seconds until the next attempt to commit


class Phase(StrEnum):
    """The phase of a process."""

    ASKING = "ASKING"  # asks for the role of its server
    MIRRORING = "MIRRORING"  # its server is a standby
    CONTENDING = "CONTENDING"  # tries to get the lease
    STANDING_BY = "STANDING_BY"  # another process has the lease
    PROVING = "PROVING"  # tries to commit, which proves that its server is the principal
    SERVING = "SERVING"
    ABANDONED = "ABANDONED"  # has given this connection up


class Event(StrEnum):
    """An event before the process serves."""

    MIRROR = "its server is a standby"
    PRIMARY = "its server is not a standby"
    HELD = "another process has the lease"
    WON = "it has the lease"
    PROVED = "a commit has succeeded"
    UNPROVED = "a commit has failed, or another server was promoted"


class TakeoverAction(StrEnum):
    """An action that a step asks for."""

    ASK_ROLE = "ask the server for its role"
    ANNOUNCE_MIRROR = "tell peers that the server is a standby"
    LOG_MIRROR = "log that it waits as the mirror"
    DROP_ARRIVALS = "drop the messages of peers"
    APPLY_POLICY = "apply the stored endpoint"
    WAIT_FOR_PROMOTION = "wait for a promotion"
    LOG_PROMOTED = "log that it takes over"
    ANNOUNCE_DOUBT = "tell peers that its role is in doubt"
    TRY_LEASE = "try to get the lease"
    LOG_STANDBY = "log that it stands by"
    STOP_LISTENING = "close all connections with peers"
    WAIT_FOR_LEASE = "wait for the lease"
    PROVE = "commit, and wait for the synchronous standby"
    REPORT = "report to doctor why it does not serve"
    WAIT_FOR_PROOF = "wait until the next commit"
    SERVE = "serve"
    DISCONNECT = "close this connection"


class Step(NamedTuple):
    """The next phase, and the actions on the way to it."""

    after: Phase
    actions: tuple[TakeoverAction, ...] = ()


FIRST_ACTIONS = (TakeoverAction.ASK_ROLE,)
_WAIT_AS_MIRROR = (
    TakeoverAction.DROP_ARRIVALS,
    TakeoverAction.APPLY_POLICY,
    TakeoverAction.WAIT_FOR_PROMOTION,
    TakeoverAction.ASK_ROLE,
)
_WAIT_FOR_LEASE = (TakeoverAction.WAIT_FOR_LEASE, TakeoverAction.TRY_LEASE)
_PROVE = Step(Phase.PROVING, (TakeoverAction.APPLY_POLICY, TakeoverAction.PROVE))

STEPS: dict[tuple[Phase, Event], Step] = {
    (Phase.ASKING, Event.MIRROR): Step(
        Phase.MIRRORING, (TakeoverAction.ANNOUNCE_MIRROR, TakeoverAction.LOG_MIRROR, *_WAIT_AS_MIRROR)
    ),
    (Phase.ASKING, Event.PRIMARY): Step(Phase.CONTENDING, (TakeoverAction.ANNOUNCE_DOUBT, TakeoverAction.TRY_LEASE)),
    (Phase.MIRRORING, Event.MIRROR): Step(Phase.MIRRORING, (TakeoverAction.ANNOUNCE_MIRROR, *_WAIT_AS_MIRROR)),
    (Phase.MIRRORING, Event.PRIMARY): Step(
        Phase.CONTENDING, (TakeoverAction.ANNOUNCE_DOUBT, TakeoverAction.LOG_PROMOTED, TakeoverAction.TRY_LEASE)
    ),
    (Phase.CONTENDING, Event.HELD): Step(
        Phase.STANDING_BY, (TakeoverAction.LOG_STANDBY, TakeoverAction.STOP_LISTENING, *_WAIT_FOR_LEASE)
    ),
    (Phase.CONTENDING, Event.WON): _PROVE,
    (Phase.STANDING_BY, Event.HELD): Step(Phase.STANDING_BY, _WAIT_FOR_LEASE),
    (Phase.STANDING_BY, Event.WON): _PROVE,
    (Phase.PROVING, Event.MIRROR): Step(Phase.ABANDONED, (TakeoverAction.DISCONNECT,)),
    (Phase.PROVING, Event.UNPROVED): Step(
        Phase.PROVING,
        (TakeoverAction.ANNOUNCE_DOUBT, TakeoverAction.REPORT, TakeoverAction.WAIT_FOR_PROOF, TakeoverAction.PROVE),
    ),
    (Phase.PROVING, Event.PROVED): Step(Phase.SERVING, (TakeoverAction.SERVE,)),
}


class Takeover:
    """The phase of one process on one connection."""

    def __init__(self) -> None:
        self.phase = Phase.ASKING

    def on_event(self, event: Event) -> tuple[TakeoverAction, ...]:
        """Enter the next phase. Returns the actions to carry out.

        Raises:
            RuntimeError: the event cannot happen in this phase.
        """
        step = STEPS.get((self.phase, event))
        if step is None:
            raise RuntimeError(f"A process is {self.phase}, and {event}: there is no step for this (a bug).")
        self.phase = step.after
        return step.actions


class Challenges:
    """The higher timelines of this cluster that peers have reported: each means that another server was promoted."""

    def __init__(self) -> None:
        self._highest = KnownTimeline()  # the last new one
        self._refuted = KnownTimeline()  # the one that a synchronous commit has refuted

    def take(self, known: KnownTimeline) -> None:
        """Handle the report of a peer that it knows a higher timeline of this cluster.

        Raises:
            InstanceError: this server must prove again that it is the principal.
        """
        if known not in (self._highest, self._refuted):
            self._highest = known
            raise InstanceError(
                f"A peer has seen timeline {known.timeline} of this cluster: another server was promoted. "
                "If this server is not the primary any more, shut it down."
            )

    def objection(self, role_report: RoleReport) -> str:
        """Return why this server cannot be the principal; '' if a commit can prove that it is."""
        is_challenged = self._highest.system == role_report.system and self._highest.timeline > role_report.timeline
        if is_challenged and not role_report.is_synchronous:
            return (
                f"Another server of this cluster is on timeline {self._highest.timeline}, this one "
                f"on {role_report.timeline}: it takes and sends no messages. "
                "Make it a standby of the other one (pg_rewind)."
            )
        return ""

    def refute(self) -> None:
        """Record that a commit has reached the standby, which refutes the reported promotion."""
        self._refuted = self._highest
