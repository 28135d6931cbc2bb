"""Tables in an object store: a server that speaks S3 beside the tests, and all that is done with tables. No Spark."""

import json
import os
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("moto")
pytest.importorskip("pyiceberg")

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from forked import run_command
from object_store import environment, rows, serving
from pipeline_support import LINE, Feed
from pipeline_tables import ORDER, QUEUE, batch, land, message, order
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.analysis import analyze
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import MessageRule, Pipeline
from servicebroker.pipeline.rebuild import rebuild
from servicebroker.pipeline.sinks.delta import DeltaLocation, DeltaSink
from servicebroker.pipeline.sinks.delta_reader import open_table
from servicebroker.pipeline.sinks.iceberg import catalog
from servicebroker.pipeline.sinks.maintenance import compact, replay, status
from servicebroker.pipeline.sinks.parquet import write_parquet
from servicebroker.pipeline.sinks.storage import StoreFolder, filesystem_of, names_in
from servicebroker.pipeline.sinks.tables import Conflict, commit_batch
from servicebroker.pipeline.sinks.target import target

STOCK = MessageRule("Stock", "json", "stock", (Column("id", "long"), Column("note", "string", True)), key=("id",))
DAYS = replace(ORDER, message_type="Day", table="days", partition_by=("_date",))
SCHEMA = pa.schema([("id", pa.int64()), ("body", pa.binary())])


@pytest.fixture(scope="module")
def endpoint():
    with serving() as endpoint:
        yield endpoint


