"""Many unauthenticated connections to a daemon: a valid peer is still accepted, and the log stays short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons import Served, Two, two_sites
from strangers import strangers
from support import eventually

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
    assert not east.said("out of system resource")
    assert len(east.lines) - before < 300


def descriptors(served: Served) -> int:
    """Return the number of a daemon's descriptors."""
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))
