"""Sorting of messages into tables, and of tables into files. No Spark, no server."""

import os
import threading
from dataclasses import replace
from datetime import date

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("fastavro")

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pipeline_tables import NOON, ORDER, QUEUE, batch, land, message, order, pipeline, table
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.decoding.plain import JsonDecoder
from servicebroker.pipeline.definition import MessageRule, QueueRule
from servicebroker.pipeline.sinks import target as target_module
from servicebroker.pipeline.sinks.delta_reader import files_of
from servicebroker.pipeline.sinks.maintenance import compact, replay
from servicebroker.pipeline.sinks.storage import move
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows
from servicebroker.pipeline.sorting import Sorter


def test_a_message_is_in_bronze_and_in_its_own_table(tmp_path):
    sorted_batch = Sorter(pipeline(tmp_path), QUEUE).sort(batch(order(1, note=None)), NOON)
    assert set(sorted_batch.tables) == {"bronze", "orders"}
    (row,) = sorted_batch.tables["orders"].to_pylist()
    assert row == {
        "id": 1,
        "note": None,
        "_queue": "Shop.Stock",
        "_conversation_handle": "h",
        "_message_sequence_number": 1,
        "_queuing_order": 1,
        "_message_enqueue_time": NOON,
        "_date": date(2026, 1, 2),
    }
    (raw,) = sorted_batch.tables["bronze"].to_pylist()
    assert (raw["queue"], raw["message_body"], raw["landed_at"]) == ("Shop.Stock", b'{"id": 1, "note": null}', NOON)


def test_unreadable_messages_are_quarantined_with_their_bytes_and_reason(tmp_path):
    small = MessageRule("Small", "binary", "small", maximum_body=3)
    given = [
        order(1),
        message(2, b"\xff"),
        message(3, None),
        message(4, b'{"id": "x"}'),
        message(5, b"1234", "Small"),
        message(6, b"what", "Unheard"),
        message(7, None, names.END_DIALOG),
        message(8, None, "EndOfStream"),
    ]
    pipe = pipeline(tmp_path, ORDER, small, unconfigured="quarantine")
    sorted_batch = Sorter(pipe, QUEUE).sort(batch(*given), NOON)
    assert sorted_batch.tables["bronze"].num_rows == 8
    assert sorted_batch.tables["orders"].num_rows == 1
    quarantined = {
        row["queuing_order"]: (row["reason"], row["message_body"])
        for row in sorted_batch.tables["quarantine"].to_pylist()
    }
    assert quarantined == {
        2: ("wrong encoding", b"\xff"),
        3: ("empty", None),
        4: ("wrong type", b'{"id": "x"}'),
        5: ("too large", b"1234"),
        6: ("unconfigured type", b"what"),
    }
    assert sorted_batch.failures == []


@pytest.mark.slow
def test_a_body_of_100_mb_lands_whole(tmp_path):
    """The default limit covers bronze and quarantine; its own table needs a rule that allows 100 MB."""
    body = b"%05d" % 12345 * 20_000_000
    text = MessageRule("Long", "text", "long", maximum_body=len(body))
    pipe = pipeline(tmp_path, ORDER, text)
    land(pipe, "q", 0, batch(order(1), message(2, body), message(3, body, "Long")))
    files = DeltaTable(pipe.folder("bronze")).file_uris()
    read = f"select queuing_order, octet_length(message_body) > 1000000 from read_parquet({files}) order by 1"
    assert duckdb.sql(read).fetchall() == [(1, False), (2, True), (3, True)]
    (row,) = table(pipe, "quarantine")
    assert (row["reason"], row["message_body"] == body) == ("too large", True)
    (row,) = table(pipe, "long")
    assert row["text"].encode() == body


