"""Landing files in a Delta table: once for each batch of a query, whoever else writes."""

import json
import struct
import threading
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.sinks.delta import DeltaLocation, DeltaSink
from servicebroker.pipeline.sinks.parquet import write_parquet
from servicebroker.pipeline.sinks.tables import MAX_UNEXPLAINED_CONFLICTS, commit_batch

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string()), ("body", pa.binary()), ("at", pa.timestamp("us", "UTC"))])
NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)


def batch(*numbers):
    rows = [{"n": n, "name": f"n{n}", "body": bytes([n]), "at": NOON} for n in numbers]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def write(folder, *batches):
    return write_parquet(iter(batches), folder, SCHEMA)


def numbers(folder):
    return sorted(DeltaTable(folder).to_pyarrow_table()["n"].to_pylist())


def test_a_batch_lands_once(tmp_path):
    assert commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1), batch(2)), ("q", 0))
    assert not commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1), batch(2)), ("q", 0))
    assert commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(3)), ("q", 1))
    assert not commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(3)), ("q", 1))
    with pytest.raises(InstanceError, match="has batch 1 of this query already"):  # Spark repeats only the last one
        commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1), batch(2)), ("q", 0))
    assert numbers(tmp_path) == [1, 2, 3]


def test_another_query_has_its_own_batches(tmp_path):
    assert commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1)), ("q", 0))
    assert commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(2)), ("r", 0))
    assert numbers(tmp_path) == [1, 2]


def test_only_one_of_concurrent_writers_writes_a_batch(tmp_path):
    for round_ in range(10):
        together, results = threading.Barrier(4), []

        def go(at=round_, together=together, results=results):
            files = write(tmp_path, batch(at))
            together.wait()
            results.append(commit_batch(DeltaLocation(tmp_path), SCHEMA, files, ("q", at)))

        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [False, False, False, True]
    assert numbers(tmp_path) == list(range(10))


def test_two_queries_at_once_both_land(tmp_path):
    threads = [
        threading.Thread(target=lambda query=query: [land_one(tmp_path, query, at) for at in range(5)])
        for query in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(tmp_path) == sorted([*range(5), *range(5)])


def land_one(folder, query, at):
    assert commit_batch(DeltaLocation(folder), SCHEMA, write(folder, batch(at)), (query, at))


def test_bytes_and_times_come_back_as_they_were(tmp_path):
    commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(255)), ("q", 0))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [
        {"n": 255, "name": "n255", "body": b"\xff", "at": NOON}
    ]


def test_the_log_knows_counts_and_ranges(tmp_path):
    empty = pa.RecordBatch.from_pylist([{"n": None, "name": None, "body": None, "at": None}], schema=SCHEMA)
    commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(3, 1), empty), ("q", 0))
    (known,) = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert (known["num_records"], known["null_count.n"]) == (3, 1)
    assert (known["min.n"], known["max.n"], known["min.name"], known["max.name"]) == (1, 3, "n1", "n3")
    assert (known["min.at"], known["max.at"]) == (NOON, NOON)
    assert "min.body" not in known


def test_no_rows_make_no_file(tmp_path):
    assert write(tmp_path / "table", batch()) == []
    assert not (tmp_path / "table").exists()


def test_other_columns_are_refused(tmp_path):
    write_deltalake(tmp_path, pa.table({"other": [1]}))
    with pytest.raises(InstanceError, match=r"would have to change for the query \(it gets the column"):
        commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1)), ("q", 0))


def test_a_partitioned_table_is_refused(tmp_path):
    DeltaTable.create(tmp_path, SCHEMA, partition_by=["name"])
    with pytest.raises(InstanceError, match="partitioned"):
        commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1)), ("q", 0))


# ---------------------------------------------------------------- tables of others that ask for more


def made_by_others(folder, *features, configuration=None, deleted=()):
    """A table of the numbers 1 and 2, as a writer that knows more leaves it; `deleted`: places in its file."""
    write_deltalake(folder, pa.table({"n": [1, 2]}))
    log = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            asked = {"readerFeatures": features, "writerFeatures": features}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **asked}
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration or {}
            physical = '"metadata":{"delta.columnMapping.id":1,"delta.columnMapping.physicalName":"col-1"}'
            if configuration:
                schema = action["metaData"]["schemaString"].replace('"metadata":{}', physical)
                action["metaData"]["schemaString"] = schema
        if "add" in action and deleted:
            action["add"]["deletionVector"] = deletion_vector(deleted)
            action["add"]["stats"] = json.dumps({"numRecords": 2, "tightBounds": False})
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")
    return folder


