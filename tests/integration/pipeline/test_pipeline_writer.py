"""The writer against a real server, driven as Spark drives it, without Spark.

Tasks stage rows in the table `writer_stage`; the driver's commit sends them as messages.
"""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.rows import dict_row

import servicebroker as sb
from pipeline_support import END_OF_STREAM, LINE, Feed

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.pipeline import sending
from servicebroker.pipeline.options import writer_options
from servicebroker.pipeline.source import ServiceBrokerSource
from servicebroker.pipeline.writer import commit_rows, write_rows
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, bodies, errors

BODY = StructField("message_body", BinaryType())


def options(feed, **more):
    defaults = {
        "instance": feed.database.instance.url,
        "database": feed.database.name,
        "fromService": feed.from_service,
        "toService": feed.to_service,
        "contract": "Lines",
        "messageType": LINE,
        "conversations": "2",
    }
    return defaults | more


def rows(*values, **columns):
    return pa.RecordBatch.from_pydict({"message_body": pa.array(values, pa.binary()), **columns})


def write(feed, *tasks, writer="q", batch=0, finish=False, **more):
    chosen = writer_options(options(feed, **more))
    written = [write_rows(chosen, writer, iter([task])) for task in tasks]
    return commit_rows(chosen, written, batch, finish=finish)


def receive_all(feed, queue=None):
    return feed.database.receive(queue or feed.queue, top=10_000)


def receive_everything(feed):
    received_messages = []
    while messages := receive_all(feed):
        received_messages += messages
    return received_messages


def count_staged(feed):
    with feed.database.instance.connection() as connection:
        return connection.execute("select count(*) from servicebroker.writer_stage").fetchone()[0]


def test_rows_become_messages_in_their_order(feed):
    assert write(feed, rows(b"1", None, b""), conversations="1")
    messages = receive_everything(feed)
    assert [(m.message_sequence_number, m.message_body) for m in messages] == [(0, b"1"), (1, None), (2, None)]
    assert count_staged(feed) == 0


def test_a_batch_is_sent_once(feed):
    assert write(feed, rows(b"a"), batch=3)
    assert not write(feed, rows(b"a"), batch=3)
    assert write(feed, rows(b"b"), batch=4)
    assert write(feed, rows(b"c"), batch=0, writer="another")
    assert sorted(bodies(receive_everything(feed))) == [b"a", b"b", b"c"]


def test_an_old_copy_of_a_checkpoint_is_refused(feed):
    """Spark repeats only its last batch. An earlier number means an old checkpoint: dropping its rows loses data."""
    for batch in (6, 7):
        assert write(feed, rows(b"%d" % batch), writer="old", batch=batch)
    with pytest.raises(
        InstanceError, match=r"Batch 7 of this query was sent already, .* goes on with batch 6\. .* old"
    ):
        write(feed, rows(b"new"), writer="old", batch=6)
    assert write(feed, rows(b"8"), writer="old", batch=8)
    assert bodies(receive_everything(feed)) == [b"6", b"7", b"8"]
    assert count_staged(feed) == 0


@pytest.mark.parametrize("again", [[b"a", b"c"], [b"ab", b""], [b"a"]])
def test_a_batch_that_comes_back_with_other_rows_is_refused(feed, again):
    """Another batch with the same number of rows was once taken for the batch already sent."""
    writer = f"other bodies {again}"
    assert write(feed, rows(b"a", b"b"), writer=writer, batch=5)
    with pytest.raises(InstanceError, match=r"Batch 5 of .* with 2 rows, and its checkpoint has .* for that batch"):
        write(feed, rows(*again), writer=writer, batch=5)
    assert not write(feed, rows(b"b", b"a"), writer=writer, batch=5)  # same rows, divided differently into tasks
    with feed.database.instance.connection() as connection:
        connection.execute("update servicebroker.writers set digest = 0 where writer = %s", (writer,))
    assert not write(feed, rows(b"a", b"c"), writer=writer, batch=5)  # sent by a version without digests
    assert bodies(receive_everything(feed)) == [b"a", b"b"]


