"""SET IMPLICIT_TRANSACTIONS ON: a statement that looks at what is stored, or changes it, begins a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.tsql.interpreter.set_options import SNAPSHOT
from servicebroker.tsql.relational import Translated
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

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_BEGIN = (
    BeginTimer, BeginDialog, BeginTransaction, EndConversation, Fetch, Function, GetConversationGroup,
    InsertExecute, MoveConversation, Permission, Procedure, Receive, Send, Trigger, WaitForMessage,
)  # fmt: skip


def begin_implicitly(machine: Machine, statement: Statement) -> None:
    """Begin a transaction before a statement that asks for one, unless one is open.

    BEGIN TRANSACTION behind it counts as a second one, as in SQL Server.
    """
    if _begins(statement):
        _begin(machine)


def begin_to_look(machine: Machine, done: Translated) -> None:
    """Begin one before what looks into a table, changes it or defines one, also for the value of IF or SET."""
    if machine.implicit and (done.looks or done.kind in ("count", "ddl")):
        _begin(machine)


def _begin(machine: Machine) -> None:
    if machine.transactions.count == 0:
        machine.transactions.begin(snapshot=machine.isolation == SNAPSHOT)
        machine.transactions.is_implicit = True


def _begins(statement: Statement) -> bool:
    if isinstance(statement, Definition):
        return statement.verb in ("CREATE", "DROP")
    return isinstance(statement, _BEGIN) or (isinstance(statement, CursorStep) and statement.verb == "OPEN")