def deletion_vector(places):
    """Places below 65,536 of a file, as Delta writes them into its log: a Roaring bitmap in Z85."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(places) - 1, 16) + struct.pack(f"<{len(places)}H", *places)
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    padded = content + bytes(-len(content) % 4)
    words = [number for (number,) in struct.iter_unpack(">I", padded)]
    text = "".join(digits[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))
    stored = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(content)}
    return {**stored, "cardinality": len(places)}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"features": ["deletionVectors"], "deleted": [0]}, "marked as deleted elsewhere .*REORG TABLE"),
        ({"features": ["columnMapping"], "configuration": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"features": ["variantShredding"]}, "needs features that are not supported here: variantShredding"),
    ],
)
def test_a_table_whose_rows_are_not_those_of_its_files_is_refused(tmp_path, given, complaint):
    """Rows that are deleted would be there again, columns null."""
    folder = made_by_others(tmp_path / "t", *given.pop("features"), **given)
    with pytest.raises(InstanceError, match=f"cannot be read: .*{complaint}"):
        read_back(folder)
    files = write_parquet(iter([pa.record_batch({"n": [3]})]), folder, pa.schema([("n", pa.int64())]))
    with pytest.raises(InstanceError, match=complaint):
        commit_batch(DeltaLocation(folder), pa.schema([("n", pa.int64())]), files, ("q", 0))


def test_unused_table_features_are_accepted(tmp_path):
    folder = made_by_others(tmp_path / "t", "deletionVectors", "columnMapping", "v2Checkpoint")
    assert read_back(folder) == [{"n": 1}, {"n": 2}]


def test_a_table_with_a_constraint_is_refused(tmp_path):
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    DeltaTable(tmp_path).alter.add_constraint({"positive": "n > 0"})
    files = write_parquet(iter([pa.record_batch({"n": [-3]})]), tmp_path, pa.schema([("n", pa.int64())]))
    with pytest.raises(InstanceError, match=r"has the constraint 'positive'\. servicebroker cannot check constraints"):
        commit_batch(DeltaLocation(tmp_path), pa.schema([("n", pa.int64())]), files, ("q", 0))
    assert read_back(tmp_path) == [{"n": 1}]


def test_a_column_that_others_compute_is_refused(tmp_path):
    schema = Schema([Field("n", "long"), Field("twice", "long", metadata={"delta.generationExpression": "2 * n"})])
    DeltaTable.create(tmp_path, schema)
    with pytest.raises(InstanceError, match=r"'twice' of the Delta table .* has delta.generationExpression"):
        commit_batch(DeltaLocation(tmp_path), pa.schema([("n", pa.int64())]), [], ("q", 0))


def test_a_refusal_of_deltalake_is_not_retried(tmp_path):
    """Such an error had been retried a hundred times, and then blamed on many writers."""
    folder = made_by_others(tmp_path / "t", "typeWidening")
    files = write_parquet(iter([pa.record_batch({"n": [3]})]), folder, pa.schema([("n", pa.int64())]))
    with pytest.raises(InstanceError, match=r"is refused: .*Unsupported table features required"):
        commit_batch(DeltaLocation(folder), pa.schema([("n", pa.int64())]), files, ("q", 0))


@pytest.mark.parametrize("failures", [1, MAX_UNEXPLAINED_CONFLICTS - 1, MAX_UNEXPLAINED_CONFLICTS])
def test_a_commit_that_its_store_refuses_is_tried_a_few_times(tmp_path, monkeypatch, failures):
    """deltalake says of a store that asks for patience what it says of a conflict."""
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    commit, left = DeltaTable.create_write_transaction, iter(range(failures))

    def busy(*given, **named):
        if next(left, None) is not None:
            raise CommitFailedError("503 Slow Down")
        commit(*given, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", busy)
    files = write_parquet(iter([pa.record_batch({"n": [2]})]), tmp_path, pa.schema([("n", pa.int64())]))
    refused = (
        pytest.raises(InstanceError, match="is refused: 503 Slow Down")
        if failures == MAX_UNEXPLAINED_CONFLICTS
        else nullcontext()
    )
    with refused:
        commit_batch(DeltaLocation(tmp_path), pa.schema([("n", pa.int64())]), files, ("q", 0))
    assert len(read_back(tmp_path)) == (1 if failures == MAX_UNEXPLAINED_CONFLICTS else 2)


def test_a_table_that_has_got_a_column_is_read_in_those_that_spark_knows(tmp_path):
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    source = DeltaSink({"path": str(tmp_path)})
    reader = source.reader(source.schema())
    write_deltalake(tmp_path, pa.table({"n": [2], "more": ["x"]}), mode="append", schema_mode="merge")
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sorted((row for batch in batches for row in batch.to_pylist()), key=str) == [{"n": 1}, {"n": 2}]
    with pytest.raises(InstanceError, match="has no column 'other'"):
        DeltaSink({"path": str(tmp_path)}).reader(StructType().add("other", "string")).partitions()


@pytest.mark.parametrize("name", ["mergeSchema", "owner", "location"])
def test_an_option_that_would_not_be_heeded_is_refused(tmp_path, name):
    with pytest.raises(InstanceError, match=f"has no option '{name}'; it has path, versionAsOf"):
        DeltaSink({"path": str(tmp_path), name: "x"})
    assert DeltaSink({"path": str(tmp_path), "checkpointLocation": "x", "queryName": "y"})
    with pytest.raises(InstanceError, match="only for reading"):
        DeltaSink({"path": str(tmp_path), "versionAsOf": "1"}).streamWriter(StructType(), overwrite=False)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "needs the option 'path'"),
        ({"path": "ftp://host/table"}, "tables are in local folders, or at s3://, .*, not at ftp://"),
        ({"path": "s3://key:secret@bucket/table"}, "credentials belong in the environment"),
        ({"path": "gs:///table"}, "names no bucket"),
        ({"path": "abfss://lake@account.dfs.core.windows.net/t?sig=secret"}, "credentials belong in the environment"),
    ],
)
def test_a_wrong_path_is_refused(options, complaint):
    with pytest.raises(InstanceError, match=complaint):
        DeltaSink(options)


def test_a_file_url_is_a_path():
    assert str(DeltaSink({"path": "file:///tmp/a%20b"})._folder) == "/tmp/a b"


def test_only_append_is_possible(tmp_path):
    with pytest.raises(InstanceError, match="only appends"):
        DeltaSink({"path": str(tmp_path)}).streamWriter(StructType(), overwrite=True)


def test_outside_a_streaming_query_a_task_has_no_query_id(tmp_path):
    with pytest.raises(InstanceError, match="only inside a streaming query"):
        DeltaSink({"path": str(tmp_path)}).streamWriter(StructType(), overwrite=False).write(iter(()))


def read_back(folder, **options):
    source = DeltaSink({"path": str(folder), **options})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["n"])


def test_a_table_is_read_back_in_any_version(tmp_path):
    commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1)), ("q", 0))
    commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(2)), ("q", 1))
    assert read_back(tmp_path) == [{"n": n, "name": f"n{n}", "body": bytes([n]), "at": NOON} for n in (1, 2)]
    assert [row["n"] for row in read_back(tmp_path, versionAsOf="1")] == [1]
    assert read_back(tmp_path, versionAsOf="0") == []
    second = DeltaTable(tmp_path).history()[1]["timestamp"]
    moment = datetime.fromtimestamp(second / 1000, UTC)
    assert [row["n"] for row in read_back(tmp_path, timestampAsOf=moment.isoformat())] == [1]
    assert len(read_back(tmp_path, timestampAsOf="2100-01-01")) == 2
    assert DeltaSink({"path": str(tmp_path)}).schema().fieldNames() == ["n", "name", "body", "at"]


def test_partitions_new_columns_and_merged_files_are_read_back(tmp_path):
    rows = pa.table({"n": [1, 2, 3], "day": pa.array([NOON.date(), None, NOON.date()]), "name": ["a", "b", "a"]})
    write_deltalake(tmp_path, rows, partition_by=["day", "name"])
    write_deltalake(tmp_path, rows.append_column("more", pa.array([7, 8, 9])), mode="append", schema_mode="merge")
    expected = sorted(DeltaTable(tmp_path).to_pyarrow_table().to_pylist(), key=str)
    assert sorted(read_back(tmp_path), key=str) == expected
    DeltaTable(tmp_path).optimize.compact()
    assert sorted(read_back(tmp_path), key=str) == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "There is no Delta table in"),
        ({"versionAsOf": "x"}, "whole number from 0"),
        ({"versionAsOf": "9"}, "cannot"),
        ({"timestampAsOf": "noon"}, "must be a time of ISO 8601"),
        ({"timestampAsOf": "2020-01-01"}, "has no version as old as that: the oldest is of 2"),
        ({"timestampAsOf": "2100-01-01", "versionAsOf": "0"}, "exclude each other"),
    ],
)
def test_an_unreadable_table_is_reported(tmp_path, options, complaint):
    if options:
        commit_batch(DeltaLocation(tmp_path), SCHEMA, write(tmp_path, batch(1)), ("q", 0))
    with pytest.raises(InstanceError, match=complaint):
        read_back(tmp_path, **options)
