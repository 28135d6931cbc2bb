"""The order in which messages are sent: by priority with HONOR_BROKER_PRIORITY, otherwise round-robin."""

from __future__ import annotations

from typing import Any

import pytest

from remote_support import Pair, Wire
from servicebroker.protocol.envelope import parse
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, STOCK, STOCK_QUEUE

BULK = "//test/Bulk"
BODY = b"x" * 20_000  # two bodies do not fit into one frame


class Narrow(Wire):
    """A connection with room for `room` frames."""

    def send(self, body: bytes) -> None:
        super().send(body)
        self.room -= 1


def transmission_order(pair: Pair, *, honors: bool) -> str:
    """Send urgent and bulk messages one frame at a time. Return the order: U for an urgent one, b for bulk."""
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
def test_without_honor_broker_priority_frames_are_sent_round_robin(pair: Pair) -> None:
    left = transmission_order(pair, honors=False)
    assert abs(left[:20].count("U") - left[:20].count("b")) <= 2


@pytest.mark.feature(194, 197)
def test_urgent_messages_are_first_and_bulk_does_not_starve(pair: Pair) -> None:
    """Priority 10 is sent before priority 1, which still gets a share before all urgent messages are sent."""
    left = transmission_order(pair, honors=True)
    assert left[:16].count("b") <= 1
    assert left.index("b") < left.rindex("U")  # before all urgent ones are sent
    assert left[:20].count("U") >= 18
