"""Protobuf messages, with a descriptor set (`protoc --include_imports --descriptor_set_out`)."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from datetime import UTC
from importlib import import_module
from typing import Any

from servicebroker.pipeline.decoding.columns import MISSING, Column, Undecodable, convert, convert_column, find_value
from servicebroker.pipeline.decoding.protobuf_limits import check_values

_WELL_KNOWN_FILE = re.compile(r"google/protobuf/[a-z_]+\.proto")
_TIMESTAMP = "google.protobuf.Timestamp"


class ProtobufDecoder:
    """Takes fields from a message. A repeated or nested value becomes JSON text. An empty body has the defaults."""

    def __init__(self, columns: Sequence[Column], schema: bytes, message: str, refuse_extra: bool) -> None:
        self._arguments = (tuple(columns), schema, message, refuse_extra)
        self._class = _message_class(schema, message)
        self.columns = tuple(columns) or tuple(_column(field) for field in self._class.DESCRIPTOR.fields)
        self.fields = frozenset(self._class.DESCRIPTOR.fields_by_name)
        self._paths = [column.steps for column in self.columns]
        self._taken = {steps[0] for steps in self._paths} if refuse_extra else None

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc] # classes made from descriptors cannot be pickled

    def decode(self, body: bytes | None) -> list[Any]:
        """Decode a message; see `Decoder`."""
        from google.protobuf.message import DecodeError

        check_values(self._class.DESCRIPTOR, body or b"")
        message = self._class()
        try:
            message.ParseFromString(body or b"")
        except (DecodeError, RuntimeError) as problem:
            raise Undecodable("malformed", str(problem)) from None
        if not message.IsInitialized():
            raise Undecodable("missing field", str(message.FindInitializationErrors()))
        if self._taken is not None:
            _check_extra(message, self._taken)
        try:
            values = [_value_at(message, steps) for steps in self._paths]
        except Undecodable:
            raise
        except Exception as problem:  # many types: a Timestamp beyond year 9999, an Any of an unknown type
            raise Undecodable("wrong type", str(problem)) from None
        return [convert_column(column, value, convert) for column, value in zip(self.columns, values, strict=True)]


def _check_extra(message: Any, taken_fields: Container[str]) -> None:
    """Refuse a field that is not in the schema, or that no column takes."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise Undecodable("extra field", f"number {unknown[0].field_number} is not in the schema")
    extra = [field.name for field, _ in message.ListFields() if field.name not in taken_fields]
    if extra:
        raise Undecodable("extra field", f"'{extra[0]}' has no column")


def message_at(file: bytes, path: Sequence[int]) -> str:
    """Return the full name of a message of a `FileDescriptorProto`, by its index on each level.

    Raises:
        ValueError: there is no such message.
    """
    file_descriptor = _file(file)
    names = [file_descriptor.package] if file_descriptor.package else []
    messages = file_descriptor.message_type
    for index in path:
        if not 0 <= index < len(messages):
            raise ValueError(f"the schema has no message {'.'.join(map(str, path))}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def descriptor_set(files: Sequence[bytes]) -> bytes:
    """Return a descriptor set of `FileDescriptorProto` files, with the well-known Protobuf files that they import.

    Raises:
        ValueError: one is no `FileDescriptorProto`.
    """
    from google.protobuf import descriptor_pb2

    descriptors = [_file(file) for file in files]
    names = {file.name for file in descriptors}
    well_known = [
        _well_known(name)
        for name in dict.fromkeys(name for file in descriptors for name in file.dependency)
        if name not in names
    ]
    return descriptor_pb2.FileDescriptorSet(file=[*filter(None, well_known), *descriptors]).SerializeToString()


def _file(content: bytes) -> Any:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(content)
    except DecodeError as problem:
        raise ValueError(f"it is no Protobuf descriptor: {problem}") from None


def _well_known(name: str) -> Any:
    """Return a well-known file of Protobuf, such as google/protobuf/timestamp.proto; None for others."""
    from google.protobuf import descriptor_pb2

    try:
        if not _WELL_KNOWN_FILE.fullmatch(name):
            return None
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    except ImportError:
        return None
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


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


def _value_at(message: Any, steps: Sequence[str]) -> Any:
    """Return the value at the end of a path of fields.

    Within maps and messages with a JSON form of their own, follow the JSON.
    """
    field = message.DESCRIPTOR.fields_by_name.get(steps[0])
    if field is None:
        return MISSING
    inner = field.message_type
    if len(steps) == 1 or field.is_repeated or inner is None or inner.full_name.startswith("google.protobuf."):
        return find_value(_value(message, field), steps[1:])
    return _value_at(getattr(message, field.name), steps[1:]) if message.HasField(field.name) else MISSING


def _value(message: Any, field: Any) -> Any:
    from google.protobuf.json_format import MessageToDict

    if not field.is_repeated and field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if field.is_repeated or (field.message_type is not None and field.message_type.full_name != _TIMESTAMP):
        return MessageToDict(_only(message, field), preserving_proto_field_name=True).get(field.name)
    if field.message_type is not None:
        has_nanoseconds = value.nanos % 1000  # ToDatetime would cut them off
        return value.ToJsonString() if has_nanoseconds else value.ToDatetime(tzinfo=UTC)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


def _only(message: Any, field: Any) -> Any:
    """Return a message of the same type with only this field: the library converts only whole messages to JSON."""
    copy = type(message)()
    getattr(copy, field.name).MergeFrom(getattr(message, field.name))
    return copy
