"""Bodies that name their schema: a zero byte and its number in a registry, as Confluent's clients write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from servicebroker.pipeline.decoding.avro import AvroDecoder
from servicebroker.pipeline.decoding.columns import Column, Decoder, Undecodable
from servicebroker.pipeline.decoding.json_schema import JsonSchema
from servicebroker.pipeline.decoding.plain import JsonDecoder
from servicebroker.pipeline.decoding.protobuf import ProtobufDecoder, descriptor_set, message_at

_KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
_HEAD = 5  # bytes: zero, and the number of the schema
_LONGEST_WAY = 20  # of a message in messages
MAX_KNOWN = 1_000  # decoders and refusals that are kept: a body may name any schema, and any message in it


class Registered(NamedTuple):
    """A schema of a registry.

    Attributes:
        kind: AVRO, JSON or PROTOBUF.
        content: the schema's text; of Protobuf a `FileDescriptorProto`.
        references: schemas that it needs, by the name it has for each, behind those that they need themselves.
    """

    kind: str
    content: bytes
    references: tuple[tuple[str, bytes], ...] = ()


Find = Callable[[int], Registered]


class RegisteredDecoder:
    """The columns of bodies, each read by the schema that it names.

    Args:
        find: the schema of a number. Raises LookupError when the registry has none, ValueError when it cannot be
            used; what else it raises goes on to whoever decodes: nothing is known of the body then.
        reader: the Avro schema by which bodies are read, whatever they were written with.

    Raises:
        ValueError: the format has no place in a registry, or it is not said what is to be taken out of a body.
    """

    def __init__(
        self, format_: str, columns: Sequence[Column], find: Find, *, reader: bytes | None, refuse_extra: bool
    ) -> None:
        if format_ not in _KINDS:
            raise ValueError(f"a registry has schemas of {', '.join(_KINDS)}, and none of {format_}")
        if reader is not None and format_ != "avro":
            raise ValueError("beside a registry only Avro has a schema of its own, by which bodies are read")
        if reader is not None:
            columns = AvroDecoder(columns, reader, refuse_extra).columns
        if not columns:
            raise ValueError("beside a registry columns are needed: each body may have another schema")
        self.columns = tuple(columns)
        self._format = format_
        self._find = find
        self._reader = reader
        self._refuse_extra = refuse_extra
        self._known: dict[tuple[int, tuple[int, ...]], Decoder | tuple[str, str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": {}}

    def decode(self, body: bytes | None) -> list[Any]:
        """See `Decoder`."""
        if not body:
            raise Undecodable("empty", "the body is empty")
        if len(body) < _HEAD or body[0]:
            raise Undecodable("malformed", "the body does not begin with a zero byte and the number of a schema")
        number = int.from_bytes(body[1:_HEAD])
        way, start = _way(body) if self._format == "protobuf" else ((), _HEAD)
        known = self._known.get((number, way))
        if known is None:
            known = self._reading(number, way)
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[number, way] = known
        if isinstance(known, tuple):
            raise Undecodable(*known)
        return known.decode(body[start:])

    def _reading(self, number: int, way: tuple[int, ...]) -> Decoder | tuple[str, str]:
        """What reads bodies of a schema, or why nothing does: reason and detail."""
        try:
            found = self._find(number)
        except LookupError as problem:
            return "unknown schema", f"the registry has no schema {number}: {problem}"
        except ValueError as problem:
            return "wrong schema", f"the schema {number} cannot be used: {problem}"
        if found.kind != _KINDS[self._format]:
            return "wrong schema", f"the schema {number} is of {found.kind}, and the rule of {self._format}"
        try:
            return self._decoder(found, way)
        except ValueError as problem:
            return "wrong schema", f"the schema {number} cannot be used: {problem}"

    def _decoder(self, found: Registered, way: tuple[int, ...]) -> Decoder:
        if self._format == "json":
            return JsonDecoder(self.columns, self._refuse_extra, JsonSchema(found.content, dict(found.references)))
        references = [content for _, content in found.references]
        if self._format == "avro":
            return AvroDecoder(
                self.columns, found.content, self._refuse_extra, references=references, reader=self._reader
            )
        message = message_at(found.content, way)
        return ProtobufDecoder(self.columns, descriptor_set([*references, found.content]), message, self._refuse_extra)


def _way(body: bytes) -> tuple[tuple[int, ...], int]:
    """Which of the schema's messages a body of Protobuf is, a place in each level; and where the message begins."""
    count, place = _varint(body, _HEAD)
    if count == 0:  # short for the first one
        return (0,), place
    if not 0 < count <= _LONGEST_WAY:
        raise Undecodable("malformed", f"the body says that its message is {count} levels deep")
    way = []
    for _ in range(count):
        step, place = _varint(body, place)
        way.append(step)
    return tuple(way), place


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """A whole number in the zigzag form of Protobuf, and the place behind it."""
    value = shift = 0
    while place < len(body) and shift < 35:
        byte = body[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), place
    raise Undecodable("malformed", "the body does not say which message of its schema it is")
