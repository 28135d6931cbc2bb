"""The stream reader against a real server, driven as Spark drives it, without Spark."""

import contextlib
import itertools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from uuid import UUID

import pytest
from psycopg.conninfo import conninfo_to_dict

from pipeline_support import LINE, Feed, warehouse
from pooling_proxy import PoolingProxy

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

import servicebroker as sb
from servicebroker.model import names
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.pipeline import frontier, rows
from servicebroker.pipeline.acknowledge import acknowledge, end_now
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.delta import DeltaWriter
from servicebroker.pipeline.frontier import Frontier, Share, Slice
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.reader import QueueReader, QueueStreamReader
from servicebroker.pipeline.rows import arrow_schema
from servicebroker.pipeline.warehouse import land_rows, sort_rows
from servicebroker.store import locks
from support import eventually

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def database(instance):
    return warehouse(instance)


@pytest.fixture
def feed(database):
    return Feed(database)


@pytest.fixture
def reader(feed):
    reader = attach(feed)
    yield reader
    reader.stop()


def attach(feed, **options):
    return QueueStreamReader(source_options(feed.options | {"minPartitions": "2"} | options))


def batches(reader, start, end):
    return [batch for part in reader.partitions(start, end) for batch in reader.read(part)]


def bodies(reader, start, end):
    return [body for batch in batches(reader, start, end) for body in batch["message_body"].to_pylist()]


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
        with pytest.raises(InstanceError, match="lends its sessions by the transaction"):
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
    assert (row["queue"], row["service_name"]) == (feed.queue, feed.far)
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
    found = [body for batch in rows.delivered(announced) for body in batch["message_body"].to_pylist()]
    assert found == bodies(reader, start, end) == [b"a", None, b"\xff"]
    messages = batches(reader, start, end)
    assert list(rows.delivered(messages)) == messages
    only_parts = StructType([StructField(rows.PART, StringType())])
    assert DeltaWriter(Path(), only_parts)._schema == arrow_schema()


def test_a_server_that_is_behind_is_not_read(feed, reader):
    """As a standby that the URL names too: what it lacks yet would be acknowledged."""
    feed.dialog(b"a")
    part, *_ = reader.partitions(start := reader.initialOffset(), reader.latestOffset(start, ALL))
    behind = replace(part, piece=part.piece._replace(hi=part.piece.hi + 1_000_000))
    with pytest.raises(InstanceError, match="is behind the one that has planned its batch, as a standby is"):
        list(rows.read(behind))


def test_a_task_has_the_time_that_it_needs(feed, reader):
    """Whatever its role's settings for applications are."""
    feed.dialog(b"a")
    parts = reader.partitions(start := reader.initialOffset(), reader.latestOffset(start, ALL))
    hurried = f"{feed.options['instance']}&options=-c%20statement_timeout%3D200"
    with feed.database.instance.connection() as other, ThreadPoolExecutor(1) as task:
        with other.transaction():
            other.execute(f"lock table {feed.table} in access exclusive mode")
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


def test_an_unfinished_transaction_holds_back_only_what_came_later(feed, reader):
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


def test_a_read_acknowledges_its_start_and_nothing_more(feed, reader):
    feed.dialog(*[b"%d" % number for number in range(9)])
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert feed.left() == 9
    reader.latestOffset(end, ReadMaxRows(4))
    assert feed.left() == 5
    reader.commit(end)
    assert feed.left() == 5


def test_available_now_stops_at_what_was_there(feed, reader):
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
    assert ([row["message_body"] for row in rows], feed.left()) == ([b"a", b"b"], 2)


def test_a_second_reader_is_refused(feed, reader):
    reader.initialOffset()
    owner = r"another pipeline or an open RECEIVE \(process \d+ of the server, since"
    with pytest.raises(InstanceError, match=owner):
        attach(feed, claimTimeout="1").initialOffset()


def test_a_receive_is_refused_while_the_pipeline_reads_and_works_again_after(feed, database, reader):
    reader.initialOffset()
    feed.dialog(b"a")
    with pytest.raises(InstanceError, match="is being read by a pipeline"):
        database.receive(feed.queue)
    assert feed.left() == 1
    reader.stop()
    found: list[sb.Message] = []

    def receive() -> bool:  # the server frees the lock a moment after the connection is closed
        with contextlib.suppress(InstanceError):
            found.extend(database.receive(feed.queue))
        return bool(found)

    eventually(receive)
    assert [message.message_body for message in found] == [b"a"]


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
        Attachment.open(source_options(feed.options | {option: "Nowhere"}))
    assert refusal.value.number == number