def test_a_decoder_that_breaks_costs_its_message_alone(tmp_path, monkeypatch):
    decode = JsonDecoder.decode

    def decode_or_break(self, body):
        return decode(self, body) if b"1" in body else {}["what nobody thought of"]

    monkeypatch.setattr(JsonDecoder, "decode", decode_or_break)
    sorted_batch = Sorter(pipeline(tmp_path), QUEUE).sort(batch(order(1), order(2)), NOON)
    assert sorted_batch.tables["orders"].num_rows == 1
    (row,) = sorted_batch.tables["quarantine"].to_pylist()
    assert (row["queuing_order"], row["reason"], row["detail"]) == (
        2,
        "malformed",
        "KeyError 'what nobody thought of'",
    )


def test_types_without_a_rule_stay_in_bronze_or_stop_the_pipeline(tmp_path):
    stranger = batch(message(1, b"what", "Unheard"))
    assert set(Sorter(pipeline(tmp_path), QUEUE).sort(stranger, NOON).tables) == {"bronze"}
    with pytest.raises(InstanceError, match="no rule for 'Unheard'"):
        Sorter(pipeline(tmp_path, unconfigured="stop"), QUEUE).sort(stranger, NOON)


def test_a_rule_may_stop_the_pipeline_or_end_the_conversation(tmp_path):
    bad = batch(order(1), message(2, b"?", handle="broken"))
    stop = MessageRule("Order", "json", "orders", ORDER.columns, when_bad="stop")
    with pytest.raises(InstanceError, match="Message 2 of the conversation broken, of the type 'Order', cannot"):
        Sorter(pipeline(tmp_path, stop), QUEUE).sort(bad, NOON)
    end = MessageRule("Order", "json", "orders", ORDER.columns, when_bad="end conversation")
    sorted_batch = Sorter(pipeline(tmp_path, end), QUEUE).sort(bad, NOON)
    assert [(failure.conversation_handle, failure.reason) for failure in sorted_batch.failures] == [
        ("broken", "malformed")
    ]
    assert sorted_batch.tables["quarantine"].num_rows == 1


def test_a_batch_lands_once_in_every_table_wherever_it_was_interrupted(tmp_path):
    pipe = pipeline(tmp_path)
    first = batch(order(1), message(2, b"?"))
    written = sort_rows(pipe, QUEUE, "q", iter([first]))
    target(pipe, "bronze").commit(written.files["bronze"], "q", 0)  # then the power failed
    for _ in range(2):
        land(pipe, "q", 0, first)
    land(pipe, "q", 1, batch(order(3)))
    assert sorted(row["queuing_order"] for row in table(pipe, "bronze")) == [1, 2, 3]
    assert sorted(row["id"] for row in table(pipe, "orders")) == [1, 3]
    assert len(table(pipe, "quarantine")) == 1


def test_messages_that_come_again_under_another_query_are_known(tmp_path):
    pipe = pipeline(tmp_path)
    for number in range(4):
        land(pipe, "lost", number, batch(*(order(10 * number + n) for n in range(10))))
    land(pipe, "new", 0, batch(*(order(n) for n in range(25))))
    land(pipe, "new", 1, batch(*(order(n) for n in range(25, 60))))
    for name in ("orders", "bronze"):
        column = "id" if name == "orders" else "queuing_order"
        assert sorted(row[column] for row in table(pipe, name)) == list(range(60))


def test_messages_that_were_moved_while_nothing_ran_are_known(tmp_path):
    """MOVE CONVERSATION gives landed, unacknowledged messages new positions behind all others."""
    pipe = pipeline(tmp_path)
    land(pipe, "q", 0, batch(*(order(n, minutes=n) for n in range(4)), order(4, handle="other", minutes=4)))
    moved = [message(10 + n, b'{"id": %d}' % n, number=n, minutes=n) for n in range(1, 4)]
    land(pipe, "q", 1, batch(*moved, order(20, minutes=9), order(21, handle="other", minutes=9)))
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1, 2, 3, 4, 20, 21]


