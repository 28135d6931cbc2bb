"""Messages that delete the row of their key: which ones do, and that no order of landing brings it back. No Spark."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("fastavro")

from pipeline_tables import QUEUE, batch, land, message, pipeline, table
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.deletes import DeleteRule
from servicebroker.pipeline.late_rules import find_late
from servicebroker.pipeline.late_rules import replay as replay_late
from servicebroker.pipeline.rebuild import rebuild
from servicebroker.pipeline.rules.trial import try_message
from servicebroker.pipeline.sinks import target as sink
from servicebroker.pipeline.sinks.delta import DeltaLocation
from servicebroker.pipeline.sinks.maintenance import replay
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows

ID, NAME = Column("id", "long"), Column("name", "string")
CUSTOMER = MessageRule(
    "Customer", "json", "customers", (ID, NAME), key=("id",), delete=DeleteRule("field", "op", ("d",))
)
ERASED = MessageRule("Erased", "json", "customers", (ID,), delete=DeleteRule("always"))
OTHER = QueueRule("./data", "Shop", "Other")


def customer(place, key=7, name=None, **more):
    body = {"id": key, "op": "d"} if name is None else {"id": key, "name": name}
    return message(place, json.dumps(body).encode(), "Customer", **{"minutes": place, **more})


def erase_message(place, key=7, **more):
    return message(place, json.dumps({"id": key}).encode(), "Erased", **{"minutes": place, **more})


def land_other(pipe, query, number, *messages):
    commit_results(pipe, OTHER, [sort_rows(pipe, OTHER, query, iter([batch(*messages)]))], number)


def names_by_id(pipe, name="customers"):
    return {row["id"]: row.get("name") for row in table(pipe, name)}


@pytest.fixture
def pipe(tmp_path):
    return replace(pipeline(tmp_path, CUSTOMER, ERASED), queues=(QUEUE, OTHER))


AVRO = (
    b'{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, {"name": "gone", "type": "boolean"}]}'
)


@pytest.mark.parametrize(
    ("changes", "deletes", "keeps"),
    [
        ({}, {"op": "d", "id": 1}, {"op": "u", "id": 1, "name": "a"}),
        ({"refuse_extra": True}, {"op": "d", "id": 1, "x": 2}, {"id": 1, "name": "a"}),
        ({"delete": DeleteRule("field", "m.no", ("true",))}, {"m": {"no": True}, "id": 1}, {"id": 1, "name": "true"}),
        ({"delete": DeleteRule("field", "op", ("3", "4"))}, {"op": 4, "id": 1}, {"op": 5, "id": 1, "name": "a"}),
        (
            {"delete": DeleteRule("field", "op", ("d",), {"id": "before.id"})},
            {"op": "d", "before": {"id": 1}, "after": None},
            {"op": "u", "before": {"id": 2}, "id": 1, "name": "a"},
        ),
        (
            {"format": "xml", "delete": DeleteRule("field", "@op", ("d",))},
            b'<c op="d"><id>1</id></c>',
            b'<c op="u"><id>1</id><name>a</name></c>',
        ),
        (
            {"format": "avro", "schema": AVRO, "columns": (), "delete": DeleteRule("field", "gone", ("true",))},
            b"\x02\x01",
            b"\x02\x00",
        ),
        ({"delete": DeleteRule("empty"), "key": ("_conversation_handle",)}, b"", {"id": 1, "name": "a"}),
    ],
)  # fmt: skip
def test_a_message_deletes_or_becomes_a_row(tmp_path, changes, deletes, keeps):
    pipe = pipeline(tmp_path, replace(CUSTOMER, **changes))
    assert Pipeline.from_text(pipe.to_text()) == pipe
    deleted, kept = try_message(pipe, "Customer", deletes), try_message(pipe, "Customer", keeps)
    key = {"_conversation_handle": "00000000-0000-0000-0000-000000000000"} if deletes == b"" else {"id": 1}
    assert (deleted.table, deleted.row, deleted.deleted) == ("customers", None, key)
    assert (kept.table, kept.row["id"], kept.deleted) == ("customers", 1, None)


def test_a_delete_without_a_key_is_in_quarantine_and_deletes_once_it_can_be_read(pipe):
    assert try_message(pipe, "Customer", {"op": "d"}).reason == "missing field"
    assert try_message(pipe, "Erased", b"?").reason == "malformed"
    land(pipe, "q", 0, batch(customer(1, name="a"), message(2, b'{"op": "d", "old": 7}', "Customer", minutes=2)))
    mended = replace(CUSTOMER, delete=DeleteRule("field", "op", ("d",), {"id": "old"}))
    assert replay(replace(pipe, messages=(mended,))) == [("Customer", 1, 0)]
    assert (names_by_id(pipe), len(table(pipe, "bronze"))) == ({}, 2)


def test_the_newest_message_of_a_key_decides_within_a_batch(pipe):
    """In whatever order the tasks of a batch had its messages, and also where a clock has gone back."""
    rows = [customer(1, name="a"), customer(2), customer(3, name="b")]
    rows += [customer(4, 8, "x", minutes=9, handle="i"), erase_message(5, 8)]
    land(pipe, "q", 0, batch(*rows[2:]), batch(*rows[:2]))
    assert names_by_id(pipe) == {7: "b"}
    assert sorted(names_by_id(pipe, "customers_tombstones")) == [7, 8]
    land(pipe, "q", 1, batch(erase_message(6)))
    land(pipe, "q", 2, batch(customer(7, name="c"), customer(8, 8, "y")))
    assert names_by_id(pipe) == {7: "c", 8: "y"}


@pytest.mark.parametrize("again", ["late", "lost", "replay", "rebuild"])
def test_an_older_message_does_not_bring_a_deleted_row_back(pipe, again):
    strict = replace(pipe, messages=(replace(CUSTOMER, maximum_body=30), ERASED))
    land(strict, "q", 0, batch(customer(1, name="a"), customer(3, name="long" * 9), erase_message(5)))
    if again == "late":
        land_other(pipe, "r", 0, customer(1, name="late", minutes=4, handle="i"), customer(2, 8, "x", handle="i"))
        assert names_by_id(pipe) == {8: "x"}
        return
    if again == "lost":
        for number, row in enumerate((customer(1, name="a"), customer(3, name="long" * 9), erase_message(5))):
            land(pipe, "new", number, batch(row))
    elif again == "replay":
        assert replay(pipe) == [("Customer", 1, 0), ("Erased", 0, 0)]
    else:
        assert rebuild(pipe, "customers_tombstones") == ("customers", 0, 0)
    assert names_by_id(pipe) == {}


@pytest.mark.parametrize("cut", range(4))
def test_a_batch_that_is_cut_off_deletes_when_it_is_repeated(pipe, monkeypatch, cut):
    land(pipe, "q", 0, batch(customer(1, name="a")))
    commit, left = sink.commit_with_retry, iter([None] * cut)

    def cutting(location, change):
        if location.folder.name.startswith("customers") and next(left, "cut"):
            raise OSError("cut")
        commit(location, change)
        if location.folder.name.startswith("customers") and next(left, "cut"):
            raise OSError("cut")

    monkeypatch.setattr(sink, "commit_with_retry", cutting)
    with pytest.raises(OSError, match="cut"):
        land(pipe, "q", 1, batch(customer(5), customer(6, 8, "x")))
    monkeypatch.undo()
    land_other(pipe, "r", 0, customer(1, name="older", minutes=2, handle="i"))
    land(pipe, "q", 1, batch(customer(5), customer(6, 8, "x")))
    assert names_by_id(pipe) == {8: "x"}


@pytest.mark.parametrize("moment", range(4))
def test_a_delete_that_lands_beside_an_older_row_removes_it(pipe, monkeypatch, moment):
    """Another queue deletes the key before each time that a batch opens a table."""
    land(pipe, "q", 0, batch(customer(1, 8, "x")))
    opened, left = DeltaLocation.open_or_create, iter(range(moment + 1))

    def open_or_create(location, *arguments):
        if location.folder.name.startswith("customers") and next(left, None) == moment:
            land(pipe, "q", 1, batch(customer(5)))
        return opened(location, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLocation, "open_or_create", open_or_create)
        land_other(pipe, "r", 0, customer(1, name="older", minutes=2, handle="i"))
    land(pipe, "q", 1, batch(customer(5)))
    assert names_by_id(pipe) == {8: "x"}


def test_a_conversation_is_a_key_and_its_end_deletes(tmp_path):
    basket = MessageRule("Basket", "json", "baskets", (ID,), key=("_queue", "_conversation_handle"))
    ended = MessageRule(names.END_DIALOG, "binary", "baskets", delete=DeleteRule("always"))
    pipe = replace(pipeline(tmp_path, basket, ended), queues=(QUEUE, OTHER))
    land(pipe, "q", 0, batch(*(message(index, b'{"id": 1}', "Basket", handle) for index, handle in enumerate("abb"))))
    land_other(pipe, "r", 0, message(0, b'{"id": 1}', "Basket", "c"))
    land(pipe, "q", 1, batch(message(4, None, names.END_DIALOG, "b")))
    land_other(pipe, "r", 1, message(1, None, names.END_DIALOG, "c"))
    assert [(row["_queue"], row["_conversation_handle"]) for row in table(pipe, "baskets")] == [("Shop.Stock", "a")]
    assert len(table(pipe, "baskets_tombstones")) == 2
    assert rebuild(pipe, "baskets").rows == 1


def test_late_rules_of_a_table_are_replayed_together(pipe):
    without = replace(pipe, messages=())
    land(
        without, "q", 0, batch(customer(1, name="a"), customer(2, 8, "x"), erase_message(3), message(4, b"?", "Erased"))
    )
    assert find_late(pipe) == [("Customer", "customers", 2), ("Erased", "customers", 2)]
    assert replay_late(pipe, "Erased") == [("Erased", 1, 1)]
    assert names_by_id(pipe) == {8: "x"}
    land(pipe, "q", 1, batch(erase_message(5, 8)))
    assert (names_by_id(pipe), find_late(pipe)) == ({}, [])  # every row is deleted, none is late


def test_a_rebuild_follows_the_rule_and_needs_every_delete(pipe):
    land(pipe, "q", 0, batch(customer(1, name="a"), customer(2), erase_message(3, 8), customer(1, 8, "x", handle="i")))
    assert (names_by_id(pipe), sorted(names_by_id(pipe, "customers_tombstones"))) == ({}, [7, 8])
    without = replace(pipe, messages=(replace(CUSTOMER, delete=None, columns=(ID, NAME._replace(is_optional=True))),))
    assert rebuild(without, "customers").rows == 2
    assert rebuild(pipe, "customers").rows == 0
    undecided = replace(pipe, messages=(replace(CUSTOMER, delete=None), ERASED))
    assert rebuild(undecided, "customers").rows == 1
    assert sorted(names_by_id(pipe, "customers_tombstones")) == [8]
    other_pipe = replace(pipe, bronze="other")
    land(other_pipe, "q", 1, batch(customer(9, 9)))
    with pytest.raises(InstanceError, match="customers_tombstones' has 1 rows of messages that bronze does not hold"):
        rebuild(pipe, "customers")
