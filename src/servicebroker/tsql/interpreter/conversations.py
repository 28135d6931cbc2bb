"""The verbs of conversations, each as the operation that it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from servicebroker import operations
from servicebroker.model import names
from servicebroker.model.arguments import OMITTED, Omitted
from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError
from servicebroker.model.messages import Message
from servicebroker.tsql.context import database_of
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate, identifier, integer, text
from servicebroker.tsql.interpreter.machine import CallEnd, Machine, runs
from servicebroker.tsql.interpreter.receiving import cannot_fail, check_list, deliver
from servicebroker.tsql.postgres_errors import from_postgres
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import (
    BeginDialog,
    BeginTimer,
    EndConversation,
    GetConversationGroup,
    MoveConversation,
    Name,
    Operand,
    Receive,
    Send,
    WaitForMessage,
)
from servicebroker.tsql.types import INT, UNIQUEIDENTIFIER, VARBINARY

_STRINGS = ("nvarchar", "nchar", "ntext", "sysname", "varchar", "char", "text", "xml")
_NEEDS_BRACKETS = re.compile(r"[.\[\]]")


def written(name: Name) -> str:
    """A queue's name as the API wants it, without the database; in brackets only where it must be."""
    parts = [part for part in (name.schema, name.own) if part]
    return ".".join("[" + part.replace("]", "]]") + "]" if _NEEDS_BRACKETS.search(part) else part for part in parts)


@runs(BeginDialog)
def _begin_dialog(machine: Machine, statement: BeginDialog) -> None:
    convert(UUID(int=0), UNIQUEIDENTIFIER, machine.frame.type_of(statement.handle))  # it must take a handle
    handle = machine.context.verbs.run(_dialog(machine, statement))
    machine.frame.assign(statement.handle, handle, UNIQUEIDENTIFIER)
    machine.done(1)


def _dialog(machine: Machine, statement: BeginDialog) -> operations.BeginDialog:
    """The operation that the clauses say. NULL is refused by its own number."""
    return operations.BeginDialog(
        text(machine, statement.from_service),  # type: ignore[arg-type]
        text(machine, statement.to_service),  # type: ignore[arg-type]
        broker_instance=text(machine, statement.broker_instance),
        contract=names.DEFAULT if statement.contract is None else text(machine, statement.contract),  # type: ignore[arg-type]
        related_conversation=identifier(machine, statement.related_conversation),
        related_conversation_group=identifier(machine, statement.related_conversation_group),
        lifetime=MAXIMUM_LIFETIME if statement.lifetime is None else integer(machine, statement.lifetime),  # type: ignore[arg-type]
        encryption=statement.encryption is not False,
    )


@runs(BeginTimer)
def _begin_timer(machine: Machine, statement: BeginTimer) -> None:
    timeout: int = integer(machine, statement.timeout)  # type: ignore[assignment] # NULL is refused with 402
    machine.context.verbs.run(operations.BeginConversationTimer(_handle(machine, statement.handle), timeout))
    machine.done(0)


@runs(Send)
def _send(machine: Machine, statement: Send) -> None:
    machine.context.verbs.run(_sending(machine, statement))
    machine.done(len(statement.handles))


def _sending(machine: Machine, statement: Send) -> operations.Send[Any]:
    """The operation that the clauses say."""
    message_type = names.DEFAULT if statement.message_type is None else text(machine, statement.message_type)
    body = _body(machine, statement)
    if message_type is None:
        raise BrokerError(8428, "")
    handles = [_handle(machine, given) for given in statement.handles]
    if len(handles) == 1:
        return operations.Send(handles[0], message_type, body)
    return operations.Send(handles, message_type, body)


def _body(machine: Machine, statement: Send) -> bytes | Omitted:
    """The message's bytes; a string travels as T-SQL stores it: UTF-16, or one byte for each character."""
    if statement.body is None:
        return OMITTED
    value, source = evaluate(machine, statement.body)
    if value is None:
        return None  # type: ignore[return-value] # refused with 8433
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if source is not None and source.name in _STRINGS:
        return bytes(convert(value, source, VARBINARY))
    raise TsqlError(
        206, f"Operand type clash: {source.name if source else 'the value'} is incompatible with varbinary(max)."
    )


def _handle(machine: Machine, given: Operand) -> UUID:
    return identifier(machine, given)  # type: ignore[return-value] # NULL is refused with 8418


@runs(Receive)
def _receive(machine: Machine, statement: Receive) -> None:
    _take(machine, statement, 0.0)


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
    if machine.transactions.count:
        for message in found:
            machine.transactions.met |= {message.conversation_group_id, message.conversation_handle}
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


@runs(GetConversationGroup)
def _get(machine: Machine, statement: GetConversationGroup) -> None:
    _get_group(machine, statement, 0.0)


def _get_group(machine: Machine, statement: GetConversationGroup, wait: float) -> None:
    convert(UUID(int=0), UNIQUEIDENTIFIER, machine.frame.type_of(statement.group))
    queue = machine.queries.behind(statement.queue)
    with _reading(queue):
        group = database_of(machine, queue).verbs.run(operations.GetConversationGroup(written(queue), wait=wait))
    if group is not None and machine.transactions.count:
        machine.transactions.met.add(group)
    machine.frame.assign(statement.group, group, UNIQUEIDENTIFIER)
    machine.done(int(group is not None))


@runs(MoveConversation)
def _move(machine: Machine, statement: MoveConversation) -> None:
    group: UUID = identifier(machine, statement.group)  # type: ignore[assignment] # NULL is refused with 8420
    machine.context.verbs.run(operations.MoveConversation(_handle(machine, statement.handle), group))
    machine.done(0)


@runs(EndConversation)
def _end(machine: Machine, statement: EndConversation) -> None:
    operation = _ending(machine, statement)
    machine.context.verbs.run(operation)
    if machine.transactions.count:
        machine.transactions.met.add(operation.handle)
    machine.done(0)


def _ending(machine: Machine, statement: EndConversation) -> operations.EndConversation:
    """The operation that the clauses say. NULL is refused by its own number."""
    handle, error = _handle(machine, statement.handle), None
    if statement.code is not None:
        error = integer(machine, statement.code), text(machine, statement.description)
    return operations.EndConversation(handle, error=error, cleanup=statement.cleanup)  # type: ignore[arg-type]
