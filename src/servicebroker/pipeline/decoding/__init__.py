"""Decodes message bodies into values of columns: pure functions of bytes.

**The problem.** Bodies come from untrusted senders. A few kilobytes may describe gigabytes of values, or crash a
process that decodes them with a library written in C. For an unreadable body, a decoder must report a
reason quickly.

**The flow.** `decoder(format, ...)` makes a `Decoder`; its `decode` returns the values of its columns or raises
`Undecodable`. The format's file finds a value in the body (`plain.py` for JSON, text and bytes, `xml.py`, `avro.py`,
`protobuf.py`). `columns.py` converts it to the column's type.

**The rules.**

* The same bytes and rule give the same values, on any machine and at any time, so that a repeated batch is equal.
* For any bytes, a decoder raises only `Undecodable`. Its `reason` is one of few fixed phrases. A `RegisteredDecoder`
  (`registry_decoder.py`) also raises the errors of the function that finds schemas.
* A library that makes a Python object of each value gets bodies of at most `MAX_VALUES` values. Bodies are measured
  before they are decoded: `plain.py` for JSON, `avro_limits.py`, `protobuf_limits.py`.
* No body makes a decoder read a file or the network.

Begin with `columns.py`, then `plain.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from servicebroker.pipeline.decoding.avro import AvroDecoder
from servicebroker.pipeline.decoding.columns import Column, Decoder, Undecodable
from servicebroker.pipeline.decoding.json_schema import JsonSchema
from servicebroker.pipeline.decoding.plain import BinaryDecoder, JsonDecoder, TextDecoder
from servicebroker.pipeline.decoding.protobuf import ProtobufDecoder
from servicebroker.pipeline.decoding.registry_decoder import RegisteredDecoder
from servicebroker.pipeline.decoding.xml import XmlDecoder

FORMATS = ("json", "xml", "avro", "protobuf", "text", "binary")
UTF_8 = "utf-8"

__all__ = ["FORMATS", "UTF_8", "Column", "Decoder", "RegisteredDecoder", "Undecodable", "check_arguments", "decoder"]


def decoder(
    format_: str,
    columns: Sequence[Column] = (),
    *,
    schema: bytes | None = None,
    message: str = "",
    encoding: str = UTF_8,
    refuse_extra: bool = False,
    rescue: str = "",
) -> Decoder:
    """Return a decoder for bodies of a format.

    Args:
        format_: one of `FORMATS`.
        columns: the values to read from a body. Without columns, Avro and Protobuf read all fields.
        schema: content of the JSON Schema, the XSD, the Avro schema, or the Protobuf descriptor set.
        message: full name of the Protobuf message.
        encoding: encoding of bodies of the format "text".
        refuse_extra: a body with a field that no column reads is undecodable.
        rescue: name of the column for fields that no other column reads; "" for none.

    Raises:
        ValueError: the schema is invalid or does not match the columns, or an argument is not for this format.
    """
    check_arguments(format_, columns, message=message, encoding=encoding, refuse_extra=refuse_extra, rescue=rescue)
    if format_ == "json":
        return JsonDecoder(columns, refuse_extra, None if schema is None else JsonSchema(schema), rescue=rescue)
    if format_ == "xml":
        return XmlDecoder(columns, schema)
    if format_ == "avro":
        return _with_all_fields(AvroDecoder(columns, schema or b"", refuse_extra, rescue=rescue))
    if format_ == "protobuf":
        return _with_all_fields(ProtobufDecoder(columns, schema or b"", message, refuse_extra, rescue))
    if schema is not None:
        raise ValueError(f"{format_} has no schema")
    return TextDecoder(encoding) if format_ == "text" else BinaryDecoder()


def check_arguments(
    format_: str, columns: Sequence[Column], *, message: str, encoding: str, refuse_extra: bool, rescue: str
) -> None:
    """Refuse arguments that the format would ignore.

    Raises:
        ValueError: the format ignores an argument.
    """
    if columns and format_ in ("text", "binary"):
        raise ValueError(f"{format_} has one column of its own: leave columns out")
    if refuse_extra and format_ not in ("json", "avro", "protobuf"):
        raise ValueError(f"{format_} has no extra fields: leave extra_fields out")
    if rescue and format_ not in ("json", "avro", "protobuf"):
        raise ValueError(f"{format_} has no unknown fields: leave rescue out")
    if rescue and refuse_extra:
        raise ValueError('rescue keeps the fields that extra_fields = "refuse" refuses: leave one of them out')
    if format_ != "json" and any(column.is_whole_body for column in columns):
        raise ValueError("only a column of json takes the whole body")
    if message and format_ != "protobuf":
        raise ValueError("only protobuf has a message: leave it out")
    if format_ != "text" and encoding.lower().replace("_", "-") not in (UTF_8, "utf8"):
        raise ValueError("only text has an encoding: leave it out")


D = TypeVar("D", AvroDecoder, ProtobufDecoder)


def _with_all_fields(new_decoder: D) -> D:
    """Return the decoder if its schema has a field for each column.

    Raises:
        ValueError: a column has no field.
    """
    for column in new_decoder.selected:
        if column.steps[0] not in new_decoder.fields:
            raise ValueError(f"the schema has no field '{column.steps[0]}' for the column '{column.name}'")
    return new_decoder