def test_a_batch_that_comes_back_with_another_number_of_rows_is_refused(feed):
    """A copy of a checkpoint that lacks exactly the last batch."""
    assert write(feed, rows(b"a", b"b"), writer="other rows", batch=5)
    with pytest.raises(
        InstanceError, match=r"Batch 5 of .* with 2 rows, and its checkpoint has 1 for that batch\. .* old"
    ):
        write(feed, rows(b"c"), writer="other rows", batch=5)
    assert not write(feed, rows(b"a", b"b"), writer="other rows", batch=5)
    assert bodies(receive_everything(feed)) == [b"a", b"b"]


def test_two_commits_of_one_batch_at_once_send_it_once(feed):
    chosen = writer_options(options(feed))
    written = [write_rows(chosen, "q2", iter([rows(b"x", b"y")])) for _ in range(2)]
    together, results = threading.Barrier(2), []

    def commit(task_result):
        together.wait()
        results.append(commit_rows(chosen, [task_result], 0, finish=False))

    threads = [threading.Thread(target=commit, args=(task_result,)) for task_result in written]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]
    assert bodies(receive_everything(feed)) == [b"x", b"y"]


def test_rows_staged_in_many_pieces_keep_their_order(feed, monkeypatch):
    monkeypatch.setattr("servicebroker.pipeline.staging.MAX_PIECE_MESSAGES", 10)
    numbers = [b"%d" % n for n in range(95)]
    write(feed, rows(*numbers[:50]), rows(*numbers[50:]), conversations="1", writer="pieces")
    messages = receive_everything(feed)
    assert bodies(messages) == numbers
    assert [m.message_sequence_number for m in messages] == list(range(95))


def test_equal_keys_share_a_conversation(feed):
    keys = [f"k{n % 5}" for n in range(40)]
    for batch in range(2):
        task = rows(*[b"%d" % (n + 40 * batch) for n in range(40)], k=pa.array(keys))
        write(feed, task, writer="keys", batch=batch, key="k", conversations="3")
    by_conversation = {}
    for message in receive_everything(feed):
        by_conversation.setdefault(message.conversation_handle, []).append(int(message.message_body))
    assert len(by_conversation) <= 3
    conversations_of_key = {}
    for handle, numbers in by_conversation.items():
        assert numbers == sorted(numbers)
        for number in numbers:
            conversations_of_key.setdefault(keys[number % 40], set()).add(handle)
    assert all(len(handles) == 1 for handles in conversations_of_key.values())


def test_a_conversation_is_replaced_and_ended_on_both_sides(feed):
    for batch in range(3):
        write(feed, rows(b"a", b"b"), writer="recycled", batch=batch, conversations="1", recycleAfter="2")
    messages = receive_everything(feed)
    assert len({m.conversation_handle for m in messages}) == 3
    assert [m.message_type_name for m in messages].count(END_OF_STREAM) == 2
    for message in messages:
        if message.message_type_name == END_OF_STREAM:
            feed.database.end_conversation(message.conversation_handle)
    write(feed, rows(b"c"), writer="recycled", batch=3, conversations="1", recycleAfter="100")
    with feed.database.instance.connection() as connection:
        sql = "select state from servicebroker.conversation_endpoints join servicebroker.services using (service_id)"
        states = connection.execute(sql + " where name = %s order by 1", (feed.from_service,)).fetchall()
        assert states == [("CO",)]
    assert receive_all(feed, feed.reply_queue) == []


def test_an_old_conversation_is_replaced(feed):
    write(feed, rows(b"a"), writer="aged", conversations="1")
    with feed.database.instance.connection() as connection:
        connection.execute(
            "update servicebroker.writer_conversations set begun_at = %s where writer = 'aged'",
            (datetime.now(UTC) - timedelta(hours=2),),
        )
    write(feed, rows(b"b"), writer="aged", batch=1, conversations="1")
    assert [m.message_type_name for m in receive_everything(feed)] == [LINE, END_OF_STREAM, LINE]


