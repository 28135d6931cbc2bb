"""Divides the rows of a task into pieces, and copies the pieces into the stage, a table from which the commit sends.

A piece is a run of messages of one type for one slot. A slot is the number of one of the writer's parallel
conversations. Pieces of a slot are numbered in the order of their rows.
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

from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import short_repr, storable

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

MAX_PIECE_MESSAGES = 5_000
MAX_PIECE_BYTES = 4 * 1024 * 1024  # the total size of the bodies in a piece

BODY, TYPE = "message_body", "message_type_name"


class Piece(NamedTuple):
    """Bodies of messages of one type for one slot, in order."""

    slot: int
    message_type: str
    bodies: list[bytes | None]


@dataclass
class Cutter:
    """Divides the rows of one task into pieces.

    Without a key, the pieces go to the slots in turn, beginning with the slot after `first`. With a key, rows with
    equal values in the column `key` go to the same slot.
    """

    slots: int
    default_type: str
    key: str
    first: int
    _open: dict[int, _OpenPiece] = field(default_factory=dict)
    _turn: int = 0

    def pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
        """Yield all rows as pieces.

        Raises:
            InstanceError: a row has a message type that PostgreSQL cannot store.
        """
        for batch in batches:
            for slot, message_type, bodies in self._runs(batch):
                yield from self._add(slot, message_type, bodies)
        for slot in sorted(self._open):
            yield self._open[slot].piece(slot)

    def _runs(self, batch: pa.RecordBatch) -> Iterator[tuple[int, str, list[bytes | None]]]:
        """Yield (slot, message type, bodies) for each run of rows of one slot that have the same type."""
        column = _as_binary(batch.column(BODY))
        types = batch.column(TYPE).to_pylist() if TYPE in batch.schema.names else None
        if types is None:
            for slot, part in self._by_slot(column, batch.column(self.key)) if self.key else self._in_turn(column):
                yield slot, self.default_type, part.to_pylist()
            return
        bodies = column.to_pylist()
        slots: list[Any] = (
            self._slots(batch.column(self.key)).to_pylist() if self.key else [self._next_slot()] * len(bodies)
        )
        bodies_by_run: dict[tuple[int, str], list[bytes | None]] = {}
        current: dict[int, str] = {}
        for index, (slot, body) in enumerate(zip(slots, bodies, strict=True)):
            message_type = types[index] or self.default_type
            if current.setdefault(slot, message_type) != message_type:  # yield the earlier rows of the slot first
                yield slot, current[slot], bodies_by_run.pop((slot, current[slot]))
                current[slot] = message_type
            bodies_by_run.setdefault((slot, message_type), []).append(body)
        for (slot, message_type), run in bodies_by_run.items():
            yield slot, message_type, run

    def _in_turn(self, bodies: pa.Array[Any]) -> Iterator[tuple[int, pa.Array[Any]]]:
        for start in range(0, len(bodies), MAX_PIECE_MESSAGES):
            yield self._next_slot(), bodies.slice(start, MAX_PIECE_MESSAGES)

    def _by_slot(self, bodies: pa.Array[Any], keys: pa.Array[Any]) -> Iterator[tuple[int, pa.Array[Any]]]:
        from pyarrow import compute

        slots = self._slots(keys)
        order = compute.sort_indices(slots)  # the sort is stable: the rows of a slot keep their order
        bodies, start = bodies.take(order), 0
        runs: Any = compute.value_counts(slots.take(order))
        for run in runs.to_pylist():
            yield run["values"], bodies.slice(start, run["counts"])
            start += run["counts"]

    def _next_slot(self) -> int:
        self._turn += 1
        return (self.first + self._turn) % self.slots

    def _slots(self, keys: pa.Array[Any]) -> pa.Array[Any]:
        import pyarrow as pa
        from pyarrow import compute

        encoded: Any = compute.dictionary_encode(keys, null_encoding="encode")
        slots_of_keys = [slot_of(value, self.slots) for value in encoded.dictionary.to_pylist()]
        return pa.array(slots_of_keys, pa.int32()).take(encoded.indices)

    def _add(self, slot: int, message_type: str, bodies: list[bytes | None]) -> Iterator[Piece]:
        while bodies:
            piece = self._open.get(slot)
            if piece is not None and (piece.message_type != message_type or piece.is_full):
                yield piece.piece(slot)
                piece = None
            if piece is None:
                if storable(message_type) != message_type:
                    raise InstanceError(f"No message type is named {short_repr(message_type)}.")
                piece = self._open[slot] = _OpenPiece(message_type)
            bodies = bodies[piece.take(bodies) :]


@dataclass
class _OpenPiece:
    message_type: str
    bodies: list[bytes | None] = field(default_factory=list)
    size: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.bodies) >= MAX_PIECE_MESSAGES or self.size >= MAX_PIECE_BYTES

    def take(self, bodies: list[bytes | None]) -> int:
        """Add bodies from the front of the list until the piece is full. Returns the number of bodies added.

        A piece that is not full takes at least one body.
        """
        room = bodies[: MAX_PIECE_MESSAGES - len(self.bodies)]
        sizes = list(accumulate((len(body or b"") for body in room), initial=self.size))
        count = min(bisect_left(sizes, MAX_PIECE_BYTES), len(room))
        self.bodies += room[:count]
        self.size = sizes[count]
        return count

    def piece(self, slot: int) -> Piece:
        return Piece(slot, self.message_type, self.bodies)


@dataclass
class Digest:
    """A digest of rows: the sum of a hash of each row's message type and body.

    The sum does not depend on the order of the rows, nor on their division into tasks and conversations.
    `combine_digests` reduces the sum of all tasks to the 63 bits that `servicebroker.writers` stores.
    """

    value: int = 0

    def observe(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces unchanged, and add each to the digest."""
        for piece in pieces:
            type_hash = hashlib.blake2b(piece.message_type.encode() + b"\0", digest_size=8)
            for body in piece.bodies:
                body_hash = type_hash.copy()
                body_hash.update(body or b"")
                self.value += int.from_bytes(body_hash.digest())
            yield piece


@dataclass
class Checksum:
    """A cheaper digest, for streaming queries: the sum of a CRC of each row. Different batches may have equal sums."""

    value: int = 0

    def observe(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces unchanged, and add each to the checksum."""
        for piece in pieces:
            start = zlib.crc32(piece.message_type.encode())
            self.value += sum([zlib.crc32(body or b"", start) for body in piece.bodies])
            yield piece


def combine_digests(digests: Iterable[int]) -> int:
    """Return the digest of the rows of all tasks."""
    return sum(digests) % 2**63


def slot_of(key: object, slots: int) -> int:
    """Return the slot of a key. Every process computes the same slot."""
    return zlib.crc32(key if isinstance(key, bytes) else str(key).encode()) % slots


def stage(connection: psycopg.Connection[Any], writer: str, attempt: UUID, pieces: Iterable[Piece]) -> int:
    """Copy pieces into the stage in one transaction. Returns the number of messages.

    `attempt` identifies the task's rows in the stage.
    """
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


def _as_binary(column: pa.Array[Any]) -> pa.Array[Any]:
    import pyarrow as pa

    if pa.types.is_large_string(column.type):  # from Spark's useLargeVarTypes
        return column.cast(pa.large_binary())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column
