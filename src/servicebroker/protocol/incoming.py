"""The receiving half of a conversation endpoint: drop duplicates, keep early messages, acknowledge stored ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from servicebroker.protocol.envelope import MAXIMUM_RANGES, Acknowledgement, Content, Part
from servicebroker.protocol.limits import LIMITS, Limits


class Deliver(NamedTuple):
    """Messages that are next in order, numbered from `number` on: put them in the target queue."""

    number: int
    parts: tuple[Part, ...]


class Keep(NamedTuple):
    """A fragment, or a whole message that came too early (fragment 0 of 1): keep it, with status 2."""

    number: int
    fragment: int
    fragments: int
    part: Part


class Complete(NamedTuple):
    """All of a message is kept and it is next in order: put it together and into the target queue."""

    number: int


class Discard(NamedTuple):
    """Delete the messages from `first` on and below `below`: the conversation failed, and they stay incomplete.

    What lies below `first` is next in order, and is delivered: perhaps by this batch, or it waits beside a queue.
    """

    first: int
    below: int


Step = Deliver | Keep | Complete | Discard


class Batch(NamedTuple):
    """The steps of one transaction, in their order. The stored count goes from `expected` to `reached`.

    `token` is that of message `reached` - 1.
    """

    expected: int
    reached: int
    steps: list[Step]
    token: bytes | None = None

    @property
    def fragments(self) -> int:
        """Return how many have come to be stored; a message that came whole is one."""
        return _fragments(self.steps)

    def has(self, number: int) -> bool:
        """Return whether a message of this number, or a fragment of it, is stored."""
        for step in self.steps:
            if isinstance(step, Deliver):
                if step.number <= number < step.number + len(step.parts):
                    return True
            elif isinstance(step, Keep | Complete) and step.number == number:
                return True
        return False


def _fragments(steps: list[Step]) -> int:
    return sum(len(step.parts) if isinstance(step, Deliver) else isinstance(step, Keep) for step in steps)


class Verdict(Enum):
    """The outcome of an arrival."""

    NEW = "new"
    DUPLICATE = "duplicate"  # already stored: acknowledge it again
    PENDING = "pending"  # waits for its commit: the acknowledgement will come
    TOO_FAR = "too far"  # the sender's retry brings it again
    AFTER_END = "after the end"
    INCONSISTENT = "inconsistent"
    MISSHAPEN = "misshapen"  # no sender cuts a message like that
    OVER_QUOTA = "over quota"  # of its peer, in all of its conversations; the sender's retry brings it again


class Allowance(NamedTuple):
    """The bytes that a peer's quota allows: fragments of the next message, and messages that come too early."""

    current: bool = True
    ahead: bool = True


FREE = Allowance()


class Begun(NamedTuple):
    """The incomplete messages of one conversation.

    `number` is its message next in order, which says to have `declared` bytes, 0 while nothing of it has come, and
    counts for `current`. `ahead` is what later messages count for.
    """

    number: int
    declared: int
    current: int
    ahead: int


class Kept(NamedTuple):
    """The received fragments of one message, and their bytes.

    `bounds` are the runs of fragments, in order: of each its first fragment, and the one behind its last. So a message
    takes memory for what has come of it, however many fragments it says that it has.
    """

    fragments: int
    bounds: tuple[int, ...]
    size: int
    content: Content
    token: bytes | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether none is missing."""
        return self.bounds == (0, self.fragments)

    @property
    def arrived(self) -> int:
        """Return how many fragments have come."""
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The runs of fragments that have come: first and last."""
        return [(first, behind - 1) for first, behind in zip(self.bounds[::2], self.bounds[1::2], strict=True)]

    def has(self, fragment: int) -> bool:
        """Return whether this fragment has come."""
        return bool(bisect_right(self.bounds, fragment) & 1)

    def has_room(self, fragment: int, limits: Limits) -> bool:
        """Return whether a fragment that has not come lies beside one that has, or may begin another run."""
        if len(self.bounds) < 2 * limits.kept_ranges:
            return True
        return fragment in self.bounds or fragment + 1 in self.bounds

    def with_fragment(self, fragment: int, size: int) -> Kept:
        """Return a copy with one more fragment of `size` bytes, which has not come before."""
        bounds = self.bounds
        place = bisect_right(bounds, fragment)
        follows = place > 0 and bounds[place - 1] == fragment
        precedes = place < len(bounds) and bounds[place] == fragment + 1
        new = ((fragment,) if not follows else ()) + ((fragment + 1,) if not precedes else ())
        return self._replace(bounds=bounds[: place - follows] + new + bounds[place + precedes :], size=self.size + size)

    def cost(self, limits: Limits) -> int:
        """Return the bytes that it counts for."""
        return self.size + limits.kept_cost + self.arrived * limits.message_cost

    def is_possible(self, limits: Limits) -> bool:
        """Return whether its fragments can be those of one message, incomplete or whole (fragment 0 of 1)."""
        if self.fragments == 1:
            return self.bounds == (0, 1)
        bounds, unit = self.bounds, limits.fragment_size
        ascends = all(before < after for before, after in zip((-1, *bounds), bounds, strict=False))
        if not 2 <= len(bounds) <= 2 * limits.kept_ranges or len(bounds) % 2 or not ascends:
            return False
        if not bounds[-1] <= self.fragments <= limits.most_fragments:
            return False
        full = self.arrived - (bounds[-1] == self.fragments)
        return full * unit <= self.size <= self.arrived * unit and (self.size > full * unit or full == self.arrived)


