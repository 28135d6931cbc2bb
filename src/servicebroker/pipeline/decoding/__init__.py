"""Bodies of messages into the values of columns: pure functions of bytes. What cannot be read says why.

`decoder(format, ...)` makes a `Decoder`; its `decode` returns the values of its columns or raises `Undecodable`, and
nothing else, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Sequence

from servicebroker.pipeline.decoding.avro import AvroDecoder
from servicebroker.pipeline.decoding.columns import Column, Decoder, Undecodable
from servicebroker.pipeline.decoding.plain import BinaryDecoder, JsonDecoder, TextDecoder
from servicebroker.pipeline.decoding.protobuf import ProtobufDecoder
from servicebroker.pipeline.decoding.xml import XmlDecoder

FORMATS = ("json", "xml", "avro", "protobuf", "text", "binary")

__all__ = ["FORMATS", "Column", "Decoder", "Undecodable", "decoder"]


def decoder(
    format_: str,
    columns: Sequence[Column] = (),
    *,
    schema: bytes | None = None,
    message: str = "",
    encoding: str = "utf-8",
    refuse_extra: bool = False,
) -> Decoder:
    """What reads bodies of that format.

    Args:
        format_: one of `FORMATS`.
        columns: what to take out of a body; for Avro and Protobuf everything, when there are none.
        schema: content of the XSD, the Avro schema, or the Protobuf descriptor set.
        message: full name of the Protobuf message.
        encoding: of text.
        refuse_extra: whether a field that no column takes makes a body undecodable.

    Raises:
        ValueError: the schema is none, or does not go with the columns.
    """
    if format_ == "json":
        return JsonDecoder(columns, refuse_extra)
    if format_ == "xml":
        return XmlDecoder(columns, schema)
    if format_ == "avro":
        return AvroDecoder(columns, schema or b"", refuse_extra)
    if format_ == "protobuf":
        return ProtobufDecoder(columns, schema or b"", message, refuse_extra)
    return TextDecoder(encoding) if format_ == "text" else BinaryDecoder()