def test_messages_that_come_again_under_another_name_of_their_queue_are_known(tmp_path):
    """Landed, unacknowledged messages are still in the queue, to which the pipeline file gives another name."""
    orders = [order(n, minutes=n) for n in range(4)]
    land(pipeline(tmp_path), "q", 0, batch(*orders[:3], message(9, b"?", minutes=3)))
    named = QueueRule("./data", "Shop", "Stock", "another name")
    pipe = replace(pipeline(tmp_path), queues=(named,))
    rows = batch(*orders, message(9, b"?", minutes=3))
    commit_results(pipe, named, [sort_rows(pipe, named, "r", iter([rows]))], 0)
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1, 2, 3]
    assert len(table(pipe, "bronze")) == 5
    assert len(table(pipe, "quarantine")) == 1


def test_a_moved_message_is_known_in_a_file_whose_times_are_told_in_milliseconds(tmp_path):
    """Delta's compaction truncates times to milliseconds in its statistics."""
    pipe = pipeline(tmp_path)
    for number in range(2):
        land(pipe, "q", number, batch(order(number, minutes=number + 0.000_01)))
    compact(pipe, 0)
    land(pipe, "q", 2, batch(message(9, b'{"id": 1}', number=1, minutes=1.000_01)))
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1]


def test_files_of_the_pipelines_other_queues_are_not_looked_at(tmp_path, monkeypatch):
    """Files of other queues hold no message of this one, whatever their positions and times are."""
    other_rule = QueueRule("./data", "Shop", "Other")
    pipe = replace(pipeline(tmp_path), queues=(QUEUE, other_rule))
    looked = []
    monkeypatch.setattr(target_module, "read_columns", lambda table, file, names: looked.append(file))
    land(pipe, "q", 0, batch(order(1)))
    commit_results(pipe, other_rule, [sort_rows(pipe, other_rule, "r", iter([batch(order(1, handle="other"))]))], 0)
    assert looked == []
    assert len(table(pipe, "orders")) == 2


def test_another_conversation_with_the_same_places_is_no_replay(tmp_path):
    pipe = pipeline(tmp_path)
    land(pipe, "q", 0, batch(order(1, handle="a"), order(2, handle="a")))
    land(pipe, "r", 0, batch(order(1, handle="b"), order(2, handle="b")))
    assert len(table(pipe, "orders")) == 4


def test_a_table_is_divided_and_every_reader_finds_the_values(tmp_path):
    rule = MessageRule("Order", "json", "orders", ORDER.columns, partition_by=("note", "_date"))
    pipe = pipeline(tmp_path, rule)
    land(
        pipe,
        "q",
        0,
        batch(order(1, note="a"), order(2, note="b"), order(3, note="a", minutes=24 * 60), order(4, note=None)),
    )
    land(pipe, "r", 0, batch(order(1, note="a"), order(5, note="ä/=%")))
    rows = {row["id"]: (row["note"], row["_date"].day) for row in table(pipe, "orders")}
    assert rows == {1: ("a", 2), 2: ("b", 2), 3: ("a", 3), 4: (None, 2), 5: ("ä/=%", 2)}
    found = DeltaTable(pipe.folder("orders")).to_pyarrow_table(filters=[("note", "=", "a")])
    assert sorted(found["id"].to_pylist()) == [1, 3]


def test_zero_and_minus_zero_divide_a_table_and_double_no_row(tmp_path):
    columns = (Column("id", "long"), Column("weight", "double"))
    pipe = pipeline(tmp_path, MessageRule("Order", "json", "orders", columns, ("weight",)))
    bodies = ["0.0", "-0.0", "1.5", "0.0"]
    land(pipe, "q", 0, batch(*(message(i, b'{"id":%d,"weight":%b}' % (i, w.encode())) for i, w in enumerate(bodies))))
    assert sorted((row["id"], str(row["weight"])) for row in table(pipe, "orders")) == list(enumerate(bodies))


def test_an_empty_text_that_divides_a_table_is_found_again_by_its_key(tmp_path):
    pipe = pipeline(tmp_path, MessageRule("Order", "json", "orders", (Column("city", "string"),), ("city",), ("city",)))
    for number in range(3):
        rows = message(number, b'{"city":""}'), message(number + 9, b'{"city":"x"}', handle="x")
        land(pipe, "q", number, batch(*rows))
    found = [(row["city"], row["_queuing_order"]) for row in table(pipe, "orders")]
    assert sorted(found, key=str) == [("x", 11), (None, 2)]


