"""The stream reader against a real server, driven as Spark drives it, without Spark."""

import contextlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pipeline_support import LINE, Feed, warehouse
from pooling_proxy import PoolingProxy

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

import servicebroker as sb
from pipeline_reading import ALL, attach, batches, bodies
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.queue_lease import QueueLease
from servicebroker.pipeline.sinks.delta import DeltaWriter
from servicebroker.pipeline.stream import frontier, rows
from servicebroker.pipeline.stream.frontier import Frontier, GroupPartition, Slice
from servicebroker.pipeline.stream.reader import QueueReader
from servicebroker.pipeline.stream.rows import arrow_schema
from servicebroker.store import locks
from servicebroker.store.home import settle
from support import eventually


def test_an_empty_queue_is_idle(reader):
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    assert reader.latestOffset(start, ALL) is start
    assert reader.partitions(start, start) == []


def test_a_proxy_that_lends_its_sessions_is_refused(feed):
    """There, the hold on the queue would be somebody else's."""
    feed.dialog(b"a")
    with PoolingProxy(feed.options["instance"], 3) as proxied:
        reader = attach(feed, instance=proxied)
        with pytest.raises(InstanceError, match="pools sessions by transaction"):
            reader.initialOffset()


def test_every_column_arrives(feed, reader):
    handle = feed.dialog(b"\xff\x00")
    start = reader.initialOffset()
    (batch,) = batches(reader, start, reader.latestOffset(start, ALL))
    (row,) = batch.to_pylist()
    assert batch.schema == arrow_schema()
    with feed.database.instance.connection() as connection:
        sql = (
            "select far_handle::text, far_group_id::text from servicebroker.conversation_endpoints "
            "where conversation_handle = %s"
        )
        assert (row["conversation_handle"], row["conversation_group_id"]) == connection.execute(
            sql, (handle,)
        ).fetchone()
    assert (row["queue"], row["service_name"]) == (feed.queue, feed.to_service)
    assert (row["service_contract_name"], row["message_type_name"]) == ("Lines", "Line")
    assert (row["message_sequence_number"], row["priority"], row["validation"]) == (0, 5, "N")
    assert row["message_body"] == b"\xff\x00"
    assert abs(row["message_enqueue_time"].timestamp() - time.time()) < 60


def test_a_part_stands_for_its_rows(feed, reader):
    feed.dialog(b"a", b"", b"\xff")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = attach(feed, deliver="parts")  # the reader owns the queue; parts are read by anybody
    announced = [batch for part in reader.partitions(start, end) for batch in parts.read(part)]
    assert [batch.schema.names for batch in announced] == [["part"], ["part"]]
    found = [body for batch in rows.messages_for_sink(announced) for body in batch["message_body"].to_pylist()]
    assert found == bodies(reader, start, end) == [b"a", None, b"\xff"]
    messages = batches(reader, start, end)
    assert list(rows.messages_for_sink(messages)) == messages
    only_parts = StructType([StructField(rows.PART, StringType())])
    assert DeltaWriter(Path(), only_parts)._schema == arrow_schema()


def test_a_server_that_is_behind_is_not_read(feed, reader):
    """A standby in the URL may lag. The stream would acknowledge messages that the standby does not have yet."""
    feed.dialog(b"a")
    part, *_ = reader.partitions(start := reader.initialOffset(), reader.latestOffset(start, ALL))
    behind = replace(part, window_slice=part.window_slice._replace(hi=part.window_slice.hi + 1_000_000))
    with pytest.raises(InstanceError, match="lags behind, as a standby does"):
        list(rows.read(behind))


def test_a_task_has_the_time_that_it_needs(feed, reader):
    """The timeouts of its role for applications do not matter."""
    feed.dialog(b"a")
    parts = reader.partitions(start := reader.initialOffset(), reader.latestOffset(start, ALL))
    hurried = f"{feed.options['instance']}&options=-c%20statement_timeout%3D200"
    with feed.database.instance.connection() as other_connection, ThreadPoolExecutor(1) as task:
        with other_connection.transaction():
            other_connection.execute(f"lock table {feed.table} in access exclusive mode")
            read = [task.submit(list, rows.read(replace(part, instance=hurried))) for part in parts]
            time.sleep(0.8)
        assert sum(batch.num_rows for one in read for batch in one.result(60)) == 1


