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

from daemons import Served, Site, Two
from forked import ran
from servicebroker.broker.daemon import daemon_id
from servicebroker.broker.shares import pin_plans
from servicebroker.engine.remote import departing
from servicebroker.engine.remote.departing import Reading
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
    deafened,
    eventually,
    in_thread,
    query,
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
    two.east.daemon.says("is now listening for connections at TCP://127.0.0.1")


def test_the_daemon_plans_a_statement_once_and_reads_by_indexes(make_instance_url: Callable[..., str]) -> None:
    """Plans stay while the tables are empty; PostgreSQL would plan for each array anew, or read whole tables."""
    with connect(make_instance_url()) as connection:
        connection.execute("vacuum analyze")
        pin_plans(connection)
        for _ in range(2):
            assert run_alone(connection, departing.read({uuid4(): Reading(0, 1, 1)}, 1)) == {}
        planned = "select name, generic_plans, custom_plans from pg_prepared_statements"
        ((name, *plans),) = connection.execute(planned).fetchall()
        assert plans == [2, 0]
        nulls = "null, null, null, null, null"
        plan = connection.execute(f"explain execute {name}({nulls})".encode()).fetchall()  # a name of ours
        assert "Seq Scan" not in str(plan)


def test_the_daemon_gets_up_for_many_messages_and_not_for_one_at_a_time(two: Two) -> None:
    def dozing() -> list[tuple[object, ...]]:
        listed = "select xmin::text, ctid::text from servicebroker.waiting_readers where queue_id = 0"
        return query(two.west.database, listed)

    serve_both(two, **PLAIN)
    handle = two.send("first")
    two.arrives("first")
    eventually(dozing)
    before = dozing()
    for number in range(12):
        two.send(str(number), handle=handle)
        assert bodies(two.east.database.receive(STOCK_QUEUE, wait=30)) == [str(number).encode()]
    assert dozing() == before  # rung for each message, and never off the list

    def up_meanwhile() -> bool:
        for _ in range(20):  # faster than they are carried, round after round
            two.west.database.send_batch(handle, ORDER, [b"one of many"] * 100)
        return dozing() != before

    eventually(up_meanwhile)
    eventually(dozing)  # no message comes any more


@pytest.mark.feature(142)
def test_without_an_endpoint_nothing_leaves(two: Two) -> None:
    two.west.serve()
    two.east.endpoint(**PLAIN)
    two.east.serve()
    two.send("a")
    two.west.waits(NOT_CONFIGURED)
    two.west.endpoint(**PLAIN)
    two.arrives("a")
    two.west.daemon.says("Endpoint configuration change detected.")
    eventually(two.west.connections)  # shown once a second: none shown yet would look like none left
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
    two.east.daemon.says("has stopped listening for connections")
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
    two.east.daemon.says("Audit Broker Login", subclass="Authorization Failure")
    two.east.instance.alter_endpoint("broker", state="STARTED")
    two.arrives("a", seconds=30)


@pytest.mark.feature(149)
def test_another_port_is_taken_while_it_runs(two: Two) -> None:
    serve_both(two, **PLAIN)
    two.send("a")
    two.arrives("a")
    two.east.port += 1
    two.east.instance.alter_endpoint("broker", listener_port=two.east.port)
    two.east.daemon.says("Endpoint configuration change detected.")
    two.east.daemon.says(f"is now listening for connections at TCP://127.0.0.1:{two.east.port}")
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
    # two that were opened at once: one of them is on its way out
    eventually(lambda: [one[1:] for one in two.west.connections()] == [(*ONLINE, "NONE", None)])
    two.send("b")  # "a" may have travelled on the connection that ended
    two.arrives("b")
    text = (
        "select peer_arbitration_id, total_bytes_sent > 0, total_bytes_received > 0, total_fragments_sent > 0, "
        "login_time >= connect_time from sys.dm_broker_connections"
    )
    with connect(two.east.url) as connection:
        east = daemon_id(connection)
    eventually(lambda: query(two.west.database, text) == [(east, True, True, True, True)])
    shown = ran("status", "--instance", two.west.url, "--json").stdout
    (link,) = json.loads(shown)["connections"]
    assert (link["state"], link["principal_name"]) == ("ONLINE", None)
    two.west.daemon.end(signal.SIGKILL)
    eventually(lambda: two.west.connections() == [])
    eventually(lambda: two.east.connections() == [])


# ---------------------------------------------------------------- encryption


