"""One instance is recovered to a point in time from a base backup and archived WAL, its peer is not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons import Site
from replaced_servers import TIMEOUT_S, Load, Reader, ReplacedSide, lost_at
from support import STOCK, eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


@pytest.fixture
def west(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[Site]:
    site = Site("west", make_instance_url(1), tmp_path)
    try:
        yield site
    finally:
        site.close()


@pytest.fixture
def east(west: Site, tmp_path: Path) -> Iterator[ReplacedSide]:
    """The instance that `west` sends to, on a server that archives its WAL."""
    folder = Path(tempfile.mkdtemp(prefix="servicebroker-recovered-"))  # reachable for the server's user
    folder.chmod(0o755)
    half = ReplacedSide(folder / "east", tmp_path / "east")
    try:
        half.server.make(synchronous="")
        half.server.archive()
        half.server.start()
        half.make_service(west.address)
        half.serve()
        west.database.drop_service(STOCK)
        west.database.create_route("ToStock", service_name=STOCK, address=half.address)
        west.endpoint(encryption="DISABLED")
        west.serve()
        yield half
    finally:
        half.close()
        shutil.rmtree(folder)


def test_conversations_with_lost_messages_get_an_error_and_others_continue(west: Site, east: ReplacedSide) -> None:
    """Half of the conversations send after the recovery point, and all of them once the server runs again."""
    load, reader = Load(west.database), Reader(east)
    lost, kept = load.handles[:2], load.handles[2:]
    try:
        load.send(5)
        eventually(load.is_answered, TIMEOUT_S)
        east.server.back_up()
        load.send(5)
        eventually(load.is_answered, TIMEOUT_S)
        eventually(lambda: east.is_settled(west.database), TIMEOUT_S)
        east.server.mark("point")
        load.send(10, *lost)
        eventually(load.is_answered, TIMEOUT_S)
        eventually(lambda: east.is_settled(west.database), TIMEOUT_S)
        eventually(east.server.is_archived, TIMEOUT_S)
        assert sorted(map(len, east.stored_numbers())) == [10, 10, 20, 20]
        assert (lost_at(west.url), lost_at(east.server.url)) == ([], [])

        east.server.crash()
        load.send(5, *kept)  # waits for the server
        east.server.recover("point")
        load.send(5, *lost)
        eventually(lambda: load.answers() >= 70 and len(load.errors) == 2, TIMEOUT_S)
        eventually(lambda: len(reader.errors) == 2, TIMEOUT_S)
        eventually(lambda: east.is_settled(west.database), TIMEOUT_S)
    finally:
        reader.stop()

    # the recovered instance lacks acknowledged messages: their conversations have an Error at both ends
    assert load.errors == dict.fromkeys(lost, -9720)
    assert reader.errors == [-9719] * 2
    assert load.answered == {
        **{handle: list(range(20)) for handle in lost},
        **{handle: list(range(15)) for handle in kept},
    }
    assert sorted(east.stored_numbers()) == [list(range(10))] * 2 + [list(range(15))] * 2
    eventually(lambda: lost_at(west.url), TIMEOUT_S)
    eventually(lambda: lost_at(east.server.url), TIMEOUT_S)
    assert all("That database has gone back to an old copy" in handle for handle in lost_at(west.url))
    assert all("This database has gone back to an old copy" in handle for handle in lost_at(east.server.url))
