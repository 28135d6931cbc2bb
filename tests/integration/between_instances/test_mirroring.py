"""A mirrored service on a real primary and its hot standby: promoted under load, and the old primary comes back."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import prometheus_client
import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from daemons import Served, Site
from fault_proxy import FaultProxy
from mirrored_servers import ROLE
from replaced_servers import CONVERSATION_COUNT, TIMEOUT_S, Half, Load, Reader, errors_of, lost_at
from servicebroker.broker import metrics
from servicebroker.cli import main
from servicebroker.cli.commands import route
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    eventually,
    query,
)

LOCAL = "//test/Local"  # a service of the pair's own
MESSAGES_EACH = 150  # messages of each


class Mirrored:
    """`west` sends to the service of a pair, of which one is the primary and the other one its synchronous standby."""

    def __init__(self, folder: Path, keys: Path, west: Site) -> None:
        self.west, self.halves = west, (Half(folder / "one", keys), Half(folder / "two", keys))
        self.primary, self.standby = self.halves
        self.primary.server.make(synchronous="")
        self.primary.server.start()
        self.broker = self.primary.make_service(west.address)
        self.make_standby()
        west.database.drop_service(STOCK)
        for half in self.halves:
            half.serve()
        west.endpoint(encryption="DISABLED")
        west.serve()

    def make_standby(self) -> None:
        """The other server is made anew, as the synchronous standby of the primary."""
        self.standby.server.copy(self.primary.server, "standby")
        self.standby.server.start()
        self.primary.server.set_synchronous("standby")

    def promote(self) -> None:
        self.standby.server.promote()
        self.primary, self.standby = self.standby, self.primary

    @property
    def explanation(self) -> str:
        """Return the explanation that the daemon has stored for the pair."""
        rows = query(self.west.database, "select explanation from servicebroker.mirrored_pairs")
        return "".join(text for (text,) in rows)

    def why(self) -> str:
        """Return the output of `servicebroker route explain`."""
        arguments = ["explain", "--instance", self.west.url, "--from-database", "Test", "--service", STOCK]
        return " ".join(CliRunner().invoke(route.app, arguments).stdout.split())

    def taken(self) -> list[list[int]]:
        """Return the numbers that the application has noted, for each conversation in its order."""
        return self.primary.taken()

    def is_settled(self) -> bool:
        return self.primary.is_settled(self.west.database)

    def close(self) -> None:
        for half in self.halves:
            half.close()


@pytest.fixture(scope="module")
def mirrored(make_instance_url: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    folder = Path(tempfile.mkdtemp(prefix="servicebroker-pair-"))  # reachable for the servers' user
    folder.chmod(0o755)
    keys = tmp_path_factory.mktemp("keys")
    west = Site("west", make_instance_url(1), keys)
    both = Mirrored(folder, keys / "pair", west)
    try:
        yield both
    finally:
        west.close()
        both.close()
        shutil.rmtree(folder)


def test_a_standby_shows_what_it_has_and_says_so(mirrored: Mirrored) -> None:
    url = mirrored.standby.server.url
    views = [view for (view,) in mirrored.standby.rows("select viewname::text from pg_views where schemaname = 'sys'")]
    assert len(views) > 30
    empty = {view for view in views if not mirrored.standby.rows(f"select * from sys.{view}")}
    assert {"dm_broker_connections", "dm_broker_queue_monitors", "dm_broker_activated_tasks"} <= empty
    assert {"databases", "services", "service_queues", "dm_os_performance_counters"}.isdisjoint(empty)
    told = CliRunner().invoke(main.app, ["status", "--instance", url])
    assert (told.exit_code, "This server is a standby" in told.output) == (0, True), told.output
    told = CliRunner().invoke(main.app, ["status", "--json", "--instance", url])
    assert json.loads(told.output)["is_standby"] is True
    told = CliRunner().invoke(main.app, ["status", "--instance", mirrored.primary.server.url])
    assert "standby" not in told.output
    found = json.loads(CliRunner().invoke(main.app, ["doctor", "--json", "--instance", url]).output)["findings"]
    assert "The server is a standby: nothing can be sent or received." in [one["problem"] for one in found]
    assert "servicebroker_up 1.0" in prometheus_client.generate_latest(metrics.registry(url)).decode()
    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        with pytest.raises(sb.InstanceError, match="is a standby"):
            database.create_queue("Another")
        with pytest.raises(sb.InstanceError, match="is a standby"):
            database.begin_dialog(STOCK, ORDERS, contract=CONTRACT)


def told(half: Half) -> list[str]:
    """Return the findings of doctor about the daemon of a server."""
    done = CliRunner().invoke(main.app, ["doctor", "--json", "--instance", half.server.url])
    found = json.loads(done.output)["findings"]
    return [one["problem"] for one in found if one["subject"] == "servicebroker serve"]


@pytest.mark.feature(122)
@pytest.mark.timeout(240)
def test_a_standby_is_promoted_under_load_and_the_old_primary_comes_back(mirrored: Mirrored) -> None:
    west, old, new = mirrored.west, mirrored.primary, mirrored.standby
    west.database.create_route(
        "ToStock",
        service_name=STOCK,
        broker_instance=mirrored.broker,
        address=old.address,
        mirror_address=new.address,
    )
    assert "both are asked when the first message leaves" in mirrored.why()
    load, reader = Load(west.database), Reader(old)
    try:
        new.daemon.says("waits as the mirror until it is promoted")
        load.send(50)
        eventually(load.is_answered, TIMEOUT_S)
        chosen = f"{old.address} is the principal: it says so, on timeline 1, and its commits wait for a standby."
        assert mirrored.explanation == chosen
        assert mirrored.why().endswith(chosen)

        # the primary crashes under load, and nobody takes its place: neither gets messages
        load.send(25)
        old.server.crash()
        load.send(25)
        west.waits("Neither is known to be the principal")
        west.waits(f"{new.address} says that it is the mirror")
        assert "Neither is known to be the principal" in mirrored.why()

        # the standby is promoted, and takes over by itself
        mirrored.promote()
        reader.half = new
        new.daemon.says("The standby was promoted: this process takes over.")
        eventually(load.is_answered, TIMEOUT_S)
        assert f"{new.address} is the principal: it says so, on timeline 2" in mirrored.explanation
        new.daemon.says("no commit here waits for a synchronous standby")
        assert any("no commit here waits for a synchronous standby" in one for one in told(new))

        # the old primary comes back, and cannot commit without its standby
        old.server.start()
        old.daemon.says("The synchronous standby does not confirm what is committed here")
        # Without a synchronous standby the old primary claims to be the principal, on its old timeline.
        old.server.set_synchronous("")
        eventually(lambda: old.daemon.count("This process serves the instance.") == 2, TIMEOUT_S)
        west.daemon.end(signal.SIGKILL)  # a sender that asks anew asks both
        west.serve()
        load.send(25)
        eventually(load.is_answered, TIMEOUT_S)
        old.daemon.says("Another server of this cluster is on timeline 2, this one on 1")
        assert any("it takes and sends no messages. Make it a standby of the other one" in one for one in told(old))

        # Only the old primary can be reached, and it gets nothing all the same.
        new.daemon.end(signal.SIGKILL)
        west.daemon.end(signal.SIGKILL)
        west.serve()
        load.send(25)
        west.waits(f"Neither is known to be the principal: {old.address}")
        new.serve()
        eventually(load.is_answered, TIMEOUT_S)
    finally:
        reader.stop()
    assert load.answered == {handle: list(range(MESSAGES_EACH)) for handle in load.handles}
    assert mirrored.taken() == [list(range(MESSAGES_EACH))] * CONVERSATION_COUNT
    assert old.rows("select max(number) < 75 from taken") == [(True,)]
    eventually(mirrored.is_settled, TIMEOUT_S)


@pytest.mark.feature(123)
@pytest.mark.timeout(240)
def test_conversations_by_the_name_of_a_listener_go_on_after_it_has_moved(
    mirrored: Mirrored, seeded_random: random.Random
) -> None:
    west, old, new = mirrored.west, mirrored.primary, mirrored.standby
    mirrored.make_standby()
    with contextlib.suppress(sb.BrokerError):
        west.database.drop_route("ToStock")
    listener = FaultProxy(old.port, seeded_random)
    west.database.create_route("ToStock", service_name=STOCK, address=f"TCP://127.0.0.1:{listener.port}")
    old.rows("delete from taken returning 1")
    load, reader = Load(west.database), Reader(old)
    try:
        load.send(25)
        eventually(load.is_answered, TIMEOUT_S)
        load.send(25)
        old.server.crash()
        listener.target = new.port  # the name leads to the standby, which takes nothing yet
        listener.cut()
        load.send(25)
        west.waits("replica of a mirrored database")
        mirrored.promote()
        reader.half = new
        load.send(25)
        eventually(load.is_answered, TIMEOUT_S)
    finally:
        reader.stop()
        listener.close()
    assert load.answered == {handle: list(range(100)) for handle in load.handles}
    assert mirrored.taken() == [list(range(100))] * CONVERSATION_COUNT
    eventually(mirrored.is_settled, TIMEOUT_S)


class Sender:
    """An application that sends numbers, each with its row in one transaction, until it is stopped."""

    def __init__(self, url: str) -> None:
        self.over = threading.Event()
        self.problems: list[BaseException] = []
        self._url, self._thread = url, threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self.over.set()
        self._thread.join(TIMEOUT_S)
        assert self.problems == []

    def _run(self) -> None:
        try:
            with sb.open(self._url, upkeep=None) as instance:
                database = instance.database("Test")
                handle = database.begin_dialog(LOCAL, STOCK, contract=CONTRACT, encryption=False)
                number = 0
                while not self.over.is_set():
                    try:
                        with database.transaction() as transaction:
                            new = "insert into sent values (%s) on conflict do nothing"  # may be committed
                            if transaction.connection.execute(new, (number,)).rowcount:
                                transaction.send(handle, ORDER, b"%d" % number)
                        number += 1
                    except (psycopg.Error, sb.InstanceError):  # its server has gone
                        self.over.wait(0.1)
        except BaseException as problem:
            self.problems.append(problem)


def several(url: str) -> list[str]:
    """Return doctor's findings about several servers that take writes."""
    done = CliRunner().invoke(main.app, ["doctor", "--json", "--instance", url])
    return [one["problem"] for one in json.loads(done.output)["findings"] if "accept writes" in one["problem"]]


