"""OpenTelemetry: one trace through sender, message, receiver and reply. Nothing of it happens where nobody traces.

A SEND under a span that is sampled makes a span of kind PRODUCER, whose context goes with the message. A RECEIVE in a
process with a tracer provider that finds such contexts makes one of kind CONSUMER. It is a child of the first
message's span, with links to those of the others. It lives as long as the transaction and is the parent of its SENDs.

opentelemetry-api is not imported here: a process that has not imported it traces nothing.

Samplers and span processors are the application's own, and run within our verbs. What they raise is told in the log,
and changes nothing of what becomes of messages.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from servicebroker.model.messages import Message
from servicebroker.model.reporting import report
from servicebroker.model.wording import safe_text, told

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

_LOG = logging.getLogger("servicebroker")
_NAME = "servicebroker"
_SYSTEM = {"messaging.system": "servicebroker"}
_NO_SPAN = nullcontext()


def _trace() -> Any:
    """Return the module opentelemetry.trace, if this process has it and a tracer provider is set."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    with _unharmed():
        none = trace.ProxyTracerProvider | trace.NoOpTracerProvider
        return None if isinstance(trace.get_tracer_provider(), none) else trace
    return None


@contextlib.contextmanager
def _unharmed() -> Iterator[None]:
    """Log what the application's tracing raises in the block, so that it ends no verb."""
    try:
        yield
    except Exception as problem:
        report(_LOG, logging.WARNING, "messages are not traced: %s", told(problem))


def begin_send(within: Span | None, message_type: str, many: int) -> Span | None:
    """Begin the span of a SEND below a sampled one: that of the caller, else `within`. None without one."""
    if "opentelemetry.trace" not in sys.modules or (trace := _trace()) is None:
        return None
    with _unharmed():
        return _begin_send(trace, within, message_type, many)
    return None


def _begin_send(trace: Any, within: Span | None, message_type: str, many: int) -> Span | None:
    parent = trace.get_current_span()
    if within is not None and parent.get_span_context().trace_id != within.get_span_context().trace_id:
        parent = within
    if not _is_sampled(parent.get_span_context()):
        return None
    span: Span = trace.get_tracer(_NAME).start_span(
        f"send {message_type}",
        trace.set_span_in_context(parent),
        trace.SpanKind.PRODUCER,
        {
            **_SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": "SEND",
            "messaging.batch.message_count": many,
        },
    )
    return span


def is_on() -> bool:
    """Return whether this process traces: a SEND may have a span, and a RECEIVE looks for contexts."""
    return "opentelemetry.trace" in sys.modules and _trace() is not None


def begin_receive(queue: str, messages: Sequence[Message], contexts: Sequence[bytes]) -> Span | None:
    """Begin the span of processing these messages; None if they bring no contexts."""
    if not contexts or (trace := _trace()) is None:
        return None
    with _unharmed():
        return _begin_receive(trace, queue, messages, list(dict.fromkeys(contexts)))
    return None


def _begin_receive(trace: Any, queue: str, messages: Sequence[Message], found: Sequence[bytes]) -> Span:
    first, *others = (_unpacked(trace, context) for context in found)
    span: Span = trace.get_tracer(_NAME).start_span(
        f"process {queue}",
        trace.set_span_in_context(trace.NonRecordingSpan(first)),
        trace.SpanKind.CONSUMER,
        {
            **_SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "RECEIVE",
            "messaging.destination.name": queue,
            "messaging.message.conversation_id": str(messages[0].conversation_handle),
            "messaging.batch.message_count": len(messages),
        },
        links=[trace.Link(other) for other in others],
    )
    return span


def current(span: Span | None) -> AbstractContextManager[object]:
    """Make the span current in the block, for code that is traced there."""
    if span is None or (trace := _trace()) is None:
        return _NO_SPAN
    found: AbstractContextManager[object] = trace.use_span(span, record_exception=False, set_status_on_exception=False)
    return found


def fail(span: Span | None, problem: BaseException) -> None:
    """Mark the span as failed."""
    if span is None:
        return
    with contextlib.suppress(Exception):  # the text of an exception may fail, and so may the application's exporter
        span.record_exception(problem)
    with _unharmed():
        span.set_status(sys.modules["opentelemetry.trace"].StatusCode.ERROR, safe_text(problem))


def end(span: Span, problem: BaseException | None = None) -> None:
    """End the span, with that error."""
    if problem is not None:
        fail(span, problem)
    with _unharmed():
        span.end()


def packed(span: Span) -> bytes:
    """A span's context as messages carry it."""
    context = span.get_span_context()
    return b"".join((context.trace_id.to_bytes(16), context.span_id.to_bytes(8), bytes([context.trace_flags])))


def _unpacked(trace: Any, context: bytes) -> SpanContext:
    found: SpanContext = trace.SpanContext(
        int.from_bytes(context[:16]), int.from_bytes(context[16:24]), True, trace.TraceFlags(context[24])
    )
    return found


def _is_sampled(context: SpanContext) -> bool:
    return context.is_valid and context.trace_flags.sampled