def test_pages_never_hold_more_than_the_limit_and_replay_exactly(feed, reader):
    feed.dialog(*[b"%d" % number for number in range(25)])
    at, seen, offsets = reader.initialOffset(), [], []
    while (end := reader.latestOffset(at, ReadMaxRows(10))) is not at:
        page = bodies(reader, at, end)
        feed.dialog(b"meanwhile")
        assert bodies(reader, at, end) == page
        seen.append(page)
        offsets.append(at := end)
        if len(seen) > 3:
            break
    assert [len(page) for page in seen[:3]] == [10, 10, 5]
    assert [body for page in seen[:3] for body in page] == [b"%d" % number for number in range(25)]


def test_a_limit_of_none_reads_all(feed, reader):
    feed.dialog(*[b"x"] * 30)
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit().max_rows == 1_000_000
    assert len(bodies(reader, start, reader.latestOffset(start, ALL))) == 30


def test_an_open_transaction_holds_back_only_later_messages(feed, reader):
    first, second = feed.dialog(b"a"), feed.dialog(b"b")
    start = reader.initialOffset()
    with feed.database.transaction() as slow:
        slow.send(first, "Line", b"slow")  # draws its number first, commits last
        feed.database.send(second, "Line", b"fast")
        end = reader.latestOffset(start, ALL)
        assert sorted(bodies(reader, start, end)) == [b"a", b"b"]
        assert reader.latestOffset(end, ALL) is end
    later = reader.latestOffset(end, ALL)
    assert sorted(bodies(reader, end, later)) == [b"fast", b"slow"]


def test_committed_messages_that_an_open_transaction_holds_back_are_counted_and_its_holder_named(feed):
    handle = feed.dialog(b"before")
    with contextlib.closing(QueueLease.open(source_options(feed.options))) as lease:
        assert lease.find_held_back() is None
        with feed.database.transaction() as slow:
            slow.send(feed.dialog(), "Line", b"not committed")
            feed.database.send(handle, "Line", b"held back")
            held = lease.find_held_back()
            assert (held.messages, held.holder.state, held.is_open) == (1, "idle in transaction", True)
            assert str(held).startswith(f"1 committed message is held back by process {held.holder.process} of the")
            assert (
                held.remedy == f"end it there, or by select pg_terminate_backend({held.holder.process}), then run again"
            )
        assert lease.find_held_back() is None
        left = lease.find_held_back(held)
        assert "by a transaction that has ended meanwhile" in str(left)
        feed.database.send(handle, "Line", b"after the first look")
        assert lease.find_held_back(held) == left


def test_available_now_stops_at_the_messages_present_at_its_start(feed, reader):
    handle = feed.dialog(b"before")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    feed.database.send(handle, "Line", b"after")
    end = reader.latestOffset(start, ALL)
    assert bodies(reader, start, end) == [b"before"]
    assert reader.latestOffset(end, ALL) is end


def test_a_group_stays_in_one_partition_in_its_order(feed):
    handles = [feed.dialog() for _ in range(20)]
    for number in range(5):
        for handle in handles:
            feed.database.send(handle, "Line", b"%d" % number)
    reader = attach(feed, minPartitions="3")
    start = reader.initialOffset()
    parts = [list(reader.read(part)) for part in reader.partitions(start, reader.latestOffset(start, ALL))]
    reader.stop()
    rows = [[row for batch in part for row in batch.to_pylist()] for part in parts]
    groups = [{row["conversation_group_id"] for row in part} for part in rows]
    assert len(rows) == 3
    assert sum(map(len, groups)) == len(set().union(*groups)) == 20
    for row in itertools.chain(*rows):
        assert row["message_body"] == b"%d" % row["message_sequence_number"]
    for part in rows:
        assert [row["queuing_order"] for row in part] == sorted(row["queuing_order"] for row in part)


