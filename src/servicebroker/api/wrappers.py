# Made from aio/wrappers.py by tools/make_sync.py: change that file, then run `make sync`.
"""What surrounds an operation: counting, traces, a second try, events.

A wrapper is given what is inside of it, and runs that: once, again, or with other steps. Which wrappers an operation
has, from the outside to the inside, is said in one place, `WRAPPERS`; innermost are the operation's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import psycopg

from servicebroker.api import tracing
from servicebroker.engine.diagnosis.totals import SENDS
from servicebroker.model.errors import InstanceError
from servicebroker.operations.operation import Operation, described
from servicebroker.operations.send import Send, SendBatch
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.verbs import Verbs

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_WAS_DROPPED = "The queue was dropped by another process, and this transaction is undone: begin it again."

Begin: TypeAlias = Callable[[], Steps[Any]]  # makes the steps; anew when they are done again
Runner: TypeAlias = Callable[[Any, Any, Begin], Any]  # of the verbs and their operation
Wrapper: TypeAlias = Callable[[Runner, Any, Any, Begin], Any]


def operated(operation: Callable[P, Operation[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method that runs an operation; its parameters, types and help are those of the operation."""

    def method(verbs: Any, /, *given: P.args, **named: P.kwargs) -> T:
        result: T = verbs._run(operation(*given, **named))
        return result

    return described(method, operation)  # type: ignore[arg-type] # a class


def counted(inner: Runner, verbs: Verbs, operation: Operation[Any], begin: Begin) -> Any:
    """SQL SEND Total of Broker Statistics counts the operation's messages when they were sent."""
    result = inner(verbs, operation, begin)
    verbs.instance.tally.add(SENDS, operation.messages)
    return result


def traced(inner: Runner, verbs: Verbs, operation: Send[Any] | SendBatch, begin: Begin) -> Any:
    """A SEND under a span has one of its own, whose context is stored beside the messages."""
    span = tracing.begin_send(verbs._processing, operation.message_type, operation.messages)
    if span is None:
        return inner(verbs, operation, begin)
    problem, context, engine = None, tracing.packed(span), verbs.engine

    def with_trace() -> Steps[Any]:
        return engine.sent_with_trace(begin(), operation.handles, operation.messages, context)

    try:
        return inner(verbs, operation, with_trace)
    except BaseException as raised:
        problem = raised
        raise
    finally:
        tracing.end(span, problem)


def repeated(inner: Runner, verbs: Verbs, operation: Operation[Any], begin: Begin) -> Any:
    """If another process has dropped the queue that this one remembers, forget the queue and run the operation anew."""
    try:
        return inner(verbs, operation, begin)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
        verbs.engine.forget(operation)
        if not verbs._is_alone():
            raise InstanceError(QUEUE_WAS_DROPPED) from None
        return inner(verbs, operation, begin)


def watched(inner: Runner, verbs: Verbs, operation: Operation[Any], begin: Begin) -> Any:
    """Broker:Conversation and Broker:Conversation Group are told to who has asked for them."""
    if not verbs.instance.events.watches_conversations:
        return inner(verbs, operation, begin)
    engine = verbs.engine

    def with_looks() -> Steps[Any]:
        return engine.watched(operation.deed, begin(), operation.handles, verbs._tell, many=operation.messages)

    return inner(verbs, operation, with_looks)


def performed(verbs: Verbs, operation: Operation[Any], begin: Begin) -> Any:
    """Run the steps where the verbs run."""
    verbs._works()
    return verbs._do(begin())


def _within(*wrappers: Wrapper) -> Runner:
    """Return what runs an operation within these wrappers, the first of them outside."""
    runner: Runner = performed
    for wrapper in reversed(wrappers):
        runner = partial(wrapper, runner)
    return runner


_SENDING = _within(counted, traced, repeated, watched)
WRAPPERS: Mapping[type[Operation[Any]], Runner] = {Send: _SENDING, SendBatch: _SENDING}
