"""A pipeline on a standalone cluster, whose workers are killed, with tables in an object store: every message once."""

import time

import pytest

from forked import run_command
from pipeline_support import LINE, Feed, warehouse

pytest.importorskip("pyspark")
pytest.importorskip("moto")

import object_store
import pipeline_senders
import spark_cluster
from pipeline_senders import Meddler, Sender, check_all_sizes, make_notes, recorded_messages, say_all_sizes
from support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]

PROGRAM = 'import sys\nfrom servicebroker.cli.main import app\n\napp(["pipeline", "run", *sys.argv[1:]])\n'
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.minTaskRuntime": "20ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.efficiency.enabled": "false",
}


@pytest.fixture(scope="module")
def endpoint():
    with object_store.serving() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def cluster(endpoint, tmp_path_factory):
    """The credentials are in the environment of its machines."""
    with spark_cluster.cluster(tmp_path_factory.mktemp("cluster"), object_store.environment(endpoint)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def reachable(endpoint, monkeypatch):
    for name, value in object_store.environment(endpoint).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def database(instance):
    make_notes(instance)
    return warehouse(instance)


def describe(folder, feed, name, at_most):
    path = folder / "pipeline.toml"
    path.write_text(
        f'[pipeline]\nname = "cluster"\nwarehouse = "s3://lake/{name}"\ncheckpoints = "checkpoints"\n'
        f'trigger_seconds = 0.1\n[[queue]]\ninstance = "{feed.options["instance"]}"\ndatabase = "Warehouse"\n'
        f'queue = "{feed.queue}"\nmin_partitions = 4\nmax_messages_per_trigger = {at_most}\n'
        f'[[message]]\ntype = "{LINE}"\nformat = "json"\ntable = "lines"\n'
        '[message.columns]\nsender = "long"\nn = "long"\n'
    )
    return path


def commits(endpoint, folder):
    try:
        return len(object_store.live_files(endpoint, f"{folder}/lines"))
    except FileNotFoundError:
        return 0


def test_workers_are_killed_beside_senders_and_others_with_speculation(
    cluster, endpoint, database, tmp_path, seeded_random, record_property
):
    feed, place = Feed(database), "s3://lake/killed"
    path = describe(tmp_path, feed, "killed", at_most=3000)
    program, told = tmp_path / "run.py", tmp_path / "events"
    program.write_text(PROGRAM)
    told.mkdir()
    logging = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": told.as_uri(),
        "spark.eventLog.compress": "false",
    }
    workers = [cluster.add_worker() for _ in range(2)]
    people = [Sender(number, feed, seeded_random.random()) for number in range(3)]
    meddler = Meddler([feed], seeded_random.random())
    with (tmp_path / "said").open("wb") as said:
        run = cluster.submit(program, path, "--json", settings=SPECULATION | logging, log_file=said)
    try:

        def lands(more):
            expected = commits(endpoint, place) + more

            def has_landed():
                assert run.poll() is None, (tmp_path / "said").read_text()[-3000:]
                time.sleep(0.2)
                return commits(endpoint, place) >= expected

            eventually(has_landed, seconds=300)

        for one in (*people, meddler):
            one.start()
        lands(8)
        for _ in range(2):  # a worker from the start, then the other one
            time.sleep(seeded_random.random())
            spark_cluster.kill(workers.pop(0))
            workers.append(cluster.add_worker())
            lands(8)
        for one in (*people, meddler):
            one.stop.set()
        for one in (*people, meddler):
            one.join()
        database.alter_queue(feed.queue, status=True)
        eventually(lambda: database.instance.status()[1].messages == 0)
        eventually(lambda: feed.waiting_count() == 0, seconds=300)
        assert run.poll() is None
    finally:
        for one in (*people, meddler):
            one.stop.set()
        spark_cluster.kill(run)
    lines, bronze = (
        object_store.fetch_table(endpoint, f"{place}/{name}", tmp_path / name) for name in ("lines", "bronze")
    )
    sent = recorded_messages(database.instance)
    pipeline_senders.check(lines, bronze, sent, moved=meddler.told["move"] > 0)
    tasks = [event["Task Info"] for event in spark_cluster.events(told, "SparkListenerTaskEnd")]
    again = sum(task["Speculative"] for task in tasks)
    lost = len(spark_cluster.events(told, "SparkListenerExecutorRemoved"))
    assert lost >= 2
    assert again > 0
    said = ", ".join(f"{count} {deed}" for deed, count in sorted(meddler.told.items()))
    record_property("cluster", f"{len(sent):,} messages, {len(tasks)} tasks, {again} of them speculative; {said}")


def test_ten_thousand_short_conversations_and_one_long_one_land_with_bodies_of_any_size(
    cluster, endpoint, database, tmp_path
):
    feed, place = Feed(database), "s3://lake/sizes"
    path = describe(tmp_path, feed, "sizes", at_most=60_000)
    sent = say_all_sizes(feed)
    cluster.add_worker()
    result = run_command("pipeline", "run", path, "--once", "--master", cluster.url, timeout=900)
    assert result.returncode == 0, result.stderr
    assert feed.waiting_count() == 0
    names = ("lines", "bronze", "quarantine")
    check_all_sizes(*(object_store.fetch_table(endpoint, f"{place}/{name}", tmp_path / name) for name in names), sent)
