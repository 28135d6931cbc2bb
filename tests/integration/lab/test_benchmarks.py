"""Every benchmark at a tiny scale: the tests check that figures are measured and compared, not their values."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker_lab import benchmarks
from servicebroker_lab.benchmarks import pipeline, remote, remote_scale, runner
from servicebroker_lab.benchmarks.measure import Meter
from servicebroker_lab.benchmarks.rabbitmq import ShovelPair, find_server
from servicebroker_lab.benchmarks.remote_scale import core_counts
from servicebroker_lab.benchmarks.report import Report
from servicebroker_lab.benchmarks.scenarios import BARE, SCENARIOS

NOT_HERE = ("pipeline", "storage-", "remote-", "scale-", "cpu-")
SHORT = ["send-one", "send-batch", "receive-one", "receive-batch", "worker", "dialog-begin", "request-one", "poison"]
ON_THE_SERVER = [*[name for name in SCENARIOS if not name.startswith(NOT_HERE)], "cpu-receive-one", "cpu-poison"]

# A stand-in for pgmq.sql: the measured functions with their signatures, and lines for psql only.
STAND_IN = r"""
\echo Use "CREATE EXTENSION pgmq" to load this file. \quit
create table pgmq.q_bench (msg_id bigint generated always as identity primary key, message jsonb);
select pg_catalog.pg_extension_config_dump('pgmq.q_bench', '');
create function pgmq.create(queue_name text) returns void language sql as '';
create function pgmq.purge_queue(queue_name text) returns void language sql as 'truncate pgmq.q_bench';
create function pgmq.send(queue_name text, msg jsonb) returns setof bigint language sql as
    'insert into pgmq.q_bench (message) values (msg) returning msg_id';
create function pgmq.send_batch(queue_name text, msgs jsonb[]) returns setof bigint language sql as
    'insert into pgmq.q_bench (message) select unnest(msgs) returning msg_id';
create function pgmq.read(queue_name text, vt int, qty int) returns setof pgmq.q_bench language sql as
    'select * from pgmq.q_bench order by msg_id limit qty';
create function pgmq.pop(queue_name text) returns setof pgmq.q_bench language sql as
    'delete from pgmq.q_bench where msg_id = (select min(msg_id) from pgmq.q_bench) returning *';
create function pgmq.delete(queue_name text, msg_ids bigint[]) returns setof bigint language sql as
    'delete from pgmq.q_bench where msg_id = any (msg_ids) returning msg_id';
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sql_file = tmp_path_factory.mktemp("pgmq") / "pgmq--9.8.7.sql"
    sql_file.write_text(STAND_IN)
    return sql_file


