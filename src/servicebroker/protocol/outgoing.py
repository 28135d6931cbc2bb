"""The sending half of a conversation endpoint: the window, retransmission, and acknowledgements.

`Outgoing` knows the sequence numbers and sizes of messages, never their bodies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from servicebroker.protocol.envelope import MAXIMUM_RUN, Acknowledgement
from servicebroker.protocol.limits import Limits

NEVER = float("inf")


class Cut(NamedTuple):
    """The content of one frame: messages `first` to `last`, or `length` bytes at `offset` of message `first`."""

    first: int
    last: int
    fragment: int
    fragments: int
    offset: int
    length: int


class _Flight(NamedTuple):
    """A cut in flight. At `due` its messages without acknowledgement are sent again."""

    due: float
    first: int
    last: int
    fragment: int
    attempts: int


class Outgoing:
    """The messages from `base` on, the lowest one without acknowledgement.

    `sent_below`: SEND has committed all lower numbers, and a peer can acknowledge no higher ones. `draw` returns random
    numbers from 0 up to 1, for the jitter. `large_window`: the most bytes in flight of large messages; None: the limit
    of all messages.
    """

    __slots__ = (
        "_acked",
        "_cursor",
        "_draw",
        "_error",
        "_flights",
        "_in_flight",
        "_limits",
        "_offered",
        "_sizes",
        "_to_resend",
        "_tokens",
        "attempts",
        "base",
        "is_unanswered",
        "large_window",
        "paused_until",
        "sent_below",
    )

    def __init__(self, base: int, sent_below: int, limits: Limits, draw: Callable[[], float]) -> None:
        self.base = base
        self.sent_below = sent_below
        self.large_window: int | None = None
        self.attempts = 0  # failed attempts to get a link, in a row
        self.paused_until = 0.0
        self.is_unanswered = False  # a message was sent twice without acknowledgement
        self._limits = limits
        self._draw = draw
        self._sizes: list[int] = []  # the sizes of messages base, base + 1, ...
        self._tokens: list[bytes | None] = []  # the tokens of the same messages
        self._offered = 0  # the sum of the sizes
        self._error: int | None = None  # the number of an Error that replaces messages without acknowledgement
        self._acked: dict[int, int] = {}  # message -> its acknowledged fragments, as bits
        self._in_flight = 0  # bytes in flight
        self._cursor = (base, 0)  # message and fragment to send next
        self._to_resend: list[tuple[int, int, int]] = []  # heap of (message, fragment, attempts)
        self._flights: list[_Flight] = []  # heap

    @property
    def next_number(self) -> int:
        """The number of the message to offer next."""
        return self.base + len(self._sizes)

    @property
    def room(self) -> int:
        """The bytes of messages that may be offered now. While it is above 0, a message of any size is accepted."""
        return self._limits.window - self._offered - self._limits.message_cost * len(self._sizes)

    @property
    def load(self) -> int:
        """The offered bytes without acknowledgement; a message larger than the window counts as one window."""
        return min(self._limits.window - self.room, 2 * self._limits.window)

    def offer(self, number: int, sizes: Sequence[int], tokens: Sequence[bytes | None] = ()) -> None:
        """Add committed messages with these sizes and tokens, numbered from `number` on.

        Raises:
            ValueError: `number` is not the next number.
        """
        if number != self.next_number:
            raise ValueError(f"message {number} was offered, message {self.next_number} comes next")
        self._sizes += sizes
        self._tokens += tokens or [None] * len(sizes)
        self._offered += sum(sizes)
        self.sent_below = max(self.sent_below, self.next_number)

    def offer_run(self, number: int, sizes: Sequence[int], tokens: Sequence[bytes | None] = ()) -> int:
        """Offer as many messages of a run as there is room for. Returns their number."""
        cost = self._limits.message_cost
        sizes_before = list(accumulate([size + cost for size in sizes], initial=0))
        count = min(bisect_left(sizes_before, self.room), len(sizes))
        self.offer(number, sizes[:count], tokens[:count])
        return count

    def token(self, number: int) -> bytes | None:
        """Return the token of an offered, unacknowledged message; None for others, and for one without a token."""
        return self._tokens[number - self.base] if self.base <= number < self.next_number else None

    def skip_to(self, number: int) -> None:
        """Drop all messages below `number`: an Error replaces them."""
        self.base = self._error = number
        self.sent_below = max(self.sent_below, number)
        self._sizes.clear()
        self._tokens.clear()
        self._offered = 0
        self._acked.clear()
        self.rewind()

    def cut(self, now: float) -> Cut | None:
        """Return the content of the next frame; None if nothing may be sent."""
        if now < self.paused_until:
            return None
        cut, attempts = self._cut_again() or (self._cut_new(), 0)
        if cut is not None:
            due = now + self._wait(attempts)
            heappush(self._flights, _Flight(due, cut.first, cut.last, cut.fragment, attempts))
        return cut

    def has_work(self, now: float) -> bool:
        """Return whether `cut` would return something."""
        if now < self.paused_until:
            return False
        self._pop_acknowledged()
        return bool(self._to_resend) or self._may_send_new()

    def contradicts(self, ack: Acknowledgement, recalled: bytes | None) -> str | None:
        """Return how an acknowledgement contradicts the messages sent here, or None.

        A contradiction means that an instance was restored from an old copy. `recalled`: the token of a message that
        was sent before a restart, and is not offered yet. A check of the last message is enough: a peer that has
        received it has received all messages before it.
        """
        if ack.below > self.sent_below:
            return f"The messages {self.sent_below} to {ack.below - 1} were acknowledged, and never sent."
        whole = [last for _, last in ack.whole]
        numbers = whole + [number for number, *_ in ack.parts]
        if numbers and max(numbers) >= self.sent_below:
            return f"Of message {max(numbers)} something has come, and it was never sent."
        if self._error is not None and whole and max(whole) >= self._error:
            return f"Message {max(whole)} waits for others there, and an Error was sent, which waits for none."
        for part in ack.parts:
            if self._cannot_be_kept(*part):
                return f"Parts of message {part[0]} have come, and it was sent in others."
        token = self.token(ack.below - 1) or recalled
        if token and ack.token and token != ack.token:
            return f"Message {ack.below - 1} was acknowledged, and is not the one that was sent."
        return None

    def acknowledged(self, ack: Acknowledgement) -> bool:
        """Apply an acknowledgement without a contradiction. Returns whether it acknowledges anything new."""
        is_new = ack.below > self.base
        if is_new:
            self._drop_below(ack.below)
        for first, last in ack.whole:
            for number in range(max(first, self.base), min(last + 1, self.next_number)):
                is_new |= self._acknowledge_fragments(number, 0, self._fragments(number) - 1)
        for number, first, last in ack.parts:
            is_new |= self._acknowledge_fragments(number, first, last)
        if self._acked and self._has_lost_message():
            self._acked.clear()
            self.rewind()
        if is_new:
            self.attempts = 0
            self.is_unanswered = False
        return is_new

    def tick(self, now: float) -> None:
        """Handle timeouts: messages without acknowledgement are due again, and a pause may end."""
        if self.paused_until <= now:
            self.paused_until = 0.0
        while self._flights and self._flights[0].due <= now:
            flight = heappop(self._flights)
            self.is_unanswered |= flight.attempts > 0 and not self._is_flight_acked(flight)
            for number in range(max(flight.first, self.base), flight.last + 1):
                if not self._is_acked(number, flight.fragment):
                    heappush(self._to_resend, (number, flight.fragment, flight.attempts + 1))

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is in flight that the peer may still acknowledge."""
        return not self._sizes or self.paused_until > 0

    def _cannot_be_kept(self, number: int, first: int, last: int) -> bool:
        """Return whether no peer can store just these fragments: the message has fewer, or would be complete."""
        if not self.base <= number < self.next_number:
            return False
        count = self._fragments(number)
        return last >= count or (first, last) == (0, count - 1)

    def wake_at(self) -> float:
        """Return the time at which `tick`, or `cut` after a lost link, must be called; NEVER if no message waits."""
        if self._sizes and self.paused_until:
            return self.paused_until
        while self._flights and self._is_flight_acked(self._flights[0]):
            heappop(self._flights)
        return self._flights[0].due if self._flights else NEVER

    def rewind(self) -> None:
        """Send all unacknowledged messages again, from the lowest number."""
        self._flights.clear()
        self._to_resend.clear()
        self._cursor = (self.base, 0)
        self._in_flight = 0

    def hold(self, now: float) -> None:
        """Handle the lack of a link: retry with backoff. A running pause is not changed."""
        self.rewind()
        if now >= self.paused_until:
            self.paused_until = now + self._wait(self.attempts)
            self.attempts += 1

    def release(self) -> None:
        """Handle a link: waiting messages may be sent immediately."""
        self.paused_until = 0.0

    def _wait(self, attempts: int) -> float:
        limits = self._limits
        wait = min(limits.first_retry * 2.0 ** min(attempts, 30), limits.last_retry)
        return wait * (1 - limits.jitter + 2 * limits.jitter * self._draw())

    # --- cutting

    def _fragments(self, number: int) -> int:
        return max(1, -(-self._sizes[number - self.base] // self._limits.fragment_size))

    def _cut_again(self) -> tuple[Cut, int] | None:
        """Return the lowest message to send again, with those that follow without a gap."""
        self._pop_acknowledged()
        if not self._to_resend:
            return None
        number, fragment, attempts = heappop(self._to_resend)
        last = number
        if self._fragments(number) == 1:
            room = self._limits.fragment_size - self._sizes[number - self.base]
            while self._to_resend and last - number < MAXIMUM_RUN - 1:
                following, piece, tried = self._to_resend[0]
                if following > last and not self._is_acked(following, piece):
                    if following != last + 1 or not self._fits(following, room):
                        break
                    room -= self._sizes[following - self.base]
                    last = following
                    attempts = max(attempts, tried)
                heappop(self._to_resend)
        return self._make_cut(number, last, fragment), attempts

    def _cut_new(self) -> Cut | None:
        if not self._may_send_new():
            return None
        number, fragment = self._cursor
        count = self._fragments(number)
        last = number
        if count == 1:
            last = self._end_of_run(number)
            self._cursor = (last + 1, 0)
        else:
            self._cursor = (number, fragment + 1) if fragment + 1 < count else (number + 1, 0)
        cut = self._make_cut(number, last, fragment)
        self._in_flight += cut.length + self._limits.message_cost * (last + 1 - number)
        return cut

    def _end_of_run(self, number: int) -> int:
        """Return the last small message that fits in a frame with `number`, before any acknowledged one."""
        first = number - self.base
        ends = list(accumulate(self._sizes[first : first + MAXIMUM_RUN]))
        last = number + max(bisect_right(ends, self._limits.fragment_size), 1) - 1
        return min([last, *(acked - 1 for acked in self._acked if number < acked)])

    def _fits(self, number: int, room: int) -> bool:
        return self._sizes[number - self.base] <= room

    def _make_cut(self, first: int, last: int, fragment: int) -> Cut:
        if first != last:
            length = sum(self._sizes[first - self.base : last + 1 - self.base])
            return Cut(first, last, 0, 1, 0, length)
        size, unit = self._sizes[first - self.base], self._limits.fragment_size
        offset = fragment * unit
        return Cut(first, last, fragment, self._fragments(first), offset, min(unit, size - offset))

    def _may_send_new(self) -> bool:
        if self._in_flight >= self._limits.window:
            return False
        number, fragment = self._cursor
        while number < self.next_number and self._is_acked(number, fragment):
            following = fragment + 1 < self._fragments(number)
            number, fragment = (number, fragment + 1) if following else (number + 1, 0)
        self._cursor = (number, fragment)
        if number >= self.next_number:
            return False
        if self.large_window is None or self._fragments(number) == 1:
            return True
        return self._in_flight < self.large_window

    def _pop_acknowledged(self) -> None:
        while self._to_resend and self._is_acked(*self._to_resend[0][:2]):
            heappop(self._to_resend)

    # --- acknowledgements

    def _is_acked(self, number: int, fragment: int) -> bool:
        return number < self.base or bool(self._acked.get(number, 0) >> fragment & 1)

    def _has_lost_message(self) -> bool:
        """Return whether all fragments of the lowest message are acknowledged, but not it: the peer is an old copy."""
        return bool(self._sizes) and self._acked.get(self.base, 0) == (1 << self._fragments(self.base)) - 1

    def _is_flight_acked(self, flight: _Flight) -> bool:
        numbers = range(max(flight.first, self.base), flight.last + 1)
        return all(self._is_acked(number, flight.fragment) for number in numbers)

    def _cost(self, number: int, fragment: int) -> int:
        rest = self._sizes[number - self.base] - fragment * self._limits.fragment_size
        return min(rest, self._limits.fragment_size) + self._limits.message_cost

    def _was_sent(self, number: int, fragment: int) -> bool:
        return (number, fragment) < self._cursor

    def _drop_below(self, below: int) -> None:
        known = min(below, self.next_number)
        dropped = self._sizes[: known - self.base]
        if not self._acked and known <= self._cursor[0] and max(dropped, default=0) <= self._limits.fragment_size:
            # all were sent, as whole messages
            self._in_flight -= sum(dropped) + self._limits.message_cost * len(dropped)
        else:
            for number in range(self.base, known):
                self._drop(number)
        self._offered -= sum(dropped)
        del self._sizes[: known - self.base]
        del self._tokens[: known - self.base]
        self.base = below
        self._cursor = max(self._cursor, (below, 0))

    def _drop(self, number: int) -> None:
        bits = self._acked.pop(number, 0)
        for fragment in range(self._fragments(number)):
            if not bits >> fragment & 1 and self._was_sent(number, fragment):
                self._in_flight -= self._cost(number, fragment)

    def _acknowledge_fragments(self, number: int, first: int, last: int) -> bool:
        if not self.base <= number < self.next_number:
            return False
        last = min(last, self._fragments(number) - 1)
        before = self._acked.get(number, 0)
        fresh = ((1 << max(last - first + 1, 0)) - 1 << first) & ~before
        if fresh:
            self._acked[number] = before | fresh
        remaining = fresh
        while remaining:  # only new bits: acknowledgements of a large message repeat thousands of fragments
            fragment = (remaining & -remaining).bit_length() - 1
            remaining &= remaining - 1
            if self._was_sent(number, fragment):
                self._in_flight -= self._cost(number, fragment)
        return bool(fresh)
