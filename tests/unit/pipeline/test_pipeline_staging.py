"""Cutting rows into chunks: order, slots, sizes."""

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline import staging
from servicebroker.pipeline.options import writer_options
from servicebroker.pipeline.staging import Cutter, slot_of

OPTIONS = {"instance": "./data", "database": "W", "fromService": "A", "toService": "B", "contract": "C"}


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def pieces_of(*batches, slots=2, default="T", key="", first=0):
    return [
        (piece.slot, piece.message_type, list(piece.bodies))
        for piece in Cutter(slots, default, key, first).pieces(batches)
    ]


def test_text_becomes_bytes_and_null_stays():
    assert pieces_of(batch(message_body=["ä", None, ""])) == [(1, "T", ["ä".encode(), None, b""])]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("plain", [pa.binary(), pa.large_binary()])
def test_large_columns_are_as_others(text, plain):
    """Spark passes large columns with `spark.sql.execution.arrow.useLargeVarTypes`."""
    texts, bodies = pa.array(["ä", None, ""], text), ["ä".encode(), None, b""]
    for column in (texts, pa.array(bodies, plain)):
        assert pieces_of(batch(message_body=column)) == [(1, "T", bodies)]
        assert pieces_of(batch(message_body=column, k=texts), slots=1, key="k") == [(0, "T", bodies)]
        assert pieces_of(batch(message_body=column, message_type_name=texts)) == [
            (1, "ä", bodies[:1]),
            (1, "T", bodies[1:]),
        ]
    keys = [slot for slot, _, _ in pieces_of(batch(message_body=texts, k=texts), slots=97, key="k")]
    assert sorted(keys) == sorted(slot_of(key, 97) for key in ("ä", None, ""))


def test_without_a_key_pieces_take_turns(monkeypatch):
    monkeypatch.setattr(staging, "MAX_PIECE_MESSAGES", 2)
    chunks = pieces_of(batch(message_body=[b"1", b"2", b"3", b"4", b"5"]), slots=3, first=1)
    assert chunks == [(0, "T", [b"3", b"4"]), (1, "T", [b"5"]), (2, "T", [b"1", b"2"])]


def test_equal_keys_share_a_slot_in_their_order(monkeypatch):
    monkeypatch.setattr(staging, "MAX_PIECE_MESSAGES", 3)
    keys = [f"customer {n % 7}" for n in range(50)] + [None]
    chunks = pieces_of(
        batch(k=keys[:20], message_body=[b"%d" % n for n in range(20)]),
        batch(k=keys[20:], message_body=[b"%d" % n for n in range(20, 51)]),
        slots=4,
        key="k",
    )
    slots = {}
    for slot, _, bodies in chunks:
        slots.setdefault(slot, []).extend(int(body) for body in bodies)
    assert sorted(number for numbers in slots.values() for number in numbers) == list(range(51))
    for slot, numbers in slots.items():
        assert numbers == sorted(numbers)
        assert {slot_of(keys[number], 4) for number in numbers} == {slot}


def test_a_change_of_type_begins_a_piece():
    types = ["A", "A", None, "A", "B"]
    chunks = pieces_of(batch(message_type_name=types, message_body=[b"1", b"2", b"3", b"4", b"5"]), slots=1)
    assert chunks == [(0, "A", [b"1", b"2"]), (0, "T", [b"3"]), (0, "A", [b"4"]), (0, "B", [b"5"])]


def test_a_change_of_type_on_one_key_leaves_the_other_slots_alone():
    other_key = next(key for key in "bcdefgh" if slot_of(key, 2) != slot_of("a", 2))
    keys = ["a", other_key, "a", other_key, "a"]
    types = ["A", "A", "B", "A", "B"]
    chunks = pieces_of(batch(k=keys, message_type_name=types, message_body=[b"1", b"2", b"3", b"4", b"5"]), key="k")
    mine = [(kind, bodies) for slot, kind, bodies in chunks if slot == slot_of("a", 2)]
    theirs = [(kind, bodies) for slot, kind, bodies in chunks if slot == slot_of(other_key, 2)]
    assert (mine, theirs) == ([("A", [b"1"]), ("B", [b"3", b"5"])], [("A", [b"2", b"4"])])


def test_a_type_that_postgresql_cannot_store_is_refused():
    with pytest.raises(InstanceError, match=r"No message type is named 'Line\\x00'"):
        pieces_of(batch(message_type_name=["A", "Line\0"], message_body=[b"1", b"2"]), slots=1)


def test_large_bodies_make_small_pieces(monkeypatch):
    monkeypatch.setattr(staging, "MAX_PIECE_BYTES", 10)
    chunks = pieces_of(batch(message_body=[b"x" * 8] * 5), slots=1)
    assert [len(bodies) for _, _, bodies in chunks] == [2, 2, 1]


def test_a_piece_goes_on_over_batches_until_a_body_fills_it(monkeypatch):
    monkeypatch.setattr(staging, "MAX_PIECE_MESSAGES", 4)
    monkeypatch.setattr(staging, "MAX_PIECE_BYTES", 10)
    sizes = [[3, 3], [3, None, 20, 1], [1, 1], [0, 5, 10, 10]]
    batches = [
        batch(k=["a"] * len(some), message_body=pa.array([None if n is None else b"x" * n for n in some], pa.binary()))
        for some in sizes
    ]
    piece_sizes = [
        [body if body is None else len(body) for body in bodies] for _, _, bodies in pieces_of(*batches, key="k")
    ]
    assert piece_sizes == [[3, 3, 3, None], [20], [1, 1, 1, 0], [5, 10], [10]]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"sendId": "x" * 501}, "'sendId' has more than 500 characters"),
        ({"messageType": "Line\0"}, "'messageType' has a NUL"),
        ({"sendId": "\ud800"}, "'sendId' has a NUL or half of a surrogate pair"),
        ({"colour": "red"}, "The servicebroker writer has no option 'colour'"),
        ({"toService": ""}, "The servicebroker writer needs the option 'toService'"),
        ({"conversations": "0"}, "whole number from 1"),
    ],
)
def test_a_wrong_option_is_named(given, complaint):
    with pytest.raises(InstanceError, match=complaint):
        writer_options(OPTIONS | given)
