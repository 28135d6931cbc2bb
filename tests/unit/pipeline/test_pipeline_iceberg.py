"""Iceberg tables: the same rules as for Delta, checked with other readers than pyiceberg. No Spark, no server."""

import json
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("deltalake")

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from iceberg_tables import CatalogTable, rest_catalog
from pipeline_tables import ORDER, QUEUE, batch, land, message, order, pipeline
from servicebroker.cli.main import EXTRAS
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.analysis import analyze
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import MessageRule
from servicebroker.pipeline.file import parse_pipeline
from servicebroker.pipeline.rebuild import rebuild
from servicebroker.pipeline.sinks import iceberg, iceberg_files, maintenance
from servicebroker.pipeline.sinks.iceberg import catalog
from servicebroker.pipeline.sinks.maintenance import compact, replay
from servicebroker.pipeline.sinks.tables import Conflict
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.sinks.warehouse import sort_rows
from table_histories import History, by_order

STOCK = MessageRule("Stock", "json", "stock", (Column("id", "long"), Column("note", "string", True)), key=("id",))
DAYS = replace(ORDER, message_type="Day", table="days", partition_by=("_date", "note"))
STRICT = replace(ORDER, columns=(Column("id", "long"), Column("note", "string")))


def position_of(row):
    return row.get("_queuing_order", row.get("queuing_order", 0))


class Lake:
    """The tables of one catalog, as other programs read and change them."""

    options: ClassVar = {"format": "iceberg", "catalog": "lake", "namespace": "shop"}
    redivides = False

    def __init__(self, folder):
        self.file = folder / "catalog.db"
        self.others = load_catalog("lake")

    def table(self, name):
        return CatalogTable(self.file, name)

    def version(self, name):
        found = self.table(name)
        return (found.snapshot or -1) if found.is_there else None

    def kinds(self, name):
        return self.table(name).kinds()

    def read(self, name, version=None):
        found = self.table(name)
        return found.in_duckdb(version), found.in_arrow(version)

    def rows(self, name):
        duckdb_rows, arrow_rows = self.read(name)
        by_place = sorted(arrow_rows, key=position_of)
        assert sorted(duckdb_rows, key=position_of) == by_place
        return by_place

    def open(self, name):
        return self.others.load_table(("shop", name))

    def add_column(self, name, column):
        with self.open(name).update_schema() as update:
            update.add_column(column, StringType())

    def fill(self, name, column, least):
        table = self.open(name)
        rows = table.scan(row_filter=f"_queuing_order >= {least}").to_arrow()
        index = rows.schema.get_field_index(column)
        field = rows.schema.field(column)
        filled = rows.set_column(index, field, pa.array(["x"] * rows.num_rows, field.type))
        table.overwrite(filled, overwrite_filter=f"_queuing_order >= {least}")


@pytest.fixture
def make_lake(tmp_path, monkeypatch):
    """Return a function that creates a catalog: SQL in a file, or REST."""

    @contextmanager
    def make_lake(kind="sql", folder=tmp_path):
        folder.mkdir(exist_ok=True)
        for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
            monkeypatch.delenv(name)
        if kind == "rest":
            with rest_catalog(folder) as url:
                yield from make(url, folder)
        else:
            yield from make(f"sqlite:///{folder / 'catalog.db'}", folder)

    def make(url, folder):
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.config", {"catalog": {"lake": {"uri": url}}})
        catalog.cache_clear()
        lake = Lake(folder)
        try:
            yield lake
        finally:
            lake.others.close()
            catalog("lake").close()
            catalog.cache_clear()

    return make_lake


@pytest.fixture
def lake(make_lake):
    with make_lake() as lake:
        yield lake


@pytest.fixture
def make_pipe(tmp_path):
    return lambda *rules, **more: pipeline(tmp_path, *rules, **{**Lake.options, **more})


def body(number, text, **more):
    return message(number, text.encode(), **more)


def stock(number, key, note):
    return message(number, json.dumps({"id": key, "note": note}).encode(), "Stock")