@pytest.mark.feature(146, 147, 151)
def test_with_certificates_it_is_encrypted_by_default(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    serve_both(two)
    handle = two.send("a" * 200_000)
    (message,) = two.arrives("a" * 200_000)
    two.east.database.send(message.conversation_handle, REPLY, b"b" * 300_000)
    assert bodies(two.west.database.receive(ORDERS_QUEUE, wait=10, conversation_handle=handle)) == [b"b" * 300_000]
    eventually(lambda: {row[1:] for row in two.west.connections()} == {(*ONLINE, "AES", "east")})
    eventually(lambda: {row[1:] for row in two.east.connections()} == {(*ONLINE, "AES", "west")})
    two.east.daemon.says("Audit Broker Login", subclass="Login Success", certificate="west")


@pytest.mark.feature(147)
@pytest.mark.sampled(4)
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
def test_which_modes_agree(two: Two, tmp_path: Path, west: str, east: str, algorithm: str) -> None:
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
        eventually(lambda: 28027 in two.east.refused())
        assert two.east.database.receive(STOCK_QUEUE) == []


def test_required_without_a_certificate_says_so(two: Two) -> None:
    serve_both(two)
    two.send("a")
    two.west.waits("No certificate was found")
    two.west.daemon.says("make one with servicebroker certificate create")
    two.west.instance.alter_endpoint("broker", **PLAIN)
    two.west.waits("certificate used by this endpoint was not found")
    two.east.daemon.says("Audit Broker Login", subclass="Authentication Failure")


def test_required_with_a_certificate_whose_time_is_over_says_so(two: Two) -> None:
    facts, key = x509_certificates.make("west", datetime.now(UTC) - timedelta(days=30), 10)
    KeyFolder(two.west.keys).write(
        facts.thumbprint, x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der)
    )
    with two.west.instance.connection() as connection:
        run_alone(connection, add_certificate("west", facts, is_own=True))
    serve_both(two)
    two.send("a")
    two.west.waits("The certificate found is not valid at the current time")
    two.west.daemon.says("There is no valid certificate of this instance with its key")