@pytest.fixture
def lake(endpoint, monkeypatch, request):
    """A folder of the test's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)
    return StoreFolder(f"s3://lake/{request.node.name.replace('[', '-').replace(']', '')}")


@pytest.fixture
def pipe(lake, tmp_path):
    return Pipeline("test", lake, (QUEUE,), (ORDER, STOCK, DAYS), checkpoints=tmp_path)


def stock(number, key, note):
    return message(number, json.dumps({"id": key, "note": note}).encode(), "Stock")


@pytest.fixture
def seen(endpoint, pipe):
    def seen(name, *columns):
        return sorted(tuple(row[column] for column in columns) for row in rows(endpoint, pipe.folder(name)))

    return seen


def make(pipe):
    for name in pipe.table_names():
        assert not target(pipe, name).plan_schema_change()
        target(pipe, name).create_or_extend()


def land_some(pipe):
    first = batch(
        order(1), message(2, b'{"id": "x"}'), stock(3, 1, "old"), stock(4, 2, "b"), message(5, b'{"id": 5}', "Day")
    )
    for _ in range(2):  # the second time as after a crash between the commit and Spark's note of it
        land(pipe, "q", 0, first)
    land(pipe, "q", 1, batch(stock(6, 1, "new")))


def test_a_batch_is_in_the_tables_of_a_store_once(pipe, seen):
    make(pipe)
    land_some(pipe)
    assert [number for (number,) in seen("bronze", "queuing_order")] == [1, 2, 3, 4, 5, 6]
    assert seen("orders", "id", "note") == [(1, "n")]
    assert seen("stock", "id", "note") == [(1, "new"), (2, "b")]
    assert seen("days", "id") == [(5,)]
    assert seen("quarantine", "reason") == [("wrong type",)]
    assert names_in(pipe.folder("stock") / "_staged", "") == []


@pytest.mark.full
def test_maintenance_and_replay_work_in_an_object_store(pipe, seen):
    make(pipe)
    land_some(pipe)
    wrong = replace(pipe, messages=(replace(ORDER, columns=(Column("id", "json"), *ORDER.columns[1:])), STOCK, DAYS))
    with pytest.raises(
        InstanceError, match=r"'id' of the table 's3://lake/.*/orders' is long and cannot become string"
    ):
        target(wrong, "orders").plan_schema_change()
    texts = (Column("id", "json"), Column("note", "string", True))
    mended = replace(pipe, messages=(replace(ORDER, table="texts", columns=texts), STOCK, DAYS))
    make(mended)
    assert [told.written for told in replay(mended, "Order")] == [1]
    assert seen("texts", "id") == [('"x"',)]
    assert seen("quarantine", "reason") == []

    wider = replace(STOCK, columns=(*STOCK.columns, Column("colour", "string", True)))
    pipe = replace(pipe, messages=(ORDER, wider, DAYS))
    assert target(pipe, "stock").plan_schema_change().sentences() == ["gets the column colour (string)"]
    assert rebuild(pipe, "stock").rows == 2
    assert seen("stock", "id", "note", "colour") == [(1, "new", None), (2, "b", None)]
    assert {told.table: told.written for told in compact(pipe, 0)} == {
        "bronze": 1, "orders": 0, "stock": 0, "days": 0, "quarantine": 0
    }  # fmt: skip
    assert len(seen("bronze", "queuing_order")) == 6
    assert sum(hour.messages for hour in analyze(pipe)) == 6
    assert seen("analytics", "messages") == [(6,)]


def test_only_one_of_concurrent_writers_writes_a_version(lake):
    """By a put on the condition that nothing is there: each lands, and no version is written over."""
    writers, batches = 3, 2
    refused: list[str] = []

    def write(number):
        for batch_id in range(batches):
            name = f"{number}-{batch_id}".encode()
            files = write_parquet(iter([pa.record_batch([[number], [name]], SCHEMA)]), lake, SCHEMA)
            if not commit_batch(DeltaLocation(lake), SCHEMA, files, (f"q{number}", batch_id)):
                refused.append(f"{number} {batch_id}")

    write(9)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = open_table(lake)
    assert refused == []
    assert table.version() == (writers + 1) * batches
    assert table.count() == (writers + 1) * batches
    one, other = DeltaLocation(lake).open(), DeltaLocation(lake).open()
    one.replace_files([], write_parquet(iter([pa.record_batch([[1], [b"x"]], SCHEMA)]), lake, SCHEMA))
    with pytest.raises(Conflict):
        other.replace_files([], write_parquet(iter([pa.record_batch([[2], [b"y"]], SCHEMA)]), lake, SCHEMA))
    assert open_table(lake).version() == table.version() + 1


def test_plain_files_of_a_batch_are_in_a_store_once(endpoint, lake, tmp_path):
    pipe = Pipeline("test", lake, (QUEUE,), (ORDER,), format="parquet", checkpoints=tmp_path)
    into = target(pipe, "orders")
    into.create_or_extend()
    rows = pa.table({"id": [1], "note": ["cut off"]})
    cut = write_parquet(iter(rows.to_batches()), into.stage_folder, rows.schema)[0]
    name = "batch-q-0000000000-0000-of-0002.parquet"
    filesystem_of(into.folder).move(f"_staged/{cut.name}", name)
    for _ in range(2):
        land(pipe, "q", 0, batch(order(1), order(2)))
        assert names_in(into.folder, ".parquet") == [name.replace("of-0002", "of-0001")]
        assert names_in(into.stage_folder, ".parquet") == []


def test_the_sink_writes_into_a_store_and_reads_it_back(lake):
    sink = DeltaSink({"path": f"{lake}/"})
    body = os.urandom(6_000_000)
    files = write_parquet(iter([pa.record_batch([[1, 2], [body, None]], SCHEMA)]), sink._folder, SCHEMA)
    assert commit_batch(DeltaLocation(sink._folder), SCHEMA, files, ("q", 0))
    assert not commit_batch(DeltaLocation(sink._folder), SCHEMA, files, ("q", 0))
    assert sink.schema().names == ["id", "body"]
    reader = sink.reader(sink.schema())
    (part,) = reader.partitions()
    assert pa.Table.from_batches(reader.read(part)).to_pylist() == [{"id": 1, "body": body}, {"id": 2, "body": None}]
    assert DeltaTable(str(lake)).count() == 2


def pipeline_file(folder, feed, head):
    """Of one queue, whose lines have a key."""
    file = folder / "pipeline.toml"
    file.write_text(
        f"{head}[[queue]]\n"
        + "".join(f'{name} = "{feed.options[name]}"\n' for name in ("instance", "database", "queue"))
        + f'[[message]]\ntype = "{LINE}"\nformat = "json"\ntable = "lines"\nkey = "id"\n'
        + '[message.columns]\nid = "long"\n'
    )
    return file


def run_once(file, messages):
    result = run_command("pipeline", "run", file, "--once", "--json", timeout=500)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["queues"][0]["messages"] == messages


@pytest.mark.full
@pytest.mark.spark
def test_a_run_of_spark_lands_in_a_store(database, lake, endpoint, tmp_path):
    """With nothing but the environment, and Spark's checkpoints beside the pipeline file."""
    feed = Feed(database)
    file = pipeline_file(tmp_path, feed, f'[pipeline]\nname = "test"\nwarehouse = "{lake}"\ncheckpoints = "marks"\n')
    for run in range(2):
        feed.dialog(*(b'{"id": %d}' % number for number in range(run * 10, run * 10 + 20)), b"?")
        run_once(file, messages=21)
    assert feed.waiting_count() == 0
    assert sorted(row["id"] for row in rows(endpoint, lake / "lines")) == list(range(30))
    assert len(rows(endpoint, lake / "bronze")) == 42
    assert len(rows(endpoint, lake / "quarantine")) == 2


