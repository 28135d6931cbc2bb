"""Decodes Avro records: one record per body, without a container file, with a single writer's schema."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from servicebroker.pipeline.decoding.avro_limits import AvroLimits, check_nesting
from servicebroker.pipeline.decoding.columns import Column, Projection, Undecodable, with_rescue
from servicebroker.pipeline.decoding.kinds import MAX_DECIMAL_DIGITS

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
    """Reads fields from a record.

    Args:
        columns: the fields to read. Without columns, all fields are read, and a nested value becomes JSON.
        schema: the writer's schema.
        refuse_extra: a record with a field that no column reads is undecodable.
        references: schemas of types that `schema` uses, each after the schemas that it uses itself.
        reader: the reader's schema, if it differs, for Avro's schema resolution.
        rescue: name of the column for fields that no column reads; "" for none.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        schema: bytes,
        refuse_extra: bool,
        *,
        references: Sequence[bytes] = (),
        reader: bytes | None = None,
        rescue: str = "",
    ) -> None:
        self._schema, writer_types = _record(schema, references)
        reader_types: dict[str, Any] = {}
        self._reader: Any = None
        if reader is not None:
            self._reader, reader_types = _record(reader, ())
        # Fields that a record may get from the reader's schema.
        added_fields = sum(len(reader_type.get("fields", ())) for reader_type in reader_types.values())
        self._limits = AvroLimits(self._schema, writer_types, added_fields)
        fields = (self._reader or self._schema)["fields"]
        self.selected = tuple(columns) or tuple(_column(field) for field in fields)
        self.columns = with_rescue(self.selected, rescue)
        self.fields = frozenset(field["name"] for field in fields)
        self._projection = Projection(self.selected, refuse_extra=refuse_extra, rescues=bool(rescue))

    def decode(self, body: bytes | None) -> list[Any]:
        """Decode a record; see `Decoder`."""
        import fastavro
        from fastavro.read import SchemaResolutionError

        if not body:
            raise Undecodable("empty", "the body is empty")
        self._limits.check(body)
        source = io.BytesIO(body)
        try:
            record: Any = fastavro.schemaless_reader(source, self._schema, self._reader)
        except SchemaResolutionError as problem:
            raise Undecodable("wrong schema", f"the rule's schema cannot read it: {problem}") from None
        except Exception as problem:  # fastavro raises errors of many types for malformed bytes
            raise Undecodable("malformed", f"{type(problem).__name__} {problem}".strip()) from None
        if source.tell() != len(body):
            raise Undecodable("malformed", f"{len(body) - source.tell()} bytes follow the record")
        return self._projection.values(record)


def _record(schema: bytes, references: Sequence[bytes]) -> tuple[Any, dict[str, Any]]:
    """Parse the schema of a record. Returns the parsed schema, and its named types.

    Raises:
        ValueError: the schema is not an Avro schema of a record.
    """
    import fastavro

    named_types: dict[str, Any] = {}
    try:
        for text in (*references, schema):
            content = json.loads(text)
            check_nesting(content)
            parsed: Any = fastavro.parse_schema(content, named_types)
    except Exception as problem:  # fastavro raises errors of many types
        raise ValueError(f"it is not an Avro schema: {problem}") from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ValueError("the Avro schema must describe a record")
    return parsed, named_types


def _column(field: Mapping[str, Any]) -> Column:
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    value_kinds = [kind for kind in kinds if kind != "null"]
    kind = _kind(value_kinds[0]) if len(value_kinds) == 1 else "json"
    return Column(field["name"], kind, is_optional="null" in kinds)


def _kind(kind: Any) -> str:
    if isinstance(kind, str):
        return _KINDS.get(kind, "json")
    logical = kind.get("logicalType")
    if logical == "decimal" and kind["precision"] <= MAX_DECIMAL_DIGITS:
        return f"decimal({kind['precision']},{kind.get('scale', 0)})"
    return _LOGICAL.get(logical) or ("json" if logical else _KINDS.get(kind["type"], "json"))
