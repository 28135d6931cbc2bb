"""Operations that are run as values: `run` of a database and of a transaction."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker import operations
from servicebroker.operations import BeginConversationTimer, BeginDialog, EndConversation, MoveConversation
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, begin, group_of, peer_handle, query, refused

pytestmark = pytest.mark.both_apis

DIALOG = BeginDialog(ORDERS, STOCK, contract=CONTRACT)


def test_each_verb_is_run_as_an_operation(database: sb.Database) -> None:
    handle, other = database.run(DIALOG), database.run(DIALOG)
    assert database.run(operations.Send(handle, ORDER, b"a")) == 0
    assert database.run(operations.SendBatch(handle, ORDER, [b"b", b"c"])) == 1
    group = database.run(operations.GetConversationGroup(STOCK_QUEUE))
    assert group == group_of(database, peer_handle(database, handle))
    messages = database.run(operations.Receive(STOCK_QUEUE, conversation_group_id=group))
    assert [message.message_body for message in messages] == [b"a", b"b", b"c"]
    assert database.run(operations.GetTransmissionStatus(handle)) == ""
    database.run(MoveConversation(other, group_of(database, handle)))
    assert group_of(database, other) == group_of(database, handle)
    database.run(BeginConversationTimer(handle, 100))
    assert query(database, "select count(*) from sys.conversation_endpoints where dialog_timer > now()") == [(1,)]
    database.run(EndConversation(handle, error=(5, "enough")))
    (error,) = database.run(operations.Receive(STOCK_QUEUE))
    assert (error.is_error, error.conversation_group_id) == (True, group)
    with refused(8426):
        database.run(EndConversation(handle))


def test_a_transaction_runs_operations(database: sb.Database) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        assert transaction.run(operations.Send(handle, ORDER, b"a")) == 0
        with transaction.pipeline():
            assert transaction.run(operations.Send(handle, ORDER, b"b")) == 0  # the index of the failed operation
    with database.transaction() as transaction:
        assert len(transaction.run(operations.Receive(STOCK_QUEUE))) == 2


def test_a_database_runs_administration_and_a_transaction_does_not(database: sb.Database) -> None:
    assert database.run(operations.SetAsideMessages()) == []
    with refused(402, "the dead letter's number"):
        database.run(operations.ReplayMessage(7))
    with refused(402, "set_aside_id"):
        database.run(operations.DiscardMessage(0))
    with database.transaction() as transaction, refused(402, "administration"):
        transaction.run(operations.SetAsideMessages())


@pytest.mark.parametrize("wrong", [None, "send", BeginDialog, {"handle": 1}], ids=repr)
def test_a_value_that_is_no_operation_is_refused(database: sb.Database, wrong: Any) -> None:
    with refused(402, "operation"):
        database.run(wrong)
    with database.transaction() as transaction, refused(402, "operation"):
        transaction.run(wrong)
