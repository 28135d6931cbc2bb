"""Processes of `servicebroker serve`: endpoints, transport security, stops and failures."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from daemons import ServeProcess, Site, Two
from forked import run_command
from servicebroker.broker.daemon import daemon_id
from servicebroker.broker.shares import prepare_session
from servicebroker.engine.remote import departing
from servicebroker.engine.remote.departing import ReadRequest
from servicebroker.engine.security.transport_certificates import add_certificate
from servicebroker.store.connection import connect
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.running import run_alone
from support import (
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    bodies,
    eventually,
    in_thread,
    query,
    terminate_listeners,
    waiting_messages,
)

PLAIN = {"encryption": "DISABLED"}
NOT_CONFIGURED = "The Service Broker protocol transport is disabled or not configured."
NOT_AVAILABLE = "The Service Broker protocol transport is not available."
ONLINE = ("LOGGED_IN", "ONLINE")


def serve_both(two: Two, **clauses: str) -> None:
    for site in (two.west, two.east):
        site.endpoint(**clauses)
        site.serve()


# ---------------------------------------------------------------- endpoints


@pytest.mark.feature(32, 141)
def test_messages_and_replies_travel_between_endpoints(two: Two) -> None:
    serve_both(two, **PLAIN)
    handle = two.send("a", "b")
    (first, _) = two.arrives("a", "b")
    two.east.database.send(first.conversation_handle, REPLY, b"c")
    assert bodies(two.west.database.receive(ORDERS_QUEUE, wait=10, conversation_handle=handle)) == [b"c"]
    two.east.daemon.wait_for_log("is now listening for connections at TCP://127.0.0.1")


def test_the_daemon_plans_a_statement_once_and_reads_by_indexes(make_instance_url: Callable[..., str]) -> None:
    """The daemon pins generic plans. Otherwise PostgreSQL would plan again for each array, or scan whole tables."""
    with connect(make_instance_url()) as connection:
        connection.execute("vacuum analyze")
        prepare_session(connection)
        for _ in range(2):
            assert run_alone(connection, departing.read({uuid4(): ReadRequest(0, 1, 1)}, 1)) == {}
        planned = "select name, generic_plans, custom_plans from pg_prepared_statements"
        ((name, *plans),) = connection.execute(planned).fetchall()
        assert plans == [2, 0]
        nulls = "null, null, null, null, null"
        plan = connection.execute(f"explain execute {name}({nulls})".encode()).fetchall()  # the name is not user input
        assert "Seq Scan" not in str(plan)


def test_the_daemon_polls_under_load_only(two: Two) -> None:
    def listening_rows() -> list[tuple[object, ...]]:
        listed = "select xmin::text, ctid::text from servicebroker.waiting_readers where queue_id = 0"
        return query(two.west.database, listed)

    serve_both(two, **PLAIN)
    handle = two.send("first")
    two.arrives("first")
    eventually(listening_rows)
    before = listening_rows()
    for number in range(12):
        two.send(str(number), handle=handle)
        assert bodies(two.east.database.receive(STOCK_QUEUE, wait=30)) == [str(number).encode()]
    assert listening_rows() == before  # notified for each message, and still registered

    def polls_under_load() -> bool:
        for _ in range(20):  # faster than the daemon transmits them
            two.west.database.send_batch(handle, ORDER, [b"one of many"] * 100)
        return listening_rows() != before

    eventually(polls_under_load)
    eventually(listening_rows)  # no further message arrives


@pytest.mark.feature(142)
def test_without_an_endpoint_nothing_leaves(two: Two) -> None:
    two.west.serve()
    two.east.endpoint(**PLAIN)
    two.east.serve()
    two.send("a")
    two.west.waits(NOT_CONFIGURED)
    two.west.endpoint(**PLAIN)
    two.arrives("a")
    two.west.daemon.wait_for_log("Endpoint configuration change detected.")
    eventually(two.west.connections)  # refreshed once a second: wait for a row first
    two.west.instance.drop_endpoint("broker")
    eventually(lambda: two.west.connections() == [])
    two.send("b")
    two.west.waits(NOT_CONFIGURED)


@pytest.mark.feature(150)
def test_a_stopped_endpoint_has_no_connections_and_peers_keep_their_messages(two: Two) -> None:
    serve_both(two, **PLAIN)
    handle = two.send("a")
    two.arrives("a")
    two.east.instance.alter_endpoint("broker", state="STOPPED")
    two.east.daemon.wait_for_log("has stopped listening for connections")
    eventually(lambda: two.east.connections() == [])
    two.send("b", "c", handle=handle)
    two.west.waits("The target service broker is unreachable.")
    assert waiting_messages(two.west.database) == 2
    two.east.instance.alter_endpoint("broker", state="STARTED")
    two.arrives("b", "c", seconds=30)


@pytest.mark.feature(150)
def test_a_stopped_endpoint_sends_nothing_either(two: Two) -> None:
    two.west.endpoint("STOPPED", **PLAIN)
    two.west.serve()
    two.east.endpoint(**PLAIN)
    two.east.serve()
    two.send("a")
    two.west.waits(NOT_AVAILABLE)
    two.west.instance.alter_endpoint("broker", state="STARTED")
    two.arrives("a", seconds=30)


@pytest.mark.feature(32, 151)
def test_a_disabled_endpoint_answers_with_an_error(two: Two) -> None:
    two.west.endpoint(**PLAIN)
    two.east.endpoint("DISABLED", **PLAIN)
    for site in (two.west, two.east):
        site.serve()
    two.send("a")
    two.west.waits("endpoint is not configured")
    two.east.daemon.wait_for_log("Audit Broker Login", subclass="Authorization Failure")
    two.east.instance.alter_endpoint("broker", state="STARTED")
    two.arrives("a", seconds=30)


@pytest.mark.feature(149)
def test_a_changed_port_applies_without_a_restart(two: Two) -> None:
    serve_both(two, **PLAIN)
    two.send("a")
    two.arrives("a")
    two.east.port += 1
    two.east.instance.alter_endpoint("broker", listener_port=two.east.port)
    two.east.daemon.wait_for_log("Endpoint configuration change detected.")
    two.east.daemon.wait_for_log(f"is now listening for connections at TCP://127.0.0.1:{two.east.port}")
    two.west.database.alter_route("ToStock", address=two.east.address)
    two.send("b")
    two.arrives("b")


@pytest.mark.feature(145)
def test_the_connections_are_shown(two: Two) -> None:
    serve_both(two, **PLAIN)
    assert two.west.connections() == []
    two.send("a")
    two.arrives("a")
    eventually(lambda: two.west.connections() and two.east.connections())
    # if both sides have connected at the same time, one connection is about to be closed
    eventually(lambda: [row[1:] for row in two.west.connections()] == [(*ONLINE, "NONE", None)])
    two.send("b")  # "a" may have used the connection that was closed
    two.arrives("b")
    text = (
        "select peer_arbitration_id, total_bytes_sent > 0, total_bytes_received > 0, total_fragments_sent > 0, "
        "login_time >= connect_time from sys.dm_broker_connections"
    )
    with connect(two.east.url) as connection:
        east = daemon_id(connection)
    eventually(lambda: query(two.west.database, text) == [(east, True, True, True, True)])
    shown = run_command("status", "--instance", two.west.url, "--json").stdout
    (link,) = json.loads(shown)["connections"]
    assert (link["state"], link["principal_name"]) == ("ONLINE", None)
    two.west.daemon.end(signal.SIGKILL)
    eventually(lambda: two.west.connections() == [])
    eventually(lambda: two.east.connections() == [])


# ---------------------------------------------------------------- encryption


@pytest.mark.feature(146, 147, 151)
def test_connections_with_certificates_are_encrypted_by_default(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    serve_both(two)
    handle = two.send("a" * 200_000)
    (message,) = two.arrives("a" * 200_000)
    two.east.database.send(message.conversation_handle, REPLY, b"b" * 300_000)
    assert bodies(two.west.database.receive(ORDERS_QUEUE, wait=10, conversation_handle=handle)) == [b"b" * 300_000]
    eventually(lambda: {row[1:] for row in two.west.connections()} == {(*ONLINE, "AES", "east")})
    eventually(lambda: {row[1:] for row in two.east.connections()} == {(*ONLINE, "AES", "west")})
    two.east.daemon.wait_for_log("Audit Broker Login", subclass="Login Success", certificate="west")


@pytest.mark.feature(147)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("west", "east", "algorithm"),
    [
        ("REQUIRED", "REQUIRED", "AES"),
        ("REQUIRED", "SUPPORTED", "AES"),
        ("SUPPORTED", "REQUIRED", "AES"),
        ("SUPPORTED", "SUPPORTED", "AES"),
        ("SUPPORTED", "DISABLED", "NONE"),
        ("DISABLED", "SUPPORTED", "NONE"),
        ("DISABLED", "DISABLED", "NONE"),
        ("REQUIRED", "DISABLED", ""),
        ("DISABLED", "REQUIRED", ""),
    ],
)
def test_compatible_encryption_modes_connect(two: Two, tmp_path: Path, west: str, east: str, algorithm: str) -> None:
    two.introduce(tmp_path)
    two.west.endpoint(encryption=west)
    two.east.endpoint(encryption=east)
    for site in (two.west, two.east):
        site.serve()
    two.send("a")
    if algorithm:
        two.arrives("a", seconds=30)
        eventually(lambda: {row[3] for row in two.west.connections()} == {algorithm})
    else:
        two.west.waits("There is no compatible encryption algorithm")
        eventually(lambda: 28027 in two.east.refusal_counts())
        assert two.east.database.receive(STOCK_QUEUE) == []


def test_required_encryption_without_a_certificate_is_reported(two: Two) -> None:
    serve_both(two)
    two.send("a")
    two.west.waits("No certificate was found")
    two.west.daemon.wait_for_log("make one with servicebroker certificate create")
    two.west.instance.alter_endpoint("broker", **PLAIN)
    two.west.waits("certificate used by this endpoint was not found")
    two.east.daemon.wait_for_log("Audit Broker Login", subclass="Authentication Failure")


def test_required_encryption_with_an_expired_certificate_is_reported(two: Two) -> None:
    facts, key = x509_certificates.make("west", datetime.now(UTC) - timedelta(days=30), 10)
    KeyFolder(two.west.keys).write(
        facts.thumbprint, x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der)
    )
    with two.west.instance.connection() as connection:
        run_alone(connection, add_certificate("west", facts, is_own=True))
    serve_both(two)
    two.send("a")
    two.west.waits("The certificate found is not valid at the current time")
    two.west.daemon.wait_for_log("There is no valid certificate of this instance with its key")


@pytest.mark.feature(146, 149)
def test_a_peer_whose_certificate_was_not_imported_is_refused(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    two.east.certificate("drop", "west")
    serve_both(two)
    two.send("a")
    two.west.waits("Authentication failed")
    two.east.daemon.wait_for_log(
        "Audit Broker Login", subclass="Authentication Failure", error="none of those that were imported"
    )
    eventually(lambda: 28035 in two.east.refusal_counts())
    assert two.east.database.receive(STOCK_QUEUE) == []
    two.east.certificate("import", "west", str(tmp_path / "west.pem"))
    two.east.daemon.wait_for_log("Certificate change detected.")
    two.arrives("a", seconds=30)


@pytest.mark.feature(146)
def test_a_peer_with_an_unknown_certificate_is_refused(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    two.west.certificate("drop", "east")
    serve_both(two)
    two.send("a")
    two.west.waits("The certificate used by the peer is invalid")
    two.west.daemon.wait_for_log("Audit Broker Login", error="none of those that were imported")
    assert two.east.database.receive(STOCK_QUEUE) == []


def tls_client(identity: Path | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    if identity is not None:
        context.load_cert_chain(identity)
    return context


def create_trusted_certificate(site: Site, folder: Path, name: str, now: datetime, days: int = 10) -> Path:
    """Create a certificate, import it into the instance, and return a file with the certificate and its key."""
    facts, key = x509_certificates.make(name, now, days)
    with site.instance.connection() as connection:
        run_alone(connection, add_certificate(name, facts, is_own=False))
    file = folder / f"{name}.key"
    file.write_bytes(x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
    return file


@pytest.mark.feature(146, 151)
def test_invalid_certificates_and_protocols_are_refused(two: Two, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    east = two.east
    east.certificate("create", "east")
    expired = create_trusted_certificate(east, tmp_path, "old", now - timedelta(days=30))
    early = create_trusted_certificate(east, tmp_path, "early", now + timedelta(days=30))
    good = create_trusted_certificate(east, tmp_path, "good", now)
    east.endpoint()
    east.serve()
    east.daemon.wait_for_log("is now listening")

    def send_and_read(context: ssl.SSLContext | None, payload: bytes = b"") -> bytes:
        """Connect, send the payload, and return the daemon's bytes until it closes the connection."""
        received = b""
        try:
            with socket.create_connection(("127.0.0.1", east.port), 10) as raw:
                stream = raw if context is None else context.wrap_socket(raw)
                with stream:
                    stream.sendall(payload)
                    while portion := stream.recv(4096):
                        received += portion
        except (ssl.SSLError, ConnectionError):
            pass
        return received

    send_and_read(tls_client(expired))
    east.daemon.wait_for_log("Audit Broker Login", subclass="Authentication Failure", error="it has expired")
    send_and_read(tls_client(early))
    east.daemon.wait_for_log("Audit Broker Login", subclass="Authentication Failure", error="it is not valid yet")
    send_and_read(tls_client(None))
    east.daemon.wait_for_log("Audit Broker Login", subclass="Authentication Failure", error="it was not shown")
    send_and_read(tls_client(good, ssl.TLSVersion.TLSv1_2))
    east.daemon.wait_for_log("Audit Broker Login", subclass="Login Protocol Error")
    assert b"compatible encryption" in send_and_read(None, b"GET / HTTP/1.0\r\n\r\n")
    east.daemon.wait_for_log("Audit Broker Login", subclass="Negotiate Failure")
    send_and_read(tls_client(good), b"GET / HTTP/1.0\r\n\r\n")  # accepted, but no frame follows
    east.daemon.wait_for_log("Audit Broker Login", subclass="Message Format Error")
    eventually(lambda: east.refusal_counts() == {28035: 3, 9758: 1, 28027: 1, 11235: 1})
    eventually(lambda: east.connections() == [])
    assert east.daemon.process.poll() is None


