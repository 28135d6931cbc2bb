"""Messages through a forwarder that is killed repeatedly: three instances with processes of `servicebroker serve`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
from daemons import Site, Two
from support import ORDER, ORDERS, STOCK, STOCK_QUEUE, begin, bodies, eventually, in_thread, query, waiting_messages

KILL_COUNT = 3
CONVERSATION_COUNT = 4


@pytest.fixture
def three(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Two, Site]]:
    """West, the forwarder, and east."""
    west, middle, east = (Site(name, make_instance_url(), tmp_path) for name in ("west", "middle", "east"))
    try:
        two = Two(west, east)
        west.database.alter_route("ToStock", address=middle.address)
        east.database.alter_route("ToOrders", address=middle.address)
        msdb = middle.instance.database("msdb")
        msdb.create_route("In", service_name=STOCK, address=east.address)
        msdb.create_route("Out", service_name=ORDERS, address=west.address)
        for site in (west, east):
            site.endpoint(encryption="DISABLED")
            site.serve()
        middle.endpoint(encryption="DISABLED", message_forwarding="ENABLED")
        yield two, middle
    finally:
        for site in (west, middle, east):
            site.close()


@pytest.mark.feature(152, 156)
def test_a_killed_forwarder_neither_loses_nor_duplicates_messages(three: tuple[Two, Site]) -> None:
    two, middle = three
    middle.serve().wait_for_log("is now listening")
    handles = [two.send("0") for _ in range(CONVERSATION_COUNT)]
    sent, enough = [1], threading.Event()

    def send_on() -> None:
        while not enough.wait(0.02):
            for handle in handles:
                two.send(str(sent[0]), handle=handle)
            sent[0] += 1

    received: dict[Any, list[bytes | None]] = {}

    def receive(seconds: float) -> int:
        for message in two.east.database.receive(STOCK_QUEUE, top=1000, wait=seconds):
            received.setdefault(message.conversation_handle, []).append(message.message_body)
        return sum(map(len, received.values()))

    sender = in_thread(send_on)
    for _ in range(KILL_COUNT):
        before = receive(1)
        eventually(lambda before=before: receive(1) > before)  # type: ignore[misc]
        middle.daemon.end(signal.SIGKILL)
        middle.serve()
    enough.set()
    sender.result(60)
    eventually(lambda: receive(1) == sent[0] * CONVERSATION_COUNT, 120)
    expected = [str(number).encode() for number in range(sent[0])]
    assert list(received.values()) == [expected] * CONVERSATION_COUNT
    eventually(lambda: waiting_messages(two.west.database) == 0)
    for table in ("conversation_endpoints", "transmission_queue"):
        assert query(middle.database, f"select count(*) from servicebroker.{table}") == [(0,)]


@pytest.mark.feature(152, 157)
def test_forwarding_is_disabled_and_enabled_at_run_time(three: tuple[Two, Site]) -> None:
    two, middle = three
    middle.instance.alter_endpoint("broker", message_forwarding="DISABLED")
    middle.serve().wait_for_log("is now listening")
    two.send("a")
    middle.daemon.wait_for_log("Forwarded Message Dropped: Msg 9792")
    assert two.east.database.receive(STOCK_QUEUE) == []
    two.east.daemon.end()
    middle.instance.alter_endpoint("broker", message_forwarding="ENABLED")
    text = "select to_service_name, hops_remaining, time_to_live from sys.dm_broker_forwarded_messages"
    eventually(lambda: query(middle.database, text) == [(STOCK, 16, 60)])
    two.east.serve()
    messages: list[sb.Message] = []
    eventually(lambda: messages.extend(two.east.database.receive(STOCK_QUEUE, wait=1)) or messages)  # type: ignore[func-returns-value]
    assert bodies(messages) == [b"a"]


@pytest.mark.feature(121)
def test_a_route_to_the_instances_own_address_uses_the_routes_of_msdb(three: tuple[Two, Site]) -> None:
    """No daemon is needed, because the stored endpoint has the address of the instance."""
    _, middle = three
    database = middle.database
    middle.instance.database("msdb").drop_route("In")
    database.create_route("Around", service_name=STOCK, address=middle.address)
    explained = database.explain_route(STOCK).decisions
    assert [decision.through_outside for decision in explained] == [True]
    database.send(begin(database), ORDER, b"1")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