@pytest.mark.timeout(240)
def test_applications_follow_a_url_of_both_hosts_and_doctor_names_an_old_primary_that_is_back(
    mirrored: Mirrored, tmp_path: Path
) -> None:
    """A ledger of sent and received numbers stays exact through the promotion, under SEND and a worker."""
    mirrored.make_standby()
    old, new = mirrored.primary, mirrored.standby
    hosts = f"{old.server.folder},{new.server.folder}"
    url = f"postgresql:///postgres?host={hosts}&user={ROLE}&target_session_attrs=read-write"
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def _(transaction: sb.Transaction, message: sb.Message) -> None:
        assert message.message_body is not None
        transaction.connection.execute("insert into received (number) values (%s)", (int(message.message_body),))

    def received() -> list[int]:
        ((numbers,),) = mirrored.primary.rows("select coalesce(array_agg(number order by place), '{}') from received")
        return list(numbers)

    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        database.create_service(LOCAL, ORDERS_QUEUE)
        with instance.connection() as connection:
            connection.execute("create table sent (number int primary key)")
            connection.execute("create table received (place bigserial, number int)")
        beside = Served(url, tmp_path / "keys")
        with database.working(worker, concurrency=2):
            sender = Sender(url)
            try:
                eventually(lambda: len(received()) > 20, TIMEOUT_S)
                assert several(url) == []
                old.server.crash()
                mirrored.promote()
                count = len(received())
                eventually(lambda: len(received()) > count + 20, TIMEOUT_S)

                # the old primary comes back alone: the URL names it first
                old.server.start()
                eventually(lambda: several(url), TIMEOUT_S)
                (said,) = several(url)
                assert f"{new.server.folder} on timeline" in said
                assert said.index(str(old.server.folder)) < said.index(str(new.server.folder))  # the lower one

                # as a standby it is no finding, and the applications go on
                mirrored.make_standby()
                assert several(url) == []
                count = len(received())
                eventually(lambda: len(received()) > count + 20, TIMEOUT_S)
            finally:
                sender.stop()
                beside.kill()
            assert beside.said("The URL names several hosts")
            ((sent,),) = mirrored.primary.rows("select count(*) from sent")
            eventually(lambda: len(received()) >= sent, TIMEOUT_S)
    assert received() == list(range(sent))


