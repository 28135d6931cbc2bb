"""Acknowledgements of the stream reader: rows leave the queue, and the conversations that they end are ended."""

import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from uuid import UUID

import psycopg
import pytest

from pipeline_support import LINE, Feed

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from pipeline_reading import ALL, attach, batches, bodies, count_rows
from servicebroker.model import names
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.queue_lease import QueueLease
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows
from servicebroker.pipeline.stream import frontier, queue_stream
from servicebroker.pipeline.stream.acknowledgement import acknowledge_rows, end_now, find_rows
from servicebroker.pipeline.stream.frontier import Frontier
from servicebroker.pipeline.stream.reader import QueueReader


def acknowledge(queue, window_slice, **how):
    rows = find_rows(queue.connection, queue.queue_id, queue.database_id, window_slice, "EndOfStream")
    acknowledge_rows(queue.connection, queue.queue_id, window_slice, rows, **{"archive": False} | how)


def test_a_read_acknowledges_its_start_and_nothing_more(feed, reader):
    feed.dialog(*[b"%d" % number for number in range(9)])
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert feed.waiting_count() == 9
    reader.latestOffset(end, ReadMaxRows(4))
    assert feed.waiting_count() == 5
    reader.commit(end)
    assert feed.waiting_count() == 5


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
    messages = feed.database.receive(feed.reply_queue)
    assert [(m.message_type_name, m.conversation_handle) for m in messages] == [(names.END_DIALOG, finished)]
    reader._stream(feed.queue)._acknowledged = None  # as after a restart
    assert reader.latestOffset(end, ALL) is end
    assert feed.database.receive(feed.reply_queue) == []
    feed.database.send(going, "Line", b"still open")


def test_a_refused_end_rolls_the_deletion_back(feed):
    feed.dialog(b"x")
    feed.database.send(feed.dialog(), "EndOfStream")

    def refuse(connection, handle):
        raise BrokerError(9617, "Q")

    queue = QueueLease.open(source_options(feed.options))
    end = queue.find_page_end(queue.initial.opened(queue.position().frontier), None)
    window_slice = frontier.slice_read_so_far(end)
    with pytest.raises(BrokerError):
        acknowledge(queue, window_slice, end=refuse)
    assert feed.waiting_count() == 2
    ended = []
    acknowledge(queue, window_slice, end=lambda connection, handle: ended.append(handle))
    acknowledge(queue, window_slice, end=lambda connection, handle: ended.append(handle))
    queue.close()
    assert (feed.waiting_count(), len(ended)) == (0, 1)


