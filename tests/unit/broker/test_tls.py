"""TLS between two instances over memory buffers: accepted peers, refused peers, and the texts of refusals."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from servicebroker.broker.transport.tls import Channel, Tls
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.security.peers import Proved
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.key_files import KeyFolder

NOW = datetime.now(UTC)
Make = Callable[..., tuple[TransportCertificate, Path]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that creates a certificate and the file with its key."""

    def make(name: str, now: datetime = NOW) -> tuple[TransportCertificate, Path]:
        facts, key = x509_certificates.make(name, now, 10)
        keys = KeyFolder(tmp_path / "keys")
        keys.write(facts.thumbprint, x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
        return TransportCertificate(len(name), name, True, None, True, facts, Proved(f"certificate {name}")), keys.file(
            facts.thumbprint
        )

    return make


def exchange(opener: Channel, acceptor: Channel, portion: int = 2**20) -> bytes:
    """Carry bytes in both directions until both sides are silent. Return the decrypted bytes of both."""
    heard = b""
    while True:
        there, back = opener.outgoing(), acceptor.outgoing()
        if not there and not back:
            return heard
        for start in range(0, len(there), portion):
            heard += acceptor.receive(there[start : start + portion])
        for start in range(0, len(back), portion):
            heard += opener.receive(back[start : start + portion])


@pytest.mark.feature(148)
def test_a_peer_whose_login_may_not_connect(make: Make) -> None:
    (west, west_file), (east, east_file) = make("west"), make("east!")
    west = west._replace(login="Western", may_connect=False)
    opener = Tls(west_file, [east]).channel(is_opener=True)
    acceptor = Tls(east_file, [west]).channel(is_opener=False)
    opener.begin()
    with pytest.raises(BrokerError) as error:
        exchange(opener, acceptor)
    assert error.value.number == 28034
    assert "'Western' does not have CONNECT" in str(error.value)
    assert acceptor.peer is None


@pytest.mark.parametrize("portion", [1, 7, 2**20])
def test_both_know_each_other(make: Make, portion: int) -> None:
    (west, west_file), (east, east_file) = make("west"), make("east!")
    opener = Tls(west_file, [east]).channel(is_opener=True)
    acceptor = Tls(east_file, [west]).channel(is_opener=False)
    opener.begin()
    assert exchange(opener, acceptor, portion) == b""
    assert (opener.peer, acceptor.peer) == (east, west)
    body = bytes(range(256)) * (1 if portion == 1 else 4096)
    opener.send(body)
    assert body not in opener._outgoing.read(0)
    assert exchange(opener, acceptor, portion) == body
    acceptor.send(body)
    assert exchange(opener, acceptor, portion) == body


def refusal_of(opener: Channel, acceptor: Channel) -> tuple[int, str]:
    opener.begin()
    with pytest.raises(BrokerError) as error:
        exchange(opener, acceptor)
    assert acceptor.peer is None or opener.peer is None
    return error.value.number, error.value.text


def test_an_opener_that_is_not_known(make: Make) -> None:
    (_, west_file), (east, east_file), (other, _) = make("west"), make("east"), make("other")
    for known in ([], [other]):
        opener = Tls(west_file, [east]).channel(is_opener=True)
        acceptor = Tls(east_file, known).channel(is_opener=False)
        number, text = refusal_of(opener, acceptor)
        assert (number, "none of those that were imported" in text) == (28035, True)
        with pytest.raises(BrokerError, match="the peer says") as error:  # the peer tells the reason
            opener.receive(acceptor.outgoing())
        assert error.value.number == 9751
        opener.send(b"anything")  # is not sent, and does no harm


def test_an_acceptor_that_is_not_known(make: Make) -> None:
    (west, west_file), (_, east_file) = make("west"), make("east")
    opener, acceptor = Tls(west_file, []).channel(is_opener=True), Tls(east_file, [west]).channel(is_opener=False)
    number, _ = refusal_of(opener, acceptor)
    assert number == 28035
    with pytest.raises(BrokerError, match="the peer says") as error:  # the peer tells the reason
        acceptor.receive(opener.outgoing())
    assert error.value.number == 28038


@pytest.mark.parametrize(("days", "words"), [(-30, "it has expired"), (30, "it is not valid yet")])
def test_a_certificate_out_of_its_time_is_refused_with_28035(make: Make, days: int, words: str) -> None:
    (west, west_file), (east, east_file) = make("west", NOW + timedelta(days=days)), make("east")
    number, text = refusal_of(
        Tls(west_file, [east]).channel(is_opener=True), Tls(east_file, [west]).channel(is_opener=False)
    )
    assert (number, words in text) == (28035, True)


def test_bytes_that_are_no_tls(make: Make) -> None:
    (west, _), (_, east_file) = make("west"), make("east")
    with pytest.raises(BrokerError) as error:
        Tls(east_file, [west]).channel(is_opener=False).receive(b"\x16SB is not a handshake at all")
    assert error.value.number == 9758


def test_a_changed_byte_is_noticed(make: Make) -> None:
    (west, west_file), (east, east_file) = make("west"), make("east")
    opener = Tls(west_file, [east]).channel(is_opener=True)
    acceptor = Tls(east_file, [west]).channel(is_opener=False)
    opener.begin()
    exchange(opener, acceptor)
    opener.send(b"order")
    sent = bytearray(opener.outgoing())
    sent[-1] ^= 1
    with pytest.raises(BrokerError) as error:
        acceptor.receive(bytes(sent))
    assert error.value.number == 9758


def test_certificates_are_read_in_both_forms_and_nothing_else(make: Make) -> None:
    facts = make("west")[0].facts
    assert x509_certificates.read(facts.der) == facts
    assert x509_certificates.read(x509_certificates.as_pem(facts.der)) == facts
    assert facts.subject == "CN=west"
    for garbage in (b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n", facts.der[:-9]):
        with pytest.raises(BrokerError) as error:
            x509_certificates.read(garbage)
        assert error.value.number == 15208
    for days in (0, -1, 36_501):
        with pytest.raises(BrokerError):
            x509_certificates.make("west", NOW, days)


def test_a_key_is_its_owner_s_alone(make: Make, tmp_path: Path) -> None:
    west, file = make("west")
    keys = KeyFolder(tmp_path / "keys")
    assert file.stat().st_mode & 0o777 == 0o600
    assert keys.path.stat().st_mode & 0o777 == 0o700
    assert keys.find(west.facts.thumbprint) == file
    file.chmod(0o640)
    with pytest.raises(InstanceError, match="chmod 600"):
        keys.find(west.facts.thumbprint)
    keys.remove(west.facts.thumbprint)
    assert keys.find(west.facts.thumbprint) is None


def test_versions_before_tls_1_3_are_refused(make: Make) -> None:
    (west, _), (_, east_file) = make("west"), make("east")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    number, _ = refusal_of(Channel(context, {}, is_opener=True), Tls(east_file, [west]).channel(is_opener=False))
    assert number == 9758
