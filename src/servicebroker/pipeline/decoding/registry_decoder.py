"""Decodes bodies that begin with the number of their schema in a registry, as Confluent's clients write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from servicebroker.overriding import override
from servicebroker.pipeline.decoding.avro import AvroDecoder
from servicebroker.pipeline.decoding.columns import Column, Decoder, Undecodable, with_rescue
from servicebroker.pipeline.decoding.json_schema import JsonSchema
from servicebroker.pipeline.decoding.plain import JsonDecoder
from servicebroker.pipeline.decoding.protobuf import ProtobufDecoder, descriptor_set, message_at

_KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
_HEADER_BYTES = 5  # a zero byte, and the number of the schema in four bytes
_MAX_SCHEMA_NUMBER = 2**31 - 1  # a registry answers a larger one as it answers a wrong address
_MAX_MESSAGE_DEPTH = 20  # levels of nested messages
MAX_CACHED_DECODERS = 1_000  # bounds memory: a body may name any schema, and any message in it


class RegisteredSchema(NamedTuple):
    """A schema of a registry.

    Attributes:
        kind: AVRO, JSON or PROTOBUF.
        content: text of the schema; for Protobuf a `FileDescriptorProto`.
        references: name and content of each schema to which it refers, after the schemas to which that one refers.
    """

    kind: str
    content: bytes
    references: tuple[tuple[str, bytes], ...] = ()


SchemaFinder = Callable[[int, str], RegisteredSchema]  # finds a schema by number and wanted kind


class RegisteredDecoder:
    """Decodes each body with the schema that the body names.

    Args:
        find: returns the schema with a number. It raises LookupError if there is none, and ValueError if the schema is
            unusable. It need not read a schema of another kind than the wanted one. `decode` passes on its other
            errors, since the body may be valid.
        reader: the reader's Avro schema, for Avro's schema resolution.
        rescue: name of the column for fields that no column reads; "" for none.

    Raises:
        ValueError: registries have no schemas of this format, or there are no columns.
    """

    def __init__(
        self,
        format_: str,
        columns: Sequence[Column],
        find: SchemaFinder,
        *,
        reader: bytes | None,
        refuse_extra: bool,
        rescue: str = "",
    ) -> None:
        if format_ not in _KINDS:
            raise ValueError(f"a registry has schemas of {', '.join(_KINDS)}, and none of {format_}")
        if reader is not None and format_ != "avro":
            raise ValueError("with a registry only Avro takes a schema of its own, as the reader's schema")
        if reader is not None:
            columns = AvroDecoder(columns, reader, refuse_extra).columns
        if not columns:
            raise ValueError("with a registry columns are needed, since each body may have another schema")
        self.columns = with_rescue(columns, rescue)
        self._selected = tuple(columns)
        self._rescue = rescue
        self._format = format_
        self._find = find
        self._reader = reader
        self._refuse_extra = refuse_extra
        self._decoders: dict[tuple[int, tuple[int, ...]], Decoder | tuple[str, str]] = {}

    @override
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decoders": {}}

    def decode(self, body: bytes | None) -> list[Any]:
        """Decode a body with the schema that it names; see `Decoder`."""
        if not body:
            raise Undecodable("empty", "the body is empty")
        if len(body) < _HEADER_BYTES or body[0]:
            raise Undecodable("malformed", "the body does not begin with a zero byte and the number of a schema")
        number = int.from_bytes(body[1:_HEADER_BYTES])
        if number > _MAX_SCHEMA_NUMBER:
            raise Undecodable("unknown schema", f"no registry has a schema {number}")
        message_path, start = _message_path(body) if self._format == "protobuf" else ((), _HEADER_BYTES)
        decoder = self._decoders.get((number, message_path))
        if decoder is None:
            decoder = self._find_decoder(number, message_path)
            if len(self._decoders) >= MAX_CACHED_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[number, message_path] = decoder
        if isinstance(decoder, tuple):
            raise Undecodable(*decoder)
        return decoder.decode(body[start:])

    def _find_decoder(self, number: int, message_path: tuple[int, ...]) -> Decoder | tuple[str, str]:
        """Return a decoder for bodies of a schema, or (reason, detail) of the error if there is none."""
        try:
            schema = self._find(number, _KINDS[self._format])
        except LookupError as problem:
            return "unknown schema", f"the registry has no schema {number}: {problem}"
        except ValueError as problem:
            return "wrong schema", f"the schema {number} cannot be used: {problem}"
        if schema.kind != _KINDS[self._format]:
            return "wrong schema", f"the schema {number} is of {schema.kind}, and the rule of {self._format}"
        try:
            return self._decoder(schema, message_path)
        except ValueError as problem:
            return "wrong schema", f"the schema {number} cannot be used: {problem}"

    def _decoder(self, schema: RegisteredSchema, message_path: tuple[int, ...]) -> Decoder:
        if self._format == "json":
            json_schema = JsonSchema(schema.content, dict(schema.references))
            return JsonDecoder(self._selected, self._refuse_extra, json_schema, rescue=self._rescue)
        references = [content for _, content in schema.references]
        if self._format == "avro":
            return AvroDecoder(
                *(self._selected, schema.content, self._refuse_extra),
                references=references,
                reader=self._reader,
                rescue=self._rescue,
            )
        message = message_at(schema.content, message_path)
        descriptors = descriptor_set([*references, schema.content])
        return ProtobufDecoder(self._selected, descriptors, message, self._refuse_extra, self._rescue)


def _message_path(body: bytes) -> tuple[tuple[int, ...], int]:
    """Return the path of a Protobuf body's message in its schema (an index per level), and the message's position."""
    count, position = _varint(body, _HEADER_BYTES)
    if count == 0:  # short for [0], the first message
        return (0,), position
    if not 0 < count <= _MAX_MESSAGE_DEPTH:
        raise Undecodable("malformed", f"its message index has {count} levels")
    path = []
    for _ in range(count):
        index, position = _varint(body, position)
        path.append(index)
    return tuple(path), position


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag-encoded integer, and the position after it."""
    value = shift = 0
    while position < len(body) and shift < 35:
        byte = body[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), position
    raise Undecodable("malformed", "the index of its message is incomplete")
