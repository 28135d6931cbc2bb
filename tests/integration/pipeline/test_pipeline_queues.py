"""One stream that reads several queues: some are gone, some come later, some are done."""

import contextlib

import pytest

from pipeline_support import LINE, Feed

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from pipeline_reading import ALL, attach, batches, bodies
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.stream.reader import QueueStreamReader
from servicebroker.store import locks
from support import eventually


def attach_to(feeds, **options):
    """One reader of several queues."""
    first, *_ = feeds
    values = {"queue": ", ".join(feed.queue for feed in feeds)} if "queuePattern" not in options else {}
    plain = {key: value for key, value in first.options.items() if key != "queue"}
    return QueueStreamReader(source_options(plain | values | {"minPartitions": "2"} | options))


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
        assert (one.waiting_count(), other.waiting_count()) == (0, 1)
        assert reader.latestOffset(later, ALL) is later
        assert other.waiting_count() == 0
        progress = reader.reportLatestOffset()
        assert (progress["messagesRead"], progress["bytesRead"], progress["messagesBehind"]) == (3, 3, 0)
        assert {one["queueName"] for one in progress["queues"].values()} == {feed.queue for feed in feeds}
        for feed in feeds:
            with pytest.raises(InstanceError, match="being read by another pipeline"):
                attach(feed, claimTimeout="0").initialOffset()
    successor = attach_to(feeds)
    assert successor.latestOffset(later, ALL) is later
    successor.stop()


def test_a_limit_is_divided_among_queues_and_unused_parts_are_passed_on(feeds):
    for feed, count in zip(feeds, (30, 8), strict=True):
        feed.dialog(*[b"%d" % number for number in range(count)])
    reader, seen = attach_to(feeds), []
    at = reader.initialOffset()
    while (end := reader.latestOffset(at, ReadMaxRows(10))) is not at:
        seen.append({queue: len(found) for queue, found in by_queue(reader, at, end).items()})
        at = end
    reader.stop()
    assert [sum(page.values()) for page in seen] == [10, 10, 10, 8]  # none is smaller, whichever queue is empty
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
    database.send(database.begin_dialog(feeds[0].from_service, "LaterFar", contract="Lines"), LINE, b"new")
    end = reader.latestOffset(start, ALL)
    assert by_queue(reader, start, end) == {"Later": [b"new"]}
    assert reader.latestOffset(end, ALL) is end
    reader.stop()
    database.drop_service("LaterFar")
    database.drop_queue("Later")
    again = attach_to(feeds, queuePattern=f"{feeds[0].queue}|Later.*")
    with pytest.raises(InstanceError, match="has read the queue 'Later', which does not exist"):
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
    database.drop_service(feed.to_service)
    database.drop_queue(feed.queue)
    with pytest.raises(
        InstanceError, match=f"queue '{feed.queue}' was dropped while it was read. A queue created since"
    ):
        reader.latestOffset(at, ALL)
    database.create_queue(feed.queue)
    database.create_service(feed.to_service, feed.queue, ["Lines"])
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


def test_a_checkpoint_of_one_queue_is_none_of_several(feeds):
    reader = attach_to(feeds)
    with pytest.raises(InstanceError, match="written by a query that reads one queue, and this one reads several"):
        reader.latestOffset({"version": 1}, ALL)
    reader.stop()


def drop(feed):
    feed.database.drop_service(feed.to_service)
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
    assert (stays.waiting_count(), list(reader.reportLatestOffset()["queues"])) == (1, [stays.queue])
    reader.commit(later)
    assert (stays.waiting_count(), caplog.text.count(f"The queue '{goes.queue}' does not exist any more")) == (0, 1)
    goes.create()
    goes.dialog(b"anew")
    assert by_queue(reader, later, reader.latestOffset(later, ALL)) == {goes.queue: [b"anew"]}
    reader.stop()


def feed_on(feed, handle, *bodies):
    for body in bodies:
        feed.database.send(handle, LINE, body)