def test_a_look_consumes_nothing(feed):
    feed.dialog(b"a", b"b")
    look = QueueReader(source_options(feed.options))
    rows = [row for part in look.partitions() for batch in look.read(part) for row in batch.to_pylist()]
    assert ([row["message_body"] for row in rows], feed.waiting_count()) == ([b"a", b"b"], 2)


def test_a_second_reader_is_refused(feed, reader):
    reader.initialOffset()
    owner = r"another pipeline or an open RECEIVE \(process \d+ of the server, since"
    with pytest.raises(InstanceError, match=owner):
        attach(feed, claimTimeout="1").initialOffset()


def test_a_receive_is_refused_while_the_pipeline_reads_and_works_again_after(feed, database, reader):
    reader.initialOffset()
    feed.dialog(b"a")
    with pytest.raises(InstanceError, match="A pipeline reads the queue"):
        database.receive(feed.queue)
    assert feed.waiting_count() == 1
    reader.stop()
    messages: list[sb.Message] = []

    def receive() -> bool:  # the server frees the lock a moment after the connection is closed
        with contextlib.suppress(InstanceError):
            messages.extend(database.receive(feed.queue))
        return bool(messages)

    eventually(receive)
    assert [message.message_body for message in messages] == [b"a"]


def test_a_pipeline_waits_for_a_transaction_that_has_received(feed, database):
    feed.dialog(b"a")
    reader = attach(feed, claimTimeout="1")
    with database.transaction() as transaction:
        assert transaction.receive(feed.queue)
        with pytest.raises(InstanceError, match="being read by another"):
            reader.initialOffset()
    reader.initialOffset()
    reader.stop()


def test_a_second_reader_waits_for_the_first_to_die(feed):
    dying = attach(feed)
    dying.initialOffset()
    threading.Timer(1.0, dying.stop).start()
    successor = attach(feed)
    start = successor.initialOffset()
    assert successor.latestOffset(start, ALL) is start
    successor.stop()


def test_another_server_or_time_is_refused(feed, reader):
    start = reader.initialOffset()
    with pytest.raises(InstanceError, match="another PostgreSQL server"):
        reader.latestOffset(start | {"system_identifier": "1"}, ALL)
    with pytest.raises(InstanceError, match="gone back in time"):
        reader.partitions(start, start | {"hi": 2**40, "queuing_order": 5})


@pytest.mark.parametrize(("option", "number"), [("database", 911), ("queue", 15151)])
def test_an_unknown_name_is_refused(feed, option, number):
    with pytest.raises(BrokerError) as refusal:
        QueueLease.open(source_options(feed.options | {option: "Nowhere"}))
    assert refusal.value.number == number


def test_a_database_without_the_schema_is_refused(feed, make_url):
    with pytest.raises(InstanceError, match="no instance of servicebroker"):
        QueueLease.open(source_options(feed.options | {"instance": make_url()}))


def test_an_unreachable_server_is_refused(feed):
    with pytest.raises(InstanceError, match="Cannot connect to PostgreSQL"):
        QueueLease.open(source_options(feed.options | {"instance": "postgresql://127.0.0.1:1/nowhere"}))


def test_a_data_folder_is_an_instance(tmp_path):
    folder = tmp_path / "instance"
    with sb.open(folder) as instance:
        feed = Feed(warehouse(instance))
        feed.dialog(b"x")
        feed.options["instance"] = str(folder)
        reader = attach(feed)
        start = reader.initialOffset()
    assert bodies(reader, start, reader.latestOffset(start, ALL)) == [b"x"]  # the reader keeps it open
    reader.stop()


