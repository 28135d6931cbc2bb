"""Bodies as objects: the codec of each message type, which turns objects into bytes and back.

Codecs are registered per process: nothing of them is stored, and the sent bytes are plain bodies.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast, overload

from servicebroker.model.arguments import Body, Omitted
from servicebroker.model.errors import BodyError, BrokerError
from servicebroker.model.wording import shown, told

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


_codecs: dict[str, Codec] = {}
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
        kind: one of these formats, a type that JSON is read as, or an object with `encode` and `decode`; without it
            `codec` is a decorator of a class.

    Raises:
        BrokerError: 402 `kind` is none of these.
    """
    if not isinstance(message_type, str):
        raise BrokerError(402, "the message type", type(message_type).__name__, "str, the name of a message type")
    if kind is None:

        def register(given: C) -> C:
            _codecs[message_type] = _codec_of(given)
            return given

        return register
    _codecs[message_type] = _codec_of(kind)
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
    """A codec of a model of pydantic, which need not be installed."""
    # a field may have one alias for writing and another or none for reading: both are read, where pydantic can (2.11)
    known = inspect.signature(model.model_validate_json).parameters
    names = {"by_alias": True, "by_name": True} if "by_name" in known else {}
    for name, field in model.model_fields.items():
        written_as = field.serialization_alias or name
        read_as = [*getattr(field.validation_alias, "choices", [field.validation_alias or name])]
        if names or model.model_config.get("populate_by_name"):
            read_as.append(name)
        if written_as not in read_as:
            found = f"{model.__name__}, which writes {name} as {written_as} and does not read it"
            raise BrokerError(
                402, "the codec", found, f"a model that reads what it writes: Field(alias='{written_as}')"
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
        known = '"json", "text", "xml", a type that JSON is read as, or an object with encode and decode'
        raise BrokerError(402, "the codec", shown(kind), known) from None


def _check_finite(value: Any) -> None:
    """Raise ValueError for a number that both libraries would write as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for one in value:
        _check_finite(one)


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


def encoded(message_type: str, body: Any) -> Body | Omitted:
    """Return the bytes to send: bytes as they are, every other value as the codec of its message type writes it.

    The written body is read again at once, so that the sender gets the error of a wrong body, not the receiver.

    Raises:
        BodyError: the message type does not carry such a value.
    """
    if type(body) is bytes or isinstance(body, bytearray | memoryview | Omitted):
        return body
    found = _codecs.get(message_type) if isinstance(message_type, str) else None
    if found is None or body is None:
        return cast(Body, body)  # a str, or a value that the verb refuses
    try:
        written = found.encode(body)
        found.decode(written)
    except Exception as problem:
        raise BodyError(f"The body is not what messages of type '{message_type}' carry: {_said(problem)}") from problem
    return written


def encoded_all(message_type: str, bodies: Any) -> Any:
    """Return the bodies of a batch, each as `encoded`; the verb refuses a value that is no list."""
    is_coded = isinstance(message_type, str) and message_type in _codecs
    if not is_coded or not isinstance(bodies, Sequence) or isinstance(bodies, str | bytes | bytearray):
        return bodies
    return [encoded(message_type, body) for body in bodies]


def decoded(message_type: str, body: bytes | None) -> Any:
    """Return the object of a body; bytes if no codec is registered for its message type.

    Raises:
        BodyError: the codec cannot read it.
    """
    found = _codecs.get(message_type)
    if found is None or body is None:
        return body
    try:
        return found.decode(body)
    except Exception as problem:
        raise BodyError(f"The body of a message of type '{message_type}' cannot be read: {_said(problem)}") from problem


def _said(problem: Exception) -> str:
    """Return a codec's exception as one sentence, with its type: the text of a KeyError is a mere name."""
    text = told(problem).removesuffix(":")
    return text if text.endswith(".") else f"{text}."
