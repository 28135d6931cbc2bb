"""GET_TRANSMISSION_STATUS of the engine and of the double."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

import servicebroker as sb
import servicebroker.testing as double
from servicebroker.model.errors import RULES
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, define_standard_set, query, refused


def follow(database: sb.Database, shown: Callable[[], list[str]]) -> None:
    """Check the status of a message while it waits, and after its delivery."""
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    assert database.get_transmission_status(handle) == ""
    database.alter_queue(STOCK_QUEUE, status=False)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"1")
        assert transaction.get_transmission_status(handle) == RULES[9749].text
    database.send(handle, ORDER, b"2")
    assert database.get_transmission_status(handle) == RULES[9749].text
    assert shown() == [RULES[9749].text] * 2
    database.alter_queue(STOCK_QUEUE, status=True)
    assert database.get_transmission_status(handle) == ""
    assert shown() == []
    assert database.get_transmission_status(uuid4()) == ""
    with refused(8418):
        database.get_transmission_status(None)  # type: ignore[arg-type]
    with refused(402):
        database.get_transmission_status(str(handle))  # type: ignore[arg-type]


@pytest.mark.both_apis
@pytest.mark.feature(125)
def test_transmission_status_says_why_a_message_waits(database: sb.Database) -> None:
    text = "select transmission_status from sys.transmission_queue where broker_database = %s"
    follow(database, lambda: [status for (status,) in query(database, text, database.name)])


def test_the_double_has_the_same_status() -> None:
    database = double.open().database("Test", create=True)
    define_standard_set(database)  # type: ignore[arg-type]
    follow(database, lambda: [row["transmission_status"] for row in database.transmission_queue()])  # type: ignore[arg-type]
