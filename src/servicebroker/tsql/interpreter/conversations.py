"""The verbs of conversations, each as the operation that it is."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from servicebroker import operations
from servicebroker.model import names
from servicebroker.model.arguments import OMITTED, Omitted
from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate, identifier, integer, text
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import (
    BeginDialog,
    BeginTimer,
    EndConversation,
    MoveConversation,
    Name,
    Operand,
    Send,
)
from servicebroker.tsql.types import UNIQUEIDENTIFIER, VARBINARY

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
    if len(statement.handles) == 1:
        return operations.Send(_handle(machine, statement.handles[0]), message_type, body)
    return operations.Send([_handle(machine, given) for given in statement.handles], message_type, body)


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
