"""A mirrored service on a primary and its hot standby: promotion under load, and the return of the old primary."""

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
from daemons import ServeProcess, Site
from fault_proxy import FaultProxy
from mirrored_servers import ROLE
from replaced_servers import CONVERSATION_COUNT, TIMEOUT_S, Load, Reader, ReplacedSide, errors_of, lost_at
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

LOCAL = "//test/Local"  # a service whose both sides are on the pair
MESSAGES_EACH = 150  # messages of each sender


class MirroredPair:
    """`west` sends to the service of a mirrored pair: a primary and its synchronous standby."""

    def __init__(self, folder: Path, keys: Path, west: Site) -> None:
        self.west, self.halves = west, (ReplacedSide(folder / "one", keys), ReplacedSide(folder / "two", keys))
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
        """Create the other server again, as the synchronous standby of the primary."""
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

    def explain_route(self) -> str:
        """Return the output of `servicebroker route explain`."""
        arguments = ["explain", "--instance", self.west.url, "--from-database", "Test", "--service", STOCK]
        return " ".join(CliRunner().invoke(route.app, arguments).stdout.split())

    def stored_numbers(self) -> list[list[int]]:
        """Return the numbers that the application has stored, in order, for each conversation."""
        return self.primary.stored_numbers()

    def is_settled(self) -> bool:
        return self.primary.is_settled(self.west.database)

    def close(self) -> None:
        for half in self.halves:
            half.close()


@pytest.fixture(scope="module")
def mirrored_pair(
    make_instance_url: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MirroredPair]:
    folder = Path(tempfile.mkdtemp(prefix="servicebroker-pair-"))  # reachable for the servers' user
    folder.chmod(0o755)
    keys = tmp_path_factory.mktemp("keys")
    west = Site("west", make_instance_url(1), keys)
    both = MirroredPair(folder, keys / "pair", west)
    try:
        yield both
    finally:
        west.close()
        both.close()
        shutil.rmtree(folder)


def test_a_standby_is_readable_and_reported(mirrored_pair: MirroredPair) -> None:
    url = mirrored_pair.standby.server.url
    views = [
        view for (view,) in mirrored_pair.standby.rows("select viewname::text from pg_views where schemaname = 'sys'")
    ]
    assert len(views) > 30
    empty = {view for view in views if not mirrored_pair.standby.rows(f"select * from sys.{view}")}
    assert {"dm_broker_connections", "dm_broker_queue_monitors", "dm_broker_activated_tasks"} <= empty
    assert {"databases", "services", "service_queues", "dm_os_performance_counters"}.isdisjoint(empty)
    daemon_findings = CliRunner().invoke(main.app, ["status", "--instance", url])
    assert (daemon_findings.exit_code, "This server is a standby" in daemon_findings.output) == (0, True), (
        daemon_findings.output
    )
    daemon_findings = CliRunner().invoke(main.app, ["status", "--json", "--instance", url])
    assert json.loads(daemon_findings.output)["is_standby"] is True
    daemon_findings = CliRunner().invoke(main.app, ["status", "--instance", mirrored_pair.primary.server.url])
    assert "standby" not in daemon_findings.output
    findings = json.loads(CliRunner().invoke(main.app, ["doctor", "--json", "--instance", url]).output)["findings"]
    assert "The server is a standby: nothing can be sent or received." in [finding["problem"] for finding in findings]
    assert "servicebroker_up 1.0" in prometheus_client.generate_latest(metrics.registry(url)).decode()
    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        with pytest.raises(sb.InstanceError, match="is a standby"):
            database.create_queue("Another")
        with pytest.raises(sb.InstanceError, match="is a standby"):
            database.begin_dialog(STOCK, ORDERS, contract=CONTRACT)


def daemon_findings(half: ReplacedSide) -> list[str]:
    """Return the findings of doctor about the daemon of a server."""
    result = CliRunner().invoke(main.app, ["doctor", "--json", "--instance", half.server.url])
    findings = json.loads(result.output)["findings"]
    return [finding["problem"] for finding in findings if finding["subject"] == "servicebroker serve"]


