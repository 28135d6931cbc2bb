"""Codecs: the Python types of message bodies, without a server."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from lxml import etree

import servicebroker as sb
import servicebroker.testing
from servicebroker.model import bodies
from support import refused

_numbers = itertools.count()


@dataclass
class Order:
    item: str
    count: int = 1


class Parcel(msgspec.Struct):
    weight: float


class Invoice(pydantic.BaseModel):
    total: int


class RenamedFields(pydantic.BaseModel):
    """Fields with other names in JSON for writing and for reading, and a computed one."""

    model_config = pydantic.ConfigDict(extra="forbid")
    order_id: int = pydantic.Field(alias="orderId")
    note: str = pydantic.Field("", validation_alias="remark")
    item: str = pydantic.Field(
        "",
        serialization_alias="article",
        validation_alias=pydantic.AliasChoices("article", "art", pydantic.AliasPath("goods", 0)),
    )

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.order_id


class Measurement(pydantic.BaseModel):
    weight: float | None = None
    tags: list[str | None] = []


class ReversedCodec:
    """A codec of the application."""

    def encode(self, value: Any) -> bytes:
        return bytes(reversed(value.encode()))

    def decode(self, body: bytes) -> Any:
        return bytes(reversed(body)).decode()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    bodies._codecs.clear()


@pytest.fixture
def conversation() -> Iterator[tuple[Any, Any, str]]:
    """Return a database in memory, a handle, and a message type."""
    message_type = f"//test/Body{next(_numbers)}"
    with servicebroker.testing.open() as instance:
        db = instance.database("Shop", create=True)
        db.create_message_type(message_type)
        db.create_contract("//test/C", {message_type: "ANY"})
        db.create_queue("Q")
        db.create_service("//test/S", "Q", ["//test/C"])
        yield db, db.begin_dialog("//test/S", "//test/S", contract="//test/C"), message_type


@pytest.mark.parametrize(
    ("kind", "value", "wire"),
    [
        ("json", {"item": "teapot", "tags": [1, None]}, b'{"item":"teapot","tags":[1,null]}'),
        ("json", "teapot", b'"teapot"'),
        ("text", "Käse", "Käse".encode()),
        (Order, Order("teapot", 2), b'{"item":"teapot","count":2}'),
        (list[Order], [Order("a"), Order("b")], b'[{"item":"a","count":1},{"item":"b","count":1}]'),
        (int | None, 7, b"7"),
        (Parcel, Parcel(1.5), b'{"weight":1.5}'),
        (Invoice, Invoice(total=3), b'{"total":3}'),
        (
            RenamedFields,
            RenamedFields.model_validate({"orderId": 1, "remark": "a"}),
            b'{"orderId":1,"note":"a","article":""}',
        ),
        (Measurement, Measurement(tags=["a", None]), b'{"weight":null,"tags":["a",null]}'),
        (ReversedCodec(), "abc", b"cba"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_object_goes_as_bytes_and_comes_as_an_object(
    conversation: tuple[Any, Any, str], kind: Any, value: Any, wire: bytes
) -> None:
    db, handle, message_type = conversation
    sb.codec(message_type, kind)
    db.send(handle, message_type, value)
    db.send_batch(handle, message_type, [value, value])
    messages = db.receive("Q")
    assert [message.message_body for message in messages] == [wire] * 3
    assert [message.body for message in messages] == [value] * 3


def test_xml_bodies_are_encoded_and_decoded(conversation: tuple[Any, Any, str]) -> None:
    db, handle, message_type = conversation
    sb.codec(message_type, "xml")
    db.send(handle, message_type, etree.fromstring("<a>ä</a>"))
    db.send(handle, message_type, "<b/>")
    assert [message.body.tag for message in db.receive("Q")] == ["a", "b"]
    with pytest.raises(sb.BodyError, match="cannot be read"):
        bodies.decode_body(message_type, b"<a>")
    assert bodies.decode_body(message_type, b'<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>').text is None  # no entities


def test_without_a_codec_bytes_are_bytes(conversation: tuple[Any, Any, str]) -> None:
    db, handle, message_type = conversation
    db.send(handle, message_type, b"1")
    db.send(handle, message_type, "2")
    db.send(handle, message_type)
    assert [message.body for message in db.receive("Q")] == [b"1", b"2", None]
    with refused(402, "dict"):
        db.send(handle, message_type, {"no": "codec"})


def test_bytes_go_as_they_are_beside_a_codec(conversation: tuple[Any, Any, str]) -> None:
    db, handle, message_type = conversation
    sb.codec(message_type, Order)
    db.send(handle, message_type, b'{"item": "teapot"}')
    db.send(handle, message_type)
    assert [message.body for message in db.receive("Q")] == [Order("teapot"), None]


@pytest.mark.parametrize("value", [Order("teapot", "two"), {"count": 1}, object(), "teapot", 7])  # type: ignore[arg-type]
def test_a_wrong_object_is_refused_where_it_is_sent(conversation: tuple[Any, Any, str], value: Any) -> None:
    db, handle, message_type = conversation
    sb.codec(message_type, Order)
    with pytest.raises(sb.BodyError, match=rf"not what messages of type '{message_type}' carry: .+\.$") as error:
        db.send(handle, message_type, value)
    assert isinstance(error.value, ValueError)
    with pytest.raises(sb.BodyError):
        db.send_batch(handle, message_type, [Order("good"), value])
    assert db.receive("Q") == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json", math.nan),
        ("json", {"a": [1, None, {"b": math.inf}]}),
        (Parcel | None, Parcel(-math.inf)),
        (Measurement, Measurement(weight=math.nan)),
    ],
    ids=repr,
)
def test_json_has_no_nan(conversation: tuple[Any, Any, str], kind: Any, value: Any) -> None:
    """The libraries would write null, which the receiver reads as None."""
    db, handle, message_type = conversation
    sb.codec(message_type, kind)
    with pytest.raises(sb.BodyError, match=r"carry: ValueError: JSON has no (nan|-?inf)\.$"):
        db.send(handle, message_type, value)
    assert db.receive("Q") == []


class Lookup:
    """A codec whose exceptions are clear only with their type."""

    def encode(self, value: Any) -> bytes:
        return bytes({"small": b"1"}[value])

    def decode(self, body: bytes) -> Any:
        raise LookupError


def test_an_exception_of_a_codec_has_its_type(conversation: tuple[Any, Any, str]) -> None:
    db, handle, message_type = conversation
    sb.codec(message_type, Lookup())
    with pytest.raises(sb.BodyError, match=r"carry: KeyError: 'large'\.$"):
        db.send(handle, message_type, "large")
    with pytest.raises(sb.BodyError, match=r"cannot be read: LookupError\.$"):
        bodies.decode_body(message_type, b"1")


def test_wrong_bytes_are_one_clear_error_and_still_there(conversation: tuple[Any, Any, str]) -> None:
    db, handle, message_type = conversation
    db.send(handle, message_type, b'{"item": 7}')
    sb.codec(message_type, Order)
    (message,) = db.receive("Q")
    with pytest.raises(sb.BodyError) as error:
        message.body  # noqa: B018 # it is a property
    assert str(error.value) == (
        f"The body of a message of type '{message_type}' cannot be read: "
        "ValidationError: Expected `str`, got `int` - at `$.item`."
    )
    assert message.message_body == b'{"item": 7}'
    assert sb.Worker("Q").poison(sb.Failure(message, error.value, 1, *(None, "", None))) == sb.SetAside()  # type: ignore[arg-type]


def test_codec_is_a_class_decorator() -> None:
    @sb.codec("//test/Decorated")
    @dataclass
    class Note:
        text: str

    assert Note("a").text == "a"  # mypy must accept it: a class keeps its type
    assert bodies.decode_body("//test/Decorated", b'{"text":"b"}') == Note("b")


@pytest.mark.parametrize("given", [("//t", "jsn"), ("//t", 7), ("//t", object()), (7, "json")])
def test_invalid_codecs_are_refused(given: Any) -> None:
    with refused(402):
        sb.codec(*given)


def test_a_model_that_cannot_read_its_own_output_is_refused() -> None:
    class Lossy(pydantic.BaseModel):
        item: str = pydantic.Field("", serialization_alias="article")

    with refused(402, "Lossy, which writes item as article and does not read it"):
        sb.codec("//test/Lossy", Lossy)


def test_the_package_has_a_version_and_lists_its_names() -> None:
    assert sb.__version__ == __import__("importlib.metadata").metadata.version("servicebroker")
    assert set(sb.__all__) <= set(dir(sb))
    fresh = "import servicebroker as sb; print(sorted(set(sb.__all__) - set(dir(sb))), hasattr(sb, 'nothing'))"
    result = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True, check=True)
    assert result.stdout == "[] False\n"
