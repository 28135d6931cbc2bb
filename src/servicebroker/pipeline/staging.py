"""Rows of a task on their way to conversations: cut into pieces, and copied where the commit finds them.

A piece is a run of messages of one type for one slot, that is, one conversation. Pieces of a slot are numbered in the
order of their rows.
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

PIECE_MESSAGES = 5_000
PIECE_BYTES = 4 * 1024 * 1024

BODY, TYPE = "message_body", "message_type_name"


class Piece(NamedTuple):
    """Messages of one type for one slot, in order."""

    slot: int
    message_type: str
    bodies: list[bytes | None]


@dataclass
class Cutter:
    """Cuts the rows of one task into pieces.

    Without a key the pieces take turns on the slots, beginning with `first`; with one, equal keys are in one slot.
    """

    slots: int
    default_type: str
    key: str
    first: int
    _open: dict[int, _Growing] = field(default_factory=dict)
    _turn: int = 0

    def pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
        """All rows, in pieces."""
        for batch in batches:
            for slot, message_type, bodies in self._runs(batch):
                yield from self._add(slot, message_type, bodies)
        for slot in sorted(self._open):
            yield self._open[slot].piece(slot)

    def _runs(self, batch: pa.RecordBatch) -> Iterator[tuple[int, str, list[bytes | None]]]:
        """Rows of one slot and type that follow each other there."""
        column = _bytes(batch.column(BODY))
        types = batch.column(TYPE).to_pylist() if TYPE in batch.schema.names else None
        if types is None:
            for slot, part in self._by_slot(column, batch.column(self.key)) if self.key else self._in_turn(column):
                yield slot, self.default_type, part.to_pylist()
            return
        bodies = column.to_pylist()
        slots: list[Any] = (
            self._slots(batch.column(self.key)).to_pylist() if self.key else [self._next_slot()] * len(bodies)
        )
        together: dict[tuple[int, str], list[bytes | None]] = {}
        current: dict[int, str] = {}
        for place, (slot, body) in enumerate(zip(slots, bodies, strict=True)):
            message_type = types[place] or self.default_type
            if current.setdefault(slot, message_type) != message_type:  # what came before goes first
                yield slot, current[slot], together.pop((slot, current[slot]))
                current[slot] = message_type
            together.setdefault((slot, message_type), []).append(body)
        for (slot, message_type), run in together.items():
            yield slot, message_type, run

    def _in_turn(self, bodies: pa.Array[Any]) -> Iterator[tuple[int, pa.Array[Any]]]:
        for begin in range(0, len(bodies), PIECE_MESSAGES):
            yield self._next_slot(), bodies.slice(begin, PIECE_MESSAGES)

    def _by_slot(self, bodies: pa.Array[Any], keys: pa.Array[Any]) -> Iterator[tuple[int, pa.Array[Any]]]:
        from pyarrow import compute

        slots = self._slots(keys)
        order = compute.sort_indices(slots)  # stable: the rows of a slot stay in their order
        bodies, begin = bodies.take(order), 0
        runs: Any = compute.value_counts(slots.take(order))
        for run in runs.to_pylist():
            yield run["values"], bodies.slice(begin, run["counts"])
            begin += run["counts"]

    def _next_slot(self) -> int:
        self._turn += 1
        return (self.first + self._turn) % self.slots

    def _slots(self, keys: pa.Array[Any]) -> pa.Array[Any]:
        import pyarrow as pa
        from pyarrow import compute

        encoded: Any = compute.dictionary_encode(keys, null_encoding="encode")
        known = [slot_of(value, self.slots) for value in encoded.dictionary.to_pylist()]
        return pa.array(known, pa.int32()).take(encoded.indices)

    def _add(self, slot: int, message_type: str, bodies: list[bytes | None]) -> Iterator[Piece]:
        while bodies:
            growing = self._open.get(slot)
            if growing is not None and (growing.message_type != message_type or growing.is_full):
                yield growing.piece(slot)
                growing = None
            if growing is None:
                growing = self._open[slot] = _Growing(message_type)
            bodies = bodies[growing.take(bodies) :]


@dataclass
class _Growing:
    message_type: str
    bodies: list[bytes | None] = field(default_factory=list)
    size: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.bodies) >= PIECE_MESSAGES or self.size >= PIECE_BYTES

    def take(self, bodies: list[bytes | None]) -> int:
        """Bodies from the front until it is full; how many. At least one, if it is not full."""
        room = bodies[: PIECE_MESSAGES - len(self.bodies)]
        sizes = list(accumulate((len(body or b"") for body in room), initial=self.size))
        count = min(bisect_left(sizes, PIECE_BYTES), len(room))
        self.bodies += room[:count]
        self.size = sizes[count]
        return count

    def piece(self, slot: int) -> Piece:
        return Piece(slot, self.message_type, self.bodies)


@dataclass
class Digest:
    """What rows hold, as a number: the same however they are divided into tasks and in which order they come.

    Type and body count, not the conversation. A number of 63 bits, as `servicebroker.writers` keeps it.
    """

    value: int = 0

    def over(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces, counted in as they pass."""
        for piece in pieces:
            empty = hashlib.blake2b(piece.message_type.encode() + b"\0", digest_size=8)
            for body in piece.bodies:
                one = empty.copy()
                one.update(body or b"")
                self.value += int.from_bytes(one.digest())
            yield piece


@dataclass
class Checksum:
    """The same of a stream, where it costs each row no more than its CRC: it tells batches apart by chance only."""

    value: int = 0

    def over(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces, counted in as they pass."""
        for piece in pieces:
            start = zlib.crc32(piece.message_type.encode())
            self.value += sum([zlib.crc32(body or b"", start) for body in piece.bodies])
            yield piece


def together(digests: Iterable[int]) -> int:
    """The digest of the rows of all tasks."""
    return sum(digests) % 2**63


def slot_of(key: object, slots: int) -> int:
    """The slot of a key: the same in every process."""
    return zlib.crc32(key if isinstance(key, bytes) else str(key).encode()) % slots


def stage(connection: psycopg.Connection[Any], writer: str, attempt: UUID, pieces: Iterable[Piece]) -> int:
    """Copy pieces into the stage, in one transaction. Returns the number of messages."""
    from servicebroker.store.statements import Bodies

    messages = 0
    target = "servicebroker.writer_stage (attempt, piece, writer, slot, message_type_name, messages, bodies)"
    into_stage = f"copy {target} from stdin (format binary)"
    with connection.transaction(), connection.cursor() as cursor, cursor.copy(into_stage) as copy:
        copy.set_types(["uuid", "int4", "text", "int4", "text", "int4", "bytea[]"])
        for number, piece in enumerate(pieces):
            count = len(piece.bodies)
            copy.write_row((attempt, number, writer, piece.slot, piece.message_type, count, Bodies(piece.bodies)))
            messages += count
    return messages


def _bytes(column: pa.Array[Any]) -> pa.Array[Any]:
    import pyarrow as pa

    if pa.types.is_large_string(column.type):  # with Spark's useLargeVarTypes
        return column.cast(pa.large_binary())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column