@pytest.fixture
def changed_options(feed):
    """Return, for each kind of change: the options after a restart of the query, and the feed that then receives."""
    other = Feed(feed.database)
    feed.database.create_contract(f"Again {feed.queue}", {LINE: "INITIATOR", END_OF_STREAM: "INITIATOR"})
    feed.database.create_contract(f"Endless {feed.queue}", {LINE: "INITIATOR"})
    feed.database.alter_service(feed.to_service, add_contracts=[f"Again {feed.queue}", f"Endless {feed.queue}"])
    another = feed.database.instance.database(f"Another {feed.queue}", create=True)
    for name in (LINE, END_OF_STREAM):
        another.create_message_type(name)
    another.create_contract("Lines", {LINE: "INITIATOR", END_OF_STREAM: "INITIATOR"})
    another.create_queue("Back")
    another.create_service(feed.from_service, "Back")
    feed.database.grant("SEND", "public", service=feed.to_service)
    return {
        "toService": ({"toService": other.to_service}, other),
        "fromService": ({"fromService": other.from_service}, feed),
        "contract": ({"contract": f"Again {feed.queue}"}, feed),
        "contract without the end": ({"contract": f"Endless {feed.queue}"}, feed),
        "database": ({"database": another.name, "encryption": "off"}, feed),
        "encryption": ({"encryption": "off"}, feed),
    }


CHANGES = ["toService", "fromService", "contract", "contract without the end", "database", "encryption"]


def in_use(feed, writer):
    """Return database, services, contract and encryption of the conversations that a writer uses."""
    sql = (
        'select d.name as database, s.name as "fromService", e.far_service as "toService", k.name as contract, '
        "case when e.encryption then 'on' else 'off' end as encryption from servicebroker.writer_conversations c "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        "join servicebroker.databases d on d.database_id = e.database_id "
        "join servicebroker.services s on s.service_id = e.service_id "
        "join servicebroker.service_contracts k "
        "on k.database_id = e.database_id and k.service_contract_id = e.service_contract_id "
        "where c.writer = %s and c.is_in_use"
    )
    with feed.database.instance.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(sql, (writer,)).fetchall()


@pytest.mark.parametrize("change", CHANGES)
def test_a_start_with_other_options_uses_new_conversations(feed, changed_options, change):
    """Earlier versions used the old conversations for up to an hour, to the former service."""
    changed, far = changed_options[change]
    arguments = {"writer": f"otherwise {change} {feed.queue}", "conversations": "1"}
    assert write(feed, rows(b"1"), **arguments)
    assert bodies(receive_everything(feed)) == [b"1"]
    assert write(feed, rows(b"2"), batch=1, **arguments, **changed)
    expected = {"encryption": "on"} | options(feed) | changed
    (begun,) = in_use(feed, arguments["writer"])
    assert begun == {key: expected[key] for key in begun}
    assert write(feed, rows(b"3"), batch=2, **arguments, **changed)
    messages = receive_everything(feed) if far is feed else receive_everything(feed) + receive_everything(far)
    ended, *sent = sorted(messages, key=lambda message: message.message_type_name == LINE)
    assert (ended.message_type_name, bodies(sent)) == (END_OF_STREAM, [b"2", b"3"])
    assert len({message.conversation_handle for message in sent}) == 1
    assert write(feed, rows(b"4"), batch=3, **arguments)  # and back, with or without a message that ends the stream
    assert [m.message_body for m in receive_everything(feed) if m.message_type_name == LINE] == [b"4"]


def test_a_batch_that_was_sent_before_a_start_with_other_options_is_not_sent_again(feed, changed_options):
    """The batch number is stored in the transaction that sends its messages, for every target."""
    changed, far = changed_options["toService"]
    arguments = {"writer": f"once {feed.queue}", "conversations": "1"}
    assert write(feed, rows(b"1", b"2"), **arguments)
    assert not write(feed, rows(b"1", b"2"), **arguments, **changed)
    assert (bodies(receive_everything(feed)), receive_everything(far)) == ([b"1", b"2"], [])