@pytest.mark.parametrize(("how", "dialogs"), [("delete", 1500), ("truncate", 150), ("archive", 150), ("share", 150)])
@pytest.mark.sampled(1)
def test_many_ended_dialogs_are_acknowledged_in_parts(feed, monkeypatch, how, dialogs):
    """Each END holds a lock until its transaction ends, and a server has room for some thousands."""
    if dialogs < 1500:
        monkeypatch.setattr("servicebroker.pipeline.stream.acknowledgement.MAX_ENDS_PER_TRANSACTION", dialogs // 3)
    monkeypatch.setattr(
        "servicebroker.pipeline.stream.acknowledgement.MIN_TRUNCATE_ROWS", 1 if how == "truncate" else 50_000
    )
    with feed.database.transaction() as sending:
        handles = [sending.begin_dialog(feed.from_service, feed.to_service, contract="Lines") for _ in range(dialogs)]
        sending.send(handles, LINE, b"shared" if how in ("share", "archive") else b"")
        sending.send(handles, "EndOfStream")
        sending.send(handles, LINE, b"")
    queue = QueueLease.open(source_options(feed.options | {"ack": "archive" if how == "archive" else "delete"}))
    end = queue.find_page_end(queue.initial.opened(queue.position().frontier), None)
    window_slice = frontier.slice_read_so_far(end)
    ended = Counter()

    def count(connection, handle):
        end_now(connection, handle)
        ((transaction,),) = connection.execute("select pg_current_xact_id()::text").fetchall()
        ended[transaction] += 1
        if ended.total() == failing_at:
            raise InterruptedError

    failing_at = dialogs * 7 // 15
    with pytest.raises(InterruptedError):
        acknowledge(queue, window_slice, archive=how == "archive", end=count)
    assert feed.far_states() == {"CD": dialogs // 3, "CO": dialogs - dialogs // 3}
    acknowledge(queue, window_slice, archive=how == "archive", end=count)  # as the next run does
    queue.close()
    assert sorted(ended.values()) == [dialogs * 2 // 15, *[dialogs // 3] * 3]
    assert (feed.far_states(), feed.waiting_count()) == ({"CD": dialogs}, 0)
    with feed.database.instance.connection() as connection:
        summary = f"select count(*), count(distinct conversation_handle) from warehouse_dbo.{feed.reply_queue}"
        assert connection.execute(summary).fetchone() == (dialogs, dialogs)
    if how == "archive":
        assert count_rows(feed, f"archived_{feed.queue_id}") == 3 * dialogs


@pytest.mark.parametrize("late", ["nothing", "behind", "between", "open", "reader"])
@pytest.mark.sampled(2)
def test_a_large_slice_is_truncated_only_when_nothing_else_is_there(feed, reader, monkeypatch, late):
    """A message behind the slice, one between its rows of a younger transaction, an open sender, somebody who reads."""
    monkeypatch.setattr("servicebroker.pipeline.stream.acknowledgement.MIN_TRUNCATE_ROWS", 3)
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


@pytest.mark.parametrize("worth", [1, 50_000])
def test_the_body_of_a_multicast_is_read_and_goes_with_its_last_reader(feed, reader, worth, monkeypatch):
    monkeypatch.setattr("servicebroker.pipeline.stream.acknowledgement.MIN_TRUNCATE_ROWS", worth)
    other = Feed(feed.database)
    handles = [feed.dialog(b"first"), feed.dialog(b"first"), other.dialog()]
    feed.database.send(handles, LINE, b"shared")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert sorted(bodies(reader, start, end)) == [b"first", b"first", b"shared", b"shared"]
    reader.commit(end)
    assert feed.waiting_count() == 0
    assert count_rows(feed, "shared_body_readers") == count_rows(feed, "shared_bodies") == 1
    (message,) = feed.database.receive(other.queue)
    assert message.message_body == b"shared"
    assert count_rows(feed, "shared_bodies") == 0


@pytest.mark.feature(198)
@pytest.mark.parametrize("worth", [1, 50_000])
def test_a_queue_with_retention_keeps_acknowledged_messages(feed, reader, worth, monkeypatch):
    monkeypatch.setattr("servicebroker.pipeline.stream.acknowledgement.MIN_TRUNCATE_ROWS", worth)
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
    assert feed.waiting_count() == 0


def read_all(reader):
    """Return the bodies of a stream from its beginning, batch by batch, and its last offset."""
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
    assert (sorted(seen), feed.waiting_count()) == (sorted([*(b"%d" % n for n in range(9)), b"shared", b"shared"]), 0)
    feed.database.send(handle, LINE, b"later")
    assert bodies(first, at, first.latestOffset(at, ALL)) == [b"later"]
    first.stop()
    again = attach(feed, ack="archive")
    replayed, at = read_all(again)
    assert sorted(replayed) == sorted([*seen, b"later"])
    assert [body for body in replayed if len(body) == 1] == [b"%d" % n for n in range(9)]
    assert again.latestOffset(at, ALL) is at
    find_rows = QueueReader(source_options(feed.options | {"ack": "archive"}))
    assert sum(batch.num_rows for part in find_rows.partitions() for batch in find_rows.read(part)) == 12
    again.stop()
    assert not [one for one in feed.database.instance.check()[1] if str(feed.queue_id) in one.text]


def test_a_conversation_that_a_bad_message_ends_is_in_the_archive(feed, tmp_path):
    shared = count_rows(feed, "shared_bodies")
    bad = feed.dialog(b"1", b"\xff")
    feed.database.send([bad, feed.dialog(b"2")], LINE, b"3")
    rule = MessageRule(LINE, "text", "lines", when_bad="end conversation")
    queue = QueueRule(feed.options["instance"], feed.options["database"], feed.queue, options={"ack": "archive"})
    pipeline = Pipeline("test", tmp_path, (queue,), (rule,))
    first = attach(feed, ack="archive")
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    commit_results(pipeline, queue, [sort_rows(pipeline, queue, "q", iter(batches(first, start, end)))], 0)
    assert feed.far_states() == {"CO": 1, "CD": 1}
    assert feed.waiting_count() == 2
    first.stop()
    again = attach(feed, ack="archive")  # without its checkpoint
    assert sorted(read_all(again)[0]) == [b"1", b"2", b"3", b"3", b"\xff"]
    assert count_rows(feed, "shared_bodies") == shared
    again.stop()


def test_an_archive_goes_with_its_queue(database):
    feed = Feed(database)
    feed.dialog(b"a")
    reader = attach(feed, ack="archive")
    read_all(reader)
    reader.stop()
    database.drop_service(feed.to_service)
    database.drop_queue(feed.queue)
    with database.instance.connection() as connection:
        name = f"servicebroker.archived_{feed.queue_id}"
        assert connection.execute("select to_regclass(%s)", (name,)).fetchone() == (None,)


def test_a_conversation_being_read_cannot_be_moved_and_an_end_drops_unread_messages(feed, reader, database):
    feed.dialog(b"a", b"b")
    feed.dialog(b"c")
    queue = QueueReader(source_options(feed.options))
    rows = [row for part in queue.partitions() for batch in queue.read(part) for row in batch.to_pylist()]
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1))
    rows.sort(key=itemgetter("queuing_order"))  # of several partitions, whose order is that of random groups
    one = UUID(rows[0]["conversation_handle"])
    group = UUID(rows[2]["conversation_group_id"])
    with pytest.raises(
        InstanceError, match=r"A pipeline reads the queue .* nobody else can RECEIVE from the queue or MOVE"
    ):
        database.move_conversation(one, group)
    assert bodies(reader, start, end) == [b"a"]
    at = reader.latestOffset(end, ReadMaxRows(1))  # the first one is acknowledged, the second planned
    assert bodies(reader, end, at) == [b"b"]
    database.end_conversation(one)
    assert bodies(reader, end, at) == []  # as every END, by whoever has the right to it
    at = reader.latestOffset(at, ALL)
    assert bodies(reader, end, at) == [b"c"]
    assert reader.latestOffset(at, ALL) is at
    assert feed.waiting_count() == 0


def test_an_acknowledgement_reads_no_position_unless_it_is_the_last(feed, reader, monkeypatch):
    feed.dialog(b"a", b"b")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1))
    later = reader.latestOffset(end, ALL)
    asked = []
    now = QueueLease.position
    monkeypatch.setattr(QueueLease, "position", lambda self: asked.append(self) or now(self))
    reader.commit(end)
    assert (asked, feed.waiting_count()) == ([], 1)
    reader.commit(later)
    assert (len(asked), feed.waiting_count()) == (1, 0)