def test_a_database_without_the_schema_is_refused(feed, make_url):
    with pytest.raises(InstanceError, match="no instance of servicebroker"):
        Attachment.open(source_options(feed.options | {"instance": make_url()}))


def test_an_unreachable_server_is_refused(feed):
    with pytest.raises(InstanceError, match="Cannot connect to PostgreSQL"):
        Attachment.open(source_options(feed.options | {"instance": "postgresql://127.0.0.1:1/nowhere"}))


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


def test_control_messages_end_their_conversations_once(feed, reader):
    finished, ended, failed, going = (feed.dialog(b"x") for _ in range(4))
    feed.database.send(finished, "EndOfStream")
    feed.database.end_conversation(ended)
    feed.database.end_conversation(failed, error=(7, "out of paper"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(bodies(reader, start, end)) == 7
    assert reader.latestOffset(end, ALL) is end
    assert feed.far_states() == {"CD": 3, "CO": 1}
    told = feed.database.receive(feed.back)
    assert [(m.message_type_name, m.conversation_handle) for m in told] == [(names.END_DIALOG, finished)]
    reader._stream(feed.queue)._acknowledged = None  # as after a restart
    assert reader.latestOffset(end, ALL) is end
    assert feed.database.receive(feed.back) == []
    feed.database.send(going, "Line", b"still open")


def test_a_refused_end_rolls_the_deletion_back(feed):
    feed.dialog(b"x")
    feed.database.send(feed.dialog(), "EndOfStream")

    def refuse(connection, handle):
        raise BrokerError(9617, "Q")

    queue = Attachment.open(source_options(feed.options))
    end = queue.page_end(queue.initial.opened(queue.now().frontier), None)
    place = (queue.connection, queue.queue_id, queue.database_id, frontier.read_so_far(end))
    with pytest.raises(BrokerError):
        acknowledge(*place, end_of_stream="EndOfStream", ending=refuse)
    assert feed.left() == 2
    ended = []
    acknowledge(*place, end_of_stream="EndOfStream", ending=lambda connection, handle: ended.append(handle))
    acknowledge(*place, end_of_stream="EndOfStream", ending=lambda connection, handle: ended.append(handle))
    queue.close()
    assert (feed.left(), len(ended)) == (0, 1)


@pytest.mark.parametrize(("how", "dialogs"), [("delete", 1500), ("truncate", 150), ("archive", 150), ("share", 150)])
def test_many_ended_dialogs_are_acknowledged_in_parts(feed, monkeypatch, how, dialogs):
    """Each END holds a lock until its transaction ends, and a server has room for some thousands."""
    if dialogs < 1500:
        monkeypatch.setattr("servicebroker.pipeline.acknowledge.AT_ONCE", dialogs // 3)
    monkeypatch.setattr("servicebroker.pipeline.acknowledge.WORTH_TRUNCATING", 1 if how == "truncate" else 50_000)
    with feed.database.transaction() as sending:
        handles = [sending.begin_dialog(feed.near, feed.far, contract="Lines") for _ in range(dialogs)]
        sending.send(handles, LINE, b"shared" if how in ("share", "archive") else b"")
        sending.send(handles, "EndOfStream")
        sending.send(handles, LINE, b"")
    queue = Attachment.open(source_options(feed.options | {"ack": "archive" if how == "archive" else "delete"}))
    end = queue.page_end(queue.initial.opened(queue.now().frontier), None)
    place = (queue.connection, queue.queue_id, queue.database_id, frontier.read_so_far(end))
    ended = Counter()

    def count(connection, handle):
        end_now(connection, handle)
        ((transaction,),) = connection.execute("select pg_current_xact_id()::text").fetchall()
        ended[transaction] += 1
        if ended.total() == failing_at:
            raise InterruptedError

    failing_at = dialogs * 7 // 15
    with pytest.raises(InterruptedError):
        acknowledge(*place, end_of_stream="EndOfStream", archive=how == "archive", ending=count)
    assert feed.far_states() == {"CD": dialogs // 3, "CO": dialogs - dialogs // 3}
    acknowledge(*place, end_of_stream="EndOfStream", archive=how == "archive", ending=count)  # as the next run does
    queue.close()
    assert sorted(ended.values()) == [dialogs * 2 // 15, *[dialogs // 3] * 3]
    assert (feed.far_states(), feed.left()) == ({"CD": dialogs}, 0)
    with feed.database.instance.connection() as connection:
        told = f"select count(*), count(distinct conversation_handle) from warehouse_dbo.{feed.back}"
        assert connection.execute(told).fetchone() == (dialogs, dialogs)
    if how == "archive":
        assert counted(feed, f"archived_{feed.queue_id}") == 3 * dialogs


@pytest.mark.parametrize("late", ["nothing", "behind", "between", "open", "reader"])
def test_a_large_slice_is_truncated_only_when_nothing_else_is_there(feed, reader, monkeypatch, late):
    """A message behind the slice, one between its rows of a younger transaction, an open sender, somebody who reads."""
    monkeypatch.setattr("servicebroker.pipeline.acknowledge.WORTH_TRUNCATING", 3)
    slow, fast = feed.dialog(b"1"), feed.dialog(b"2")
    with feed.database.instance.connection() as connection, contextlib.ExitStack() as stack:
        (before,) = connection.execute(f"select pg_relation_filenode('{feed.table}')").fetchone()
        with feed.database.transaction() as older:
            older.connection.execute("select pg_current_xact_id()")
            if late in ("between", "open"):
                stack.enter_context(feed.database.transaction()).send(slow, "Line", b"late")
            older.send(fast, "Line", b"3")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert sorted(bodies(reader, start, end)) == [b"1", b"2", b"3"]
        if late == "between":
            stack.close()
        if late == "behind":
            feed.database.send(slow, "Line", b"late")
        if late == "reader":
            stack.enter_context(feed.database.transaction()).connection.execute(f"select from {feed.table}")
        reader._stream(feed.queue).acknowledge(Frontier.from_json(end))
        (after,) = connection.execute(f"select pg_relation_filenode('{feed.table}')").fetchone()
    assert (before != after) == (late == "nothing")
    rest = [b"late"] if late in ("behind", "between", "open") else []
    assert bodies(reader, end, reader.latestOffset(end, ALL)) == rest


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
            page = frontier.page_end(feed.queue_id, archived=False)
            for name, value in {"$1": "'0'", "$2": "'9'", "$3": "100", "$4": "5000"}.items():
                page = page.replace(name, value)
            piece = Slice(0, 9, 100, 5000)
            ends = frontier.endings(feed.queue_id, piece).replace("$1", "1").replace("$2", "'EndOfStream'")
            columns = "queuing_order, message_body"
            kinds = {"archived": False, "system_messages": False}
            for sql in (page, frontier.rows(feed.queue_id, piece, Share(0, 2), columns, **kinds)):
                plan = explained(connection, sql)
                assert "Merge Append" in plan
                assert f"queue_{feed.queue_id}_arrival" in plan
                assert "Seq Scan" not in plan
                assert "Sort Method" not in plan
            for sql in (ends, frontier.delete_rows(feed.queue_id, piece)):
                plan = explained(connection, sql)
                assert f"Index Scan using queue_{feed.queue_id}_arrival" in plan
                assert f"Seq Scan on queue_{feed.queue_id}" not in plan
            ((left,),) = connection.execute(f"select count(*) from {feed.table}").fetchall()
            assert left == 20_000 - 4_900


def explained(connection, sql):
    return "\n".join(row for (row,) in connection.execute("explain analyze " + sql).fetchall())


def test_the_lock_is_the_one_of_the_list(feed, reader):
    reader.initialOffset()
    with feed.database.instance.connection() as connection:
        free = connection.execute("select pg_try_advisory_lock(%s, %s)", (locks.PIPELINE, feed.queue_id)).fetchone()
    assert free == (False,)


def test_an_offset_is_json_of_plain_values(reader):
    offset = Frontier.from_json(reader.initialOffset())
    assert offset.to_json()["version"] == 1
    assert (offset.lo, offset.hi, offset.queuing_order) == (0, 0, 0)


@pytest.mark.parametrize("worth", [1, 50_000])
def test_the_body_of_a_multicast_is_read_and_goes_with_its_last_reader(feed, reader, worth, monkeypatch):
    monkeypatch.setattr("servicebroker.pipeline.acknowledge.WORTH_TRUNCATING", worth)
    other = Feed(feed.database)
    handles = [feed.dialog(b"first"), feed.dialog(b"first"), other.dialog()]
    feed.database.send(handles, LINE, b"shared")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert sorted(bodies(reader, start, end)) == [b"first", b"first", b"shared", b"shared"]
    reader.commit(end)
    assert feed.left() == 0
    assert counted(feed, "shared_body_readers") == counted(feed, "shared_bodies") == 1
    (message,) = feed.database.receive(other.queue)
    assert message.message_body == b"shared"
    assert counted(feed, "shared_bodies") == 0


@pytest.mark.feature(198)
@pytest.mark.parametrize("worth", [1, 50_000])
def test_a_queue_with_retention_keeps_what_was_acknowledged(feed, reader, worth, monkeypatch):
    monkeypatch.setattr("servicebroker.pipeline.acknowledge.WORTH_TRUNCATING", worth)
    feed.database.alter_queue(feed.queue, retention=True)
    handle = feed.dialog(b"a", b"b")
    feed.database.send([handle, feed.dialog()], LINE, b"shared")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(bodies(reader, start, end)) == 4
    reader.commit(end)
    view = f"select status, message_body from warehouse_dbo.{feed.queue} order by queuing_order"
    with feed.database.instance.connection() as connection:
        assert connection.execute(view).fetchall() == [(0, b"a"), (0, b"b"), (0, b"shared"), (0, b"shared")]
        feed.database.end_conversation(handle)
        end = reader.latestOffset(end, ALL)  # an EndDialog, which the next acknowledgement answers
        reader.commit(end)
        assert connection.execute(view).fetchall() == [(0, b"shared")]
    assert feed.left() == 0


def read_all(reader):
    """What a stream reads from its beginning, batch by batch, and the offset it comes to."""
    at, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxRows(4))) is not at:
        seen += bodies(reader, at, end)
        at = end
    return seen, at


def test_an_archive_gives_everything_again_to_a_stream_that_has_lost_its_checkpoint(feed):
    handle = feed.dialog(*[b"%d" % number for number in range(9)])
    other = feed.dialog()
    feed.database.send([handle, other], LINE, b"shared")
    first = attach(feed, ack="archive")
    seen, at = read_all(first)
    assert (sorted(seen), feed.left()) == (sorted([*(b"%d" % n for n in range(9)), b"shared", b"shared"]), 0)
    feed.database.send(handle, LINE, b"later")
    assert bodies(first, at, first.latestOffset(at, ALL)) == [b"later"]
    first.stop()
    again = attach(feed, ack="archive")
    replayed, at = read_all(again)
    assert sorted(replayed) == sorted([*seen, b"later"])
    assert [body for body in replayed if len(body) == 1] == [b"%d" % n for n in range(9)]
    assert again.latestOffset(at, ALL) is at
    look = QueueReader(source_options(feed.options | {"ack": "archive"}))
    assert sum(batch.num_rows for part in look.partitions() for batch in look.read(part)) == 12
    again.stop()
    assert not [one for one in feed.database.instance.check()[1] if str(feed.queue_id) in one.text]


def test_a_conversation_that_a_bad_message_ends_is_in_the_archive(feed, tmp_path):
    shared = counted(feed, "shared_bodies")
    bad = feed.dialog(b"1", b"\xff")
    feed.database.send([bad, feed.dialog(b"2")], LINE, b"3")
    rule = MessageRule(LINE, "text", "lines", when_bad="end conversation")
    queue = QueueRule(feed.options["instance"], feed.options["database"], feed.queue, options={"ack": "archive"})
    pipeline = Pipeline("test", tmp_path, (queue,), (rule,))
    first = attach(feed, ack="archive")
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    land_rows(pipeline, queue, [sort_rows(pipeline, queue, "q", iter(batches(first, start, end)))], 0)
    assert feed.far_states() == {"CO": 1, "CD": 1}
    assert feed.left() == 2
    first.stop()
    again = attach(feed, ack="archive")  # without its checkpoint
    assert sorted(read_all(again)[0]) == [b"1", b"2", b"3", b"3", b"\xff"]
    assert counted(feed, "shared_bodies") == shared
    again.stop()


def test_an_archive_goes_with_its_queue(database):
    feed = Feed(database)
    feed.dialog(b"a")
    reader = attach(feed, ack="archive")
    read_all(reader)
    reader.stop()
    database.drop_service(feed.far)
    database.drop_queue(feed.queue)
    with database.instance.connection() as connection:
        name = f"servicebroker.archived_{feed.queue_id}"
        assert connection.execute("select to_regclass(%s)", (name,)).fetchone() == (None,)


def test_a_stream_that_begins_with_the_latest_leaves_what_is_there(feed):
    handle = feed.dialog(b"before")
    reader = attach(feed, startingOffsets="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) is start
    told = reader.reportLatestOffset()
    assert (told["messagesBehind"], "oldestMessageSeconds" in told) == (0, False)  # that one is left, not behind
    feed.database.send(handle, LINE, b"after")
    assert reader.reportLatestOffset()["messagesBehind"] == 1
    end = reader.latestOffset(start, ALL)
    assert bodies(reader, start, end) == [b"after"]
    reader.stop()
    restarted = attach(feed, startingOffsets="latest")  # and plans the logged batch again
    assert bodies(restarted, restarted.initialOffset(), end) == [b"after"]
    restarted.commit(end)
    restarted.stop()
    assert feed.left() == 1


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
    assert (feed.far_states(), feed.left()) == ({"CD": 1}, 0)


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
    assert caplog.text.count("begins anew") == 1


def test_a_server_that_has_lost_messages_is_refused_and_keeps_what_it_has(feed, reader):
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
    assert feed.left() == 2


def test_a_copy_in_another_database_of_the_server_is_refused(make_instance_url, make_url):
    url = make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        feed = Feed(warehouse(instance))
        feed.dialog(b"a")
        original = attach(feed)
        end = original.latestOffset(original.initialOffset(), ALL)
        original.stop()
    copy = attach(feed, instance=make_url(conninfo_to_dict(url)["dbname"]))
    with pytest.raises(InstanceError, match="another database of this PostgreSQL server"):
        copy.latestOffset(end, ALL)
    copy.stop()


def test_an_offset_of_an_earlier_version_learns_its_database(feed, reader):
    handle = feed.dialog(b"a")
    start = reader.initialOffset()
    end = {key: value for key, value in reader.latestOffset(start, ALL).items() if key != "database_oid"}
    assert bodies(reader, start, end) == [b"a"]
    assert reader.latestOffset(end, ALL) is end
    feed.database.send(handle, LINE, b"b")
    assert reader.latestOffset(end, ALL)["database_oid"] == start["database_oid"] > 0


def test_the_progress_says_how_far_behind_and_who_holds_it_back(feed, reader):
    handle = feed.dialog(b"a")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert reader.reportLatestOffset()["messagesBehind"] == 0
    with feed.database.transaction() as slow:
        slow.send(feed.dialog(), LINE, b"slow")
        pid = slow.connection.info.backend_pid
        feed.database.send(handle, LINE, b"held back")
        assert reader.latestOffset(end, ALL) is end
        told = reader.reportLatestOffset()
        assert (told["messagesBehind"], told["blockingPid"]) == (2, pid)
        assert told["frontierLag"] >= 1
        assert told["oldestMessageSeconds"] >= 0


def counted(feed, table):
    with feed.database.instance.connection() as connection:
        return connection.execute(f"select count(*) from servicebroker.{table}").fetchone()[0]


def attach_to(feeds, **options):
    """One reader of several queues."""
    first, *_ = feeds
    given = {"queue": ", ".join(feed.queue for feed in feeds)} if "queuePattern" not in options else {}
    plain = {key: value for key, value in first.options.items() if key != "queue"}
    return QueueStreamReader(source_options(plain | given | {"minPartitions": "2"} | options))


def by_queue(reader, start, end):
    """The bodies of a batch by their queues, each in its order."""
    found = {}
    for batch in batches(reader, start, end):
        for row in batch.to_pylist():
            found.setdefault(row["queue"], []).append(row["message_body"])
    return found


@pytest.fixture
def feeds(database):
    return [Feed(database) for _ in range(2)]


def test_one_source_reads_several_queues(feeds):
    one, other = feeds
    one.dialog(b"a", b"b")
    with contextlib.ExitStack() as stack:
        reader = attach_to(feeds)
        stack.callback(reader.stop)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert by_queue(reader, start, end) == {one.queue: [b"a", b"b"]}
        other.dialog(b"c")
        later = reader.latestOffset(end, ALL)
        assert by_queue(reader, end, later) == {other.queue: [b"c"]}
        assert (one.left(), other.left()) == (0, 1)
        assert reader.latestOffset(later, ALL) is later
        assert other.left() == 0
        told = reader.reportLatestOffset()
        assert (told["messagesRead"], told["bytesRead"], told["messagesBehind"]) == (3, 3, 0)
        assert {one["queueName"] for one in told["queues"].values()} == {feed.queue for feed in feeds}
        for feed in feeds:
            with pytest.raises(InstanceError, match="being read by another pipeline"):
                attach(feed, claimTimeout="0").initialOffset()
    successor = attach_to(feeds)
    assert successor.latestOffset(later, ALL) is later
    successor.stop()


def test_a_limit_is_divided_among_the_queues_and_what_one_leaves_is_for_those_behind_it(feeds):
    for feed, count in zip(feeds, (30, 8), strict=True):
        feed.dialog(*[b"%d" % number for number in range(count)])
    reader, seen = attach_to(feeds), []
    at = reader.initialOffset()
    while (end := reader.latestOffset(at, ReadMaxRows(10))) is not at:
        seen.append({queue: len(found) for queue, found in by_queue(reader, at, end).items()})
        at = end
    reader.stop()
    assert [sum(page.values()) for page in seen] == [10, 8, 10, 5, 5]
    assert seen[0] == dict.fromkeys((feed.queue for feed in feeds), 5)
    assert [sum(page.get(feed.queue, 0) for page in seen) for feed in feeds] == [30, 8]


def test_a_pattern_finds_queues_that_come_later(database):
    feeds = [Feed(database)]
    feeds[0].dialog(b"before")
    reader = attach_to(feeds, queuePattern=f"{feeds[0].queue}|Later.*", startingOffsets="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) is start
    database.create_queue("Later")
    database.create_service("LaterFar", "Later", ["Lines"])
    database.send(database.begin_dialog(feeds[0].near, "LaterFar", contract="Lines"), LINE, b"new")
    end = reader.latestOffset(start, ALL)
    assert by_queue(reader, start, end) == {"Later": [b"new"]}
    assert reader.latestOffset(end, ALL) is end
    reader.stop()
    database.drop_service("LaterFar")
    database.drop_queue("Later")
    again = attach_to(feeds, queuePattern=f"{feeds[0].queue}|Later.*")
    with pytest.raises(InstanceError, match="has read the queue 'Later', which is not there"):
        again.latestOffset(end, ALL)
    again.stop()
    loose = attach_to(feeds, queuePattern=f"{feeds[0].queue}|Later.*", failOnDataLoss="false")
    feeds[0].dialog(b"on")
    assert by_queue(loose, end, loose.latestOffset(end, ALL)) == {feeds[0].queue: [b"on"]}
    loose.stop()


def test_a_queue_that_is_dropped_and_made_again_under_its_reader_is_another_one(database):
    feed = Feed(database)
    feed.dialog(b"a")
    reader = attach(feed)
    at = reader.latestOffset(reader.initialOffset(), ALL)
    database.drop_service(feed.far)
    database.drop_queue(feed.queue)
    with pytest.raises(
        InstanceError, match=f"queue '{feed.queue}' was dropped while it was read: one of the same name"
    ):
        reader.latestOffset(at, ALL)
    database.create_queue(feed.queue)
    database.create_service(feed.far, feed.queue, ["Lines"])
    with pytest.raises(InstanceError, match="was dropped while it was read"):
        reader.latestOffset(at, ALL)
    reader.stop()
    again = attach(feed)
    with pytest.raises(InstanceError, match="belongs to another queue, or to one that was dropped and created again"):
        again.latestOffset(at, ALL)
    again.stop()
    feed.dialog(b"b")
    anew = attach(feed, failOnDataLoss="false")
    assert bodies(anew, at, anew.latestOffset(at, ALL)) == [b"b"]
    anew.stop()


def test_a_conversation_is_not_moved_while_it_is_read_and_an_end_takes_what_is_not_read(feed, reader, database):
    feed.dialog(b"a", b"b")
    feed.dialog(b"c")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1))
    rows = [row for batch in batches(reader, start, reader.latestOffset(start, ALL)) for row in batch.to_pylist()]
    rows.sort(key=itemgetter("queuing_order"))  # of several partitions, whose order is that of random groups
    one = UUID(rows[0]["conversation_handle"])
    group = UUID(rows[2]["conversation_group_id"])
    with pytest.raises(InstanceError, match="is being read by a pipeline: nobody else can RECEIVE from it, or move"):
        database.move_conversation(one, group)
    assert bodies(reader, start, end) == [b"a"]
    at = reader.latestOffset(end, ReadMaxRows(1))  # the first one is acknowledged, the second planned
    assert bodies(reader, end, at) == [b"b"]
    database.end_conversation(one)
    assert bodies(reader, end, at) == []  # as every END, by whoever has the right to it
    at = reader.latestOffset(at, ALL)
    assert bodies(reader, end, at) == [b"c"]
    assert reader.latestOffset(at, ALL) is at
    assert feed.left() == 0


def test_bodies_from_nothing_to_twenty_megabytes_arrive(feed, reader):
    given = [b"x" * size for size in (0, 1, 1_999, 2_001, 1_000_000, 20_000_000)]
    feed.dialog(*given)
    at, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxRows(4))) is not at:
        seen += bodies(reader, at, end)
        at = end
    assert [len(body or b"") for body in seen] == [len(body) for body in given]
    assert seen[1:] == given[1:]
    assert feed.left() == 0


def test_a_checkpoint_of_one_queue_is_none_of_several(feeds):
    reader = attach_to(feeds)
    with pytest.raises(InstanceError, match="written by a query that reads one queue, and this one reads several"):
        reader.latestOffset({"version": 1}, ALL)
    reader.stop()


def drop(feed):
    feed.database.drop_service(feed.far)
    feed.database.drop_queue(feed.queue)


def test_a_running_query_goes_on_without_a_queue_that_is_gone(feeds, caplog):
    """Its progress and the commit of the batch before had failed."""
    stays, goes = feeds
    handle = stays.dialog(b"a")
    goes.dialog(b"b")
    reader = attach_to(feeds, queuePattern=f"{stays.queue}|{goes.queue}", failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert by_queue(reader, start, end) == {stays.queue: [b"a"], goes.queue: [b"b"]}
    drop(goes)
    assert list(reader.reportLatestOffset()["queues"]) == [stays.queue]  # as after the batch in which it was dropped
    feed_on(stays, handle, b"c")
    later = reader.latestOffset(end, ALL)
    reader.commit(end)
    assert by_queue(reader, end, later) == {stays.queue: [b"c"]}
    assert (stays.left(), list(reader.reportLatestOffset()["queues"])) == (1, [stays.queue])
    reader.commit(later)
    assert (stays.left(), caplog.text.count(f"The queue '{goes.queue}' is not there any more")) == (0, 1)
    goes.create()
    goes.dialog(b"anew")
    assert by_queue(reader, later, reader.latestOffset(later, ALL)) == {goes.queue: [b"anew"]}
    reader.stop()


def feed_on(feed, handle, *bodies):
    for body in bodies:
        feed.database.send(handle, LINE, body)


@pytest.mark.parametrize("asked", ["both", "one", "in small letters"])
@pytest.mark.parametrize("ends", [False, True], ids=["stream", "availableNow"])
def test_a_query_of_a_list_starts_without_a_queue_that_is_gone(feeds, asked, ends):
    """The batch that was planned last comes again, without what is lost."""
    stays, goes = feeds
    handle = stays.dialog(b"a")
    goes.dialog(b"b")
    reader = attach_to(feeds)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    reader.stop()
    drop(goes)
    feed_on(stays, handle, b"c")
    again = attach_to(feeds if asked == "both" else [stays])
    with pytest.raises((InstanceError, BrokerError), match=goes.queue):
        again.latestOffset(end, ALL)
    again.stop()
    named = {"queue": stays.queue.lower()} if asked == "in small letters" else {}
    loose = attach_to(feeds if asked == "both" else [stays], failOnDataLoss="false", **named)
    if ends:
        loose.prepareForTriggerAvailableNow()
    assert by_queue(loose, start, end) == {stays.queue: [b"a"]}
    later = loose.latestOffset(end, ALL)
    loose.commit(end)
    assert (by_queue(loose, end, later), stays.left()) == ({stays.queue: [b"c"]}, 1)
    assert loose.reportLatestOffset()["messagesBehind"] == 0
    assert loose.latestOffset(later, ALL) is later
    assert stays.left() == 0
    loose.stop()


def test_a_queue_that_is_not_asked_for_any_more_gets_what_has_landed_acknowledged_and_is_let_go(feeds):
    stays, leaves = feeds
    handle = stays.dialog(b"a")
    leaves.dialog(b"b")
    reader = attach_to(feeds)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    with pytest.raises(InstanceError, match=f"has read the queue '{leaves.queue}', which is not there or not asked"):
        attach(stays).latestOffset(end, ALL)
    loose = attach(stays, failOnDataLoss="false")
    feed_on(stays, handle, b"c")
    later = loose.latestOffset(end, ALL)
    loose.commit(end)
    assert loose.latestOffset(later, ALL) is later
    assert [feed.left() for feed in feeds] == [0, 0]
    eventually(lambda: is_free(leaves), 20)
    loose.stop()


def test_a_queue_that_was_never_there_is_refused_and_so_is_a_list_of_which_none_is_left(feeds):
    reader = attach_to(feeds, queue=f"{feeds[0].queue}, Mistyped", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(BrokerError, match="Mistyped") as refused:
        reader.initialOffset()
    assert refused.value.number == 15151
    reader.stop()
    both = attach_to(feeds, failOnDataLoss="false")
    start = both.initialOffset()
    both.stop()
    for feed in feeds:
        drop(feed)
    with pytest.raises(BrokerError, match="Cannot find the queue"):
        both.latestOffset(start, ALL)
    both.stop()


@pytest.mark.parametrize("archived", [False, True])
def test_a_batch_has_no_more_bytes_than_it_may(feed, archived, monkeypatch):
    monkeypatch.setattr("servicebroker.pipeline.attachment.ROWS_AT_ONCE", 3)
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
    monkeypatch.setattr("servicebroker.pipeline.attachment.ROWS_AT_ONCE", 2)
    feed.dialog(b"a", b"b")
    feed.dialog(b"c", b"d")
    reader = attach(feed, maxBytesPerTrigger="1000")
    start = reader.initialOffset()
    look = [row for batch in batches(reader, start, reader.latestOffset(start, ALL)) for row in batch.to_pylist()]
    look.sort(key=itemgetter("queuing_order"))
    handles = [UUID(look[place]["conversation_handle"]) for place in (0, 2)]
    fitting, asked = frontier.fitting, itertools.count()

    def after_an_end(*place):
        if next(asked) == gone:
            for handle in handles[gone:]:
                feed.database.end_conversation(handle)
        return fitting(*place)

    monkeypatch.setattr(frontier, "fitting", after_an_end)
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


def test_a_query_that_ends_by_itself_has_let_the_queues_go(feeds):
    feeds[0].dialog(b"a")
    reader = attach_to(feeds)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    feeds[1].dialog(b"later")
    assert by_queue(reader, start, end) == {feeds[0].queue: [b"a"]}
    assert reader.latestOffset(end, ALL) is end
    assert reader.latestOffset(end, ALL) is end
    assert reader.reportLatestOffset()["messagesRead"] == 1
    assert feeds[0].database.receive(feeds[0].queue) == []
    assert [m.message_body for m in feeds[1].database.receive(feeds[1].queue)] == [b"later"]


def test_a_queue_that_is_done_is_free_while_others_are_read(feeds):
    """The commit of the batch before had taken it again, and nothing let it go."""
    shorter, longer = feeds
    shorter.dialog(b"a")
    longer.dialog(b"b", b"b", b"b")
    reader = attach_to(feeds)
    reader.prepareForTriggerAvailableNow()
    at, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxRows(2))) is not at:
        if seen:
            reader.commit(at)  # Spark's order: a batch is planned, then the one before it is committed
            eventually(lambda: is_free(shorter), 20)
            assert not is_free(longer)
        seen.append(by_queue(reader, at, end))
        at = end
    assert seen == [{shorter.queue: [b"a"], longer.queue: [b"b"]}, {longer.queue: [b"b"] * 2}]
    reader.commit(at)
    eventually(lambda: all(is_free(feed) for feed in feeds), 20)
    assert [feed.left() for feed in feeds] == [0, 0]
    reader.stop()


def is_free(feed):
    """Whether no stream owns the queue."""
    with feed.database.instance.connection() as connection:
        sql = "select pg_try_advisory_xact_lock(%s, %s)"
        return connection.execute(sql, (locks.PIPELINE, feed.queue_id)).fetchone()[0]


def test_a_queue_that_has_come_and_is_empty_is_free_when_a_query_ends_by_itself(feeds):
    """Its checkpoint does not know the queue, so each plan had asked it where it begins."""
    known, new = feeds
    first = attach_to([known], queuePattern=known.queue)
    start = first.initialOffset()
    first.stop()
    known.dialog(b"a")
    reader = attach_to(feeds, queuePattern=f"{known.queue}|{new.queue}")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ALL)
    assert by_queue(reader, start, end) == {known.queue: [b"a"]}
    assert reader.latestOffset(end, ALL) is end
    eventually(lambda: all(is_free(feed) for feed in feeds), 20)
    reader.stop()


