"""Checkpoints that are older than what their query has read: no message may leave the queue for one that has landed."""

import json
import shutil
import uuid
from dataclasses import replace

import pytest

from pipeline_support import Feed

pytest.importorskip("pyspark")

from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadMaxRows

from pipeline_reading import ALL, attach, bodies
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.stream import rows
from support import eventually

OLD_CHECKPOINT_ERROR = "The checkpoint is older than what the queue"


@pytest.fixture
def stream(feed):
    """Starts a reader of the feed's queue, as the next process that plans the query; the one before has ended."""
    running = []

    def start(*, queues=None, **options):
        stop()
        named = {"queue": ", ".join(queue.queue for queue in queues)} if queues else {}
        running.append(attach(feed, **named, **options))
        return running[0]

    def stop():
        while running:
            running.pop().stop()

    yield start
    stop()


@pytest.fixture
def task(monkeypatch):
    """Names the query and the batch that tasks read for."""

    def name(query, batch):
        monkeypatch.setattr(rows, "batch_of_task", lambda: (query, batch))

    return name


def send_numbers(feed, *numbers):
    feed.dialog(*(b"%d" % number for number in numbers))
    return [b"%d" % number for number in numbers]


def test_a_start_before_the_acknowledged_offset_is_refused(feed, stream):
    send_numbers(feed, 1)
    reader = stream()
    first = reader.latestOffset(reader.initialOffset(), ALL)
    send_numbers(feed, 2)
    second = reader.latestOffset(first, ALL)
    assert reader.latestOffset(second, ALL) is second
    later = send_numbers(feed, 3, 4)
    old = stream()
    with pytest.raises(InstanceError, match=f"{OLD_CHECKPOINT_ERROR} '{feed.queue}' has given") as refusal:
        old.latestOffset(first, ALL)
    assert "Start the query with a new checkpoint location" in str(refusal.value)
    with pytest.raises(InstanceError, match=OLD_CHECKPOINT_ERROR):
        old.commit(first)
    assert feed.waiting_count() == 2
    anew = stream()
    begin = anew.initialOffset()
    end = anew.latestOffset(begin, ALL)
    assert bodies(anew, begin, end) == later
    assert anew.latestOffset(end, ALL) is end
    assert feed.waiting_count() == 0


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_an_offset_ahead_of_the_read_messages_deletes_none(feed, stream, lenient):
    """The server was restored, or the offset was edited by hand: unread messages stay in the queue."""
    send_numbers(feed, *range(5))
    reader = stream(failOnDataLoss=lenient)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(2))
    edited = first | {"queuing_order": 5}
    again = stream(failOnDataLoss=lenient)
    uses = again.commit, lambda offset: again.latestOffset(offset, ALL), lambda offset: again.partitions(start, offset)
    for use in uses:
        with pytest.raises(InstanceError, match=f"The checkpoint is ahead of what the queue '{feed.queue}'"):
            use(edited)
    assert feed.waiting_count() == 5
    final = stream()
    assert bodies(final, start, final.latestOffset(start, ReadMaxRows(2))) == [b"0", b"1"]
    assert bodies(final, first, final.latestOffset(first, ALL)) == [b"2", b"3", b"4"]


def test_a_batch_that_comes_again_is_refused_when_later_ones_were_acknowledged(feed, stream):
    reader = stream()
    start = at = reader.initialOffset()
    offsets = []
    for number in range(3):
        send_numbers(feed, number)
        at = reader.latestOffset(at, ALL)
        offsets.append(at)
    again = stream()
    with pytest.raises(InstanceError, match=OLD_CHECKPOINT_ERROR):
        again.partitions(start, offsets[0])
    assert bodies(again, offsets[0], offsets[1]) == []  # Spark had not noted that the sink has it
    assert bodies(again, offsets[1], offsets[2]) == [b"2"]


def test_the_same_start_gets_the_same_end_until_it_is_acknowledged(feed, stream):
    reader = stream()
    start = reader.initialOffset()
    before = send_numbers(feed, 1, 2, 3)
    first = reader.latestOffset(start, ReadMaxRows(3))
    second_batch = send_numbers(feed, 4, 5)
    second = reader.latestOffset(first, ReadMaxRows(2))
    send_numbers(feed, 6, 7)
    for limit in (ALL, ReadMaxRows(1)):
        again = stream(maxBytesPerTrigger="1")
        assert again.latestOffset(first, limit) == second
        assert bodies(again, first, second) == second_batch
    assert feed.waiting_count() == 4
    final = stream()
    third = final.latestOffset(second, ALL)
    assert bodies(final, second, third) == [b"6", b"7"]
    assert before == [b"1", b"2", b"3"]


