"""An application with type annotations, as its author writes it. Type checkers read it, nothing runs it.

`make lint` checks it with mypy, strictly. With pyright: `npx pyright lab/servicebroker_lab/typed_application.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import psycopg

import servicebroker as sb
import servicebroker.testing

QUEUE, SERVICE, CONTRACT, ORDER = "StockQueue", "//shop/Stock", "//shop/Ordering", "//shop/Order"


@sb.codec(ORDER)
@dataclass
class Order:
    """An order of the shop."""

    item: str
    count: int = 1


def send_order(tx: sb.Transaction, item: str) -> int:
    """Use what a transaction gives."""
    connection: psycopg.Connection[Any] = tx.connection
    assert_type(tx.connection.execute("select 1").fetchone(), tuple[Any, ...] | None)
    connection.execute("select 1")
    order = Order(item)
    assert_type(order, Order)
    handle = tx.begin_dialog("//shop/Web", SERVICE, contract=CONTRACT, idempotency_key=item, priority=7)
    assert_type(handle, UUID)
    return tx.send(handle, ORDER, order, delay=timedelta(minutes=3))


def use_database(db: sb.Database) -> None:
    """Use what a database gives, be it real or the double's."""
    answer = db.request("//shop/Web", SERVICE, ORDER, Order("teapot"), contract=CONTRACT, timeout=5)
    assert_type(answer.message_body, bytes | None)
    with db.transaction() as tx:
        send_order(tx, "cup")
        for message in tx.receive(QUEUE, wait=5):
            assert_type(message.message_type_name, str)
    for letter in db.set_aside_messages(message_type=ORDER, limit=3):
        assert_type(letter, sb.SetAsideMessage)
        db.replay_message(letter.set_aside_id)
    for delayed_message in db.delayed_messages():
        assert_type(delayed_message, sb.DelayedMessage)

    def process_orders(tx: sb.Transaction, orders: list[Order]) -> None:
        send_order(tx, orders[0].item)

    db.process(QUEUE, process_orders)
    with db.working(define_worker(), concurrency=3):
        pass


def define_worker() -> sb.Worker:
    """Declare handlers of each form."""
    worker = sb.Worker(QUEUE, poison=decide, rate="100/s", global_concurrency=10)

    @worker.on(ORDER)
    def with_message(tx: sb.Transaction, message: sb.Message[Order]) -> None:
        assert_type(message.body, Order)
        tx.send(message.conversation_handle, "//shop/Answer", b"on its way")

    @worker.on("//shop/Return")
    def with_body(tx: sb.Transaction, order: Order) -> None:
        assert_type(order.count, int)

    @worker.on()
    def with_any_message(tx: sb.Transaction, message: sb.Message) -> None:
        assert_type(message.body, Any)

    @worker.every("0 9 * * mon-fri", time_zone="Europe/Vienna", missed="all")
    def nightly(tx: sb.Transaction, at: datetime) -> None: ...

    @worker.middleware
    def measure(tx: sb.Transaction, message: sb.Message) -> Iterator[None]:
        yield

    @worker.on("//shop/Later")
    async def with_await(tx: sb.AsyncTransaction, message: sb.Message[Order]) -> None:
        await tx.send(message.conversation_handle, "//shop/Answer", message.body)

    return worker


def decide(failure: sb.Failure) -> sb.Verdict:
    """Return the verdict of a retry policy."""
    return sb.Retry(2.0) if failure.count < 3 else sb.SetAside()


async def use_async_database(db: sb.AsyncDatabase) -> None:
    """Use what a database of asyncio gives."""
    answer = await db.request("//shop/Web", SERVICE, ORDER, Order("teapot"), contract=CONTRACT, timeout=5)
    assert_type(answer.message_body, bytes | None)
    async with db.transaction() as tx:
        connection: psycopg.AsyncConnection[Any] = tx.connection
        await connection.execute("select 1")
        for message in await tx.receive(QUEUE, wait=5):
            assert_type(message.message_type_name, str)
    async with db.working(define_worker()):
        pass


async def open_instances() -> None:
    """Pass the real databases and those of the double to the same functions."""
    with sb.open("servicebroker-data") as instance:
        use_database(instance.database("Shop", create=True))
    async with sb.open_async("servicebroker-data") as async_instance:
        await use_async_database(await async_instance.database("Shop"))
    with servicebroker.testing.open() as double:
        use_database(double.database("Shop", create=True))
        double.pass_time(hours=1)
        double.clock.jump(minutes=3)
    async with servicebroker.testing.open_async() as async_double:
        await use_async_database(await async_double.database("Shop", create=True))
        await async_double.pass_time(hours=1)


def use_fixtures(
    broker: servicebroker.testing.Instance,
    database: servicebroker.testing.Database,
    clock: servicebroker.testing.Clock,
) -> None:
    """Use the fixtures of pytest."""
    use_database(database)
    database.run_worker_once(define_worker())
    assert_type(database.conversation_endpoints()[0]["state"], Any)
    with database.transaction() as tx:
        send_order(tx, "cup")
    clock.jump(hours=1)
    broker.upkeep()