def test_a_failed_batch_to_another_service_keeps_the_old_conversation(feed, changed_options):
    changed, far = changed_options["toService"]
    arguments = {"writer": f"failing {feed.queue}", "conversations": "1"}
    assert write(feed, rows(b"1"), **arguments)
    unheard = rows(b"2", b"3", message_type_name=pa.array([None, "Unheard"]))
    with pytest.raises(BrokerError):
        write(feed, unheard, batch=1, **arguments, **changed)
    with pytest.raises(InstanceError, match="No route leads to 'Nowhere'"):
        write(feed, rows(b"2"), batch=1, toService="Nowhere", **arguments)
    assert (bodies(receive_everything(feed)), receive_everything(far)) == ([b"1"], [])
    assert write(feed, rows(b"2"), batch=1, **arguments, **changed)
    assert ([m.message_type_name for m in receive_everything(feed)], bodies(receive_everything(far))) == (
        [END_OF_STREAM],
        [b"2"],
    )


def test_an_idle_conversation_of_old_options_is_ended(feed, changed_options):
    changed, far = changed_options["toService"]
    keys, writer = pa.array([f"k{n}" for n in range(20)]), f"idle otherwise {feed.queue}"
    write(feed, rows(*[b"x"] * 20, k=keys), writer=writer, key="k", conversations="3")
    receive_everything(feed)
    write(feed, rows(b"y", k=keys.slice(0, 1)), writer=writer, batch=1, key="k", conversations="3", **changed)
    assert [m.message_type_name for m in receive_everything(feed)] == [END_OF_STREAM] * 3
    assert bodies(receive_everything(far)) == [b"y"]


@pytest.mark.parametrize(("slots", "hours", "ended"), [("1", 0, 2), ("3", 2, 3)], ids=["fewer", "old"])
def test_a_surplus_or_old_idle_conversation_is_ended(feed, slots, hours, ended):
    """The conversation's slot was removed, or its keys no longer occur."""
    keys, writer = pa.array([f"k{n}" for n in range(20)]), f"idle {slots}"
    write(feed, rows(*[b"x"] * 20, k=keys), writer=writer, key="k", conversations="3")
    assert len({message.conversation_handle for message in receive_everything(feed)}) == 3
    with feed.database.instance.connection() as connection:
        aged = "update servicebroker.writer_conversations set begun_at = %s where writer = %s"
        connection.execute(aged, (datetime.now(UTC) - timedelta(hours=hours), writer))
        write(feed, rows(b"y", k=keys.slice(0, 1)), writer=writer, batch=1, key="k", conversations=slots)
        names = [message.message_type_name for message in receive_everything(feed)]
        assert (names.count(END_OF_STREAM), names.count(LINE)) == (ended, 1)
        left = "select count(*) from servicebroker.writer_conversations where writer = %s and is_in_use"
        assert connection.execute(left, (writer,)).fetchone() == (1,)


@pytest.mark.parametrize("has_rows", [False, True], ids=["idle", "in use"])
def test_a_conversation_that_cannot_take_the_end_message_ends_without_it(feed, caplog, has_rows):
    """After a restart with another contract or endOfStream, no batch fails for this reason."""
    keys, writer = pa.array([f"k{n}" for n in range(20)]), f"foreign {feed.queue}"
    write(feed, rows(*[b"x"] * 20, k=keys), writer=writer, key="k")
    old = {message.conversation_handle for message in receive_everything(feed)}
    with feed.database.instance.connection() as connection:
        aged = "update servicebroker.writer_conversations set begun_at = %s where writer = %s"
        connection.execute(aged, (datetime.now(UTC) - timedelta(hours=2), writer))
    again = rows(*[b"y"] * 20, k=keys) if has_rows else rows(b"y", k=keys.slice(0, 1))
    assert write(feed, again, writer=writer, batch=1, key="k", endOfStream=sb.DEFAULT)
    ended = {m.conversation_handle for m in receive_everything(feed) if m.message_type_name == sb.END_DIALOG}
    assert (ended, len(ended)) == (old, 2)
    assert caplog.text.count("ends without 'DEFAULT'") == len(old)


def test_a_batch_job_whose_contract_has_no_end_message_is_refused(feed):
    with pytest.raises(BrokerError) as error:
        job(feed, "no end", rows(b"a"), endOfStream="Unheard")
    assert error.value.number == 8428
    assert receive_everything(feed) == []
    assert job(feed, "no end", rows(b"a"))


