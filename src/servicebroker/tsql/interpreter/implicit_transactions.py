"""SET IMPLICIT_TRANSACTIONS ON: a statement that reads or changes tables begins a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.tsql.interpreter.set_options import SNAPSHOT
from servicebroker.tsql.syntax import (
    BeginDialog,
    BeginTimer,
    BeginTransaction,
    CursorStep,
    Definition,
    EndConversation,
    Fetch,
    Function,
    GetConversationGroup,
    InsertExecute,
    MoveConversation,
    Permission,
    Procedure,
    Receive,
    Send,
    Statement,
    Trigger,
    WaitForMessage,
)
from servicebroker.tsql.translator import Translation

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_BEGINNING_STATEMENTS = (
    BeginTimer, BeginDialog, BeginTransaction, EndConversation, Fetch, Function, GetConversationGroup,
    InsertExecute, MoveConversation, Permission, Procedure, Receive, Send, Trigger, WaitForMessage,
)  # fmt: skip


def begin_implicitly(machine: Machine, statement: Statement) -> None:
    """Under IMPLICIT_TRANSACTIONS, begin a transaction before a statement of a kind that does so, unless one is open.

    A BEGIN TRANSACTION that follows is a second, nested one, as in SQL Server.
    """
    if _should_begin(statement):
        _begin_transaction(machine)


def begin_before_query(machine: Machine, translation: Translation) -> None:
    """Begin a transaction before a query that reads, changes or defines a table, also for the value of IF or SET."""
    if machine.is_implicit and (translation.names_tables or translation.kind in ("count", "ddl")):
        _begin_transaction(machine)


def _begin_transaction(machine: Machine) -> None:
    if machine.transactions.count == 0:
        machine.transactions.begin(snapshot=machine.isolation == SNAPSHOT)
        machine.transactions.is_implicit = True


def _should_begin(statement: Statement) -> bool:
    if isinstance(statement, Definition):
        return statement.keyword in ("CREATE", "DROP")
    return isinstance(statement, _BEGINNING_STATEMENTS) or (
        isinstance(statement, CursorStep) and statement.keyword == "OPEN"
    )