def test_nested_columns_land_and_get_fields(lake, make_pipe):
    def rule(lines):
        columns = (Column("id", "long"), Column("lines", lines, True), Column("rates", "map<string, long>", True))
        return replace(ORDER, columns=columns)

    def order_of(number, **line):
        content = {"id": number, "lines": [line], "rates": {"x": number}}
        return batch(message(number, json.dumps(content).encode()))

    first = make_pipe(rule("array<struct<sku: string>>"))
    land(first, "q", 0, order_of(1, sku="a"))
    second = make_pipe(rule("array<struct<sku: string, qty: long?>>"))
    land(second, "q", 1, order_of(2, sku="b", qty=5))
    land(first, "q", 2, order_of(3, sku="c"))

    def landed_rows():
        rows = lake.table("orders").in_arrow(None)
        return {row["id"]: (row["lines"], dict(row["rates"])) for row in rows}

    found = landed_rows()
    assert found == {
        1: ([{"sku": "a", "qty": None}], {"x": 1}),
        2: ([{"sku": "b", "qty": 5}], {"x": 2}),
        3: ([{"sku": "c", "qty": None}], {"x": 3}),
    }
    compact(second, 0)
    assert landed_rows() == found


@pytest.mark.parametrize("kind", ["sql", "rest"])
def test_a_batch_is_in_every_table_once(make_lake, make_pipe, kind):
    with make_lake(kind) as lake:
        pipe = make_pipe(ORDER, STOCK, DAYS)
        for name in pipe.table_names():
            assert not target(pipe, name).plan_schema_change()
            target(pipe, name).create_or_extend()
        bad = message(2, b'{"id": "x"}')
        first = batch(order(1), bad, stock(3, 1, "old"), stock(4, 2, "b"),
                      *(message(5 + at, json.dumps({"id": at, "note": note}).encode(), "Day", minutes=900 * at)
                        for at, note in enumerate(["", None, "ä"])))  # fmt: skip
        for _ in range(2):  # the second time as after a crash between the commit and Spark's checkpoint
            land(pipe, "q", 0, first)
        land(pipe, "q", 1, batch(stock(8, 1, "new")))
        land(pipe, "lost", 0, first)
        land(pipe, "q", 2, batch(message(9, b'{"id": 1, "note": "n"}', number=1)))  # order(1), which was moved
        assert sorted(row["queuing_order"] for row in lake.rows("bronze")) == [*range(1, 10)]
        assert [(row["id"], row["note"]) for row in lake.rows("orders")] == [(1, "n")]
        assert sorted((row["id"], row["note"]) for row in lake.rows("stock")) == [(1, "new"), (2, "b")]
        assert sorted((row["id"], row["note"]) for row in lake.rows("days")) == [(0, ""), (1, None), (2, "ä")]
        assert len(lake.table("days").files()) == 3
        assert [(row["queuing_order"], row["reason"]) for row in lake.rows("quarantine")] == [(2, "wrong type")]
        assert lake.table("stock").properties["servicebroker.batch.q"] == "1"
        told = {name: maintenance._table_status(pipe, name).rows for name in pipe.table_names()}
        assert told == {"bronze": 9, "orders": 1, "stock": 2, "days": 3, "quarantine": 1}


