"""Typed handlers, middleware and rate limits of workers, with the double: arguments and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Sequence  # noqa: F401 # in annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest
from lxml import etree

import servicebroker as sb
import servicebroker.testing as double
from servicebroker.api.shared.rate_limit import RateLimit
from servicebroker.model import bodies
from servicebroker.model.arguments import messages_per_second
from servicebroker.model.handlers.typed import typed_procedure
from support import ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, define_standard_set, refused

if TYPE_CHECKING:
    from decimal import Decimal  # noqa: F401 # a name that only type checkers know


@dataclass
class Order:
    item: str
    count: int = 1


class Parcel(msgspec.Struct):
    item: str


class Invoice(pydantic.BaseModel):
    item: str


class Unreadable:
    pass


class Shout:
    """A codec of the application."""

    def encode(self, value: Any) -> bytes:
        return str(value).upper().encode()

    def decode(self, body: bytes) -> Any:
        return body.decode().lower()


@pytest.fixture(autouse=True)
def no_codecs() -> Iterator[None]:
    yield
    bodies._codecs.clear()


@pytest.fixture
def database() -> double.Database:
    made = double.open().database("Test", create=True)
    define_standard_set(made)  # type: ignore[arg-type]
    return made


def handler_of(annotation: str, got: list[Any]) -> Callable[..., Any]:
    """Return a handler whose second parameter has this annotation."""
    names = {**globals(), "got": got}
    exec(f"def handler(tx, given: {annotation}) -> None: got.append(given)", names)
    return names["handler"]


def arguments_of(database: double.Database, annotation: str, *texts: bytes, batch: int | None = None) -> list[Any]:
    """Return the arguments of a handler with this annotation for these bodies."""
    received: list[Any] = []
    worker = sb.Worker(STOCK_QUEUE, batch=batch)
    worker.on(ORDER)(handler_of(annotation, received))
    worker.on()(lambda tx, message: None)
    handle = database.begin_dialog(ORDERS, STOCK, contract="//test/Contract")
    for text in texts:
        database.send(handle, ORDER, text)
    with database.working(worker):
        return received


JSON = b'{"item":"cup"}'


@pytest.mark.parametrize(
    ("annotation", "body", "expected"),
    [
        ("Order", JSON, Order("cup")),
        ("'Order'", JSON, Order("cup")),
        ("Order | None", JSON, Order("cup")),
        ("Order | None", b"", None),
        ("Parcel", JSON, Parcel("cup")),
        ("Invoice", JSON, Invoice(item="cup")),
        ("dict", JSON, {"item": "cup"}),
        ("dict[str, str]", JSON, {"item": "cup"}),
        ("list[Order]", b'[{"item":"cup"}]', [Order("cup")]),
        ("int", b"7", 7),
        ("str", "Käse".encode(), "Käse"),
        ("str", b"", ""),
        ("bytes", JSON, JSON),
        ("bytes", b"", b""),
    ],
)
def test_a_handler_gets_the_body_as_its_annotation_says(
    database: double.Database, annotation: str, body: bytes, expected: Any
) -> None:
    assert arguments_of(database, annotation, body) == [expected]


@pytest.mark.parametrize("annotation", ["Any", "object", "sb.Message", "'sb.Message'", "'unknown.Message'", "tuple"])
def test_a_handler_gets_the_message(database: double.Database, annotation: str) -> None:
    (message,) = arguments_of(database, annotation, JSON)
    assert isinstance(message, sb.Message)
    assert message.body == JSON


def test_a_typed_message_has_a_typed_body(database: double.Database) -> None:
    (message,) = arguments_of(database, "sb.Message[Order]", JSON)
    assert message.body == Order("cup")
    assert message.message_body == JSON
    assert isinstance(message, sb.Message)
    assert repr(message).startswith("Message(status=")
    assert pickle.loads(pickle.dumps(message)) == message


def test_xml_is_read_as_an_element(database: double.Database) -> None:
    (element,) = arguments_of(database, "etree._Element", b"<cup/>")
    assert element.tag == "cup"
    assert etree.iselement(element)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("list[Order]", [Order("cup"), Order("cup")]),
        ("Sequence[str]", ['{"item":"cup"}'] * 2),
    ],
)
def test_a_batch_is_a_list(database: double.Database, annotation: str, expected: list[Any]) -> None:
    assert arguments_of(database, annotation, JSON, JSON, batch=10) == [expected]


def test_a_batch_handler_gets_a_list_of_messages(database: double.Database) -> None:
    for annotation in ("Any", "list", "list[sb.Message]", "'list[unknown.Message]'", "Sequence[sb.Message[Order]]"):
        (messages,) = arguments_of(database, annotation, JSON, batch=10)
        assert isinstance(messages[0], sb.Message)


@pytest.mark.parametrize(
    ("annotation", "body", "words"),
    [
        ("Order", b"{]", "cannot be read"),
        ("Order", b"", "has no body"),
        ("Invoice", b'{"item":7}', "cannot be read"),
        ("str", b"\xff", "cannot be read"),
        ("sb.Message[Order]", b"{]", ""),
    ],
)
def test_a_wrong_body_is_a_dead_letter_at_once(
    database: double.Database, annotation: str, body: bytes, words: str
) -> None:
    got = arguments_of(database, annotation, body)
    if got:  # a message decodes its body on first access
        with pytest.raises(sb.BodyError):
            _ = got[0].body
        return
    (letter,) = database.set_aside_messages()
    assert letter.failures == 1
    assert letter.error.startswith("BodyError")
    assert words in letter.error


@pytest.mark.parametrize(
    ("annotation", "codec", "is_right"),
    [
        ("Order", Order, True),
        ("Order", "json", True),
        ("dict", "json", True),
        ("str", "text", True),
        ("etree._Element", "xml", True),
        ("bytes", "json", True),
        ("str", Shout(), True),
        ("Parcel", Order, False),
        ("str", "json", False),
        ("dict", "text", False),
        ("Order", "xml", False),
        ("Unreadable", "json", False),
        ("Unreadable", None, False),
        ("list[Unreadable]", None, False),
        ("Nowhere", None, False),
        ("'Decimal'", None, False),
    ],
)
def test_an_annotation_is_checked_at_the_start(annotation: str, codec: Any, is_right: bool) -> None:
    worker = sb.Worker("Q")
    handler: Any = lambda tx, given: None  # noqa: E731
    handler.__annotations__ = {"given": annotation}
    handler.__name__ = handler.__qualname__ = "order"
    worker.on(ORDER)(handler)
    if codec is not None:
        sb.codec(ORDER, codec)
    if is_right:
        worker.check(is_async=False)
        return
    with refused(402, "'order'", f"'{ORDER}'"):
        worker.check(is_async=False)


def test_messages_of_the_broker_need_the_annotation_message() -> None:
    worker = sb.Worker("Q")
    worker.on(sb.END_DIALOG)(handler_of("sb.Message[Order]", []))
    worker.check(is_async=False)
    worker.on(ORDER, sb.ERROR)(handler_of("Order", []))
    with refused(402, "it must be Message:"):
        worker.check(is_async=False)


def test_a_batch_that_is_no_list() -> None:
    worker = sb.Worker("Q", batch=3)
    worker.on(ORDER)(handler_of("Order", []))
    with refused(402, "a list", "Order]"):
        worker.check(is_async=False)
    with refused(402, "a list"):
        typed_procedure(handler_of("Order", []))


def test_a_class_of_the_place_where_the_handler_stands(database: double.Database) -> None:
    @dataclass
    class Local:
        item: str

    got: list[str] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: sb.Transaction, local: Local) -> None:
        got.append(local.item)

    worker.on()(lambda tx, message: None)
    database.send(database.begin_dialog(ORDERS, STOCK, contract="//test/Contract"), ORDER, JSON)
    with database.working(worker):
        assert got == ["cup"]


def test_process_reads_bodies(database: double.Database) -> None:
    handle = database.begin_dialog(ORDERS, STOCK, contract="//test/Contract")
    received: list[Any] = []

    def orders(tx: double.Transaction, given: list[Order]) -> None:
        received.extend(given)

    def messages(tx: double.Transaction, given: list[sb.Message[Order]]) -> None:
        received.extend(None if message.is_end_dialog else message.body for message in given)

    for procedure in (orders, messages):
        database.send(handle, ORDER, JSON)
        assert database.process(STOCK_QUEUE, procedure) == 1
    database.end_conversation(handle)
    database.process(STOCK_QUEUE, messages)
    assert received == [Order("cup"), Order("cup"), None]


# ---------------------------------------------------------------- middleware


def add_recorders(worker: sb.Worker, said: list[str]) -> None:
    """Add two middleware to a worker that record their calls."""

    @worker.middleware
    def outer(tx: Any, message: Any) -> Iterator[None]:
        said.append("outer begins")
        try:
            yield
        except ValueError as problem:
            said.append(f"outer sees {problem}")
            raise
        said.append("outer ends")

    @worker.middleware
    def inner(tx: Any, message: Any) -> contextlib.AbstractContextManager[None]:
        said.append(f"inner of {len(message) if isinstance(message, list) else message.message_body!r}")
        return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("batch", "body", "expected"),
    [
        (None, b"cup", ["outer begins", "inner of b'cup'", "handler", "outer ends"]),
        (None, b"bad", ["outer begins", "inner of b'bad'", "outer sees bad"]),
        (5, b"cup", ["outer begins", "inner of 1", "handler", "outer ends"]),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_middleware_wraps_each_call(batch: int | None, body: bytes, expected: list[str], is_async: bool) -> None:
    calls: list[str] = []
    worker = sb.Worker(STOCK_QUEUE, batch=batch, poison=lambda failure: sb.SetAside())
    add_recorders(worker, calls)

    def work(given: Any) -> None:
        message = given[0] if batch else given
        if message.message_body == b"bad":
            raise ValueError("bad")
        calls.append("handler")

    if is_async:

        async def awaited(tx: Any, given: Any) -> None:
            work(given)

        worker.on()(awaited)
    else:
        worker.on()(lambda tx, given: work(given))
    asyncio.run(_one_message_async(worker, body)) if is_async else _one_message(worker, body)
    assert calls == expected


def _one_message(worker: sb.Worker, body: bytes) -> None:
    database = double.open().database("Test", create=True)
    define_standard_set(database)  # type: ignore[arg-type]
    with database.working(worker):
        database.send(database.begin_dialog(ORDERS, STOCK, contract="//test/Contract"), ORDER, body)
    assert len(database.set_aside_messages()) == (body == b"bad")


async def _one_message_async(worker: sb.Worker, body: bytes) -> None:
    database: Any = await double.open_async().database("Test", create=True)
    define_standard_set(database._inner)
    async with database.working(worker):
        handle = await database.begin_dialog(ORDERS, STOCK, contract="//test/Contract")
        await database.send(handle, ORDER, body)
    assert len(await database.set_aside_messages()) == (body == b"bad")


def test_async_middleware_surrounds_the_handler() -> None:
    calls: list[str] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.middleware
    async def around(tx: Any, message: sb.Message) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        calls.append("begins")
        yield
        calls.append("ends")

    @worker.on()
    async def order(tx: Any, message: sb.Message) -> None:
        calls.append("handler")

    asyncio.run(_one_message_async(worker, b"cup"))
    assert calls == ["begins", "handler", "ends"]


@pytest.mark.parametrize(
    "flaw",
    [
        lambda tx, message: None,  # a result that is not a context manager
        lambda tx, message: 1 / 0,
        lambda tx, message: contextlib.contextmanager(lambda: iter(()))(),  # a generator without a yield
    ],
)
def test_a_failure_of_middleware_is_one_of_the_message(database: double.Database, flaw: Any) -> None:
    worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.SetAside())
    worker.middleware(flaw)
    worker.on()(lambda tx, message: tx.send(message.conversation_handle, REPLY, b"done"))
    with database.working(worker):
        database.send(database.begin_dialog(ORDERS, STOCK, contract="//test/Contract"), ORDER, b"cup")
    assert len(database.set_aside_messages()) == 1
    assert not database.receive(ORDERS_QUEUE)


def test_invalid_middleware_is_refused() -> None:
    worker = sb.Worker("Q")
    worker.on()(lambda tx, message: None)

    async def never_entered(tx: Any, message: Any) -> None: ...

    async def around(tx: Any, message: Any) -> AsyncIterator[None]:
        yield

    for wrong in (7, lambda: None, never_entered):
        with refused(402, "middleware"):
            worker.middleware(wrong)  # type: ignore[type-var]
    worker.middleware(around)
    with refused(402, "async generator function"):
        worker.check(is_async=False)


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("rate", "expected"), [("100/s", 100), ("30/min", 0.5), ("1800/h", 0.5), ("0.5/s", 0.5), ("7/s", 7)]
)
def test_rates_are_messages_per_second(rate: str, expected: float) -> None:
    assert messages_per_second("rate", rate) == expected
    assert sb.Worker("Q", rate=rate).rate == rate


@pytest.mark.parametrize("rate", ["", "100", "0/s", "-1/s", "1/d", "1 / s", 100, "1e3/s", "inf/s", b"1/s"])
def test_invalid_rates_are_refused(rate: Any) -> None:
    with refused(402, "rate"):
        sb.Worker("Q", rate=rate)
    with refused(402, "global_rate"):
        sb.Worker("Q", global_rate=rate)


def test_invalid_concurrency_is_refused() -> None:
    for wrong in (0, -1, "2", True, 1.5):
        with refused(402, "concurrency"):
            sb.Worker("Q", concurrency=wrong)  # type: ignore[arg-type]


def test_messages_are_spread_evenly() -> None:
    now = [0.0]
    limit = RateLimit(2, lambda: now[0])
    times = []
    while len(times) < 5:
        pause = limit.take()
        if pause:
            now[0] += pause
            continue
        times.append(now[0])
        limit.settle(1)
    assert times == [0, 0.5, 1, 1.5, 2]


def test_a_batch_counts_and_an_empty_queue_does_not() -> None:
    now = [10.0]
    limit = RateLimit(10, lambda: now[0])
    for _ in range(20):  # a reader that finds nothing
        assert limit.take() == 0
        limit.settle(0)
    assert limit.take() == 0
    limit.settle(10)
    assert limit.take() == pytest.approx(1, abs=0.06)
    now[0] += 100  # an idle time saves at most the slack
    taken = 0
    while not limit.take():
        taken += 1
    assert taken == 1
