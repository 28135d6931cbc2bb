"""TLS between members of a domain, between strangers, and between peers that support both methods."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from servicebroker.broker.inboxes import Inboxes
from servicebroker.broker.policy import Policy
from servicebroker.broker.recognition import Recognition
from servicebroker.broker.transport.sockets import Network
from servicebroker.broker.transport.tls import Channel, Tls
from servicebroker.engine.catalog.network_endpoints import REQUIRED
from servicebroker.engine.security.logins import DENY, GRANT, Connect
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.authentication import Authentication, parse_authentication
from servicebroker.model.security.peers import Proved
from servicebroker.protocol.mirroring import KnownTimeline, Role, RoleReport
from servicebroker.protocol.routing import Address
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.domain_folder import Domain, own_name
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.membership import Membership, MemberState
from support import Clock, eventually

NOW = datetime.now(UTC)
LOGGED_IN = 12  # sys.dm_broker_connections.login_state
NO_GRANTS, GRANTED_TO_PUBLIC = Connect(None, {}), Connect(GRANT, {})


@pytest.fixture
def corp(tmp_path: Path) -> Domain:
    return Domain.create(tmp_path / "corp", "CORP", NOW)


@pytest.fixture
def member(corp: Domain, tmp_path: Path) -> Callable[..., MemberState]:
    """Return a function that joins an instance to the domain: by invitation, or without a name as the key's owner."""

    def member(place: str, name: str | None = None, now: datetime = NOW) -> MemberState:
        membership = Membership(KeyFolder(tmp_path / place), uuid4())
        token = None if name is None else corp.invite(name, now, timedelta(days=1))
        return membership.join(corp.folder, token, now, 0)

    return member


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[TransportCertificate, Path]]:
    """Return a function that creates a certificate and the file with its key."""

    def make(name: str, now: datetime = NOW) -> tuple[TransportCertificate, Path]:
        facts, key = x509_certificates.make(name, now, 10)
        keys = KeyFolder(tmp_path / "keys")
        keys.write(facts.thumbprint, x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
        return TransportCertificate(1, name, True, None, True, facts, Proved(name)), keys.file(facts.thumbprint)

    return make


def parse_methods(text: str) -> Authentication:
    return parse_authentication(text)[0]


WINDOWS = parse_methods("WINDOWS KERBEROS")


def windows(membership: MemberState, connect: Connect = NO_GRANTS) -> Tls:
    return Tls(None, [], domain=membership, authentication=WINDOWS, connect=connect)


def meet(opener: Tls, acceptor: Tls, certificate_index: int = 0) -> tuple[Channel, Channel]:
    """Return both ends after each has accepted the other."""
    here, there = opener.channel(is_opener=True, certificate_index=certificate_index), acceptor.channel(is_opener=False)
    here.begin()
    while (out := here.outgoing()) or there._outgoing.pending:
        there.receive(out)
        here.receive(there.outgoing())
    return here, there


def refusal_of(opener: Tls, acceptor: Tls, certificate_index: int = 0) -> tuple[int, str]:
    with pytest.raises(BrokerError) as error:
        meet(opener, acceptor, certificate_index)
    return error.value.number, error.value.text


# ---------------------------------------------------------------- a domain


@pytest.mark.feature(146)
def test_instances_of_one_account_trust_each_other_at_once(member: Callable[..., MemberState]) -> None:
    west, east = member("west"), member("east")
    here, there = meet(windows(west), windows(east))
    assert here.peer is not None
    assert there.peer is not None
    assert west.member is not None
    assert there.peer.name == f"CORP\\{own_name()}"
    assert (there.proved.instance, there.proved.is_vouched) == (west.member.instance, True)
    assert here.proved.owner != there.proved.owner
    assert here.authentication == "KERBEROS"


@pytest.mark.feature(146, 148)
def test_another_member_needs_connect_for_its_login(member: Callable[..., MemberState]) -> None:
    west, east = member("west", "shop"), member("east", "warehouse")
    lets_in = Connect(None, {"corp\\warehouse": GRANT})
    for connect in (NO_GRANTS, Connect(None, {"corp\\shop": None}), Connect(None, {"other\\shop": GRANT})):
        number, text = refusal_of(windows(west, lets_in), windows(east, connect))
        assert (number, "'CORP\\shop' does not have CONNECT" in text) == (28034, True)
    meet(windows(west, lets_in), windows(east, Connect(None, {"corp\\shop": GRANT})))
    meet(windows(west, lets_in), windows(east, GRANTED_TO_PUBLIC))
    for connect in (Connect(GRANT, {"corp\\shop": DENY}), Connect(DENY, {"corp\\shop": GRANT})):
        assert refusal_of(windows(west, lets_in), windows(east, connect))[0] == 28034


def test_a_denial_also_applies_to_the_same_account(member: Callable[..., MemberState]) -> None:
    account = f"corp\\{own_name().lower()}"
    assert refusal_of(windows(member("west")), windows(member("east"), Connect(None, {account: DENY})))[0] == 28034


@pytest.mark.parametrize("name", ["shop", "Shop"])
def test_a_revoked_member_is_refused_despite_grants(
    corp: Domain, member: Callable[..., MemberState], name: str
) -> None:
    west, east = member("west", name), member("east")
    east = east._replace(revoked=frozenset({"shop"}))
    lets_in = Connect(None, {f"corp\\{own_name().lower()}": GRANT})
    both = Tls(None, [], domain=east, authentication=parse_methods("WINDOWS CERTIFICATE"), connect=GRANTED_TO_PUBLIC)
    for acceptor in (windows(east, GRANTED_TO_PUBLIC), both):
        number, text = refusal_of(windows(west, lets_in), acceptor)
        assert (number, f"CORP\\{name} was revoked" in text) == (28035, True)


@pytest.mark.parametrize(("days", "words"), [(-8, "it has expired"), (2, "it is not valid yet")])
def test_a_member_s_certificate_must_be_valid_now(
    corp: Domain, member: Callable[..., MemberState], tmp_path: Path, days: int, words: str
) -> None:
    west = member("west", now=NOW + timedelta(days=days))
    assert refusal_of(windows(west), windows(member("east"))) == (
        28035, f"Connection handshake failed. The certificate used by the peer is invalid because {words}."
    )  # fmt: skip


def test_two_domains_of_one_name_do_not_trust_each_other(member: Callable[..., MemberState], tmp_path: Path) -> None:
    other_domain = Domain.create(tmp_path / "other", "CORP", NOW)
    stranger = Membership(KeyFolder(tmp_path / "stranger"), uuid4()).join(other_domain.folder, None, NOW, 0)
    number, text = refusal_of(windows(stranger), windows(member("east"), GRANTED_TO_PUBLIC))
    assert (number, "it is not of the domain CORP" in text) == (28035, True)


def test_an_endpoint_with_windows_only_refuses_imported_certificates(
    member: Callable[..., MemberState], make: Callable[..., tuple[TransportCertificate, Path]]
) -> None:
    (west, west_file), east = make("west"), member("east")
    acceptor = Tls(None, [west], domain=east, authentication=WINDOWS, connect=GRANTED_TO_PUBLIC)
    assert refusal_of(Tls(west_file, [west]), acceptor)[0] == 28027


@pytest.mark.parametrize(
    ("methods", "is_known", "is_taken"),
    [
        ("CERTIFICATE", True, True),
        ("CERTIFICATE", False, True),
        ("WINDOWS", True, False),
        ("WINDOWS", False, False),
        ("WINDOWS CERTIFICATE", True, True),
        ("CERTIFICATE WINDOWS", False, True),
    ],
)
def test_a_certificate_counts_only_where_the_endpoint_accepts_certificates(
    member: Callable[..., MemberState],
    make: Callable[..., tuple[TransportCertificate, Path]],
    methods: str,
    is_known: bool,
    is_taken: bool,
) -> None:
    """Imported ones, and unknown ones that CONNECT of public admits."""
    west, _ = make("west")
    imported, connect = ([west], NO_GRANTS) if is_known else ([], GRANTED_TO_PUBLIC)
    recognition = Recognition(imported, member("east"), parse_methods(methods), connect)
    assert (west.facts.der in recognition.anchors) is (is_known and is_taken)
    if is_taken:
        assert recognition.recognize(west.facts.der).peer.facts == west.facts
    else:
        with pytest.raises(BrokerError) as error:
            recognition.recognize(west.facts.der)
        assert error.value.number == 28035


# ---------------------------------------------------------------- both methods


@pytest.mark.feature(146)
@pytest.mark.parametrize(
    ("opener", "acceptor", "certificate_index", "seen_by_opener", "seen_by_acceptor"),
    [
        ("WINDOWS CERTIFICATE", "WINDOWS CERTIFICATE", 0, "NEGOTIATE", "NEGOTIATE"),
        ("CERTIFICATE WINDOWS", "CERTIFICATE WINDOWS", 0, "CERTIFICATE", "CERTIFICATE"),
        ("WINDOWS CERTIFICATE", "CERTIFICATE WINDOWS", 0, "CERTIFICATE", "NEGOTIATE"),
        ("WINDOWS CERTIFICATE", "CERTIFICATE", 1, "CERTIFICATE", "CERTIFICATE"),
        ("CERTIFICATE WINDOWS", "WINDOWS", 1, "NEGOTIATE", "NEGOTIATE"),
        ("WINDOWS", "CERTIFICATE WINDOWS", 0, "NEGOTIATE", "NEGOTIATE"),
        ("CERTIFICATE", "WINDOWS CERTIFICATE", 0, "CERTIFICATE", "CERTIFICATE"),
    ],
)
def test_each_side_uses_a_method_that_the_other_accepts(
    member: Callable[..., MemberState],
    make: Callable[..., tuple[TransportCertificate, Path]],
    opener: str,
    acceptor: str,
    certificate_index: int,
    seen_by_opener: str,
    seen_by_acceptor: str,
) -> None:
    (west, west_file), (east, east_file) = make("west"), make("east")
    here = Tls(west_file, [east], domain=member("w"), authentication=parse_methods(opener))
    there = Tls(east_file, [west], domain=member("e"), authentication=parse_methods(acceptor))
    if certificate_index:  # its first connection is refused
        assert refusal_of(here, there)[0] == 28035
    ends = meet(here, there, certificate_index)
    assert [end.authentication for end in ends] == [seen_by_opener, seen_by_acceptor]


def test_peers_without_a_common_method_are_refused(
    member: Callable[..., MemberState], make: Callable[..., tuple[TransportCertificate, Path]]
) -> None:
    _, west_file = make("west")
    number, text = refusal_of(windows(member("east")), Tls(west_file, []))
    assert (number, "authentication protocol" in text) == (28027, True)


# ---------------------------------------------------------------- public


@pytest.mark.feature(148)
def test_connect_for_public_admits_unknown_certificates(make: Callable[..., tuple[TransportCertificate, Path]]) -> None:
    """Strangers prove that they hold their keys, too, but their names prove nothing."""
    (west, west_file), (_, east_file) = make("west"), make("east")
    acceptor = Tls(east_file, [], connect=GRANTED_TO_PUBLIC)
    here, there = meet(Tls(west_file, [], connect=GRANTED_TO_PUBLIC), acceptor)
    assert there.peer is not None
    assert there.peer.facts == west.facts
    assert there.proved == Proved(f"not imported {west.facts.thumbprint.hex()}")
    here.send(b"order")
    assert there.receive(here.outgoing()) == b"order"
    assert refusal_of(Tls(west_file, []), acceptor) == (
        28035, "Connection handshake failed. The certificate used by the peer is invalid because it is none of those "
        "that were imported into this instance."
    )  # fmt: skip
    named, _ = x509_certificates.issue("CN=x", NOW, NOW + timedelta(days=1), instance=UUID(int=7))
    assert x509_certificates.instance_of(named.der) == UUID(int=7)
    assert acceptor.recognition.recognize(named.der).peer.proved.instance is None


def test_a_stranger_without_a_certificate_is_refused(make: Callable[..., tuple[TransportCertificate, Path]]) -> None:
    _, east_file = make("east")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = Channel(context, Recognition([], connect=GRANTED_TO_PUBLIC), is_opener=True)
    acceptor = Tls(east_file, [], connect=GRANTED_TO_PUBLIC).channel(is_opener=False)
    with pytest.raises(ssl.SSLWantReadError):
        opener._object.do_handshake()
    acceptor.receive(opener.outgoing())
    opener._incoming.write(acceptor.outgoing())
    opener._object.do_handshake()
    with pytest.raises(BrokerError, match="it was not shown"):
        acceptor.receive(opener.outgoing())
    assert acceptor.peer is None


@pytest.mark.parametrize(("days", "words"), [(-30, "it has expired"), (30, "it is not valid yet")])
def test_a_stranger_s_certificate_must_be_valid_now(
    make: Callable[..., tuple[TransportCertificate, Path]], days: int, words: str
) -> None:
    (_, west_file), (_, east_file) = make("west", NOW + timedelta(days=days)), make("east")
    number, text = refusal_of(
        Tls(west_file, [], connect=GRANTED_TO_PUBLIC), Tls(east_file, [], connect=GRANTED_TO_PUBLIC)
    )
    assert (number, words in text) == (28035, True)


def test_a_certificate_signed_by_an_imported_one_is_refused(
    corp: Domain, member: Callable[..., MemberState], make: Callable[..., tuple[TransportCertificate, Path]]
) -> None:
    """TLS alone would accept the peer: the imported certificate may sign others."""
    east, east_file = make("east")
    imported = east._replace(facts=corp.authority)
    signed = member("west").identity
    assert signed is not None
    assert refusal_of(Tls(signed, [east]), Tls(east_file, [imported]))[0] == 28035


def test_a_denied_login_is_no_stranger(make: Callable[..., tuple[TransportCertificate, Path]]) -> None:
    (west, west_file), (_, east_file) = make("west"), make("east")
    denied = west._replace(login="Western", may_connect=False)
    number, _ = refusal_of(
        Tls(west_file, [], connect=GRANTED_TO_PUBLIC), Tls(east_file, [denied], connect=GRANTED_TO_PUBLIC)
    )
    assert number == 28034


def test_unknown_certificates_use_bounded_memory(
    make: Callable[..., tuple[TransportCertificate, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servicebroker.broker.transport.tls.MAX_UNKNOWN_CERTIFICATES", 2)
    (_, west_file), (_, east_file) = make("west"), make("east")
    acceptor = Tls(east_file, [], connect=GRANTED_TO_PUBLIC)
    for name in ("a", "b", "c"):
        meet(Tls(make(name)[1], [], connect=GRANTED_TO_PUBLIC), acceptor)
    (held,) = {len(context.get_ca_certs()) for key, context in acceptor._contexts.items() if not key[1]}
    assert held <= 2
    meet(Tls(west_file, [], connect=GRANTED_TO_PUBLIC), acceptor)


# ---------------------------------------------------------------- over sockets


class Daemon:
    """A listening network without a database. `number` identifies the instance."""

    def __init__(self, number: int, tls: Tls, clock: Clock) -> None:
        daemon_id = UUID(int=number + 100)
        self.network = Network(daemon_id, uuid4(), Inboxes(), clock, UUID(int=number))
        port = self.network.apply(Policy("127.0.0.1", 0, encryption=REQUIRED, tls=tls))
        assert port is not None
        self.address = Address("127.0.0.1", port)

    @property
    def online(self) -> set[str | None]:
        """Return the principals of the connected peers."""
        return {row.principal_name for row in self.network.observe() if row.login_state == LOGGED_IN}


@pytest.fixture
def start() -> Iterator[Callable[..., Daemon]]:
    started: list[Daemon] = []

    def start(number: int, tls: Tls, clock: Clock | None = None) -> Daemon:
        started.append(Daemon(number, tls, clock or Clock()))
        return started[-1]

    yield start
    for daemon in started:
        daemon.network.close()


@pytest.fixture
def numbered_membership(corp: Domain, tmp_path: Path) -> Callable[[int], MemberState]:
    """Return a function that gives the membership of instance `number`, owned by the key's owner."""

    def membership(number: int) -> MemberState:
        return Membership(KeyFolder(tmp_path / str(number)), UUID(int=number)).join(corp.folder, None, NOW, 0)

    return membership


def test_a_connection_ends_when_the_peer_s_certificate_does(
    numbered_membership: Callable[[int], MemberState], start: Callable[..., Daemon]
) -> None:
    clock = Clock()
    west, east = start(1, windows(numbered_membership(1))), start(2, windows(numbered_membership(2)), clock)
    west.network.reach(east.address)
    eventually(lambda: west.online and east.online)
    clock.jump(days=6.9)
    (stream,) = east.network.streams
    stream.tick()
    assert east.online
    clock.jump(days=0.2)
    eventually(lambda: not east.online)


def test_a_member_is_the_instance_that_its_certificate_names(
    numbered_membership: Callable[[int], MemberState], start: Callable[..., Daemon]
) -> None:
    """The impostor greets with the id of another instance of the same account."""
    impostor, east = start(3, windows(numbered_membership(1))), start(2, windows(numbered_membership(2)))
    impostor.network.reach(east.address)
    eventually(lambda: east.network.take_refused().keys() == {28035})
    ((what, (_, why)),) = east.network.peers.take_mistrusted().items()
    assert (what.claim, what.subject, "another instance" in why) == ("instance", str(UUID(int=3)), True)
    assert not east.online


@pytest.mark.feature(146)
def test_an_opener_with_two_methods_tries_the_second_when_the_first_is_refused(
    numbered_membership: Callable[[int], MemberState],
    start: Callable[..., Daemon],
    make: Callable[..., tuple[TransportCertificate, Path]],
) -> None:
    (west, west_file), (east, east_file) = make("west"), make("east")
    both = Tls(west_file, [east], domain=numbered_membership(1), authentication=parse_methods("WINDOWS CERTIFICATE"))
    here, there = start(1, both), start(2, Tls(east_file, [west]))
    here.network.reach(there.address)
    eventually(lambda: there.online == {"west"} and here.online == {"east"})
    assert here.network.certificate_index(there.address) == 1


# ---------------------------------------------------------------- mirrored pairs


def test_a_timeline_is_accepted_from_the_same_member_only(
    corp: Domain, member: Callable[..., MemberState], tmp_path: Path
) -> None:
    """A timeline signed by another member, or by a revoked one, is not accepted."""
    first = member("one", "shop")
    assert first.member is not None
    second = Membership(KeyFolder(tmp_path / "second"), first.member.instance)
    token = corp.invite("shop", NOW, timedelta(days=1))
    one_server, other_server = windows(first), windows(second.join(corp.folder, token, NOW, 0))
    signed = one_server.signed(RoleReport(Role.PRINCIPAL, "cluster", 7))
    assert len(signed.signature) < 1_024
    assert other_server.is_ours(KnownTimeline("cluster", 7, signed.signature))
    assert not other_server.is_ours(KnownTimeline("cluster", 8, signed.signature))
    assert not windows(member("other", "shop")).is_ours(KnownTimeline("cluster", 7, signed.signature))
    assert not windows(second.look(NOW)._replace(revoked=frozenset({"shop"}))).is_ours(
        KnownTimeline("cluster", 7, signed.signature)
    )
    assert not other_server.is_ours(KnownTimeline("cluster", 7, b"nothing"))
    assert one_server.signed(RoleReport(Role.MIRROR)).signature == b""


# ---------------------------------------------------------------- our own key


def test_openssl_never_asks_for_the_password_of_a_key(
    make: Callable[..., tuple[TransportCertificate, Path]], tmp_path: Path
) -> None:
    facts, key = x509_certificates.make("west", NOW, 10)
    file = tmp_path / "locked.pem"
    file.write_bytes(x509_certificates.key_pem(key, "Pa55 of the key") + x509_certificates.as_pem(facts.der))
    with pytest.raises(OSError, match="SSL"):
        Tls(file, [])
