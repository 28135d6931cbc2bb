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
from servicebroker.model.security.peers import ADDRESS, INSTANCE, Answer, Mistrust, Proved
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
    one = Site("site", make_instance_url(), tmp_path)
    yield one
    one.close()


@pytest.fixture
def shop(make_instance_url: Callable[[], str], tmp_path: Path) -> Iterator[Site]:
    one = Site("shop", make_instance_url(), tmp_path)
    yield one
    one.close()


def proved(site: Site) -> dict[str, Proved]:
    with connect(site.url) as connection:
        return {one.name: one.proved for one in run(connection, all_certificates())}


def known(site: Site) -> Peers:
    """Return the peers that a daemon of this instance would know."""
    with connect(site.url) as connection:
        policy = PolicyWatch(site.instance.key_folder()).poll(connection, site.instance.clock())
    assert policy is not None
    found = Peers()
    found.apply(policy)
    found.proves = True
    return found


def doctor(site: Site) -> str:
    return CliRunner().invoke(app, ["doctor", "--instance", site.url]).output


def exported(site: Site, folder: Path, name: str) -> str:
    file = folder / f"{name}.pem"
    site.certificate("create", name)
    site.certificate("export", name, str(file))
    return str(file)


def forged(folder: Path, instance: UUID | None) -> str:
    """A certificate of somebody else that names this instance."""
    facts, _ = x509_certificates.make("mallory", datetime.now(UTC), instance=instance)
    file = folder / "mallory.pem"
    file.write_bytes(x509_certificates.as_pem(facts.der))
    return str(file)


def test_an_import_ties_the_instance_that_the_certificate_names(site: Site, shop: Site, tmp_path: Path) -> None:
    file = exported(shop, tmp_path, "shop")
    site.certificate("import", "shop", file)
    with connect(shop.url) as connection:
        ((identifier,),) = connection.execute("select instance_id from servicebroker.instance").fetchall()
    assert instance_of(read(Path(file).read_bytes()).der) == identifier
    assert proved(site)["shop"] == Proved("certificate shop", identifier)
    assert known(site).greeted("certificate mallory", identifier) is not None


def test_a_certificate_that_replaces_another_has_its_owner(site: Site, shop: Site, tmp_path: Path) -> None:
    for name in ("shop", "shop-2", "shop-3"):
        site.certificate("import", name, exported(shop, tmp_path, name))
    assert {one.owner for one in proved(site).values()} == {"certificate shop"}
    site.certificate("drop", "shop")
    (instance,) = {one.instance for one in proved(site).values()}
    assert instance is not None
    assert known(site).greeted("certificate shop", instance) is None
    assert "No other peer claims" in site.certificate("accept", "shop-2")


def test_of_one_login_are_all_of_its_certificates(site: Site, shop: Site, tmp_path: Path) -> None:
    site.instance.create_login("Shop")
    first, second = exported(shop, tmp_path, "shop"), forged(tmp_path, None)
    site.certificate("import", "shop", first, "--login", "shop")
    site.certificate("import", "spare", second, "--login", "SHOP")
    assert {one.owner for one in proved(site).values()} == {"login Shop"}


def test_two_imports_that_name_one_instance_are_believed_once_one_is_accepted(
    site: Site, shop: Site, tmp_path: Path
) -> None:
    site.certificate("import", "shop", exported(shop, tmp_path, "shop"))
    instance = proved(site)["shop"].instance
    assert instance is not None
    site.certificate("import", "mallory", forged(tmp_path, instance))
    both = known(site)
    assert both.greeted("certificate shop", instance) is not None
    assert both.greeted("certificate mallory", instance) is not None
    assert "servicebroker certificate accept mallory | shop" in doctor(site)
    assert str(instance) in site.certificate("accept", "shop")
    one = known(site)
    assert one.greeted("certificate shop", instance) is None
    assert one.greeted("certificate mallory", instance) is not None
    assert str(instance) not in doctor(site)
    assert site.instance.accept_certificate("mallory").instances == (instance,)  # the last word counts
    assert known(site).greeted("certificate shop", instance) is not None
    site.certificate("drop", "mallory")
    assert known(site).greeted("certificate shop", instance) is None


def test_who_has_answered_elsewhere_is_accepted_there(site: Site, shop: Site, tmp_path: Path) -> None:
    site.certificate("import", "shop", exported(shop, tmp_path, "shop"))
    site.certificate("import", "moved", forged(tmp_path, None))
    moved, now = uuid4(), site.instance.clock()
    with connect(site.url) as connection:
        run_alone(connection, known_peers.save_answers({HERE: Answer("certificate shop", uuid4())}, now))
        claims = {
            Mistrust("certificate moved", ADDRESS, str(HERE)): (3, "certificate shop has answered there before"),
            Mistrust("certificate moved", INSTANCE, str(moved)): (1, "it is another's"),
        }
        run_alone(connection, known_peers.save_mistrusted(claims, now))
    assert known(site).answered(HERE, "certificate moved", moved) is not None
    text = doctor(site)
    assert "peer with certificate moved: It has answered at an address where another peer was, 3 times" in text
    assert site.instance.accept_certificate("moved").addresses == (str(HERE),)
    assert known(site).answered(HERE, "certificate moved", moved) is None
    assert "moved" not in doctor(site)


def test_what_cannot_be_accepted(site: Site) -> None:
    site.certificate("create", "own")
    for name in ("own", "nobody"):
        with pytest.raises(sb.BrokerError) as caught:
            site.instance.accept_certificate(name)
        assert caught.value.number == 15151


def test_the_budget_of_a_peer_is_set_and_shown(site: Site, shop: Site, tmp_path: Path) -> None:
    site.certificate("import", "shop", exported(shop, tmp_path, "shop"))
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
    found = doctor(site)
    assert "peer certificate shop: Refused here, 12 times" in found
    assert "The limit of openings for the peer is 5,000 and has been reached." in found
    assert "servicebroker certificate budget" in found
    for name, amounts in (("own", {}), ("nobody", {}), ("shop", {"hats": 1}), ("shop", {"openings": 0})):
        with pytest.raises(sb.BrokerError) as caught:
            site.instance.set_peer_budget(name, amounts)
        assert caught.value.number in (15151, 402)
    assert site.instance.set_peer_budget("shop", None) == DEFAULT
    site.certificate("budget", "shop", "--set", "openings=9")
    site.certificate("drop", "shop")
    assert query(site.database, "select * from servicebroker.peer_budgets") == []