@pytest.mark.timeout(240)
def test_the_loss_of_an_asynchronous_standby_is_named_at_both_ends(mirrored: Mirrored) -> None:
    """Messages that were not replicated are lost; both applications get an Error, and doctor says where."""
    west, old, new = mirrored.west, mirrored.primary, mirrored.standby
    old.server.set_synchronous("")
    with contextlib.suppress(sb.BrokerError):
        west.database.drop_route("ToStock")
    west.database.create_route(
        "ToStock", service_name=STOCK, address=old.address, broker_instance=mirrored.broker, mirror_address=new.address
    )
    load, reader = Load(west.database), Reader(old)
    try:
        load.send(10)
        eventually(load.is_answered, TIMEOUT_S)
        ((position,),) = old.rows("select pg_current_wal_lsn()::text")
        eventually(lambda: new.rows(f"select pg_last_wal_replay_lsn() >= '{position}'") == [(True,)], TIMEOUT_S)
        new.server.stop_following()
        eventually(lambda: old.rows("select count(*) from pg_stat_replication") == [(0,)], TIMEOUT_S)
        load.send(10)
        eventually(load.is_answered, TIMEOUT_S)
        eventually(mirrored.is_settled, TIMEOUT_S)
    finally:
        reader.stop()
    eventually(lambda: any("no commit here waits for a synchronous standby" in one for one in told(old)), TIMEOUT_S)
    old.server.crash()
    mirrored.promote()
    load.send(5)

    assert errors_of(west.database, ORDERS_QUEUE) == [-9720] * CONVERSATION_COUNT
    eventually(lambda: lost_at(west.url), TIMEOUT_S)
    eventually(lambda: lost_at(new.server.url), TIMEOUT_S)
    assert all("That database has gone back to an old copy" in one for one in lost_at(west.url))
    assert all("This database has gone back to an old copy" in one for one in lost_at(new.server.url))
    with sb.open(new.server.url, upkeep=None) as instance:
        assert errors_of(instance.database("Test"), STOCK_QUEUE) == [-9719] * CONVERSATION_COUNT
