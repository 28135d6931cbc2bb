"""Avro: a random schema, with types within themselves, and a body of it."""

from __future__ import annotations

import json
import random
from typing import Any

from servicebroker_lab.fuzzing.mutations import NUMBERS, zigzag

LOGICAL = (
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "string", "logicalType": "uuid"},
)
MOST_DEPTH = 12  # the deepest nesting of a body; a recursive schema ends there


def make(draw: random.Random) -> tuple[dict[str, Any], bytes]:
    """Return options of the decoder, and a valid body."""
    names: dict[str, Any] = {}
    schema = _record(draw, names, 3)
    return {"schema": json.dumps(schema).encode()}, _body(schema, names, draw, 0)


def _record(draw: random.Random, names: dict[str, Any], levels: int) -> dict[str, Any]:
    record: dict[str, Any] = {"type": "record", "name": f"N{len(names)}"}
    names[record["name"]] = record
    many = draw.choice((0, 1, 2, 5, 40)) if levels < 3 else draw.randint(1, 6)
    record["fields"] = [{"name": f"f{index}", "type": _kind(draw, names, levels - 1)} for index in range(many)]
    return record


def _kind(draw: random.Random, names: dict[str, Any], levels: int) -> Any:
    if levels <= 0 or draw.random() < 0.5:
        return draw.choice(("null", "boolean", "int", "long", "float", "double", "bytes", "string", *LOGICAL))
    match draw.randrange(6):
        case 0:
            return {"type": "array", "items": _kind(draw, names, levels - 1)}
        case 1:
            return {"type": "map", "values": _kind(draw, names, levels - 1)}
        case 2:
            return _record(draw, names, levels)
        case 3:
            return ["null", draw.choice((*names, "string"))]  # a type within itself
        case 4:
            name = f"N{len(names)}"
            names[name] = {"type": "enum", "name": name, "symbols": ["A", "B"]}
            return names[name]
        case _:
            name = f"N{len(names)}"
            names[name] = {"type": "fixed", "name": name, "size": draw.choice((0, 1, 16))}
            return names[name]


def _body(schema: Any, names: dict[str, Any], draw: random.Random, depth: int) -> bytes:
    if isinstance(schema, list):
        branch = 0 if depth > MOST_DEPTH else draw.randrange(len(schema))
        return zigzag(branch) + _body(schema[branch], names, draw, depth + 1)
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return b""
        case "boolean":
            return draw.randbytes(1)
        case "int" | "long":
            return zigzag(draw.choice(NUMBERS))
        case "enum":
            return zigzag(draw.randrange(2))
        case "float" | "double":
            return draw.randbytes(4 if kind == "float" else 8)
        case "bytes" | "string":
            content = draw.choice((b"", b"text", draw.randbytes(20)))
            return zigzag(len(content)) + content
        case "fixed":
            return draw.randbytes(schema["size"])
        case "array" | "map":
            return _blocks(schema, names, draw, depth)
        case _:
            return b"".join(_body(field["type"], names, draw, depth + 1) for field in schema["fields"])


def _blocks(schema: Any, names: dict[str, Any], draw: random.Random, depth: int) -> bytes:
    is_map = schema["type"] == "map"
    many = 0 if depth > MOST_DEPTH else draw.choice((0, 1, 3))
    items = b"".join(
        (zigzag(1) + b"k" if is_map else b"") + _body(schema["values" if is_map else "items"], names, draw, depth + 1)
        for _ in range(many)
    )
    if not many:
        return zigzag(0)
    head = zigzag(-many) + zigzag(len(items)) if draw.random() < 0.3 else zigzag(many)
    return head + items + zigzag(0)
