"""A pipeline that is killed at random, beside senders that commit out of order and roll back: every message once."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from forked import Command
from mirrored_servers import ROLE, Server
from pipeline_support import LINE, Feed, warehouse

pytest.importorskip("pyspark")

from deltalake import DeltaTable

import pipeline_senders
import servicebroker as sb
from pipeline_senders import Meddler, Sender, make_notes, recorded_messages
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.file import read_pipeline
from servicebroker.pipeline.run import running
from servicebroker_lab.benchmarks.processes import family
from support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TARGETS = ("driver", "java", "worker", "server")
MAX_ATTEMPTS = 5  # to begin a run on a busy machine


def describe(folder, feeds, at_most=2000, **queue):
    more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in queue.items())
    queues = "".join(
        f'[[queue]]\ninstance = "{feed.options["instance"]}"\ndatabase = "Warehouse"\nqueue = "{feed.queue}"\n{more}'
        f"max_messages_per_trigger = {at_most}\n"
        for feed in feeds
    )
    path = folder / "pipeline.toml"
    path.write_text(
        f'[pipeline]\nname = "faults"\nwarehouse = "tables"\ntrigger_seconds = 0.1\n{queues}\n[[message]]\n'
        f'type = "{LINE}"\nformat = "json"\ntable = "lines"\n[message.columns]\nsender = "long"\nn = "long"\n'
    )
    return path


def start_run(path, *options):
    ways = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Command("pipeline", "run", path, *options, **ways, text=False, start_new_session=True)


def check_excuse(said):
    """A run may end by itself with its one sentence: a user begins it again, and the tables are judged at the end.

    That happens on a machine so busy that Python or PostgreSQL takes longer to start than Spark or a claim waits.
    """
    assert "Traceback" not in said, said
    assert "servicebroker: " in said, said


def ended_run(path):
    said = []
    for _ in range(MAX_ATTEMPTS):
        run = start_run(path, "--once")
        try:
            if run.wait(timeout=300) == 0:
                return
        finally:
            end(run)
            said.append(run.communicate()[1].decode())
        check_excuse(said[-1])
    raise AssertionError(said)


def commits(path):
    """Return the number of commits in the table."""
    return len([*(read_pipeline(path).folder("lines") / "_delta_log").glob("*.json")])


def landing_run(path):
    """A run that has landed something."""
    said = []
    for _ in range(MAX_ATTEMPTS):
        before, run = max(commits(path), 1), start_run(path)  # the first commit makes the table
        give_up = time.monotonic() + 300
        while commits(path) <= before and run.poll() is None and time.monotonic() < give_up:
            time.sleep(0.05)
        if run.poll() is None and commits(path) > before:
            return run
        end(run)
        said.append(run.communicate()[1].decode())
        check_excuse(said[-1])
    raise AssertionError(said)


def descendants(pid):
    """The processes below one: pid and name."""
    return list(family(pid))[1:]


def kill(path, run, target, server_pid):
    """kill -9 of one part; whatever is left of the run ends by itself or, when it has noticed nothing, is ended."""
    before = commits(path)
    below = descendants(run.pid)
    if target == "driver":
        victims = [run.pid]
    elif target == "server":
        victims = [server_pid()]
    elif target == "java":
        victims = [pid for pid, name in below if name == "java"][:1]
    else:
        victims = [pid for pid, name in below if name.startswith("python")][-1:]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    give_up = time.monotonic() + 60
    while run.poll() is None and time.monotonic() < give_up:
        if commits(path) > before + 1:  # a worker that nobody missed
            break
        time.sleep(0.05)
    end(run)
    run.communicate()


def end(run):
    """kill -9 of the whole run, with what it has started."""
    if run.poll() is None:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(timeout=60)


def other_options(rng):
    """Return random options for the next run."""
    return {
        "at_most": rng.choice((200, 2000)),
        "min_partitions": rng.randrange(1, 4),
        "partitioning": rng.choice(("group", "range")),
        "max_bytes_per_trigger": rng.choice((0, 20_000)),
        "ack": rng.choice(("delete", "archive")),
    }


@pytest.mark.timeout(7200)  # --kills 50; each wait in here has a limit of its own
def test_every_message_is_written_once_and_in_order_despite_kills(tmp_path, request, seeded_random, record_property):
    kills = request.config.option.kills
    targets = [TARGETS[number % len(TARGETS)] for number in range(kills)]
    seeded_random.shuffle(targets)
    # not under pytest's own folder, see conftest.py
    place = tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True)
    with place as folder, sb.open(Path(folder) / "instance") as instance:
        database = warehouse(instance)
        make_notes(instance)
        feeds = [Feed(database), Feed(database)]
        path = describe(tmp_path, feeds)
        senders = [Sender(number, feeds[number % 2], seeded_random.random()) for number in range(3)]
        meddler = Meddler(feeds, seeded_random.random())
        workers = [*senders, meddler]
        for worker in workers:
            worker.start()

        def server_pid():
            with psycopg.connect(instance.url) as connection:
                sql = "select pid from pg_stat_activity where application_name = 'servicebroker pipeline'"
                rows = connection.execute(sql).fetchall()
                return seeded_random.choice(rows)[0] if rows else connection.info.backend_pid

        try:
            for target in targets:
                run = landing_run(path)
                time.sleep(seeded_random.uniform(0, 2))
                kill(path, run, target, server_pid)
                describe(tmp_path, feeds, **other_options(seeded_random))
        finally:
            for worker in workers:
                worker.stop.set()
            for worker in workers:
                worker.join()
        for feed in feeds:
            database.alter_queue(feed.queue, status=True)
        eventually(lambda: instance.status()[1].messages == 0, seconds=60)
        ended_run(describe(tmp_path, feeds, at_most=1_000_000))  # the rest, in a batch or two
        assert [feed.waiting_count() for feed in feeds] == [0, 0]
        sent = recorded_messages(instance)
    check(path, sent, moved=meddler.told["move"] > 0)
    summary = ", ".join(f"{count} {deed}" for deed, count in sorted(meddler.told.items()))
    record_property("ledger", f"{len(sent):,} messages, {kills} kills; beside them {summary}")


def files(path, table):
    """The files that the log of a table names."""
    return DeltaTable(read_pipeline(path).folder(table)).file_uris()


def check(path, sent, **more):
    pipeline_senders.check(files(path, "lines"), files(path, "bronze"), sent, **more)


@pytest.mark.full
def test_a_checkpoint_that_is_lost_or_an_old_copy_doubles_nothing_and_loses_nothing(tmp_path, database):
    feed = Feed(database)
    handle = feed.dialog(*(b'{"sender": 1, "n": %d}' % n for n in range(3000)))
    path = describe(tmp_path, [feed], ack="archive")
    run_here(path)
    checkpoints = tmp_path / "tables" / "_checkpoints"
    shutil.rmtree(checkpoints)
    feed.database.send(handle, LINE, b'{"sender": 1, "n": 3000}')
    run_here(path)
    check(path, [(1, n) for n in range(3001)])
    assert feed.waiting_count() == 0

    describe(tmp_path, [feed], ack="delete")
    shutil.copytree(checkpoints, tmp_path / "copy")
    for n in range(3001, 3003):
        feed.database.send(handle, LINE, b'{"sender": 1, "n": %d}' % n)
        run_here(path)
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "copy", checkpoints)
    feed.database.send(handle, LINE, b'{"sender": 1, "n": 3003}')
    with pytest.raises(
        InstanceError, match=r"is older than the table .* rows that the tables have are not added twice"
    ):
        run_here(path)
    assert feed.waiting_count() == 1
    shutil.rmtree(checkpoints)
    run_here(path)
    check(path, [(1, n) for n in range(3004)])
    assert feed.waiting_count() == 0


@pytest.mark.full
@pytest.mark.timeout(900)
def test_rows_are_exact_although_the_primary_is_lost_and_its_standby_promoted(tmp_path, seeded_random):
    """By a URL of both hosts, under load; what senders were told is committed is in the tables, once and in order."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-pair-") as folder, contextlib.ExitStack() as stack:
        Path(folder).chmod(0o755)
        primary, standby = (Server(Path(folder) / name) for name in ("one", "two"))
        for server in (primary, standby):
            stack.callback(server.close)
        primary.make(synchronous="")
        primary.start()
        url = (
            f"postgresql:///postgres?host={primary.folder},{standby.folder}&user={ROLE}&target_session_attrs=read-write"
        )
        instance = stack.enter_context(sb.open(url, upkeep=None))
        make_notes(instance)
        feed = Feed(warehouse(instance))
        standby.copy(primary, "standby")
        standby.start()
        primary.set_synchronous("standby")
        path = describe(tmp_path, [feed])
        senders = [Sender(number, feed, seeded_random.random()) for number in range(2)]
        with running(read_pipeline(path), once=False) as run:
            try:
                for sender in senders:
                    sender.start()
                until_lines(run, path, 200)
                before = landed_lines(path)
                primary.crash()
                standby.promote()
                until_lines(run, path, before + 500)
            finally:
                for sender in senders:
                    sender.stop.set()
                for sender in senders:
                    sender.join()
            sent = recorded_messages(instance)
            until_lines(run, path, len(sent))
        check(path, sent)
        assert set(sent) >= {row for sender in senders for row in sender.confirmed}


