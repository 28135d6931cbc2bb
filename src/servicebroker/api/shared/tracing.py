"""OpenTelemetry: one trace through sender, message, receiver and reply.

A SEND inside a sampled span creates a span of kind PRODUCER, and stores its context with the message. A RECEIVE in a
process with a tracer provider reads such contexts, and creates a span of kind CONSUMER. That is a child of the first
message's span, with links to the spans of the other messages. It ends with the transaction, and is the parent of the
transaction's SENDs.

This module does not import opentelemetry-api: a process that has not imported it, or has no tracer provider, traces
nothing.

The samplers and span processors of the application run within our statements. Their exceptions are logged, and have no
effect on messages.
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
from servicebroker.model.wording import describe_exception, safe_text

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
    with _log_failures():
        none = trace.ProxyTracerProvider | trace.NoOpTracerProvider
        return None if isinstance(trace.get_tracer_provider(), none) else trace
    return None


@contextlib.contextmanager
def _log_failures() -> Iterator[None]:
    """Log an exception of the application's tracing in the block, so that the statement continues."""
    try:
        yield
    except Exception as problem:
        report(_LOG, logging.WARNING, "messages are not traced: %s", describe_exception(problem))


def begin_send(processing: Span | None, message_type: str, messages: int) -> Span | None:
    """Begin the span of a SEND. Return None if its parent is not sampled.

    The parent is the caller's current span. If that belongs to another trace than `processing`, the span of received
    messages, the parent is `processing`.
    """
    if "opentelemetry.trace" not in sys.modules or (trace := _trace()) is None:
        return None
    with _log_failures():
        return _begin_send(trace, processing, message_type, messages)
    return None


def _begin_send(trace: Any, processing: Span | None, message_type: str, messages: int) -> Span | None:
    parent = trace.get_current_span()
    if processing is not None and parent.get_span_context().trace_id != processing.get_span_context().trace_id:
        parent = processing
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
            "messaging.batch.message_count": messages,
        },
    )
    return span


def is_on() -> bool:
    """Return whether this process traces: then a SEND may have a span, and a RECEIVE reads the contexts of messages."""
    return "opentelemetry.trace" in sys.modules and _trace() is not None


def begin_receive(queue: str, messages: Sequence[Message], contexts: Sequence[bytes]) -> Span | None:
    """Begin the span for the processing of these messages. Return None if they have no contexts."""
    if not contexts or (trace := _trace()) is None:
        return None
    with _log_failures():
        return _begin_receive(trace, queue, messages, list(dict.fromkeys(contexts)))
    return None


def _begin_receive(trace: Any, queue: str, messages: Sequence[Message], contexts: Sequence[bytes]) -> Span:
    first, *others = (_unpack_context(trace, context) for context in contexts)
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
    """Make the span the current one in the block, as the parent of spans that the application begins."""
    if span is None or (trace := _trace()) is None:
        return _NO_SPAN
    block: AbstractContextManager[object] = trace.use_span(span, record_exception=False, set_status_on_exception=False)
    return block


def fail(span: Span | None, problem: BaseException) -> None:
    """Mark the span as failed."""
    if span is None:
        return
    with contextlib.suppress(Exception):  # the text of an exception may fail, and so may the application's exporter
        span.record_exception(problem)
    with _log_failures():
        span.set_status(sys.modules["opentelemetry.trace"].StatusCode.ERROR, safe_text(problem))


def end(span: Span, problem: BaseException | None = None) -> None:
    """End the span, as failed if there is an error."""
    if problem is not None:
        fail(span, problem)
    with _log_failures():
        span.end()


def pack_context(span: Span) -> bytes:
    """Return a span's context in the 25 bytes that are stored with a message."""
    context = span.get_span_context()
    return b"".join((context.trace_id.to_bytes(16), context.span_id.to_bytes(8), bytes([context.trace_flags])))


def _unpack_context(trace: Any, context: bytes) -> SpanContext:
    is_remote = True
    span_context: SpanContext = trace.SpanContext(
        int.from_bytes(context[:16]), int.from_bytes(context[16:24]), is_remote, trace.TraceFlags(context[24])
    )
    return span_context


def _is_sampled(context: SpanContext) -> bool:
    return context.is_valid and context.trace_flags.sampled
