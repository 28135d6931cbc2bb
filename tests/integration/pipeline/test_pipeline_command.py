"""`servicebroker pipeline` as a person runs it, against a real server and a real Spark."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import duckdb
import pytest

from forked import Command, run_command
from pipeline_support import LINE, Feed

pytest.importorskip("pyspark")

from deltalake import DeltaTable

from schema_registry import run_registry
from servicebroker.model import names
from servicebroker.pipeline.file import read_pipeline
from servicebroker.store import locks
from servicebroker_lab.benchmarks.processes import family
from support import eventually

COMMAND = [sys.executable, "-W", "error", "-m", "servicebroker.cli.main", "pipeline"]


@pytest.fixture
def write(tmp_path):
    def write(*feeds, head="", rule="", columns='id = "long"'):
        queues = "".join(
            f'[[queue]]\ninstance = "{feed.options["instance"]}"\ndatabase = "Warehouse"\nqueue = "{feed.queue}"\n'
            for feed in feeds
        )
        path = tmp_path / "pipeline.toml"
        path.write_text(
            f'[pipeline]\nname = "test"\nwarehouse = "tables"\n{head}\n{queues}\n[[message]]\ntype = "{LINE}"\n'
            f'format = "json"\ntable = "lines"\n{rule}\n[message.columns]\n{columns}\n'
        )
        return path

    return write


def pipeline(*arguments, code=0):
    result = run_command("pipeline", *arguments, timeout=500, warnings=True)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result


def pipeline_json(*arguments):
    return json.loads(pipeline(*arguments, "--json").stdout)


def rows(path, table):
    return DeltaTable(read_pipeline(path).folder(table)).to_pyarrow_table().to_pylist()


@pytest.mark.spark
@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.full)])
def test_queues_are_written_to_one_warehouse_and_quarantine_is_replayed(database, feed, write, goes_on):
    """Each command starts Spark: the short form has the first run."""
    other = Feed(database)
    feed.dialog(*(b'{"id": %d}' % number for number in range(20)))
    too_much = b'{"id": 1, "more": "%b"}' % (b"x" * 20_000_000)
    other.dialog(b'{"id": 100}', b"\xff", b"", b'{"id": 1' + b"0" * 30 + b"}", too_much)
    ended = other.dialog(b'{"id": 200}')
    other.database.end_conversation(ended)
    path = write(feed, other)
    assert "can run: 2 queues, 3 tables" in pipeline("check", path).stdout

    done = pipeline_json("run", path, "--once")
    assert {queue["queue"]: (queue["messages"], queue["quarantined"]) for queue in done["queues"]} == {
        f"Warehouse.{feed.queue}": (20, 0),
        f"Warehouse.{other.queue}": (7, 4),
    }
    assert sorted(row["id"] for row in rows(path, "lines")) == [*range(20), 100, 200]
    assert len(rows(path, "bronze")) == 27
    assert (feed.waiting_count(), other.waiting_count()) == (0, 0)  # the last batch is acknowledged too
    assert other.far_states() == {"CD": 1, "CO": 1}
    found = pipeline_json("status", path)
    assert {table["table"]: table["rows"] for table in found["tables"]} == {"bronze": 27, "lines": 22, "quarantine": 4}
    reasons = ("wrong encoding", "empty", "wrong type", "too large")
    assert found["quarantined"] == {f"{LINE}: {reason}": 1 for reason in reasons}
    assert {queue["behind"]["messagesBehind"] for queue in found["queues"]} == {0}
    assert "in quarantine: Line: empty" in pipeline("status", path).stdout
    if not goes_on:
        return

    path = write(feed, other, columns='id = "decimal(38,0)"')
    assert "The column 'id' of the table" in pipeline("run", path, code=1).stderr
    path = write(feed, other, columns='note = "json?"\nid = "long"')
    assert "At the next run the table lines gets the column note (string)." in pipeline("check", path).stdout
    assert "note" not in rows(path, "lines")[0]

    feed.dialog(b'{"id": 300, "note": [1.10, -0.0, 12345678901234567890.123456789]}', b'{"id": 301, "id": 302}')
    done = pipeline("run", path, "--once", "--json")
    assert "The table lines gets the column note (string)." in done.stderr
    assert json.loads(done.stdout)["queues"][0]["messages"] == 2
    assert pipeline_json("replay", path)["message_types"] == [{"message_type": LINE, "written": 0, "remaining": 5}]
    assert {row["id"]: row["note"] for row in rows(path, "lines")} == dict.fromkeys([*range(20), 100, 200]) | {
        300: "[1.10,-0.0,12345678901234567890.123456789]"
    }
    compacted = {entry["table"]: entry for entry in pipeline_json("compact", path, "--keep-hours", "0")["tables"]}
    assert compacted["lines"]["merged"] >= 2
    assert compacted["lines"]["removed"] >= 2
    assert sorted(row["id"] for row in rows(path, "lines")) == [*range(20), 100, 200, 300]
    files = DeltaTable(read_pipeline(path).folder("lines")).file_uris()
    found = duckdb.sql(f"select count(*), count(distinct id) from read_parquet({files})")
    assert found.fetchall() == [(23, 23)]

    path = write(feed, other, columns='id = "decimal(38,0)"')
    assert pipeline_json("rebuild", path, "lines") == {"table": "lines", "rows": 24, "quarantined": 4}
    assert sorted(row["id"] for row in rows(path, "lines"))[-2:] == [300, 10**30]
    assert pipeline_json("status", path)["quarantined"] == {
        f"{LINE}: {reason}": 1 for reason in ("wrong encoding", "empty", "too large", "duplicate key")
    }


def in_json(text):
    """The objects of a log in JSON, which has nothing else."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.full