def impossible(next_number: int, kept: Mapping[int, Kept], limits: Limits = LIMITS) -> list[int]:
    """Return the messages that no `Incoming` with these limits keeps behind `next_number`; of too many, the last."""
    found, ahead = [], 0
    for number in sorted(kept):
        one = kept[number]
        is_early = number != next_number
        cost = one.cost(limits) if is_early else 0
        is_far = number >= next_number + limits.ahead_messages
        if is_far or not one.is_possible(limits) or ahead + cost > limits.ahead_bytes:
            found.append(number)
        else:
            ahead += cost
    return found


_NOTHING: Final[dict[int, Kept]] = {}  # shared by all that keep nothing, and never written


class Progress:
    """The progress of one direction: all below `next` has arrived, and of later messages those in `kept`.

    `token` is that of message `next` - 1, where it is known.
    """

    __slots__ = ("_acknowledgement", "final", "held", "kept", "limits", "next", "token")

    def __init__(
        self,
        next_number: int = 0,
        kept: dict[int, Kept] | None = None,
        final: int | None = None,
        token: bytes | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.next = next_number
        self.token = token
        self.kept = kept or _NOTHING
        self.held = sum(one.cost(limits) for one in self.kept.values())  # bytes that it counts for
        self.final = final  # the number of the message that ends the conversation, once it is known
        self.limits = limits
        self._acknowledgement: Acknowledgement | None = None  # until something changes

    def copy(self) -> Progress:
        """Return a copy that changes by itself."""
        twin = Progress(self.next, None, self.final, self.token, self.limits)
        twin.kept = self.kept.copy() or _NOTHING
        twin.held, twin._acknowledgement = self.held, self._acknowledgement
        return twin

    @property
    def ahead(self) -> int:
        """The bytes counted for stored parts of messages after the next one."""
        current = self.kept.get(self.next)
        return self.held if current is None else self.held - current.cost(self.limits)

    @property
    def is_closed(self) -> bool:
        """Return whether the message that ends the conversation was reached."""
        return self.final is not None and self.next > self.final

    def has(self, number: int, fragment: int) -> bool:
        """Return whether this fragment has come."""
        if number < self.next:
            return True
        kept = self.kept.get(number)
        return kept is not None and kept.has(fragment)

    def add_run(self, number: int, parts: tuple[Part, ...]) -> Step:
        """Take in whole messages that are next in order, when nothing is kept; only the last may end anything."""
        self.next = number + len(parts)
        self.token = parts[-1].token
        self._acknowledgement = None
        if parts[-1].content is not Content.DATA:
            self.final = self.next - 1
        return Deliver(number, parts)

    def add(self, number: int, fragment: int, fragments: int, part: Part) -> list[Step]:
        """Take in a fragment that has not come yet. Returns what the store has to do."""
        if part.content is not Content.DATA:
            self.final = number
        if part.content is Content.ERROR and fragments == 1:
            return [*self._jump_to(number), self.add_run(number, (part,))]
        if number == self.next and fragments == 1:
            return [self.add_run(number, (part,)), *self._complete()]
        self._acknowledgement = None
        self.kept = self.kept or {}
        before = self.kept.get(number)
        if before is None:
            before = Kept(fragments, (), 0, part.content, part.token)
            self.held += self.limits.kept_cost
        size = len(part.body or b"")
        self.held += size + self.limits.message_cost
        kept = self.kept[number] = before.with_fragment(fragment, size)
        steps: list[Step] = [Keep(number, fragment, fragments, part)]
        if kept.is_whole and part.content is Content.ERROR:
            steps += self._jump_to(number)
        return [*steps, *self._complete()]

    def _jump_to(self, number: int) -> list[Step]:
        """An error takes the place of everything that has not come; see docs/decisions/050."""
        doomed = [kept for kept in self.kept if kept < number]
        for kept in doomed:
            self._let_go(kept)
        first, self.next = self.next, number
        return [Discard(first, number)] if doomed else []

    def _complete(self) -> list[Step]:
        steps: list[Step] = []
        while (kept := self.kept.get(self.next)) is not None and kept.is_whole:
            self._let_go(self.next)
            self.token = kept.token
            steps.append(Complete(self.next))
            self.next += 1
        return steps

    def _let_go(self, number: int) -> None:
        self.held -= self.kept.pop(number).cost(self.limits)

    def acknowledgement(self) -> Acknowledgement:
        """Return the acknowledgement to send once this is committed; of very many gaps the lowest ones."""
        if not self.kept:
            return Acknowledgement(self.next, token=self.token)
        if self._acknowledgement is None:
            whole, parts = self._lowest_ranges()
            self._acknowledgement = Acknowledgement(self.next, whole, parts, self.token)
        return self._acknowledgement

    def _lowest_ranges(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]:
        """Return ranges of whole messages and of fragments, until the acknowledgement has room for no more of either.

        What is not named travels again: a receiver looks no further than it can tell.
        """
        whole: list[tuple[int, int]] = []
        parts: list[tuple[int, int, int]] = []
        for number in sorted(self.kept):
            kept = self.kept[number]
            if not kept.is_whole:
                parts += [(number, first, last) for first, last in kept.ranges]
            elif whole and whole[-1][1] == number - 1:
                whole[-1] = (whole[-1][0], number)
            else:
                whole.append((number, number))
            if len(whole) > MAXIMUM_RANGES or len(parts) >= MAXIMUM_RANGES:
                break
        return tuple(whole[:MAXIMUM_RANGES]), tuple(parts[:MAXIMUM_RANGES])


class Incoming:
    """Arrivals on their way into the store: one batch at a time is with the caller, who says how it ended."""

    __slots__ = ("_committing", "_limits", "_steps", "_waiting", "is_ack_due", "load", "seen", "stored")

    def __init__(self, stored: Progress) -> None:
        self.stored = stored
        self.seen = stored.copy()
        self.is_ack_due = False
        self._limits = stored.limits
        self._steps: list[Step] = []
        self._waiting = 0  # bytes in them
        self.load = 0  # bytes in them and in the batch that is with the caller, as their sender counts them
        self._committing: Progress | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether something waits for a commit."""
        return bool(self._steps) or self._committing is not None

    def contradicts(self, number: int, parts: tuple[Part, ...], before: bytes | None) -> int | None:
        """Return the number of a message that has come before with other contents, or None.

        What came is numbered from `number` on, behind a message with the token `before`. It is enough to know the last
        message: whoever has sent that one has sent all before it.
        """
        seen = self.seen
        place = seen.next - 1 - number
        theirs = before if place < 0 else parts[place].token if place < len(parts) else None
        if place >= -1 and theirs and seen.token and theirs != seen.token:
            return seen.next - 1
        if seen.kept:  # nearly never; of many that are kept only those that the frame is about
            for place, token in enumerate((before, *(part.token for part in parts)), -1):
                kept = seen.kept.get(number + place)
                if token and kept is not None and kept.token and token != kept.token:
                    return number + place
        return None

    def arrived_run(self, number: int, parts: tuple[Part, ...]) -> bool:
        """Whole messages that follow each other: whether they were taken together.

        That is so when all are next in order and there is room; else nothing has changed, and each is judged by itself.
        """
        seen, size = self.seen, sum([len(part.body) for part in parts if part.body])
        is_next = number == seen.next and not seen.kept and seen.final is None
        if not is_next or self._waiting + size > self._limits.ahead_bytes:
            return False
        self._steps.append(seen.add_run(number, parts))
        self._waiting += size
        self.load += size + len(parts) * self._limits.message_cost
        return True

    def arrived(self, number: int, fragment: int, fragments: int, part: Part, allowance: Allowance = FREE) -> Verdict:
        """One whole message, or one fragment of one."""
        verdict = self._judge(number, fragment, fragments, part, allowance)
        if verdict is Verdict.NEW:
            self._steps += self.seen.add(number, fragment, fragments, part)
            size = len(part.body or b"")
            self._waiting += size
            self.load += size + self._limits.message_cost
        elif verdict is Verdict.DUPLICATE:
            self.is_ack_due = True
        return verdict

    def _judge(self, number: int, fragment: int, fragments: int, part: Part, allowance: Allowance) -> Verdict:
        if fragments > 1 and not self._is_shaped(fragment, fragments, len(part.body or b"")):
            return Verdict.MISSHAPEN
        if self.seen.has(number, fragment):
            return Verdict.DUPLICATE if self.stored.has(number, fragment) else Verdict.PENDING
        final, kept = self.seen.final, self.seen.kept.get(number)
        if final is not None and number > final:
            return Verdict.AFTER_END
        if kept is not None and (kept.fragments, kept.content) != (fragments, part.content):
            return Verdict.INCONSISTENT
        if kept is not None and not kept.has_room(fragment, self._limits):
            return Verdict.TOO_FAR
        if not self._has_room(number, fragments, part):
            return Verdict.TOO_FAR
        is_current = number == self.seen.next
        is_kept = fragments > 1 or not (is_current or part.content is Content.ERROR)
        is_allowed = allowance.current if is_current else allowance.ahead
        return Verdict.OVER_QUOTA if is_kept and not is_allowed else Verdict.NEW

    def _is_shaped(self, fragment: int, fragments: int, size: int) -> bool:
        """Return whether a sender cuts a fragment like that: all are full but the last."""
        limits = self._limits
        if fragments > limits.most_fragments or size > limits.fragment_size:
            return False
        return size == limits.fragment_size or fragment == fragments - 1

    def _has_room(self, number: int, fragments: int, part: Part) -> bool:
        size, limits, seen = len(part.body or b""), self._limits, self.seen
        if self._waiting + size > limits.ahead_bytes:
            return False
        if number == seen.next or (part.content is Content.ERROR and fragments == 1):
            return True
        cost = size + limits.message_cost + (0 if number in seen.kept else limits.kept_cost)
        return number < seen.next + limits.ahead_messages and seen.ahead + cost <= limits.ahead_bytes

    def batch(self) -> Batch | None:
        """Return the batch to store now; None if there is nothing, or if the caller still has the last one."""
        if self._committing is not None or not self._steps:
            return None
        self._committing = self.seen.copy()
        steps, self._steps, self._waiting = self._steps, [], 0
        return Batch(self.stored.next, self._committing.next, steps, self._committing.token)

    def committed(self) -> None:
        """The batch is durable: it may be acknowledged.

        Raises:
            ValueError: there is no batch.
        """
        if self._committing is None:
            raise ValueError("no batch is under way")
        self.stored, self._committing = self._committing, None
        self.load = self._waiting + _fragments(self._steps) * self._limits.message_cost
        self.is_ack_due = True

    @property
    def begun(self) -> Begun | None:
        """The incomplete messages that are kept, or will be with the next batch; None if there are none."""
        seen = self.seen
        if not seen.kept:
            return None
        current, each = seen.kept.get(seen.next), self._limits.unfinished_cost
        if current is None:
            return Begun(seen.next, 0, 0, seen.held + each * len(seen.kept))
        declared, ahead = current.fragments * self._limits.fragment_size, seen.ahead
        return Begun(seen.next, declared, seen.held - ahead + each, ahead + each * (len(seen.kept) - 1))

    def forget_kept(self) -> None:
        """Note that the kept fragments were deleted.

        Raises:
            ValueError: something waits for a commit.
        """
        if self.is_busy:
            raise ValueError("what is kept is being stored")
        stored = self.stored
        final = stored.final if stored.is_closed else None  # else that is the number of the kept one
        self.stored = Progress(stored.next, None, final, stored.token, stored.limits)
        self.seen = self.stored.copy()

    def rolled_back(self) -> None:
        """The batch was not stored: it, and what came after it, is as if it had never arrived."""
        self._committing = None
        self._steps.clear()
        self._waiting = self.load = 0
        self.seen = self.stored.copy()