def test_a_conversation_that_its_target_has_ended_is_replaced(feed, caplog):
    write(feed, rows(b"a"), writer="ended", conversations="1")
    (message,) = receive_everything(feed)
    feed.database.end_conversation(message.conversation_handle, error=(9, "no paper"))
    write(feed, rows(b"b"), writer="ended", batch=1, conversations="1")
    (second,) = receive_everything(feed)
    assert (second.message_body, second.conversation_handle != message.conversation_handle) == (b"b", True)
    assert "failed with error 9: no paper" in caplog.text
    assert receive_all(feed, feed.reply_queue) == []


def test_a_batch_job_ends_its_streams_and_is_sent_once(feed):
    assert write(feed, rows(b"a"), rows(b"b"), writer="sendId job", finish=True)
    assert not write(feed, rows(b"a"), rows(b"b"), writer="sendId job", finish=True)
    kinds = [m.message_type_name for m in receive_everything(feed)]
    assert sorted(kinds) == [END_OF_STREAM, LINE, LINE]


def job(feed, name, *tasks, **more):
    return write(feed, *tasks, writer=f"sendId {name}", finish=True, sendId=name, **more)


def test_a_send_id_knows_its_rows_however_they_are_divided(feed):
    more = rows(b"c", None, message_type_name=pa.array([LINE, None]))
    assert job(feed, "once", rows(b"a", b"b"), more)
    assert not job(feed, "once", rows(b"", b"a"), rows(b"c"), rows(b"b"), conversations="1")
    assert len([m for m in receive_everything(feed) if m.message_type_name == LINE]) == 4


@pytest.mark.parametrize(
    ("again", "complaint"),
    [
        (rows(b"a"), r"2 rows were sent under it on 20.*, these are 1\."),
        (rows(), r"2 rows were sent under it on 20.*, these are 0\."),
        (rows(b"a", b"c"), "2 rows with other bodies or types"),
        (rows(b"a", b"b", message_type_name=pa.array([END_OF_STREAM, None])), "2 rows with other bodies or types"),
    ],
)
def test_a_send_id_that_comes_back_with_other_rows_is_refused(feed, again, complaint):
    name = f"refused {feed.queue}"
    assert job(feed, name, rows(b"a", b"b"))
    with pytest.raises(InstanceError, match=f"The sendId '{name}' was used for other rows: {complaint}"):
        job(feed, name, again)
    assert [m.message_body for m in receive_everything(feed) if m.message_type_name == LINE] == [b"a", b"b"]
    assert not job(feed, name, rows(b"a", b"b"))


def test_a_send_id_of_an_earlier_version_is_compared_by_count(feed):
    with feed.database.instance.connection() as connection:
        connection.execute("insert into servicebroker.writers (writer, batch, messages) values ('sendId old', 0, 2)")
    with pytest.raises(InstanceError, match="2 rows were sent"):
        job(feed, "old", rows(b"a"))
    assert not job(feed, "old", rows(b"a", b"b"))


def test_a_service_that_leads_nowhere_is_told_and_nothing_is_sent(feed):
    nowhere = {"toService": "Nowhere", "writer": "nowhere"}
    with pytest.raises(InstanceError, match=r"No route leads to 'Nowhere', so nothing is sent: .* 'toService'"):
        write(feed, rows(b"a"), **nowhere)
    assert write(feed, rows(b"a"), unknownTarget="wait", **nowhere)
    with feed.database.instance.connection() as connection:
        sql = "select count(*) from sys.transmission_queue where to_service_name = 'Nowhere'"
        assert connection.execute(sql).fetchone() == (1,)


def test_no_rows_are_no_batch(feed):
    assert not write(feed, rows(), writer="empty", finish=True)
    assert receive_everything(feed) == []
    assert not job(feed, "empty at first", rows())
    assert job(feed, "empty at first", rows(b"a"))


def test_rows_staged_by_failed_attempts_are_deleted(feed):
    chosen = writer_options(options(feed))
    lost = write_rows(chosen, "zombie", iter([rows(b"never")]))
    assert (lost.staged.messages, count_staged(feed)) == (1, 1)
    write(feed, rows(b"a"), writer="zombie")
    assert (bodies(receive_everything(feed)), count_staged(feed)) == ([b"a"], 0)
    write_rows(chosen, "dead", iter([rows(b"never")]))
    with feed.database.instance.connection() as connection:
        connection.execute("update servicebroker.writer_stage set staged_at = %s", (datetime(2020, 1, 1, tzinfo=UTC),))
    write(feed, rows(b"b"), writer="zombie", batch=1)
    assert count_staged(feed) == 0