def test_the_first_batch_of_a_query_is_planned_again_as_it_was(feed, stream):
    first = send_numbers(feed, 1)
    reader = stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    send_numbers(feed, 2)
    again = stream()
    assert again.latestOffset(start, ALL) == end
    assert bodies(again, start, end) == first


def test_a_checkpoint_that_is_up_to_date_goes_on(feed, stream):
    send_numbers(feed, 1)
    reader = stream()
    at = reader.latestOffset(reader.initialOffset(), ALL)
    for number in range(2, 5):
        expected = send_numbers(feed, number)
        reader = stream()
        end = reader.latestOffset(at, ALL)
        assert bodies(reader, at, end) == expected
        reader.commit(at)
        at = end


def test_a_new_query_continues_after_its_first_batch_despite_earlier_acknowledgements(feed, stream):
    send_numbers(feed, 1)
    reader = stream()
    at = reader.latestOffset(reader.initialOffset(), ALL)
    send_numbers(feed, 2)
    reader.latestOffset(at, ALL)
    other = stream()
    start = other.initialOffset()
    end = other.latestOffset(start, ALL)
    again = stream()
    assert bodies(again, start, end) == [b"2"]
    send_numbers(feed, 3)
    assert bodies(again, end, again.latestOffset(end, ALL)) == [b"3"]


@pytest.mark.parametrize("is_noted", [True, False])
def test_another_query_may_read_in_between(feed, stream, task, is_noted):
    """The notes of the tasks tell such a query from a copy."""
    ours = str(uuid.uuid4())
    if is_noted:
        task(ours, 0)
    send_numbers(feed, 1)
    reader = stream()
    start = reader.initialOffset()
    at = reader.latestOffset(start, ALL)
    assert bodies(reader, start, at) == [b"1"]
    reader.latestOffset(at, ALL)
    send_numbers(feed, 2)
    if is_noted:
        task(str(uuid.uuid4()), 0)
    other = stream()
    end = other.latestOffset(other.initialOffset(), ALL)
    assert bodies(other, start, end) == [b"2"]
    other.latestOffset(end, ALL)
    send_numbers(feed, 3)
    again = stream()
    if is_noted:
        task(ours, 1)
        assert bodies(again, at, again.latestOffset(at, ALL)) == [b"3"]
    else:
        with pytest.raises(InstanceError, match=OLD_CHECKPOINT_ERROR):
            again.latestOffset(at, ALL)


def test_a_number_that_comes_again_with_other_messages_is_refused(feed, stream, task):
    """As with a copy from before the first batch, whose start says nothing."""
    query = str(uuid.uuid4())
    task(query, 0)
    send_numbers(feed, 1)
    reader = stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    for _ in range(2):
        assert bodies(reader, start, end) == [b"1"]
    reader.latestOffset(end, ALL)
    send_numbers(feed, 2)
    copy = stream()
    other_end = copy.latestOffset(start, ALL)
    with pytest.raises(InstanceError, match=r"Batch 0 of this query was read already, .* other messages under"):
        bodies(copy, start, other_end)
    task(str(uuid.uuid4()), 0)
    assert bodies(copy, start, other_end) == [b"2"]
    task(query, 1)
    assert bodies(copy, start, other_end) == [b"2"]
    task(query, 0)
    with pytest.raises(InstanceError, match=r"Batch 1 of this query was read already, .* goes on with batch 0"):
        bodies(copy, start, other_end)


def test_a_standby_reads_without_a_note(feed, stream, task, database):
    query = str(uuid.uuid4())
    task(query, 0)
    send_numbers(feed, 1)
    reader = stream()
    parts = reader.partitions(start := reader.initialOffset(), reader.latestOffset(start, ALL))
    only_reads = f"{feed.options['instance']}&options=-c%20default_transaction_read_only%3Don"
    read = [batch for part in parts for batch in rows.read(replace(part, instance=only_reads))]
    assert [batch.num_rows for batch in read] == [1]
    with database.instance.connection() as connection:
        sql = "select count(*) from servicebroker.stream_batches where query = %s"
        assert connection.execute(sql, (query,)).fetchone() == (0,)


