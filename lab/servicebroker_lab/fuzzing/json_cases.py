"""JSON: columns of all types, at times a schema, and an object with values that fit or do not."""

from __future__ import annotations

import json
import random
from typing import Any

from servicebroker.pipeline.decoding.columns import Column
from servicebroker.pipeline.decoding.kinds import KINDS

TYPES = (*KINDS, "decimal(9,2)", "decimal(38,0)")
SCHEMAS = (
    {"type": "object", "properties": {"c0": {"type": "string", "pattern": "^(a+)+$"}}},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "additionalProperties": {"$ref": "#/$defs/v"}, }, "v": {
        "anyOf": [{"type": ["string", "number", "boolean", "null"]}, {"$ref": "#/$defs/n"},
                  {"type": "array", "items": {"$ref": "#/$defs/v"}, "uniqueItems": True}]}}},
)  # fmt: skip
SCALARS = (
    None, True, False, 0, -1, 10**40, 1.5, "", "text", "a" * 40 + "b", "2030-01-02", "2030-01-02T03:04:05Z", "1e400",
    "NaN", "\ud800", "\u0000", "AAAA", "7.25",
)  # fmt: skip
RAW = (b"1e999999999", b"-0", b"1" * 5_000, b"NaN", b"Infinity", b"1e-400", b"0x10", b"'a'", b"\xff")


def make(draw: random.Random) -> tuple[dict[str, Any], bytes]:
    """Return options of the decoder, and a body."""
    columns = columns_of(draw)
    options: dict[str, Any] = {"columns": columns, "refuse_extra": draw.random() < 0.2}
    if draw.random() < 0.4:
        options["schema"] = json.dumps(draw.choice(SCHEMAS)).encode()
    text = json.dumps({column.name: _value(draw, 3) for column in columns})
    body = text.encode(draw.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16")))
    if draw.random() < 0.3:
        body = body.replace(b"null", draw.choice(RAW))
    return options, body


def columns_of(draw: random.Random) -> list[Column]:
    """Return one to five columns of random types."""
    return [
        Column(f"c{number}", draw.choice(TYPES), draw.random() < 0.5, rounds=draw.random() < 0.3)
        for number in range(draw.randint(1, 5))
    ]


def _value(draw: random.Random, levels: int) -> Any:
    if levels == 0 or draw.random() < 0.6:
        return draw.choice(SCALARS)
    if draw.random() < 0.5:
        return [_value(draw, levels - 1) for _ in range(draw.choice((0, 1, 4)))]
    return {f"c{number}": _value(draw, levels - 1) for number in range(draw.choice((0, 1, 4)))}
