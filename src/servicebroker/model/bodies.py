"""Bodies as objects: the codec of each message type, which turns objects into bytes and back.

Codecs are registered per process. They are not stored, and the sent bytes are plain bodies.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import formatannotation
from types import NoneType, UnionType
from typing import Any, NamedTuple, Protocol, TypeVar, Union, cast, get_args, get_origin, overload

from servicebroker.model.arguments import Body, Omitted
from servicebroker.model.errors import BodyError, BrokerError
from servicebroker.model.wording import describe_exception, short_repr

C = TypeVar("C", bound=type)


class Codec(Protocol):
    """A codec turns objects into bodies and back. An exception that it raises means that the value is wrong."""

    def encode(self, value: Any) -> bytes:
        """Return the body of an object."""
        ...

    def decode(self, body: bytes) -> Any:
        """Return the object of a body."""
        ...


class _Functions(NamedTuple):
    """A codec of two functions."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


class _Registered(NamedTuple):
    """The codec of a message type, and its source: a format, a type, or an object of the application."""

    codec: Codec
    kind: object


_codecs: dict[str, _Registered] = {}
_FORMATS = {"json", "text", "xml"}
_NULL = b"null"  # as JSON writes None, and as the libraries write NaN


@overload
def codec(message_type: str) -> Callable[[C], C]: ...


@overload
def codec(message_type: str, kind: object) -> None: ...


def codec(message_type: str, kind: object = None) -> Any:
    """Register the objects that a message type carries, in this process: `send` takes them, `message.body` is one.

        sb.codec("//shop/Order", "json")          # lists, dicts, texts, numbers
        sb.codec("//shop/Note", "text")           # str, as UTF-8
        sb.codec("//shop/Invoice", "xml")         # an element of lxml

        @sb.codec("//shop/Order")                 # a dataclass, a msgspec.Struct, a model of pydantic: as JSON
        @dataclass
        class Order: ...

    A model of pydantic is written by the aliases of its fields, without computed fields. JSON has no NaN and no
    Infinity: a value that has them is refused where it is sent.

    Args:
        message_type: its name, compared byte by byte.
        kind: one of these formats, a type into which JSON can be decoded, or an object with `encode` and `decode`;
            without it `codec` is a decorator of a class.

    Raises:
        BrokerError: 402 `kind` is none of these.
    """
    if not isinstance(message_type, str):
        raise BrokerError(402, "the message type", type(message_type).__name__, "str, the name of a message type")
    if kind is None:

        def register(given: C) -> C:
            _codecs[message_type] = _Registered(_codec_of(given), given)
            return given

        return register
    _codecs[message_type] = _Registered(_codec_of(kind), kind)
    return None


def _codec_of(kind: Any) -> Codec:
    match kind:
        case "json":
            return _json(Any)
        case "text":
            return _Functions(_text, bytes.decode)
        case "xml":
            return _Functions(_xml, _read_xml)
    if hasattr(kind, "model_validate_json"):
        return _pydantic(kind)
    if not isinstance(kind, type | str) and callable(getattr(kind, "encode", None)):
        return cast(Codec, kind)
    return _json(kind)


def _pydantic(model: Any) -> Codec:
    """Return the codec of a pydantic model. Pydantic need not be installed."""
    # a field may have one alias for writing and another or none for reading: both are read, where pydantic can (2.11)
    known = inspect.signature(model.model_validate_json).parameters
    names = {"by_alias": True, "by_name": True} if "by_name" in known else {}
    for name, field in model.model_fields.items():
        written_as = field.serialization_alias or name
        read_as = [*getattr(field.validation_alias, "choices", [field.validation_alias or name])]
        if names or model.model_config.get("populate_by_name"):
            read_as.append(name)
        if written_as not in read_as:
            description = f"{model.__name__}, which writes {name} as {written_as} and does not read it"
            raise BrokerError(
                402, "the codec", description, f"a model that reads what it writes: Field(alias='{written_as}')"
            )

    def encode(value: Any) -> bytes:
        checked = model.model_validate(value, **names)
        written: bytes = checked.model_dump_json(by_alias=True, round_trip=True).encode()
        if _NULL in written:
            _check_finite(checked.model_dump())
        return written

    return _Functions(encode, lambda body: model.model_validate_json(body, **names))


def _json(kind: Any) -> Codec:
    import msgspec  # programs that send bytes do not load it

    encoder = msgspec.json.Encoder()

    def encode(value: Any) -> bytes:
        written = encoder.encode(value)
        if _NULL in written:
            _check_finite(msgspec.to_builtins(value))
        return written

    try:
        return _Functions(encode, msgspec.json.Decoder(kind).decode)
    except TypeError:
        known = '"json", "text", "xml", a type into which JSON can be decoded, or an object with encode and decode'
        raise BrokerError(402, "the codec", short_repr(kind), known) from None


