"""RECEIVE and GET CONVERSATION GROUP, alone and in WAITFOR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from servicebroker import operations
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message
from servicebroker.tsql.context import database_of
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate, evaluate_identifier, evaluate_integer
from servicebroker.tsql.interpreter.machine import CallAborted, Machine, runs
from servicebroker.tsql.interpreter.names import api_name
from servicebroker.tsql.interpreter.receive_list import check_receive_list, deliver, has_only_columns
from servicebroker.tsql.postgres_errors import from_postgres
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import GetConversationGroup, Name, Receive, WaitForMessage
from servicebroker.tsql.types import INT, UNIQUEIDENTIFIER


@runs(Receive)
def _receive(machine: Machine, statement: Receive) -> None:
    _run_receive(machine, statement, 0.0)


@runs(GetConversationGroup)
def _get_conversation_group(machine: Machine, statement: GetConversationGroup) -> None:
    _run_get_group(machine, statement, 0.0)


@runs(WaitForMessage)
def _wait_for_message(machine: Machine, statement: WaitForMessage) -> None:
    """Run WAITFOR with RECEIVE or GET CONVERSATION GROUP.

    Raises:
        TsqlError: 1014 the timeout is NULL or below -1.
    """
    timeout_ms = -1 if statement.timeout is None else evaluate_integer(machine, statement.timeout)
    if timeout_ms is None or timeout_ms < -1:
        raise TsqlError(
            1014, "A TIMEOUT clause contains an invalid value: it is a number of milliseconds, or -1.", severity=15
        )
    wait_s = float("inf") if timeout_ms == -1 else timeout_ms / 1000
    if isinstance(statement.statement, Receive):
        _run_receive(machine, statement.statement, wait_s)
    else:
        _run_get_group(machine, statement.statement, wait_s)


def _run_receive(machine: Machine, statement: Receive, wait_s: float) -> None:
    """Receive messages and deliver them. If the delivery fails, the messages go back to the queue."""
    check_receive_list(machine, statement)
    if has_only_columns(statement) and not machine.result_sets_depth:
        deliver(machine, statement, _receive_messages(machine, statement, wait_s))
        return
    with machine.transaction_scope():
        messages = _receive_messages(machine, statement, wait_s)
        try:
            deliver(machine, statement, messages)
        except CallAborted as call:
            call.error.undoes = bool(messages)
            raise
        except (TsqlError, psycopg.Error) as error:
            tsql_error = error if isinstance(error, TsqlError) else from_postgres(error)
            tsql_error.undoes = bool(messages)
            raise tsql_error from None


def _receive_messages(machine: Machine, statement: Receive, wait_s: float) -> list[Message]:
    """Run the RECEIVE. Return no messages if this transaction has already ended the conversation or its group."""
    fields = _receive_fields(machine, statement)
    selected_id = next((value for value in fields.values() if isinstance(value, UUID)), None)
    queue = machine.queries.resolve_synonym(statement.queue)
    operation = operations.Receive(api_name(queue), wait=wait_s, **fields)
    try:
        with _translate_missing_queue(queue):
            messages = database_of(machine, queue).verbs.run(operation)
    except BrokerError as error:
        # a loop that reads a group to its end calls RECEIVE once more after END CONVERSATION
        if error.number not in (8426, 8436) or selected_id not in machine.transactions.touched_ids:
            raise
        return []
    machine.transactions.note_messages(messages)
    return messages


def _receive_fields(machine: Machine, statement: Receive) -> dict[str, Any]:
    """Return TOP and WHERE as fields of the operation. A column of WHERE has the name of its field."""
    fields: dict[str, Any] = {}
    if statement.top is not None:
        value, source = evaluate(machine, statement.top)
        fields["top"] = int(convert(value, source, INT)) if value is not None else -1
        if fields["top"] < 0:
            raise TsqlError(1060, "The number of rows in the TOP clause must be an integer.", severity=15)
    if statement.where:
        fields[statement.where] = evaluate_identifier(machine, statement.value)
        if fields[statement.where] is None:
            raise BrokerError(8418 if statement.where == "conversation_handle" else 8420)
    return fields


@contextmanager
def _translate_missing_queue(queue: Name) -> Iterator[None]:
    """Replace the error of a missing queue by that of SELECT.

    Raises:
        TsqlError: 208 the queue does not exist.
    """
    try:
        yield
    except BrokerError as error:
        if error.number != 15151:
            raise
        raise TsqlError(208, f"Invalid object name '{queue}'.") from None


def _run_get_group(machine: Machine, statement: GetConversationGroup, wait_s: float) -> None:
    """Wait for a free conversation group, lock it, and assign its identifier; NULL after the timeout."""
    convert(UUID(int=0), UNIQUEIDENTIFIER, machine.frame.type_of(statement.group))
    queue = machine.queries.resolve_synonym(statement.queue)
    with _translate_missing_queue(queue):
        group = database_of(machine, queue).verbs.run(operations.GetConversationGroup(api_name(queue), wait=wait_s))
    if group is not None and machine.transactions.count:
        machine.transactions.touched_ids.add(group)
    machine.frame.assign(statement.group, group, UNIQUEIDENTIFIER)
    machine.record_success(int(group is not None))
