"""OpenLineage events of a pipeline's queries, written to a file. No Spark, no server."""

import json
import socket
import threading
import time
import tracemalloc
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("openlineage.client")
pytest.importorskip("deltalake")

from openlineage.client import OpenLineageClient

from pipeline_tables import ORDER
from servicebroker.pipeline import lineage as lineage_module
from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.lineage import RUNNING_EVENT_INTERVAL_S, Lineage, lineage_listener
from servicebroker.pipeline.queue_run import QueueRun
from servicebroker.pipeline.sinks.storage import StoreFolder

QUEUE = QueueRule("postgresql://user:secret@db/broker", "Shop", "StockQueue")


def pipeline(tmp_path, queue=QUEUE, warehouse=None):
    return Pipeline("orders", warehouse or tmp_path / "tables", (queue,), (ORDER,), checkpoints=tmp_path)


@pytest.fixture
def read_events(tmp_path, monkeypatch):
    """Return a function that reads the written events."""
    path = tmp_path / "events.json"
    config = tmp_path / "openlineage.yml"
    config.write_text(f"transport:\n  type: file\n  log_file_path: {path}\n  append: true\n")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


def query(hear, once=False, queue=QUEUE):
    return QueueRun(queue, lambda: None, once, on_event=hear)


def test_a_query_is_a_run_with_its_queue_and_its_tables(tmp_path, read_events):
    run = query(lineage_listener(pipeline(tmp_path)))
    run.on_event(run, "queue started")
    run.messages = 7
    run.on_event(run, "queue ended")
    first, last = read_events()
    assert (first["eventType"], last["eventType"]) == ("START", "COMPLETE")
    assert first["run"]["runId"] == last["run"]["runId"]
    assert (first["job"]["namespace"], first["job"]["name"]) == ("servicebroker", "orders.Shop.StockQueue")
    assert first["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert [(row["namespace"], row["name"]) for row in first["inputs"]] == [
        ("servicebroker://db:5432/broker", "Shop.StockQueue")
    ]
    tables = {row["name"]: row for row in last["outputs"]}
    assert list(tables) == [str(tmp_path / "tables" / name) for name in ("bronze", "orders", "quarantine")]
    bronze, orders, quarantine = tables.values()
    assert bronze["outputFacets"]["outputStatistics"]["rowCount"] == 7
    assert not orders.get("outputFacets")
    assert not quarantine.get("outputFacets")
    assert (
        orders["facets"]["schema"]["fields"][0] | {"name": "id", "type": "long"}
        == (orders["facets"]["schema"]["fields"][0])
    )
    assert "secret" not in json.dumps(read_events())


def test_a_running_query_is_reported_once_a_minute_and_a_restart_is_no_new_run(tmp_path, read_events):
    now = [0.0]
    run = query(Lineage(pipeline(tmp_path), OpenLineageClient(), lambda: now[0]).on_event, once=True)
    for seconds, event in (
        (0, "queue started"),
        (1, "batch"),
        (RUNNING_EVENT_INTERVAL_S, "batch"),
        (1, "queue restarts"),
        (1, "queue started"),
        (RUNNING_EVENT_INTERVAL_S, "queue restarts"),
    ):
        now[0] += seconds
        run.on_event(run, event)
    run.reason = "The disk is full."
    run.on_event(run, "queue failed")
    events = read_events()
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "RUNNING", "FAIL"]
    assert len({event["run"]["runId"] for event in events}) == 1
    assert events[-1]["run"]["facets"]["errorMessage"]["message"] == "The disk is full."
    assert events[0]["job"]["facets"]["jobType"]["processingType"] == "BATCH"


def test_a_run_that_is_stopped_is_aborted_once(tmp_path, read_events):
    run = query(lineage_listener(pipeline(tmp_path)))
    run.stop()
    assert [event["eventType"] for event in read_events()] == ["ABORT"]


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3a://lake/w", ("s3://lake", "w/bronze")),
        ("abfss://c@a.dfs.core.windows.net/w", ("abfss://c@a.dfs.core.windows.net", "w/bronze")),
    ],
)
def test_tables_of_stores_and_queues_of_folders_have_their_names(tmp_path, read_events, url, named):
    queue = QueueRule(str(tmp_path / "data"), "Shop", "StockQueue")
    run = query(lineage_listener(pipeline(tmp_path, queue, StoreFolder(url))), queue=queue)
    run.on_event(run, "queue started")
    (event,) = read_events()
    assert (event["outputs"][0]["namespace"], event["outputs"][0]["name"]) == named
    assert event["inputs"][0]["namespace"] == f"servicebroker://{tmp_path}/data"