@pytest.mark.spark
def test_quarantined_messages_are_reported_and_can_fail_the_run(feed, write):
    feed.dialog(*(b'{"id": %d}' % number for number in range(10)), *[b"?"] * 50)
    path = write(feed)
    done = pipeline("run", path, "--once", "--json", "--fail-on-quarantine", code=3)
    (line,) = done.stdout.splitlines()
    (result,) = json.loads(line)["queues"]
    by_rule = {LINE: {"malformed": 50}}
    assert (result["messages"], result["quarantined"], result["quarantined_by_rule"]) == (60, 50, by_rule)
    log = in_json(done.stderr)
    batch = wait_for_event(iter(log), "batch")
    assert (batch["level"], batch["quarantined"], batch["quarantined_by_rule"]) == ("WARNING", 50, by_rule)
    assert (
        f"60 messages in 1 batch, 50 in quarantine ({LINE}: malformed 50)"
        in wait_for_event(iter(log), "queue ended")["message"]
    )
    assert wait_for_event(iter(log), "run ends")["quarantined"] == 50
    assert log[-1]["level"] == "ERROR"
    assert f"50 messages went into quarantine in this run ({LINE}: malformed 50)" in log[-1]["message"]
    assert (len(rows(path, "lines")), len(rows(path, "quarantine")), feed.waiting_count()) == (10, 50, 0)
    standing = told_status(path)["run"]
    assert standing["queues"][0]["quarantined_by_rule"] == by_rule
    assert "50 messages went into quarantine" in standing["error"]
    shown = " ".join(pipeline("status", path).stdout.split())
    assert f"50 of 60 messages went into quarantine ({LINE}: malformed 50)." in shown


@pytest.mark.full
@pytest.mark.spark
def test_a_run_that_goes_on_ends_when_a_rule_has_more_in_quarantine_than_it_allows(feed, write):
    feed.dialog(b"?", b"?", b'{"id": 1}')
    path = write(feed, rule="maximum_quarantined = 1")
    over = pipeline("run", path, code=3)
    assert f"2 messages of the type '{LINE}' went into quarantine in this run, and its rule allows 1" in over.stderr
    assert (len(rows(path, "lines")), len(rows(path, "quarantine"))) == (1, 2)
    pipeline("run", path, "--once")  # landed messages are not read again
    assert len(rows(path, "quarantine")) == 2


def test_the_log_in_json_has_nothing_else_when_a_run_does_not_begin(feed, write):
    path = write(feed)
    path.write_text(path.read_text().replace(feed.queue, "Nowhere"))
    done = pipeline("run", path, "--json", code=1)
    assert [one["level"] for one in in_json(done.stderr)] == ["INFO", "INFO", "ERROR"]
    assert "Nowhere" in in_json(done.stderr)[-1]["message"]
    assert json.loads(done.stdout) == {"queues": []}


