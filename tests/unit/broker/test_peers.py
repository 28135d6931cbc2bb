"""The owner of an instance, peers named by routes, and a certificate that names its predecessor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import OFF, Policy
from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.peers import ADDRESS, INSTANCE, NOBODY, Answer, Claims, FalseClaim, Proved
from servicebroker.protocol.budgets import DEFAULT
from servicebroker.protocol.mirroring import KnownTimeline, Role, RoleReport
from servicebroker.protocol.routing import Address, Route, RoutingTable, ways
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.x509_certificates import PrivateKey, instance_of, succeeds

NOW = datetime.now(UTC)
SHOP, OTHER = UUID(int=1), UUID(int=2)
HERE, THERE = Address("here", 4022), Address("there", 4022)
NAMED = {SHOP: frozenset({"shop"})}
CASES = [  # accepted, named, learned, peers that may not claim to be SHOP
    ({}, {}, {}, set()),
    ({}, NAMED, {}, {"mallory"}),
    ({}, NAMED, {SHOP: frozenset({"mallory"})}, {"mallory"}),  # an imported certificate wins
    ({}, {}, {SHOP: frozenset({"shop"})}, {"mallory"}),
    ({}, {}, {SHOP: frozenset({"shop", "mallory"})}, {"shop", "mallory"}),
    ({}, {SHOP: frozenset({"shop", "mallory"})}, {}, {"shop", "mallory"}),
    ({SHOP: "shop"}, {SHOP: frozenset({"shop", "mallory"})}, {}, {"mallory"}),
    ({OTHER: "mallory"}, NAMED, {}, {"mallory"}),
]


@pytest.mark.parametrize(("accepted", "named", "learned", "refused"), CASES)
def test_the_owner_of_an_instance_by_its_claims(
    accepted: dict[UUID, str], named: dict[UUID, frozenset[str]], learned: dict[UUID, frozenset[str]], refused: set[str]
) -> None:
    claims = Claims(accepted, named, learned)
    assert {peer for peer in ("shop", "mallory") if claims.objection(SHOP, peer) is not None} == refused


class Proving(Policy):
    """An endpoint whose connections authenticate the peers."""

    proves = True


def known_peers(**policy: object) -> Peers:
    peers = Peers(UUID(int=9))
    peers.apply(Proving(owners=frozenset({"shop", "mallory"}))._replace(**policy))  # type: ignore[arg-type]
    return peers


def test_a_greeting_teaches_nothing_and_an_answer_does() -> None:
    peers = known_peers()
    assert peers.greeted("mallory", SHOP) is None  # no contradicting claim is known
    assert peers.answered(HERE, "shop", SHOP) is None
    assert peers.take_answers() == {HERE: Answer("shop", SHOP)}
    assert "is that of shop" in str(peers.greeted("mallory", SHOP))
    assert peers.greeted("shop", SHOP) is None
    assert list(peers.take_mistrusted()) == [FalseClaim("mallory", INSTANCE, str(SHOP))]
    assert peers.take_mistrusted() == {} == peers.take_answers()


def test_an_answer_that_is_not_stored_yet_counts_more_than_the_stored_one() -> None:
    peers = known_peers(answers={HERE: Answer("gone", OTHER)})
    assert peers.answered(HERE, "shop", SHOP) is None
    for stored in ({}, {HERE: Answer("gone", OTHER)}):
        peers.apply(Proving(owners=frozenset({"shop", "mallory"}), answers=stored))
        assert peers.owner_at(HERE) == "shop"
    assert peers.take_answers() == {HERE: Answer("shop", SHOP)}
    peers.apply(Proving(owners=frozenset({"shop", "mallory"}), answers={HERE: Answer("mallory", OTHER)}))
    assert peers.owner_at(HERE) == "mallory"


def test_other_budgets_are_other_knowledge() -> None:
    peers = known_peers()
    for amounts, is_new in (
        ({}, False),
        ({"shop": {"openings": 5}}, True),
        ({"shop": {"openings": 5}}, False),
        ({}, True),
    ):
        before = peers.version
        assert (peers.set_budgets(amounts), peers.version > before) == (is_new, is_new)
        assert peers.budgets.of("shop").openings == amounts.get("shop", {}).get("openings", DEFAULT.openings)


def test_contradicting_answers_disqualify_both_until_one_is_accepted() -> None:
    peers = known_peers()
    assert peers.answered(HERE, "shop", SHOP) is None
    assert peers.answered(THERE, "mallory", SHOP) is not None
    assert peers.greeted("shop", SHOP) is not None
    peers.apply(Proving(owners=frozenset({"shop", "mallory"}), accepted={SHOP: "shop"}))
    assert peers.greeted("shop", SHOP) is None
    assert peers.greeted("mallory", SHOP) is not None


def test_an_answer_does_not_contest_a_certificates_identity() -> None:
    peers = known_peers(named=NAMED)
    assert peers.answered(THERE, "mallory", SHOP) is not None
    assert peers.take_answers() == {}
    assert peers.greeted("shop", SHOP) is None


def test_an_address_stays_with_whom_it_was_found_as_long_as_that_one_has_a_certificate() -> None:
    peers = known_peers()
    peers.answered(HERE, "shop", SHOP)
    assert "has answered at TCP://here:4022 before" in str(peers.answered(HERE, "mallory", OTHER))
    assert peers.owner_at(HERE) == "shop"
    assert list(peers.take_mistrusted()) == [FalseClaim("mallory", ADDRESS, str(HERE))]
    assert peers.answered(HERE, NOBODY, OTHER) is not None  # nor without TLS
    assert peers.answered(HERE, "shop", OTHER) is None  # another instance of the same owner
    peers.apply(Proving(owners=frozenset({"mallory"}), answers={HERE: Answer("shop", SHOP)}))
    assert peers.answered(HERE, "mallory", OTHER) is None
    assert peers.owner_at(HERE) == "mallory"


def test_a_claim_of_our_own_identity_is_refused_only_with_tls() -> None:
    peers = known_peers()
    assert peers.greeted("shop", UUID(int=9)) is not None
    peers.apply(OFF)
    assert peers.greeted("shop", UUID(int=9)) is None
    assert peers.answered(HERE, "mallory", SHOP) is None
    assert peers.owner_at(HERE) is None


@pytest.mark.parametrize("address", [None, HERE])
@pytest.mark.parametrize(
    ("vouched", "is_vouched", "is_refused"),
    [(SHOP, True, False), (OTHER, True, True), (OTHER, False, False), (None, True, False), (None, False, False)],
)
def test_a_domain_s_certificate_is_that_of_one_instance(
    address: Address | None, vouched: UUID | None, is_vouched: bool, is_refused: bool
) -> None:
    peers = known_peers()
    objection = peers.objection_to(address, Proved("shop", vouched, is_vouched), SHOP)
    assert (objection is not None) is is_refused
    assert list(peers.take_mistrusted()) == ([FalseClaim("shop", INSTANCE, str(SHOP))] if is_refused else [])
    assert (peers.owner_at(HERE) == "shop") is (address is not None and not is_refused)


def test_known_addresses_and_false_claims_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servicebroker.broker.peers.MAX_ADDRESSES", 3)
    monkeypatch.setattr("servicebroker.broker.peers.MAX_CLAIMS", 3)
    peers = known_peers()
    addresses = [Address("host", number) for number in range(1, 8)]
    for address in addresses:
        peers.answered(address, "shop", SHOP)
        peers.mistrust(FalseClaim("mallory", ADDRESS, str(address)), "detail")
    assert [address for address in addresses if peers.owner_at(address)] == addresses[-3:]
    claims = peers.take_mistrusted()
    assert len(claims) == 4
    assert claims[FalseClaim("others", ADDRESS)][0] == 4


# ---------------------------------------------------------------- routes


def route(address: str, service: str | None = "//s", broker: str | None = None, **more: object) -> Route:
    return Route("r", service, broker, None, address)._replace(**more)  # type: ignore[arg-type]


OVER = NOW - timedelta(days=1)
ROUTE_CASES = [
    ([route("TCP://here:4022")], {HERE}),
    ([route("TCP://here:4022", "//other"), route("LOCAL", None)], set()),
    ([route("TCP://here:4022", broker="b"), route("TCP://there:4022", broker="c")], {HERE}),
    ([route("TCP://here:4022", broker="b", mirror_address="TCP://there:4022")], {HERE, THERE}),
    (
        [route("TCP://here:4022"), route("TCP://there:4022", None)],
        {HERE},
    ),  # routes for any service do not count in that case
    ([route("TCP://here:4022", expires=OVER), route("TCP://there:4022", None)], {HERE, THERE}),
    ([route("TCP://there:4022", None)], {THERE}),
    ([route("TRANSPORT", None)], set()),
]


@pytest.mark.parametrize(("routes", "expected"), ROUTE_CASES)
def test_addresses_of_routes_for_a_service(routes: list[Route], expected: set[Address]) -> None:
    assert ways("//s", "b", [RoutingTable(routes)], NOW) == expected


def test_a_service_that_has_its_address_in_its_name() -> None:
    assert ways("tcp://here:4022/s", "b", [RoutingTable([route("TRANSPORT", None)])], NOW) == {HERE}


# ---------------------------------------------------------------- certificates


def test_a_certificate_names_its_instance_and_the_one_before_vouches_for_it() -> None:
    first, key = x509_certificates.make("shop", NOW, instance=SHOP)
    second, _ = x509_certificates.make("shop 2", NOW, instance=SHOP, predecessor=key)
    forged, _ = x509_certificates.make(
        "shop 2", NOW, instance=SHOP, predecessor=x509_certificates.make("mallory", NOW)[1]
    )
    assert instance_of(first.der) == instance_of(second.der) == SHOP
    assert instance_of(x509_certificates.make("anybody", NOW)[0].der) is None
    assert succeeds(second.der, first.der)
    assert not succeeds(forged.der, first.der)
    assert not succeeds(first.der, second.der)


def test_an_rsa_key_vouches_as_well() -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name.from_rfc4514_string("CN=old")
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    old = (
        builder.serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    new, _ = x509_certificates.make("new", NOW, predecessor=key)
    assert succeeds(new.der, old.public_bytes(serialization.Encoding.DER))


def write_key(folder: KeyFolder, made: tuple[Facts, PrivateKey]) -> tuple[TransportCertificate, Path]:
    facts, key = made
    folder.write(facts.thumbprint, x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
    return TransportCertificate(1, "own", True, None, True, facts, Proved()), folder.file(facts.thumbprint)


def test_a_timeline_is_believed_with_the_signature_of_a_server_of_ours(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "keys")
    (ours, file), (theirs, foreign) = (
        write_key(folder, x509_certificates.make(name, NOW)) for name in ("ours", "theirs")
    )
    signed_report = Tls(file, [], [ours]).signed(RoleReport(Role.PRINCIPAL, "c", 2))
    judge = Tls(file, [], [ours])
    assert judge.is_ours(KnownTimeline().after(signed_report))
    assert KnownTimeline("c", 1).after(signed_report) == KnownTimeline("c", 2, signed_report.signature)
    for lie in (
        KnownTimeline("c", 2),
        KnownTimeline("c", 3, signed_report.signature),
        KnownTimeline("d", 2, signed_report.signature),
        KnownTimeline().after(Tls(foreign, [], [theirs]).signed(RoleReport(Role.PRINCIPAL, "c", 2))),
    ):
        assert not judge.is_ours(lie)
    assert judge.signed(RoleReport(Role.MIRROR, "c", 2)).signature == b""
