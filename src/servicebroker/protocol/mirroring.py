"""Mirrored routes: the choice of the principal among the two brokers of a pair (decision 105).

A mirrored pair is a PostgreSQL primary and its standby, each with a daemon. The decision needs only the last answer of
each of the two, or that it cannot be reached. A broker is the principal if its server is not a standby and has just
committed. If both say so, the higher timeline wins, since each promotion begins a new one. Seen timelines are
remembered, so that a former primary that comes back is recognized.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple, TypeVar

ANSWER_TIMEOUT_S = 3.0  # seconds that a broker has for its answer; then it counts as unreachable
ASK_AGAIN = 2.0  # seconds between questions while neither of the two is known to be the principal
NEVER = float("inf")

T = TypeVar("T")


class Role(IntEnum):
    """The role that a broker states for itself."""

    MIRROR = 0  # its server is a standby: it takes no messages
    PRINCIPAL = 1
    IN_DOUBT = 2  # its server cannot be reached, or does not commit


class Standing(NamedTuple):
    """The answer to the question who is the principal.

    Attributes:
        system: the identifier of the PostgreSQL cluster: the same in a primary and its standbys.
        timeline: of the server; 0 when it is not known.
        is_guarded: its commits wait for a synchronous standby.
        evidence: a principal's signature of cluster and timeline; its other half can tell by it that this is true.
    """

    role: Role
    system: str = ""
    timeline: int = 0
    is_guarded: bool = False
    evidence: bytes = b""


IN_DOUBT = Standing(Role.IN_DOUBT)


class Known(NamedTuple):
    """The highest timeline seen of a cluster, and the evidence for it."""

    system: str = ""
    timeline: int = 0
    evidence: bytes = b""

    def after(self, standing: Standing) -> Known:
        """Return the state after an answer of a broker. A newly created cluster begins to count again."""
        if standing.role is Role.IN_DOUBT or not standing.system:
            return self
        said = Known(*standing[1:3], standing.evidence)
        if standing.system != self.system:
            return said if standing.role is Role.PRINCIPAL else self
        if said.timeline == self.timeline:
            return self._replace(evidence=self.evidence or said.evidence)
        return max(self, said, key=lambda one: one.timeline)


def statement(system: str, timeline: int) -> bytes:
    """Return the statement that a principal signs."""
    return f"servicebroker standing 1 {timeline} {system}".encode()


class Word(Enum):
    """The knowledge about one broker of a pair, in the words of an explanation."""

    UNHEARD = "has not answered yet"
    UNREACHABLE = "cannot be reached"
    MIRROR = "says that it is the mirror"
    IN_DOUBT = "says that it cannot commit, or is not in service"
    OUTDATED = "claims to be the principal on a timeline that a promotion has ended"
    PRINCIPAL = "says that it is the principal"


class Claimant(Enum):
    """The meaning of a word: whether that broker claims to be the principal."""

    YES, NO, OPEN = "yes", "no", "open"


CLAIMS = {
    Word.PRINCIPAL: Claimant.YES,
    Word.UNHEARD: Claimant.OPEN,
    Word.UNREACHABLE: Claimant.NO,
    Word.MIRROR: Claimant.NO,
    Word.IN_DOUBT: Claimant.NO,
    Word.OUTDATED: Claimant.NO,
}

# While neither is chosen: which one the two words choose. One is waited for as long as it may yet say the opposite.
CHOICE: dict[tuple[Claimant, Claimant], int | None] = {
    (Claimant.YES, Claimant.NO): 0,
    (Claimant.NO, Claimant.YES): 1,
    (Claimant.YES, Claimant.YES): None,  # the same timeline, or two clusters: both are in doubt
    (Claimant.YES, Claimant.OPEN): None,
    (Claimant.OPEN, Claimant.YES): None,
    (Claimant.NO, Claimant.NO): None,
    (Claimant.NO, Claimant.OPEN): None,
    (Claimant.OPEN, Claimant.NO): None,
    (Claimant.OPEN, Claimant.OPEN): None,
}

# While one is chosen: whether it stays so, by its own word. The other one is not asked.
STAYS: dict[Claimant, bool] = {Claimant.YES: True, Claimant.OPEN: True, Claimant.NO: False}


class Pair(NamedTuple):
    """The two brokers of a mirrored route, as one sender sees them.

    Attributes:
        chosen: 0 the one at ADDRESS, 1 the one at MIRROR_ADDRESS, None: neither gets messages.
        words: what is known of each.
        standings: what each has said last.
        reasons: why each cannot be reached, where that is so.
        known: the highest timeline seen.
        asked_at: when the question was put that is open, or put last.
        questions: how often it was put: whoever drives this asks both when the number rises.
    """

    chosen: int | None = None
    words: tuple[Word, Word] = (Word.UNHEARD, Word.UNHEARD)
    standings: tuple[Standing, Standing] = (IN_DOUBT, IN_DOUBT)
    reasons: tuple[str, str] = ("", "")
    known: Known = Known()
    asked_at: float = 0.0
    questions: int = 1

    @property
    def wake_at(self) -> float:
        """When `tick` has something to do."""
        if self.chosen is not None:
            return NEVER
        return self.asked_at + (ANSWER_TIMEOUT_S if Word.UNHEARD in self.words else ASK_AGAIN)


def first_use(known: Known, now: float) -> Pair:
    """Return a pair of which at most a timeline is known: both brokers are asked now."""
    return Pair(known=known, asked_at=now)


def heard(pair: Pair, side: int, standing: Standing, now: float) -> Pair:
    """One of the two has said what it is."""
    known, other = pair.known.after(standing), 1 - side
    standings = _with(pair.standings, side, standing)
    claims = pair.words[other] is Word.PRINCIPAL
    if claims and standings[other].system == known.system:  # another cluster may have been seen meanwhile
        known = known.after(standings[other])
    words = _with(pair.words, side, _word(standing, known))
    if claims:
        words = _with(words, other, _word(standings[other], known))
    reasons = _with(pair.reasons, side, "")
    return _decided(pair._replace(words=words, standings=standings, reasons=reasons, known=known), now)


def unreachable(pair: Pair, side: int, reason: str, now: float) -> Pair:
    """One of the two cannot be reached, or the connection with it broke."""
    words, reasons = _with(pair.words, side, Word.UNREACHABLE), _with(pair.reasons, side, reason)
    return _decided(pair._replace(words=words, reasons=reasons), now)


def tick(pair: Pair, now: float) -> Pair:
    """Time has passed: who has not answered counts as unreachable; while neither is chosen, both are asked again."""
    if now < pair.wake_at:
        return pair
    if Word.UNHEARD in pair.words:
        for side in (0, 1):
            if pair.words[side] is Word.UNHEARD:
                pair = unreachable(pair, side, f"no answer in {ANSWER_TIMEOUT_S:g} seconds", now)
    return pair if pair.chosen is not None else _asked(pair, now)


def explained(pair: Pair, addresses: tuple[object, object]) -> str:
    """Which of the two was chosen and why, or why neither is, in a sentence."""
    told = [f"{addresses[side]} {_said(pair, side)}" for side in (0, 1)]
    if pair.chosen is None:
        return f"Neither is known to be the principal: {told[0]}; {told[1]}."
    standing = pair.standings[pair.chosen]
    guard = "its commits wait for a standby" if standing.is_guarded else "no standby holds what it commits"
    return f"{addresses[pair.chosen]} is the principal: it says so, on timeline {standing.timeline}, and {guard}."


def _said(pair: Pair, side: int) -> str:
    reason = f" ({pair.reasons[side]})" if pair.reasons[side] else ""
    return pair.words[side].value + reason


def _decided(pair: Pair, now: float) -> Pair:
    if pair.chosen is None:
        first, second = (CLAIMS[word] for word in pair.words)
        return pair._replace(chosen=CHOICE[first, second])
    if STAYS[CLAIMS[pair.words[pair.chosen]]]:
        return pair
    other = 1 - pair.chosen  # its last answer may be long ago
    words, reasons = _with(pair.words, other, Word.UNHEARD), _with(pair.reasons, other, "")
    return _asked(pair._replace(chosen=None, words=words, reasons=reasons), now)


def _asked(pair: Pair, now: float) -> Pair:
    return pair._replace(asked_at=now, questions=pair.questions + 1)


def _word(standing: Standing, known: Known) -> Word:
    if standing.role is Role.PRINCIPAL:
        is_old = standing.system == known.system and standing.timeline < known.timeline
        return Word.OUTDATED if is_old else Word.PRINCIPAL
    return Word.MIRROR if standing.role is Role.MIRROR else Word.IN_DOUBT


def _with(pair: tuple[T, T], side: int, value: T) -> tuple[T, T]:
    return (value, pair[1]) if side == 0 else (pair[0], value)