def test_several_queues_get_the_batch_that_was_planned_and_nothing_beside_it(feed, stream, database):
    """New messages of another queue would be in a batch that the sink has."""
    feeds = (feed, Feed(database))
    reader = stream(queues=feeds)
    start = reader.initialOffset()
    send_numbers(feed, 1)
    first = reader.latestOffset(start, ALL)
    send_numbers(feed, 2)
    second = reader.latestOffset(first, ALL)
    send_numbers(feeds[1], 3)
    again = stream(queues=feeds)
    assert again.latestOffset(first, ALL) == second
    assert bodies(again, first, second) == [b"2"]
    third = again.latestOffset(second, ALL)
    assert bodies(again, second, third) == [b"3"]
    with pytest.raises(InstanceError, match=f"{OLD_CHECKPOINT_ERROR} '{feed.queue}'"):
        stream(queues=feeds).latestOffset(first, ALL)


def test_the_notes_of_another_database_do_not_count(feed, stream, database):
    """A dump that was restored and adopted has them, too."""
    send_numbers(feed, 1)
    reader = stream()
    first = reader.latestOffset(reader.initialOffset(), ALL)
    send_numbers(feed, 2)
    reader.latestOffset(first, ALL)
    with database.instance.connection() as connection:
        connection.execute(
            'update servicebroker.stream_offsets set acknowledged = acknowledged || \'{"database_oid": 1, "lo": 9, '
            '"hi": 99999999}\', planned_start = null where queue_id = %s',
            (feed.queue_id,),
        )
    again = stream()
    assert bodies(again, first, again.latestOffset(first, ALL)) == [b"2"]


def test_the_notes_of_a_queue_go_with_it(feed, stream, database):
    send_numbers(feed, 1)
    reader = stream()
    reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    with database.instance.connection() as connection:
        sql = "select count(*) from servicebroker.stream_offsets where queue_id = %s"
        assert connection.execute(sql, (feed.queue_id,)).fetchone() == (1,)
        database.drop_service(feed.to_service)
        database.drop_queue(feed.queue)
        assert connection.execute(sql, (feed.queue_id,)).fetchone() == (0,)


# ---------------------------------------------------------------- in Spark


@pytest.fixture
def land(spark, feed, tmp_path):
    """Runs an own query of the feed's queue into a table."""

    def run(checkpoint="checkpoint", *, available_now=True, **options):
        trigger = {"availableNow": True} if available_now else {"processingTime": "1 hour"}
        source = spark.readStream.format("servicebroker").options(**feed.options, minPartitions="2", **options)
        sink = source.load().writeStream.format("servicebroker_delta").option("path", str(tmp_path / "table"))
        query = sink.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(**trigger).start()
        if available_now:
            assert query.awaitTermination(120)
        return query

    return run


def put_back(tmp_path):
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")


def landed_numbers(tmp_path):
    found = DeltaTable(tmp_path / "table").to_pyarrow_table().column("message_body").to_pylist()
    return sorted(int(body) for body in found)


@pytest.mark.spark
@pytest.mark.sampled(1)
@pytest.mark.parametrize("deliver", ["messages", "parts"])
def test_a_checkpoint_that_is_one_batch_old_loses_nothing(feed, land, tmp_path, deliver):
    send_numbers(feed, *range(10))
    land(deliver=deliver)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    send_numbers(feed, *range(10, 35))
    land(deliver=deliver)
    put_back(tmp_path)
    send_numbers(feed, *range(35, 70))
    with pytest.raises(StreamingQueryException, match=OLD_CHECKPOINT_ERROR):
        land(deliver=deliver)
    assert feed.waiting_count() == 35
    land("another", deliver=deliver)
    assert (landed_numbers(tmp_path), feed.waiting_count()) == ([*range(70)], 0)


@pytest.mark.full
@pytest.mark.spark
def test_a_checkpoint_from_before_the_first_batch_loses_nothing(feed, land, tmp_path):
    land()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "metadata").read_text())["id"]
    send_numbers(feed, *range(25))
    land()
    put_back(tmp_path)
    send_numbers(feed, *range(25, 60))
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="of this query was read already"):
            land()
    assert feed.waiting_count() == 35
    land("another")
    assert (landed_numbers(tmp_path), feed.waiting_count()) == ([*range(60)], 0)


@pytest.mark.full
@pytest.mark.spark
def test_an_old_checkpoint_of_a_batch_that_is_not_acknowledged_goes_on(feed, land, tmp_path):
    send_numbers(feed, *range(10))
    land()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    send_numbers(feed, *range(10, 35))
    query = land(available_now=False)
    eventually(lambda: query.lastProgress)  # the batch has landed, and the next one is an hour away
    query.stop()
    assert feed.waiting_count() == 25
    put_back(tmp_path)
    send_numbers(feed, *range(35, 70))
    land()
    assert (landed_numbers(tmp_path), feed.waiting_count()) == ([*range(70)], 0)