def test_a_stage_that_a_crash_has_emptied_is_noticed_and_nothing_is_sent(feed):
    chosen = writer_options(options(feed))
    written = write_rows(chosen, "crash", iter([rows(b"a")]))
    with feed.database.instance.connection() as connection:
        connection.execute("truncate servicebroker.writer_stage")
    with pytest.raises(InstanceError, match="staged rows are gone"):
        commit_rows(chosen, [written], 0, finish=False)
    assert write(feed, rows(b"a"), writer="crash")
    assert bodies(receive_everything(feed)) == [b"a"]


def test_a_task_that_fails_stages_nothing(feed):
    def failing_rows():
        yield rows(b"a")
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_rows(writer_options(options(feed)), "broken", failing_rows())
    assert count_staged(feed) == 0


def test_a_type_outside_of_the_contract_is_refused_and_the_batch_can_be_sent_again(feed):
    with pytest.raises(BrokerError) as error:
        write(feed, rows(b"a", message_type_name=pa.array(["Unheard"])), writer="typed")
    assert error.value.number == 8428
    assert receive_everything(feed) == []
    assert write(feed, rows(b"a"), writer="typed")


def test_types_of_rows_go_as_they_are_named(feed):
    task = rows(b"a", None, message_type_name=pa.array([None, END_OF_STREAM]))
    write(feed, task, writer="named", conversations="1")
    assert [m.message_type_name for m in receive_everything(feed)] == [LINE, END_OF_STREAM]


def test_messages_for_a_disabled_queue_wait(feed):
    feed.database.alter_queue(feed.queue, status=False)
    write(feed, rows(b"a", b"b"), writer="off", conversations="1")
    feed.database.alter_queue(feed.queue, status=True)
    assert bodies(receive_everything(feed)) == [b"a", b"b"]


def require_xml(feed):
    """Let the target accept XML bodies. Return the options of a writer that sends them."""
    database = feed.database
    if not is_defined(database, "message_types", "Xml"):
        database.create_message_type("Xml", "WELL_FORMED_XML")
        database.create_contract("Documents", {"Xml": "INITIATOR", END_OF_STREAM: "INITIATOR"})
    database.alter_service(feed.to_service, add_contracts=["Documents"])
    return {"contract": "Documents", "messageType": "Xml", "conversations": "1"}


def is_defined(database, table, name):
    with database.instance.connection() as connection:
        sql = f"select from servicebroker.{table} where name = %s"
        return connection.execute(sql, (name,)).fetchall() != []


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("place", range(3))
def test_a_body_that_breaks_its_type_fails_its_conversation_alone(feed, caplog, opened, place):
    """The other messages are sent, and the warning comes at once."""
    arguments = require_xml(feed) | {"writer": f"xml {opened} {place} {feed.queue}"}
    if opened:
        write(feed, rows(b"<first/>"), **arguments)
        assert bodies(receive_everything(feed)) == [b"<first/>"]
    good = [b"<a/>", b"<b/>"]
    write(feed, rows(*good[:place], b"<no xml", *good[place:]), batch=1, **arguments)
    messages = receive_everything(feed)
    assert errors(messages) == [-9616]
    assert [m.message_body for m in messages if not m.is_error] == good
    assert "failed with error -9615" in caplog.text
    write(feed, rows(b"<c/>"), batch=2, **arguments)
    assert bodies(receive_everything(feed)) == [b"<c/>"]
    assert receive_all(feed, feed.reply_queue) == []


def test_errors_report_bodies_that_all_break_their_type(feed):
    arguments = require_xml(feed)
    write(feed, rows(b"<1", b"<2", b"<3"), writer="no xml", **arguments)
    messages = receive_everything(feed)
    assert errors(messages) == [-9616] * 3
    assert len(messages) == 3


