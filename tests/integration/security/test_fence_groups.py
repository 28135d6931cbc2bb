"""A worker of a restricted role with many conversation groups in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from servicebroker.store.embedded import EmbeddedServer
from support import as_role, eventually, let_in

CLERK = "groups_clerk"
ORDER = "//shop/Order"
QUEUE = "StockQueue"


@pytest.fixture(scope="module")
def shop(server: EmbeddedServer, make_instance_url: Callable[[], str]) -> Iterator[tuple[sb.Database, str]]:
    """Return the owner's database, and the URL of the role."""
    url = make_instance_url()
    with let_in(server.url, CLERK), sb.open(url, upkeep=None) as instance:
        shop = instance.database("Shop", create=True)
        shop.create_message_type(ORDER)
        shop.create_contract("//shop/Orders", {ORDER: "ANY"})
        for name, queue in (("//shop/Stock", QUEUE), ("//shop/Counter", "CounterQueue"), ("//shop/Safe", "SafeQueue")):
            shop.create_queue(queue)
            shop.create_service(name, queue, ["//shop/Orders"])
        with instance.connection() as connection:
            connection.execute(f"create role {CLERK} login")  # type: ignore[call-overload]
        instance.grant_rights(CLERK, database="Shop", receive=[QUEUE], send=["//shop/Stock"])
        yield shop, as_role(url, CLERK)
        with instance.connection() as connection:
            connection.execute(f"drop owned by {CLERK} cascade; drop role {CLERK}")  # type: ignore[call-overload]


def order(shop: sb.Database, body: bytes, to: str = "//shop/Stock") -> None:
    shop.send(shop.begin_dialog("//shop/Counter", to, contract="//shop/Orders"), ORDER, body)


def test_a_failure_costs_its_group(shop: tuple[sb.Database, str]) -> None:
    owner, url = shop
    for number in range(6):
        order(owner, b"%d" % number)
    done: dict[int, list[bytes | None]] = {}
    worker = sb.Worker(QUEUE, groups=50, poison=lambda failure: sb.Retry() if failure.count < 3 else sb.SetAside())

    @worker.on(ORDER)
    def take(tx: sb.Transaction, message: sb.Message) -> None:
        ((number,),) = tx.connection.execute("select txid_current()").fetchall()
        if message.message_body == b"2":
            raise ValueError
        done.setdefault(number, []).append(message.message_body)

    with sb.open(url, upkeep=None) as instance, instance.database("Shop").working(worker):
        eventually(owner.set_aside_messages)
    assert list(done.values()) == [[b"0", b"1", b"3", b"4", b"5"]]
    assert [message.failures for message in owner.set_aside_messages()] == [3]
    assert owner.receive(QUEUE) == []


def test_global_limits(shop: tuple[sb.Database, str]) -> None:
    owner, url = shop
    for number in range(4):
        order(owner, b"%d" % number)
    received: list[bytes | None] = []
    worker = sb.Worker(QUEUE, global_concurrency=1, global_rate="100/s")
    worker.on()(lambda tx, message: received.append(message.message_body))
    with sb.open(url, upkeep=None) as instance:
        clerk = instance.database("Shop")
        with clerk.working(worker, concurrency=2):
            eventually(lambda: len(received) == 4)
        safe = owner._find("SafeQueue").queue_id
        for refused in (clerk.engine.call("take_slot", safe, 1), clerk.engine.call("take_place", safe, 1.0)):
            with pytest.raises(sb.BrokerError, match=r"229|15151|RECEIVE"):
                clerk._do(refused)


def test_receive_and_its_refusal(shop: tuple[sb.Database, str]) -> None:
    owner, url = shop
    for number in range(3):
        order(owner, b"%d" % number)
    order(owner, b"secret", "//shop/Safe")
    with sb.open(url, upkeep=None) as instance:
        clerk = instance.database("Shop")
        assert [message.message_body for message in clerk.receive(QUEUE, groups=9)] == [b"0", b"1", b"2"]
        with pytest.raises(sb.BrokerError, match=r"229|15151|RECEIVE"):
            clerk.receive("SafeQueue", groups=9)


def test_the_second_half_asks_for_the_right_too(shop: tuple[sb.Database, str]) -> None:
    owner, url = shop
    order(owner, b"secret", "//shop/Safe")
    with owner.transaction() as transaction:
        (message, *_) = transaction.receive("SafeQueue")
        transaction.connection.rollback()
    with owner.instance.connection() as connection:
        ((number,),) = connection.execute(
            "select queue_id from servicebroker.queues where name = 'SafeQueue'"
        ).fetchall()
    place: tuple[Any, ...] = (number, message.conversation_group_id, [message.priority], [message.queuing_order])
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.Error, match=r"RECEIVE|229"):
            connection.execute("select servicebroker_fence.take(%s, %s, %s, %s)", place)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"select servicebroker.take_{number}(%s, %s, %s)".encode(), place[1:])
    with owner.transaction() as holder:
        assert holder.get_conversation_group("SafeQueue") == message.conversation_group_id
        with owner.instance.connection() as connection:  # another session does not have the lock of the group
            text = f"select servicebroker.take_{number}(%s, %s, %s)".encode()
            assert connection.execute(text, place[1:]).fetchall() == [(0,)]
    assert len(owner.receive("SafeQueue", groups=9)) >= 1
