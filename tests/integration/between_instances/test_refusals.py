"""Refusals between instances as findings of `servicebroker doctor` on both sides: peer, reason and remedy."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from daemons import Site, Two, two_sites
from hostile import Hostile
from servicebroker.broker.refusals import Refusals
from servicebroker.cli.main import app
from servicebroker.engine.diagnosis import conversation_findings, queue_findings
from servicebroker.engine.remote.refusals import MAX_ROWS, REFUSAL_RETENTION, RefusalKey, find_refusals, save_refusals
from servicebroker.store.connection import connect
from servicebroker.store.keys import x509_certificates
from servicebroker.store.running import run, run_alone
from support import CONTRACT, ORDER, ORDERS, STOCK, eventually

KEEPER, KEPT_SERVICE = "Keeper", "//test/Kept"


@pytest.fixture(scope="module")
def two(make_instance_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two instances with each other's certificates, and their daemons."""
    folder = tmp_path_factory.mktemp("refusals")
    with two_sites(make_instance_url, folder) as sites:
        sites.introduce(folder)
        for site in (sites.west, sites.east):
            site.endpoint()
            site.serve()
        sites.send("they are connected")
        sites.arrives("they are connected")
        yield sites


def doctor(site: Site) -> list[dict[str, str]]:
    """Return the findings of doctor about peers and waiting messages."""
    result = CliRunner().invoke(app, ["doctor", "--instance", site.url, "--json"])
    findings: list[dict[str, str]] = json.loads(result.stdout)["findings"]
    assert result.exit_code == (1 if findings else 0)
    return [finding for finding in findings if finding["subject"].startswith(("peer", "service"))]


def wait_for_finding(site: Site, *words: str) -> dict[str, str]:
    """Wait until one finding of doctor contains all of these words, and return it."""
    findings: list[dict[str, str]] = []

    def is_there() -> bool:
        findings[:] = [finding for finding in doctor(site) if all(word in " ".join(finding.values()) for word in words)]
        return bool(findings)

    try:
        eventually(is_there)
    except AssertionError:
        raise AssertionError(f"not found: {words}\n{doctor(site)}\n{site.daemon.lines}") from None
    return findings[0]


def test_a_refusal_is_reported_at_the_target_and_at_the_sender(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_findings, "UNEXPLAINED_WAIT", timedelta(seconds=1))
    east = two.east.database
    east.create_user(KEEPER)
    east.create_queue("Kept")
    east.create_service(KEPT_SERVICE, "Kept", [CONTRACT], authorization=KEEPER)
    east.grant("SEND", "public", service=KEPT_SERVICE)
    east.deny("RECEIVE", KEEPER, queue="Kept")
    two.west.database.create_route(KEPT_SERVICE, service_name=KEPT_SERVICE, address=two.east.address)
    handle = two.west.database.begin_dialog(ORDERS, KEPT_SERVICE, contract=CONTRACT, encryption=False)
    two.west.database.send(handle, ORDER, b"x")
    finding = wait_for_finding(two.east, "Refused here", "8401", "does not have permission to receive", KEPT_SERVICE)
    assert finding["subject"] == "peer certificate west"
    assert "GRANT RECEIVE on the queue" in finding["advice"]
    waits = wait_for_finding(two.west, f"service {KEPT_SERVICE}", "nobody has said why")
    assert "servicebroker doctor at the other side" in waits["advice"]
    two.west.database.end_conversation(handle, cleanup=True)


