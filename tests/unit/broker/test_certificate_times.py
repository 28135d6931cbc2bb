"""Validity of link certificates: each side uses its own clock, at the start of a link and while it lasts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from servicebroker.broker.inboxes import Inboxes
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport import sockets
from servicebroker.broker.transport.sockets import Network
from servicebroker.broker.transport.stream import Stream
from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.security.peers import Proved
from servicebroker.protocol.adjacent import Phase
from servicebroker.protocol.routing import Address
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.key_files import KeyFolder
from support import Clock, eventually

VALID_DAYS = 10  # on either side of now
PAST = {"it has expired": timedelta(days=VALID_DAYS + 1), "it is not valid yet": -timedelta(days=VALID_DAYS + 1)}


class End:
    """A network with its own clock and certificate."""

    def __init__(self, number: int, folder: Path) -> None:
        self.clock = Clock()
        self.network = Network(UUID(int=number), UUID(int=number + 10), Inboxes(), self.clock)
        start = datetime.now(UTC) - timedelta(days=VALID_DAYS)
        facts, key = x509_certificates.make(f"end{number}", start, 2 * VALID_DAYS)
        keys = KeyFolder(folder)
        keys.write(facts.thumbprint, x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
        self.file = keys.file(facts.thumbprint)
        name = f"end{number}"
        self.certificate = TransportCertificate(number, name, True, None, True, facts, Proved(f"certificate {name}"))

    def apply(self, peer: End) -> int | None:
        tls = Tls(self.file, [peer.certificate])
        return self.network.apply(Policy("127.0.0.1", 0, encryption="REQUIRED", tls=tls))

    @property
    def is_online(self) -> bool:
        return any(stream.phase is Phase.ONLINE for stream in list(self.network.streams))


@pytest.fixture(autouse=True)
def broker_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "servicebroker.broker")


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[End, End, Address]]:
    opener, acceptor = (End(number, tmp_path / str(number)) for number in (1, 2))
    port = acceptor.apply(opener)
    assert port is not None
    opener.apply(acceptor)
    yield opener, acceptor, Address("127.0.0.1", port)
    for end in (opener, acceptor):
        end.network.close()


def connect(ends: tuple[End, End, Address]) -> None:
    opener, acceptor, address = ends
    eventually(lambda: isinstance(opener.network.reach(address), Stream), 30)
    eventually(lambda: opener.is_online and acceptor.is_online, 30)


@pytest.mark.feature(148)
@pytest.mark.parametrize("why", PAST)
@pytest.mark.parametrize("judge", [0, 1], ids=["opener", "acceptor"])
def test_a_link_ends_when_the_certificate_that_proved_it_does(
    ends: tuple[End, End, Address], judge: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    connect(ends)
    end = (ends[0], ends[1])[judge]
    end.clock.ahead = PAST[why]
    eventually(lambda: not ends[0].is_online and not ends[1].is_online, 30)
    assert why in caplog.text


@pytest.mark.feature(148)
@pytest.mark.parametrize("why", PAST)
@pytest.mark.parametrize("judge", [0, 1], ids=["opener", "acceptor"])
def test_no_link_begins_with_a_certificate_that_is_not_valid_where_it_is_shown(
    tmp_path: Path, judge: int, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The link must not exist even for a second: no timer fires in this test."""
    monkeypatch.setattr(sockets, "TICK_INTERVAL_S", 3600.0)
    opener, acceptor = (End(number, tmp_path / str(number)) for number in (1, 2))
    try:
        port = acceptor.apply(opener)
        assert port is not None
        opener.apply(acceptor)
        (opener, acceptor)[judge].clock.ahead = PAST[why]
        address = Address("127.0.0.1", port)
        seen = []

        def refused() -> bool:
            seen.append(isinstance(opener.network.reach(address), Stream) or acceptor.is_online)
            return why in caplog.text

        eventually(refused, 30)
        eventually(lambda: not opener.network.streams and not acceptor.network.streams, 30)
        assert not any(seen)
        if judge == 1:
            assert why in str(opener.network.reach(address))
    finally:
        for end in (opener, acceptor):
            end.network.close()
