"""A pipeline that is killed at random, beside senders that commit out of order and roll back: every message once."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import psycopg
import pytest

from forked import Command
from pipeline_support import LINE, Feed, warehouse

pytest.importorskip("pyspark")

from deltalake import DeltaTable

import servicebroker as sb
from servicebroker.benchmarks.processes import family
from servicebroker.pipeline.file import read_pipeline
from servicebroker.pipeline.run import running

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TARGETS = ("driver", "java", "worker", "server")
ATTEMPTS = 5  # to begin a run on a busy machine


def describe(folder, feeds, at_most=2000, **queue):
    more = "".join(f'{key} = "{value}"\n' for key, value in queue.items())
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


def begun(path, *options):
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
    for _ in range(ATTEMPTS):
        run = begun(path, "--once")
        try:
            if run.wait(timeout=300) == 0:
                return
        finally:
            end(run)
            said.append(run.communicate()[1].decode())
        check_excuse(said[-1])
    raise AssertionError(said)


def commits(path):
    """How often something has landed in the table."""
    return len([*(read_pipeline(path).folder("lines") / "_delta_log").glob("*.json")])


class Sender(threading.Thread):
    """Sends numbered messages on two conversations and notes each, in the same transaction, in a table of its own."""

    def __init__(self, number, feed, seed):
        super().__init__()
        self.number, self.feed, self.chance = number, feed, random.Random(seed)
        self.stop = threading.Event()
        self.handles = [feed.dialog() for _ in range(2)]

    def run(self):
        n = 0
        while not self.stop.is_set():
            count = self.chance.randrange(1, 40)
            numbers = range(n, n + count)
            with contextlib.suppress(InterruptedError, psycopg.Error, sb.ServiceBrokerError):  # the server was killed
                self.send(numbers)
            n += count

    def send(self, numbers):
        with self.feed.database.transaction() as transaction:
            transaction.connection.execute("select pg_current_xact_id()")
            time.sleep(self.chance.random() * 0.2)
            bodies = [json.dumps({"sender": self.number, "n": one}) for one in numbers]
            transaction.send_batch(self.chance.choice(self.handles), LINE, bodies)
            noted = [(self.number, one) for one in numbers]
            transaction.connection.cursor().executemany("insert into public.sent values (%s, %s)", noted)
            if self.chance.random() < 0.1:
                raise InterruptedError


def landing_run(path):
    """A run that has landed something."""
    said = []
    for _ in range(ATTEMPTS):
        before, run = max(commits(path), 1), begun(path)  # the first commit makes the table
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


@pytest.mark.timeout(7200)  # --kills 50; each wait in here has a limit of its own
def test_whatever_is_killed_every_message_lands_once_and_in_order(tmp_path, request, seeded_random):
    kills = request.config.option.kills
    targets = [TARGETS[number % len(TARGETS)] for number in range(kills)]
    seeded_random.shuffle(targets)
    # not under pytest's own folder, see conftest.py
    place = tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True)
    with place as folder, sb.open(Path(folder) / "instance") as instance:
        database = warehouse(instance)
        with instance.connection() as connection:
            connection.execute("create table public.sent (sender bigint, n bigint)")
        feeds = [Feed(database), Feed(database)]
        path = describe(tmp_path, feeds)
        senders = [Sender(number, feeds[number % 2], seeded_random.random()) for number in range(3)]
        for sender in senders:
            sender.start()

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
        finally:
            for sender in senders:
                sender.stop.set()
            for sender in senders:
                sender.join()
        ended_run(describe(tmp_path, feeds, at_most=1_000_000))  # what is left, in a batch or two
        assert [feed.left() for feed in feeds] == [0, 0]
        with instance.connection() as connection:
            sent = connection.execute("select sender, n from public.sent order by 1, 2").fetchall()
    check(path, sent)


def check(path, sent):
    """What DuckDB reads from the files that the tables' logs name is what the senders have noted."""
    tables = read_pipeline(path)
    lines = DeltaTable(tables.folder("lines")).file_uris()
    found = duckdb.sql(f"select sender, n from read_parquet({lines}) order by 1, 2").fetchall()
    assert found == sent
    # along a conversation, numbers have no gap and the bodies are in their order
    disorder = duckdb.sql(
        "select count(*) from (select _message_sequence_number - row_number() over w + 1 as gap, "
        "n - lag(n) over w as step, _queuing_order - lag(_queuing_order) over w as arrival "
        f"from read_parquet({lines}) "
        "window w as (partition by _conversation_handle order by _message_sequence_number)) "
        "where gap <> 0 or step <= 0 or arrival <= 0"
    ).fetchall()
    assert disorder == [(0,)]
    bronze = DeltaTable(tables.folder("bronze")).file_uris()
    counted = f"select count(*), count(distinct (conversation_handle, queuing_order)) from read_parquet({bronze})"
    assert duckdb.sql(counted).fetchall() == [(len(sent), len(sent))]


@pytest.mark.full
def test_an_archive_survives_a_lost_checkpoint_and_doubles_nothing(tmp_path, instance):
    feed = Feed(warehouse(instance))
    handle = feed.dialog(*(b'{"sender": 1, "n": %d}' % n for n in range(3000)))
    path = describe(tmp_path, [feed], ack="archive")
    run_here(path)
    shutil.rmtree(tmp_path / "tables" / "_checkpoints")
    feed.database.send(handle, LINE, b'{"sender": 1, "n": 3000}')
    run_here(path)
    check(path, [(1, n) for n in range(3001)])
    assert feed.left() == 0


def run_here(path):
    """A run to the end of the queues as the command does it, in this process: the second one need not start Java."""
    with running(read_pipeline(path), once=True) as run:
        run.wait()