def test_plans_use_the_arrival_index_and_never_sort(feed):
    with feed.database.instance.connection() as connection:
        connection.execute(
            f"insert into {feed.table} (message_sequence_number, stamp, conversation_group_id, conversation_handle,"
            " service_id, service_contract_id, message_type_id, priority, bucket, validation)"
            " select n, '5', gen_random_uuid(), gen_random_uuid(), 1, 1, 1, 1 + n % 10, n % 1024, 'N'"
            " from generate_series(1, 20000) n"
        )
        connection.execute(f"analyze {feed.table}")
        with connection.transaction():
            connection.execute(frontier.PIN_PLANS.replace("false", "true"))
            page = frontier.page_end_sql(feed.queue_id, archived=False)
            for name, value in {"$1": "'0'", "$2": "'9'", "$3": "100", "$4": "5000"}.items():
                page = page.replace(name, value)
            window_slice = Slice(0, 9, 100, 5000)
            ends = frontier.endings_sql(feed.queue_id, window_slice).replace("$1", "1").replace("$2", "'EndOfStream'")
            columns = "queuing_order, message_body"
            kinds = {"archived": False, "system_messages": False}
            for sql in (page, frontier.rows_sql(feed.queue_id, window_slice, GroupPartition(0, 2), columns, **kinds)):
                plan = explain(connection, sql)
                assert "Merge Append" in plan
                assert f"queue_{feed.queue_id}_arrival" in plan
                assert "Seq Scan" not in plan
                assert "Sort Method" not in plan
            for sql in (ends, frontier.delete_rows_sql(feed.queue_id, window_slice)):
                plan = explain(connection, sql)
                assert f"Index Scan using queue_{feed.queue_id}_arrival" in plan
                assert f"Seq Scan on queue_{feed.queue_id}" not in plan
            ((left,),) = connection.execute(f"select count(*) from {feed.table}").fetchall()
            assert left == 20_000 - 4_900


def explain(connection, sql):
    return "\n".join(row for (row,) in connection.execute("explain analyze " + sql).fetchall())


def test_the_lock_is_the_one_of_the_list(feed, reader):
    reader.initialOffset()
    with feed.database.instance.connection() as connection:
        free = connection.execute(
            "select pg_try_advisory_lock(%s, %s)", (locks.PIPELINE_QUEUE, feed.queue_id)
        ).fetchone()
    assert free == (False,)


def test_an_offset_is_json_of_plain_values(reader):
    offset = Frontier.from_json(reader.initialOffset())
    assert offset.to_json()["version"] == 1
    assert (offset.lo, offset.hi, offset.queuing_order) == (0, 0, 0)