def until_lines(run, path, count):
    """Wait until so many lines have landed."""
    give_up = time.monotonic() + 300
    while landed_lines(path) < count:
        assert time.monotonic() < give_up, (landed_lines(path), count, [queue.reason for queue in run.queues])
        run.poll()
        time.sleep(0.1)


def run_here(path):
    """A run to the end of the queues as the command does it, in this process: the second one need not start Java."""
    with running(read_pipeline(path), once=True) as run:
        run.wait()


@pytest.mark.full
def test_a_queue_that_is_off_or_dropped_and_made_again_goes_on_while_it_runs(tmp_path, database):
    steady, changing = Feed(database), Feed(database)
    path = describe(tmp_path, [steady, changing], fail_on_data_loss=False)
    counts = {0: 0, 1: 0}

    def sends(which, feed, count=20):
        numbers = range(counts[which], counts[which] + count)
        counts[which] += count
        feed.dialog(*(b'{"sender": %d, "n": %d}' % (which, n) for n in numbers))

    def until_landed(run):
        until_lines(run, path, sum(counts.values()))

    for which, feed in enumerate((steady, changing)):
        sends(which, feed)
    with running(read_pipeline(path), once=False) as run:
        until_landed(run)
        database.alter_queue(changing.queue, status=False)
        sends(0, steady)
        sends(1, changing)
        assert changing.waiting_count() <= 20  # unacknowledged messages of the last batch, and nothing new
        database.alter_queue(changing.queue, status=True)
        until_landed(run)
        for _ in range(2):
            database.drop_service(changing.to_service)
            database.drop_queue(changing.queue)
            changing.create()
            sends(1, changing)
            sends(0, steady)
            until_landed(run)
        restarts = [queue.restarts for queue in run.queues]
        assert restarts[0] == 0
        assert restarts[1] >= 2
    run_here(path)
    assert (steady.waiting_count(), changing.waiting_count()) == (0, 0)
    check(path, [(which, n) for which in counts for n in range(counts[which])])


def landed_lines(path):
    folder = read_pipeline(path).folder("lines")
    return DeltaTable(folder).count() if DeltaTable.is_deltatable(str(folder)) else 0
