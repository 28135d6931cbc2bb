"""Mirrored routes: which of the two brokers of a pair is the principal, the active one (decision 105).

A mirrored pair is a PostgreSQL primary and its standby, each with a daemon. The decision needs only the last answer of
each of the two, or that it cannot be reached. A broker is the principal if its server is not a standby and has just
committed. If both claim to be it, the higher timeline wins, since each promotion begins a new one. Known timelines are
stored, so that a former primary that comes back is recognized.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple, TypeVar

ANSWER_TIMEOUT_S = 3.0  # seconds that a broker has for its answer; then it counts as unreachable
ROLE_QUERY_INTERVAL_S = 2.0  # seconds between questions while it is unknown which broker is the principal
NEVER = float("inf")

T = TypeVar("T")


class Role(IntEnum):
    """The role that a broker states for itself."""

    MIRROR = 0  # its server is a standby: it accepts no messages
    PRINCIPAL = 1
    IN_DOUBT = 2  # its server cannot be reached, or does not commit


class RoleReport(NamedTuple):
    """The answer of a broker to the question whether it is the principal (frame STANDING).

    Attributes:
        system: the identifier of the PostgreSQL cluster: a primary and its standbys have the same one.
        timeline: the timeline of the server; 0 if unknown.
        is_synchronous: its commits wait for a synchronous standby.
        signature: the principal's signature of cluster and timeline. The other half of the pair verifies it.
    """

    role: Role
    system: str = ""
    timeline: int = 0
    is_synchronous: bool = False
    signature: bytes = b""


IN_DOUBT = RoleReport(Role.IN_DOUBT)


class KnownTimeline(NamedTuple):
    """The highest timeline that this instance knows of a cluster, and the signature that proves it."""

    system: str = ""
    timeline: int = 0
    signature: bytes = b""

    def after(self, role_report: RoleReport) -> KnownTimeline:
        """Return the knowledge after an answer of a broker. A new cluster begins with its own timelines."""
        if role_report.role is Role.IN_DOUBT or not role_report.system:
            return self
        reported = KnownTimeline(*role_report[1:3], role_report.signature)
        if role_report.system != self.system:
            return reported if role_report.role is Role.PRINCIPAL else self
        if reported.timeline == self.timeline:
            return self._replace(signature=self.signature or reported.signature)
        return max(self, reported, key=lambda known: known.timeline)


def statement(system: str, timeline: int) -> bytes:
    """Return the statement that a principal signs."""
    return f"servicebroker standing 1 {timeline} {system}".encode()


class BrokerStatus(Enum):
    """The status of one broker of a pair; the value is its text in explanations."""

    UNANSWERED = "has not answered yet"
    UNREACHABLE = "cannot be reached"
    MIRROR = "says that it is the mirror"
    IN_DOUBT = "says that it cannot commit, or is not in service"
    OUTDATED = "claims to be the principal on a timeline that a promotion has ended"
    PRINCIPAL = "says that it is the principal"


class Claim(Enum):
    """The claim of a broker to be the principal; OPEN until it has answered."""

    YES, NO, OPEN = "yes", "no", "open"


CLAIMS = {
    BrokerStatus.PRINCIPAL: Claim.YES,
    BrokerStatus.UNANSWERED: Claim.OPEN,
    BrokerStatus.UNREACHABLE: Claim.NO,
    BrokerStatus.MIRROR: Claim.NO,
    BrokerStatus.IN_DOUBT: Claim.NO,
    BrokerStatus.OUTDATED: Claim.NO,
}

# While no broker is chosen: (claim of broker 0, claim of broker 1) -> the broker to choose, None to wait.
CHOICE: dict[tuple[Claim, Claim], int | None] = {
    (Claim.YES, Claim.NO): 0,
    (Claim.NO, Claim.YES): 1,
    (Claim.YES, Claim.YES): None,  # equal timelines, or two clusters: it is unknown which one is right
    (Claim.YES, Claim.OPEN): None,
    (Claim.OPEN, Claim.YES): None,
    (Claim.NO, Claim.NO): None,
    (Claim.NO, Claim.OPEN): None,
    (Claim.OPEN, Claim.NO): None,
    (Claim.OPEN, Claim.OPEN): None,
}

# While a broker is chosen: its claim -> whether it stays chosen. The other broker is not asked.
STAYS: dict[Claim, bool] = {Claim.YES: True, Claim.OPEN: True, Claim.NO: False}


class Pair(NamedTuple):
    """The state of a mirrored route in one sender: its two brokers, 0 at ADDRESS and 1 at MIRROR_ADDRESS.

    Attributes:
        chosen: the broker that gets messages; None: neither does.
        statuses: the status of each broker.
        role_reports: the last answer of each broker.
        reasons: why a broker cannot be reached; '' if it can.
        known: the highest known timeline.
        asked_at: the time of the last question.
        questions: the number of questions so far. When it rises, the caller asks both brokers.
    """

    chosen: int | None = None
    statuses: tuple[BrokerStatus, BrokerStatus] = (BrokerStatus.UNANSWERED, BrokerStatus.UNANSWERED)
    role_reports: tuple[RoleReport, RoleReport] = (IN_DOUBT, IN_DOUBT)
    reasons: tuple[str, str] = ("", "")
    known: KnownTimeline = KnownTimeline()
    asked_at: float = 0.0
    questions: int = 1

    @property
    def wake_at(self) -> float:
        """The time at which `tick` must be called."""
        if self.chosen is not None:
            return NEVER
        return self.asked_at + (ANSWER_TIMEOUT_S if BrokerStatus.UNANSWERED in self.statuses else ROLE_QUERY_INTERVAL_S)


def first_use(known: KnownTimeline, now: float) -> Pair:
    """Return a pair without answers yet: the caller asks both brokers now."""
    return Pair(known=known, asked_at=now)


def heard(pair: Pair, side: int, role_report: RoleReport, now: float) -> Pair:
    """Return the pair after broker `side` has answered."""
    known, other = pair.known.after(role_report), 1 - side
    role_reports = _with(pair.role_reports, side, role_report)
    claims = pair.statuses[other] is BrokerStatus.PRINCIPAL
    if claims and role_reports[other].system == known.system:  # unless the cluster was created again
        known = known.after(role_reports[other])
    statuses = _with(pair.statuses, side, _word(role_report, known))
    if claims:
        statuses = _with(statuses, other, _word(role_reports[other], known))
    reasons = _with(pair.reasons, side, "")
    return _decided(pair._replace(statuses=statuses, role_reports=role_reports, reasons=reasons, known=known), now)


def unreachable(pair: Pair, side: int, reason: str, now: float) -> Pair:
    """Return the pair after broker `side` could not be reached, or its connection was lost."""
    statuses, reasons = _with(pair.statuses, side, BrokerStatus.UNREACHABLE), _with(pair.reasons, side, reason)
    return _decided(pair._replace(statuses=statuses, reasons=reasons), now)


def tick(pair: Pair, now: float) -> Pair:
    """Return the pair after time has passed.

    A broker that has not answered in `ANSWER_TIMEOUT_S` counts as unreachable. If none is chosen, both are asked again.
    """
    if now < pair.wake_at:
        return pair
    if BrokerStatus.UNANSWERED in pair.statuses:
        for side in (0, 1):
            if pair.statuses[side] is BrokerStatus.UNANSWERED:
                pair = unreachable(pair, side, f"no answer in {ANSWER_TIMEOUT_S:g} seconds", now)
    return pair if pair.chosen is not None else _asked(pair, now)


def explain_choice(pair: Pair, addresses: tuple[object, object]) -> str:
    """Return a sentence: which broker was chosen and why, or why neither was."""
    sides = [f"{addresses[side]} {_explained_side(pair, side)}" for side in (0, 1)]
    if pair.chosen is None:
        return f"Neither is known to be the principal: {sides[0]}; {sides[1]}."
    role_report = pair.role_reports[pair.chosen]
    standby = "its commits wait for a standby" if role_report.is_synchronous else "no standby holds what it commits"
    return f"{addresses[pair.chosen]} is the principal: it says so, on timeline {role_report.timeline}, and {standby}."


def _explained_side(pair: Pair, side: int) -> str:
    reason = f" ({pair.reasons[side]})" if pair.reasons[side] else ""
    return pair.statuses[side].value + reason


def _decided(pair: Pair, now: float) -> Pair:
    if pair.chosen is None:
        first, second = (CLAIMS[word] for word in pair.statuses)
        return pair._replace(chosen=CHOICE[first, second])
    if STAYS[CLAIMS[pair.statuses[pair.chosen]]]:
        return pair
    other = 1 - pair.chosen  # its last answer may be old, so it is asked again
    statuses, reasons = _with(pair.statuses, other, BrokerStatus.UNANSWERED), _with(pair.reasons, other, "")
    return _asked(pair._replace(chosen=None, statuses=statuses, reasons=reasons), now)


def _asked(pair: Pair, now: float) -> Pair:
    return pair._replace(asked_at=now, questions=pair.questions + 1)


def _word(role_report: RoleReport, known: KnownTimeline) -> BrokerStatus:
    if role_report.role is Role.PRINCIPAL:
        is_old = role_report.system == known.system and role_report.timeline < known.timeline
        return BrokerStatus.OUTDATED if is_old else BrokerStatus.PRINCIPAL
    return BrokerStatus.MIRROR if role_report.role is Role.MIRROR else BrokerStatus.IN_DOUBT


def _with(pair: tuple[T, T], side: int, value: T) -> tuple[T, T]:
    return (value, pair[1]) if side == 0 else (pair[0], value)