@pytest.fixture
def acknowledge_concurrently(monkeypatch):
    """However small a batch is, it may be acknowledged while the next one is read. What was, in turn."""
    monkeypatch.setattr(queue_stream, "MIN_BACKGROUND_DELETE_ROWS", 0)
    done, remove = [], QueueLease.remove_rows
    monkeypatch.setattr(QueueLease, "remove_rows", lambda self, offset: (remove(self, offset), done.append(offset)))
    return done


def test_a_large_batch_is_acknowledged_while_the_next_one_is_read(feed, reader, acknowledge_concurrently):
    feed.dialog(b"a", b"b", b"c", b"d")
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(2))
    with feed.database.instance.connection() as other_connection, other_connection.transaction():
        other_connection.execute(f"select from {feed.table} order by queuing_order limit 1 for update")
        second = reader.latestOffset(first, ReadMaxRows(2))  # waits for nobody
        assert bodies(reader, first, second) == [b"c", b"d"]
        assert feed.waiting_count() == 4
    assert reader.latestOffset(second, ALL) is second
    assert (feed.waiting_count(), acknowledge_concurrently) == (0, [Frontier.from_json(first)])


@pytest.mark.parametrize("told", ["by the next batch", "at the end"])
def test_a_failed_background_deletion_is_reported_and_repeated(
    feed, reader, acknowledge_concurrently, monkeypatch, told, caplog
):
    feed.dialog(b"a", b"b", b"c")
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(1))

    def fail(self, offset):
        raise psycopg.errors.DiskFull("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(QueueLease, "remove_rows", fail)
        second = reader.latestOffset(first, ReadMaxRows(1))
        if told == "at the end":
            reader.stop()
            assert "the next stream deletes them: no space left" in caplog.text
        else:
            with pytest.raises(psycopg.errors.DiskFull):
                reader.latestOffset(second, ALL)
            reader.stop()
    assert feed.waiting_count() == 3
    again = attach(feed)
    third = again.latestOffset(second, ALL)
    assert bodies(again, second, third) == [b"c"]
    assert again.latestOffset(third, ALL) is third
    again.stop()
    assert feed.waiting_count() == 0


@pytest.mark.parametrize("why", ["the next window", "an end", "archive", "retention", "multicast"])
def test_ends_and_the_last_batch_of_a_window_are_acknowledged_in_the_foreground(feed, acknowledge_concurrently, why):
    """The offset of another window does not cover this one, and an END takes rows of the next batch."""
    handle = feed.dialog(b"a")
    if why == "an end":
        feed.database.send(handle, "EndOfStream")
    if why == "retention":
        feed.database.alter_queue(feed.queue, retention=True)
    if why == "multicast":
        feed.database.send([handle, feed.dialog()], LINE, b"shared")
    if why != "the next window":
        feed.database.send(handle, LINE, b"b")
    reader = attach(feed, **({"ack": "archive"} if why == "archive" else {}))
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2 if why in ("an end", "multicast") else 1))
    left = feed.waiting_count()
    if why in ("the next window", "an end"):
        feed.database.send(feed.dialog(), LINE, b"b")
    reader.latestOffset(first, ReadMaxRows(1))
    assert (feed.waiting_count() < left + (why in ("the next window", "an end")), acknowledge_concurrently) == (
        True,
        [],
    )
    reader.stop()