@pytest.mark.full
@pytest.mark.spark
def test_a_registry_that_is_away_is_waited_for_and_nothing_is_quarantined(feed, write, unused_port):
    head = b"\0\0\0\0\1"
    feed.dialog(head + b'{"id": 1}', head + b'{"id": "x"}')
    path = write(feed, rule=f'registry = "http://127.0.0.1:{unused_port}"')
    with start_run(path, "--once") as (run, events, expected_text):
        failed = wait_for_event(events, "queue restarts")
        unreachable = f"The schema registry at 'http://127.0.0.1:{unused_port}' cannot be reached ("
        assert failed["reason"].startswith(unreachable)
        with run_registry(unused_port) as registry:
            registry.add_schema(1, "JSON", {"properties": {"id": {"type": "integer"}}})
            assert wait_for_event(events, "batch")["batch"] == 0
            assert list(events)[-1]["event"] == "run ends"
        assert run.wait(timeout=60) == 0, expected_text
        (result,) = json.loads(run.stdout.read())["queues"]
    assert (result["batches"], result["restarts"] >= 1, result["state"]) == (1, True, "ended")
    assert [row["id"] for row in rows(path, "lines")] == [1]
    assert [row["reason"] for row in rows(path, "quarantine")] == ["invalid"]
    assert len(rows(path, "bronze")) == 2


@contextlib.contextmanager
def start_run(*arguments):
    """A run, the events that it logs as they come, and what else it says."""
    words = ("pipeline", "run", *arguments, "--json")
    run = Command(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, warnings=True)

    def events():
        for line in run.stderr:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                said.append(line)

    said = []
    with run:
        yield run, events(), said


def wait_for_event(events, event):
    return next(one for one in events if one.get("event") == event)


@pytest.mark.full
@pytest.mark.spark
def test_a_queue_that_fails_is_started_again_while_the_others_go_on_and_all_is_told(database, feed, write):
    other = Feed(database)
    feed.dialog(b'{"id": 1}', b'{"id": 2}')
    other.dialog(b'{"id": 3}')
    path = write(other, feed)
    path.write_text(path.read_text().replace(f'"{other.queue}"', f'"{other.queue}"\nclaim_timeout = 0'))
    with contextlib.ExitStack() as stack, database.instance.connection() as reader:
        reader.execute("select pg_advisory_lock(%s, %s)", (locks.PIPELINE_QUEUE, other.queue_id))
        run, events, said = stack.enter_context(start_run(path, "--once"))
        failed = wait_for_event(events, "queue restarts")
        assert (failed["queue"], failed["restarts"], failed["level"]) == (f"Warehouse.{other.queue}", 1, "WARNING")
        assert "being read by another pipeline" in failed["reason"]
        batch = wait_for_event(events, "batch")  # of the other one, meanwhile
        told = {key: batch[key] for key in ("queue", "messages", "bytes", "messagesBehind")}
        assert told == {"queue": f"Warehouse.{feed.queue}", "messages": 2, "bytes": 18, "messagesBehind": 0}
        (standing,) = (one for one in told_status(path)["run"]["queues"] if one["restarts"])
        assert standing["queue"] == failed["queue"]
        reader.execute("select pg_advisory_unlock_all()")
        left = [pid for pid, name in family(run.pid) if name.startswith("python")]
        rest = list(events)
        assert run.wait(timeout=60) == 0, said
        result = {one["queue"]: one for one in json.loads(run.stdout.read())["queues"]}
    for one in (feed, other):  # the queues are free
        assert one.database.receive(one.queue) == []
    eventually(lambda: not any(map(lives, left)))
    assert sorted(row["id"] for row in rows(path, "lines")) == [1, 2, 3]
    assert result[f"Warehouse.{feed.queue}"]["messages"] == 2
    assert result[failed["queue"]]["restarts"] >= 1
    assert rest[-1]["event"] == "run ends"
    assert (rest[-1]["messages"], rest[-1]["bytes"]) == (3, 27)
    assert told_status(path)["run"]["error"] is None


