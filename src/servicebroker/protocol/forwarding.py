"""Forwarding: messages for services of other instances, held in memory until they are forwarded.

The rules: docs/reference/rules.md#forwarding.

A forwarder acknowledges nothing and decrypts nothing. If it loses a message, the original sender sends it again. Each
forwarder puts a forwarding header (the passage: remaining hops and time) in front of the DIALOG frame, and updates it:

    passage length 1 | passage | body of the DIALOG frame
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Annotated, Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from servicebroker.model.errors import BrokerError
from servicebroker.protocol.envelope import Header, Kind
from servicebroker.protocol.wire_errors import CorruptedMessage

MAX_HOPS = 16  # forwarders on the way of a message
TIME_TO_LIVE = 60  # seconds; the sender repeats a message about as often
MEGABYTE_BYTES = 1024 * 1024
MESSAGE_OVERHEAD_BYTES = 500  # memory of a held message besides its body, an estimate

Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Passage(Struct, array_like=True, frozen=True):
    """The limits of a forwarded message: hops that remain, time to live, and time used, in seconds."""

    message_id: UUID
    hops_remaining: Annotated[int, Meta(ge=0, le=255)] = MAX_HOPS
    time_to_live: Seconds = TIME_TO_LIVE
    time_consumed: Annotated[float, Meta(ge=0, le=2**31 - 1)] = 0.0

    def bounded(self) -> Passage:
        """Return the passage with hops and time to live capped. The caps bound memory, and end a loop of routes."""
        hops, seconds = min(self.hops_remaining, MAX_HOPS), min(self.time_to_live, TIME_TO_LIVE)
        return Passage(self.message_id, hops, seconds, self.time_consumed)


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_passages = msgspec.msgpack.Decoder(Passage)


def wrap(passage: Passage, body: bytes) -> bytes:
    """Return the body of a FORWARDED frame."""
    head = _encoder.encode(passage)
    return b"".join((len(head).to_bytes(1, "big"), head, body))


def unwrap(body: bytes) -> tuple[Passage, bytes]:
    """Return the passage, and the body of the sender's DIALOG frame.

    Raises:
        CorruptedMessage: 11235 the body has no valid passage.
    """
    end = 1 + int.from_bytes(body[:1], "big")
    try:
        return _passages.decode(body[1:end]), body[end:]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CorruptedMessage(11235, problem) from None


Hop = TypeVar("Hop", bound=Hashable)


class Held(NamedTuple, Generic[Hop]):
    """A message that waits for its next hop.

    Attributes:
        passage: as it arrived.
        since: the time of its arrival, in seconds.
        owner: the certificate owner of the peer that sent it.
    """

    header: Header
    body: bytes
    passage: Passage
    hop: Hop
    since: float
    owner: str

    @property
    def size(self) -> int:
        """The bytes of memory that it counts for."""
        return len(self.body) + MESSAGE_OVERHEAD_BYTES

    def consumed(self, now: float) -> float:
        """Return the seconds since the original sender sent it."""
        return self.passage.time_consumed + (now - self.since)

    @property
    def expires_at(self) -> float:
        """The time at which its time to live ends."""
        return self.since + self.passage.time_to_live - self.passage.time_consumed


class DroppedMessage(NamedTuple):
    """A message that was dropped, and why: Broker:Forwarded Message Dropped."""

    header: Header
    error: BrokerError


class Forwarder(Generic[Hop]):
    """The messages that one instance forwards. A `hop` identifies the next instance. `limit`: bytes of memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held_bytes = 0
        self._held: dict[
            tuple[object, ...], Held[Hop]
        ] = {}  # a dict, not an OrderedDict: `__iter__` copies it from another thread
        self._waiting: dict[Hop, OrderedDict[tuple[object, ...], None]] = {}
        self._bytes: Counter[str] = Counter()  # bytes in use, by owner
        self._owners: dict[Hop, Counter[str]] = {}  # hop -> owner -> number of messages
        self._keys_by_owner: dict[str, dict[tuple[object, ...], None]] = {}  # the newest last

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held[Hop]]:
        return iter(list(self._held.values()))

    @property
    def hops(self) -> list[Hop]:
        """The hops for which messages wait."""
        return list(self._waiting)

    def postpone(self, hop: Hop) -> None:
        """Move an unreachable hop to the end. Budgets limit how many hops are connected at once."""
        self._waiting[hop] = self._waiting.pop(hop)

    def owners_at(self, hop: Hop) -> list[str]:
        """Return the owners of the messages for a hop."""
        return list(self._owners[hop])

    @property
    def wake_at(self) -> float:
        """The earliest time at which a message may expire."""
        return min((held.expires_at for held in self._held.values()), default=float("inf"))

    def make_room(self, body: bytes, owner: str) -> list[DroppedMessage]:
        """Make room for a message that `take_in` refused with 11289. Returns the dropped messages.

        The newest messages of the owner that uses most memory are dropped, unless `owner` would then use as much. So no
        owner blocks the others, but one alone may use all memory. All peers without a certificate count as one owner.
        If that makes not enough room, nothing is dropped.
        """
        size, remaining = len(body) + MESSAGE_OVERHEAD_BYTES, Counter(self._bytes)
        needed, dropped = self.held_bytes + size - self.limit, list[tuple[object, ...]]()
        newest = {other: reversed(keys) for other, keys in self._keys_by_owner.items()}
        while needed > 0:
            largest = max(remaining, key=remaining.__getitem__, default=owner)
            if remaining[largest] <= remaining[owner] + size:
                return []
            dropped.append(key := next(newest[largest]))
            needed -= self._held[key].size
            remaining[largest] -= self._held[key].size
        return [DroppedMessage(self._remove(key).header, BrokerError(11289, self.limit)) for key in dropped]

    def take_in(
        self, header: Header, body: bytes, passage: Passage, hop: Hop, now: float, owner: str = ""
    ) -> DroppedMessage | None:
        """Hold a message until its hop is connected. Returns the dropped message and the reason instead, if any.

        `owner`: the certificate owner of the peer that sent it.
        """
        passage = passage.bounded()
        held = Held(header, body, passage, hop, now, owner)
        if passage.hops_remaining == 0:
            return DroppedMessage(header, BrokerError(11285))
        if held.expires_at <= now:
            return DroppedMessage(header, _too_late(held, now))
        key = _key(header)
        before = self._held.get(key)
        if before is not None and header.kind in (Kind.RUN, Kind.FRAGMENT):
            return DroppedMessage(header, BrokerError(11288))
        if self.held_bytes + held.size - (before.size if before else 0) > self.limit:
            return DroppedMessage(header, BrokerError(11289, self.limit))
        if before is not None:  # a later acknowledgement replaces an earlier one
            self._remove(key)
        self._held[key] = held
        self._waiting.setdefault(hop, OrderedDict())[key] = None
        self._owners.setdefault(hop, Counter())[owner] += 1
        self.held_bytes += held.size
        self._bytes[owner] += held.size
        self._keys_by_owner.setdefault(owner, {})[key] = None
        return None

    def pass_on(self, hop: Hop, now: float) -> tuple[Header, bytes] | DroppedMessage | None:
        """Return the next message for a connected hop, or one that has expired; None if none waits."""
        line = self._waiting.get(hop)
        if not line:
            return None
        held = self._remove(next(iter(line)))
        if held.expires_at <= now:
            return DroppedMessage(held.header, _too_late(held, now))
        passage = held.passage
        next_passage = Passage(passage.message_id, passage.hops_remaining - 1, passage.time_to_live, held.consumed(now))
        return held.header, wrap(next_passage, held.body)

    def expire(self, now: float) -> list[DroppedMessage]:
        """Drop messages whose time to live has ended."""
        late = [(key, held) for key, held in self._held.items() if held.expires_at <= now]
        for key, _ in late:
            self._remove(key)
        return [DroppedMessage(held.header, BrokerError(11290)) for _, held in late]

    def drop_all(self, number: int) -> list[DroppedMessage]:
        """Drop all messages: 9792 forwarding was disabled, 11293 the transport ends."""
        held, self._held = self._held, {}
        self._waiting.clear()
        self._owners.clear()
        self._bytes.clear()
        self._keys_by_owner.clear()
        self.held_bytes = 0
        return [DroppedMessage(message.header, BrokerError(number)) for message in held.values()]

    def _remove(self, key: tuple[object, ...]) -> Held[Hop]:
        held = self._held.pop(key)
        self.held_bytes -= held.size
        self._bytes[held.owner] -= held.size
        del self._keys_by_owner[held.owner][key]
        if not self._keys_by_owner[held.owner]:
            del self._bytes[held.owner], self._keys_by_owner[held.owner]
        line, owners = self._waiting[held.hop], self._owners[held.hop]
        del line[key]
        owners[held.owner] -= 1
        if not owners[held.owner]:
            del owners[held.owner]
        if not line:
            del self._waiting[held.hop], self._owners[held.hop]
        return held


def _key(header: Header) -> tuple[object, ...]:
    """Return the key that is equal for two copies of a message."""
    return header.conversation_id, header.is_from_initiator, header.kind, header.number, header.fragment


def _too_late(held: Held[Hop], now: float) -> BrokerError:
    arrived = held.passage.time_consumed
    return BrokerError(11291, held.passage.time_to_live, int(arrived), int(now - held.since))
