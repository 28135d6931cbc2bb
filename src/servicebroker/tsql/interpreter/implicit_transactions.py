"""SET IMPLICIT_TRANSACTIONS ON: a statement that looks at what is stored, or changes it, begins a transaction."""

from __future__ import annotations

import re
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
    Relational,
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
_READS = re.compile(r"\bfrom\b", re.IGNORECASE)


def begin_implicitly(machine: Machine, statement: Statement) -> None:
    """Begin a transaction before a statement that asks for one, unless one is open.

    BEGIN TRANSACTION behind it counts as a second one, as in SQL Server.
    """
    if machine.transactions.count == 0 and _begins(statement):
        machine.transactions.begin(snapshot=machine.isolation == SNAPSHOT)


def _begins(statement: Statement) -> bool:
    if isinstance(statement, Relational):
        return statement.verb != "SELECT" or _READS.search(statement.text) is not None
    if isinstance(statement, Definition):
        return statement.verb in ("CREATE", "DROP")
    return isinstance(statement, _BEGIN) or (isinstance(statement, CursorStep) and statement.verb == "OPEN")