def test_what_is_acknowledged_is_not_asked_for_again(feed, reader, monkeypatch):
    feed.dialog(b"a", b"b")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1))
    later = reader.latestOffset(end, ALL)
    asked = []
    now = Attachment.now
    monkeypatch.setattr(Attachment, "now", lambda self: asked.append(self) or now(self))
    reader.commit(end)
    assert (asked, feed.left()) == ([], 1)
    reader.commit(later)
    assert (len(asked), feed.left()) == (1, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue": "A, a"}, "names a queue twice"),
        ({"queue": "A,,B"}, "or none between two commas"),
        ({"queue": "A", "queuePattern": "B"}, "exclude each other"),
        ({"queuePattern": "("}, "is no regular expression"),
        ({}, "needs the option 'queue'"),
        ({"queue": "A", "maxMessagesPerTrigger": "3", "minMessagesPerTrigger": "4"}, "more than 'maxMessages"),
        ({"queue": "A", "maxBytesPerTrigger": "3", "minBytesPerTrigger": "4"}, "more than 'maxBytes"),
        ({"queue": "A", "maxTriggerDelay": "soon"}, "must be a time such as 30s"),
    ],
)
def test_queues_that_cannot_be_meant_are_refused(given, said):
    with pytest.raises(InstanceError, match=said):
        source_options({"instance": "x", "database": "D"} | given)
