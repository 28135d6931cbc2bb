"""The receiving half of a conversation endpoint: drop duplicates, keep early messages, acknowledge stored ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from servicebroker.protocol.envelope import MAXIMUM_RANGES, Acknowledgement, Content, Part
from servicebroker.protocol.limits import LIMITS, Limits


class Deliver(NamedTuple):
    """The step to insert messages into the target queue: they are next in order, from `number` on."""

    number: int
    parts: tuple[Part, ...]


class Keep(NamedTuple):
    """The step to store a fragment, or a whole early message (fragment 0 of 1), with status 2."""

    number: int
    fragment: int
    fragments: int
    part: Part


class Complete(NamedTuple):
    """The step to join the stored fragments of the next message, and insert it into the target queue."""

    number: int


class Discard(NamedTuple):
    """The step to delete incomplete messages of a failed conversation, from `first` on and below `below`.

    Messages below `first` are complete and in order: this batch inserts them, or they wait for a queue.
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
        """The number of received fragments; a whole message counts as one."""
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
    DUPLICATE = "duplicate"  # stored already: acknowledge it again
    PENDING = "pending"  # waits for its commit, which will be acknowledged
    TOO_FAR = "too far"  # beyond the limits; the sender repeats it
    AFTER_END = "after the end"
    INCONSISTENT = "inconsistent"
    MISSHAPEN = "misshapen"  # no sender makes such a fragment
    OVER_QUOTA = "over quota"  # over the quota of its peer for all its conversations; the sender repeats the message


class Allowance(NamedTuple):
    """The messages that a peer's quota allows to store: fragments of the next message, and later (early) messages."""

    current: bool = True
    ahead: bool = True


FREE = Allowance()


class Begun(NamedTuple):
    """The incomplete messages of one conversation.

    `number` is the next message in order. Its sender has `declared` its size in bytes (0 while nothing of it has
    arrived). `current` and `ahead` are the bytes counted for it and for later messages.
    """

    number: int
    declared: int
    current: int
    ahead: int


class Kept(NamedTuple):
    """The received fragments of one message, and their bytes.

    `bounds` are the runs of received fragments in order: the first fragment of a run, and the one after its last. So
    the memory depends on the received fragments, not on the declared number.
    """

    fragments: int
    bounds: tuple[int, ...]
    size: int
    content: Content
    token: bytes | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether no fragment is missing."""
        return self.bounds == (0, self.fragments)

    @property
    def arrived(self) -> int:
        """The number of received fragments."""
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The runs of received fragments: first and last."""
        return [(first, end - 1) for first, end in zip(self.bounds[::2], self.bounds[1::2], strict=True)]

    def has(self, fragment: int) -> bool:
        """Return whether this fragment was received."""
        return bool(bisect_right(self.bounds, fragment) & 1)

    def has_room(self, fragment: int, limits: Limits) -> bool:
        """Return whether a new fragment extends a run, or may begin another one."""
        if len(self.bounds) < 2 * limits.kept_ranges:
            return True
        return fragment in self.bounds or fragment + 1 in self.bounds

    def with_fragment(self, fragment: int, size: int) -> Kept:
        """Return a copy with one more fragment, of `size` bytes, which has not arrived before."""
        bounds = self.bounds
        index = bisect_right(bounds, fragment)
        follows = index > 0 and bounds[index - 1] == fragment
        precedes = index < len(bounds) and bounds[index] == fragment + 1
        new = ((fragment,) if not follows else ()) + ((fragment + 1,) if not precedes else ())
        return self._replace(bounds=bounds[: index - follows] + new + bounds[index + precedes :], size=self.size + size)

    def cost(self, limits: Limits) -> int:
        """Return the bytes that the message counts for in the limits: its fragments and an overhead."""
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


def impossible(next_number: int, kept_messages: Mapping[int, Kept], limits: Limits = LIMITS) -> list[int]:
    """Return the messages that exceed these limits, of those stored from `next_number` on; of too many the last."""
    beyond, ahead = [], 0
    for number in sorted(kept_messages):
        message = kept_messages[number]
        is_early = number != next_number
        cost = message.cost(limits) if is_early else 0
        is_far = number >= next_number + limits.ahead_messages
        if is_far or not message.is_possible(limits) or ahead + cost > limits.ahead_bytes:
            beyond.append(number)
        else:
            ahead += cost
    return beyond


