"""Avro records without a container, one a body, under one writer's schema."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

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
        self._schema = _record(schema, references)
        self._reader = None if reader is None else _record(reader, ())
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


def _record(schema: bytes, references: Sequence[bytes]) -> Any:
    """A schema of a record, ready for use.

    Raises:
        ValueError: it is none.
    """
    import fastavro

    named: dict[str, Any] = {}
    try:
        parsed: Any = [fastavro.parse_schema(json.loads(one), named) for one in (*references, schema)]
    except Exception as problem:  # fastavro raises many kinds
        raise ValueError(f"it is no Avro schema: {problem}") from None
    if not isinstance(parsed[-1], dict) or parsed[-1].get("type") != "record":
        raise ValueError("the Avro schema must be of a record")
    for one in parsed:
        _check_sizes(one, named)
    return parsed[-1]


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


def _check_sizes(schema: Any, named: Mapping[str, Any]) -> None:
    """Refuse arrays of what takes no bytes: few bytes could claim any number of them."""
    if isinstance(schema, list):
        for one in schema:
            _check_sizes(one, named)
    elif isinstance(schema, dict):
        if schema.get("type") == "array" and _takes_nothing(schema["items"], named):
            raise ValueError("an array of items without content may claim any length")
        for inner in (schema.get("items"), schema.get("values"), schema.get("type")):
            if not isinstance(inner, str):
                _check_sizes(inner, named)
        for field in schema.get("fields", ()):
            _check_sizes(field["type"], named)


def _takes_nothing(schema: Any, named: Mapping[str, Any], within: frozenset[str] = frozenset()) -> bool:
    """Whether a value takes no bytes; a record that holds itself, among `within`, has no value that ends."""
    if isinstance(schema, str) and schema in named and schema not in within:
        return _takes_nothing(named[schema], named, within | {schema})
    if isinstance(schema, dict) and schema.get("type") == "record":
        return all(_takes_nothing(field["type"], named, within | {schema["name"]}) for field in schema["fields"])
    if isinstance(schema, dict) and schema.get("type") == "fixed":
        return schema.get("size") == 0
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")