def test_lineage_events_contain_no_password(tmp_path, read_events):
    for instance in (
        "host=db port=5433 user=me password=secret dbname=broker",
        "postgresql://me@db:5433/broker?password=secret",
    ):
        queue = QueueRule(instance, "Shop", "StockQueue")
        run = query(lineage_listener(pipeline(tmp_path, queue)), queue=queue)
        run.on_event(run, "queue started")
    assert {event["inputs"][0]["namespace"] for event in read_events()} == {"servicebroker://db:5433/broker"}
    queue = QueueRule("postgresql://DB.Example", "Shop", "StockQueue")
    run = query(lineage_listener(pipeline(tmp_path, queue)), queue=queue)
    run.on_event(run, "queue started")
    assert read_events()[-1]["inputs"][0]["namespace"] == "servicebroker://db.example:5432"
    assert "secret" not in json.dumps(read_events())


def test_an_unreachable_listener_is_logged_once_and_ignored(tmp_path, caplog):
    class Deaf:
        def emit(self, event):
            raise ConnectionError("nobody is there")

    run = query(Lineage(pipeline(tmp_path), Deaf()).on_event)
    for event in ("queue started", "queue ended"):
        run.on_event(run, event)
    assert [record.getMessage() for record in caplog.records] == [
        "OpenLineage cannot be reached: nobody is there. The pipeline goes on."
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("listener", ["sends a head forever", "sends a body forever"])
def test_a_slow_listener_stops_no_query(tmp_path, monkeypatch, caplog, listener):
    monkeypatch.setattr(lineage_module, "EMIT_TIMEOUT_S", 1)
    head = b"HTTP/1.1 200 OK\r\n" if "head" in listener else b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n"
    with listening(head, b"x", pause=0.05) as url:
        tell_http(tmp_path, monkeypatch, url)
        run = query(lineage_listener(pipeline(tmp_path)))
        started_at = time.monotonic()
        for event in ("queue started", "queue ended"):
            run.on_event(run, event)
        assert time.monotonic() - started_at < 10
    ours = [record for record in caplog.records if record.name == "servicebroker.pipeline"]
    assert [record.getMessage() for record in ours] == [
        "OpenLineage cannot be reached: it has not answered within 1 s. The pipeline goes on."
    ]


@pytest.mark.timeout(60)
def test_an_answer_without_end_is_not_kept(tmp_path, monkeypatch):
    part = b"100000\r\n" + bytes(0x100000) + b"\r\n"
    with listening(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", part, pause=0) as url:
        tell_http(tmp_path, monkeypatch, url)
        tracemalloc.start()
        try:
            run = query(lineage_listener(pipeline(tmp_path)))
            run.on_event(run, "queue started")
            assert tracemalloc.get_traced_memory()[1] < 30_000_000
        finally:
            tracemalloc.stop()


def tell_http(tmp_path, monkeypatch, url):
    """Configure OpenLineage to send to `url`; a URL in the environment would leave more behind."""
    config = tmp_path / "openlineage.yml"
    config.write_text(f"transport:\n  type: http\n  url: {url}\n")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))


@contextmanager
def listening(head, again, pause):
    """Run an HTTP listener that answers with `head`, and then with `again` as long as the client reads."""
    over = threading.Event()

    def answer(connected):
        with connected, suppress(OSError):
            connected.settimeout(5)
            connected.recv(65_536)
            connected.sendall(head)
            while not over.wait(pause):
                connected.sendall(again)

    def accept(at):
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(at.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as at:
        accepting = threading.Thread(target=accept, args=(at,), daemon=True)
        accepting.start()
        yield f"http://127.0.0.1:{at.getsockname()[1]}"
        over.set()
        at.shutdown(socket.SHUT_RDWR)
    accepting.join(5)


def test_no_event_is_sent_without_a_configured_listener(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENLINEAGE_CONFIG", raising=False)
    monkeypatch.setattr("openlineage.client.OpenLineageClient.emit", lambda *of: pytest.fail("told"))
    run = query(lineage_listener(pipeline(tmp_path)))
    run.on_event(run, "queue started")