def test_messages_in_transit_are_no_finding(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message without a status is not a finding for 10 seconds. After that it is one, also for its conversation."""
    two.west.database.create_route("Mute", service_name="//test/Mute", address=two.east.address)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        two.west.database.alter_route("Mute", address=f"TCP://127.0.0.1:{mute.getsockname()[1]}")
        handle = two.west.database.begin_dialog(ORDERS, "//test/Mute", contract=CONTRACT, encryption=False)
        two.west.database.send(handle, ORDER, b"x")
        asked = ["doctor", "--instance", two.west.url, "--database", "Test", "--conversation", str(handle)]
        assert not [finding for finding in doctor(two.west) if finding["subject"] == "service //test/Mute"]
        assert CliRunner().invoke(app, asked).exit_code == 0
        for module in (queue_findings, conversation_findings):
            monkeypatch.setattr(module, "UNEXPLAINED_WAIT", timedelta(0))
        wait_for_finding(two.west, "service //test/Mute", "1 message to it waits", "nobody has said why")
        assert "nobody has said why" in CliRunner().invoke(app, asked).output
    found = wait_for_finding(
        two.west, "service //test/Mute", "The target service broker is unreachable", "Connection refused"
    )
    assert "servicebroker route alter" in found["advice"]
    two.west.database.end_conversation(handle, cleanup=True)


def test_a_peer_that_is_no_broker_is_reported(two: Two) -> None:
    with socket.create_connection(("127.0.0.1", two.east.port), 10) as stream:
        stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert stream.recv(1000)
    finding = wait_for_finding(two.east, "peer TCP://127.0.0.1", "Refused here", "encryption algorithm")
    assert finding["problem"].count("28027") == 1
    assert "ALTER ENDPOINT" in finding["advice"]
    report = CliRunner().invoke(app, ["status", "--instance", two.east.url], env={"COLUMNS": "300"}).output
    assert re.search(
        r"1 connection refused with 28027, the last from TCP://127.0.0.1:\d+: Connection handshake failed", report
    )


def test_a_peer_without_connect_permission_learns_no_names(two: Two, tmp_path: Path) -> None:
    facts, key = x509_certificates.make("mallory", datetime.now(UTC))
    identity, file = tmp_path / "mallory.key", tmp_path / "mallory.pem"
    identity.write_bytes(x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
    file.write_bytes(x509_certificates.as_pem(facts.der))
    east = two.east
    east.instance.create_login("mallorys_login")
    east.certificate("import", "mallory", str(file), "--login", "mallorys_login")

    def refusal_text() -> tuple[int, str] | None:
        try:
            peer = Hostile.connect(east.port, identity, uuid4()).hear()
        except OSError:  # the daemon may load the new certificate at this moment
            return None
        peer.close()
        return None if peer.closed is None else peer.closed[:2]

    eventually(lambda: (refusal_text() or (0, ""))[0] == 28034)
    number, text = refusal_text() or (0, "")
    assert (number, "CONNECT permission" in text, "mallorys_login" in text) == (28034, True, False)
    assert "mallorys_login" in wait_for_finding(east, "28034", "GRANT CONNECT")["problem"]


def test_a_dropped_certificate_is_found_on_both_sides(two: Two) -> None:
    two.east.certificate("drop", "west")
    handle = two.send()
    # some messages may still arrive
    eventually(lambda: "unknown ca" in two.west.status() or not two.send("x", handle=handle))
    finding = wait_for_finding(two.west, "It refuses us", "9751", f"peer {two.east.address}")
    assert "certificate export here and certificate import at the peer" in finding["advice"]
    wait_for_finding(two.west, f"service {STOCK}", "unknown ca")
    finding = wait_for_finding(
        two.east, "peer TCP://127.0.0.1", "Refused here", "28035", "none of those that were imported into this instance"
    )
    assert "servicebroker certificate import" in finding["advice"]
    two.west.database.end_conversation(handle, cleanup=True)


def test_refusals_are_bounded(two: Two) -> None:
    noted = Refusals()
    for number in range(10_000):
        noted.note(RefusalKey(True, f"10.0.0.{number}", 28035), "no\0\x1b")
    noted.note(RefusalKey(True, "a", 11218), "duplicates are the ordinary life of messages")
    taken = noted.take()
    assert len(taken) == MAX_ROWS + 1
    assert noted.take() == {}
    now = datetime.now(UTC)
    with connect(two.west.url) as connection:
        for late in (REFUSAL_RETENTION * 2, timedelta(0), timedelta(0)):
            run_alone(connection, save_refusals(taken, now - late))
        kept = run(connection, find_refusals(now - REFUSAL_RETENTION))
        assert len(kept) == MAX_ROWS
        assert {refusal.occurrences for refusal in kept if refusal.peer != "others"} <= {1, 2, 3}
        connection.execute("delete from servicebroker.refusals")
        connection.commit()
