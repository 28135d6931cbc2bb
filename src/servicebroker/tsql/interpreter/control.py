"""Blocks, IF, WHILE, TRY, variables, options, EXECUTE AS, transactions, WAITFOR DELAY and TIME."""

from __future__ import annotations

import contextlib
import re
import secrets
from datetime import datetime, timedelta

from servicebroker.model.errors import BrokerError
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.call_frame import ExitReason, Jump, Signal
from servicebroker.tsql.interpreter.definitions import user_types
from servicebroker.tsql.interpreter.evaluation import evaluate, evaluate_condition, evaluate_text
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.set_options import SNAPSHOT, set_option
from servicebroker.tsql.postgres_errors import from_broker
from servicebroker.tsql.statement_errors import Message, TsqlError, unsupported
from servicebroker.tsql.syntax import (
    BeginTransaction,
    Block,
    Break,
    CommitTransaction,
    Continue,
    Declarations,
    DeclareTable,
    DeclareVariable,
    ExecuteAs,
    Goto,
    If,
    Label,
    NoEffect,
    Return,
    Revert,
    RollbackTransaction,
    SaveTransaction,
    SelectVariables,
    SetOption,
    SetVariable,
    TryCatch,
    Unsupported,
    Use,
    WaitForTime,
    While,
)
from servicebroker.tsql.types import INT, VARBINARY, SqlType

_COOKIE_BYTES = 16


@runs(Block)
def _block(machine: Machine, statement: Block) -> ExitReason | None:
    return machine.run(statement.body, machine.next_statement)


@runs(If)
def _if(machine: Machine, statement: If) -> ExitReason | None:
    is_true = evaluate_condition(machine, statement.condition)
    machine.record_success(0)
    if is_true:
        return machine.step(statement.then)
    if statement.otherwise is not None:
        return machine.step(statement.otherwise)
    return None


@runs(While)
def _while(machine: Machine, statement: While) -> ExitReason | None:
    """Run WHILE until the condition is false, BREAK, or another exit from the body."""
    while evaluate_condition(machine, statement.condition):
        machine.record_success(0)
        machine.next_statement = None
        exit_reason = machine.step(statement.body)
        if exit_reason is Signal.BREAK or machine.is_noexec:  # under SET NOEXEC nothing would end the loop
            break
        if exit_reason is not None and exit_reason is not Signal.CONTINUE:
            return exit_reason
    return None


@runs(Label)
def _label(machine: Machine, statement: Label) -> None:
    """Do nothing: a label only marks a place for GOTO."""


@runs(Goto)
def _goto(machine: Machine, statement: Goto) -> Jump:
    return Jump(statement.label)


@runs(Break)
def _break(machine: Machine, statement: Break) -> Signal:
    return Signal.BREAK


@runs(Continue)
def _continue(machine: Machine, statement: Continue) -> Signal:
    return Signal.CONTINUE


@runs(Return)
def _return(machine: Machine, statement: Return) -> Signal:
    if statement.value is not None:
        value, source = evaluate(machine, statement.value)
        machine.frame.return_code = 0 if value is None else int(convert(value, source, INT))
    return Signal.RETURN


@runs(NoEffect)
def _no_effect(machine: Machine, statement: NoEffect) -> None:
    machine.record_success()


@runs(Unsupported)
def _unsupported(machine: Machine, statement: Unsupported) -> None:
    raise unsupported(statement.feature, statement.alternative, statement.line)


@runs(TryCatch)
def _try(machine: Machine, statement: TryCatch) -> ExitReason | None:
    """Run TRY ... CATCH. An error leaves the calls inside TRY, and CATCH runs in the frame of the TRY."""
    frame_count = len(machine.frames)
    machine.try_depth += 1
    try:
        return machine.run(statement.body)
    except TsqlError as error:
        caught_error = error
    finally:
        machine.try_depth -= 1
    machine.unwind(frame_count, machine.context.depth)  # an EXECUTE AS inside TRY stays in force
    machine.caught_errors.append(caught_error)
    machine.error_number = caught_error.number
    try:
        return machine.run(statement.handler)
    finally:
        machine.caught_errors.pop()


# ---------------------------------------------------------------- variables


@runs(DeclareVariable)
def _declare(machine: Machine, statement: DeclareVariable) -> None:
    """Run DECLARE of one variable, of a plain or a table type. A loop may declare a variable again."""
    frame = machine.frame
    if statement.name not in frame.types:
        try:
            type_ = machine.resolve_type(statement.type)
        except TsqlError:
            if not user_types.declare_table_variable(machine, statement):
                raise
            return
        frame.declare(statement.name, type_)
    if statement.value is not None:
        value = evaluate(machine, statement.value)
        frame.assign(statement.name, value.value, value.type)
        machine.record_success(1)


@runs(Declarations)
def _declare_early(machine: Machine, statement: Declarations) -> None:
    """Declare the variables of a whole batch. A variable whose type does not exist yet is left to its own DECLARE."""
    for declaration in statement.declarations:
        with contextlib.suppress(TsqlError):
            if isinstance(declaration, DeclareTable):
                _declare_table(machine, declaration)
            else:
                _declare(machine, declaration)


@runs(DeclareTable)
def _declare_table(machine: Machine, statement: DeclareTable) -> None:
    machine.queries.declare_table(machine.frame, statement.name, statement.columns)


