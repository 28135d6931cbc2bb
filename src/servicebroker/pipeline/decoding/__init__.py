"""Bodies of messages into the values of columns: pure functions of bytes.

**The problem.** Bodies come from strangers. A few kilobytes may describe gigabytes of values, or end a process that
decodes them by a library written in C. A body that cannot be read must say why and cost little.

**The flow.** `decoder(format, ...)` makes a `Decoder`; its `decode` returns the values of its columns or raises
`Undecodable`. The format's file finds a value in the body (`plain.py` for JSON, text and bytes, `xml.py`, `avro.py`,
`protobuf.py`). `columns.py` makes a value of the column's type from it.

**The rules.**

* The same bytes and rule give the same values, on any machine and at any time: a batch that comes again lands alike.
* Nothing but `Undecodable` is raised, whatever the bytes are. Its `reason` is the same for all of its kind. A
  `RegisteredDecoder` (`registered.py`) raises, too, what the function raises that finds its schemas.
* A library that makes a Python object of each value gets a body of at most `MAX_VALUES` values. Bodies are measured
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
from servicebroker.pipeline.decoding.registered import RegisteredDecoder
from servicebroker.pipeline.decoding.xml import XmlDecoder

FORMATS = ("json", "xml", "avro", "protobuf", "text", "binary")
UTF_8 = "utf-8"

__all__ = ["FORMATS", "UTF_8", "Column", "Decoder", "RegisteredDecoder", "Undecodable", "check_given", "decoder"]


def decoder(
    format_: str,
    columns: Sequence[Column] = (),
    *,
    schema: bytes | None = None,
    message: str = "",
    encoding: str = UTF_8,
    refuse_extra: bool = False,
) -> Decoder:
    """What reads bodies of that format.

    Args:
        format_: one of `FORMATS`.
        columns: what to take out of a body; for Avro and Protobuf everything, when there are none.
        schema: content of the JSON Schema, the XSD, the Avro schema, or the Protobuf descriptor set.
        message: full name of the Protobuf message.
        encoding: of text.
        refuse_extra: whether a field that no column takes makes a body undecodable.

    Raises:
        ValueError: the schema is none, or does not go with the columns; or something is said that the format has not.
    """
    check_given(format_, columns, message=message, encoding=encoding, refuse_extra=refuse_extra)
    if format_ == "json":
        return JsonDecoder(columns, refuse_extra, None if schema is None else JsonSchema(schema))
    if format_ == "xml":
        return XmlDecoder(columns, schema)
    if format_ == "avro":
        return _complete(AvroDecoder(columns, schema or b"", refuse_extra))
    if format_ == "protobuf":
        return _complete(ProtobufDecoder(columns, schema or b"", message, refuse_extra))
    if schema is not None:
        raise ValueError(f"{format_} has no schema")
    return TextDecoder(encoding) if format_ == "text" else BinaryDecoder()


def check_given(format_: str, columns: Sequence[Column], *, message: str, encoding: str, refuse_extra: bool) -> None:
    """Refuse what a format would not heed.

    Raises:
        ValueError: it is said.
    """
    if columns and format_ in ("text", "binary"):
        raise ValueError(f"{format_} has one column of its own: leave columns out")
    if refuse_extra and format_ not in ("json", "avro", "protobuf"):
        raise ValueError(f"{format_} knows no extra fields: leave extra_fields out")
    if message and format_ != "protobuf":
        raise ValueError("only protobuf has a message: leave it out")
    if format_ != "text" and encoding.lower().replace("_", "-") not in (UTF_8, "utf8"):
        raise ValueError("only text has an encoding: leave it out")


D = TypeVar("D", AvroDecoder, ProtobufDecoder)


def _complete(made: D) -> D:
    """A decoder whose columns all have a field in its schema.

    Raises:
        ValueError: one has none.
    """
    for column in made.columns:
        if column.steps[0] not in made.fields:
            raise ValueError(f"the schema has no field '{column.steps[0]}' for the column '{column.name}'")
    return made
