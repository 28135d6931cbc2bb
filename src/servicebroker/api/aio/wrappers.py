"""Wrappers of operations: counting, traces, a second try, events.

A wrapper is given what is inside of it, and runs that: once, again, or with other steps. Which wrappers an operation
has, from the outside to the inside, is said in one place, `WRAPPERS`; innermost are the operation's steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

import psycopg

from servicebroker.api.shared import tracing
from servicebroker.engine.diagnosis.totals import RECEIVES, SENDS
from servicebroker.model.errors import InstanceError
from servicebroker.model.messages import Message
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.end import EndConversation
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Operation, described
from servicebroker.operations.receive import GetConversationGroup, Hold, Receive
from servicebroker.operations.schedules import DropSchedule, KeepSchedule, Schedules, TakeTurn
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.set_aside import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.transmission_status import GetTransmissionStatus
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.verbs import AsyncVerbs

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_WAS_DROPPED = "The queue was dropped by another process, and this transaction is undone: begin it again."

COUNTERS: Mapping[type[Operation[Any]], str] = {Send: SENDS, SendBatch: SENDS, Receive: RECEIVES, Hold: RECEIVES}

Begin: TypeAlias = Callable[[], Steps[Any]]  # makes the steps, again for each try
Runner: TypeAlias = Callable[[Any, Any, Begin], Awaitable[Any]]  # of the verbs and their operation
Wrapper: TypeAlias = Callable[[Runner, Any, Any, Begin], Awaitable[Any]]


def operated(operation: Callable[P, Operation[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Return the method that runs an operation; its parameters, types and help are those of the operation."""

    async def method(verbs: Any, /, *given: P.args, **named: P.kwargs) -> T:
        result: T = await verbs.run(operation(*given, **named))
        return result

    return described(method, operation)  # type: ignore[arg-type] # a class


async def counted(inner: Runner, verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Count sent messages and RECEIVEs, for Broker Statistics."""
    result = await inner(verbs, operation, begin)
    verbs.instance.tally.add(COUNTERS[type(operation)], operation.messages)
    return result


async def traced(inner: Runner, verbs: AsyncVerbs, operation: Send[Any] | SendBatch, begin: Begin) -> Any:
    """Give a SEND under a span one of its own, whose context is stored beside the messages."""
    span = tracing.begin_send(verbs._processing, operation.message_type, operation.messages)
    if span is None:
        return await inner(verbs, operation, begin)
    problem, context, engine = None, tracing.packed(span), verbs.engine

    def with_trace() -> Steps[Any]:
        return engine.sent_with_trace(begin(), operation.handles, operation.messages, context)

    try:
        return await inner(verbs, operation, with_trace)
    except BaseException as raised:
        problem = raised
        raise
    finally:
        tracing.end(span, problem)


async def repeated(inner: Runner, verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """If another process has dropped the queue that this one remembers, forget the queue and run the operation anew."""
    try:
        return await inner(verbs, operation, begin)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
        verbs.engine.forget(operation)
        if not verbs._is_alone():
            raise InstanceError(QUEUE_WAS_DROPPED) from None
        return await inner(verbs, operation, begin)


async def watched(inner: Runner, verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Raise the events Broker:Conversation and Broker:Conversation Group for those who have asked for them."""
    if not verbs.instance.events.watches_conversations:
        return await inner(verbs, operation, begin)
    engine = verbs.engine

    def with_looks() -> Steps[Any]:
        return engine.observe(operation, begin(), verbs._tell)

    return await inner(verbs, operation, with_looks)


async def performed(verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Run the steps where the verbs run."""
    verbs._works()
    return await verbs._do(begin())


async def asked(verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Run the steps where the verbs run. They change nothing, so their rollback is not counted."""
    return await verbs._do(begin())


async def waiting(inner: Runner, verbs: AsyncVerbs, operation: Receive | GetConversationGroup, begin: Begin) -> Any:
    """WAITFOR: repeat the operation until it finds messages or the wait times out."""
    operation.check_wait()
    patience = operation.patience
    if patience == 0:
        return await inner(verbs, operation, begin)

    def once() -> Awaitable[Any]:
        return inner(verbs, operation, begin)

    found = await verbs._waiting(operation.queue, once, patience, filtered=operation.has_condition)
    return [] if found is None and isinstance(operation, Receive) else found


async def delivered(inner: Runner, verbs: AsyncVerbs, operation: Receive, begin: Begin) -> list[Message]:
    """Make messages of the rows that were taken; tell counters, traces and poison detection."""
    instance, queue = verbs.instance, await verbs._find(operation.queue)
    await instance.poison.look(queue.queue_id)
    queue_id, (rows, transaction) = await inner(verbs, operation, begin)
    messages: list[Message] = []
    if rows:
        verbs._received(queue_id, transaction)
        alone = verbs._is_alone()  # then nobody else can receive them any more: from here on nothing may raise
        messages = await verbs._named(rows, alone=alone)
        if tracing.is_on() and not operation.leaves:
            await verbs._trace(queue.name, messages, alone=alone)
    instance.count_received(queue_id, len(messages), filtered=operation.has_condition)
    return messages


async def noted(inner: Runner, verbs: AsyncVerbs, operation: GetConversationGroup, begin: Begin) -> UUID | None:
    """Tell the session of an activated task whether there was a group."""
    group: UUID | None = await inner(verbs, operation, begin)
    verbs.instance.count_polled(group is not None)
    return group


async def administered(verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Run the steps as a definition is run: in a transaction of their own, while nobody else defines anything."""
    return await verbs._alone(begin())


class Within(NamedTuple):
    """The runners of an operation within its wrappers. `quiet` leaves out `OBSERVERS`."""

    quiet: Runner
    observed: Runner


def _within(*wrappers: Wrapper, innermost: Runner = performed) -> Within:
    """Return the runners of an operation within these wrappers, the first wrapper outermost."""
    quiet = observed = innermost
    for wrapper in reversed(wrappers):
        observed = partial(wrapper, observed)
        quiet = quiet if wrapper in OBSERVERS else partial(wrapper, quiet)
    return Within(quiet, observed)


OBSERVERS: tuple[Wrapper, ...] = (traced, watched)  # needed only while a trace or an observer is on

_SENDING = _within(counted, traced, repeated, watched)
WRAPPERS: Mapping[type[Operation[Any]], Within] = {
    Send: _SENDING,
    SendBatch: _SENDING,
    Receive: _within(counted, waiting, delivered, repeated),
    Hold: _within(counted, delivered, repeated),
    GetConversationGroup: _within(waiting, noted, repeated),
    BeginDialog: _within(watched),
    EndConversation: _within(repeated, watched),
    MoveConversation: _within(watched),
    BeginConversationTimer: _within(),
    GetTransmissionStatus: _within(innermost=asked),
    DelayedMessages: _within(innermost=asked),
    CancelDelayed: _within(),
    Schedules: _within(innermost=asked),
    DropSchedule: _within(innermost=administered),
    KeepSchedule: _within(),
    TakeTurn: _within(),
    SetAsideMessages: _within(innermost=administered),
    DeadLetterGroups: _within(innermost=administered),
    ReplayMessage: _within(innermost=administered),
    DiscardMessage: _within(innermost=administered),
}
