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
    """A cut under way; at `due` what of it is unacknowledged is sent again."""

    due: float
    first: int
    last: int
    fragment: int
    attempts: int


class Outgoing:
    """Messages from `base`, the lowest one that is not acknowledged.

    `sent_below` bounds what a peer can rightly acknowledge: SEND has committed every number below it. `draw` gives
    numbers from 0 up to 1, for the jitter. Of large messages at most `large_window` bytes are under way, or as many as
    of others where that is None.
    """

    __slots__ = (
        "_acked",
        "_again",
        "_cursor",
        "_draw",
        "_error",
        "_flights",
        "_limits",
        "_offered",
        "_sizes",
        "_tokens",
        "_under_way",
        "attempts",
        "base",
        "held_until",
        "is_unanswered",
        "large_window",
        "sent_below",
    )

    def __init__(self, base: int, sent_below: int, limits: Limits, draw: Callable[[], float]) -> None:
        self.base = base
        self.sent_below = sent_below
        self.large_window: int | None = None
        self.attempts = 0  # links that could not be had, in a row
        self.held_until = 0.0
        self.is_unanswered = False  # something was sent again, and that was not acknowledged either
        self._limits = limits
        self._draw = draw
        self._sizes: list[int] = []  # of message base, base + 1, ...
        self._tokens: list[bytes | None] = []  # of the same
        self._offered = 0  # the sum of the sizes
        self._error: int | None = None  # the number of the Error that takes the place of what was not acknowledged
        self._acked: dict[int, int] = {}  # message -> its acknowledged fragments, as bits
        self._under_way = 0  # bytes
        self._cursor = (base, 0)  # message and fragment that travel first next
        self._again: list[tuple[int, int, int]] = []  # heap of (message, fragment, attempts)
        self._flights: list[_Flight] = []  # heap

    @property
    def next_number(self) -> int:
        """The number of the message to offer next."""
        return self.base + len(self._sizes)

    @property
    def room(self) -> int:
        """Return how many bytes of messages may be offered now; a message is taken whole while this is above zero."""
        return self._limits.window - self._offered - self._limits.message_cost * len(self._sizes)

    @property
    def load(self) -> int:
        """Bytes offered and not acknowledged; a message that is larger than the window counts as one window."""
        return min(self._limits.window - self.room, 2 * self._limits.window)

    def offer(self, number: int, sizes: Sequence[int], tokens: Sequence[bytes | None] = ()) -> None:
        """Add committed messages to send, of these sizes, numbered from `number` on; each with its token, or none.

        Raises:
            ValueError: that is not the next one.
        """
        if number != self.next_number:
            raise ValueError(f"message {number} was offered, message {self.next_number} comes next")
        self._sizes += sizes
        self._tokens += tokens or [None] * len(sizes)
        self._offered += sum(sizes)
        self.sent_below = max(self.sent_below, self.next_number)

    def offer_run(self, number: int, sizes: Sequence[int], tokens: Sequence[bytes | None] = ()) -> int:
        """Offer as many messages of a run as there is room for. Returns how many."""
        cost = self._limits.message_cost
        befores = list(accumulate([size + cost for size in sizes], initial=0))
        count = min(bisect_left(befores, self.room), len(sizes))
        self.offer(number, sizes[:count], tokens[:count])
        return count

    def token(self, number: int) -> bytes | None:
        """Return the token of an offered, unacknowledged message; None for others, and for one without a token."""
        return self._tokens[number - self.base] if self.base <= number < self.next_number else None

    def skip_to(self, number: int) -> None:
        """Drop everything below `number`: an Error takes its place."""
        self.base = self._error = number
        self.sent_below = max(self.sent_below, number)
        self._sizes.clear()
        self._tokens.clear()
        self._offered = 0
        self._acked.clear()
        self.rewind()

    def cut(self, now: float) -> Cut | None:
        """Return the content of the next frame; None if nothing may be sent."""
        if now < self.held_until:
            return None
        cut, attempts = self._cut_again() or (self._cut_new(), 0)
        if cut is not None:
            due = now + self._wait(attempts)
            heappush(self._flights, _Flight(due, cut.first, cut.last, cut.fragment, attempts))
        return cut

    def has_work(self, now: float) -> bool:
        """Return whether `cut` would return something."""
        if now < self.held_until:
            return False
        self._forget_acknowledged()
        return bool(self._again) or self._may_send_new()

    def contradicts(self, ack: Acknowledgement, recalled: bytes | None) -> str | None:
        """Return how it shows that the peer has taken other messages than were sent here; None when nothing shows that.

        `recalled` is the token of a message that was sent in an earlier life, and is not offered yet. It is enough to
        know the last message: whoever has taken that one has taken all before it.
        """
        if ack.below > self.sent_below:
            return f"The messages {self.sent_below} to {ack.below - 1} were acknowledged, and never sent."
        whole = [last for _, last in ack.whole]
        kept = whole + [number for number, *_ in ack.parts]
        if kept and max(kept) >= self.sent_below:
            return f"Of message {max(kept)} something has come, and it was never sent."
        if self._error is not None and whole and max(whole) >= self._error:
            return f"Message {max(whole)} waits for others there, and an Error was sent, which waits for none."
        for part in ack.parts:
            if self._cannot_be_kept(*part):
                return f"Parts of message {part[0]} have come, and it was sent in others."
        ours = self.token(ack.below - 1) or recalled
        if ours and ack.token and ours != ack.token:
            return f"Message {ack.below - 1} was acknowledged, and is not the one that was sent."
        return None

    def acknowledged(self, ack: Acknowledgement) -> bool:
        """Apply an acknowledgement to which `contradicts` does not object. Returns whether it brings news."""
        news = ack.below > self.base
        if news:
            self._drop_below(ack.below)
        for first, last in ack.whole:
            for number in range(max(first, self.base), min(last + 1, self.next_number)):
                news |= self._acknowledge_fragments(number, 0, self._fragments(number) - 1)
        for number, first, last in ack.parts:
            news |= self._acknowledge_fragments(number, first, last)
        if self._acked and self._lacks_what_it_had():
            self._acked.clear()
            self.rewind()
        if news:
            self.attempts = 0
            self.is_unanswered = False
        return news

    def tick(self, now: float) -> None:
        """Make messages due again that were not acknowledged in time, and end a wait whose time has passed."""
        if self.held_until <= now:
            self.held_until = 0.0
        while self._flights and self._flights[0].due <= now:
            flight = heappop(self._flights)
            self.is_unanswered |= flight.attempts > 0 and not self._is_flight_acked(flight)
            for number in range(max(flight.first, self.base), flight.last + 1):
                if not self._is_acked(number, flight.fragment):
                    heappush(self._again, (number, flight.fragment, flight.attempts + 1))

    @property
    def is_at_rest(self) -> bool:
        """Return whether nothing is under way that the peer may yet acknowledge."""
        return not self._sizes or self.held_until > 0

    def _cannot_be_kept(self, number: int, first: int, last: int) -> bool:
        """Return whether no peer can keep just these pieces of a message: it has fewer, or would be whole."""
        if not self.base <= number < self.next_number:
            return False
        count = self._fragments(number)
        return last >= count or (first, last) == (0, count - 1)

    def wake_at(self) -> float:
        """When `tick`, or `cut` after a lost link, has something to do; `NEVER` when nothing waits."""
        if self._sizes and self.held_until:
            return self.held_until
        while self._flights and self._is_flight_acked(self._flights[0]):
            heappop(self._flights)
        return self._flights[0].due if self._flights else NEVER

    def rewind(self) -> None:
        """Send all unacknowledged messages again, from the lowest number."""
        self._flights.clear()
        self._again.clear()
        self._cursor = (self.base, 0)
        self._under_way = 0

    def hold(self, now: float) -> None:
        """Handle the lack of a link: retry with backoff. A running wait stays as it is."""
        self.rewind()
        if now >= self.held_until:
            self.held_until = now + self._wait(self.attempts)
            self.attempts += 1

    def release(self) -> None:
        """Handle a link: waiting messages may be sent at once."""
        self.held_until = 0.0

    def _wait(self, attempts: int) -> float:
        limits = self._limits
        wait = min(limits.first_retry * 2.0 ** min(attempts, 30), limits.last_retry)
        return wait * (1 - limits.jitter + 2 * limits.jitter * self._draw())

    # --- cutting

    def _fragments(self, number: int) -> int:
        return max(1, -(-self._sizes[number - self.base] // self._limits.fragment_size))

    def _cut_again(self) -> tuple[Cut, int] | None:
        """Return the lowest message to send again, with those that follow without a gap."""
        self._forget_acknowledged()
        if not self._again:
            return None
        number, fragment, attempts = heappop(self._again)
        last = number
        if self._fragments(number) == 1:
            room = self._limits.fragment_size - self._sizes[number - self.base]
            while self._again and last - number < MAXIMUM_RUN - 1:
                following, piece, tried = self._again[0]
                if following > last and not self._is_acked(following, piece):
                    if following != last + 1 or not self._fits(following, room):
                        break
                    room -= self._sizes[following - self.base]
                    last = following
                    attempts = max(attempts, tried)
                heappop(self._again)
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
        self._under_way += cut.length + self._limits.message_cost * (last + 1 - number)
        return cut

    def _end_of_run(self, number: int) -> int:
        """The last of the small messages that fit in a frame with `number`, and that no acknowledgement names."""
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
        if self._under_way >= self._limits.window:
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
        return self._under_way < self.large_window

    def _forget_acknowledged(self) -> None:
        while self._again and self._is_acked(*self._again[0][:2]):
            heappop(self._again)

    # --- acknowledgements

    def _is_acked(self, number: int, fragment: int) -> bool:
        return number < self.base or bool(self._acked.get(number, 0) >> fragment & 1)

    def _lacks_what_it_had(self) -> bool:
        """Return whether all pieces of the lowest message are acknowledged, but not it: the peer is an old copy."""
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
            self._under_way -= sum(dropped) + self._limits.message_cost * len(dropped)  # all were sent, in one piece
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
                self._under_way -= self._cost(number, fragment)

    def _acknowledge_fragments(self, number: int, first: int, last: int) -> bool:
        if not self.base <= number < self.next_number:
            return False
        last = min(last, self._fragments(number) - 1)
        before = self._acked.get(number, 0)
        fresh = ((1 << max(last - first + 1, 0)) - 1 << first) & ~before
        if fresh:
            self._acked[number] = before | fresh
        left = fresh
        while left:  # only these: of a large message thousands are acknowledged again and again
            fragment = (left & -left).bit_length() - 1
            left &= left - 1
            if self._was_sent(number, fragment):
                self._under_way -= self._cost(number, fragment)
        return bool(fresh)
