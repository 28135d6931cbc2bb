"""A limit of the values of a Protobuf body, checked before the library makes a Python object of each.

The library bounds depth by itself (100 messages in each other). It does not bound their number: two bytes can be a
message. A body with fewer bytes than the limit has values is not walked.
"""

from __future__ import annotations

from typing import Any

from servicebroker.pipeline.decoding.columns import MAX_VALUES, too_many_values

_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)  # wire types
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10  # bytes
_NOT_LAST = bytes(range(0x80, 0x100))  # bytes of a varint but its last one


def check_values(descriptor: Any, body: bytes) -> None:
    """Refuse a body of this message with more than `MAX_VALUES` values. A malformed body is left to the library.

    Raises:
        Undecodable: too many values.
    """
    if len(body) <= MAX_VALUES:
        return
    values = 0
    ahead = [(descriptor, 0, len(body))]
    while ahead:
        message, place, end = ahead.pop()
        while place < end:
            key, place = _varint(body, place, end)
            number, wire_type = key >> 3, key & 7
            field = message and message.fields_by_number.get(number)
            values += 1
            if wire_type == _LENGTH:
                length, place = _varint(body, place, end)
                if place + length > end:
                    return
                if field is not None and field.message_type is not None:
                    ahead.append((field.message_type, place, place + length))
                elif field is not None and field.is_repeated and field.cpp_type != field.CPPTYPE_STRING:
                    values += _packed(field, body[place : place + length])
                place += length
            elif wire_type == _VARINT:
                _, place = _varint(body, place, end)
            elif wire_type in _WIDTHS:
                place += _WIDTHS[wire_type]
            elif wire_type not in (_START, _END):
                return
            if values > MAX_VALUES:
                raise too_many_values()


def _packed(field: Any, content: bytes) -> int:
    """How many numbers a packed field has."""
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) or field.type in (
        field.TYPE_FIXED32,
        field.TYPE_FIXED64,
        field.TYPE_SFIXED32,
        field.TYPE_SFIXED64,
    ):
        return len(content) // 4
    return len(content.translate(None, _NOT_LAST))


def _varint(body: bytes, place: int, end: int) -> tuple[int, int]:
    """A whole number, and the place behind it: the end where the number does not end."""
    value = 0
    for number, byte in enumerate(body[place : min(end, place + _LONGEST_VARINT)]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, place + number + 1
    return 0, end