_NO_MESSAGES: Final[dict[int, Kept]] = {}  # shared by all that store nothing, and never changed


class Progress:
    """The received messages of one direction: all below `next`, and later ones in `kept`.

    `token` is that of message `next` - 1, if known.
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
        self.kept = kept or _NO_MESSAGES
        self.held = sum(message.cost(limits) for message in self.kept.values())  # bytes counted for them
        self.final = final  # the number of the message that ends the conversation, once it is known
        self.limits = limits
        self._acknowledgement: Acknowledgement | None = None  # cached until the next change

    def copy(self) -> Progress:
        """Return an independent copy."""
        twin = Progress(self.next, None, self.final, self.token, self.limits)
        twin.kept = self.kept.copy() or _NO_MESSAGES
        twin.held, twin._acknowledgement = self.held, self._acknowledgement
        return twin

    @property
    def ahead(self) -> int:
        """The bytes counted for stored parts of messages after the next one."""
        current = self.kept.get(self.next)
        return self.held if current is None else self.held - current.cost(self.limits)

    @property
    def is_closed(self) -> bool:
        """Return whether the message that ends the conversation has arrived in order."""
        return self.final is not None and self.next > self.final

    def has(self, number: int, fragment: int) -> bool:
        """Return whether this fragment was received."""
        if number < self.next:
            return True
        message = self.kept.get(number)
        return message is not None and message.has(fragment)

    def add_run(self, number: int, parts: tuple[Part, ...]) -> Step:
        """Add whole messages that are next in order. `kept` is empty; only the last one may end the conversation."""
        self.next = number + len(parts)
        self.token = parts[-1].token
        self._acknowledgement = None
        if parts[-1].content is not Content.DATA:
            self.final = self.next - 1
        return Deliver(number, parts)

    def add(self, number: int, fragment: int, fragments: int, part: Part) -> list[Step]:
        """Add a fragment that has not arrived before. Returns the steps for the store."""
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
        message = self.kept[number] = before.with_fragment(fragment, size)
        steps: list[Step] = [Keep(number, fragment, fragments, part)]
        if message.is_whole and part.content is Content.ERROR:
            steps += self._jump_to(number)
        return [*steps, *self._complete()]

    def _jump_to(self, number: int) -> list[Step]:
        """Skip to an Error, which replaces all messages that have not arrived (decision 050)."""
        dropped = [kept_number for kept_number in self.kept if kept_number < number]
        for kept_number in dropped:
            self._drop(kept_number)
        first, self.next = self.next, number
        return [Discard(first, number)] if dropped else []

    def _complete(self) -> list[Step]:
        steps: list[Step] = []
        while (message := self.kept.get(self.next)) is not None and message.is_whole:
            self._drop(self.next)
            self.token = message.token
            steps.append(Complete(self.next))
            self.next += 1
        return steps

    def _drop(self, number: int) -> None:
        self.held -= self.kept.pop(number).cost(self.limits)

    def acknowledgement(self) -> Acknowledgement:
        """Return the acknowledgement to send after the commit. If there are too many gaps, it names the lowest."""
        if not self.kept:
            return Acknowledgement(self.next, token=self.token)
        if self._acknowledgement is None:
            whole, parts = self._lowest_ranges()
            self._acknowledgement = Acknowledgement(self.next, whole, parts, self.token)
        return self._acknowledgement

    def _lowest_ranges(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]:
        """Return ranges of whole messages and of fragments, as many as the acknowledgement has room for.

        The sender repeats the others: a receiver stores no more than it can acknowledge.
        """
        whole: list[tuple[int, int]] = []
        parts: list[tuple[int, int, int]] = []
        for number in sorted(self.kept):
            message = self.kept[number]
            if not message.is_whole:
                parts += [(number, first, last) for first, last in message.ranges]
            elif whole and whole[-1][1] == number - 1:
                whole[-1] = (whole[-1][0], number)
            else:
                whole.append((number, number))
            if len(whole) > MAXIMUM_RANGES or len(parts) >= MAXIMUM_RANGES:
                break
        return tuple(whole[:MAXIMUM_RANGES]), tuple(parts[:MAXIMUM_RANGES])


class Incoming:
    """Received messages until their commit. The caller stores one batch at a time, and reports the result."""

    __slots__ = ("_committing", "_limits", "_steps", "_waiting", "is_ack_due", "load", "seen", "stored")

    def __init__(self, stored: Progress) -> None:
        self.stored = stored
        self.seen = stored.copy()
        self.is_ack_due = False
        self._limits = stored.limits
        self._steps: list[Step] = []
        self._waiting = 0  # bytes in the steps
        self.load = 0  # bytes in the steps and in the caller's batch, as the sender counts them
        self._committing: Progress | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a message waits for a commit."""
        return bool(self._steps) or self._committing is not None

    def contradicts(self, number: int, parts: tuple[Part, ...], before: bytes | None) -> int | None:
        """Return the number of a message that was received before with another token, or None.

        The frame has messages from `number` on, after one with the token `before`. A check of the last message is
        enough: a peer that has sent it has sent all messages before it.
        """
        seen = self.seen
        place = seen.next - 1 - number
        token = before if place < 0 else parts[place].token if place < len(parts) else None
        if place >= -1 and token and seen.token and token != seen.token:
            return seen.next - 1
        if seen.kept:  # rare; only the kept messages of this frame are compared
            for place, token in enumerate((before, *(part.token for part in parts)), -1):
                message = seen.kept.get(number + place)
                if token and message is not None and message.token and token != message.token:
                    return number + place
        return None

    def arrived_run(self, number: int, parts: tuple[Part, ...]) -> bool:
        """Add whole consecutive messages. Returns whether all were added.

        That needs all to be next in order, and room for them. Otherwise nothing has changed, and the caller adds each.
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
        """Add one whole message, or one fragment."""
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
        final, message = self.seen.final, self.seen.kept.get(number)
        if final is not None and number > final:
            return Verdict.AFTER_END
        if message is not None and (message.fragments, message.content) != (fragments, part.content):
            return Verdict.INCONSISTENT
        if message is not None and not message.has_room(fragment, self._limits):
            return Verdict.TOO_FAR
        if not self._has_room(number, fragments, part):
            return Verdict.TOO_FAR
        is_current = number == self.seen.next
        is_kept = fragments > 1 or not (is_current or part.content is Content.ERROR)
        is_allowed = allowance.current if is_current else allowance.ahead
        return Verdict.OVER_QUOTA if is_kept and not is_allowed else Verdict.NEW

    def _is_shaped(self, fragment: int, fragments: int, size: int) -> bool:
        """Return whether the size of a fragment is possible: all but the last have the full size."""
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
        """Return the batch to store now; None if there is none, or if the caller still has the last one."""
        if self._committing is not None or not self._steps:
            return None
        self._committing = self.seen.copy()
        steps, self._steps, self._waiting = self._steps, [], 0
        return Batch(self.stored.next, self._committing.next, steps, self._committing.token)

    def committed(self) -> None:
        """Handle the commit of the batch, which may be acknowledged now.

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
        """The incomplete messages that are stored, or will be with the next batch; None if there are none."""
        seen = self.seen
        if not seen.kept:
            return None
        current, each = seen.kept.get(seen.next), self._limits.unfinished_cost
        if current is None:
            return Begun(seen.next, 0, 0, seen.held + each * len(seen.kept))
        declared, ahead = current.fragments * self._limits.fragment_size, seen.ahead
        return Begun(seen.next, declared, seen.held - ahead + each, ahead + each * (len(seen.kept) - 1))

    def forget_kept(self) -> None:
        """Handle the deletion of the stored fragments.

        Raises:
            ValueError: a message waits for a commit.
        """
        if self.is_busy:
            raise ValueError("what is kept is being stored")
        stored = self.stored
        final = stored.final if stored.is_closed else None  # else `final` is the number of a deleted message
        self.stored = Progress(stored.next, None, final, stored.token, stored.limits)
        self.seen = self.stored.copy()

    def rolled_back(self) -> None:
        """Handle the rollback of the batch: drop it, and all messages received after it."""
        self._committing = None
        self._steps.clear()
        self._waiting = self.load = 0
        self.seen = self.stored.copy()