def _check_finite(value: Any) -> None:
    """Raise ValueError for a number that both libraries would write as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for item in value:
        _check_finite(item)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a str is expected, not {type(value).__name__}")
    return value.encode()


def _xml(value: Any) -> bytes:
    from lxml import etree

    return value.encode() if isinstance(value, str) else etree.tostring(value, encoding="utf-8")


def _read_xml(body: bytes) -> Any:
    from servicebroker.model.xml import parse  # without entities, DTD or network

    return parse(body)


def encode_body(message_type: str, body: Any) -> Body | Omitted:
    """Return the bytes to send: bytes unchanged, every other value as written by the codec of its message type.

    The written body is read again immediately, so that the sender gets the error of a wrong body, not the receiver.

    Raises:
        BodyError: the message type does not carry such a value.
    """
    if type(body) is bytes or isinstance(body, bytearray | memoryview | Omitted):
        return body
    registered = _codecs.get(message_type) if isinstance(message_type, str) else None
    if registered is None or body is None:
        return cast(Body, body)  # a str, or a value that the verb refuses
    try:
        written = registered.codec.encode(body)
        registered.codec.decode(written)
    except Exception as problem:
        raise BodyError(
            f"The body is not what messages of type '{message_type}' carry: {_describe_problem(problem)}"
        ) from problem
    return written


def encoded_all(message_type: str, bodies: Any) -> Any:
    """Return the bodies of a batch, each as `encode_body`; the verb refuses a value that is not a list."""
    is_coded = isinstance(message_type, str) and message_type in _codecs
    if not is_coded or not isinstance(bodies, Sequence) or isinstance(bodies, str | bytes | bytearray):
        return bodies
    return [encode_body(message_type, body) for body in bodies]


def decode_body(message_type: str, body: bytes | None) -> Any:
    """Return the object of a body; bytes if no codec is registered for its message type.

    Raises:
        BodyError: the codec cannot read it.
    """
    registered = _codecs.get(message_type)
    if registered is None or body is None:
        return body
    try:
        return registered.codec.decode(body)
    except Exception as problem:
        raise BodyError(
            f"The body of a message of type '{message_type}' cannot be read: {_describe_problem(problem)}"
        ) from problem


def decoder(where: str, message_type: str, kind: Any) -> Callable[[bytes | None], Any]:
    """Return the function that reads bodies of a message type as the type `kind`, an annotation of a handler.

    bytes are the body itself, a str is UTF-8, an element of lxml is XML, and every other type is JSON, unless the codec
    of the message type says otherwise. An empty body is b"", "" or None; a type without an empty value refuses it.
    `where` names the annotation in an error.

    Raises:
        BrokerError: 402 no codec reads such a type, or the codec of the message type reads another one.
    """
    if kind is bytes:
        return lambda body: body or b""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    may_be_empty = NoneType in parts
    wanted = tuple(part for part in parts if part is not NoneType) or parts
    read = _reader(where, message_type, Union[wanted])  # noqa: UP007 # of parts that are known only now

    def decode(body: bytes | None) -> Any:
        if body is None:
            if may_be_empty or kind is str:
                return None if may_be_empty else ""
            raise BodyError(f"A message of type '{message_type}' has no body: {formatannotation(kind)} was expected.")
        try:
            return read(body)
        except Exception as problem:
            text = f"The body of a message of type '{message_type}' cannot be read: {_describe_problem(problem)}"
            raise BodyError(text) from problem

    return decode


def _reader(where: str, message_type: str, kind: Any) -> Callable[[bytes], Any]:
    """Return the function that reads a body that is not empty as `kind`.

    Raises:
        BrokerError: 402 the registered codec does not read that type, or JSON cannot.
    """
    registered = _codecs.get(message_type)
    own = _format_of(kind)
    if registered is None:
        if own == "json":
            _check_json(where, kind)
        return _codec_of(kind if own == "json" else own).decode
    known = registered.kind
    if isinstance(known, str) and known in _FORMATS:
        if own != known:
            raise BrokerError(402, where, formatannotation(kind), f'one that the codec "{known}" reads')
        if own == "json":
            _check_json(where, kind)
            return _codec_of(kind).decode
    elif kind != known and registered.codec is not known:  # a codec of the application's own may read any type
        raise BrokerError(
            402, where, formatannotation(kind), f"{formatannotation(known)}, as the codec of the message type says"
        )
    return registered.codec.decode


def _format_of(kind: Any) -> str:
    """Return the format in which a body of this type is written."""
    if kind is str:
        return "text"
    return "xml" if getattr(kind, "__module__", "").split(".")[0] == "lxml" else "json"


def _check_json(where: str, kind: Any) -> None:
    """Refuse a type that JSON cannot be read as.

    Raises:
        BrokerError: 402 such a type.
    """
    import msgspec

    if hasattr(kind, "model_validate_json"):
        return
    try:
        msgspec.json.schema(kind)
    except TypeError:
        json_types = "a dataclass, msgspec.Struct, a model of pydantic, dict"
        expected = f"str, bytes, or a type into which JSON can be decoded ({json_types})"
        raise BrokerError(402, where, formatannotation(kind), expected) from None


def _describe_problem(problem: Exception) -> str:
    """Return a codec's exception as one sentence with its type, since the text of a KeyError is only a name."""
    text = describe_exception(problem).removesuffix(":")
    return text if text.endswith(".") else f"{text}."
