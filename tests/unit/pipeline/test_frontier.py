"""Offsets of the Spark source as plain values, without a server."""

import json
from dataclasses import replace

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.stream.frontier import (
    Frontier,
    GroupPartition,
    QueuePosition,
    Slice,
    check_continuity,
    divide_slice,
    has_read,
    slice_between,
    slice_read_so_far,
)

pytest.importorskip("pyspark")
rows = pytest.importorskip("servicebroker.pipeline.stream.rows")

HERE = Frontier("7710542726357531054", "c48a2ac8:65540")
OPTIONS = {"instance": "./data", "database": "W", "queue": "Q"}


def test_an_offset_survives_the_checkpoint():
    offset = HERE.opened(900).read_to(2**53 + 1)
    assert Frontier.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"more": 1},
        {"version": None},
        {"lo": "0)"},
        {"hi": None},
        {"queue": 5},
        {"queuing_order": 1.5},
        {"lo": -1},
        {"lo": 5, "hi": 4},
        {"hi": 2**63},
        {"queuing_order": -1},
        {"queuing_order": 1},
        {"queuing_order": 2**63},
    ],
)
def test_a_foreign_offset_is_refused(change):
    with pytest.raises(InstanceError, match="checkpoint"):
        Frontier.from_json(HERE.to_json() | change)


@pytest.mark.parametrize(
    "stored",
    [
        [],
        None,
        "offset",
        {"version": 2},
        {"version": 2, "queues": [1]},
        {"version": 2, "queues": {"Q": 1}},
        {"version": 1, "lo": "x" * 10_000},
    ],
    ids=str,
)
def test_json_of_another_shape_is_no_offset(stored):
    """The check needs no server."""
    from servicebroker.pipeline.stream.reader import QueueStreamReader

    reader = QueueStreamReader(source_options(OPTIONS))
    with pytest.raises(InstanceError, match="not one of the servicebroker source") as refusal:
        Frontier.from_json(reader._split(stored)["Q"])
    assert len(str(refusal.value)) < 500


def test_an_offset_that_lacks_a_field_is_refused():
    with pytest.raises(InstanceError, match="not one of the servicebroker source"):
        Frontier.from_json({"version": 1, "lo": 0})


def test_a_window_is_read_in_pages_and_the_next_begins_where_it_ended():
    first = HERE.opened(900).read_to(10)
    second = first.read_to(20)
    third = second.opened(950).read_to(15)
    assert slice_between(HERE, first) == Slice(0, 900, 0, 10)
    assert slice_between(first, second) == Slice(0, 900, 10, 20)
    assert slice_between(second, third) == Slice(900, 950, 0, 15)
    assert slice_between(third, third) is None


def test_the_first_batch_depends_only_on_its_end():
    latest = Frontier(HERE.system_identifier, HERE.queue, 800, 800)
    end = latest.opened(900).read_to(10)
    assert slice_between(Frontier(HERE.system_identifier, HERE.queue, 850, 850), end) == Slice(800, 900, 0, 10)


def test_a_slice_is_divided_without_a_gap():
    assert divide_slice(Slice(1, 2, 10, 21), 3) == [Slice(1, 2, 10, 13), Slice(1, 2, 13, 17), Slice(1, 2, 17, 21)]
    assert divide_slice(Slice(1, 2, 0, 1), 4) == [Slice(1, 2, 0, 1)]


def test_an_acknowledgement_covers_the_window_up_to_the_offset():
    assert slice_read_so_far(HERE.opened(900).read_to(20)) == Slice(0, 900, 0, 20)
    assert slice_read_so_far(HERE) is None


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (HERE.opened(900).read_to(20), HERE.opened(900).read_to(10)),
        (HERE.opened(900).read_to(20), HERE.opened(950).read_to(30)),
        (HERE.opened(900).read_to(20), HERE.opened(900).opened(900).read_to(30)),
    ],
)
def test_offsets_that_cannot_follow_each_other_are_refused(start, end):
    with pytest.raises(InstanceError, match="damaged"):
        slice_between(start, end)


def test_the_same_server_further_on_is_accepted():
    check_continuity(HERE.opened(900), HERE, QueuePosition(900, 0))