def test_a_key_keeps_the_newest_row(tmp_path):
    rule = MessageRule("Order", "json", "orders", ORDER.columns, key=("id",))
    pipe = pipeline(tmp_path, rule)
    land(pipe, "q", 0, batch(order(1, key=7, note="old"), order(2, key=7, note="new"), order(3, key=8, note="x")))
    land(pipe, "q", 1, batch(order(4, key=8, note="y"), order(5, key=9, note="z")))
    land(pipe, "q", 1, batch(order(4, key=8, note="y"), order(5, key=9, note="z")))
    land(pipe, "late", 0, batch(order(1, key=7, note="old"), order(3, key=8, note="x")))
    assert {row["id"]: row["note"] for row in table(pipe, "orders")} == {7: "new", 8: "y", 9: "z"}
    assert not list((pipe.folder("orders") / "_staged").iterdir())


def test_a_clock_that_goes_back_keeps_no_later_message_of_its_queue_out(tmp_path):
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",)))
    early, late = order(100, key=7, note="old", minutes=5), order(200, key=7, note="new")
    other_order = order(201, key=7, note="newer", minutes=1, handle="other")
    land(pipe, "q", 0, batch(early, order(101, key=8, note="old", minutes=5), order(102, key=8, note="new")))
    land(pipe, "q", 1, batch(late))
    assert {row["id"]: row["note"] for row in table(pipe, "orders")} == {7: "new", 8: "new"}
    land(pipe, "q", 2, batch(other_order))
    assert {row["id"]: row["note"] for row in table(pipe, "orders")} == {7: "newer", 8: "new"}
    for number, again in enumerate((early, late, other_order)):  # a lost checkpoint brings an archive again
        land(pipe, "new", number, batch(again))
    assert {row["id"]: row["note"] for row in table(pipe, "orders")} == {7: "newer", 8: "new"}


def test_a_queue_that_was_made_anew_under_its_name_goes_on_with_its_keys(tmp_path):
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",)))
    land(pipe, "q", 0, batch(order(100, key=7, note="old")))
    land(pipe, "new", 0, batch(order(1, key=7, note="new", minutes=1, handle="new")))
    assert [row["note"] for row in table(pipe, "orders")] == ["new"]


@pytest.mark.parametrize("key", [(), ("id",)], ids=["no key", "key"])
@pytest.mark.parametrize("character", "\u2028\u2029\u0085\v\f\x1e", ids=ascii)
def test_a_character_that_ends_a_line_of_text_ends_none_of_the_log(tmp_path, key, character):
    """Delta's log holds column values without escapes."""
    pipe = pipeline(tmp_path, replace(ORDER, key=key))
    for _ in range(2):  # the second time it has landed
        land(pipe, "q", 0, batch(order(1, note=f"a{character}b")))
    land(pipe, "q", 1, batch(order(2, note="c")))
    assert {row["note"] for row in table(pipe, "orders")} == {f"a{character}b", "c"}


def test_readable_messages_are_written_after_an_interrupted_batch(tmp_path, monkeypatch):
    """The rule is corrected after a batch that was interrupted behind its first table, before the retry."""
    rows = batch(order(1, note="x" * 100), order(2, note="y"))
    strict = pipeline(tmp_path, replace(ORDER, maximum_body=50), bronze="", unconfigured="quarantine")
    landing = []

    def lose_power(pipe, table):
        landing.append(table)
        if len(landing) == 4:  # both are written, and one has landed
            raise OSError("cut")
        return target(pipe, table)

    with monkeypatch.context() as patch:
        patch.setattr("servicebroker.pipeline.sinks.warehouse.target", lose_power)
        with pytest.raises(OSError, match="cut"):
            land(strict, "q", 0, rows)
    pipe = pipeline(tmp_path, ORDER, bronze="", unconfigured="quarantine")
    land(pipe, "q", 0, rows)
    ids = [row["id"] for row in table(pipe, "orders")]
    assert sorted(ids) == [1, 2]
    assert len(table(pipe, "quarantine")) == 1


