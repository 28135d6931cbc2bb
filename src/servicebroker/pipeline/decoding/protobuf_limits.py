"""Checks the number of values in a Protobuf body before the library makes a Python object of each.

The library limits the depth to 100 nested messages, but not their number. A message may have only two bytes. A body of
at most `MAX_VALUES` bytes need not be walked.
"""

from __future__ import annotations

from typing import Any

from servicebroker.pipeline.decoding.columns import MAX_VALUES, too_many_values

_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)  # wire types
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10  # 64 bits, 7 in each byte
_NOT_LAST = bytes(range(0x80, 0x100))  # every byte of a varint except the last


def check_values(descriptor: Any, body: bytes) -> None:
    """Refuse a body with more than `MAX_VALUES` values. A malformed body is not refused: the library does that.

    Raises:
        Undecodable: too many values.
    """
    if len(body) <= MAX_VALUES:
        return
    values = 0
    pending = [(descriptor, 0, len(body))]
    while pending:
        message, position, end = pending.pop()
        while position < end:
            key, position = _varint(body, position, end)
            number, wire_type = key >> 3, key & 7
            field = message and message.fields_by_number.get(number)
            values += 1
            if wire_type == _LENGTH:
                length, position = _varint(body, position, end)
                if position + length > end:
                    return
                if field is not None and field.message_type is not None:
                    pending.append((field.message_type, position, position + length))
                elif field is not None and field.is_repeated and field.cpp_type != field.CPPTYPE_STRING:
                    values += _packed(field, body[position : position + length])
                position += length
            elif wire_type == _VARINT:
                _, position = _varint(body, position, end)
            elif wire_type in _WIDTHS:
                position += _WIDTHS[wire_type]
            elif wire_type not in (_START, _END):
                return
            if values > MAX_VALUES:
                raise too_many_values()


def _packed(field: Any, content: bytes) -> int:
    """Return an upper bound of the number of values in a packed field."""
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) or field.type in (
        field.TYPE_FIXED32,
        field.TYPE_FIXED64,
        field.TYPE_SFIXED32,
        field.TYPE_SFIXED64,
    ):
        return len(content) // 4
    return len(content.translate(None, _NOT_LAST))


def _varint(body: bytes, position: int, end: int) -> tuple[int, int]:
    """Return an integer, and the position after it; (0, `end`) if the integer is incomplete."""
    value = 0
    for number, byte in enumerate(body[position : min(end, position + _MAX_VARINT_BYTES)]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, position + number + 1
    return 0, end