@pytest.mark.feature(146, 149)
def test_a_peer_whose_certificate_was_not_imported_is_refused(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    two.east.certificate("drop", "west")
    serve_both(two)
    two.send("a")
    two.west.waits("Authentication failed")
    two.east.daemon.says(
        "Audit Broker Login", subclass="Authentication Failure", error="none of those that were imported"
    )
    eventually(lambda: 28035 in two.east.refused())
    assert two.east.database.receive(STOCK_QUEUE) == []
    two.east.certificate("import", "west", str(tmp_path / "west.pem"))
    two.east.daemon.says("Certificate change detected.")
    two.arrives("a", seconds=30)


@pytest.mark.feature(146)
def test_a_peer_that_is_somebody_else_is_not_believed(two: Two, tmp_path: Path) -> None:
    two.introduce(tmp_path)
    two.west.certificate("drop", "east")
    serve_both(two)
    two.send("a")
    two.west.waits("The certificate used by the peer is invalid")
    two.west.daemon.says("Audit Broker Login", error="none of those that were imported")
    assert two.east.database.receive(STOCK_QUEUE) == []


def tls_client(identity: Path | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    if identity is not None:
        context.load_cert_chain(identity)
    return context


def made(site: Site, folder: Path, name: str, now: datetime, days: int = 10) -> Path:
    """A certificate with its key that an instance lets in."""
    facts, key = x509_certificates.make(name, now, days)
    with site.instance.connection() as connection:
        run_alone(connection, add_certificate(name, facts, is_own=False))
    file = folder / f"{name}.key"
    file.write_bytes(x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
    return file


@pytest.mark.feature(146, 151)
def test_what_else_is_refused(two: Two, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    east = two.east
    east.certificate("create", "east")
    expired = made(east, tmp_path, "old", now - timedelta(days=30))
    early = made(east, tmp_path, "early", now + timedelta(days=30))
    good = made(east, tmp_path, "good", now)
    east.endpoint()
    east.serve()
    east.daemon.says("is now listening")

    def answer(context: ssl.SSLContext | None, said: bytes = b"") -> bytes:
        """Return the bytes of the daemon until it closes the connection."""
        heard = b""
        try:
            with socket.create_connection(("127.0.0.1", east.port), 10) as raw:
                stream = raw if context is None else context.wrap_socket(raw)
                with stream:
                    stream.sendall(said)
                    while portion := stream.recv(4096):
                        heard += portion
        except (ssl.SSLError, ConnectionError):
            pass
        return heard

    answer(tls_client(expired))
    east.daemon.says("Audit Broker Login", subclass="Authentication Failure", error="it has expired")
    answer(tls_client(early))
    east.daemon.says("Audit Broker Login", subclass="Authentication Failure", error="it is not valid yet")
    answer(tls_client(None))
    east.daemon.says("Audit Broker Login", subclass="Authentication Failure", error="it was not shown")
    answer(tls_client(good, ssl.TLSVersion.TLSv1_2))
    east.daemon.says("Audit Broker Login", subclass="Login Protocol Error")
    assert b"compatible encryption" in answer(None, b"GET / HTTP/1.0\r\n\r\n")
    east.daemon.says("Audit Broker Login", subclass="Negotiate Failure")
    answer(tls_client(good), b"GET / HTTP/1.0\r\n\r\n")  # let in, but this is no frame of ours
    east.daemon.says("Audit Broker Login", subclass="Message Format Error")
    eventually(lambda: east.refused() == {28035: 3, 9758: 1, 28027: 1, 11235: 1})
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
    two.introduce(tmp_path, "-new")  # both accept both
    for site, peer in ((two.west, two.east), (two.east, two.west)):
        site.certificate("drop", site.name)  # the new one is shown from now on
        peer.daemon.says("Audit Broker Login", subclass="Login Success", certificate=f"{site.name}-new")
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
    two.east.daemon.says("make it yours alone with chmod 600")


# ---------------------------------------------------------------- the process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_asked_and_tells_its_peers(two: Two, number: int) -> None:
    serve_both(two, **PLAIN)
    two.send("a")
    two.arrives("a")
    assert two.east.daemon.end(number) == 0
    assert two.east.daemon.said("The broker is shut down.")
    eventually(lambda: two.west.connections() == [])
    handle = two.send("b")
    two.east.serve()
    two.send("c", handle=handle)
    two.arrives("b", "c")  # at once: whoever waits is not asked again first


def test_listen_stands_for_the_stored_endpoint(two: Two) -> None:
    two.east.endpoint("STOPPED")
    for site in (two.west, two.east):
        site.serve("--listen", f"127.0.0.1:{site.port}", "--encryption", "disabled")
    two.send("a")
    two.arrives("a")


@pytest.mark.feature(141)
def test_a_port_that_is_taken(two: Two) -> None:
    with socket.create_server(("127.0.0.1", two.east.port)):
        serve_both(two, **PLAIN)
        two.east.daemon.says(f"cannot listen on port {two.east.port} because it is in use by another process")
        two.send("a")
    two.arrives("a", seconds=30)
    assert len([line for line in two.east.daemon.lines if "cannot listen" in line["message"]]) == 1


def test_an_address_that_is_none_of_this_machine(two: Two) -> None:
    two.east.instance.create_endpoint(
        "broker", state="STARTED", listener_port=two.east.port, listener_ip="203.0.113.1", **PLAIN
    )
    two.east.serve()
    two.east.daemon.says("could not listen for connections due to the following error")


def test_another_daemon_stands_by_and_takes_over(two: Two) -> None:
    serve_both(two, **PLAIN)
    first = two.east.daemon
    first.says("This process serves the instance.")
    second = two.east.serve()
    second.says("Another process serves the instance; this one stands by")
    two.send("a")
    two.arrives("a")
    first.end(signal.SIGKILL)
    two.send("b")
    second.says("This process serves the instance.")
    two.arrives("b", seconds=30)


def test_a_database_that_loses_its_sessions_is_reached_again(two: Two) -> None:
    serve_both(two, **PLAIN)
    handle = two.send("a")
    two.arrives("a")
    text = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'servicebroker serve' "
    for site in (two.west, two.east):
        with psycopg.connect(site.url, autocommit=True) as connection:
            connection.execute(text + "and datname = current_database()")
    two.send("b", handle=handle)
    two.arrives("b", seconds=30)
    two.east.daemon.says("The connection to the database was lost; reconnecting")


def test_a_daemon_that_hears_nothing_more_finds_out(two: Two) -> None:
    """Only the session that listens is lost; the others go on."""
    serve_both(two, **PLAIN)
    handle = two.send("a")
    two.arrives("a")
    deafened(two.west.url, "servicebroker serve")
    two.west.daemon.says("The connection to the database was lost; reconnecting")
    two.send("b", handle=handle)
    two.arrives("b")


def test_a_database_that_is_down_is_waited_for(tmp_path: Path) -> None:
    served = Served("postgresql://127.0.0.1:1/none", tmp_path)
    try:
        served.says("Cannot connect to PostgreSQL")
        served.says("It is tried again every 2 seconds.")
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
def test_what_it_does_not_begin_with(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = ran("serve", "--instance", tmp_path, *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.startswith("servicebroker: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
