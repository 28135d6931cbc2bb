"""Messages to send are read page by page, while routes keep changing."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from remote_support import Wire
from servicebroker.broker import departures
from servicebroker.broker.conversations import ROUTE_MATCH_INTERVAL_S
from servicebroker.broker.relay import Relay
from servicebroker.protocol.envelope import Content, parse
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import LOCAL, Address, Route
from servicebroker_lab.simulation.simulated_time import MIDNIGHT
from servicebroker_lab.simulation.store import Endpoint, MemoryStore, Tables


class OneLink:
    """Links that have one link for every address."""

    def __init__(self) -> None:
        self.wire = Wire()

    def reach(self, address: Address) -> Wire:
        return self.wire

    def ask(self, address: Address, known: KnownTimeline) -> None:
        """Do nothing: no route is mirrored."""


def test_every_page_is_reached_although_routes_change_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "PAGE_CONVERSATIONS", 2)
    tables, passed = Tables(UUID(int=1), Random(1)), [0.0]
    tables.services |= {"//here", "//far"}  # conversations with a target here are not the daemon's
    for number in range(10):
        names = ("//near", "//here" if number < 2 else "//far", "//contract")
        initiator = Endpoint(UUID(int=number + 1), UUID(int=100 + number), True, *names, MIDNIGHT + timedelta(days=1))
        tables.insert(initiator)
        xact = tables.begin()
        tables.commit(xact)
        tables.send(initiator, Content.DATA, "//type", b"x", b"8 bytes.", xact)
    relay = Relay(OneLink(), lambda: MIDNIGHT, lambda: passed[0], Random(1))
    store = MemoryStore(tables, lambda: MIDNIGHT)

    def rounds(count: int, address: str) -> None:
        for _ in range(count):
            tables.set_routes([Route("", "//here", None, None, LOCAL), Route("", "//far", None, None, address)])
            relay.round(store, [])
            passed[0] += 0.02

    rounds(7, LOCAL)
    rounds(10, "TCP://far:4022")
    assert {endpoint.far_service for endpoint in tables.endpoints.values() if not endpoint.is_remote} == {"//here"}


def test_messages_read_in_a_later_round_are_sent_in_that_round() -> None:
    """The budget holds bodies of two conversations. No acknowledgement arrives, and no timer fires."""
    tables, links, passed = Tables(UUID(int=1), Random(1)), OneLink(), [0.0]
    tables.services.add("//far")
    for number in range(10):
        initiator = Endpoint(
            UUID(int=number + 1),
            UUID(int=100 + number),
            True,
            "//near",
            "//far",
            "//contract",
            MIDNIGHT + timedelta(days=1),
        )
        tables.insert(initiator)
        xact = tables.begin()
        tables.commit(xact)
        tables.send(initiator, Content.DATA, "//type", b"x", b"8 bytes.", xact)
    tables.set_routes([Route("", "//far", None, None, "TCP://far:4022")])
    relay = Relay(links, lambda: MIDNIGHT, lambda: passed[0], Random(1), budget=16)
    store = MemoryStore(tables, lambda: MIDNIGHT)
    for _ in range(40):
        relay.round(store, [])
        passed[0] += 0.001
    assert {parse(frame).header.conversation_id for frame in links.wire.frames} == {
        UUID(int=100 + number) for number in range(10)
    }


def test_a_new_link_hastens_only_conversations_dropped_from_memory() -> None:
    conversations: Any = SimpleNamespace(local_route_expiry=NEVER, is_missing=False, wanted=set())
    store: Any = SimpleNamespace(page=lambda after, count: [])
    security: Any = None
    finding = departures.Finding(conversations, security, lambda: 100.0)
    finding.find(store, [])
    finding.reached()
    assert finding.wake_at == NEVER
    finding.missed()
    assert finding.wake_at == 100.0 + ROUTE_MATCH_INTERVAL_S
    finding.reached()
    assert finding.wake_at == 0.0
    finding.find(store, [])
    assert finding.wake_at == 100.0 + ROUTE_MATCH_INTERVAL_S, "once more, since this page may have been left before"
    finding.reached()
    assert finding.wake_at == 100.0 + ROUTE_MATCH_INTERVAL_S