def test_a_batch_with_too_many_invalid_bodies_is_refused_whole(feed, monkeypatch):
    """Each invalid body fails one conversation, and a failed conversation holds locks until COMMIT."""
    monkeypatch.setattr(sending, "MAX_REFUSALS_PER_SLOT", 2)
    arguments = require_xml(feed) | {"writer": "all bad"}
    with pytest.raises(InstanceError, match="2 of its conversations have failed"):
        write(feed, rows(b"<a/>", b"<1", b"<2", b"<3", b"<4"), **arguments)
    assert receive_everything(feed) == receive_all(feed, feed.reply_queue) == []
    assert write(feed, rows(b"<a/>", b"<1", b"<2", b"<b/>"), **arguments)
    assert [m.message_body for m in receive_everything(feed) if not m.is_error] == [b"<a/>", b"<b/>"]


def test_a_body_that_breaks_its_type_behind_others_that_wait(feed):
    arguments = require_xml(feed) | {"writer": "waiting"}
    write(feed, rows(b"<first/>"), **arguments)
    assert bodies(receive_everything(feed)) == [b"<first/>"]
    feed.database.alter_queue(feed.queue, status=False)
    write(feed, rows(b"<a/>", b"<no xml"), batch=1, **arguments)
    feed.database.alter_queue(feed.queue, status=True)
    messages = receive_everything(feed)
    assert [m.message_body for m in messages if not m.is_error] == [b"<a/>"]


def test_a_batch_whose_conversation_fails_is_not_sent(feed):
    """The target refuses the contract, so every row would fail."""
    require_xml(feed)
    with feed.database.instance.connection() as connection:
        sql = "select count(*) from servicebroker.writers where writer = 'refused'"
        feed.database.alter_service(feed.to_service, drop_contracts=["Documents"])
        with pytest.raises(InstanceError, match="not sent: its conversation failed with error -8408"):
            write(feed, rows(b"<a/>"), writer="refused", contract="Documents", messageType="Xml")
        assert connection.execute(sql).fetchone() == (0,)
    assert receive_everything(feed) == receive_all(feed, feed.reply_queue) == []
    arguments = require_xml(feed)
    assert write(feed, rows(b"<a/>"), writer="refused", **arguments)
    assert bodies(receive_everything(feed)) == [b"<a/>"]


def test_rows_go_to_another_instance(pair):
    values = {
        "instance": pair.west.instance.url,
        "database": "Test",
        "fromService": ORDERS,
        "toService": STOCK,
        "contract": CONTRACT,
        "messageType": ORDER,
        "conversations": "1",
        "encryption": "off",
    }
    chosen = writer_options(values)
    for batch in range(2):
        written = write_rows(chosen, "far", iter([rows(*[b"%d" % (n + 7 * batch) for n in range(7)])]))
        assert commit_rows(chosen, [written], batch, finish=False)
        pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE, top=100)) == [b"%d" % n for n in range(14)]


@pytest.mark.parametrize(
    ("schema", "given", "complaint"),
    [
        (StructType([]), {}, "needs a column 'message_body'"),
        (StructType([StructField("message_body", LongType())]), {}, "needs a column 'message_body'"),
        (StructType([BODY]), {"messageType": ""}, "needs the option 'messageType'"),
        (StructType([BODY]), {"key": "k"}, "no column 'k'"),
        (StructType([BODY]).add("k", StructType()), {"key": "k"}, "'k', .* must hold single values"),
        (StructType([BODY, StructField("message_type_name", LongType())]), {}, "must be of string"),
    ],
)
def test_rows_that_are_no_messages_are_refused(feed, schema, given, complaint):
    source = ServiceBrokerSource(options(feed, **given))
    with pytest.raises(InstanceError, match=complaint):
        source.streamWriter(schema, overwrite=False)


def test_a_batch_job_needs_a_name_and_only_appends(feed):
    schema = StructType([StructField("message_body", StringType())])
    source = ServiceBrokerSource(options(feed))
    with pytest.raises(InstanceError, match="needs the option 'sendId'"):
        source.writer(schema, overwrite=False)
    with pytest.raises(InstanceError, match="mode\\('append'\\)"):
        source.writer(schema, overwrite=True)
    with pytest.raises(InstanceError, match="outputMode\\('append'\\)"):
        source.streamWriter(schema, overwrite=True)
