"""Bodies as objects: the codec of each message type, which turns objects into bytes and back.

Codecs are registered per process: nothing of them is stored, and the sent bytes are plain bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from servicebroker.model.arguments import Body, Omitted
from servicebroker.model.errors import BodyError, BrokerError
from servicebroker.model.wording import shown

T = TypeVar("T")


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


def codec(message_type: str, kind: Any = None) -> Any:
    """Register the objects that a message type carries, in this process: `send` takes them, `message.body` is one.

        sb.codec("//shop/Order", "json")          # lists, dicts, texts, numbers
        sb.codec("//shop/Note", "text")           # str, as UTF-8
        sb.codec("//shop/Invoice", "xml")         # an element of lxml

        @sb.codec("//shop/Order")                 # a dataclass, a msgspec.Struct, a model of pydantic: as JSON
        @dataclass
        class Order: ...

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

        def register(given: type[T]) -> type[T]:
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
    if hasattr(kind, "model_validate_json"):  # a model of pydantic, which need not be installed
        return _Functions(lambda value: kind.model_validate(value).model_dump_json().encode(), kind.model_validate_json)
    if not isinstance(kind, type | str) and callable(getattr(kind, "encode", None)):
        return cast(Codec, kind)
    return _json(kind)


def _json(kind: Any) -> Codec:
    import msgspec  # programs that send bytes do not load it

    try:
        return _Functions(msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode)
    except TypeError:
        known = '"json", "text", "xml", a type that JSON is read as, or an object with encode and decode'
        raise BrokerError(402, "the codec", shown(kind), known) from None


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
    """Return the message of a codec's exception as one sentence."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if text.endswith(".") else f"{text}."
