"""Tables whose rule changes: allowed and refused changes, and the content afterwards. No Spark, no server."""

from dataclasses import replace
from decimal import Decimal

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("fastavro")

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from pipeline_tables import ORDER, batch, land, message, order, pipeline, table
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import QueueRule
from servicebroker.pipeline.rebuild import rebuild
from servicebroker.pipeline.sinks import target as target_module
from servicebroker.pipeline.sinks.delta import DeltaVersion
from servicebroker.pipeline.sinks.evolution import plan_change
from servicebroker.pipeline.sinks.maintenance import compact, replay
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows
from table_histories import History, InDelta

LONG, TEXT = pa.int64(), pa.string()


def with_columns(tmp_path, *columns, **more):
    return pipeline(tmp_path, replace(ORDER, columns=columns, **more))


def body(number, text, **more):
    return message(number, text.encode(), **more)


@pytest.mark.parametrize(
    ("there", "expected", "complaint"),
    [
        (pa.field("x", pa.int64()), pa.field("x", pa.int32()), "'x' of the table 't' is long and cannot be"),
        (pa.field("x", pa.int64()), pa.field("x", pa.string()), "is long and cannot become string"),
        (pa.field("x", pa.decimal128(9, 2)), pa.field("x", pa.decimal128(9, 3)), r"decimal\(9,2\) and cannot"),
        (pa.field("x", pa.decimal128(9, 2)), pa.field("x", pa.decimal128(8, 2)), r"become decimal\(8,2\)"),
        (pa.field("x", pa.list_(pa.int64())), pa.field("x", pa.string()), "is array<"),
        (pa.field("X", pa.int64()), pa.field("x", pa.int64()), "a column 'X', which differs from 'x' only in case"),
        (pa.field("y", pa.int64()), pa.field("x", pa.int64()), """'x' is new.+whose rows have no value.+"long\\?\""""),
        (pa.field("y", pa.int64(), nullable=False), pa.field("o", pa.int64()), "'y' of the table 't' must not be null"),
    ],
)  # fmt: skip
def test_an_impossible_schema_change_names_the_column(there, expected, complaint):
    with pytest.raises(InstanceError, match=complaint):
        plan_change("t", pa.schema([there]), pa.schema([expected]), {"o"}, has_rows=True)


def test_a_plan_lists_its_changes():
    there = pa.schema([("id", pa.int32()), ("left", TEXT), ("f", pa.float32()), ("d", pa.decimal128(5, 2))])
    expected = pa.schema([("note", TEXT), ("d", pa.decimal128(7, 3)), ("id", LONG), ("f", pa.float64())])
    plan = plan_change("t", there, expected, {"note"}, has_rows=True)
    assert plan.sentences() == [
        "gets the column note (string)",
        "gets its column d as decimal(7,3), which is decimal(5,2)",
        "gets its column id as long, which is integer",
        "gets its column f as double, which is float",
    ]
    assert not plan_change("t", there, there, (), has_rows=True)
    assert plan_change("t", there, pa.schema([("id", TEXT), ("new", LONG)]), (), has_rows=False)


def test_a_column_is_added_and_one_that_left_stays(tmp_path):
    land(with_columns(tmp_path, Column("id", "long"), Column("old", "string", True)), "q", 0,
         batch(body(1, '{"id": 1, "old": "x", "new": 7}')))  # fmt: skip
    after = with_columns(tmp_path, Column("new", "long", True), Column("id", "long"))
    assert target(after, "orders").plan_schema_change().sentences() == ["gets the column new (long)"]
    assert len(DeltaTable(after.folder("orders")).schema().fields) == 8  # reading changes nothing
    land(after, "q", 1, batch(body(2, '{"id": 2, "old": "y", "new": 8}')))
    assert [
        (row["id"], row["old"], row["new"]) for row in sorted(table(after, "orders"), key=lambda row: row["id"])
    ] == [
        (1, "x", None),
        (2, None, 8),
    ]
    land(after, "q", 1, batch(body(2, '{"id": 2}')))  # has landed
    assert len(table(after, "orders")) == 2