@runs(SetVariable)
def _set_variable(machine: Machine, statement: SetVariable) -> None:
    _assign(machine, statement)
    machine.record_success(1)


def _assign(machine: Machine, statement: SetVariable) -> None:
    machine.frame.type_of(statement.name)
    value = evaluate(machine, statement.value)
    machine.frame.assign(statement.name, value.value, value.type)


@runs(SelectVariables)
def _select_variables(machine: Machine, statement: SelectVariables) -> None:
    for assignment in statement.assignments:
        _assign(machine, assignment)
    machine.record_success(1)


@runs(SetOption)
def _set_option(machine: Machine, statement: SetOption) -> None:
    set_option(machine, statement)
    machine.record_success(0)


@runs(Use)
def _use(machine: Machine, statement: Use) -> None:
    machine.context.use(statement.database)
    machine.emit(Message(f"Changed database context to '{machine.context.database.name}'.", 5701))
    machine.record_success(0)


# ---------------------------------------------------------------- principals and transactions


@runs(ExecuteAs)
def _execute_as(machine: Machine, statement: ExecuteAs) -> None:
    """Run EXECUTE AS.

    Raises:
        BrokerError: 15590 NO REVERT or COOKIE in a module or a text, 15533 the cookie is not a varbinary.
    """
    frame = machine.frame
    if statement.name is None:
        if frame.is_module:
            machine.context.execute_as_caller(frame.caller or machine.context.execution_context)
        machine.record_success(0)
        return
    if (statement.no_revert or statement.cookie) and len(machine.frames) > 1:
        raise BrokerError(15590)
    cookie = None
    if statement.cookie is not None:
        _check_cookie(machine.frame.type_of(statement.cookie), "Execute As")
        cookie = secrets.token_bytes(_COOKIE_BYTES)
    principal = evaluate_text(machine, statement.name) or ""
    machine.context.execute_as(statement.kind, principal, no_revert=statement.no_revert, cookie=cookie)
    if statement.cookie is not None:
        frame.assign(statement.cookie, cookie, VARBINARY)
    machine.record_success(0)


@runs(Revert)
def _revert(machine: Machine, statement: Revert) -> None:
    """Run REVERT.

    Raises:
        TsqlError: 15199, 15196 or 15591, each of which ends the batch.
        BrokerError: 15533 the cookie is not a varbinary.
    """
    cookie: object = None
    if statement.cookie is not None:
        cookie, cookie_type = evaluate(machine, statement.cookie)
        _check_cookie(cookie_type, "Revert")
        cookie = cookie or b""
    try:
        machine.context.revert(machine.frame.impersonation_depth, cookie if isinstance(cookie, bytes) else None)
    except BrokerError as error:
        tsql_error = from_broker(error)
        tsql_error.ends_batch = True
        raise tsql_error from None
    machine.record_success(0)


def _check_cookie(type_: SqlType | None, statement: str) -> None:
    if type_ is None or type_.name != VARBINARY.name:
        raise BrokerError(15533, statement)


@runs(BeginTransaction)
def _begin(machine: Machine, statement: BeginTransaction) -> None:
    machine.transactions.begin(evaluate_text(machine, statement.name) or "", snapshot=machine.isolation == SNAPSHOT)
    machine.record_success(0)


@runs(CommitTransaction)
def _commit(machine: Machine, statement: CommitTransaction) -> None:
    machine.context.commit()
    machine.record_success(0)


@runs(RollbackTransaction)
def _rollback(machine: Machine, statement: RollbackTransaction) -> None:
    name = evaluate_text(machine, statement.name)
    if name is None or machine.transactions.is_outermost_name(name):
        machine.transactions.check_rollback_allowed()
        machine.context.roll_back()
    else:
        machine.transactions.rollback_to(name)
    machine.record_success(0)


@runs(SaveTransaction)
def _save(machine: Machine, statement: SaveTransaction) -> None:
    machine.transactions.save(evaluate_text(machine, statement.name) or "")
    machine.record_success(0)


@runs(WaitForTime)
def _wait(machine: Machine, statement: WaitForTime) -> None:
    value = evaluate_text(machine, statement.value) or ""
    machine.pause(seconds_until(statement.kind, value, machine.instance.clock()))
    machine.record_success(0)


_TIME_PATTERN = re.compile(r"\s*(?:\d{4}-\d{2}-\d{2}\s+)?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:([.:])(\d{1,3}))?)?\s*")


def seconds_until(kind: str, text: str, now: datetime) -> float:
    """Return the seconds that a WAITFOR sleeps from `now`, in UTC: the length of a DELAY, or up to the next such TIME.

    Raises:
        TsqlError: 148 the text is not a time of less than 24 hours.
    """
    match = _TIME_PATTERN.fullmatch(text)
    hours, minutes, seconds = (int(match[group] or 0) for group in (1, 2, 3)) if match else (99, 0, 0)
    if match is None or hours > 23 or minutes > 59 or seconds > 59:
        raise TsqlError(148, f"Incorrect time syntax in time string '{text}' used with WAITFOR.", severity=15)
    digits = match[5] or "0"
    milliseconds = int(digits if match[4] == ":" else digits.ljust(3, "0"))  # a colon precedes milliseconds
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if kind == "DELAY":
        return offset.total_seconds()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight + offset - now).total_seconds() % timedelta(days=1).total_seconds()
