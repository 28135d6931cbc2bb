"""Rows with more text than the 2 GiB of one Arrow array, built from many references to one chunk."""

from dataclasses import replace

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("fastavro")

import pyarrow as pa

from pipeline_tables import NOON, ORDER, QUEUE, message, pipeline
from servicebroker.pipeline.definition import MessageRule
from servicebroker.pipeline.sinks import row_selection
from servicebroker.pipeline.sinks.keyed_rows import newest_by_key
from servicebroker.pipeline.sinks.row_replacement import carry_columns
from servicebroker.pipeline.sinks.row_selection import exclude_rows, select_rows, take_rows
from servicebroker.pipeline.sinks.tables import TableFile
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.sorting import Sorter
from servicebroker.pipeline.stream import rows as source_rows

PIECE_COUNT = 100
PIECE_BYTES = 25_000_000  # bytes
LONG = pa.int64()


def large(kind):
    """Return `PIECE_COUNT` texts that share the memory of one."""
    piece = pa.array([b"x" * PIECE_BYTES], pa.binary()).cast(kind)
    return pa.chunked_array([piece] * PIECE_COUNT)


def rows_with(schema, row, **columns):
    """Return `PIECE_COUNT` copies of `row`, with some columns replaced."""
    rows = pa.concat_tables([pa.Table.from_pylist([row], schema=schema)] * PIECE_COUNT)
    for name, values in columns.items():
        rows = rows.set_column(schema.get_field_index(name), schema.field(name), values)
    return rows


class Lake:
    """A table of one file in memory."""

    partition_by = ()

    def __init__(self, rows):
        self.rows, self.columns = rows, rows.schema

    def files(self):
        return [TableFile("a", 1, self.rows.num_rows, {}, {})]

    def read(self, file, schema):
        return iter(self.rows.select(schema.names).to_batches())


def test_a_batch_of_more_text_than_an_array_holds_has_a_newest_row(tmp_path):
    into = target(pipeline(tmp_path, replace(ORDER, key=("id",))), "orders")
    row = {
        "id": 7,
        "_queue": "q",
        "_conversation_handle": "h",
        "_message_sequence_number": 1,
        "_message_enqueue_time": NOON,
        "_date": NOON.date(),
    }
    order = pa.chunked_array([pa.array([(37 * index) % PIECE_COUNT], LONG) for index in range(PIECE_COUNT)])
    rows = rows_with(into.schema, row, note=large(pa.string()), _queuing_order=order)
    (found,) = newest_by_key(rows, into.key).select(["id", "_queuing_order"]).to_pylist()
    assert found == {"id": 7, "_queuing_order": PIECE_COUNT - 1}


def test_more_text_of_others_than_an_array_holds_goes_on_beside_its_rows():
    key = pa.chunked_array([pa.array([index], LONG) for index in range(PIECE_COUNT)])
    lake = Lake(pa.table({"id": key, "theirs": large(pa.string())}))
    rows = carry_columns(lake, pa.table({"id": [5, 1000, 3]}), ["id"], ["theirs"])
    assert rows.column("id").to_pylist() == [5, 1000, 3]
    assert [None if text is None else len(text) for text in rows.column("theirs").to_pylist()] == [
        PIECE_BYTES,
        None,
        PIECE_BYTES,
    ]


def test_more_bodies_than_an_array_holds_are_read_again(tmp_path):
    rule = MessageRule("Order", "text", "orders", maximum_body=10)
    rows = rows_with(source_rows.arrow_schema(), message(1, b""), message_body=large(pa.binary()))
    assert Sorter(pipeline(tmp_path, rule), QUEUE).decode(rule, rows).indexes == []


def test_rows_are_found_by_their_places(seeded_random, monkeypatch):
    monkeypatch.setattr(row_selection, "MAX_TAKE_BYTES", 100)
    for _ in range(100):
        count = seeded_random.randrange(1, 20)
        rows = pa.table({"a": ["x" * seeded_random.randrange(40) for _ in range(count)], "b": range(count)})
        rows = pa.concat_tables([rows.slice(0, count // 2), rows.slice(count // 2)])
        given = [seeded_random.choice([None, *range(count)]) for _ in range(seeded_random.randrange(30))]
        assert take_rows(rows, pa.array(given, LONG)).to_pylist() == rows.take(pa.array(given, LONG)).to_pylist()
        some = pa.array({place for place in given if place is not None}, LONG)
        assert select_rows(rows, some).column("b").to_pylist() == sorted(some.to_pylist())
        assert exclude_rows(rows, some).column("b").to_pylist() == sorted({*range(count)} - {*some.to_pylist()})
