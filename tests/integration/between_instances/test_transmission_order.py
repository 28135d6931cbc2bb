"""The order in which messages are sent: by priority with HONOR_BROKER_PRIORITY, otherwise round-robin."""

from __future__ import annotations

from typing import Any

import pytest

from remote_support import Pair, Wire
from servicebroker.protocol.envelope import parse
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, STOCK, STOCK_QUEUE

BULK = "//test/Bulk"
BODY = b"x" * 20_000  # two do not fit into one frame


class Narrow(Wire):
    """Takes so many frames, and then no more until it is told."""

    def send(self, body: bytes) -> None:
        super().send(body)
        self.room -= 1


def order_of_departure(pair: Pair, *, honors: bool) -> str:
    """U for an urgent frame, b for one of the bulk, as they leave when one of them may leave at a time."""
    west = pair.west.database
    west.alter(honor_broker_priority=honors)
    west.create_service(BULK, ORDERS_QUEUE)
    west.create_broker_priority("urgent", local_service_name=ORDERS, priority_level=10)
    west.create_broker_priority("bulk", local_service_name=BULK, priority_level=1)
    pair.east.database.create_route("ToBulk", service_name=BULK, address="TCP://west:4022")
    handles: dict[str, Any] = {
        service: west.begin_dialog(service, STOCK, contract=CONTRACT, encryption=False) for service in (BULK, ORDERS)
    }
    for _ in range(20):
        for handle in handles.values():
            west.send(handle, ORDER, BODY)
    pair.west.out = Narrow(room=0)
    left = ""
    for _ in range(200):
        pair.west.out.room = 1
        pair.west.round([])
        while pair.west.out.frames:
            frame = pair.west.out.frames.popleft()
            left += "U" if parse(frame).header.from_service == ORDERS else "b"
            pair.east.round([frame])
        answers = list(pair.east.out.frames)
        pair.east.out.frames.clear()
        pair.west.round(answers)
        if len(left) >= 40:
            break
    assert sum(len(pair.east.database.receive(STOCK_QUEUE)) for _ in handles) == 40
    return left


@pytest.mark.feature(194)
def test_without_honor_broker_priority_they_take_turns(pair: Pair) -> None:
    left = order_of_departure(pair, honors=False)
    assert abs(left[:20].count("U") - left[:20].count("b")) <= 2


@pytest.mark.feature(194, 197)
def test_the_urgent_first_and_nobody_starves(pair: Pair) -> None:
    """With priority 10 before priority 1, whose turn comes all the same before the flood is over."""
    left = order_of_departure(pair, honors=True)
    assert left[:16].count("b") <= 1
    assert left.index("b") < left.rindex("U")  # while urgent ones still wait
    assert left[:20].count("U") >= 18
