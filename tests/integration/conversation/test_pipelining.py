"""`transaction.pipeline()`: several SENDs in one round trip, and their errors."""

from __future__ import annotations

from uuid import uuid4

import pytest

import servicebroker as sb
from servicebroker.store.statement_counts import counts_of
from support import (
    DOCUMENT,
    MARK,
    ORDER,
    REPLY,
    STOCK_QUEUE,
    begin,
    bodies,
    open_dialog,
    peer_handle,
    query,
    refused,
    state,
)

pytestmark = pytest.mark.both_apis

_DEPTH = "select count(*) from {}_dbo.stockqueue"


def depth(database: sb.Database) -> int:
    return int(query(database, _DEPTH.format(database.name.lower()))[0][0])


@pytest.mark.feature(41)
def test_the_sends_are_one_statement_in_order(database: sb.Database) -> None:
    handles = [open_dialog(database)[0] for _ in range(2)]
    with database.transaction() as tx:  # the targets are cached from now on
        for handle in handles:
            tx.send(handle, ORDER, b"first")
    with database.instance.connection() as connection:
        counts = counts_of(getattr(connection, "real", connection))
    counts.take()
    with database.transaction() as tx:
        with tx.pipeline() as pipeline:
            places = [tx.send(handle, kind, b"<a>%d</a>" % n) for n, kind in _SENT_MESSAGES for handle in handles]
            assert pipeline.numbers == []
        assert pipeline.numbers == [n + 2 for n, _ in _SENT_MESSAGES for _ in handles]
    assert places == list(range(2 * len(_SENT_MESSAGES)))
    sent = {name: calls for name, (calls, _) in counts.take().items() if "send" in name}
    assert sent == {"pipelined_sends.send_many": 1}
    for handle in handles:
        _, *received = database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, handle))
        assert [(m.message_type_name, m.message_body) for m in received] == [
            (kind, b"<a>%d</a>" % n) for n, kind in _SENT_MESSAGES
        ]


_SENT_MESSAGES = [(n, DOCUMENT if n % 5 == 0 else ORDER) for n in range(20)]


def test_the_sends_run_before_the_next_statement(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    others = begin(database), begin(database)
    seen = _DEPTH.format(database.name.lower()).encode()
    with database.transaction() as tx, tx.pipeline() as pipeline:
        tx.send(handle, ORDER, b"0")
        assert tx.connection.execute(seen).fetchone() == (1,)
        tx.send(handle, ORDER, b"1")
        assert tx.send_batch(handle, ORDER, [b"2", b"3"]) == 3
        tx.send(handle, ORDER, b"4")
        assert tx.send(others, ORDER, b"to both") == [0, 0]
        tx.send(handle, ORDER, b"5")
        assert tx.receive(STOCK_QUEUE, top=1)[0].message_body == b"0"
        assert pipeline.numbers == [1, 2, 5, 6]
        with pytest.raises(_RollBack), tx.savepoint():
            tx.send(handle, ORDER, b"undone")
            raise _RollBack
        with tx.savepoint():
            tx.send(handle, ORDER, b"6")
    assert bodies(database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, handle))) == [
        b"%d" % n for n in range(1, 7)
    ]


class _RollBack(Exception):
    pass


def test_at_most_a_thousand_sends_wait(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with database.transaction() as tx, tx.pipeline() as pipeline:
        for _ in range(1_500):
            tx.send(handle, ORDER, b"x")
        assert len(pipeline.numbers) == 1_000
    assert depth(database) == 1_500


def test_an_error_names_its_send_and_nothing_is_committed(database: sb.Database) -> None:
    (good, _), (bad, far) = open_dialog(database), open_dialog(database)
    database.send(bad, ORDER, b"before")
    database.end_conversation(far)
    before = depth(database)
    with pytest.raises(sb.InstanceError, match="undone all of it"), database.transaction() as tx:
        with refused(8429, "SEND 2 of the pipeline", str(bad)) as error, tx.pipeline():
            for n in range(2):
                tx.send(good, ORDER, b"%d" % n)
            tx.send(bad, ORDER, b"x")
            tx.send(good, ORDER, b"2")
        assert error.value.place == 2
    assert depth(database) == before
    with database.transaction() as tx, tx.savepoint():
        with refused(8428, "SEND 0 of the pipeline", "//none"), tx.savepoint(), tx.pipeline():
            tx.send(good, "//none", b"x")
        tx.send(good, ORDER, b"after the savepoint")
    assert depth(database) == before + 1
    with refused(8418), database.transaction() as tx, tx.pipeline():
        tx.send(None, ORDER, b"x")  # type: ignore[arg-type]


def test_a_refusal_by_the_peer_fails_its_conversation(database: sb.Database) -> None:
    handle, far = open_dialog(database)
    database.send(handle, ORDER, b"known")
    with refused(8429, "SEND 2 of the pipeline"), database.transaction() as tx, tx.pipeline():
        for body in (b"", b"not empty", b""):
            tx.send(handle, MARK, body)
    with database.transaction() as tx, tx.pipeline():
        for body in (b"", b"not empty"):
            tx.send(handle, MARK, body)
        tx.send(begin(database), ORDER, b"another conversation")
    assert state(database, handle) == "ER"
    kinds = [m.message_type_name for m in database.receive(STOCK_QUEUE, conversation_handle=far)]
    assert len(kinds) == 3  # the Error, and the valid messages


def test_a_pipeline_numbers_the_first_messages_of_new_conversations(database: sb.Database) -> None:
    """The targets of the conversations are not cached yet."""
    handles = [begin(database) for _ in range(5)]
    nowhere = begin(database, "//test/nowhere")
    with database.transaction() as tx, tx.pipeline() as pipeline:
        for n in range(3):
            for handle in (*handles, nowhere):
                tx.send(handle, ORDER, b"%d" % n)
    assert pipeline.numbers == [n for n in range(3) for _ in range(6)]
    assert depth(database) == 15


def test_a_transaction_ended_on_its_connection_refuses_sends(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with pytest.raises(sb.InstanceError, match="begin another one"), database.transaction() as tx, tx.pipeline():
        tx.send(handle, ORDER, b"committed")
        tx.connection.commit()
        tx.send(handle, ORDER, b"too late")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"committed"]
    with pytest.raises(_RollBack), database.transaction() as tx, tx.pipeline():
        tx.send(handle, ORDER, b"undone")
        raise _RollBack
    assert database.receive(STOCK_QUEUE) == []


def test_a_pipeline_sends_from_both_sides_and_names_a_refused_send(database: sb.Database) -> None:
    handle, far = open_dialog(database)
    with database.transaction() as tx, tx.pipeline() as pipeline:
        tx.send(handle, ORDER, b"order")
        tx.send(far, REPLY, b"reply")
    assert pipeline.numbers == [1, 0]
    with refused(8426, "SEND 0"), database.transaction() as tx, tx.pipeline():
        tx.send(uuid4(), ORDER, b"x")