def lives(pid):
    """Return whether a process runs; a zombie does not."""
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def told_status(path):
    return pipeline_json("status", path)


@pytest.mark.spark
@pytest.mark.full
def test_a_java_that_is_killed_is_said_also_by_the_status(feed, write):
    path = write(feed)
    with start_run(path) as (run, events, expected_text):
        wait_for_event(events, "queue started")
        (java,) = (pid for pid, name in family(run.pid) if name == "java")
        os.kill(java, signal.SIGKILL)
        *_, last = events
        assert run.wait(timeout=60) == 1
        assert "Java, in which Spark runs, was killed (signal 9)" in last["message"]
    assert expected_text == []
    assert "was killed (signal 9)" in told_status(path)["run"]["error"]
    assert "has failed: Java" in pipeline("status", path).stdout


def test_the_status_knows_of_a_run_that_never_began(feed, write):
    path = write(feed)
    assert told_status(path)["run"] is None
    shown = pipeline("status", path).stdout
    assert "There was no run yet." in shown
    assert "-1" not in shown  # the number of a batch that never was
    good = path.read_text()
    path.write_text(good.replace(feed.queue, "Nowhere"))
    assert "Nowhere" in pipeline("run", path, code=1).stderr
    path.write_text(good)
    assert "Nowhere" in told_status(path)["run"]["error"]
    place = path.parent / "tables" / "_checkpoints" / "_last_run.json"
    noted = json.loads(place.read_text())
    gone = subprocess.Popen(["true"])
    gone.wait()
    place.write_text(json.dumps(noted | {"ended": None, "error": None, "process": gone.pid}))
    assert "It was killed: its process" in " ".join(pipeline("status", path).stdout.split())


