"""Decodes Protobuf messages, with a descriptor set (`protoc --include_imports --descriptor_set_out`)."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from datetime import UTC
from importlib import import_module
from typing import Any

from servicebroker.overriding import override
from servicebroker.pipeline.decoding.columns import (
    MISSING,
    Column,
    Undecodable,
    convert,
    convert_column,
    find_value,
    known_fields,
    unknown_fields_json,
    with_rescue,
)
from servicebroker.pipeline.decoding.kinds import is_nested
from servicebroker.pipeline.decoding.protobuf_limits import check_values

_WELL_KNOWN_FILE = re.compile(r"google/protobuf/[a-z_]+\.proto")
_TIMESTAMP = "google.protobuf.Timestamp"


class ProtobufDecoder:
    """Reads fields from a message. In an empty body, all fields have their default values.

    Without columns, all fields are read, and a repeated or nested value becomes JSON. `rescue`: name of the column for
    the schema's fields that no column reads; "" for none.
    """

    def __init__(
        self, columns: Sequence[Column], schema: bytes, message: str, refuse_extra: bool, rescue: str = ""
    ) -> None:
        self._arguments = (tuple(columns), schema, message, refuse_extra, rescue)
        self._class = _message_class(schema, message)
        self.selected = tuple(columns) or tuple(_column(field) for field in self._class.DESCRIPTOR.fields)
        self.columns = with_rescue(self.selected, rescue)
        self.fields = frozenset(self._class.DESCRIPTOR.fields_by_name)
        self._paths = [(column.steps, is_nested(column.kind)) for column in self.selected]
        self._allowed = {steps[0] for steps, _ in self._paths} if refuse_extra else None
        self._known = known_fields(self.selected) if rescue else None

    @override
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
        if self._allowed is not None:
            _check_extra(message, self._allowed)
        try:
            values = [_value_at(message, steps, has_defaults=nested) for steps, nested in self._paths]
            rescued_fields = None if self._known is None else unknown_fields_json(_as_dictionary(message), self._known)
        except Undecodable:
            raise
        except Exception as problem:  # many types: a Timestamp beyond year 9999, an Any of an unknown type
            raise Undecodable("wrong type", str(problem)) from None
        converted = [
            convert_column(column, value, _convert_json if nested else convert)
            for column, value, (_, nested) in zip(self.selected, values, self._paths, strict=True)
        ]
        return converted if len(self.selected) == len(self.columns) else [*converted, rescued_fields]


def _check_extra(message: Any, allowed_fields: Container[str]) -> None:
    """Refuse a message with a field that is not in the schema, or that no column reads."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise Undecodable("extra field", f"number {unknown[0].field_number} is not in the schema")
    extra = [field.name for field, _ in message.ListFields() if field.name not in allowed_fields]
    if extra:
        raise Undecodable("extra field", f"'{extra[0]}' has no column")


def message_at(file: bytes, path: Sequence[int]) -> str:
    """Return the full name of a message in a `FileDescriptorProto`. `path`: its index on each level of nesting.

    Raises:
        ValueError: the file has no such message.
    """
    file_descriptor = _file(file)
    names = [file_descriptor.package] if file_descriptor.package else []
    messages = file_descriptor.message_type
    for index in path:
        if not 0 <= index < len(messages):
            index_path = ".".join(map(str, path))
            raise ValueError(f"the schema has no message at index {index_path}: another schema may have been used")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def descriptor_set(files: Sequence[bytes]) -> bytes:
    """Return a descriptor set of `FileDescriptorProto` files and the well-known Protobuf files that they import.

    Raises:
        ValueError: a file is not a `FileDescriptorProto`.
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
        raise ValueError(f"it is not a Protobuf descriptor: {problem}") from None


def _well_known(name: str) -> Any:
    """Return the descriptor of a well-known file, such as google/protobuf/timestamp.proto; None for other files."""
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
        raise ValueError(f"it is not a Protobuf descriptor set: {problem}") from None


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


def _value_at(message: Any, steps: Sequence[str], *, has_defaults: bool) -> Any:
    """Return the value at the path `steps`.

    Inside maps, repeated fields and well-known messages, follow the path in their JSON. `has_defaults`: that JSON
    includes fields with default values.
    """
    field = message.DESCRIPTOR.fields_by_name.get(steps[0])
    if field is None:
        return MISSING
    inner = field.message_type
    if len(steps) == 1 or field.is_repeated or inner is None or inner.full_name.startswith("google.protobuf."):
        return find_value(_value(message, field, has_defaults=has_defaults), steps[1:])
    if not message.HasField(field.name):
        return MISSING
    return _value_at(getattr(message, field.name), steps[1:], has_defaults=has_defaults)


def _convert_json(kind: str, value: Any, rounds: bool) -> Any:
    """Convert a value of Protobuf's JSON, in which 64-bit integers are strings."""
    is_number = kind in ("integer", "long") and isinstance(value, str) and value.lstrip("-").isdecimal()
    return convert(kind, int(value) if is_number else value, rounds)


def _as_dictionary(message: Any, *, has_defaults: bool = False) -> Any:
    """Return the values of a message's JSON form. `has_defaults`: include fields with default values."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=has_defaults)


def _value(message: Any, field: Any, *, has_defaults: bool) -> Any:
    if not field.is_repeated and field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if field.is_repeated or (field.message_type is not None and field.message_type.full_name != _TIMESTAMP):
        fields = _as_dictionary(_only(message, field), has_defaults=has_defaults)
        return fields.get(field.name)
    if field.message_type is not None:
        has_nanoseconds = value.nanos % 1000  # ToDatetime would cut them off
        return value.ToJsonString() if has_nanoseconds else value.ToDatetime(tzinfo=UTC)
    if field.enum_type is not None:
        enum_value = field.enum_type.values_by_number.get(value)
        return enum_value.name if enum_value else str(value)
    return value


def _only(message: Any, field: Any) -> Any:
    """Return a copy of a message with only one field, since the library converts only whole messages to JSON."""
    copy = type(message)()
    getattr(copy, field.name).MergeFrom(getattr(message, field.name))
    return copy
