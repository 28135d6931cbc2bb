"""Protobuf messages, by a descriptor set (`protoc --include_imports --descriptor_set_out`)."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from datetime import UTC
from importlib import import_module
from typing import Any

from servicebroker.pipeline.decoding.columns import MISSING, Column, Undecodable, checked, convert, find
from servicebroker.pipeline.decoding.protobuf_limits import check_values

_OWN = re.compile(r"google/protobuf/[a-z_]+\.proto")
_TIMESTAMP = "google.protobuf.Timestamp"


class ProtobufDecoder:
    """The fields of a message; what is repeated or nested becomes the text of JSON. An empty body has the defaults."""

    def __init__(self, columns: Sequence[Column], schema: bytes, message: str, refuse_extra: bool) -> None:
        self._given = (tuple(columns), schema, message, refuse_extra)
        self._class = _message_class(schema, message)
        self.columns = tuple(columns) or tuple(_column(field) for field in self._class.DESCRIPTOR.fields)
        self.fields = frozenset(self._class.DESCRIPTOR.fields_by_name)
        self._ways = [column.steps for column in self.columns]
        self._taken = {steps[0] for steps in self._ways} if refuse_extra else None

    def __getstate__(self) -> tuple[Any, ...]:
        return self._given

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc] # classes made from descriptors do not travel

    def decode(self, body: bytes | None) -> list[Any]:
        """See `Decoder`."""
        from google.protobuf.message import DecodeError

        check_values(self._class.DESCRIPTOR, body or b"")
        found = self._class()
        try:
            found.ParseFromString(body or b"")
        except (DecodeError, RuntimeError) as problem:
            raise Undecodable("malformed", str(problem)) from None
        if not found.IsInitialized():
            raise Undecodable("missing field", str(found.FindInitializationErrors()))
        if self._taken is not None:
            _check_extra(found, self._taken)
        try:
            values = [_at(found, steps) for steps in self._ways]
        except Undecodable:
            raise
        except Exception as problem:  # many kinds: a Timestamp beyond the year 9999, an Any of a type that nobody knows
            raise Undecodable("wrong type", str(problem)) from None
        return [checked(column, value, convert) for column, value in zip(self.columns, values, strict=True)]


def _check_extra(message: Any, taken: Container[str]) -> None:
    """Refuse a field that the schema does not know, or that no column takes."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise Undecodable("extra field", f"number {unknown[0].field_number} is not in the schema")
    extra = [field.name for field, _ in message.ListFields() if field.name not in taken]
    if extra:
        raise Undecodable("extra field", f"'{extra[0]}' has no column")


def message_at(file: bytes, way: Sequence[int]) -> str:
    """The full name of a message of a `FileDescriptorProto`, by its place in each level.

    Raises:
        ValueError: there is none.
    """
    found = _file(file)
    names = [found.package] if found.package else []
    messages = found.message_type
    for place in way:
        if not 0 <= place < len(messages):
            raise ValueError(f"it has no message {'.'.join(map(str, way))}")
        names.append(messages[place].name)
        messages = messages[place].nested_type
    return ".".join(names)


def descriptor_set(files: Sequence[bytes]) -> bytes:
    """A descriptor set of each `FileDescriptorProto`, with those of Protobuf itself that they import.

    Raises:
        ValueError: some are none.
    """
    from google.protobuf import descriptor_pb2

    given = [_file(one) for one in files]
    there = {file.name for file in given}
    theirs = [
        _well_known(name)
        for name in dict.fromkeys(name for file in given for name in file.dependency)
        if name not in there
    ]
    return descriptor_pb2.FileDescriptorSet(file=[*filter(None, theirs), *given]).SerializeToString()


def _file(content: bytes) -> Any:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(content)
    except DecodeError as problem:
        raise ValueError(f"it is no Protobuf descriptor: {problem}") from None


def _well_known(name: str) -> Any:
    """A file of Protobuf's own, such as google/protobuf/timestamp.proto; None for others."""
    from google.protobuf import descriptor_pb2

    try:
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2") if _OWN.fullmatch(name) else None
    except ImportError:
        return None
    return module and descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _message_class(schema: bytes, message: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(schema)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        raise ValueError(f"the descriptor set has no message '{message}'") from None
    except (DecodeError, TypeError) as problem:
        raise ValueError(f"it is no Protobuf descriptor set: {problem}") from None


def _column(field: Any) -> Column:
    kinds = {
        field.CPPTYPE_INT32: "integer",
        field.CPPTYPE_UINT32: "long",
        field.CPPTYPE_INT64: "long",
        field.CPPTYPE_UINT64: "decimal(20,0)",
        field.CPPTYPE_DOUBLE: "double",
        field.CPPTYPE_FLOAT: "double",
        field.CPPTYPE_BOOL: "boolean",
        field.CPPTYPE_ENUM: "string",
        field.CPPTYPE_STRING: "binary" if field.type == field.TYPE_BYTES else "string",
    }
    if field.is_repeated:
        return Column(field.name, "json", is_optional=True)
    if field.message_type is not None:
        kind = "timestamp" if field.message_type.full_name == _TIMESTAMP else "json"
        return Column(field.name, kind, is_optional=True)
    return Column(field.name, kinds[field.cpp_type], is_optional=field.has_presence)


def _at(message: Any, steps: Sequence[str]) -> Any:
    """What stands at the end of a way of fields; in maps, and in what has a form of its own in JSON, as it is there."""
    field = message.DESCRIPTOR.fields_by_name.get(steps[0])
    if field is None:
        return MISSING
    inner = field.message_type
    if len(steps) == 1 or field.is_repeated or inner is None or inner.full_name.startswith("google.protobuf."):
        return find(_value(message, field), steps[1:])
    return _at(getattr(message, field.name), steps[1:]) if message.HasField(field.name) else MISSING


def _value(message: Any, field: Any) -> Any:
    from google.protobuf.json_format import MessageToDict

    if not field.is_repeated and field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if field.is_repeated or (field.message_type is not None and field.message_type.full_name != _TIMESTAMP):
        return MessageToDict(_only(message, field), preserving_proto_field_name=True).get(field.name)
    if field.message_type is not None:
        return value.ToJsonString() if value.nanos % 1000 else value.ToDatetime(tzinfo=UTC)  # which would cut them off
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


def _only(message: Any, field: Any) -> Any:
    """A message of that type with nothing but this field: the library turns only whole messages into what JSON has."""
    alone = type(message)()
    getattr(alone, field.name).MergeFrom(getattr(message, field.name))
    return alone
