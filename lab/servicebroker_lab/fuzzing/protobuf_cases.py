"""Protobuf: random message types, also within themselves, and a body of one."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf import descriptor_pb2

from servicebroker_lab.fuzzing.mutations import NUMBERS, varint

Field = descriptor_pb2.FieldDescriptorProto
VARINTS = (Field.TYPE_INT32, Field.TYPE_INT64, Field.TYPE_UINT64, Field.TYPE_SINT32, Field.TYPE_BOOL)
FIXED = {Field.TYPE_DOUBLE: 8, Field.TYPE_FIXED64: 8, Field.TYPE_FLOAT: 4, Field.TYPE_SFIXED32: 4}
TEXTS = (Field.TYPE_STRING, Field.TYPE_BYTES)
MOST_DEPTH = 10
MOST_REPEATING = 3  # levels in which fields are there several times


def make(draw: random.Random) -> tuple[dict[str, Any], bytes]:
    """Return options of the decoder, and a valid body."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="f.proto", syntax=draw.choice(("proto2", "proto3")))
    messages = [file.message_type.add(name=f"M{number}") for number in range(draw.randint(1, 3))]
    for message in messages:
        for number in range(draw.randint(1, 6)):
            _add_field(message, number + 1, len(messages), draw)
    by_name = {f".{message.name}": message for message in messages}
    options = {"schema": files.SerializeToString(), "message": "M0"}
    return options, _body(messages[0], by_name, draw, 0)


def _add_field(message: Any, number: int, messages: int, draw: random.Random) -> None:
    kind = draw.choice((*VARINTS, *FIXED, *TEXTS, Field.TYPE_MESSAGE, Field.TYPE_MESSAGE))
    field = message.field.add(name=f"f{number}", number=number, type=kind)
    field.label = draw.choice((Field.LABEL_OPTIONAL, Field.LABEL_REPEATED))
    if kind == Field.TYPE_MESSAGE:
        field.type_name = f".M{draw.randrange(messages)}"


def _body(message: Any, by_name: dict[str, Any], draw: random.Random, depth: int) -> bytes:
    written = b""
    for field in message.field:
        repeated = field.label == Field.LABEL_REPEATED and depth < MOST_REPEATING
        for _ in range(draw.choice((0, 1, 3)) if repeated else draw.randint(0, 1)):
            written += _value(field, by_name, draw, depth)
    return written


def _value(field: Any, by_name: dict[str, Any], draw: random.Random, depth: int) -> bytes:
    if field.type in VARINTS:
        return varint(field.number << 3) + varint(draw.choice(NUMBERS) % 2**64)
    if field.type in FIXED:
        size = FIXED[field.type]
        return varint(field.number << 3 | (1 if size == 8 else 5)) + draw.randbytes(size)
    if field.type in TEXTS:
        content = draw.choice((b"", b"text", draw.randbytes(20)))
    else:
        content = b"" if depth >= MOST_DEPTH else _body(by_name[field.type_name], by_name, draw, depth + 1)
    return varint(field.number << 3 | 2) + varint(len(content)) + content
