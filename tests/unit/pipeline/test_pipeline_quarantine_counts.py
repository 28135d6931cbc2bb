"""The number of a run's messages in quarantine: counted, stored, reported, and compared with the limit."""

import logging
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pipeline_tables import QUEUE, batch, message, order, pipeline
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.definition import DefinitionError, Pipeline
from servicebroker.pipeline.file import parse_pipeline
from servicebroker.pipeline.last_run import LastRun, describe, last_run_path, read_last_run
from servicebroker.pipeline.metrics import Metrics
from servicebroker.pipeline.quarantine_counts import (
    TooManyQuarantined,
    by_message_type,
    check_limits,
    counts_path,
    limits_of,
    read_counts,
    remove_counts,
    write_counts,
)
from servicebroker.pipeline.queue_run import QueueRun, QueueState
from servicebroker.pipeline.run import Run
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows

BAD_COUNTS = {("Order", "malformed"): 2, ("Order", "wrong type"): 1, ("Strange", "unconfigured type"): 1}


def land(pipe, number, *messages):
    """Land a batch in two tasks that get the messages in turn."""
    tasks = [sort_rows(pipe, QUEUE, "query", iter([batch(*these)])) for these in (messages[::2], messages[1::2])]
    commit_results(pipe, QUEUE, tasks, number)


def bad_ones():
    return [
        order(0),
        message(1, b"?"),
        message(2, b"{"),
        message(3, b'{"id": "x"}'),
        message(4, b"x", kind="Strange"),
        order(5),
    ]


def test_quarantined_messages_are_counted_by_type_and_reason(tmp_path):
    pipe = pipeline(tmp_path, unconfigured="quarantine")
    notes = counts_path(pipe, QUEUE)
    assert read_counts(notes) == Counter()
    land(pipe, 0, order(100), order(101))
    assert not notes.exists()
    land(pipe, 1, *bad_ones())
    assert read_counts(notes) == BAD_COUNTS
    assert by_message_type(read_counts(notes)) == {
        "Order": {"malformed": 2, "wrong type": 1},
        "Strange": {"unconfigured type": 1},
    }
    land(pipe, 1, *bad_ones())  # as after a failure between the table and the checkpoint
    assert read_counts(notes) == BAD_COUNTS
    land(pipe, 2, message(6, b"?"))
    assert read_counts(notes) == BAD_COUNTS | {("Order", "malformed"): 3}
    remove_counts(notes)
    assert read_counts(notes) == Counter()


def test_a_batch_that_comes_again_takes_the_place_of_its_first_try(tmp_path):
    notes = tmp_path / "notes.json"
    write_counts(notes, 0, Counter({("A", "empty"): 1}))
    write_counts(notes, 1, Counter({("A", "empty"): 4, ("B", "malformed"): 2}))
    write_counts(notes, 1, Counter({("A", "empty"): 3}))
    assert read_counts(notes) == {("A", "empty"): 4}


def queue_run(counts, once=True):
    run = QueueRun(QUEUE, lambda: None, once, read_quarantine=lambda: Counter(counts))
    run.messages, run.batches = 60, 1
    return run


def test_a_run_reports_quarantined_messages(caplog, tmp_path):
    caplog.set_level(logging.INFO, "servicebroker.pipeline")
    run = queue_run({("Order", "malformed"): 50})
    run._count_batch(60, 600, 1.0)
    (record,) = caplog.records
    assert (record.levelname, record.fields["quarantined"]) == ("WARNING", 50)
    assert record.fields["quarantined_by_rule"] == {"Order": {"malformed": 50}}
    assert "60 messages, 600 bytes, 50 in quarantine (Order: malformed 50), 1.0 s" in record.getMessage()
    run._count_batch(1, 10, 1.0)
    assert (caplog.records[-1].levelname, caplog.records[-1].fields["quarantined"]) == ("INFO", 0)
    assert run.counts()["quarantined"] == 50
    assert run.counts()["quarantined_by_rule"] == {"Order": {"malformed": 50}}
    assert run.describe_totals() == "60 messages in 3 batches, 50 in quarantine (Order: malformed 50)"
    metrics = Metrics("orders")
    metrics.queues = [run]
    labels = {"pipeline": "orders", "queue": QUEUE.label, "type": "Order", "reason": "malformed"}
    assert metrics.registry.get_sample_value("servicebroker_pipeline_quarantined_total", labels) == 50