def test_a_widened_table_is_one_new_version_and_knows_its_batches(tmp_path):
    before = with_columns(tmp_path, Column("id", "integer"), Column("price", "decimal(5,2)", True))
    for number in range(3):
        land(before, "q", number, batch(body(number, f'{{"id": {number}, "price": 1.10}}')))
    version = DeltaTable(before.folder("orders")).version()
    after = with_columns(tmp_path, Column("id", "long"), Column("price", "decimal(9,4)", True))
    target(after, "orders").create_or_extend()
    delta_table = DeltaTable(after.folder("orders"))
    assert (delta_table.version(), delta_table.transaction_version("q")) == (version + 1, 2)
    land(after, "q", 2, batch(body(2, '{"id": 2, "price": 1.10}')))
    land(after, "q", 3, batch(body(3, f'{{"id": {2**40}, "price": 0.0001}}')))
    assert sorted((row["id"], row["price"]) for row in table(after, "orders")) == [
        *((number, Decimal("1.10")) for number in range(3)),
        (2**40, Decimal("0.0001")),
    ]
    old = DeltaTable(after.folder("orders"), version=version).to_pyarrow_table()
    assert (old.schema.field("id").type, old.num_rows) == (pa.int32(), 3)


def test_a_batch_beside_a_change_of_the_table_is_refused_or_waits(tmp_path, monkeypatch):
    """Files that were written for one definition are never added to a table with another."""
    before = with_columns(tmp_path, Column("id", "integer"))
    land(before, "q", 0, batch(body(0, '{"id": 0}')))
    after = with_columns(tmp_path, Column("id", "long"))
    known = target_module._remove_known_messages

    def change_concurrently(into, there, files):
        target(after, "orders").create_or_extend()
        return known(into, there, files)

    monkeypatch.setattr(target_module, "_remove_known_messages", change_concurrently)
    with pytest.raises(InstanceError, match=r"'id' of the table .+ is long and cannot become integer"):
        land(before, "q", 1, batch(body(1, '{"id": 1}')))
    monkeypatch.undo()
    land(after, "q", 1, batch(body(1, '{"id": 1}')))
    assert sorted(row["id"] for row in table(after, "orders")) == [0, 1]


def test_columns_of_other_programs_are_kept(tmp_path):
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",)))
    land(pipe, "q", 0, batch(order(1, key=1), order(2, key=2)))
    delta_table = DeltaTable(pipe.folder("orders"))
    delta_table.alter.add_columns([Field("theirs", PrimitiveType("string"))])
    delta_table.update(updates={"theirs": "'x'"}, predicate="id = 1")
    gone = pipeline(tmp_path, replace(ORDER, key=("id",), columns=(Column("id", "long"),)))
    land(gone, "q", 1, batch(order(3, key=1), order(4, key=3)))
    rows = {row["id"]: (row["theirs"], row["note"]) for row in table(gone, "orders")}
    assert rows == {1: ("x", None), 2: (None, "n"), 3: (None, None)}


def test_a_foreign_table_is_used_if_it_fits(tmp_path):
    pipe = pipeline(tmp_path, bronze="", unconfigured="quarantine")
    write_deltalake(pipe.folder("orders"), pa.table({"ID": pa.array([1])}))
    with pytest.raises(InstanceError, match="'ID'"):
        target(pipe, "orders").create_or_extend()


def test_quarantine_is_read_into_the_new_shape(tmp_path):
    before = with_columns(tmp_path, Column("id", "integer"))
    land(before, "q", 0, batch(body(1, '{"id": 1}'), body(2, f'{{"id": {2**40}, "note": "n"}}')))
    after = with_columns(tmp_path, Column("id", "long"), Column("note", "string", True))
    assert replay(after) == [("Order", 1, 0)]
    assert {row["id"]: row["note"] for row in table(after, "orders")} == {1: None, 2**40: "n"}


def test_a_table_is_made_anew_from_bronze(tmp_path):
    before = with_columns(tmp_path, Column("id", "long"), Column("note", "string", True))
    land(before, "q", 4, batch(order(1), order(2), body(3, '{"id": "x"}'), body(4, '{"id": 4}')))
    compact(before, 168)
    after = with_columns(tmp_path, Column("number", "string", source="id"))
    with pytest.raises(InstanceError, match="'number' is new"):
        target(after, "orders").create_or_extend()
    version = DeltaTable(after.folder("orders")).version()
    assert rebuild(after, "orders") == ("orders", 1, 3)
    delta_table = DeltaTable(after.folder("orders"), version=version + 1)
    assert (delta_table.count(), delta_table.transaction_version("q")) == (1, 4)
    assert [(row["number"], row["_queuing_order"]) for row in table(after, "orders")] == [("x", 3)]
    assert "note" not in [column.name for column in delta_table.schema().fields]
    assert sorted(row["queuing_order"] for row in table(after, "quarantine")) == [1, 2, 4]
    land(after, "q", 4, batch(order(1)))  # has landed
    assert rebuild(before, "orders") == ("orders", 3, 1)
    assert {row["id"]: row["note"] for row in table(before, "orders")} == {1: "n", 2: "n", 4: None}
    assert [row["queuing_order"] for row in table(before, "quarantine")] == [3]


