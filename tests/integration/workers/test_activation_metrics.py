"""The counters of activation: each counts its event, for procedures in threads and in processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import servicebroker as sb
from servicebroker.activation import procedures
from servicebroker.broker import metrics
from support import ORDER, STOCK_QUEUE, begin, eventually

PROCEDURES = """
import os
import servicebroker as sb

@sb.procedure("usp_Stock", worker="process", form="database")
def stock(database):
    with database.transaction() as transaction:
        messages = transaction.receive("StockQueue", top=1)
    if messages and messages[0].message_body == b"raise":
        raise ValueError("as asked")
    if messages and messages[0].message_body == b"die":
        os.kill(os.getpid(), 9)
"""


def counter_value(name: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"servicebroker_{name}_total") or 0.0


@pytest.fixture
def active(fresh_database: sb.Database) -> Iterator[sb.Database]:
    yield fresh_database
    procedures._registered.clear()


def switch_on(database: sb.Database) -> None:
    activation = sb.Activation("usp_Stock", max_queue_readers=1, execute_as="SELF", status=True)
    database.alter_queue(STOCK_QUEUE, activation=activation)


def send(database: sb.Database, text: str) -> None:
    database.send(begin(database), ORDER, text)


@pytest.mark.feature(200)
def test_a_reader_more_than_may_run_is_counted(active: sb.Database) -> None:
    go_on = threading.Event()

    @sb.procedure("usp_Stock", form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        transaction.receive(STOCK_QUEUE)
        go_on.wait(60)

    switch_on(active)
    before, invoked = counter_value("task_limit_reached"), counter_value("stored_procedures_invoked")
    with sb.activate(active.instance, interval=0.1):
        send(active, "taken")
        eventually(lambda: counter_value("stored_procedures_invoked") == invoked + 1)
        assert counter_value("task_limit_reached") == before
        send(active, "waits")
        eventually(lambda: counter_value("task_limit_reached") >= before + 2)  # once in each interval
        assert counter_value("stored_procedures_invoked") == invoked + 1
        go_on.set()
        eventually(lambda: counter_value("stored_procedures_invoked") >= invoked + 2)


@pytest.mark.feature(200)
def test_calls_and_those_that_raise_are_counted(active: sb.Database) -> None:
    @sb.procedure("usp_Stock", form="database")
    def stock(database: sb.Database) -> None:
        messages = database.receive(STOCK_QUEUE, top=1)
        if messages and messages[0].message_body == b"raise":
            raise ValueError("as asked")

    switch_on(active)
    invoked, errors = counter_value("stored_procedures_invoked"), counter_value("activation_errors")
    with sb.activate(active.instance, interval=0.1):
        send(active, "fine")
        # the second call finds an empty queue
        eventually(lambda: counter_value("stored_procedures_invoked") >= invoked + 2)
        assert counter_value("activation_errors") == errors
        send(active, "raise")
        eventually(lambda: counter_value("activation_errors") == errors + 1)


@pytest.mark.feature(200)
def test_calls_in_processes_of_their_own_are_counted(active: sb.Database, tmp_path: Path) -> None:
    file = tmp_path / "counted_procedures.py"
    file.write_text(PROCEDURES)
    switch_on(active)
    invoked, errors = counter_value("stored_procedures_invoked"), counter_value("activation_errors")
    with sb.activate(active.instance, procedures=[str(file)], interval=0.1):
        send(active, "fine")
        eventually(lambda: counter_value("stored_procedures_invoked") == invoked + 2)
        assert counter_value("activation_errors") == errors
        send(active, "raise")
        eventually(lambda: counter_value("activation_errors") == errors + 1)
        send(active, "die")
        eventually(lambda: counter_value("activation_errors") == errors + 2)
    assert counter_value("stored_procedures_invoked") >= invoked + 4
