"""A checkpoint that is older than the tables of its query is refused before a batch is planned from it."""

import json
import shutil

import pytest

pytest.importorskip("pyspark")

from pipeline_tables import ORDER, QUEUE, batch, land, order, pipeline, table
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.checkpoint import Checkpoints
from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.sinks.delta import DeltaLocation, DeltaVersion
from servicebroker.pipeline.sinks.target import target

QUERY, OTHER_QUERY = "0d5c9f2e-0000-4000-8000-00000000000a", "0d5c9f2e-0000-4000-8000-00000000000c"


def write_checkpoint(pipe, *batches):
    """Write a checkpoint of the query QUERY as Spark does."""
    folder = pipe.checkpoint(QUEUE)
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    for number in batches:
        (folder / "offsets" / str(number)).write_text("v1")
        (folder / "offsets" / f".{number}.crc").write_bytes(b"")
    return folder


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_an_old_copy_of_a_checkpoint_is_refused(tmp_path, kind):
    pipe = pipeline(tmp_path, format=kind)
    Checkpoints(pipe).check(QUEUE)  # no run yet
    folder = write_checkpoint(pipe)
    Checkpoints(pipe).check(QUEUE)
    write_checkpoint(pipe, 0)
    land(pipe, QUERY, 0, batch(order(1)))
    shutil.copytree(folder, tmp_path / "copy")
    write_checkpoint(pipe, 1)
    Checkpoints(pipe).check(QUEUE)
    land(pipe, QUERY, 1, batch(order(2)))
    Checkpoints(pipe).check(QUEUE)  # as after a crash between table and queue
    write_checkpoint(pipe, 2)
    Checkpoints(pipe).check(QUEUE)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    pattern = (
        r"older than the table '.*bronze': the table has batch 1 .* and the checkpoint has only batches up to 0\. .*"
    )
    again = "not added twice" if kind == "delta" else "check first which messages the queue still holds"
    with pytest.raises(InstanceError, match=pattern + again):
        Checkpoints(pipe).check(QUEUE)
    shutil.rmtree(folder)
    Checkpoints(pipe).check(QUEUE)
    write_checkpoint(pipe)
    with pytest.raises(InstanceError, match="the checkpoint has no batch"):
        Checkpoints(pipe).check(QUEUE)


def test_another_query_of_the_same_queue_has_a_checkpoint_of_its_own(tmp_path):
    pipe = pipeline(tmp_path)
    land(pipe, "before", 7, batch(order(1)))
    write_checkpoint(pipe, 0)
    Checkpoints(pipe).check(QUEUE)


def test_a_damaged_checkpoint_is_one_sentence(tmp_path):
    pipe = pipeline(tmp_path)
    metadata = write_checkpoint(pipe) / "metadata"
    for content in ("", "{}", "[1]", '"id"', '{"id": 5}', '{"id": "../../x"}', "[" * 100_000, "\ud800"):
        metadata.write_bytes(content.encode(errors="surrogatepass"))
        with pytest.raises(InstanceError, match=r"The checkpoint '.*' cannot be read: "):
            Checkpoints(pipe).check(QUEUE)


def test_a_checkpoint_is_read_as_spark_reads_it(tmp_path):
    """An id in other letter case is the same query, and a file with another name is not a batch."""
    pipe = pipeline(tmp_path)
    land(pipe, QUERY, 1, batch(order(1)))
    folder = write_checkpoint(pipe, 0)
    (folder / "metadata").write_text(json.dumps({"id": QUERY.upper()}))
    for name in ("9" * 200, "1\u0663", "2.tmp"):
        (folder / "offsets" / name).write_text("v1")
    with pytest.raises(InstanceError, match=r"the table has batch 1 .* only batches up to 0"):
        Checkpoints(pipe).check(QUEUE)


def test_a_table_takes_no_batch_before_its_last_one(tmp_path):
    """The sink refuses it without reading the checkpoint."""
    pipe = pipeline(tmp_path)
    for number in range(3):
        land(pipe, QUERY, number, batch(order(number)))
    land(pipe, QUERY, 2, batch(order(2)))
    with pytest.raises(InstanceError, match=r"has batch 2 of this query already, and its checkpoint goes on with bat"):
        land(pipe, QUERY, 1, batch(order(9)))
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1, 2]


def test_a_table_that_cannot_be_read_is_one_sentence(tmp_path):
    """The error stops only the queue that is being started."""
    pipe = pipeline(tmp_path)
    land(pipe, QUERY, 0, batch(order(1)))
    write_checkpoint(pipe, 0)
    place = target(pipe, "orders").location
    opened = place.open()
    for entry in (tmp_path / "orders" / "_delta_log").glob("*.json"):
        entry.unlink()
    with pytest.raises(InstanceError, match=r"The Delta table '.*orders' cannot be read: "):
        opened.last_batch(QUERY)


def test_tables_are_opened_once_for_all_queues_and_again_for_one_that_starts_again(tmp_path, monkeypatch):
    queues = [QueueRule("./data", "Shop", name) for name in ("A", "B", "C")]
    pipe = Pipeline("test", tmp_path, tuple(queues), (ORDER,))
    land(pipe, QUERY, 0, batch(order(1)))
    for queue in queues[:2]:
        (pipe.checkpoint(queue) / "offsets").mkdir(parents=True)
        (pipe.checkpoint(queue) / "offsets" / "0").write_text("v1")
        (pipe.checkpoint(queue) / "metadata").write_text(json.dumps({"id": QUERY}))
    opened = []
    open_table = DeltaLocation.open
    monkeypatch.setattr(DeltaLocation, "open", lambda place: opened.append(place.folder.name) or open_table(place))
    checkpoints = Checkpoints(pipe)
    for queue in queues:
        checkpoints.check(queue)
    assert opened == ["bronze", "orders"]  # quarantine is still empty
    (pipe.checkpoint(queues[2]) / "offsets").mkdir(parents=True)
    (pipe.checkpoint(queues[2]) / "metadata").write_text(json.dumps({"id": OTHER_QUERY}))
    for query, queue in ((QUERY, queues[0]), (OTHER_QUERY, queues[2])):
        for number in range(2):
            land(pipe, query, number, batch(order(number, handle=query)))
        with pytest.raises(InstanceError, match="is older than the table"):
            checkpoints.check(queue)


def test_a_batch_that_comes_again_asks_the_table_once(tmp_path, monkeypatch):
    pipe = pipeline(tmp_path, bronze="", unconfigured="quarantine")
    land(pipe, QUERY, 0, batch(order(1)))
    asked = []
    last_batch = DeltaVersion.last_batch
    monkeypatch.setattr(
        DeltaVersion, "last_batch", lambda table, query: asked.append(query) or last_batch(table, query)
    )
    land(pipe, QUERY, 0, batch(order(1)))
    assert asked == [QUERY]
