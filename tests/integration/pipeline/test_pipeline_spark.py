"""Queues through Spark into Delta tables: exactly once, in order, through crashes."""

import json
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from pipeline_support import END_OF_STREAM, LINE, Feed
from support import eventually

pytest.importorskip("pyspark")

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.run import running
from servicebroker.pipeline.spark_session import spark_session

pytestmark = pytest.mark.spark


@pytest.fixture
def land(spark, feed, tmp_path):
    """Starts a query from the feed's queue into the table `tmp_path/table`, always with the same checkpoint."""

    def start(available_now=True, **options):
        trigger = {"availableNow": True} if available_now else {"processingTime": "100 milliseconds"}
        source = spark.readStream.format("servicebroker").options(**feed.options, minPartitions="2", **options)
        sink = source.load().writeStream.format("servicebroker_delta").option("path", str(tmp_path / "table"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()
        if available_now:
            assert query.awaitTermination(300)
        return query

    return start


def rows_by_commit(folder):
    """The rows of a table as they landed: for each commit, the rows of each of its files."""
    commits = []
    for entry in sorted((folder / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        files = [action["add"]["path"] for action in actions if "add" in action]
        commits.append([pq.read_table(folder / file).to_pylist() for file in files])
    return [files for files in commits if files]


def conversations(folder):
    """Sequence numbers by conversation, in the order they landed; a conversation is in one file of a commit."""
    found = defaultdict(list)
    for files in rows_by_commit(folder):
        seen = [{row["conversation_handle"] for row in rows} for rows in files]
        assert sum(map(len, seen)) == len(set().union(*seen))
        for rows in files:
            for row in rows:
                found[row["conversation_handle"]].append(row["message_sequence_number"])
    return found


def feed_roughly(feed, seed, enough):
    """Transactions that draw their ids early, commit late and out of order, and often roll back; what was sent."""
    rng = random.Random(seed)
    handles = [feed.dialog(b"first") for _ in range(4)]
    sent = len(handles)
    while not enough.is_set():
        chosen, rolled_back = rng.choice(handles), rng.random() < 0.15
        try:
            with feed.database.transaction() as transaction:
                transaction.connection.execute("select pg_current_xact_id()")
                time.sleep(rng.random() * 0.02)
                count = rng.randrange(1, 6)
                transaction.send_batch(chosen, LINE, [b"x"] * count)
                # now and then longer than a batch takes from its plan to its last row
                time.sleep(1.2 if rng.random() < 0.05 else rng.random() * 0.02)
                if rolled_back:
                    raise InterruptedError
                sent += count
        except InterruptedError:
            continue
    return sent


def test_every_message_lands_once_in_order_under_rough_writers(feed, land, tmp_path):
    feed.dialog(b"warm up")
    query = land(available_now=False, maxMessagesPerTrigger="400")
    query.processAllAvailable()
    sent, enough = [], threading.Event()
    feeds = [lambda seed=seed: sent.append(feed_roughly(feed, seed, enough)) for seed in range(4)]
    writers = [threading.Thread(target=write) for write in feeds]
    for writer in writers:
        writer.start()
    time.sleep(3)
    eventually(lambda: len(rows_by_commit(tmp_path / "table")) > 3, seconds=120)
    enough.set()
    for writer in writers:
        writer.join()
    query.processAllAvailable()
    query.stop()
    numbers = conversations(tmp_path / "table")
    assert sum(map(len, numbers.values())) == sum(sent) + 1
    assert all(received_numbers == list(range(len(received_numbers))) for received_numbers in numbers.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("deliver", "rows_of_batches"), [("messages", [15, 15, 10]), ("parts", [2, 2, 2])])
def test_a_run_lands_in_pages_ends_conversations_and_leaves_nothing(feed, land, tmp_path, deliver, rows_of_batches):
    handles = [feed.dialog(b"\xff\x00", b"<x/>", b"") for _ in range(10)]
    for handle in handles:
        feed.database.send(handle, END_OF_STREAM)
    query = land(maxMessagesPerTrigger="15", deliver=deliver)
    found = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert found == rows_of_batches
    last = [one for one in query.recentProgress if one["numInputRows"]][-1]
    document = json.loads(last["sources"][0]["latestOffset"])
    assert (document["messagesRead"], document["bytesRead"], document["messagesBehind"]) == (40, 60, 0)
    assert document["queueName"] == feed.queue
    assert feed.database.receive(feed.queue) == []  # free, and nothing is left
    assert (feed.waiting_count(), feed.far_states()) == (0, {"CD": 10})
    table = DeltaTable(tmp_path / "table")
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted(row["message_body"] or b"" for row in rows if row["message_type_name"] == LINE) == sorted(
        [b"\xff\x00", b"<x/>", b""] * 10
    )
    assert table.transaction_version(query.id) == 2
    assert sum(table.get_add_actions(flatten=True).column("num_records").to_pylist()) == 40
    version = table.version()
    land()
    assert DeltaTable(tmp_path / "table").version() == version


def test_the_progress_of_spark_reports_the_blocking_session(feed, land):
    feed.dialog(b"a")
    with feed.database.transaction() as slow:
        slow.send(feed.dialog(), LINE, b"slow")
        feed.dialog(b"held back")
        query = land()
        progress = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert (progress["messagesBehind"], progress["blockingPid"]) == (2, slow.connection.info.backend_pid)
    assert progress["oldestMessageSeconds"] >= 0
    assert progress["frontierLag"] >= 1


def test_a_batch_that_landed_but_was_not_acknowledged_lands_once(feed, land, tmp_path):
    for _ in range(4):
        feed.dialog(b"a", b"b", b"c")
    with feed.database.instance.connection() as connection:
        connection.execute(
            "create function public.refuse() returns trigger language plpgsql as "
            "$$ begin raise exception 'injected'; end $$"
        )
        connection.execute(
            f"create trigger refuse before delete on {feed.table} for each statement execute function public.refuse()"
        )
        with pytest.raises(StreamingQueryException, match="injected"):
            land(maxMessagesPerTrigger="5")
        assert (feed.waiting_count(), len(rows_by_commit(tmp_path / "table"))) == (12, 1)
        # as if the driver had died before it noted that the sink had committed
        for noted in (tmp_path / "checkpoint" / "commits").glob("*0*"):
            noted.unlink()
        connection.execute(f"drop trigger refuse on {feed.table}")
    feed.dialog(b"later")
    land(maxMessagesPerTrigger="5")
    numbers = conversations(tmp_path / "table")
    assert sorted(map(tuple, numbers.values())) == [(0,), *[(0, 1, 2)] * 4]
    assert feed.waiting_count() == 0


def test_a_second_stream_on_the_queue_is_refused(feed, land, spark, tmp_path):
    first = land(available_now=False)
    first.processAllAvailable()
    second = spark.readStream.format("servicebroker").options(**feed.options, claimTimeout="1").load()
    query = second.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "other")).start()
    with pytest.raises(StreamingQueryException, match="being read by another pipeline"):
        query.awaitTermination(30)
    first.stop()


def test_a_look_reads_the_queue_and_leaves_it(feed, spark):
    feed.dialog(b"a", b"b")
    look = spark.read.format("servicebroker").options(**feed.options).load()
    assert [row.n for row in look.groupBy("service_name").agg(F.count("*").alias("n")).collect()] == [2]
    assert feed.waiting_count() == 2
    empty = spark.read.format("servicebroker").options(**(feed.options | {"queue": feed.reply_queue})).load()
    assert empty.count() == 0


def test_a_delta_table_is_read_back(feed, land, spark, tmp_path):
    feed.dialog(b"a", b"b", b"c")
    land()
    rows = spark.read.format("servicebroker_delta").option("path", str(tmp_path / "table")).load()
    bodies = [bytes(row.message_body) for row in rows.orderBy("message_sequence_number").collect()]
    assert bodies == [b"a", b"b", b"c"]
    assert rows.where("message_sequence_number = 1").count() == 1


@pytest.mark.full
def test_a_pipeline_leaves_a_foreign_spark_session_running(feed, spark, tmp_path):
    feed.dialog(b"a", b"b")
    queue = QueueRule(feed.options["instance"], feed.options["database"], feed.queue)
    with running(Pipeline("theirs", tmp_path, (queue,)), once=True) as run:
        run.wait()
    assert [row["message_body"] for files in rows_by_commit(tmp_path / "bronze") for rows in files for row in rows] == [
        b"a",
        b"b",
    ]
    assert spark.range(3).count() == 3


@pytest.mark.full
def test_several_queues_of_one_source_land_with_their_names(feed, spark, tmp_path):
    other = Feed(feed.database)
    feeds = (feed, other)
    options = {**feed.options, "queue": f"{feed.queue}, {other.queue}", "minPartitions": "2"}

    def run():
        source = spark.readStream.format("servicebroker").options(**options)
        sink = source.load().writeStream.format("servicebroker_delta").option("path", str(tmp_path / "table"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(300)

    for number in range(2):
        for one in feeds:
            one.dialog(*(b"%s %d" % (one.queue.encode(), index) for index in range(20)))
        run()
        rows = [row for files in rows_by_commit(tmp_path / "table") for rows in files for row in rows]
        assert len(rows) == 40 * (number + 1)
        assert all(row["message_body"].decode().startswith(f"{row['queue']} ") for row in rows)
        assert {row["queue"] for row in rows} == {one.queue for one in feeds}
        assert [one.waiting_count() for one in feeds] == [0, 0]
    numbers = conversations(tmp_path / "table")
    assert sorted(numbers.values()) == [list(range(20))] * 4


def test_a_password_is_in_no_plan(feed, spark, capsys):
    """The pages and the event log of Spark show what `explain` does."""
    secret = feed.options | {"instance": f"{feed.options['instance']}&password=tops3cret"}
    spark.read.format("servicebroker").options(**secret).load().explain("extended")
    assert "BatchScan" in (printed := capsys.readouterr().out)
    assert "tops3cret" not in printed


def test_a_wrong_option_is_one_clear_sentence(feed, spark):
    with pytest.raises(Exception, match="The servicebroker source has no option 'color'"):
        spark.readStream.format("servicebroker").options(**feed.options, color="red").load()


def sender(feed, **more):
    place = {"instance": feed.options["instance"], "database": feed.options["database"]}
    return (
        place
        | {"fromService": feed.from_service, "toService": feed.to_service, "contract": "Lines", "messageType": LINE}
        | more
    )


def receive_everything(feed):
    found = []
    while messages := feed.database.receive(feed.queue, top=10_000):
        found += messages
    return found


def test_a_batch_job_sends_its_rows_once_in_the_order_of_their_key(feed, spark):
    rows = spark.range(2_000).selectExpr("cast(id as string) as message_body", "id % 17 as customer")
    options = sender(feed, sendId=f"job of {feed.from_service}", key="customer", conversations="3")
    for _ in range(2):
        rows.repartition(4, "customer").sortWithinPartitions("customer").write.format("servicebroker").options(
            **options
        ).mode("append").save()
    messages = receive_everything(feed)
    sent = defaultdict(list)
    for message in messages:
        if message.message_type_name == LINE:
            sent[int(message.message_body) % 17].append((message.conversation_handle, int(message.message_body)))
    assert sum(map(len, sent.values())) == 2_000
    assert all(len({handle for handle, _ in rows}) == 1 for rows in sent.values())
    ends = [message for message in messages if message.message_type_name == END_OF_STREAM]
    assert len(ends) == len({message.conversation_handle for message in messages}) <= 3


def test_a_stream_goes_from_queue_to_queue_once_also_when_its_commit_fails_after_the_deed(feed, spark, tmp_path):
    """The writer's transaction commits; Spark hears nothing of it and runs the batch again."""
    onward = Feed(feed.database)
    feed.dialog(*[b"%d" % number for number in range(50)])

    def pump():
        source = spark.readStream.format("servicebroker").options(**feed.options, maxMessagesPerTrigger="20").load()
        sink = source.writeStream.format("servicebroker").options(**sender(onward, key="conversation_handle"))
        query = sink.option("checkpointLocation", str(tmp_path / "pump")).trigger(availableNow=True).start()
        query.awaitTermination(60)
        return query

    query = pump()
    progress = json.loads(query.lastProgress["sources"][0]["latestOffset"])
    assert (progress["messagesBehind"], progress["queue"]) == (
        0,
        json.loads(query.lastProgress["sources"][0]["endOffset"])["queue"],
    )
    for noted in (tmp_path / "pump" / "commits").glob("*2*"):
        noted.unlink()
    pump()
    assert [int(message.message_body) for message in receive_everything(onward)] == list(range(50))


def test_the_formats_are_found_by_themselves(spark):
    import pyspark_servicebroker
    import pyspark_servicebroker_delta

    assert pyspark_servicebroker.DefaultSource.name() == "servicebroker"
    assert pyspark_servicebroker_delta.DefaultSource.name() == "servicebroker_delta"


def test_a_spark_session_has_no_ui_and_no_warehouse_folder(spark):
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark_session("another name") is spark
    assert not Path("spark-warehouse").exists()