@pytest.mark.feature(122)
@pytest.mark.timeout(240)
def test_a_promotion_under_load_and_the_return_of_the_old_primary(mirrored_pair: MirroredPair) -> None:
    west, old, new = mirrored_pair.west, mirrored_pair.primary, mirrored_pair.standby
    west.database.create_route(
        "ToStock",
        service_name=STOCK,
        broker_instance=mirrored_pair.broker,
        address=old.address,
        mirror_address=new.address,
    )
    assert "both are asked when the first message leaves" in mirrored_pair.explain_route()
    load, reader = Load(west.database), Reader(old)
    try:
        new.daemon.wait_for_log("waits as the mirror until it is promoted")
        load.send(50)
        eventually(load.is_answered, TIMEOUT_S)
        chosen = f"{old.address} is the principal: it says so, on timeline 1, and its commits wait for a standby."
        assert mirrored_pair.explanation == chosen
        assert mirrored_pair.explain_route().endswith(chosen)

        # the primary crashes under load, and no standby is promoted: neither server gets messages
        load.send(25)
        old.server.crash()
        load.send(25)
        west.waits("Neither is known to be the principal")
        west.waits(f"{new.address} says that it is the mirror")
        assert "Neither is known to be the principal" in mirrored_pair.explain_route()

        # the standby is promoted, and takes over without further commands
        mirrored_pair.promote()
        reader.half = new
        new.daemon.wait_for_log("The standby was promoted: this process takes over.")
        eventually(load.is_answered, TIMEOUT_S)
        assert f"{new.address} is the principal: it says so, on timeline 2" in mirrored_pair.explanation
        new.daemon.wait_for_log("no commit here waits for a synchronous standby")
        assert any("no commit here waits for a synchronous standby" in problem for problem in daemon_findings(new))

        # the old primary is started again, and cannot commit without its standby
        old.server.start()
        old.daemon.wait_for_log("The synchronous standby does not confirm what is committed here")
        # Without a synchronous standby the old primary claims to be the principal, on its old timeline.
        old.server.set_synchronous("")
        eventually(lambda: old.daemon.count("This process serves the instance.") == 2, TIMEOUT_S)
        west.daemon.end(signal.SIGKILL)  # a sender asks both servers for their roles
        west.serve()
        load.send(25)
        eventually(load.is_answered, TIMEOUT_S)
        old.daemon.wait_for_log("Another server of this cluster is on timeline 2, this one on 1")
        assert any(
            "it takes and sends no messages. Make it a standby of the other one" in problem
            for problem in daemon_findings(old)
        )

        # Only the old primary can be reached, and still it gets no message.
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
    assert mirrored_pair.stored_numbers() == [list(range(MESSAGES_EACH))] * CONVERSATION_COUNT
    assert old.rows("select max(number) < 75 from taken") == [(True,)]
    eventually(mirrored_pair.is_settled, TIMEOUT_S)


@pytest.mark.feature(123)
@pytest.mark.timeout(240)
def test_conversations_through_a_listener_name_continue_after_it_moved(
    mirrored_pair: MirroredPair, seeded_random: random.Random
) -> None:
    west, old, new = mirrored_pair.west, mirrored_pair.primary, mirrored_pair.standby
    mirrored_pair.make_standby()
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
        listener.target = new.port  # the name leads to the standby, which accepts no message yet
        listener.cut()
        load.send(25)
        west.waits("replica of a mirrored database")
        mirrored_pair.promote()
        reader.half = new
        load.send(25)
        eventually(load.is_answered, TIMEOUT_S)
    finally:
        reader.stop()
        listener.close()
    assert load.answered == {handle: list(range(100)) for handle in load.handles}
    assert mirrored_pair.stored_numbers() == [list(range(100))] * CONVERSATION_COUNT
    eventually(mirrored_pair.is_settled, TIMEOUT_S)


class Sender:
    """An application that sends numbers until `stop`, each in one transaction with a row of its own table."""

    def __init__(self, url: str) -> None:
        self.over = threading.Event()
        self.problems: list[BaseException] = []
        self._url, self._thread = url, threading.Thread(target=self._send_until_stopped)
        self._thread.start()

    def stop(self) -> None:
        self.over.set()
        self._thread.join(TIMEOUT_S)
        assert self.problems == []

    def _send_until_stopped(self) -> None:
        try:
            with sb.open(self._url, upkeep=None) as instance:
                database = instance.database("Test")
                handle = database.begin_dialog(LOCAL, STOCK, contract=CONTRACT, encryption=False)
                number = 0
                while not self.over.is_set():
                    try:
                        with database.transaction() as transaction:
                            new = "insert into sent values (%s) on conflict do nothing"  # the COMMIT may have succeeded
                            if transaction.connection.execute(new, (number,)).rowcount:
                                transaction.send(handle, ORDER, b"%d" % number)
                        number += 1
                    except (psycopg.Error, sb.InstanceError):  # the server was stopped
                        self.over.wait(0.1)
        except BaseException as problem:
            self.problems.append(problem)


