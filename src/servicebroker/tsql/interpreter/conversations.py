"""Runs the conversation statements except RECEIVE: evaluates the clauses, builds the operation and runs it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from servicebroker import operations
from servicebroker.model import names
from servicebroker.model.arguments import OMITTED, Omitted
from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate, evaluate_identifier, evaluate_integer, evaluate_text
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import (
    BeginDialog,
    BeginTimer,
    EndConversation,
    MoveConversation,
    Operand,
    Send,
)
from servicebroker.tsql.types import UNIQUEIDENTIFIER, VARBINARY

_STRING_TYPES = ("nvarchar", "nchar", "ntext", "sysname", "varchar", "char", "text", "xml")


@runs(BeginDialog)
def _begin_dialog(machine: Machine, statement: BeginDialog) -> None:
    # refuses a variable that cannot hold a handle, before the dialog begins
    convert(UUID(int=0), UNIQUEIDENTIFIER, machine.frame.type_of(statement.handle))
    handle = machine.context.verbs.run(_make_begin_dialog(machine, statement))
    machine.frame.assign(statement.handle, handle, UNIQUEIDENTIFIER)
    machine.record_success(1)


def _make_begin_dialog(machine: Machine, statement: BeginDialog) -> operations.BeginDialog:
    """Make the operation from the clauses. The operation refuses NULL with the error of the clause."""
    return operations.BeginDialog(
        evaluate_text(machine, statement.from_service),  # type: ignore[arg-type]
        evaluate_text(machine, statement.to_service),  # type: ignore[arg-type]
        broker_instance=evaluate_text(machine, statement.broker_instance),
        contract=names.DEFAULT if statement.contract is None else evaluate_text(machine, statement.contract),  # type: ignore[arg-type]
        related_conversation=evaluate_identifier(machine, statement.related_conversation),
        related_conversation_group=evaluate_identifier(machine, statement.related_conversation_group),
        lifetime=MAXIMUM_LIFETIME if statement.lifetime is None else evaluate_integer(machine, statement.lifetime),  # type: ignore[arg-type]
        encryption=statement.encryption is not False,
    )


@runs(BeginTimer)
def _begin_timer(machine: Machine, statement: BeginTimer) -> None:
    timeout: int = evaluate_integer(machine, statement.timeout)  # type: ignore[assignment] # NULL is refused with 402
    machine.context.verbs.run(operations.BeginConversationTimer(_evaluate_handle(machine, statement.handle), timeout))
    machine.record_success(0)


@runs(Send)
def _send(machine: Machine, statement: Send) -> None:
    machine.context.verbs.run(_make_send(machine, statement))
    machine.record_success(len(statement.handles))


def _make_send(machine: Machine, statement: Send) -> operations.Send[Any]:
    """Make the operation from the clauses."""
    message_type = names.DEFAULT if statement.message_type is None else evaluate_text(machine, statement.message_type)
    body = _evaluate_body(machine, statement)
    if message_type is None:
        raise BrokerError(8428, "", hint="The message type is NULL: set the variable.")
    if len(statement.handles) == 1:
        return operations.Send(_evaluate_handle(machine, statement.handles[0]), message_type, body)
    return operations.Send([_evaluate_handle(machine, handle) for handle in statement.handles], message_type, body)


def _evaluate_body(machine: Machine, statement: Send) -> bytes | Omitted:
    """Return the message body as bytes.

    A string is encoded as T-SQL stores it: UTF-16, or one byte for each character.
    """
    if statement.body is None:
        return OMITTED
    value, source = evaluate(machine, statement.body)
    if value is None:
        return None  # type: ignore[return-value] # refused with 8433
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if source is not None and source.name in _STRING_TYPES:
        return bytes(convert(value, source, VARBINARY))
    raise TsqlError(
        206, f"Operand type clash: {source.name if source else 'the value'} is incompatible with varbinary(max)."
    )


def _evaluate_handle(machine: Machine, operand: Operand) -> UUID:
    return evaluate_identifier(machine, operand)  # type: ignore[return-value] # NULL is refused with 8418


@runs(MoveConversation)
def _move(machine: Machine, statement: MoveConversation) -> None:
    group: UUID = evaluate_identifier(machine, statement.group)  # type: ignore[assignment] # NULL is refused with 8420
    machine.context.verbs.run(operations.MoveConversation(_evaluate_handle(machine, statement.handle), group))
    machine.record_success(0)


@runs(EndConversation)
def _end(machine: Machine, statement: EndConversation) -> None:
    operation = _make_end_conversation(machine, statement)
    machine.context.verbs.run(operation)
    if machine.transactions.count:
        # a later RECEIVE of this handle in the transaction returns no rows, instead of error 8426
        machine.transactions.touched_ids.add(operation.handle)
    machine.record_success(0)


def _make_end_conversation(machine: Machine, statement: EndConversation) -> operations.EndConversation:
    """Make the operation from the clauses. The operation refuses NULL with the error of the clause."""
    handle, error = _evaluate_handle(machine, statement.handle), None
    if statement.code is not None:
        error = evaluate_integer(machine, statement.code), evaluate_text(machine, statement.description)
    return operations.EndConversation(handle, error=error, cleanup=statement.cleanup)  # type: ignore[arg-type]
