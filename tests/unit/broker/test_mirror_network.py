"""Messages between daemons about the principal: two networks over real sockets, without a database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from servicebroker.broker.inboxes import Answered, Inboxes, Lost, Outdated, Reached, Unreached
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport import sockets as networks
from servicebroker.broker.transport.links import Arrival
from servicebroker.broker.transport.sockets import Network
from servicebroker.broker.transport.stream import Stream
from servicebroker.protocol.mirroring import IN_DOUBT, KnownTimeline, Role, RoleReport
from servicebroker.protocol.routing import Address
from support import eventually

PRINCIPAL = RoleReport(Role.PRINCIPAL, "c", 3, is_synchronous=True)
MIRROR = RoleReport(Role.MIRROR, "c", 3)


class Daemon:
    """A network and a record of its events."""

    def __init__(self, number: int) -> None:
        self.network = Network(UUID(int=number), UUID(int=number + 10), Inboxes(), lambda: datetime.now(UTC))
        port = self.network.apply(Policy("127.0.0.1", 0))
        assert port is not None
        self.address = Address("127.0.0.1", port)
        self.happened: list[object] = []

    def has(self, *expected: object) -> bool:
        self.happened += self.network.inbox.shares[0].take(100)
        return all(occurrence in self.happened for occurrence in expected)

    def kinds(self) -> set[type]:
        self.has()
        return set(map(type, self.happened))

    def role_reports(self) -> list[RoleReport]:
        self.has()
        return [occurrence.role_report for occurrence in self.happened if isinstance(occurrence, Answered)]


@pytest.fixture
def two() -> Iterator[tuple[Daemon, Daemon]]:
    west, east = Daemon(1), Daemon(2)
    yield west, east
    west.network.close()
    east.network.close()


@pytest.mark.feature(122)
def test_a_queried_broker_answers_and_announces_changes(two: tuple[Daemon, Daemon]) -> None:
    west, east = two
    assert not east.network.was_asked
    west.network.ask(east.address, KnownTimeline())
    eventually(lambda: west.role_reports() == [IN_DOUBT])
    assert east.network.was_asked
    for role_report in (PRINCIPAL, MIRROR):
        east.network.announce_role(role_report)
        eventually(lambda role_report=role_report: west.has(Answered(east.address, role_report)))  # type: ignore[misc]


@pytest.mark.feature(122)
def test_a_broker_whose_rounds_stop_is_in_doubt(two: tuple[Daemon, Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    west, east = two
    monkeypatch.setattr(networks, "RELAY_TIMEOUT_S", 0.5)
    east.network.announce_role(PRINCIPAL)
    west.network.ask(east.address, KnownTimeline())
    eventually(lambda: west.role_reports() == [PRINCIPAL, IN_DOUBT])
    east.network.announce_role(PRINCIPAL)
    eventually(lambda: west.role_reports()[:3] == [PRINCIPAL, IN_DOUBT, PRINCIPAL])


@pytest.mark.feature(122)
def test_a_principal_hears_of_a_higher_timeline_of_its_cluster(two: tuple[Daemon, Daemon]) -> None:
    west, east = two
    east.network.announce_role(PRINCIPAL)
    for known in (KnownTimeline("c", 3), KnownTimeline("other", 9), KnownTimeline("c", 4)):
        west.network.ask(east.address, known)
    eventually(lambda: east.has(Outdated(KnownTimeline("c", 4))))
    assert [occurrence for occurrence in east.happened if isinstance(occurrence, Outdated)] == [
        Outdated(KnownTimeline("c", 4))
    ]


@pytest.mark.feature(122)
def test_an_unreachable_broker_is_reported(two: tuple[Daemon, Daemon]) -> None:
    west, east = two
    nobody = Address("127.0.0.1", 1)
    west.network.ask(nobody, KnownTimeline())
    eventually(lambda: Unreached in west.kinds())
    west.happened.clear()
    west.network.ask(east.address, KnownTimeline())
    eventually(lambda: west.has(Answered(east.address, IN_DOUBT)))
    # east restarts, and refuses
    east.network.apply(Policy("127.0.0.1", east.address.port, refusal=28080, silence=9666))
    eventually(lambda: Unreached in west.kinds())


@pytest.mark.feature(122, 123)
def test_a_mirror_takes_no_messages_and_is_not_tried_again_at_once(two: tuple[Daemon, Daemon]) -> None:
    west, east = two
    east.network.announce_role(MIRROR)
    assert west.network.reach(east.address) == ""
    eventually(lambda: west.has(Reached(east.address)))
    link = west.network.reach(east.address)
    assert isinstance(link, Stream)
    link.send(b"a message")
    eventually(lambda: Lost in west.kinds())
    (lost,) = (occurrence for occurrence in west.happened if isinstance(occurrence, Lost))
    assert "It is a replica of a mirrored database." in lost.status
    assert west.network.reach(east.address) == lost.status
    assert Arrival not in east.kinds()