def find_two_primaries(url: str) -> list[str]:
    """Return doctor's findings about several servers that accept writes."""
    result = CliRunner().invoke(main.app, ["doctor", "--json", "--instance", url])
    return [
        finding["problem"] for finding in json.loads(result.output)["findings"] if "accept writes" in finding["problem"]
    ]


@pytest.mark.timeout(240)
def test_applications_with_both_hosts_in_their_url_follow_a_promotion(
    mirrored_pair: MirroredPair, tmp_path: Path
) -> None:
    """The ledger of sent and received numbers stays exact. Doctor reports an old primary that was started again."""
    mirrored_pair.make_standby()
    old, new = mirrored_pair.primary, mirrored_pair.standby
    hosts = f"{old.server.folder},{new.server.folder}"
    url = f"postgresql:///postgres?host={hosts}&user={ROLE}&target_session_attrs=read-write"
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def _(transaction: sb.Transaction, message: sb.Message) -> None:
        assert message.message_body is not None
        transaction.connection.execute("insert into received (number) values (%s)", (int(message.message_body),))

    def received_numbers() -> list[int]:
        ((numbers,),) = mirrored_pair.primary.rows(
            "select coalesce(array_agg(number order by place), '{}') from received"
        )
        return list(numbers)

    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        database.create_service(LOCAL, ORDERS_QUEUE)
        with instance.connection() as connection:
            connection.execute("create table sent (number int primary key)")
            connection.execute("create table received (place bigserial, number int)")
        beside = ServeProcess(url, tmp_path / "keys")
        with database.working(worker, concurrency=2):
            sender = Sender(url)
            try:
                eventually(lambda: len(received_numbers()) > 20, TIMEOUT_S)
                assert find_two_primaries(url) == []
                old.server.crash()
                mirrored_pair.promote()
                count = len(received_numbers())
                eventually(lambda: len(received_numbers()) > count + 20, TIMEOUT_S)

                # the old primary is started alone, and is the first host of the URL
                old.server.start()
                eventually(lambda: find_two_primaries(url), TIMEOUT_S)
                (problem,) = find_two_primaries(url)
                assert f"{new.server.folder} on timeline" in problem
                # the lower timeline
                assert problem.index(str(old.server.folder)) < problem.index(str(new.server.folder))

                # as a standby it is not a finding, and the applications continue
                mirrored_pair.make_standby()
                assert find_two_primaries(url) == []
                count = len(received_numbers())
                eventually(lambda: len(received_numbers()) > count + 20, TIMEOUT_S)
            finally:
                sender.stop()
                beside.kill()
            assert beside.has_logged("The URL names several hosts")
            ((sent,),) = mirrored_pair.primary.rows("select count(*) from sent")
            eventually(lambda: len(received_numbers()) >= sent, TIMEOUT_S)
    assert received_numbers() == list(range(sent))


@pytest.mark.timeout(240)
def test_messages_lost_by_an_asynchronous_standby_are_reported_on_both_sides(mirrored_pair: MirroredPair) -> None:
    """Messages that were not replicated are lost. Both applications get an Error, and doctor reports the loss."""
    west, old, new = mirrored_pair.west, mirrored_pair.primary, mirrored_pair.standby
    old.server.set_synchronous("")
    with contextlib.suppress(sb.BrokerError):
        west.database.drop_route("ToStock")
    west.database.create_route(
        "ToStock",
        service_name=STOCK,
        address=old.address,
        broker_instance=mirrored_pair.broker,
        mirror_address=new.address,
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
        eventually(mirrored_pair.is_settled, TIMEOUT_S)
    finally:
        reader.stop()
    eventually(
        lambda: any("no commit here waits for a synchronous standby" in problem for problem in daemon_findings(old)),
        TIMEOUT_S,
    )
    old.server.crash()
    mirrored_pair.promote()
    load.send(5)

    assert errors_of(west.database, ORDERS_QUEUE) == [-9720] * CONVERSATION_COUNT
    eventually(lambda: lost_at(west.url), TIMEOUT_S)
    eventually(lambda: lost_at(new.server.url), TIMEOUT_S)
    assert all("That database has gone back to an old copy" in problem for problem in lost_at(west.url))
    assert all("This database has gone back to an old copy" in problem for problem in lost_at(new.server.url))
    with sb.open(new.server.url, upkeep=None) as instance:
        assert errors_of(instance.database("Test"), STOCK_QUEUE) == [-9719] * CONVERSATION_COUNT
