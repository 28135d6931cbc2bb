"""Wrappers of operations: counting, traces, a retry, events. They work like middleware.

A wrapper gets the runner inside it (`inner`), and calls it once, again, or with other steps. `WRAPPERS` lists the
wrappers of each operation, the outermost first. The innermost runner runs the operation's SQL steps.
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
from servicebroker.operations.dead_letters import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.end import EndConversation
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Operation, copy_documentation
from servicebroker.operations.receive import GetConversationGroup, Hold, Receive
from servicebroker.operations.schedules import DropSchedule, KeepSchedule, Schedules, TakeTurn
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.transmission_status import GetTransmissionStatus
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.verbs import AsyncVerbs

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_WAS_DROPPED = "The queue was dropped by another process, and this transaction was rolled back: begin it again."

COUNTERS: Mapping[type[Operation[Any]], str] = {Send: SENDS, SendBatch: SENDS, Receive: RECEIVES, Hold: RECEIVES}

Begin: TypeAlias = Callable[[], Steps[Any]]  # makes the steps; each attempt needs new ones
Runner: TypeAlias = Callable[[Any, Any, Begin], Awaitable[Any]]  # (AsyncVerbs, operation, begin) -> its result
Wrapper: TypeAlias = Callable[[Runner, Any, Any, Begin], Awaitable[Any]]


def operation_method(operation: Callable[P, Operation[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Return a method that makes the operation and runs it. Its signature and help are those of the operation."""

    async def method(verbs: Any, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        result: T = await verbs.run(operation(*arguments, **keywords))
        return result

    return copy_documentation(method, operation)  # type: ignore[arg-type] # a class


async def count_messages(inner: Runner, verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Count sent messages and RECEIVEs for the totals (the counters of SQL Server's "Broker Statistics")."""
    result = await inner(verbs, operation, begin)
    verbs.instance.tally.add(COUNTERS[type(operation)], operation.messages)
    return result


async def trace_send(inner: Runner, verbs: AsyncVerbs, operation: Send[Any] | SendBatch, begin: Begin) -> Any:
    """Begin a span for a SEND inside a sampled span, and store the span's context with the messages."""
    span = tracing.begin_send(verbs._processing, operation.message_type, operation.messages)
    if span is None:
        return await inner(verbs, operation, begin)
    problem, context, engine = None, tracing.pack_context(span), verbs.engine

    def with_trace() -> Steps[Any]:
        return engine.sent_with_trace(begin(), operation.handles, operation.messages, context)

    try:
        return await inner(verbs, operation, with_trace)
    except BaseException as raised:
        problem = raised
        raise
    finally:
        tracing.end(span, problem)


async def retry_without_cache(inner: Runner, verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """If another process has dropped a cached queue, remove it from the cache and run the operation again."""
    try:
        return await inner(verbs, operation, begin)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
        verbs.engine.forget(operation)
        if not verbs._is_alone():
            raise InstanceError(QUEUE_WAS_DROPPED) from None
        return await inner(verbs, operation, begin)


async def raise_events(inner: Runner, verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Raise the events Broker:Conversation and Broker:Conversation Group, if the application has subscribed to them."""
    if not verbs.instance.events.watches_conversations:
        return await inner(verbs, operation, begin)
    engine = verbs.engine

    def observed_steps() -> Steps[Any]:
        return engine.observe(operation, begin(), verbs._record_event)

    return await inner(verbs, operation, observed_steps)


async def run_steps(verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Run the steps, in the open transaction or in one of their own."""
    verbs._note_verb()
    return await verbs._do(begin())


async def run_query(verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Run steps that only read. Their rollback is not counted."""
    return await verbs._do(begin())


async def wait_for_messages(
    inner: Runner, verbs: AsyncVerbs, operation: Receive | GetConversationGroup, begin: Begin
) -> Any:
    """WAITFOR: repeat the operation until it finds messages or the wait times out."""
    operation.check_wait()
    timeout_s = operation.timeout_s
    if timeout_s == 0:
        return await inner(verbs, operation, begin)

    def once() -> Awaitable[Any]:
        return inner(verbs, operation, begin)

    result = await verbs._waiting(operation.queue, once, timeout_s, filtered=operation.has_condition)
    return [] if result is None and isinstance(operation, Receive) else result


async def make_messages(inner: Runner, verbs: AsyncVerbs, operation: Receive, begin: Begin) -> list[Message]:
    """Make messages of the received rows; update counters, traces and poison detection."""
    instance, queue = verbs.instance, await verbs._find(operation.queue)
    await instance.poison.resolve_if_due(queue.queue_id)
    queue_id, (rows, transaction) = await inner(verbs, operation, begin)
    messages: list[Message] = []
    if rows:
        verbs._note_receive(queue_id, transaction)
        alone = verbs._is_alone()  # then RECEIVE was committed, and an exception would lose the messages
        messages = await verbs._named(rows, alone=alone)
        if tracing.is_on() and not operation.leaves:
            await verbs._trace(queue.name, messages, alone=alone)
    instance.count_received(queue_id, len(messages), filtered=operation.has_condition)
    return messages


async def count_poll(inner: Runner, verbs: AsyncVerbs, operation: GetConversationGroup, begin: Begin) -> UUID | None:
    """Report to the session of an activated task whether the statement returned a group."""
    group: UUID | None = await inner(verbs, operation, begin)
    verbs.instance.count_polled(group is not None)
    return group


async def run_as_definition(verbs: AsyncVerbs, operation: Operation[Any], begin: Begin) -> Any:
    """Run the steps as a definition: in a transaction of their own, under the lock of the catalog."""
    return await verbs._run_in_transaction(begin())


class Wrapped(NamedTuple):
    """The runners of an operation inside its wrappers. `quiet` leaves out `OBSERVERS`."""

    quiet: Runner
    observed: Runner


def _within(*wrappers: Wrapper, innermost: Runner = run_steps) -> Wrapped:
    """Return the runners of an operation inside these wrappers, the first wrapper outermost."""
    quiet = observed = innermost
    for wrapper in reversed(wrappers):
        observed = partial(wrapper, observed)
        quiet = quiet if wrapper in OBSERVERS else partial(wrapper, quiet)
    return Wrapped(quiet, observed)


OBSERVERS: tuple[Wrapper, ...] = (trace_send, raise_events)  # needed only while traces or event handlers are active

_SENDING = _within(count_messages, trace_send, retry_without_cache, raise_events)
WRAPPERS: Mapping[type[Operation[Any]], Wrapped] = {
    Send: _SENDING,
    SendBatch: _SENDING,
    Receive: _within(count_messages, wait_for_messages, make_messages, retry_without_cache),
    Hold: _within(count_messages, make_messages, retry_without_cache),
    GetConversationGroup: _within(wait_for_messages, count_poll, retry_without_cache),
    BeginDialog: _within(raise_events),
    EndConversation: _within(retry_without_cache, raise_events),
    MoveConversation: _within(raise_events),
    BeginConversationTimer: _within(),
    GetTransmissionStatus: _within(innermost=run_query),
    DelayedMessages: _within(innermost=run_query),
    CancelDelayed: _within(),
    Schedules: _within(innermost=run_query),
    DropSchedule: _within(innermost=run_as_definition),
    KeepSchedule: _within(),
    TakeTurn: _within(),
    SetAsideMessages: _within(innermost=run_as_definition),
    DeadLetterGroups: _within(innermost=run_as_definition),
    ReplayMessage: _within(innermost=run_as_definition),
    DiscardMessage: _within(innermost=run_as_definition),
}
