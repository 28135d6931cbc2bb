"""The frames that leave: what they carry, read again where it is not in memory any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from servicebroker.broker import journal, metrics
from servicebroker.broker.finding import Finding
from servicebroker.broker.lines import Lines
from servicebroker.broker.relay_memory import Entry, Memory
from servicebroker.broker.store_operations import Store
from servicebroker.engine.remote.departing import NOTHING, Reading
from servicebroker.protocol.envelope import Header, Part, encode
from servicebroker.protocol.outgoing import Cut

FRAGMENTS = 8  # that a round reads for each link, so that a small message does not wait for a large one's megabyte


class _Frame(NamedTuple):
    """What is sent, and how many messages it counts as."""

    body: bytes
    messages: int


class Frames:
    """Makes and sends them, in the order of the lines. Bodies longer than `longest` travel in fragments."""

    def __init__(
        self, memory: Memory, lines: Lines, finding: Finding, longest: int, seconds: Callable[[], float]
    ) -> None:
        self._memory = memory
        self._lines = lines
        self._finding = finding
        self._longest = longest
        self._seconds = seconds
        self._fragments = 0  # that this round has read for the link in turn
        self._is_traced = False  # messages have trace contexts

    def send(self, store: Store, *, is_traced: bool) -> int:
        """What is in line and its links take; how many messages that was, a frame counting as one at least."""
        self._is_traced = is_traced
        sent = 0
        for link, line in self._lines:
            self._fragments = 0
            while link.room > 0 and self._fragments < FRAGMENTS and (turn := line.take()) is not None:
                entry = self._memory.get(turn.key)
                if entry is None or entry.link is not link:
                    continue
                frame = self._frame(store, turn.key, entry)
                if frame is not None:
                    link.send(frame.body)
                    metrics.PRIORITY_SENDS.labels(entry.priority).inc()
                    sent += frame.messages
                self._lines.line_up(turn.key)
        return sent

    def _frame(self, store: Store, handle: UUID, entry: Entry) -> _Frame | None:
        transmission = None if entry.session is None else entry.dialog.transmit(self._seconds())
        if transmission is None or entry.session is None:
            return None
        cut = transmission.cut
        if cut is None:
            journal.acknowledgement(transmission.header, is_sent=True)
            return _Frame(encode(transmission.header, transmission.payload, entry.session.of(transmission.header)), 1)
        parts = self._parts(store, handle, entry, cut)
        if parts is None:  # END CONVERSATION has dropped what was not acknowledged
            self._lines.forget(handle)
            self._finding.wanted.add(handle)
            return None
        journal.acknowledgement(transmission.header, is_sent=True)
        header = self._with_traces(store, transmission.header, cut) if self._is_traced else transmission.header
        return _Frame(encode(header, parts, entry.session.of(header)), len(parts))

    def _with_traces(self, store: Store, header: Header, cut: Cut) -> Header:
        """The header with the trace contexts of the messages, where they have any."""
        found = store.read_traces(header, cut.first, cut.last)
        if not found:
            return header
        return structs.replace(header, traces=tuple((number - cut.first, context) for number, context in found))

    def _parts(self, store: Store, handle: UUID, entry: Entry, cut: Cut) -> tuple[Part, ...] | None:
        """The messages that a cut names, or its fragment of one; None when they are not there any more."""
        numbers = range(cut.first, cut.last + 1)
        if not entry.parts.keys() >= set(numbers):  # they travel again
            reading = Reading(cut.first, len(numbers), 2**40)
            found = store.read({handle: reading}, self._longest).get(handle, NOTHING)
            if found.numbers != tuple(numbers):
                return None
            self._memory.hold(entry, found.numbers, found.parts)
        if cut.fragments == 1:
            return self._memory.take(entry, numbers)
        whole = entry.parts[cut.first]
        self._fragments += 1
        body = store.read_fragment(handle, cut.first, cut.offset, cut.length)
        return None if body is None else (Part(whole.message_type, whole.content, body, whole.token),)
