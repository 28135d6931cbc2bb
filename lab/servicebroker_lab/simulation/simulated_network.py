"""Simulated byte streams between instances, with delays, lost connections and flipped bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from servicebroker_lab.simulation.faults import Faults
from servicebroker_lab.simulation.simulated_time import Loop

NOWHERE_INDEX = 99  # the number of an address without a listener
HOSTILE_INDEX = 50  # the number of the hostile peer
OTHER_HALF_OFFSET = 20  # an instance's number plus this is the other server of its mirrored pair


class Listener(Protocol):
    """An instance, as the network sees it."""

    index: int

    def is_up_at(self, number: int) -> bool:
        """Check whether the instance listens at the address with this number."""
        ...

    def accept(self, stream: Stream) -> None:
        """Accept a connection."""
        ...


class Usurper(Protocol):
    """A peer that may answer where an instance is down."""

    def answers(self, own: int, other: int) -> bool:
        """Check whether it accepts a connection from `own` to `other` now."""
        ...

    def accept(self, stream: Stream) -> None:
        """Accept the connection."""
        ...


class Stream:
    """One side of a connection. Its owner sets `on_bytes` and `on_end`, which are not called after `close`.

    `shown`: the certificate of the owner.
    """

    def __init__(self, network: Network, own: int, other: int) -> None:
        self.own, self.other = own, other
        self.shown = b""
        self.is_open = True
        self.twin: Stream | None = None
        self.on_bytes: Callable[[bytes], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self._network = network
        self._arrives_at = 0.0

    @property
    def twin_is_open(self) -> bool:
        """True unless the other side has refused the connection."""
        return self.twin is not None and self.twin.is_open

    def write(self, data: bytes) -> None:
        """Send bytes. They arrive in order, unless the connection is lost first."""
        if self.is_open and data:
            self._network.carry(self, data)

    def close(self) -> None:
        """Close the stream. The other side notices it after a delay."""
        if self.is_open:
            self.is_open = False
            self.on_bytes = self.on_end = None
            self._network.tell_end(self)

    def schedule(self, now: float, delay: float) -> float:
        """Return the delay of the next bytes, which arrive after the previous ones."""
        self._arrives_at = max(self._arrives_at, now + delay)
        return self._arrives_at - now


class Network:
    """The network of a run: which instances can connect, and the faults of streams."""

    def __init__(self, loop: Loop, faults: Faults) -> None:
        self.loop = loop
        self.faults = faults
        self.listeners: list[Listener] = []
        self.streams: list[Stream] = []
        self.usurper: Usurper | None = None
        self._cut_off: set[frozenset[int]] = set()

    def heal(self) -> None:
        """Stop all faults."""
        self.faults = Faults()
        self._cut_off.clear()

    def partition(self) -> None:
        """Draw the pairs that cannot reach each other. Their streams are lost."""
        count = len(self.listeners)
        self._cut_off = {
            frozenset((a, b)) for a in range(count) for b in range(a) if self.loop.happens(self.faults.partition)
        }

    def is_cut_off(self, a: int, b: int) -> bool:
        """Check whether two instances cannot reach each other now."""
        return frozenset((a, b)) in self._cut_off

    def connect(self, own: int, other: int, on_done: Callable[[Stream | None], None], certificate: bytes = b"") -> None:
        """Connect to `other`, and call `on_done` with the stream, or None."""
        self.loop.after(self._delay(), lambda: self._connect(own, other, on_done, certificate))

    def _connect(self, own: int, other: int, on_done: Callable[[Stream | None], None], certificate: bytes) -> None:
        listener = self._listener(own, other)
        if listener is None:
            on_done(None)
            return
        own_end, other_end = Stream(self, own, other % OTHER_HALF_OFFSET), Stream(self, other % OTHER_HALF_OFFSET, own)
        own_end.shown = certificate
        own_end.twin, other_end.twin = other_end, own_end
        self.streams = [stream for stream in self.streams if stream.is_open] + [own_end, other_end]
        listener.accept(other_end)
        on_done(own_end)

    def _listener(self, own: int, other: int) -> Listener | Usurper | None:
        """Return the listener at an address; None without one."""
        index = other % OTHER_HALF_OFFSET
        if other == NOWHERE_INDEX or index >= len(self.listeners) or self.is_cut_off(own, index):
            return None
        listener = self.listeners[index]
        if listener.is_up_at(other):
            return listener
        return self.usurper if self.usurper is not None and self.usurper.answers(own, other) else None

    def carry(self, stream: Stream, data: bytes) -> None:
        """Transfer bytes in one or two portions, with faults."""
        if self.loop.happens(self.faults.cut):
            self._break(stream)
            return
        if self.loop.happens(self.faults.noise):
            data = flip(data, self.loop.below(8 * len(data)))
        middle = self.loop.below(len(data) + 1) if len(data) > 40 else 0
        for portion in (data[:middle], data[middle:]):
            if portion:
                self._deliver(stream, portion)

    def _deliver(self, stream: Stream, data: bytes) -> None:
        twin = stream.twin
        assert twin is not None

        def arrive() -> None:
            if self.is_cut_off(stream.own, stream.other):
                self._break(stream)
            elif twin.on_bytes is not None:
                twin.on_bytes(data)

        self.loop.after(twin.schedule(self.loop.now, self._delay()), arrive)

    def tell_end(self, stream: Stream) -> None:
        """Let the other side see the end of the stream, after the bytes."""
        twin = stream.twin
        assert twin is not None
        self.loop.after(twin.schedule(self.loop.now, self._delay()), lambda: _end(twin))

    def _break(self, stream: Stream) -> None:
        """Lose the connection. Each side notices it after 0, 1 or 60 seconds."""
        for side in (stream, stream.twin):
            assert side is not None
            self.loop.after(self.loop.random.choice((0.0, 1.0, 60.0)), lambda side=side: _end(side))  # type: ignore[misc]
            side.on_bytes = None

    def _delay(self) -> float:
        return 0.001 + self.loop.random.random() * 0.02


def _end(stream: Stream) -> None:
    on_end, stream.on_bytes, stream.on_end = stream.on_end, None, None
    stream.is_open = False
    if on_end is not None:
        on_end()


def flip(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
