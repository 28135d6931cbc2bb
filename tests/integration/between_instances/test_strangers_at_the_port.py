"""Many unauthenticated connections to a daemon: a valid peer is still accepted, and the log stays short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attacks import MIN_JUDGED_S, SLICE_S, AttackProcess, Costs, Times, log_size
from daemons import ServeProcess, Two, two_sites
from strangers import strangers
from support import STOCK_QUEUE, bodies, eventually, waiting_messages

CONNECTIONS_PER_S = 100.0  # a new connection costs the daemon some milliseconds
HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the first bytes of a TLS client


@pytest.fixture(scope="module")
def two(make_instance_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """West and east with certificates. East's limit is 1,024 file descriptors."""
    folder = tmp_path_factory.mktemp("strangers")
    with two_sites(make_instance_url, folder) as both:
        both.introduce(folder)
        for site in (both.west, both.east):
            site.endpoint()
        both.west.serve()
        both.east.serve(descriptors=1_024)
        both.send("0")
        both.arrives("0")
        yield both


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [HANDSHAKE, pytest.param(b"GET / HTTP/1.1\r\n\r\n", marks=pytest.mark.full)],
    ids=["half a handshake", "no handshake"],
)
def test_strangers_cost_little_and_delay_nobody(
    two: Two, said: bytes, request: pytest.FixtureRequest, record_property: Callable[..., None]
) -> None:
    """100 new connections in each second, and 300 at a time, beside single messages of a peer."""
    east, times, sent = two.east.daemon, Times(), list[str]()
    handle = two.send("first")
    two.arrives("first")

    def measure(seconds: float) -> list[float]:
        taken, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            sent.append(str(len(sent)))
            began = time.monotonic()
            two.send(sent[-1], handle=handle)
            assert bodies(two.east.database.receive(STOCK_QUEUE, wait=30)) == [sent[-1].encode()]
            taken.append(time.monotonic() - began)
            time.sleep(0.005)
        return taken

    measure(SLICE_S)
    costs = Costs(east.process.pid, log_size(east.lines))
    duration_s = request.config.getoption("--hostile-seconds")
    with AttackProcess("strangers.py", two.east.port, 300, CONNECTIONS_PER_S, said.hex()) as attacker:
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            times.quiet += measure(SLICE_S)
            attacker.go()
            times.harmed += measure(2 * SLICE_S)
            attacker.pause()
            time.sleep(SLICE_S / 2)
        count = attacker.end()
    assert count > 0
    summary = [times.wait_until_restored(measure), times.check(are_judged=duration_s >= MIN_JUDGED_S), costs.check()]
    record_property("strangers", f"{summary}, {len(sent)} messages, {count} connections of strangers")
    eventually(lambda: waiting_messages(two.west.database) == 0)
    assert two.east.database.receive(STOCK_QUEUE) == []


@pytest.mark.parametrize(
    "first_bytes", [pytest.param(b"", marks=pytest.mark.full), HANDSHAKE], ids=["nothing", "half a handshake"]
)
def test_half_open_connections_do_not_block_peers(two: Two, first_bytes: bytes) -> None:
    east, before = two.east.daemon, len(two.east.daemon.lines)
    with strangers(two.east.port, 3_000, first_bytes):
        eventually(lambda: descriptors(east) > 128)  # the limit for one address
        for number in range(3):
            two.west.daemon.end()
            two.west.serve()
            two.send(str(number))
            two.arrives(str(number), seconds=10)
            assert descriptors(east) < 512
    assert not east.has_logged("out of system resource")
    assert len(east.lines) - before < 300


def descriptors(served: ServeProcess) -> int:
    """Return the number of a daemon's descriptors."""
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))