def test_certificates_are_replaced_without_loss(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    serve_both(two)
    handle = two.send("0")
    sent = ["0"]
    enough = threading.Event()

    def send_on() -> None:
        while not enough.wait(0.02):
            two.send(str(len(sent)), handle=handle)
            sent.append(str(len(sent)))

    sender = in_thread(send_on)
    two.introduce(tmp_path, "-new")  # both sides accept both certificates
    for site, peer in ((two.west, two.east), (two.east, two.west)):
        site.certificate("drop", site.name)  # from now on this side presents the new certificate
        peer.daemon.wait_for_log("Audit Broker Login", subclass="Login Success", certificate=f"{site.name}-new")
        peer.certificate("drop", site.name)
    enough.set()
    sender.result(60)
    two.send("last", handle=handle)
    two.arrives(*sent, "last", seconds=60)
    eventually(lambda: {row[4] for row in two.east.connections()} == {"west-new"})


@pytest.mark.feature(146)
def test_the_endpoint_names_its_certificate(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    two.introduce(tmp_path, "2")
    serve_both(two)
    two.send("a")
    two.arrives("a", seconds=30)
    eventually(lambda: {row[4] for row in two.east.connections()} == {"west"})
    two.west.instance.alter_endpoint("broker", authentication="CERTIFICATE WEST2")
    two.send("b")
    two.arrives("b", seconds=30)
    eventually(lambda: {row[4] for row in two.east.connections()} == {"west2"})


def test_a_key_that_others_may_read_is_not_used(two: Two) -> None:
    two.east.certificate("create", "east")
    (file,) = two.east.keys.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    two.east.endpoint()
    two.east.serve()
    two.east.daemon.wait_for_log("make it yours alone with chmod 600")


# ---------------------------------------------------------------- the process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_daemon_and_closes_its_connections(two: Two, number: int) -> None:
    serve_both(two, **PLAIN)
    two.send("a")
    two.arrives("a")
    assert two.east.daemon.end(number) == 0
    assert two.east.daemon.has_logged("The broker is shut down.")
    eventually(lambda: two.west.connections() == [])
    handle = two.send("b")
    two.east.serve()
    two.send("c", handle=handle)
    two.arrives("b", "c")  # the restarted daemon connects itself, without a backoff


def test_listen_overrides_the_stored_endpoint(two: Two) -> None:
    two.east.endpoint("STOPPED")
    for site in (two.west, two.east):
        site.serve("--listen", f"127.0.0.1:{site.port}", "--encryption", "disabled")
    two.send("a")
    two.arrives("a")


@pytest.mark.feature(141)
def test_a_port_in_use_is_retried(two: Two) -> None:
    with socket.create_server(("127.0.0.1", two.east.port)):
        serve_both(two, **PLAIN)
        two.east.daemon.wait_for_log(f"cannot listen on port {two.east.port} because it is in use by another process")
        two.send("a")
    two.arrives("a", seconds=30)
    assert len([line for line in two.east.daemon.lines if "cannot listen" in line["message"]]) == 1


def test_an_address_of_another_host_is_reported(two: Two) -> None:
    two.east.instance.create_endpoint(
        "broker", state="STARTED", listener_port=two.east.port, listener_ip="203.0.113.1", **PLAIN
    )
    two.east.serve()
    two.east.daemon.wait_for_log("could not listen for connections due to the following error")


def test_another_daemon_stands_by_and_takes_over(two: Two) -> None:
    serve_both(two, **PLAIN)
    first = two.east.daemon
    first.wait_for_log("This process serves the instance.")
    second = two.east.serve()
    second.wait_for_log("Another process serves the instance; this one stands by")
    two.send("a")
    two.arrives("a")
    first.end(signal.SIGKILL)
    two.send("b")
    second.wait_for_log("This process serves the instance.")
    two.arrives("b", seconds=30)


def test_the_daemon_reconnects_after_all_sessions_were_terminated(two: Two) -> None:
    serve_both(two, **PLAIN)
    handle = two.send("a")
    two.arrives("a")
    text = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'servicebroker serve' "
    for site in (two.west, two.east):
        with psycopg.connect(site.url, autocommit=True) as connection:
            connection.execute(text + "and datname = current_database()")
    two.send("b", handle=handle)
    two.arrives("b", seconds=30)
    two.east.daemon.wait_for_log("The connection to the database was lost; reconnecting")


def test_the_daemon_notices_a_lost_listen_session(two: Two) -> None:
    """Only the session with LISTEN is lost. The others go on."""
    serve_both(two, **PLAIN)
    handle = two.send("a")
    two.arrives("a")
    terminate_listeners(two.west.url, "servicebroker serve")
    two.west.daemon.wait_for_log("The connection to the database was lost; reconnecting")
    two.send("b", handle=handle)
    two.arrives("b")


def test_the_daemon_waits_for_an_unreachable_database(tmp_path: Path) -> None:
    served = ServeProcess("postgresql://127.0.0.1:1/none", tmp_path)
    try:
        served.wait_for_log("The database is tried again every 2 seconds: Cannot connect to PostgreSQL")
        assert served.end() == 0
    finally:
        served.kill()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "4022"), "HOST:PORT"),
        (("--listen", "127.0.0.1:0"), "5837"),
        (("--listen", "127.0.0.1:32768"), "5837"),
        (("--listen", ":4022", "--encryption", "MAYBE"), "--encryption"),
        ((), "no instance"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    result = run_command("serve", "--instance", tmp_path, *arguments)
    assert result.returncode == 1
    assert words in result.stderr
    assert result.stderr.startswith("servicebroker: ")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