def test_a_stream_from_the_latest_offset_skips_older_messages(feed):
    handle = feed.dialog(b"before")
    reader = attach(feed, startingOffsets="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) is start
    progress = reader.reportLatestOffset()
    # that one is left, not behind
    assert (progress["messagesBehind"], "oldestMessageSeconds" in progress) == (
        0,
        False,
    )
    feed.database.send(handle, LINE, b"after")
    assert reader.reportLatestOffset()["messagesBehind"] == 1
    end = reader.latestOffset(start, ALL)
    assert bodies(reader, start, end) == [b"after"]
    reader.stop()
    restarted = attach(feed, startingOffsets="latest")  # and plans the logged batch again
    assert bodies(restarted, restarted.initialOffset(), end) == [b"after"]
    restarted.commit(end)
    restarted.stop()
    assert feed.waiting_count() == 1


def test_ranges_of_arrival_hold_everything_once_and_in_order(feed):
    handles = [feed.dialog() for _ in range(3)]
    for number in range(7):
        for handle in handles:
            feed.database.send(handle, LINE, b"%d" % number)
    reader = attach(feed, partitioning="range", minPartitions="4")
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    rows = [[row for batch in reader.read(part) for row in batch.to_pylist()] for part in parts]
    reader.stop()
    assert len([part for part in rows if part]) == 4
    orders = [row["queuing_order"] for part in rows for row in part]
    assert orders == sorted(set(orders))
    assert len(orders) == 21


def test_system_messages_are_left_out_and_still_end_their_conversations(feed):
    feed.database.end_conversation(feed.dialog(b"x"))
    reader = attach(feed, includeSystemMessages="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert bodies(reader, start, end) == [b"x"]
    assert reader.latestOffset(end, ALL) is end
    reader.stop()
    assert (feed.far_states(), feed.waiting_count()) == ({"CD": 1}, 0)


def test_a_checkpoint_of_another_server_begins_anew_where_that_is_wanted(feed, reader, caplog):
    feed.dialog(b"a")
    foreign = Frontier.from_json(reader.initialOffset())
    foreign = replace(foreign, system_identifier="1").opened(7).read_to(3).to_json()
    with pytest.raises(InstanceError, match="another PostgreSQL server"):
        reader.latestOffset(foreign, ALL)
    reader.stop()
    lenient = attach(feed, failOnDataLoss="false")
    assert lenient.partitions(lenient.initialOffset(), foreign) == []
    end = lenient.latestOffset(foreign, ALL)
    assert bodies(lenient, foreign, end) == [b"a"]
    lenient.commit(foreign)
    lenient.stop()
    assert caplog.text.count("starts over") == 1


def test_a_server_that_lost_messages_is_refused_and_keeps_its_messages(feed, reader):
    """Its transactions have caught up, and new messages would stand where the checkpoint has read."""
    feed.dialog(b"new", b"unread")
    start = reader.initialOffset()
    end = Frontier.from_json(reader.latestOffset(start, ALL))
    ahead = end.read_to(end.queuing_order + 20).to_json()
    for ask in (lambda: reader.latestOffset(ahead, ALL), lambda: reader.partitions(start, ahead)):
        with pytest.raises(InstanceError, match=r"gone back in time.*failover to a server that had not everything"):
            ask()
    with pytest.raises(InstanceError, match="gone back in time"):
        reader.commit(ahead)
    assert feed.waiting_count() == 2


def test_a_copy_in_another_database_of_the_server_is_refused(make_instance_url, make_url):
    url = make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        feed = Feed(warehouse(instance))
        feed.dialog(b"a")
        original = attach(feed)
        end = original.latestOffset(original.initialOffset(), ALL)
        original.stop()
    copied = make_url(conninfo_to_dict(url)["dbname"])
    with pytest.raises(InstanceError, match="holds a copy of an instance"):
        attach(feed, instance=copied).latestOffset(end, ALL)
    with psycopg.connect(copied, autocommit=True) as connection:
        settle(connection)
    adopted = attach(feed, instance=copied)
    with pytest.raises(InstanceError, match="another database of this PostgreSQL server"):
        adopted.latestOffset(end, ALL)
    adopted.stop()


def test_an_offset_of_an_earlier_version_learns_its_database(feed, reader):
    handle = feed.dialog(b"a")
    start = reader.initialOffset()
    end = {key: value for key, value in reader.latestOffset(start, ALL).items() if key != "database_oid"}
    assert bodies(reader, start, end) == [b"a"]
    assert reader.latestOffset(end, ALL) is end
    feed.database.send(handle, LINE, b"b")
    assert reader.latestOffset(end, ALL)["database_oid"] == start["database_oid"] > 0


def test_the_progress_reports_the_lag_and_the_blocking_session(feed, reader):
    handle = feed.dialog(b"a")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert reader.reportLatestOffset()["messagesBehind"] == 0
    with feed.database.transaction() as slow:
        slow.send(feed.dialog(), LINE, b"slow")
        pid = slow.connection.info.backend_pid
        feed.database.send(handle, LINE, b"held back")
        assert reader.latestOffset(end, ALL) is end
        progress = reader.reportLatestOffset()
        assert (progress["messagesBehind"], progress["blockingPid"]) == (2, pid)
        assert progress["frontierLag"] >= 1
        assert progress["oldestMessageSeconds"] >= 0


def test_bodies_from_nothing_to_twenty_megabytes_arrive(feed, reader):
    given = [b"x" * size for size in (0, 1, 1_999, 2_001, 1_000_000, 20_000_000)]
    feed.dialog(*given)
    at, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxRows(4))) is not at:
        seen += bodies(reader, at, end)
        at = end
    assert [len(body or b"") for body in seen] == [len(body) for body in given]
    assert seen[1:] == given[1:]
    assert feed.waiting_count() == 0