def test_rows_that_are_deleted_beside_are_waited_for_before_another_window(feed, reader, acknowledge_concurrently):
    """The next batch was to be of this window, and an END has taken it: the other offset does not cover the first."""
    feed.dialog(b"a")
    ended = feed.dialog(b"b", b"c", b"d")
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    with ThreadPoolExecutor(1) as thread, feed.database.instance.connection() as other_connection:
        ((far,),) = other_connection.execute(
            "select far.conversation_handle from servicebroker.conversation_endpoints near "
            "join servicebroker.conversation_endpoints far using (conversation_id) "
            "where near.conversation_handle = %s and not far.is_initiator",
            (ended,),
        ).fetchall()
        feed.database.end_conversation(far)
        feed.dialog(b"e")
        with other_connection.transaction():
            other_connection.execute(f"select from {feed.table} order by queuing_order limit 1 for update")
            planned = thread.submit(reader.latestOffset, first, ReadMaxRows(1))
            with pytest.raises(TimeoutError):
                planned.result(0.5)
        assert bodies(reader, first, planned.result(30)) == [b"e"]
    assert (feed.waiting_count(), len(acknowledge_concurrently)) == (1, 1)


def test_without_a_second_connection_rows_are_deleted_on_the_first(
    feed, reader, acknowledge_concurrently, monkeypatch, caplog
):
    feed.dialog(b"a", b"b")
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))

    def refuse(options):
        raise InstanceError("Cannot connect to PostgreSQL: too many clients.")

    monkeypatch.setattr(queue_stream, "BackgroundDeleter", refuse)
    second = reader.latestOffset(first, ReadMaxRows(1))
    assert (feed.waiting_count(), acknowledge_concurrently) == (1, [])
    assert bodies(reader, first, second) == [b"b"]
    assert "too many clients" in caplog.text


def test_the_background_deletion_is_not_reported_as_blocking(feed, reader, acknowledge_concurrently, monkeypatch):
    feed.dialog(b"a", b"b")
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    begun_event, over = threading.Event(), threading.Event()

    def hold(self, offset):
        with self.connection.transaction():
            self.connection.execute("select pg_current_xact_id()")
            begun_event.set()
            over.wait(30)

    monkeypatch.setattr(QueueLease, "remove_rows", hold)
    reader.latestOffset(first, ReadMaxRows(1))
    assert begun_event.wait(30)
    feed.dialog(b"later")
    progress = reader.reportLatestOffset()
    over.set()
    assert (progress["frontierLag"] > 0, "blockingPid" in progress) == (True, False)


def test_a_query_that_ends_by_itself_has_acknowledged_everything(feed, reader, acknowledge_concurrently):
    feed.dialog(b"a", b"b")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(start, ReadMaxRows(1))
    second = reader.latestOffset(first, ReadMaxRows(1))
    assert reader.latestOffset(second, ALL) is second
    assert (feed.waiting_count(), len(acknowledge_concurrently)) == (0, 1)
    later = attach(feed)
    later.latestOffset(second, ALL)  # the queue is free
    later.stop()


def test_the_end_of_a_window_is_looked_up_once(feed, reader, monkeypatch):
    """The look passes over all that has come since, and at its end over all that is left in the queue."""
    looks = []
    find_rows = QueueLease._find_extremes
    monkeypatch.setattr(
        QueueLease, "_find_extremes", lambda self, start: looks.append(start.hi) or find_rows(self, start)
    )
    handle = feed.dialog(b"1", b"2", b"3", b"4")
    offset, read = reader.initialOffset(), []
    for _ in range(4):
        end = reader.latestOffset(offset, ReadMaxRows(1))
        feed.database.send(handle, LINE, b"later")
        read += bodies(reader, offset, end)
        offset = end
    assert read == [b"1", b"2", b"3", b"4"]
    assert len(looks) == 1
    end = reader.latestOffset(offset, ALL)
    assert bodies(reader, offset, end) == [b"later"] * 4
    assert len(looks) == 2