def test_only_one_of_concurrent_writers_writes_a_batch(lake, make_pipe):
    pipe = make_pipe()
    into = target(pipe, "orders")
    into.create_or_extend()
    for round_ in range(5):
        together, landed = threading.Barrier(3), []

        def go(at=round_, together=together, landed=landed):
            rows = sort_rows(pipe, QUEUE, "q", iter([batch(order(at))])).files["orders"]
            together.wait()
            landed.append(into.commit(rows, "q", at))

        threads = [threading.Thread(target=go) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(landed) == 3
        assert sorted(row["id"] for row in lake.rows("orders")) == list(range(round_ + 1))


def test_a_commit_behind_another_is_refused_and_looks_again(lake, make_pipe):
    """pyiceberg itself must not retry: it would not check the commits in between."""
    pipe = make_pipe()
    into = target(pipe, "orders")
    land(pipe, "q", 0, batch(order(0)))
    writer, second_writer = into.table.open(), into.table.open()
    files = sort_rows(pipe, QUEUE, "q", iter([batch(order(1))])).files["orders"]
    writer.add(files, ("q", 1))
    before = len(list(Path(lake.file.parent, "orders", "metadata").iterdir()))
    for change in (
        lambda: second_writer.add(files, ("q", 1)),
        lambda: second_writer.replace_files(second_writer.files(), []),
        lambda: second_writer.replace_content(second_writer.columns, iter(())),
    ):
        with pytest.raises(Conflict):
            change()
    assert into.table.open().last_batch("q") == 1
    assert [row["id"] for row in lake.rows("orders")] == [0, 1]
    assert len(list(Path(lake.file.parent, "orders", "metadata").iterdir())) == before  # no file is left
    assert "commit.retry.num-retries" not in lake.table("orders").properties


def test_a_slow_writer_of_a_batch_without_files_does_not_set_the_batch_back(lake, make_pipe):
    into = target(make_pipe(), "orders")
    into.create_or_extend()
    for number in (0, 2):  # of a table without a snapshot, and with one
        slow, fast = into.table.open(), into.table.open()
        fast.add([], ("q", number))
        into.table.open().add([], ("q", number + 1))
        with pytest.raises(Conflict):
            slow.add([], ("q", number))
        assert lake.table("orders").properties["servicebroker.batch.q"] == str(number + 1)
    land(make_pipe(), "q", 4, batch(order(1)))
    assert [row["id"] for row in lake.rows("orders")] == [1]


def test_a_batch_is_known_when_its_snapshot_has_expired(lake, make_pipe):
    pipe = make_pipe(replace(ORDER, partition_by=("note",)))
    batches = [batch(order(number, note=note)) for number, note in enumerate("abab")]
    for number, messages in enumerate(batches):
        land(pipe, "q", number, messages)
    (bronze, orders) = compact(pipe, 0)
    assert (bronze.table, bronze.merged, bronze.written) == ("bronze", 4, 1)
    assert (orders.table, orders.merged, orders.written) == ("orders", 4, 2)
    lake_table = lake.table("orders")
    assert len(lake_table.metadata["snapshots"]) == 1
    assert target(pipe, "orders").table.open().last_batch("q") == 3
    on_disk = {path.name for path in Path(lake.file.parent, "orders", "data").iterdir()}
    assert on_disk == {Path(file["file_path"]).name for file in lake_table.files()}
    land(pipe, "q", 3, batches[3])
    with pytest.raises(InstanceError, match=r"'lake\.shop\.bronze' has batch 3 of this query already"):
        land(pipe, "q", 2, batches[2])
    assert sorted((row["id"], row["note"]) for row in lake.rows("orders")) == list(enumerate("abab"))
    assert compact(pipe, 24) == [("bronze", 0, 0, 0), ("orders", 0, 0, 0)]


def test_compaction_deletes_orphans_and_keeps_named_files(lake, make_pipe):
    pipe = make_pipe()
    land(pipe, "q", 0, batch(order(0)))
    sort_rows(pipe, QUEUE, "q", iter([batch(order(1))]))  # a task whose batch never landed
    data, metadata = (Path(lake.file.parent, "orders", inner) for inner in ("data", "metadata"))
    (metadata / "left.avro").write_bytes(b"x")
    assert compact(pipe, 24)[1] == ("orders", 0, 0, 0)  # they are too young
    for path in [*data.iterdir(), *metadata.iterdir()]:
        os.utime(path, (0, 0))
    assert compact(pipe, 24)[1] == ("orders", 0, 0, 2)
    assert [row["id"] for row in lake.rows("orders")] == [0]


def test_a_table_follows_its_rule_by_icebergs_own_evolution(lake, make_pipe):
    columns = (Column("id", "integer"), Column("price", "decimal(5,2)", True), Column("old", "string", True))
    before = make_pipe(replace(ORDER, columns=columns))
    land(before, "q", 0, batch(body(0, '{"id": 0, "price": 1.10, "old": "x"}')))
    snapshot = lake.version("orders")
    after = make_pipe(
        replace(
            ORDER,
            columns=(Column("new", "string", True), Column("price", "decimal(9,2)", True), Column("id", "long")),
        )
    )
    assert target(after, "orders").plan_schema_change().sentences() == [
        "gets the column new (string)",
        "gets its column price as decimal(9,2), which is decimal(5,2)",
        "gets its column id as long, which is integer",
    ]
    target(after, "orders").create_or_extend()
    assert lake.version("orders") == snapshot  # no file is written
    land(after, "q", 1, batch(body(1, f'{{"id": {2**40}, "price": 1234567.89, "new": "y"}}')))
    rows = sorted((row["id"], row["price"], row["old"], row["new"]) for row in lake.rows("orders"))
    assert rows == [(0, Decimal("1.10"), "x", None), (2**40, Decimal("1234567.89"), None, "y")]
    finer = make_pipe(replace(ORDER, columns=(Column("id", "long"), Column("price", "decimal(11,4)", True))))
    target(finer, "orders").create_or_extend()  # which Iceberg does not promote: its files are written anew
    assert (lake.kinds("orders")["price"], len(lake.table("orders").metadata["snapshots"])) == ("decimal(11,4)", 3)
    land(finer, "q", 1, batch(body(1, '{"id": 1}')))  # has landed
    assert sorted(row["id"] for row in lake.rows("orders")) == [0, 2**40]
    (old,) = by_order(lake.read("orders", snapshot)[0]).values()
    assert old == {"id": 0, "price": Decimal("1.10"), "old": "x"}


@pytest.mark.parametrize(
    ("columns", "more", "complaint"),
    [
        ((Column("id", "string"),), {}, "'id' of the table 'lake.shop.orders' is long and cannot become string"),
        ((Column("id", "long"), Column("new", "long")), {}, "'new' is new in the table 'lake.shop.orders'"),
        ((Column("id", "long"), Column("note", "string", True)), {"partition_by": ("id",)},
         "The Iceberg table 'lake.shop.orders' is partitioned by nothing, not by id"),
    ],
)  # fmt: skip
def test_an_impossible_schema_change_is_refused(lake, make_pipe, columns, more, complaint):
    land(make_pipe(), "q", 0, batch(order(1)))
    into = target(make_pipe(replace(ORDER, columns=columns, **more)), "orders")
    for look in (into.plan_schema_change, into.create_or_extend):
        with pytest.raises(InstanceError, match=complaint):
            look()


def test_a_table_that_others_divide_otherwise_is_refused(lake, make_pipe):
    pipe = make_pipe()
    land(pipe, "q", 0, batch(order(1)))
    with lake.open("orders").update_spec() as update:
        update.add_field("_message_enqueue_time", "day")
    with pytest.raises(InstanceError, match="partitioned by day of _message_enqueue_time, not by nothing"):
        land(pipe, "q", 1, batch(order(2)))


def test_a_column_that_divides_a_table_keeps_its_type(lake, make_pipe):
    rule = replace(ORDER, partition_by=("id",))
    land(make_pipe(rule), "q", 0, batch(order(1)))
    other_rule = replace(rule, columns=(Column("id", "string"), Column("note", "string", True)))
    with pytest.raises(InstanceError, match=r"'id' partitions the Iceberg table .+ and cannot get another"):
        rebuild(make_pipe(other_rule), "orders")
    assert [row["id"] for row in lake.rows("orders")] == [1]


def test_quarantine_is_read_again_and_a_table_made_anew(lake, make_pipe):
    land(make_pipe(STRICT), "q", 0, batch(order(1), order(2, note=None), message(3, b"?")))
    assert len(lake.rows("quarantine")) == 2
    after = make_pipe(replace(STRICT, columns=(Column("id", "long"), Column("note", "string", True))))
    assert replay(after) == [("Order", 1, 1)]
    assert replay(after, "Order") == [("Order", 0, 1)]
    assert sorted(row["id"] for row in lake.rows("orders")) == [1, 2]
    before = lake.version("orders")
    texts = make_pipe(replace(STRICT, columns=(Column("note", "string", True), Column("n", "double", True, "id"))))
    assert rebuild(texts, "orders") == ("orders", 2, 1)
    assert set(lake.kinds("orders")) & {"id", "note", "n"} == {"note", "n"}
    assert sorted(row["n"] for row in lake.rows("orders")) == [1.0, 2.0]
    assert sorted(row["id"] for row in lake.read("orders", before)[1]) == [1, 2]  # a reader of the version before
    land(texts, "q", 0, batch(order(1)))  # has landed
    assert len(lake.rows("orders")) == 2


def test_files_of_a_batch_beside_a_rebuild_never_count_in_other_columns(lake, make_pipe):
    before = make_pipe()
    land(before, "q", 0, batch(order(1)))
    after = make_pipe(replace(ORDER, columns=(Column("id", "double"), Column("note", "string", True))))
    written = sort_rows(before, QUEUE, "q", iter([batch(order(2))])).files["orders"]
    rebuild(after, "orders")
    with pytest.raises(InstanceError, match=r"'lake\.shop\.orders' is double and cannot become long"):
        target(before, "orders").commit(written, "q", 1)
    with pytest.raises(InstanceError, match="was rebuilt while a batch was written: repeat the batch"):
        target(after, "orders").commit(written, "q", 1)
    land(after, "q", 1, batch(order(2)))
    assert sorted(row["id"] for row in lake.rows("orders")) == [1.0, 2.0]


def test_columns_of_other_programs_are_kept(lake, make_pipe):
    pipe = make_pipe(replace(ORDER, key=("id",)))
    land(pipe, "q", 0, batch(order(1, key=1), order(2, key=2)))
    lake.add_column("orders", "theirs")
    lake.fill("orders", "theirs", 2)
    gone = make_pipe(replace(ORDER, key=("id",), columns=(Column("id", "long"),)))
    land(gone, "q", 1, batch(order(3, key=2), order(4, key=3)))
    rows = {row["id"]: (row["theirs"], row["note"]) for row in lake.rows("orders")}
    assert rows == {1: (None, "n"), 2: ("x", None), 3: (None, None)}


def test_hours_are_counted_into_a_table_of_icebergs(lake, make_pipe):
    pipe = make_pipe()
    land(pipe, "q", 0, batch(order(1), order(2), message(3, b"?")))
    for _ in range(2):
        (hour,) = analyze(pipe)
        assert (hour.messages, hour.unreadable) == (3, 1)
    assert [(row["messages"], row["unreadable"]) for row in lake.rows("analytics")] == [(3, 1)]


def test_files_of_a_snapshot_are_on_disk_before_the_catalog_names_it(lake, make_pipe, monkeypatch):
    pipe = make_pipe()
    into = target(pipe, "orders")
    into.create_or_extend()
    flushed, commit = set(), SqlCatalog.commit_table

    def record_flush(place):
        flushed.add(str(place))

    def committing(self, table, requirements, updates):
        done = commit(self, table, requirements, updates)
        names = into.table.open().named_files()
        assert {name for name in names if name not in before} <= flushed
        assert {str(Path(name).parent) for name in names} <= flushed | {str(Path(name).parent) for name in before}
        return done

    monkeypatch.setattr("servicebroker.pipeline.sinks.parquet.flush", record_flush)
    for module in (iceberg, iceberg_files):
        monkeypatch.setattr(module, "flush", record_flush)
    monkeypatch.setattr(SqlCatalog, "commit_table", committing)
    before = into.table.open().named_files()
    land(pipe, "q", 0, batch(order(1)))
    assert len(flushed) > 5


@pytest.mark.slow
def test_random_histories_of_rules_end_as_the_model_says(make_lake, seeded_random, tmp_path, request):
    for number in range(request.config.option.iceberg_histories):
        folder = tmp_path / str(number)
        with make_lake(seeded_random.choice(["sql", "rest"]), folder) as lake:
            history = History(seeded_random, folder, lake)
            try:
                history.run(12)
            except BaseException as problem:
                problem.add_note(f"history {number}, {history.partition_by}, {history.model}: {history.told}")
                raise


HEAD = """
[pipeline]
name = "orders"
warehouse = "tables"
format = "iceberg"
{}
[[queue]]
instance = "data"
database = "Shop"
queue = "Stock"
"""


def test_a_file_names_the_catalog_and_the_namespace(tmp_path):
    pipe = parse_pipeline(HEAD.format('catalog = "lake"\nnamespace = "shop.raw"'), tmp_path)
    assert str(target(pipe, "bronze").table) == "lake.shop.raw.bronze"
    for given in ("", 'catalog = "lake"', 'namespace = "shop"'):
        with pytest.raises(InstanceError, match="tables of Iceberg need both catalog and namespace"):
            parse_pipeline(HEAD.format(given), tmp_path)
    with pytest.raises(InstanceError, match="and others neither"):
        parse_pipeline(HEAD.replace('"iceberg"', '"delta"').format('catalog = "a"\nnamespace = "b"'), tmp_path)


def test_a_missing_or_unreachable_catalog_is_reported(tmp_path, monkeypatch, make_pipe):
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.config", {"catalog": {}})
    catalog.cache_clear()
    with pytest.raises(InstanceError, match=r"'lake' cannot be opened: .+PYICEBERG_CATALOG__LAKE__URI"):
        target(make_pipe(), "orders").plan_schema_change()
    nowhere = {"catalog": {"lake": {"uri": "http://127.0.0.1:9"}}}
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.config", nowhere)
    with pytest.raises(InstanceError, match="'lake' cannot be opened"):
        target(make_pipe(), "orders").create_or_extend()


def test_without_pyiceberg_the_error_names_the_extra(monkeypatch, make_pipe, capsys):
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    catalog.cache_clear()
    with pytest.raises(ModuleNotFoundError) as missing:
        target(make_pipe(), "orders").create_or_extend()
    assert EXTRAS[(missing.value.name or "").partition(".")[0]] == "iceberg"