@pytest.mark.parametrize("archived", [False, True])
def test_a_batch_has_no_more_bytes_than_it_may(feed, archived, monkeypatch):
    monkeypatch.setattr("servicebroker.pipeline.queue_lease.MEASURED_ROWS_PER_QUERY", 3)
    feed.dialog(*[b"x" * 100] * 12, b"y" * 5_000, b"", *[b"z" * 100] * 3)
    if archived:
        first = attach(feed, ack="archive")
        end = first.latestOffset(first.initialOffset(), ReadMaxRows(5))
        first.latestOffset(end, ReadMaxRows(5))
        first.stop()
    reader = attach(feed, maxBytesPerTrigger="1000", ack="archive" if archived else "delete")
    at, sizes = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxRows(1_000))) is not at:
        sizes.append(sum(len(body or b"") for body in bodies(reader, at, end)))
        at = end
    assert sizes == [1000, 200, 5000, 300]
    assert reader.reportLatestOffset()["bytesRead"] == 6500
    reader.stop()


@pytest.mark.parametrize(("gone", "left"), [(0, []), (1, [b"a", b"b"])], ids=["all", "the rest"])
def test_an_end_while_the_bytes_of_a_batch_are_added_up_leaves_nothing_to_add(feed, monkeypatch, gone, left):
    monkeypatch.setattr("servicebroker.pipeline.queue_lease.MEASURED_ROWS_PER_QUERY", 2)
    feed.dialog(b"a", b"b")
    feed.dialog(b"c", b"d")
    queue = QueueReader(source_options(feed.options))
    look = [row for part in queue.partitions() for batch in queue.read(part) for row in batch.to_pylist()]
    reader = attach(feed, maxBytesPerTrigger="1000")
    start = reader.initialOffset()
    look.sort(key=itemgetter("queuing_order"))
    handles = [UUID(look[place]["conversation_handle"]) for place in (0, 2)]
    fitting, asked = frontier.fitting_sql, itertools.count()

    def after_an_end(*place):
        if next(asked) == gone:
            for handle in handles[gone:]:
                feed.database.end_conversation(handle)
        return fitting(*place)

    monkeypatch.setattr(frontier, "fitting_sql", after_an_end)
    end = reader.latestOffset(start, ReadMaxRows(1_000))
    assert bodies(reader, start, end) == left
    feed.dialog(b"e")
    assert bodies(reader, end, reader.latestOffset(end, ReadMaxRows(1_000))) == [b"e"]
    reader.stop()


def test_a_batch_waits_until_it_has_enough_but_not_for_ever(feed):
    few = attach(feed, minMessagesPerTrigger="4", minBytesPerTrigger="1000")
    start = few.initialOffset()
    feed.dialog(b"a", b"b", b"c")
    assert few.latestOffset(start, ReadMaxRows(10)) is start
    assert few.reportLatestOffset()["messagesBehind"] == 3
    feed.dialog(b"d", b"e")
    end = few.latestOffset(start, ReadMaxRows(4))
    assert sorted(bodies(few, start, end)) == [b"a", b"b", b"c", b"d"]
    rest = few.latestOffset(end, ReadMaxRows(4))  # of its window
    assert bodies(few, end, rest) == [b"e"]
    feed.dialog(b"f" * 1000)
    large = few.latestOffset(rest, ReadMaxRows(4))
    assert bodies(few, rest, large) == [b"f" * 1000]
    feed.dialog(b"g")
    assert few.latestOffset(large, ReadMaxRows(4)) is large
    few.stop()
    impatient = attach(feed, minMessagesPerTrigger="4", maxTriggerDelay="0s")
    assert bodies(impatient, large, impatient.latestOffset(large, ReadMaxRows(4))) == [b"g"]
    impatient.stop()
    last = attach(feed, minMessagesPerTrigger="4")
    last.prepareForTriggerAvailableNow()
    assert bodies(last, large, last.latestOffset(large, ReadMaxRows(4))) == [b"g"]
    last.stop()
