"""Avro records without a container, one a body, under one writer's schema."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from servicebroker.pipeline.decoding.avro_limits import Limits, check_nesting
from servicebroker.pipeline.decoding.columns import MOST_DIGITS, Column, Projection, Undecodable

_KINDS = {
    "string": "string",
    "enum": "string",
    "int": "integer",
    "long": "long",
    "float": "double",
    "double": "double",
    "boolean": "boolean",
    "bytes": "binary",
    "fixed": "binary",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "uuid": "string",
}


class AvroDecoder:
    """The fields of a record; what is nested becomes the text of JSON.

    Args:
        schema: by which bodies are written.
        references: schemas that it takes types from, each behind those that it takes types from itself.
        reader: by which they are read, by Avro's rules for that, where that is another one.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        schema: bytes,
        refuse_extra: bool,
        *,
        references: Sequence[bytes] = (),
        reader: bytes | None = None,
    ) -> None:
        self._schema, named = _record(schema, references)
        added: dict[str, Any] = {}
        self._reader: Any = None
        if reader is not None:
            self._reader, added = _record(reader, ())
        self._limits = Limits(self._schema, named, sum(len(one.get("fields", ())) for one in added.values()))
        fields = (self._reader or self._schema)["fields"]
        self.columns = tuple(columns) or tuple(_column(field) for field in fields)
        self.fields = frozenset(field["name"] for field in fields)
        self._projection = Projection(self.columns, refuse_extra=refuse_extra)

    def decode(self, body: bytes | None) -> list[Any]:
        """See `Decoder`."""
        import fastavro
        from fastavro.read import SchemaResolutionError

        if not body:
            raise Undecodable("empty", "the body is empty")
        self._limits.check(body)
        source = io.BytesIO(body)
        try:
            found: Any = fastavro.schemaless_reader(source, self._schema, self._reader)
        except SchemaResolutionError as problem:
            raise Undecodable("wrong schema", f"the rule's schema cannot read it: {problem}") from None
        except Exception as problem:  # fastavro raises many kinds; whatever the bytes are, they are no such record
            raise Undecodable("malformed", f"{type(problem).__name__} {problem}".strip()) from None
        if source.tell() != len(body):
            raise Undecodable("malformed", f"{len(body) - source.tell()} bytes follow the record")
        return self._projection.values(found)


def _record(schema: bytes, references: Sequence[bytes]) -> tuple[Any, dict[str, Any]]:
    """Parse a schema of a record. Returns it, ready for use, and its named types.

    Raises:
        ValueError: it is none.
    """
    import fastavro

    named: dict[str, Any] = {}
    try:
        for one in (*references, schema):
            content = json.loads(one)
            check_nesting(content)
            parsed: Any = fastavro.parse_schema(content, named)
    except Exception as problem:  # fastavro raises many kinds
        raise ValueError(f"it is no Avro schema: {problem}") from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ValueError("the Avro schema must be of a record")
    return parsed, named


def _column(field: Mapping[str, Any]) -> Column:
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    some = [kind for kind in kinds if kind != "null"]
    return Column(field["name"], _kind(some[0]) if len(some) == 1 else "json", is_optional="null" in kinds)


def _kind(kind: Any) -> str:
    if isinstance(kind, str):
        return _KINDS.get(kind, "json")
    logical = kind.get("logicalType")
    if logical == "decimal" and kind["precision"] <= MOST_DIGITS:
        return f"decimal({kind['precision']},{kind.get('scale', 0)})"
    return _LOGICAL.get(logical) or ("json" if logical else _KINDS.get(kind["type"], "json"))