@pytest.fixture
def few_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open only the systems for single messages: the others take ten seconds to open."""
    for kind in ("network", "activation", "request", "tsql", "tds", "fence", "dialog", "storage"):
        monkeypatch.setattr(runner, f"{kind}_systems", lambda *_: [])


@pytest.fixture(scope="module")
def scenarios(pytestconfig: pytest.Config) -> list[str]:
    return ON_THE_SERVER if pytestconfig.option.full else SHORT


@pytest.fixture(scope="module")
def report(stand_in: Path, scenarios: list[str]) -> Report:
    return benchmarks.run(scenarios, pgmq_sql=stand_in, scale=0.01, rounds=1)


def test_every_scenario_measures_us_and_every_peer(report: Report, scenarios: list[str]) -> None:
    for name in scenarios:
        systems = {line.system for line in report.lines if line.scenario == name}
        assert systems - {BARE} == {"servicebroker", *SCENARIOS[name].goals} - {BARE}
    for line in report.lines:
        assert line.figures is not None
        assert line.figures.per_second > 0
        assert line.version
    assert {line.version[:5] for line in report.lines if line.system == "pgmq"} == {"9.8.7"}


def test_ratios_are_ours_over_theirs(report: Report) -> None:
    for line in report.lines:
        if line.system == "servicebroker":
            assert line.ratio is None
            continue
        ours = next(other for other in report.lines if other.scenario == line.scenario)
        assert ours.figures
        assert line.figures
        if line.is_cost:  # with so few messages the cost may be below the clock's resolution
            spent = line.figures.server
            assert line.ratio == (pytest.approx(ours.figures.server / spent) if spent else None)
        else:
            assert line.ratio == pytest.approx(ours.figures.per_second / line.figures.per_second)
        assert line.goal == SCENARIOS[line.scenario].goals.get(line.system)


def test_scenarios_with_a_commit_per_message_have_a_bound(report: Report, scenarios: list[str]) -> None:
    bounded = {line.scenario: line.figures for line in report.lines if line.system == BARE}
    single = ["send-one", "receive-one", "worker", "workers", "dialog-begin", "dialog-answer", "dialog-end"]
    committing = [*single, "request-one", "request", "cpu-receive-one"]
    assert list(bounded) == [name for name in committing if name in scenarios]
    for scenario, figures in bounded.items():
        assert figures
        assert 0.99 < figures.commits < 1.01 + allowed_commits(report, scenario)


def allowed_commits(report: Report, scenario: str) -> float:
    """Return the commits per message to allow for other sources, such as autovacuum.

    Ten of them occurred during 30 messages on a slow machine.
    """
    return 20 / report.conditions.messages[scenario]


@pytest.mark.parametrize(
    ("scenario", "messages_per_commit"),
    [("send-one", 1), ("send-batch", 1000), ("receive-one", 1), ("receive-batch", 1000), ("worker", 1)],
)
def test_our_commits_and_wal_per_message(report: Report, scenario: str, messages_per_commit: int) -> None:
    ours = next(line.figures for line in report.lines if line.scenario == scenario)
    assert ours
    assert 0.99 / messages_per_commit < ours.commits < 4 / messages_per_commit + allowed_commits(report, scenario)
    assert ours.wal_bytes > 30


def test_the_page_and_the_chart(report: Report, scenarios: list[str], tmp_path: Path) -> None:
    report.write(tmp_path / "benchmarks.md")
    page = (tmp_path / "benchmarks.md").read_text()
    for name in scenarios:
        assert SCENARIOS[name].title in page
        if not SCENARIOS[name].compares_cpu_time:
            assert f">{SCENARIOS[name].title}<" in (tmp_path / "benchmarks.svg").read_text()
    assert str(tmp_path) not in page
    assert report.conditions.postgresql in page


@pytest.mark.usefixtures("few_systems")
@pytest.mark.full
def test_processes_share_the_work_and_processor_time_is_seen(stand_in: Path) -> None:
    lines = benchmarks.run(["scale-send-1-1", "scale-receive-1000-1"], pgmq_sql=stand_in, scale=0.1, rounds=1).lines
    assert [line.system for line in lines] == ["servicebroker", "pgmq"] * 2
    for line in lines:
        assert line.settings == "1 process"
        assert line.figures
    sent = lines[0].figures
    assert sent
    assert "%" in sent.waits
    assert sent.server > 10
    assert sent.client > 10


@pytest.mark.usefixtures("few_systems")
@pytest.mark.full
def test_a_system_that_cannot_run_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_peers(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".")[0] in ("pgqueuer", "procrastinate"):
            raise ImportError(name)
        return real_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_peers)
    lines = benchmarks.run(["send-one"], scale=0.01, rounds=1).lines
    assert {line.system: line.reason for line in lines} == {
        "servicebroker": "",
        BARE: "",
        "pgmq": "give --pgmq-sql FILE",
        "pgqueuer": "pip install 'servicebroker[bench]'",
        "procrastinate": "pip install 'servicebroker[bench]'",
    }
    assert {line.is_reached for line in lines if line.reason} == {None}


@pytest.mark.usefixtures("few_systems")
@pytest.mark.full
def test_a_file_that_is_not_pgmq(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.sql"
    wrong.write_text("select 1;")
    with pytest.raises(InstanceError, match=r"wrong\.sql' is not an SQL file of a pgmq release: .*pgmq\.create"):
        benchmarks.run(["send-one"], pgmq_sql=wrong, scale=0.01, rounds=1)


def test_work_that_loses_messages_is_no_result(make_url: Any) -> None:
    meter = Meter(make_url())
    with pytest.raises(InstanceError, match="handled 9 messages where 10 were due"):
        meter.sample(lambda messages: messages - 1, 10)
    meter.close()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.feature(208, 209)
def test_storage(stand_in: Path) -> None:
    """Measure each condition and its baseline. Two ratios are large enough for any scale: whole groups against
    single messages, and one conversation against one for each message."""
    report = benchmarks.run(["storage"], pgmq_sql=stand_in, scale=0.001, rounds=1)
    names = [name for name in SCENARIOS if name.startswith("storage-")]
    for name in names:
        lines = [line for line in report.lines if line.scenario == name]
        assert [line.system for line in lines] == ["servicebroker", *SCENARIOS[name].goals]
        assert all(line.figures and line.figures.per_second > 0 for line in lines)
    report = benchmarks.run(["storage-whole-group", "storage-reuse-send", "storage-reuse-receive"], scale=0.1, rounds=3)
    assert all(line.ratio is None or line.ratio > 1.5 for line in report.lines)  # the goals are for a quiet machine


@pytest.mark.full
@pytest.mark.spark
def test_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "WARM_UP", 200)
    names = ["pipeline", "pipeline-batch", "pipeline-stream", "pipeline-steady", "pipeline-write"]
    lines = benchmarks.run(names, scale=0.002, rounds=1).lines
    goals_by_scenario = [[(line.system, line.goal) for line in lines if line.scenario == name] for name in names]
    assert goals_by_scenario == [
        [("servicebroker", None), ("spark", 0.5), ("spark", 0.5)],
        [("servicebroker", None), ("spark", 0.9), ("parquet", 0.5), ("jdbc", 0.9)],
        [("servicebroker", None), ("spark", 0.65), ("parquet", 0.33), ("jdbc", 0.65)],
        [("servicebroker", None), ("jdbc", 0.8)],
        [("servicebroker", None), ("spark", 0.45), ("jdbc", 0.45)],
    ]
    assert {line.reason for line in lines if line.system == "jdbc"} == {"give --jdbc-jar FILE"}
    assert all(line.figures and line.figures.per_second > 0 for line in lines if line.system != "jdbc")


@pytest.mark.full
@pytest.mark.spark
def test_a_deep_queue_is_drained_and_memory_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "WARM_UP", 20)
    monkeypatch.setattr(pipeline, "DRAIN_BATCHES", 4)
    first, last = benchmarks.run(["pipeline-depth"], scale=0.0004).lines
    assert (first.system, last.system, last.goal) == ("servicebroker", "baseline", 0.9)
    for line, which in ((first, "first"), (last, "last")):
        assert line.figures
        assert line.figures.per_second > 0
        held = r"driver [1-9]\d* MB, Java [1-9]\d* MB, Python [1-9]\d* MB"
        assert re.fullmatch(rf"the {which} 1,000, 1,000 a batch; {held}", line.settings)


def test_a_jar_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="is not a jar of PostgreSQL's JDBC driver"):
        benchmarks.run(["pipeline-batch"], jdbc_jar=tmp_path)


@pytest.mark.full
def test_between_two_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are encrypted in both layers, or not at all, and the reader checks every message."""
    monkeypatch.setattr(remote, "find_server", lambda: None)  # the next test starts it
    monkeypatch.setattr(remote, "CORES_OF_READER", 1)  # two readers on a machine with two cores
    report = benchmarks.run(["remote-100", "remote-latency"], scale=0.02, rounds=1)
    line_labels = [(line.scenario, line.system, line.label) for line in report.lines]
    ways = [("servicebroker", "TLS and dialog security"), ("baseline", "encryption off")]
    local = ("remote-100", "local", "the same senders, into a queue of their own")
    rabbitmq = ("remote-100", "rabbitmq", "")
    latency = [("remote-latency", *way) for way in ways]
    assert line_labels == [("remote-100", *ways[0]), local, ("remote-100", *ways[1]), rabbitmq, *latency]
    measured = [line for line in report.lines if line.system != "rabbitmq"]
    assert all(line.figures is not None and line.figures.per_second > 0 for line in measured)
    assert [line.ratio is None for line in measured] == [True, False, False, True, False]
    assert "µs of CPU per message" in measured[0].settings
    assert "99th percentile" in measured[3].settings
    assert report.lines[3].reason == "install rabbitmq-server"


