"""Blocks, IF, WHILE, TRY, variables, options, transactions, WAITFOR DELAY and TIME."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from datetime import datetime, timedelta

from servicebroker.model.errors import BrokerError
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.definitions import user_types
from servicebroker.tsql.interpreter.evaluation import condition, evaluate, text
from servicebroker.tsql.interpreter.frame import Jump, Left, Signal
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

_COOKIE = 16  # bytes


@runs(Block)
def _block(machine: Machine, statement: Block) -> Left | None:
    return machine.run(statement.body, machine.following)


@runs(If)
def _if(machine: Machine, statement: If) -> Left | None:
    holds = condition(machine, statement.condition)
    machine.done(0)
    if holds:
        return machine.step(statement.then)
    if statement.otherwise is not None:
        return machine.step(statement.otherwise)
    return None


@runs(While)
def _while(machine: Machine, statement: While) -> Left | None:
    while condition(machine, statement.condition):
        machine.done(0)
        machine.following = None
        left = machine.step(statement.body)
        if left is Signal.BREAK or machine.no_execution:  # SET NOEXEC ON: nothing would end it
            break
        if left is not None and left is not Signal.CONTINUE:
            return left
    return None


@runs(Label)
def _label(machine: Machine, statement: Label) -> None:
    """A place, which does nothing."""


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
        machine.frame.code = 0 if value is None else int(convert(value, source, INT))
    return Signal.RETURN


@runs(NoEffect)
def _no_effect(machine: Machine, statement: NoEffect) -> None:
    machine.done()


@runs(Unsupported)
def _unsupported(machine: Machine, statement: Unsupported) -> None:
    raise unsupported(statement.what, statement.instead, statement.line)


@runs(TryCatch)
def _try(machine: Machine, statement: TryCatch) -> Left | None:
    frames = len(machine.frames)
    machine.tries += 1
    try:
        return machine.run(statement.body)
    except TsqlError as error:
        caught = error
    finally:
        machine.tries -= 1
    machine.unwind(frames, machine.context.depth)  # what EXECUTE AS has said before the error still holds
    machine.caught.append(caught)
    machine.error = caught.number
    try:
        return machine.run(statement.handler)
    finally:
        machine.caught.pop()


# ---------------------------------------------------------------- variables


@runs(DeclareVariable)
def _declare(machine: Machine, statement: DeclareVariable) -> None:
    frame = machine.frame
    if statement.name not in frame.types:
        try:
            kind = machine.type_named(statement.type)
        except TsqlError:
            if not user_types.declare_table(machine, statement):
                raise
            return
        frame.declare(statement.name, kind)
    if statement.value is not None:
        value = evaluate(machine, statement.value)
        frame.assign(statement.name, value.value, value.type)
        machine.done(1)


@runs(Declarations)
def _declare_early(machine: Machine, statement: Declarations) -> None:
    """A type that is not there yet is left to its DECLARE, which says so when its turn comes."""
    for one in statement.made:
        with contextlib.suppress(TsqlError):
            if isinstance(one, DeclareTable):
                _declare_table(machine, one)
            else:
                _declare(machine, one)


@runs(DeclareTable)
def _declare_table(machine: Machine, statement: DeclareTable) -> None:
    machine.queries.declare_table(machine.frame, statement.name, statement.columns)


@runs(SetVariable)
def _set_variable(machine: Machine, statement: SetVariable) -> None:
    _assign(machine, statement)
    machine.done(1)


def _assign(machine: Machine, statement: SetVariable) -> None:
    machine.frame.type_of(statement.name)
    value = evaluate(machine, statement.value)
    machine.frame.assign(statement.name, value.value, value.type)


@runs(SelectVariables)
def _select_variables(machine: Machine, statement: SelectVariables) -> None:
    for assignment in statement.assignments:
        _assign(machine, assignment)
    machine.done(1)


@runs(SetOption)
def _set_option(machine: Machine, statement: SetOption) -> None:
    set_option(machine, statement)
    machine.done(0)


@runs(Use)
def _use(machine: Machine, statement: Use) -> None:
    machine.context.use(statement.database)
    machine.say(Message(f"Changed database context to '{machine.context.database.name}'.", 5701))
    machine.done(0)


# ---------------------------------------------------------------- principals and transactions


@runs(ExecuteAs)
def _execute_as(machine: Machine, statement: ExecuteAs) -> None:
    """Raises: TsqlError: 15590 for NO REVERT and COOKIE in a module or a text."""
    frame = machine.frame
    if statement.name is None:
        if frame.is_module:
            machine.context.execute_as_caller(frame.caller or machine.context.standing)
        machine.done(0)
        return
    if (statement.no_revert or statement.cookie) and len(machine.frames) > 1:
        raise BrokerError(15590)
    cookie = None
    if statement.cookie is not None:
        _check_cookie(machine.frame.type_of(statement.cookie), "Execute As")
        cookie = secrets.token_bytes(_COOKIE)
    name = text(machine, statement.name) or ""
    machine.context.execute_as(statement.kind, name, no_revert=statement.no_revert, cookie=cookie)
    if statement.cookie is not None:
        frame.assign(statement.cookie, cookie, VARBINARY)
    machine.done(0)


@runs(Revert)
def _revert(machine: Machine, statement: Revert) -> None:
    """Raises: TsqlError: 15199, 15196, 15591, each of which ends the batch; 15533 the cookie is no varbinary."""
    cookie: object = None
    if statement.cookie is not None:
        cookie, of = evaluate(machine, statement.cookie)
        _check_cookie(of, "Revert")
        cookie = cookie or b""
    try:
        machine.context.revert(machine.frame.impersonated, cookie if isinstance(cookie, bytes) else None)
    except BrokerError as refused:
        error = from_broker(refused)
        error.ends_batch = True
        raise error from None
    machine.done(0)


def _check_cookie(of: SqlType | None, statement: str) -> None:
    if of is None or of.name != VARBINARY.name:
        raise BrokerError(15533, statement)


@runs(BeginTransaction)
def _begin(machine: Machine, statement: BeginTransaction) -> None:
    machine.transactions.begin(text(machine, statement.name) or "", snapshot=machine.isolation == SNAPSHOT)
    machine.done(0)


@runs(CommitTransaction)
def _commit(machine: Machine, statement: CommitTransaction) -> None:
    machine.context.commit()
    machine.done(0)


@runs(RollbackTransaction)
def _rollback(machine: Machine, statement: RollbackTransaction) -> None:
    name = text(machine, statement.name)
    if name is None or machine.transactions.names_all(name):
        machine.transactions.check_ends()
        machine.context.roll_back()
    else:
        machine.transactions.rollback_to(name)
    machine.done(0)


@runs(SaveTransaction)
def _save(machine: Machine, statement: SaveTransaction) -> None:
    machine.transactions.save(text(machine, statement.name) or "")
    machine.done(0)


@runs(WaitForTime)
def _wait(machine: Machine, statement: WaitForTime) -> None:
    value = text(machine, statement.value) or ""
    time.sleep(seconds_until(statement.kind, value, machine.instance.clock()))
    machine.done(0)


_TIME = re.compile(r"\s*(?:\d{4}-\d{2}-\d{2}\s+)?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:[.:](\d{1,3}))?)?\s*")


def seconds_until(kind: str, text: str, now: datetime) -> float:
    """The seconds from `now`, UTC: the length of a DELAY, or up to the next time of day that TIME names.

    Raises:
        TsqlError: 148 it is no time of less than 24 hours.
    """
    found = _TIME.fullmatch(text)
    hours, minutes, seconds = (int(found[n] or 0) for n in (1, 2, 3)) if found else (99, 0, 0)
    if found is None or hours > 23 or minutes > 59 or seconds > 59:
        raise TsqlError(148, f"Incorrect time syntax in time string '{text}' used with WAITFOR.", severity=15)
    length = timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=int((found[4] or "0").ljust(3, "0")))
    if kind == "DELAY":
        return length.total_seconds()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight + length - now).total_seconds() % timedelta(days=1).total_seconds()