def cut_behind(pipe, name, rows):
    """Land the batch in one of its tables; then the power fails."""
    written = sort_rows(pipe, QUEUE, "q", iter([rows]))
    target(pipe, name).commit(written.files[name], "q", 0)


def found_in(pipe, name):
    """Return the rows of a pipeline's table in any format; none if there is no table yet."""
    if pipe.format == "parquet":
        return pq.read_table(pipe.folder(name)).to_pylist() if pipe.folder(name).exists() else []
    return table(pipe, name) if DeltaTable.is_deltatable(str(pipe.folder(name))) else []


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_messages_unreadable_after_an_interrupted_batch_are_quarantined(tmp_path, kind):
    """The rule becomes stricter after a batch that was interrupted behind quarantine."""
    more = {"format": kind, "bronze": "", "unconfigured": "quarantine"}
    rows = batch(order(1), message(2, b"?"), order(3))
    cut_behind(pipeline(tmp_path, ORDER, **more), "quarantine", rows)
    strict = pipeline(tmp_path, replace(ORDER, columns=(Column("id", "string"),)), **more)
    for _ in range(2):
        land(strict, "q", 0, rows)
    land(strict, "q", 1, batch(message(4, b"?")))
    assert found_in(strict, "orders") == []
    assert sorted(row["queuing_order"] for row in found_in(strict, "quarantine")) == [1, 2, 3, 4]


def test_rows_written_before_an_interruption_stay_in_their_table(tmp_path):
    """The rule changes after a batch that was interrupted behind its own table: landed rows stay there."""
    more = {"bronze": "", "unconfigured": "quarantine"}
    rows = batch(order(1), message(2, b"?"), order(3))
    loose, strict = pipeline(tmp_path, ORDER, **more), pipeline(tmp_path, replace(ORDER, maximum_body=1), **more)
    for name in ("quarantine", "orders"):
        cut_behind(loose, name, rows)
    land(strict, "q", 0, rows)
    assert sorted(row["id"] for row in table(strict, "orders")) == [1, 3]
    assert sorted(row["queuing_order"] for row in table(strict, "quarantine")) == [1, 2, 3]
    assert replay(loose) == [("Order", 2, 1)]
    assert sorted(row["id"] for row in table(loose, "orders")) == [1, 3]


def test_a_rule_that_is_mended_behind_its_table_leaves_the_message_in_quarantine(tmp_path):
    more = {"bronze": "", "unconfigured": "quarantine"}
    rows = batch(order(1), order(2, note="x" * 100))
    strict, loose = pipeline(tmp_path, replace(ORDER, maximum_body=50), **more), pipeline(tmp_path, ORDER, **more)
    for name in ("quarantine", "orders"):
        cut_behind(strict, name, rows)
    land(loose, "q", 0, rows)
    assert [row["id"] for row in table(loose, "orders")] == [1]
    assert replay(loose) == [("Order", 1, 0)]
    assert sorted(row["id"] for row in table(loose, "orders")) == [1, 2]