@pytest.mark.parametrize(
    ("offset", "complaint"),
    [
        (Frontier("1", HERE.queue, 0, 900), "another PostgreSQL server"),
        (Frontier(HERE.system_identifier, "c48a2ac8:7", 0, 900), "another queue"),
        (replace(HERE, database_oid=4), "another database of this"),
        (HERE.opened(901), "gone back in time"),
        (HERE.opened(900).read_to(51), "gone back in time.*message 51 of the queue, which is at 50"),
    ],
)
def test_another_server_queue_or_time_is_refused(offset, complaint):
    with pytest.raises(InstanceError, match=complaint):
        check_continuity(offset, replace(HERE, database_oid=5), QueuePosition(900, 50))


def test_an_offset_of_an_earlier_version_names_no_database():
    stored = HERE.opened(900).read_to(50).to_json()
    del stored["database_oid"]
    check_continuity(Frontier.from_json(stored), replace(HERE, database_oid=5), QueuePosition(900, 50))


def test_options_are_read_without_regard_to_case():
    options = source_options(OPTIONS | {"MAXMESSAGESPERTRIGGER": "7", "endofstream": "Bye", "minPartitions": "3"})
    assert (options.max_messages_per_trigger, options.end_of_stream, options.min_partitions) == (7, "Bye", 3)


def test_options_have_defaults():
    options = source_options(OPTIONS)
    assert (options.max_messages_per_trigger, options.end_of_stream) == (1_000_000, "EndOfStream")
    assert options.min_partitions >= 2


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"queu": "Q"}, "no option 'queu'"),
        ({"queue": " "}, "needs the option 'queue'"),
        ({"maxMessagesPerTrigger": "0"}, "whole number from 1"),
        ({"minPartitions": "many"}, "not 'many'"),
        ({"claimTimeout": "-1"}, "whole number from 0"),
        ({"claimTimeout": "2147484"}, "from 0 to 2147483"),
        ({"startingOffsets": "Monday"}, "earliest or latest, not 'Monday'"),
        ({"partitioning": "hash"}, "group or range"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"ack": "keep"}, "delete or archive"),
    ],
)
def test_a_wrong_option_is_named(given, complaint):
    with pytest.raises(InstanceError, match=complaint):
        source_options(OPTIONS | given)


@pytest.mark.parametrize(
    ("offset", "other", "is_read"),
    [
        ((5, 9, 7), (5, 9, 7), True),
        ((5, 9, 8), (5, 9, 7), True),
        ((5, 9, 6), (5, 9, 7), False),
        ((9, 12, 1), (5, 9, 7), True),
        ((12, 15, 1), (5, 9, 7), True),
        ((1, 5, 99), (5, 9, 7), False),
        ((5, 8, 99), (0, 9, 1), False),  # windows of two overlapping streams
        ((8, 20, 99), (5, 9, 1), False),
    ],
)
def test_has_read_compares_offsets(offset, other, is_read):
    current, before = (Frontier("1", "q", *numbers) for numbers in (offset, other))
    assert has_read(current, before) is is_read


PART = rows.Part("url", "q", 65536, 5, Slice(1, 2, 0, 9), GroupPartition(0, 2), False, True, "a" * 64, "b" * 64)


def test_a_part_comes_back_from_its_text():
    assert rows.Part.from_text(PART.to_text()) == PART
    plain = replace(PART, source="", end="")
    assert rows.Part.from_text(plain.to_text()) == plain


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue_id", "65536; drop table x"),
        ("database_id", "1 or true"),
        ("window_slice", [1, 2, 0]),
        ("window_slice", [1, 2, 0, "9)"]),
        ("group", [0, "2) or (1 = 1"]),
        ("archived", "yes"),
        ("source", "'; drop table x; --"),
        ("end", "b" * 63 + "'"),
        ("more", 1),
    ],
)
def test_a_foreign_row_is_refused_as_a_part(field, value):
    """Rows of another column that reach the sink must not run SQL."""
    text = json.dumps(json.loads(PART.to_text()) | {field: value})
    with pytest.raises(InstanceError, match="does not hold a part of a queue"):
        rows.Part.from_text(text)
