"""Requests to a service of another instance."""

from __future__ import annotations

import pytest

import servicebroker as sb
from remote_support import Pair
from support import CONTRACT, ORDER, ORDERS, REPLY, STOCK, STOCK_QUEUE, eventually, in_thread, query


def ask(pair: Pair, timeout: float = 60, keep: float = 60) -> sb.Message:
    return pair.west.database.request(
        ORDERS, STOCK, ORDER, b"1", contract=CONTRACT, encryption=False, timeout=timeout, keep=keep
    )


def answer(pair: Pair) -> None:
    with pair.east.database.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE)
        tx.send(message.conversation_handle, REPLY, b"one")
        tx.end_conversation(message.conversation_handle)
    pair.rounds()


def test_an_answer_from_another_instance(pair: Pair) -> None:
    asked = in_thread(ask, pair)
    eventually(lambda: query(pair.west.database, "select from servicebroker.transmission_queue"))
    pair.rounds()
    answer(pair)
    assert asked.result(30).body == b"one"
    pair.rounds()
    states = "select state from servicebroker.conversation_endpoints"
    assert query(pair.west.database, states) == []
    assert query(pair.east.database, states) == [("CD",)]


def test_the_reason_of_a_timeout_shows_the_state_of_the_request(pair: Pair) -> None:
    pair.west.is_connected = False
    with pytest.raises(sb.RequestTimeout, match="Start the daemon") as late:
        ask(pair, timeout=0)
    pair.rounds()
    wait_on = pair.west.database.wait_for_answer
    with pytest.raises(sb.RequestTimeout, match="unreachable"):
        wait_on(late.value.handle, timeout=0)
    pair.west.is_connected = True
    pair.pass_time(60)
    pair.rounds()
    with pytest.raises(sb.RequestTimeout, match="has not answered yet"):
        wait_on(late.value.handle, timeout=0)
    answer(pair)
    assert wait_on(late.value.handle, timeout=0).body == b"one"


def test_an_error_of_the_other_instance_raises(pair: Pair) -> None:
    asked = in_thread(ask, pair)
    eventually(lambda: query(pair.west.database, "select from servicebroker.transmission_queue"))
    pair.east.database.revoke("SEND", "public", service=STOCK)
    pair.rounds()
    with pytest.raises(sb.RequestError) as failed:
        asked.result(30)
    assert failed.value.code == -8494