@pytest.fixture
def catalog_url(tmp_path):
    return f"sqlite:///{tmp_path / 'catalog.db'}"


def in_iceberg(endpoint, url, name):
    """The rows of an Iceberg table of a store, read by Arrow's own client of S3."""
    theirs = load_catalog(
        "lake",
        **{"uri": url, "s3.endpoint": f"http://{endpoint}", "s3.region": "us-east-1"},
        **{"s3.access-key-id": "key", "s3.secret-access-key": "secret"},
    )
    try:
        return theirs.load_table(("shop", name)).scan().to_arrow().to_pylist()
    finally:
        theirs.close()


def test_tables_of_iceberg_live_in_a_store(endpoint, pipe, monkeypatch, catalog_url):
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.config", {"catalog": {"lake": {"uri": catalog_url}}})
    pipe = replace(pipe, format="iceberg", catalog="lake", namespace="shop")
    catalog.cache_clear()
    try:
        make(pipe)
        land_some(pipe)
        assert {told.table: told.written for told in compact(pipe, 0)}["bronze"] == 1
        assert rebuild(pipe, "days").rows == 1
        assert sum(hour.messages for hour in analyze(pipe)) == 6
    finally:
        catalog("lake").close()
        catalog.cache_clear()
    found = in_iceberg(endpoint, catalog_url, "bronze")
    assert sorted(row["queuing_order"] for row in found) == [1, 2, 3, 4, 5, 6]
    found = in_iceberg(endpoint, catalog_url, "stock")
    assert sorted((row["id"], row["note"]) for row in found) == [(1, "new"), (2, "b")]
    assert [row["id"] for row in in_iceberg(endpoint, catalog_url, "days")] == [5]


@pytest.mark.full
@pytest.mark.spark
def test_a_run_of_spark_lands_in_tables_of_iceberg(database, lake, endpoint, tmp_path, monkeypatch, catalog_url):
    """Only the environment names the catalog."""
    feed = Feed(database)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", catalog_url)
    head = f'[pipeline]\nname = "test"\nwarehouse = "{lake}"\ncheckpoints = "marks"\n'
    file = pipeline_file(tmp_path, feed, head + 'format = "iceberg"\ncatalog = "lake"\nnamespace = "shop"\n')
    for run in range(2):
        feed.dialog(*(b'{"id": %d}' % number for number in range(run * 10, run * 10 + 20)), b"?")
        run_once(file, messages=21)
    assert feed.waiting_count() == 0
    found = in_iceberg(endpoint, catalog_url, "lines")
    assert sorted(row["id"] for row in found) == list(range(30))
    assert len(in_iceberg(endpoint, catalog_url, "bronze")) == 42
    assert len(in_iceberg(endpoint, catalog_url, "quarantine")) == 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda pipe: target(pipe, "orders").plan_schema_change(),
        pytest.param(lambda pipe: target(pipe, "orders").create_or_extend(), marks=pytest.mark.full),
        pytest.param(lambda pipe: status(replace(pipe, format="parquet", messages=())), marks=pytest.mark.full),
    ],
)
def test_a_store_that_does_not_answer_is_one_sentence(pipe, monkeypatch, ask):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    gone = replace(pipe, warehouse=StoreFolder("s3://lake/gone"))
    with pytest.raises(
        InstanceError, match=r"cannot be (read|changed): .*Connection refused \(os error 111\)\.$"
    ) as error:
        ask(gone)
    assert "\x1b" not in str(error.value)
