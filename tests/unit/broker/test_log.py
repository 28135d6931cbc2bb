"""The log of `servicebroker serve` about peers: each event once, then a count, and no terminal control."""

from __future__ import annotations

import io
import itertools
import json
import logging
import warnings
from collections.abc import Iterator
from uuid import UUID

import pytest

from servicebroker.broker import journal
from servicebroker.broker.mirrors import Mirrors
from servicebroker.cli import log as process_log
from servicebroker.cli.output import redirect_errors, say, say_block
from servicebroker.protocol.mirroring import KnownTimeline, Role, RoleReport
from servicebroker.protocol.routing import Address, Elsewhere
from support import eventually


@pytest.fixture
def captured_log(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """Capture standard error of a process, with a moment as the minute; in JSON with a parameter."""
    stream = io.StringIO()
    monkeypatch.setattr(process_log, "REPEAT_INTERVAL_S", 1.0)
    monkeypatch.setattr("sys.stderr", stream)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    process_log.log_to_standard_error(as_json=hasattr(request, "param"))
    yield stream
    redirect_errors(None)
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(captured_log: io.StringIO) -> list[str]:
    return captured_log.getvalue().splitlines()


def test_a_repeated_line_is_told_once_and_counted(captured_log: io.StringIO) -> None:
    for _ in range(1_000):
        journal.connection("Closed", "127.0.0.1:4022", "100 bytes")
    journal.connection("Closed", "10.0.0.7:4022", "100 bytes")  # of another host
    assert len(lines(captured_log)) == 2
    eventually(lambda: "999 lines like these were left out from 127.0.0.1" in captured_log.getvalue())
    journal.connection("Closed", "127.0.0.1:4022", "100 bytes")
    assert len(lines(captured_log)) == 4


def test_a_replaced_connection_is_not_told(captured_log: io.StringIO) -> None:
    pool = logging.getLogger("psycopg.pool")
    pool.warning("discarding closed connection: %s", "<DirectConnection [BAD]>")
    pool.warning("error connecting in %r: %s", "pool-1", "refused")
    assert [line.partition("WARNING ")[2] for line in lines(captured_log)] == ["error connecting in 'pool-1': refused"]


def test_lines_that_differ_are_bounded_too(captured_log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_log, "REPEAT_INTERVAL_S", 60)
    (repeats,) = logging.getLogger().handlers[0].filters
    assert isinstance(repeats, process_log.Repeats)
    for number in range(2_000):
        journal.connection("Closed", f"127.0.0.1:{number}", f"{number} bytes")
    for number in range(2_000):  # from that many hosts
        journal.login("Authentication Failure", f"10.0.{number // 250}.{number % 250}:1", "", "no")
    assert len(lines(captured_log)) <= 2 * process_log.MAX_DIFFERENT_LINES + process_log.MAX_KINDS
    repeats.report_left_out()
    assert "1,980 lines like these were left out" in captured_log.getvalue()


def test_the_lines_of_one_host_have_a_budget_of_bytes(
    captured_log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_log, "REPEAT_INTERVAL_S", 60)
    kinds = ("Accept", "Connected", "Closing", "Closed", "Connect Failed")
    for number in range(process_log.MAX_DIFFERENT_LINES):
        for kind in kinds:
            journal.connection(kind, f"127.0.0.1:{number}", "\u2028" * 200)
    journal.connection("Closed", "10.0.0.7:4022", "of another host")
    assert len(captured_log.getvalue().encode()) < 2 * process_log.MAX_SOURCE_BYTES
    assert "of another host" in captured_log.getvalue()
    assert all(f"subclass={kind}" in captured_log.getvalue() for kind in kinds[:4])  # the first line of each kind


def test_the_budget_of_a_host_refills_with_time(captured_log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def log_once_more() -> int:
        before = len(captured_log.getvalue())
        for number in range(process_log.MAX_DIFFERENT_LINES):
            for kind in ("Accept", "Connected", "Closing", "Closed"):
                journal.connection(kind, f"127.0.0.1:{number}", "x" * 400)
        return len(captured_log.getvalue()) - before

    now = 1_000.0
    monkeypatch.setattr(process_log, "REPEAT_INTERVAL_S", 60)
    monkeypatch.setattr(process_log.time, "monotonic", lambda: now)
    (repeats,) = logging.getLogger().handlers[0].filters
    assert isinstance(repeats, process_log.Repeats)
    repeats.report_left_out()  # begins at that time
    assert log_once_more() > process_log.MAX_SOURCE_BYTES
    later = {}
    for minutes in (1, 1, 60):
        now += 60 * minutes
        repeats.report_left_out()
        later[minutes] = log_once_more()
    assert later[1] < 6_000  # the first line of each kind, and what was refilled
    assert later[60] > process_log.MAX_SOURCE_BYTES


def test_the_addresses_of_an_ipv6_network_have_one_budget(
    captured_log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_log, "REPEAT_INTERVAL_S", 60)
    for number in range(2_000):
        journal.connection("Closed", str(Address(f"2001:db8::{number:x}", 4022)), f"{number} bytes")
    assert len(lines(captured_log)) <= process_log.MAX_DIFFERENT_LINES
    journal.connection("Closed", str(Address("2001:db8:0:1::1", 4022)), "of another network")
    assert "of another network" in lines(captured_log)[-1]


def test_deleted_unfinished_messages_are_lines_of_their_peer(captured_log: io.StringIO) -> None:
    for number in range(1_000):
        journal.log_expired_fragments("certificate mallory", UUID(int=number))
    assert 1 <= len(lines(captured_log)) <= 2 * process_log.MAX_DIFFERENT_LINES


def test_lines_not_caused_by_peers_are_never_suppressed(captured_log: io.StringIO) -> None:
    for _ in range(3):
        logging.getLogger("servicebroker.broker").info("This process serves the instance.")
    assert len(lines(captured_log)) == 3


def test_lines_of_asyncio_and_uvicorn_about_peers_are_bounded(captured_log: io.StringIO) -> None:
    for number in range(1_000):
        logging.getLogger("asyncio").error("socket.accept() out of system resource\nsocket: <fd=%d>", number)
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("a.procedure").warning("The shelf is empty.")
    assert captured_log.getvalue().count("out of system resource") == process_log.MAX_DIFFERENT_LINES
    assert captured_log.getvalue().count("Invalid HTTP request") == 1
    assert captured_log.getvalue().count("The shelf is empty.") == 1_000
    eventually(
        lambda: "asyncio socket.accept() out of system resource: 980 lines like these" in captured_log.getvalue()
    )
    eventually(lambda: "uvicorn.error Invalid HTTP request received.: 999 lines like these" in captured_log.getvalue())


def test_no_peer_steers_the_terminal(captured_log: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    journal.connection("Closed", "127.0.0.1:1", "gone\0\x1b[2J\u202e\r\nINFO forged")
    logging.getLogger("servicebroker.broker").error("of %s", "others \x1b[31m")
    assert not set("\0\x1b\u202e\r") & set(captured_log.getvalue())
    assert len(lines(captured_log)) == 2
    fields = caplog.records[0].fields  # type: ignore[attr-defined]  # for whoever logs otherwise
    assert "\\u0000" not in json.dumps(fields)


@pytest.mark.parametrize("captured_log", ["in JSON"], indirect=True)
def test_in_json_every_line_is_an_object(captured_log: io.StringIO) -> None:
    """Warnings of libraries and output of the command become JSON objects, too."""
    logging.getLogger("servicebroker.broker").info("100%% of it")
    logging.getLogger("somebody").warning("theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("PySpark does not yet fully support that.", UserWarning, stacklevel=1)
    say("servicebroker: it has failed.", "Twice.", error=True)
    say_block("Traceback\n  of several\nlines", error=True)
    document = [json.loads(line) for line in lines(captured_log)]
    assert len(document) == 6
    assert [record["level"] for record in document] == ["INFO", "WARNING", "WARNING", "ERROR", "ERROR", "ERROR"]
    assert "does not yet fully support" in document[2]["message"]
    assert document[3]["message"] == "servicebroker: it has failed."
    assert document[5]["message"].splitlines()[0] == "Traceback"


def test_a_mirrored_pair_that_changes_all_the_time_does_not_fill_the_log(
    captured_log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_log, "REPEAT_INTERVAL_S", 60)
    (repeats,) = logging.getLogger().handlers[0].filters
    assert isinstance(repeats, process_log.Repeats)
    pair = Elsewhere(Address("a", 1), Address("b", 1))
    seconds = itertools.count()
    mirrors = Mirrors(NoLinks(), lambda: float(next(seconds)))
    mirrors.begin({pair: KnownTimeline()})
    mirrors.heard(Address("b", 1), RoleReport(Role.MIRROR, "c", 1))
    for timeline in range(1, 2_000):
        mirrors.heard(Address("a", 1), RoleReport(Role.PRINCIPAL, "c", timeline))
        mirrors.heard(Address("a", 1), RoleReport(Role.IN_DOUBT, "c", timeline))
        mirrors.heard(Address("b", 1), RoleReport(Role.MIRROR, "c", 1))
    assert 2 <= len(lines(captured_log)) <= process_log.MAX_DIFFERENT_LINES
    repeats.report_left_out()
    assert "Mirrored Route: " in captured_log.getvalue()


class NoLinks:
    """Links without peers."""

    def reach(self, address: Address) -> str:
        return "nobody is there"

    def ask(self, address: Address, known: KnownTimeline) -> None:
        pass