@pytest.mark.parametrize("queue_list", ["both", "one", "in small letters"])
@pytest.mark.parametrize("ends", [False, True], ids=["stream", "availableNow"])
@pytest.mark.sampled(2)
def test_a_query_of_a_list_starts_without_a_queue_that_is_gone(feeds, queue_list, ends):
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
    again = attach_to(feeds if queue_list == "both" else [stays])
    with pytest.raises((InstanceError, BrokerError), match=goes.queue):
        again.latestOffset(end, ALL)
    again.stop()
    named = {"queue": stays.queue.lower()} if queue_list == "in small letters" else {}
    loose = attach_to(feeds if queue_list == "both" else [stays], failOnDataLoss="false", **named)
    if ends:
        loose.prepareForTriggerAvailableNow()
    assert by_queue(loose, start, end) == {stays.queue: [b"a"]}
    later = loose.latestOffset(end, ALL)
    loose.commit(end)
    assert (by_queue(loose, end, later), stays.waiting_count()) == ({stays.queue: [b"c"]}, 1)
    assert loose.reportLatestOffset()["messagesBehind"] == 0
    assert loose.latestOffset(later, ALL) is later
    assert stays.waiting_count() == 0
    loose.stop()


def test_a_removed_queue_is_acknowledged_and_released(feeds):
    stays, leaves = feeds
    handle = stays.dialog(b"a")
    leaves.dialog(b"b")
    reader = attach_to(feeds)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    with pytest.raises(
        InstanceError, match=f"has read the queue '{leaves.queue}', which does not exist or is not named"
    ):
        attach(stays).latestOffset(end, ALL)
    loose = attach(stays, failOnDataLoss="false")
    feed_on(stays, handle, b"c")
    later = loose.latestOffset(end, ALL)
    loose.commit(end)
    assert loose.latestOffset(later, ALL) is later
    assert [feed.waiting_count() for feed in feeds] == [0, 0]
    eventually(lambda: is_free(leaves), 20)
    loose.stop()


def test_a_queue_that_was_never_there_is_refused_and_so_is_a_list_of_which_none_is_left(feeds):
    reader = attach_to(feeds, queue=f"{feeds[0].queue}, Mistyped", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(BrokerError, match="Mistyped") as error:
        reader.initialOffset()
    assert error.value.number == 15151
    reader.stop()
    both = attach_to(feeds, failOnDataLoss="false")
    start = both.initialOffset()
    both.stop()
    for feed in feeds:
        drop(feed)
    with pytest.raises(BrokerError, match="Cannot find the queue"):
        both.latestOffset(start, ALL)
    both.stop()


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
    assert [feed.waiting_count() for feed in feeds] == [0, 0]
    reader.stop()


def is_free(feed):
    """Return whether no stream owns the queue."""
    with feed.database.instance.connection() as connection:
        sql = "select pg_try_advisory_xact_lock(%s, %s)"
        return connection.execute(sql, (locks.PIPELINE_QUEUE, feed.queue_id)).fetchone()[0]


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


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        ({"queue": "A, a"}, "names a queue twice"),
        ({"queue": "A,,B"}, "or none between two commas"),
        ({"queue": "A", "queuePattern": "B"}, "exclude each other"),
        ({"queuePattern": "("}, "is not a regular expression"),
        ({}, "needs the option 'queue'"),
        ({"queue": "A", "maxMessagesPerTrigger": "3", "minMessagesPerTrigger": "4"}, "exceeds 'maxMessages"),
        ({"queue": "A", "maxBytesPerTrigger": "3", "minBytesPerTrigger": "4"}, "exceeds 'maxBytes"),
        ({"queue": "A", "maxTriggerDelay": "soon"}, "must be a time such as 30s"),
    ],
)
def test_queues_that_cannot_be_meant_are_refused(given, expected_text):
    with pytest.raises(InstanceError, match=expected_text):
        source_options({"instance": "x", "database": "D"} | given)