def test_the_record_of_the_last_run_has_quarantine_counts(tmp_path):
    pipe = pipeline(tmp_path)
    run = queue_run({("Order", "malformed"): 50})
    run.update_quarantined()
    with pytest.raises(TooManyQuarantined), LastRun.recording(pipe) as noted:
        noted.queues = [run]
        Run([run], fails_on_quarantine=True).check()
    last_run = read_last_run(pipe)
    assert last_run["queues"][0]["quarantined_by_rule"] == {"Order": {"malformed": 50}}
    assert describe(last_run)[1:] == ["Shop.Stock: 50 of 60 messages went into quarantine (Order: malformed 50)."]
    assert "50 messages went into quarantine in this run" in describe(last_run)[0]


@pytest.mark.parametrize(
    ("limits", "fails_on_any", "expected_text"),
    [
        ({}, False, None),
        ({"Order": 3}, False, None),
        ({"Other": 0}, False, None),
        ({"Order": 2}, False, "3 messages of the type 'Order' went into quarantine in this run, and its rule allows 2"),
        ({"Strange": 0, "Order": 9}, False, "1 message of the type 'Strange' .* its rule allows 0"),
        ({"Order": 9}, True, r"4 messages went into quarantine in this run \(Order: malformed 2, Order: wrong type 1"),
    ],
)
def test_more_than_may_be_is_refused(limits, fails_on_any, expected_text):
    if expected_text is None:
        check_limits(Counter(BAD_COUNTS), limits, "quarantine", fails_on_any=fails_on_any)
        return
    with pytest.raises(TooManyQuarantined, match=expected_text) as refusal:
        check_limits(Counter(BAD_COUNTS), limits, "quarantine", fails_on_any=fails_on_any)
    assert refusal.value.exit_code == 3
    assert "Check the table 'quarantine', correct the rule" in str(refusal.value)


def test_an_empty_quarantine_is_always_allowed():
    check_limits(Counter(), {"Order": 0}, "quarantine", fails_on_any=True)


@pytest.mark.parametrize("once", [True, False])
def test_a_run_that_goes_on_ends_at_once_and_one_that_ends_lands_the_rest(once):
    run = queue_run({("Order", "malformed"): 1}, once=once)
    run.update_quarantined()
    run.state = QueueState.ENDED
    runs = Run([run], {"Order": 0})
    if once:
        runs.poll()
        with pytest.raises(TooManyQuarantined):
            runs.check()
    else:
        with pytest.raises(TooManyQuarantined):
            runs.poll()


def parse_line(line):
    return parse_pipeline(
        '[pipeline]\nname = "p"\nwarehouse = "t"\n[[queue]]\ninstance = "i"\ndatabase = "d"\nqueue = "q"\n'
        f'[[message]]\ntype = "Order"\nformat = "text"\ntable = "orders"\n{line}\n',
        Path(),
    )


def test_a_rule_says_how_many_messages_may_be_in_quarantine():
    assert limits_of(parse_line("")) == {}
    pipe = parse_line("maximum_quarantined = 10")
    assert limits_of(pipe) == limits_of(Pipeline.from_text(pipe.to_text())) == {"Order": 10}
    assert limits_of(parse_line("maximum_quarantined = 0")) == {"Order": 0}
    for wrong in ("-1", "1.5", "true", '"some"'):
        with pytest.raises(DefinitionError, match="'maximum_quarantined' must be a whole number"):
            parse_line(f"maximum_quarantined = {wrong}")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"last": 1}', '{"last": 0, "counts": [[1]], "batches": []}'])
def test_a_damaged_file_is_one_sentence_for_a_run_and_no_run_for_status(tmp_path, content):
    pipe = pipeline(tmp_path)
    path = counts_path(pipe, QUEUE)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    last_run_path(pipe).write_text(content)
    for use in (read_counts, lambda path: write_counts(path, 1, Counter())):
        with pytest.raises(InstanceError, match=r"cannot be read: .* Remove the file"):
            use(path)
    assert describe(read_last_run(pipe)) == ["There was no run yet."]
