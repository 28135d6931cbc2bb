"""Replay of quarantine, compaction and analysis, with tables in a folder. No Spark, no server."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("fastavro")

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from lxml import html

from pipeline_tables import ORDER, QUEUE, batch, land, message, order, pipeline, table
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.analysis import Hour, analyze
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import MessageRule, QueueRule
from servicebroker.pipeline.late_rules import find_late
from servicebroker.pipeline.late_rules import replay as replay_late
from servicebroker.pipeline.rebuild import rebuild
from servicebroker.pipeline.report import report
from servicebroker.pipeline.sinks.delta import DeltaVersion
from servicebroker.pipeline.sinks.delta_reader import open_table
from servicebroker.pipeline.sinks.maintenance import compact, last_committed_batch, replay
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows

STRICT = replace(ORDER, columns=(Column("id", "long"), Column("note", "string")))


def test_replay_writes_messages_that_a_corrected_rule_can_read(tmp_path):
    before = pipeline(tmp_path, STRICT)
    land(before, "q", 0, batch(order(1), order(2, note=None), message(3, b"?"), message(4, b"?", "Unheard")))
    assert len(table(before, "quarantine")) == 2
    after = pipeline(tmp_path, replace(STRICT, columns=(Column("id", "long"), Column("note", "string", True))))
    assert replay(after) == [("Order", 1, 1)]
    assert sorted(row["id"] for row in table(after, "orders")) == [1, 2]
    assert [row["message_body"] for row in table(after, "quarantine")] == [b"?"]
    assert replay(after) == [("Order", 0, 1)]


def test_a_replay_that_was_cut_off_lands_nothing_twice(tmp_path, monkeypatch):
    before = pipeline(tmp_path, STRICT)
    land(before, "q", 0, batch(*(order(n, note=None) for n in range(5))))
    after = pipeline(tmp_path, replace(STRICT, columns=(Column("id", "long"), Column("note", "string", True))))

    def lose_power(*arguments, **more):
        raise OSError("the power went")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaVersion, "replace_files", lose_power)
        with pytest.raises(InstanceError, match=r"cannot be changed: the power went\."):
            replay(after)
    assert (len(table(after, "orders")), len(table(after, "quarantine"))) == (5, 5)
    assert replay(after, "Order") == [("Order", 5, 0)]
    assert (len(table(after, "orders")), len(table(after, "quarantine"))) == (5, 0)


def test_quarantine_of_several_types_is_read_again_and_again(tmp_path):
    kinds = ("Order", "Return", "Offer")
    strict = [replace(STRICT, message_type=kind, table=kind.lower()) for kind in kinds]
    before = pipeline(tmp_path, *strict)
    for number, kind in enumerate(kinds):
        bodies = [order(10 * number + index, note=None, kind=kind) for index in range(3)]
        land(before, "q", number, batch(*bodies, message(10 * number + 5, b"?", kind)))
    after = pipeline(tmp_path, *(replace(rule, columns=(Column("id", "long"),)) for rule in strict))
    assert replay(after) == [(kind, 3, 1) for kind in kinds]
    for _ in range(3):
        assert replay(after) == [(kind, 0, 1) for kind in kinds]
    assert sorted(row["queuing_order"] for row in table(after, "quarantine")) == [5, 15, 25]
    kind = ds.field("message_type_name")
    delta_table = DeltaTable(after.folder("quarantine")).to_pyarrow_dataset()
    assert delta_table.to_table(filter=kind == "Return").num_rows == 1


def test_files_of_deltalakes_merge_can_be_replayed(tmp_path):
    """Its files store texts as views. Earlier versions and other programs write such files."""
    before = pipeline(tmp_path, STRICT)
    land(before, "q", 0, batch(order(1, note=None), order(2, note=None), message(3, b"?", "Unheard")))
    merged = DeltaTable(before.folder("quarantine"))
    gone = pa.table({"queuing_order": [2]})
    merge = merged.merge(gone, "t.queuing_order = s.queuing_order", source_alias="s", target_alias="t")
    merge.when_matched_delete().execute()
    after = pipeline(tmp_path, replace(STRICT, columns=(Column("id", "long"),)))
    assert replay(after) == [("Order", 1, 0)]
    assert replay(after) == [("Order", 0, 0)]


def test_a_table_with_a_key_is_read_by_filters_of_arrow(tmp_path):
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",)))
    land(pipe, "q", 0, batch(order(1, key=1, note="a"), order(2, key=2, note="b")))
    land(pipe, "q", 1, batch(order(3, key=1, note="c")))
    dataset = DeltaTable(pipe.folder("orders")).to_pyarrow_dataset()
    assert dataset.to_table(filter=ds.field("note") == "c")["id"].to_pylist() == [1]
    for uri in DeltaTable(pipe.folder("orders")).file_uris():
        assert pq.read_table(uri, filters=[("note", "==", "b")]).schema.field("note").type == pa.string()


def test_an_impossible_replay_is_refused(tmp_path):
    assert replay(pipeline(tmp_path)) == []
    with pytest.raises(InstanceError, match="no rule for 'Unheard'"):
        replay(pipeline(tmp_path), "Unheard")
    with pytest.raises(InstanceError, match="only if the pipeline writes Delta or Iceberg tables"):
        replay(pipeline(tmp_path, format="parquet"))


def test_files_are_merged_and_old_ones_removed(tmp_path):
    pipe = pipeline(tmp_path)
    for number in range(4):
        land(pipe, "q", number, batch(order(number)))
    (_, orders) = compact(pipe, 0)
    assert (orders.merged, orders.written, orders.removed) == (4, 1, 4)
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1, 2, 3]
    land(pipe, "q", 4, batch(order(4)))
    land(pipe, "new", 0, batch(*(order(number) for number in range(6))))  # compacted messages are still known
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1, 2, 3, 4, 5]
    assert compact(pipeline(tmp_path / "empty"), 24) == []


def land_concurrently(monkeypatch, folder, landing, times):
    """Let another batch land, `times` times, between the opening of a table and its change."""
    numbers = iter(range(times))

    def stale(path, version=None):
        opened = open_table(path, version)
        if path == folder and (number := next(numbers, None)) is not None:
            landing(number)
        return opened

    monkeypatch.setattr("servicebroker.pipeline.sinks.delta.open_table", stale)


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf")])
def test_a_time_to_keep_versions_that_is_none_is_refused(tmp_path, hours):
    with pytest.raises(InstanceError, match="must be at least 0, not"):
        compact(pipeline(tmp_path), hours)


@pytest.mark.parametrize("offset", ["", "{", "5", "[]", "null"])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path, offset):
    for name, content in (("offsets", f"v1\n{{}}\n{offset}"), ("commits", "v1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_text(content)
    with pytest.raises(InstanceError, match=r"is damaged|not written by this version"):
        last_committed_batch(tmp_path)


def test_files_are_merged_beside_a_pipeline_that_lands(tmp_path, monkeypatch):
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",)))
    for number in range(4):
        land(pipe, "q", number, batch(order(number), message(10 + number, b"?")))

    def landing(number):
        land(pipe, "q", 4 + number, batch(*(order(100 + 10 * number + key, key=key, note="new") for key in range(4))))

    with monkeypatch.context() as patched:
        land_concurrently(patched, pipe.folder("orders"), landing, 1)
        assert [result.table for result in compact(pipe, 0)] == ["bronze", "orders", "quarantine"]
    assert {row["note"] for row in table(pipe, "orders")} == {"new"}
    land(pipe, "other", 0, batch(message(20, b"?")))
    with monkeypatch.context() as patched:
        land_concurrently(patched, pipe.folder("orders"), lambda number: landing(1 + number), 1000)
        with pytest.raises(InstanceError, match=r"orders' has too many concurrent writers: try again.+are done"):
            compact(pipe, 0)
    assert len(DeltaTable(pipe.folder("quarantine")).file_uris()) == 1
    assert len(table(pipe, "orders")) == 4


def test_quarantine_is_read_again_beside_a_pipeline_that_fills_it(tmp_path, monkeypatch):
    before = pipeline(tmp_path, STRICT)
    land(before, "q", 0, batch(order(1, note=None)))
    after = pipeline(tmp_path, replace(STRICT, columns=(Column("id", "long"), Column("note", "string", True))))
    folder = after.folder("quarantine")
    land_concurrently(
        monkeypatch, folder, lambda number: land(after, "q", 1 + number, batch(message(2 + number, b"?"))), 2
    )
    assert replay(after) == [("Order", 1, 0)]
    assert sorted(row["queuing_order"] for row in table(after, "quarantine")) == [2, 3]


def test_a_table_that_cannot_be_changed_is_said_and_the_others_are_compacted(tmp_path):
    pipe = pipeline(tmp_path)
    for number in range(2):
        land(pipe, "q", number, batch(order(number), message(10 + number, b"?")))
    (lost, _) = (path for path in pipe.folder("orders").glob("*.parquet"))
    lost.unlink()
    with pytest.raises(InstanceError, match=r"orders' cannot be changed: .+ The other tables are done"):
        compact(pipe, 0)
    assert len(DeltaTable(pipe.folder("quarantine")).file_uris()) == 1


def test_hours_are_counted_by_service_and_contract(tmp_path, monkeypatch):
    pipe = pipeline(tmp_path, unconfigured="quarantine")
    landed = datetime(2026, 1, 2, 14, tzinfo=UTC)
    monkeypatch.setattr("servicebroker.pipeline.sinks.warehouse.write_time", lambda: landed)
    orders = [order(n, minutes=n) for n in range(100)]
    land(
        pipe,
        "q",
        0,
        batch(*orders, message(100, None, names.ERROR), message(101, b"?"), message(102, b"12", "Unheard")),
    )
    first, second = analyze(pipe)
    assert (first.hour, second.hour - first.hour) == (datetime(2026, 1, 2, 12, tzinfo=UTC), timedelta(hours=1))
    assert (first.queue, first.service_name, first.service_contract_name) == ("Shop.Stock", "S", "C")
    assert (first.messages, first.errors, first.unreadable, second.messages, second.errors) == (63, 1, 2, 40, 0)
    assert first.bytes == sum(len(row["message_body"]) for row in orders[:60]) + 3
    assert second.slowest == 3600.0
    assert second.p50 == pytest.approx(3600 - 19.5 * 60, abs=90)
    assert analyze(pipe) == [first, second]
    assert len(table(pipe, "analytics")) == 2
    assert QUEUE.label == "Shop.Stock"


def test_the_page_shows_every_figure_and_nothing_of_it_is_markup():
    start = datetime(2026, 1, 2, tzinfo=UTC)
    hours = [
        Hour(start + timedelta(hours=n), "q", "<script>", "C & D", 1000 + n, 10**6, n, 2 * n, 0.01, 0.5, 2.0, 200.0)
        for n in range(30)
    ]
    page = report("<b>", hours)
    assert "<script" not in page
    tree = html.fromstring(page)
    assert tree.findtext(".//h1") == "Conversations of <b>"
    assert len(tree.findall(".//svg")) == 4
    assert len(tree.findall(".//rect")) == 60
    assert len(tree.findall(".//polyline")) == 5
    cells = [cell.text for cell in tree.findall(".//td")]
    assert cells == ["q", "<script>", "C & D", "30,435", "30.0 MB", "435 (1.43 %)", "870 (2.86 %)", "500 ms", "3 min"]
    places = [
        float(number) for line in tree.findall(".//polyline") for number in re.findall(r"[\d.]+", line.get("points"))
    ]
    assert 0 <= min(places) <= max(places) <= 860


def test_an_hour_without_messages_is_a_gap_and_the_scale_is_round():
    def page(*at: int) -> html.HtmlElement:
        start = datetime(2026, 1, 2, tzinfo=UTC)
        hours = [Hour(start + timedelta(hours=n), "q", "s", "c", 30_435, 1, 0, 0, 0.1, 0.1, 0.1, 0.1) for n in at]
        return html.fromstring(report("a", hours))

    assert len(page(0, 1, 2, 3).findall(".//polyline")) == 5
    broken = page(0, 1, 5, 6, 9)  # two lines and a dot for each of the three latencies; sums go on at 0
    assert (len(broken.findall(".//polyline")), len(broken.findall(".//circle"))) == (8, 3)
    assert [text.text for text in broken.findall(".//svg")[0].findall("text")][:3] == ["0", "20,000", "40,000"]


def test_a_report_shows_nothing_or_one_hour():
    assert "No message is written yet" in report("a", [])
    hour = Hour(datetime(2026, 1, 2, tzinfo=UTC), "q", "s", "c", 1, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    assert len(html.fromstring(report("a", [hour])).findall(".//circle")) == 5
    with pytest.raises(InstanceError, match="needs a bronze table"):
        analyze(pipeline_without_bronze())


def pipeline_without_bronze():
    return pipeline(Path("nowhere"), MessageRule("T", "text", "t"), bronze="", unconfigured="quarantine")


@pytest.mark.parametrize("key", [(), ("id",)])
def test_messages_that_came_before_their_rule_are_counted_and_landed(tmp_path, key):
    """Such messages are in bronze only: a run reads the queue, which no longer has them."""
    rule = replace(ORDER, key=key)
    without = replace(pipeline(tmp_path, rule), messages=())
    land(without, "q", 0, batch(order(1), order(2, minutes=1), message(3, b"?", minutes=2)))
    late = pipeline(tmp_path, rule)
    assert find_late(late) == [("Order", "orders", 3)]
    if not key:
        land(late, "q", 1, batch(order(4, minutes=3)))
        assert find_late(late) == [("Order", "orders", 3)]
    assert replay_late(late) == [("Order", 2, 1)]
    assert sorted(row["id"] for row in table(late, "orders")) == [1, 2, *([] if key else [4])]
    assert find_late(late) == []
    assert replay_late(late) == [("Order", 0, 1)]
    assert len(table(late, "quarantine")) == 1


def test_a_late_rule_with_a_key_takes_the_newest_row_of_all_queues(tmp_path):
    """The result is that of a rebuild: positions in different queues cannot be compared."""
    pipe = pipeline(tmp_path, replace(ORDER, key=("id",)))
    without = replace(pipe, messages=(), queues=(QUEUE, QueueRule("./data", "Shop", "Other")))
    land(without, "q", 0, batch(order(100, key=1, note="old")))
    rows = sort_rows(without, without.queues[1], "r", iter([batch(order(5, key=1, note="new", minutes=1, handle="i"))]))
    commit_results(without, without.queues[1], [rows], 0)
    assert replay_late(pipe) == [("Order", 2, 0)]
    assert [row["note"] for row in table(pipe, "orders")] == ["new"]


def test_a_table_of_a_late_rule_is_rebuilt_without_a_run(tmp_path):
    land(replace(pipeline(tmp_path), messages=()), "q", 0, batch(order(1), order(2)))
    late = pipeline(tmp_path)
    assert rebuild(late, "orders").rows == 2
    assert find_late(late) == []