def moved_order(number, place, **more):
    """Return an order that MOVE CONVERSATION has given another position after it had landed."""
    return message(place, b'{"id": %d, "note": "n"}' % number, number=number, **more)


def test_a_message_that_bronze_has_twice_is_there_once_in_a_table_made_anew(tmp_path):
    pipe = pipeline(tmp_path)
    land(pipe, "q", 0, batch(*(order(n) for n in range(4))))
    land(pipe, "q", 1, batch(*(moved_order(n, 10 + n) for n in range(1, 4)), order(20)))
    assert len(table(pipe, "bronze")) == 8
    for _ in range(2):
        assert rebuild(pipe, "orders") == ("orders", 5, 0)
        assert sorted(row["_queuing_order"] for row in table(pipe, "orders")) == [0, 1, 2, 3, 20]
        compact(pipe, 0)
    strict = pipeline(tmp_path, replace(ORDER, maximum_body=1))
    assert rebuild(strict, "orders") == ("orders", 0, 5)
    assert sorted(row["queuing_order"] for row in table(strict, "quarantine")) == [0, 1, 2, 3, 20]


def test_the_last_place_of_a_duplicate_bronze_message_counts_for_a_key(tmp_path):
    """The result is the same as when they landed: the moved message came last."""
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",)))
    land(pipe, "q", 0, batch(order(1, key=7, note="n"), order(2, key=7, note="other", handle="other")))
    land(pipe, "q", 1, batch(message(11, b'{"id": 7, "note": "n"}', number=1)))
    for _ in range(2):
        assert [(row["note"], row["_queuing_order"]) for row in table(pipe, "orders")] == [("n", 11)]
        assert rebuild(pipe, "orders") == ("orders", 1, 0)


def test_a_queue_that_was_made_anew_under_another_name_loses_to_no_older_row(tmp_path):
    """Positions restart in a recreated queue, so time decides between two names, also within one file."""
    rule = replace(ORDER, key=("id",))
    strict = pipeline(tmp_path, replace(rule, maximum_body=30))
    land(strict, "q", 0, batch(order(999, key=7, note="x"), order(1000, key=7, note="quarantined" * 3, minutes=1)))
    anew = QueueRule("./data", "Shop", "Stock", "anew")
    pipe = replace(pipeline(tmp_path, rule), queues=(anew,))
    rows = batch(order(1, key=7, note="new", minutes=60, handle="new"))
    commit_results(pipe, anew, [sort_rows(pipe, anew, "r", iter([rows]))], 0)
    assert replay(pipe) == [("Order", 1, 0)]
    assert [row["note"] for row in table(pipe, "orders")] == ["new"]
    compact(pipe, 0)
    assert rebuild(pipe, "orders") == ("orders", 1, 0)
    assert [row["note"] for row in table(pipe, "orders")] == ["new"]


def test_a_batch_that_lands_beside_a_rebuild_is_there_once(tmp_path, monkeypatch):
    pipe = pipeline(tmp_path)
    land(pipe, "q", 0, batch(order(1)))
    become, numbers = DeltaVersion.replace_content, iter(range(2))

    def land_concurrently(*arguments):
        number = next(numbers, None)
        if number is not None:
            land(pipe, "q", 1 + number, batch(order(10 + number)))
        become(*arguments)

    monkeypatch.setattr(DeltaVersion, "replace_content", land_concurrently)
    assert rebuild(pipe, "orders").rows == 3
    assert sorted(row["id"] for row in table(pipe, "orders")) == [1, 10, 11]


def test_an_impossible_rebuild_is_refused_and_changes_nothing(tmp_path):
    pipe = pipeline(tmp_path, bronze="", unconfigured="quarantine")
    land(pipe, "q", 0, batch(order(1), order(2)))
    with pytest.raises(InstanceError, match="from the bronze table"):
        rebuild(pipe, "orders")
    late = pipeline(tmp_path)
    with pytest.raises(InstanceError, match="There is no bronze table yet"):
        rebuild(late, "orders")
    land(late, "q", 1, batch(order(3)))
    with pytest.raises(InstanceError, match="has 2 rows of messages that bronze does not hold"):
        rebuild(late, "orders")
    assert len(table(late, "orders")) == 3
    with pytest.raises(InstanceError, match="No rule of the pipeline 'test' has a table 'bronze'"):
        rebuild(late, "bronze")


def test_random_histories_of_rules_end_as_the_model_says(seeded_random, tmp_path, request):
    for number in range(request.config.option.table_histories):
        folder = tmp_path / str(number)
        history = History(seeded_random, folder, InDelta(folder))
        try:
            history.run(12)
        except BaseException as problem:
            problem.add_note(f"history {number}, {history.partition_by}, {history.model}: {history.told}")
            raise
