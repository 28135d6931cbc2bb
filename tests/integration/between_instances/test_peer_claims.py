"""Claims on an instance: imports, certificates that replace others, and acceptance by an administrator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from daemons import Site
from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import PolicyWatch
from servicebroker.cli.main import app
from servicebroker.engine.remote import known_peers
from servicebroker.engine.remote.refusals import RefusalKey, save_refusals
from servicebroker.engine.security.transport_certificates import all_certificates
from servicebroker.model.security.peers import ADDRESS, INSTANCE, Answer, FalseClaim, Proved
from servicebroker.protocol.budgets import DEFAULT, over_budget
from servicebroker.protocol.routing import Address
from servicebroker.store.connection import connect
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.x509_certificates import instance_of, read
from servicebroker.store.running import run, run_alone
from support import query

HERE = Address("here", 4022)


@pytest.fixture
def site(make_instance_url: Callable[[], str], tmp_path: Path) -> Iterator[Site]:
    opened_site = Site("site", make_instance_url(), tmp_path)
    yield opened_site
    opened_site.close()


@pytest.fixture
def shop(make_instance_url: Callable[[], str], tmp_path: Path) -> Iterator[Site]:
    opened_site = Site("shop", make_instance_url(), tmp_path)
    yield opened_site
    opened_site.close()


def proofs(site: Site) -> dict[str, Proved]:
    with connect(site.url) as connection:
        return {certificate.name: certificate.proved for certificate in run(connection, all_certificates())}


def load_peers(site: Site) -> Peers:
    """Return the peers of this instance, as a daemon loads them."""
    with connect(site.url) as connection:
        policy = PolicyWatch(site.instance.key_folder()).poll(connection, site.instance.clock())
    assert policy is not None
    found = Peers()
    found.apply(policy)
    found.proves = True
    return found


def doctor(site: Site) -> str:
    return CliRunner().invoke(app, ["doctor", "--instance", site.url]).output


def export_certificate(site: Site, folder: Path, name: str) -> str:
    file = folder / f"{name}.pem"
    site.certificate("create", name)
    site.certificate("export", name, str(file))
    return str(file)


def forge_certificate(folder: Path, instance: UUID | None) -> str:
    """Create a certificate of an attacker that names this instance."""
    facts, _ = x509_certificates.make("mallory", datetime.now(UTC), instance=instance)
    file = folder / "mallory.pem"
    file.write_bytes(x509_certificates.as_pem(facts.der))
    return str(file)


def test_an_import_records_the_instance_of_the_certificate(site: Site, shop: Site, tmp_path: Path) -> None:
    file = export_certificate(shop, tmp_path, "shop")
    site.certificate("import", "shop", file)
    with connect(shop.url) as connection:
        ((identifier,),) = connection.execute("select instance_id from servicebroker.instance").fetchall()
    assert instance_of(read(Path(file).read_bytes()).der) == identifier
    assert proofs(site)["shop"] == Proved("certificate shop", identifier)
    assert load_peers(site).greeted("certificate mallory", identifier) is not None


def test_a_replacing_certificate_keeps_the_owner(site: Site, shop: Site, tmp_path: Path) -> None:
    for name in ("shop", "shop-2", "shop-3"):
        site.certificate("import", name, export_certificate(shop, tmp_path, name))
    assert {certificate.owner for certificate in proofs(site).values()} == {"certificate shop"}
    site.certificate("drop", "shop")
    (instance,) = {certificate.instance for certificate in proofs(site).values()}
    assert instance is not None
    assert load_peers(site).greeted("certificate shop", instance) is None
    assert "No other peer claims" in site.certificate("accept", "shop-2")


def test_all_certificates_of_a_login_have_one_owner(site: Site, shop: Site, tmp_path: Path) -> None:
    site.instance.create_login("Shop")
    first, second = export_certificate(shop, tmp_path, "shop"), forge_certificate(tmp_path, None)
    site.certificate("import", "shop", first, "--login", "shop")
    site.certificate("import", "spare", second, "--login", "SHOP")
    assert {certificate.owner for certificate in proofs(site).values()} == {"login Shop"}


def test_a_claim_by_two_certificates_needs_an_acceptance(site: Site, shop: Site, tmp_path: Path) -> None:
    site.certificate("import", "shop", export_certificate(shop, tmp_path, "shop"))
    instance = proofs(site)["shop"].instance
    assert instance is not None
    site.certificate("import", "mallory", forge_certificate(tmp_path, instance))
    both = load_peers(site)
    assert both.greeted("certificate shop", instance) is not None
    assert both.greeted("certificate mallory", instance) is not None
    assert "servicebroker certificate accept mallory | shop" in doctor(site)
    assert str(instance) in site.certificate("accept", "shop")
    peers = load_peers(site)
    assert peers.greeted("certificate shop", instance) is None
    assert peers.greeted("certificate mallory", instance) is not None
    assert str(instance) not in doctor(site)
    assert site.instance.accept_certificate("mallory").instances == (instance,)  # the last acceptance wins
    assert load_peers(site).greeted("certificate shop", instance) is not None
    site.certificate("drop", "mallory")
    assert load_peers(site).greeted("certificate shop", instance) is None


def test_an_acceptance_at_another_address(site: Site, shop: Site, tmp_path: Path) -> None:
    site.certificate("import", "shop", export_certificate(shop, tmp_path, "shop"))
    site.certificate("import", "moved", forge_certificate(tmp_path, None))
    moved, now = uuid4(), site.instance.clock()
    with connect(site.url) as connection:
        run_alone(connection, known_peers.save_answers({HERE: Answer("certificate shop", uuid4())}, now))
        claims = {
            FalseClaim("certificate moved", ADDRESS, str(HERE)): (3, "certificate shop has answered there before"),
            FalseClaim("certificate moved", INSTANCE, str(moved)): (1, "it is another's"),
        }
        run_alone(connection, known_peers.save_false_claims(claims, now))
    assert load_peers(site).answered(HERE, "certificate moved", moved) is not None
    text = doctor(site)
    assert "peer with certificate moved: It has answered at an address where another peer was, 3 times" in text
    assert site.instance.accept_certificate("moved").addresses == (str(HERE),)
    assert load_peers(site).answered(HERE, "certificate moved", moved) is None
    assert "moved" not in doctor(site)


def test_invalid_acceptances_are_refused(site: Site) -> None:
    site.certificate("create", "own")
    for name in ("own", "nobody"):
        with pytest.raises(sb.BrokerError) as error:
            site.instance.accept_certificate(name)
        assert error.value.number == 15151


def test_the_quota_of_a_peer_is_set_and_shown(site: Site, shop: Site, tmp_path: Path) -> None:
    site.certificate("import", "shop", export_certificate(shop, tmp_path, "shop"))
    site.certificate("create", "own")
    assert site.instance.set_peer_budget("SHOP", {}) == DEFAULT
    shown = site.certificate("budget", "shop", "--set", "openings=5000", "--set", "addresses=7")
    assert [line.split() for line in shown.splitlines() if "openings" in line] == [["openings", "5,000", "1,000"]]
    watch = PolicyWatch(None)
    with connect(site.url) as connection:
        watch.poll(connection, site.instance.clock())
        assert watch.budgets == {"certificate shop": {"openings": 5_000, "addresses": 7}}
        refusal = {RefusalKey(True, "certificate shop", 10928): (12, over_budget("openings", 5_000).text)}
        run_alone(connection, save_refusals(refusal, site.instance.clock()))
    report = doctor(site)
    assert "peer certificate shop: Refused here, 12 times" in report
    assert "The limit of openings for the peer is 5,000 and has been reached." in report
    assert "servicebroker certificate budget" in report
    for name, amounts in (("own", {}), ("nobody", {}), ("shop", {"hats": 1}), ("shop", {"openings": 0})):
        with pytest.raises(sb.BrokerError) as error:
            site.instance.set_peer_budget(name, amounts)
        assert error.value.number in (15151, 402)
    assert site.instance.set_peer_budget("shop", None) == DEFAULT
    site.certificate("budget", "shop", "--set", "openings=9")
    site.certificate("drop", "shop")
    assert query(site.database, "select * from servicebroker.peer_budgets") == []
