"""RECEIVE and GET CONVERSATION GROUP, alone and in WAITFOR, each as the operation that it is."""

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
from servicebroker.tsql.interpreter.conversations import written
from servicebroker.tsql.interpreter.evaluation import evaluate, identifier, integer
from servicebroker.tsql.interpreter.machine import CallEnd, Machine, runs
from servicebroker.tsql.interpreter.receiving import cannot_fail, check_list, deliver
from servicebroker.tsql.postgres_errors import from_postgres
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import GetConversationGroup, Name, Receive, WaitForMessage
from servicebroker.tsql.types import INT, UNIQUEIDENTIFIER


@runs(Receive)
def _receive(machine: Machine, statement: Receive) -> None:
    _take(machine, statement, 0.0)


@runs(GetConversationGroup)
def _get(machine: Machine, statement: GetConversationGroup) -> None:
    _get_group(machine, statement, 0.0)


@runs(WaitForMessage)
def _wait_for(machine: Machine, statement: WaitForMessage) -> None:
    timeout = -1 if statement.timeout is None else integer(machine, statement.timeout)
    if timeout is None or timeout < -1:
        raise TsqlError(
            1014, "A TIMEOUT clause contains an invalid value: it is a number of milliseconds, or -1.", severity=15
        )
    wait = float("inf") if timeout == -1 else timeout / 1000
    if isinstance(statement.statement, Receive):
        _take(machine, statement.statement, wait)
    else:
        _get_group(machine, statement.statement, wait)


def _take(machine: Machine, statement: Receive, wait: float) -> None:
    """The messages, and where they go: when that fails, they are in the queue again."""
    check_list(machine, statement)
    if cannot_fail(statement) and not machine.shaping:
        deliver(machine, statement, _received(machine, statement, wait))
        return
    with machine.together():
        messages = _received(machine, statement, wait)
        try:
            deliver(machine, statement, messages)
        except CallEnd as ended:
            ended.error.undoes = bool(messages)
            raise
        except (TsqlError, psycopg.Error) as problem:
            error = problem if isinstance(problem, TsqlError) else from_postgres(problem)
            error.undoes = bool(messages)
            raise error from None


def _received(machine: Machine, statement: Receive, wait: float) -> list[Message]:
    limits = _limits(machine, statement)
    where = next((value for value in limits.values() if isinstance(value, UUID)), None)
    queue = machine.queries.behind(statement.queue)
    operation = operations.Receive(written(queue), wait=wait, **limits)
    try:
        with _reading(queue):
            found = database_of(machine, queue).verbs.run(operation)
    except BrokerError as refused:
        # what this transaction has ended is no mistake of who asks for more: the loop that reads a group to its end
        if refused.number not in (8426, 8436) or where not in machine.transactions.met:
            raise
        return []
    machine.transactions.meet(found)
    return found


def _limits(machine: Machine, statement: Receive) -> dict[str, Any]:
    """TOP and WHERE as fields of the operation; a column of WHERE has its field's name."""
    limits: dict[str, Any] = {}
    if statement.top is not None:
        value, source = evaluate(machine, statement.top)
        limits["top"] = int(convert(value, source, INT)) if value is not None else -1
        if limits["top"] < 0:
            raise TsqlError(1060, "The number of rows in the TOP clause must be an integer.", severity=15)
    if statement.where:
        limits[statement.where] = identifier(machine, statement.value)
        if limits[statement.where] is None:
            raise BrokerError(8418 if statement.where == "conversation_handle" else 8420)
    return limits


@contextmanager
def _reading(queue: Name) -> Iterator[None]:
    """A queue that is not there is no object of that name, as for SELECT. Raises: TsqlError: 208."""
    try:
        yield
    except BrokerError as refused:
        if refused.number != 15151:
            raise
        raise TsqlError(208, f"Invalid object name '{queue}'.") from None


def _get_group(machine: Machine, statement: GetConversationGroup, wait: float) -> None:
    convert(UUID(int=0), UNIQUEIDENTIFIER, machine.frame.type_of(statement.group))
    queue = machine.queries.behind(statement.queue)
    with _reading(queue):
        group = database_of(machine, queue).verbs.run(operations.GetConversationGroup(written(queue), wait=wait))
    if group is not None and machine.transactions.count:
        machine.transactions.met.add(group)
    machine.frame.assign(statement.group, group, UNIQUEIDENTIFIER)
    machine.done(int(group is not None))