def test_queues_that_land_at_the_same_time_all_land(tmp_path):
    rule = replace(ORDER, key=("id",))
    pipe = pipeline(tmp_path, rule)
    target(pipe, "orders").create_or_extend()
    together, failed = threading.Barrier(3), []

    def go(query):
        together.wait()
        try:
            for number in range(4):
                land(pipe, f"query {query}", number, batch(order(10 * query + number, handle=f"h{query}")))
        except Exception as problem:
            failed.append(problem)

    threads = [threading.Thread(target=go, args=(query,)) for query in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert len(table(pipe, "bronze")) == 12


def test_written_rows_are_on_disk_before_the_acknowledgement(tmp_path, monkeypatch):
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",), partition_by=("note",)), bronze="", unconfigured="quarantine")
    folder = pipe.folder("orders")
    flushed, fsync = [], os.fsync

    def flush_and_record(descriptor):
        flushed.append((os.fstat(descriptor).st_ino, any(folder.glob("_staged/*"))))
        fsync(descriptor)

    def check():
        """Check the order of fsync: files and folders, then the entry that names them, then the staged rows."""
        known = DeltaTable(folder)
        entry = folder / "_delta_log" / f"{known.version():020}.json"
        places = {inode: index for index, (inode, staged) in enumerate(flushed) if staged}
        files = [folder / file.name for file in files_of(known)]
        assert len(files) > 1
        for path in [*files, *(file.parent for file in files), folder]:
            assert places[path.stat().st_ino] < places[entry.stat().st_ino]
        assert entry.parent.stat().st_ino in places
        assert not any(folder.glob("_staged/*"))
        flushed.clear()

    monkeypatch.setattr(os, "fsync", flush_and_record)
    land(pipe, "q", 0, batch(order(1, note="a"), order(2, note="b")))
    check()
    land(pipe, "q", 1, batch(order(3, key=1, note="c"), order(4, key=2, note="d")))
    check()
    # the progress of the first is unknown
    land(pipe, "q", 1, batch(order(3, key=1, note="c"), order(4, key=2, note="d")))
    check()


def test_another_table_in_the_same_place_is_refused(tmp_path):
    land(pipeline(tmp_path), "q", 0, batch(order(1)))
    other_rule = MessageRule("Order", "json", "orders", (Column("other", "long", source="id"),))
    with pytest.raises(InstanceError, match="'other' is new in the table"):
        target(pipeline(tmp_path, other_rule), "orders").create_or_extend()
    divided = MessageRule("Order", "json", "orders", ORDER.columns, partition_by=("_date",))
    with pytest.raises(InstanceError, match="partitioned by nothing, not by _date"):
        target(pipeline(tmp_path, divided), "orders").create_or_extend()


def test_parquet_files_that_have_landed_stay_when_their_batch_comes_again_with_less(tmp_path):
    """A bad message can end its conversation, whose rows leave the queue before Spark commits the batch."""
    pipe = pipeline(tmp_path, format="parquet")
    land(pipe, "q", 0, batch(*(order(number, handle="h") for number in range(100)), message(100, b"?", handle="bad")))
    land(pipe, "q", 0, batch(*(order(number, handle="h") for number in range(30))))
    for name, count in {"bronze": 101, "orders": 100, "quarantine": 1}.items():
        (file,) = pipe.folder(name).glob("*.parquet")
        assert pq.read_table(file).num_rows == count
        assert not list((pipe.folder(name) / "_staged").iterdir())


def test_a_batch_of_parquet_files_that_was_cut_off_lands_whole(tmp_path, monkeypatch):
    pipe = pipeline(tmp_path, format="parquet")
    monkeypatch.setattr("servicebroker.pipeline.sinks.warehouse.MAX_BUFFERED_BYTES", 1)  # a file for each part
    parts = [batch(order(number)) for number in range(3)]

    def move_or_lose_power(folder, name, new):
        if "-0002-" in new:
            raise OSError("the power went")
        move(folder, name, new)

    with monkeypatch.context() as patched:
        patched.setattr(target_module, "move", move_or_lose_power)
        with pytest.raises(OSError, match="the power went"):
            land(pipe, "q", 0, *parts)
    land(pipe, "q", 0, *parts)
    for name in ("bronze", "orders"):
        files = list(pipe.folder(name).glob("*.parquet"))
        assert sum(pq.read_table(file).num_rows for file in files) == len(files) == 3


def test_parquet_files_are_those_of_their_batch_when_it_comes_again(tmp_path):
    pipe = pipeline(tmp_path, format="parquet")
    for _ in range(2):
        land(pipe, "q", 0, batch(order(1), order(2)), batch(order(3)))
        land(pipe, "q", 1, batch(order(4)))
    files = sorted(pipe.folder("orders").glob("*.parquet"))
    assert len(files) == 2
    assert sorted(row["id"] for file in files for row in pq.read_table(file).to_pylist()) == [1, 2, 3, 4]
    rows = duckdb.sql(f"select id from '{pipe.folder('orders')}/*.parquet' order by 1").fetchall()
    assert rows == [(1,), (2,), (3,), (4,)]
