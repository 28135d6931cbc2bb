"""The expiry of certificates in use, as doctor, status and the metrics report it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.broker import metrics
from servicebroker.cli.main import app as command
from servicebroker.engine.remote.domain_state import ReportedMembership, report_membership
from servicebroker.engine.security.transport_certificates import add_certificate
from servicebroker.store.keys import x509_certificates
from servicebroker.store.running import run_alone

DAY = timedelta(days=1)
NOW = datetime.now(UTC)


CERTIFICATE_METRICS = ("servicebroker_expiring_certificates", "servicebroker_certificate_seconds_left")


@pytest.fixture
def shop(fresh_instance: sb.Instance, tmp_path: Path) -> Iterator[sb.Database]:
    with sb.open(fresh_instance.url, upkeep=None, keys=tmp_path) as instance:
        yield instance.database("Shop", create=True)


def run_command(shop: sb.Database, *arguments: str) -> Any:
    result = CliRunner().invoke(command, [*arguments, "--instance", shop.instance.url, "--json"])
    assert result.exit_code in (0, 1), result.output
    assert not isinstance(result.exception, Exception), repr(result.exception)
    return json.loads(result.stdout)


def doctor(shop: sb.Database) -> dict[str, str]:
    findings = run_command(shop, "doctor")["findings"]
    return {finding["subject"]: finding["problem"] for finding in findings if finding["subject"] != "PostgreSQL"}


def import_certificate(shop: sb.Database, name: str, days: float, login: str | None = None) -> None:
    facts, _ = x509_certificates.issue(name, NOW - 400 * DAY, NOW + days * DAY)
    with shop.instance.connection() as connection:
        run_alone(connection, add_certificate(name, facts, is_own=False, login=login))


def scrape(shop: sb.Database) -> dict[str, float]:
    text = prometheus_client.generate_latest(metrics.registry(shop.instance.url)).decode()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(CERTIFICATE_METRICS))
    return {name.removeprefix("servicebroker_"): float(value) for name, value in lines}


def test_expiring_transport_certificates_are_reported(shop: sb.Database) -> None:
    instance = shop.instance
    assert (doctor(shop), scrape(shop)) == ({}, {"expiring_certificates": 0})
    instance.create_certificate("mine", expiry_date=NOW + 29 * DAY)
    instance.create_certificate("next", expiry_date=NOW + 9 * DAY)  # shown only after the other one was dropped
    instance.create_login("partner")
    import_certificate(shop, "partner-old", 2, "partner")
    import_certificate(shop, "partner-new", 90, "partner")
    import_certificate(shop, "gone", -1)
    assert {*doctor(shop)} == {"certificate mine", "certificate gone"}
    assert "expires on" in doctor(shop)["certificate mine"]
    assert "has expired on" in doctor(shop)["certificate gone"]
    assert [certificate["name"] for certificate in run_command(shop, "status")["expiring_certificates"]] == [
        "mine",
        "gone",
    ]
    seen = scrape(shop)
    assert seen["expiring_certificates"] == 2
    assert 89 < seen['certificate_seconds_left{certificate="partner-new",database="",user=""}'] / 86_400 < 91
    assert "servicebroker doctor" in CliRunner().invoke(command, ["status", "--instance", instance.url]).stdout
    instance.drop_certificate("mine")
    assert {*doctor(shop)} == {"certificate next", "certificate gone"}


def test_certificates_that_the_endpoint_does_not_use_are_not_reported(shop: sb.Database) -> None:
    shop.instance.create_certificate("mine", expiry_date=NOW + DAY)
    shop.instance.create_endpoint("e", listener_port=4022, authentication="WINDOWS")
    assert doctor(shop) == {}
    shop.instance.alter_endpoint("e", authentication="WINDOWS CERTIFICATE")
    assert {*doctor(shop)} == {"certificate mine"}


def test_expiring_dialog_certificates_are_reported(shop: sb.Database) -> None:
    """Only users of conversations count, each with the certificate that would be used."""
    shop.create_master_key("Pa55 of the shop")
    for user in ("Owner", "Far", "Sender", "Idle", "Well"):
        shop.create_user(user)
        shop.create_certificate(f"{user}1", authorization=user, start_date=NOW - DAY, expiry_date=NOW + 20 * DAY)
    shop.create_certificate("Well2", authorization="Well", start_date=NOW - DAY, expiry_date=NOW + 200 * DAY)
    shop.create_queue("Q")
    shop.create_service("//shop", "Q", authorization="Owner")
    shop.create_service("//well", "Q", authorization="Well")
    shop.create_remote_service_binding("b", to_service="//far", user="Far")
    shop.grant("SEND", "Sender", service="//shop")
    assert {*doctor(shop)} == {"certificate Owner1", "certificate Far1", "certificate Sender1"}
    assert "the user Owner in Shop and expires on" in doctor(shop)["certificate Owner1"]
    assert scrape(shop)["expiring_certificates"] == 3
    assert {certificate["user"] for certificate in run_command(shop, "status")["expiring_certificates"]} == {
        "Owner",
        "Far",
        "Sender",
    }
    used = {
        certificate["name"]: certificate["is_used"]
        for certificate in run_command(shop, "certificate", "list", "--database", "Shop")["certificates"]
    }
    assert used == {"Owner1": True, "Far1": True, "Sender1": True, "Idle1": True, "Well1": False, "Well2": True}


def test_a_domain_certificate_is_reported_only_if_it_is_not_renewed(shop: sb.Database) -> None:
    def tell(days: float, problem: str = "") -> None:
        with shop.instance.connection() as connection:
            told = ReportedMembership("CORP\\shop", b"", NOW, NOW + days * DAY, problem)
            run_alone(connection, report_membership(told))

    tell(5)
    assert (doctor(shop), scrape(shop)) == ({}, {"expiring_certificates": 0})
    tell(5, "CORP\\shop was revoked.")
    assert "is not renewed: CORP\\shop was revoked." in doctor(shop)["domain member CORP\\shop"]
    assert scrape(shop)["expiring_certificates"] == 1
    tell(0.5)
    assert "is not renewed: Start servicebroker serve" in doctor(shop)["domain member CORP\\shop"]


def test_the_list_marks_the_presented_certificate(shop: sb.Database) -> None:
    instance = shop.instance
    instance.create_certificate("early", start_date=NOW + 9 * DAY)
    instance.create_certificate("locked", encryption_password="Pa55 of the key")
    instance.create_certificate("first")
    instance.create_certificate("second")
    used = {
        certificate["name"]: certificate["is_used"]
        for certificate in run_command(shop, "certificate", "list")["certificates"]
    }
    assert used == {"early": False, "locked": False, "first": True, "second": False}
    shown = (
        CliRunner().invoke(command, ["certificate", "list", "--instance", instance.url], env={"COLUMNS": "200"}).stdout
    )
    assert "(not yet valid)" in shown
    assert "under a password" in shown
    instance.create_endpoint("e", listener_port=4022, authentication="CERTIFICATE second")
    used = {
        certificate["name"]: certificate["is_used"]
        for certificate in run_command(shop, "certificate", "list")["certificates"]
    }
    assert used == {"early": False, "locked": False, "first": False, "second": True}