@pytest.mark.full
def test_by_how_many_cores_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_scale, "STEADY_TIME_S", 0.2)
    mine = os.sched_getaffinity(0)
    lines = benchmarks.run(["remote-scale"], scale=0.02).lines
    assert os.sched_getaffinity(0) == mine
    assert [line.label.rpartition("cores, ")[2] for line in lines[:3]] == [
        "100 per transaction",
        "10 per transaction",
        "1 per transaction",
    ]
    for line in lines:
        assert line.figures is not None
        assert line.figures.per_second > 0
        busy = dict(re.findall(r"([a-z]+(?: of [a-z0]+)?) (\d+)%", line.settings.partition("parts of a core: ")[2]))
        parts = ["daemon of west0", "daemon of east", "backend of west0", "backend of east", "senders", "readers"]
        assert [part.strip() for part in busy] == parts
        assert sum(map(int, busy.values())) > 0


def test_core_counts_are_powers_of_two_up_to_16() -> None:
    assert [core_counts(cores) for cores in (1, 2, 3, 4, 16, 20)] == [
        [1],
        [2],
        [2],
        [2, 4],
        [2, 4, 8, 16],
        [2, 4, 8, 16],
    ]


@pytest.mark.full
def test_beside_a_large_message_and_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SETTLE_TIME_S", 0.1)
    monkeypatch.setattr(remote, "AT_REST", 0.1)
    report = benchmarks.run(["remote-large", "remote-rest"], scale=0.01)
    assert all(line.figures is not None and line.figures.per_second > 0 for line in report.lines)
    large, idle, rest = (line.settings for line in report.lines)
    assert "beside one of 10 MB: median" in large
    assert "on an idle system: median" in idle
    assert re.fullmatch(r"100 idle conversations: a daemon uses [\d.]+% of a core and [\d]+ MB", rest)


@pytest.mark.parametrize("batch", [1, 100])
def test_rabbitmq_carries_as_many_as_were_published(rabbitmq: ShovelPair, batch: int) -> None:
    assert [rabbitmq.send_and_receive(count, batch) for count in (40, 250)] == [40, 250]
    assert rabbitmq.version


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShovelPair]:
    server = find_server()
    if server is None:
        pytest.skip("RabbitMQ is not installed")
    with closing(ShovelPair(server, tmp_path_factory.mktemp("rabbitmq") / "nodes", 2)) as nodes:
        yield nodes