def test_the_status_looks_again_and_tells_of_a_server_that_is_away(feed, write, unused_port):
    path = write(feed)
    away = f'instance = "postgresql://127.0.0.1:{unused_port}/none"\ndatabase = "Shop"\nqueue = "Away"'
    path.write_text(path.read_text() + f"[[queue]]\n{away}\n")
    feed.dialog(b"1", b"2")
    with subprocess.Popen(
        [*COMMAND, "status", path, "--watch", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        looks = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0, watching.stderr.read()
    for look in looks:
        here, there = look["queues"]
        assert (here["behind"]["messagesBehind"], here["problem"]) == (2, None)
        assert (there["queue"], there["behind"]) == ("Shop.Away", {})
        assert str(unused_port) in there["problem"]
    shown = " ".join(pipeline("status", path, code=1).stdout.split())
    assert f"Shop.Away: {there['problem']}"[:60] in shown
    assert str(unused_port) in pipeline("check", path, code=1).stderr


@pytest.mark.full
@pytest.mark.spark
def test_a_run_with_an_end_names_the_transaction_that_holds_messages_back(feed, write):
    path = write(feed)
    with feed.database.transaction() as slow:
        slow.send(feed.dialog(), LINE, b"{}")
        feed.dialog(*(b'{"id": %d}' % number for number in range(10)))
        done = pipeline("run", path, "--once", "--wait", "1", "--json", code=4)
        assert wait_for_event(iter(in_json(done.stderr)), "queue waits")["held_back"] == 10
        assert "10 committed messages are held back by process" in in_json(done.stderr)[-1]["message"]
        (result,) = json.loads(done.stdout)["queues"]
        assert (result["messages"], result["held_back"]) == (0, 10)
        assert "10 committed messages are held back" in pipeline("status", path).stdout
    pipeline("run", path, "--once")
    assert len(rows(path, "lines")) == 10


@pytest.mark.full
@pytest.mark.spark
def test_a_spark_that_does_not_start_says_why(feed, write):
    done = pipeline("run", write(feed), "--master", "mars", code=1)
    assert "Spark does not start: org.apache.spark.SparkException: " in done.stderr
    assert "mars" in done.stderr
    done = pipeline("run", write(feed), "--conf", "spark.driver.memory=8k", code=1)
    assert "Spark does not start: " in done.stderr


@pytest.mark.full
@pytest.mark.spark
def test_a_pipeline_on_a_cluster_ends_conversations_with_bad_messages(feed, write):
    bad = feed.dialog(b'{"id": 1}', b"?")
    feed.dialog(b'{"id": 2}')
    path = write(feed, rule='when_bad = "end conversation"\npartition_by = "_date"')
    pipeline_json("run", path, "--once", "--master", "local-cluster[2,1,1024]")
    assert sorted(row["id"] for row in rows(path, "lines")) == [1, 2]
    (message,) = feed.database.receive(feed.reply_queue)
    assert (message.conversation_handle, message.message_type_name) == (bad, names.ERROR)
    assert "malformed" in message.message_body.decode("utf-16" if message.message_body[:1] == b"\xff" else "utf-8")
    assert feed.waiting_count() == 0


@pytest.mark.full
@pytest.mark.spark
def test_a_continuous_run_ends_on_ctrl_c_and_the_next_continues(feed, write, unused_port):
    feed.dialog(b'{"id": 1}')
    path = write(feed, head="trigger_seconds = 0.1")
    run = subprocess.Popen(
        [*COMMAND, "run", str(path), "--metrics-port", str(unused_port)],  # no wrapper around the program
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def has_landed(count):
        return lambda: (path.parent / "tables" / "lines" / "_delta_log").exists() and len(rows(path, "lines")) == count

    eventually(has_landed(1), seconds=300)
    feed.dialog(b'{"id": 2}')
    eventually(has_landed(2))

    def read_metrics():
        with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/metrics") as page:
            return (
                f'servicebroker_pipeline_messages_total{{pipeline="test",queue="Warehouse.{feed.queue}"}} 2.0'
                in page.read().decode()
            )

    eventually(read_metrics)
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130, errors
    assert "Nothing is lost" in errors
    assert "Traceback" not in errors
    pipeline_json("run", path, "--once")
    assert sorted(row["id"] for row in rows(path, "lines")) == [1, 2]


@pytest.mark.full
@pytest.mark.spark
def test_a_rule_that_says_stop_ends_the_run_with_one_sentence(feed, write):
    feed.dialog(b"?")
    done = pipeline("run", write(feed, rule='when_bad = "stop"'), "--once", code=1)
    assert "cannot be read (malformed" in done.stderr
    assert feed.waiting_count() == 1


def test_invalid_pipelines_are_refused_before_spark_starts(feed, write, tmp_path):
    wrong = pipeline("run", write(feed), "--conf", "executor.memory=1g", code=2)
    assert "'executor.memory=1g' is not a Spark setting" in wrong.stderr
    assert "there is no key 'colour'" in pipeline("check", write(feed, rule='colour = "red"'), code=1).stderr
    assert "cannot be read: No such file" in pipeline("run", tmp_path / "none.toml", code=1).stderr
    away = write(feed, rule='registry = "http://127.0.0.1:9"')
    assert "The schema registry at 'http://127.0.0.1:9' cannot be reached" in pipeline("check", away, code=1).stderr
    path = write(feed)
    path.write_text(path.read_text().replace(feed.queue, "Nowhere"))
    assert "Nowhere" in pipeline("check", path, code=1).stderr
    assert "can run" in pipeline("check", write(feed, head='format = "parquet"')).stdout
    secret = write(feed)
    secret.write_text(secret.read_text().replace("tables", "ftp://${SECRET_PLACE}/x"))
    refused = run_command("pipeline", "check", secret, env=os.environ | {"SECRET_PLACE": "hush-hush"}, timeout=60)
    assert "hush" not in refused.stderr
    assert "tables are in local folders" in refused.stderr
    other = write(feed)
    other.write_text(other.read_text().replace(f'type = "{LINE}"', 'type = "Lien"'))
    assert pipeline_json("check", other)["unknown_types"] == ["Lien"]
    assert "no database of the queues has the message type 'Lien'" in pipeline("check", other).stderr
    assert pipeline_json("check", write(feed))["unknown_types"] == []
    plain = pipeline("compact", write(feed, head='format = "parquet"'), code=1)
    assert "Only tables of Delta or Iceberg can be compacted" in plain.stderr
    iceberg = write(feed, head='format = "iceberg"\ncatalog = "nowhere"\nnamespace = "shop"')
    assert "PYICEBERG_CATALOG__NOWHERE__URI" in pipeline("check", iceberg, code=1).stderr
    assert Path(path).exists()


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
