"""OpenTelemetry: one trace through the sender, the wire, the activated procedure and the reply."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import servicebroker as sb
from remote_support import Pair
from servicebroker.activation import procedures
from servicebroker.engine.conversation import traces
from servicebroker.store.running import in_transaction, run_alone
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    eventually,
    query,
)
from tracing_support import tracer_provider


class SpanRecorder:
    """The spans recorded in this process."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self.exporter = exporter
        self.tracer = trace.get_tracer("tests")

    def spans(self) -> dict[str, ReadableSpan]:
        """Return the last finished span of each name."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def path(self, name: str) -> list[str]:
        """Return the names from a span up to its root. All must be in one trace."""
        by_id = {span.context.span_id: span for span in self.exporter.get_finished_spans() if span.context}
        span, found = self.spans()[name], []
        while True:
            found.append(span.name)
            if span.parent is None:
                return found
            above = by_id[span.parent.span_id]
            assert span.context is not None
            assert above.context is not None
            assert above.context.trace_id == span.context.trace_id
            span = above


class Failing(SpanProcessor):
    """A span processor that raises when a span begins or ends."""

    def __init__(self, at: str = "start") -> None:
        self._at = at

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self._at == "start":
            raise ValueError("no")

    def on_end(self, span: object) -> None:
        if self._at == "end":
            raise ValueError("no")


@pytest.fixture
def span_recorder() -> Iterator[SpanRecorder]:
    exporter = InMemorySpanExporter()
    with tracer_provider() as provider:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        yield SpanRecorder(exporter)


def count_trace_contexts(database: sb.Database) -> int:
    text = (
        "select count(*) from servicebroker.trace_contexts t where exists (select "
        "from servicebroker.conversation_endpoints e where e.conversation_id = t.conversation_id and database_id = %s)"
    )
    count: int = query(database, text, database.database_id)[0][0]
    return count


@pytest.mark.both_apis
def test_a_trace_continues_through_a_transaction_and_its_reply(
    database: sb.Database, span_recorder: SpanRecorder
) -> None:
    handle = begin(database)
    with span_recorder.tracer.start_as_current_span("web request"):
        database.send(handle, ORDER, b"1")
    with database.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE)
        assert message.message_body == b"1"
        tx.send(message.conversation_handle, REPLY, b"done")
    with database.transaction() as tx:
        assert bodies(tx.receive(ORDERS_QUEUE)) == [b"done"]
    assert span_recorder.path(f"process {ORDERS_QUEUE}") == [
        f"process {ORDERS_QUEUE}",
        f"send {REPLY}",
        f"process {STOCK_QUEUE}",
        f"send {ORDER}",
        "web request",
    ]
    spans = span_recorder.spans()
    assert (spans[f"send {ORDER}"].kind, spans[f"process {STOCK_QUEUE}"].kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    told = spans[f"process {STOCK_QUEUE}"].attributes
    assert told is not None
    assert told["messaging.destination.name"] == STOCK_QUEUE
    assert told["messaging.message.conversation_id"] == str(message.conversation_handle)
    assert count_trace_contexts(database) == 0


def test_one_trace_through_a_request_and_its_answer(database: sb.Database, span_recorder: SpanRecorder) -> None:
    stock = sb.Worker(STOCK_QUEUE)

    @stock.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        tx.send(message.conversation_handle, REPLY, b"done")

    with database.working(stock), span_recorder.tracer.start_as_current_span("web request"):
        assert database.request(ORDERS, STOCK, ORDER, b"1", contract=CONTRACT).body == b"done"
    assert span_recorder.path(f"process {ORDERS_QUEUE}") == [
        f"process {ORDERS_QUEUE}",
        f"send {REPLY}",
        f"process {STOCK_QUEUE}",
        f"send {ORDER}",
        "web request",
    ]


def test_messages_of_several_traces_are_linked(database: sb.Database, span_recorder: SpanRecorder) -> None:
    handle = begin(database)
    with span_recorder.tracer.start_as_current_span("first"):
        database.send_batch(handle, ORDER, [b"1", b"2"])
    with span_recorder.tracer.start_as_current_span("second") as second:
        assert database.send([handle, begin(database)], MARK) == [2, 0]
    database.send(handle, ORDER, b"of nobody")
    assert count_trace_contexts(database) == 4
    with database.transaction() as tx:
        assert len(tx.receive(STOCK_QUEUE)) == 4
        with span_recorder.tracer.start_as_current_span("elsewhere"):  # the received messages explain the reply better
            tx.send(begin(tx), ORDER, b"on")  # type: ignore[arg-type]
    span = span_recorder.spans()[f"process {STOCK_QUEUE}"]
    assert span_recorder.path(f"process {STOCK_QUEUE}") == [f"process {STOCK_QUEUE}", f"send {ORDER}", "first"] or (
        span_recorder.spans()[f"send {ORDER}"].parent == span.context
    )
    assert [link.context.trace_id for link in span.links] == [second.get_span_context().trace_id]
    assert span_recorder.spans()[f"send {ORDER}"].parent == span.context


def test_a_rollback_keeps_the_context_with_the_message(database: sb.Database, span_recorder: SpanRecorder) -> None:
    with span_recorder.tracer.start_as_current_span("order"):
        database.send(begin(database), ORDER, b"1")
    with pytest.raises(ZeroDivisionError), database.transaction() as tx:
        tx.receive(STOCK_QUEUE)
        raise ZeroDivisionError
    failed = span_recorder.spans()[f"process {STOCK_QUEUE}"]
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]
    assert database.receive(STOCK_QUEUE)
    assert span_recorder.path(f"process {STOCK_QUEUE}")[-1] == "order"
    assert span_recorder.spans()[f"process {STOCK_QUEUE}"].status.status_code is StatusCode.UNSET


@pytest.mark.both_apis
def test_a_receive_that_cannot_read_its_context_returns_its_messages(
    fresh_database: sb.Database, span_recorder: SpanRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Inside a transaction RECEIVE fails and loses no messages. Outside it returns them and logs the failure."""
    database = fresh_database
    database.send(begin(database), ORDER, b"1")
    with database.instance.connection() as connection:
        connection.execute("alter table servicebroker.trace_contexts rename to elsewhere")
        with pytest.raises(psycopg.errors.UndefinedTable), database.transaction() as tx:
            tx.receive(STOCK_QUEUE)
        assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
        assert "trace_contexts" in caplog.text
        database.send(begin(database), ORDER, b"2")
        assert bodies(database.join(connection).receive(STOCK_QUEUE)) == [b"2"]


@pytest.mark.both_apis
def test_a_receive_whose_tracer_fails_returns_its_messages(
    database: sb.Database, span_recorder: SpanRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Span processors belong to the application, and run after the commit of the RECEIVE."""
    with trace.get_tracer("application").start_as_current_span("order"):
        database.send(begin(database), ORDER, b"1")
    trace.get_tracer_provider().add_span_processor(Failing())  # type: ignore[attr-defined]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    assert "are not traced" in caplog.text


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_processor_that_fails_costs_no_message(database: sb.Database, span_recorder: SpanRecorder, at: str) -> None:
    """The handler runs once, and its work is committed. No queue is switched off, no connection leaks."""
    received: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        received.append(message.message_body)

    with span_recorder.tracer.start_as_current_span("order"):
        for number in range(7):
            database.send(begin(database), ORDER, str(number))
    trace.get_tracer_provider().add_span_processor(Failing(at))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="no"), span_recorder.tracer.start_as_current_span("the application's own"):
        pass
    for _ in range(5):
        with database.transaction() as tx:
            received += bodies(tx.receive(STOCK_QUEUE))
            tx.send(begin(tx), ORDER, b"on")  # type: ignore[arg-type]
    with database.working(worker):
        eventually(lambda: len(received) == 12)
    assert sorted(body for body in received if body != b"on") == [str(number).encode() for number in range(7)]
    assert database.receive(STOCK_QUEUE) == []


def test_a_refused_send_is_seen_and_leaves_nothing(database: sb.Database, span_recorder: SpanRecorder) -> None:
    with span_recorder.tracer.start_as_current_span("order"), pytest.raises(sb.BrokerError):
        database.send(begin(database), REPLY, b"x")
    assert span_recorder.spans()[f"send {REPLY}"].status.status_code is StatusCode.ERROR
    assert count_trace_contexts(database) == 0


def test_unsampled_messages_have_no_trace_context(database: sb.Database, span_recorder: SpanRecorder) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"under no span")
    hidden = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0)))
    with trace.use_span(hidden):
        database.send(handle, ORDER, b"not sampled")
    assert count_trace_contexts(database) == 0
    with database.transaction() as tx:
        assert len(tx.receive(STOCK_QUEUE)) == 2
    assert span_recorder.spans() == {}


def test_tracing_adds_no_statement_without_a_tracer(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a tracer no statement is added, although opentelemetry is imported here."""

    def refuse(*_: object) -> None:
        raise AssertionError

    for name in ("send_with_context", "take"):
        monkeypatch.setattr(traces, name, refuse)
    database.send(begin(database), ORDER, b"x")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]


def test_unused_trace_contexts_are_deleted_after_an_hour(
    database: sb.Database, clock: Clock, span_recorder: SpanRecorder
) -> None:
    with span_recorder.tracer.start_as_current_span("order"):
        database.send(begin(database), ORDER, b"x")
    with database.instance.connection() as connection:
        before = clock() + traces.CONTEXT_RETENTION - timedelta(minutes=1)
        in_transaction(connection, traces.delete_old_traces(before))
        assert count_trace_contexts(database) == 1
        assert in_transaction(connection, traces.delete_old_traces(before + timedelta(minutes=2))) >= 1
    assert count_trace_contexts(database) == 0
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]


def test_spans_of_an_activated_procedure_belong_to_the_trace(
    database: sb.Database, span_recorder: SpanRecorder
) -> None:
    @sb.procedure("usp_Traced", wait=0.05)
    def usp_traced(transaction: sb.Transaction, message: sb.Message) -> None:
        with span_recorder.tracer.start_as_current_span("look into the stock"):
            transaction.send(message.conversation_handle, REPLY, b"done")

    try:
        database.alter_queue(STOCK_QUEUE, activation=sb.Activation("usp_Traced", 1, "SELF", status=True))
        with sb.activate(database.instance, interval=0.4):
            with span_recorder.tracer.start_as_current_span("web request"):
                database.send(begin(database), ORDER, b"1")
            with database.transaction() as tx:
                assert bodies(tx.receive(ORDERS_QUEUE, wait=30)) == [b"done"]
            eventually(lambda: f"process {STOCK_QUEUE}" in span_recorder.spans())
    finally:
        del procedures._registered["dbo", "usp_traced"]
    assert span_recorder.path(f"process {ORDERS_QUEUE}")[1:] == [
        f"send {REPLY}",
        "look into the stock",
        f"process {STOCK_QUEUE}",
        f"send {ORDER}",
        "web request",
    ]


def test_a_policy_s_failure_is_on_the_span(database: sb.Database, span_recorder: SpanRecorder) -> None:
    with span_recorder.tracer.start_as_current_span("order"):
        database.send(begin(database), ORDER, b"1")

    def fails(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise LookupError("no such customer")

    database.process(STOCK_QUEUE, fails, poison=lambda failure: sb.EndWithError(500, "poison"))
    span = span_recorder.spans()[f"process {STOCK_QUEUE}"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no such customer")


def test_between_instances(pair: Pair, span_recorder: SpanRecorder) -> None:
    west, east = pair.west.database, pair.east.database
    handle = west.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    with span_recorder.tracer.start_as_current_span("first"):
        west.send(handle, ORDER, b"small")
    west.send(handle, ORDER, b"of nobody")
    with span_recorder.tracer.start_as_current_span("second") as second:
        west.send(handle, ORDER, b"large" * 20_000)  # sent in fragments
    pair.west.round([])
    pair.west.out.frames.clear()  # lost: it is sent again
    pair.pass_time(5)
    pair.rounds(8)
    assert count_trace_contexts(west) == 0  # acknowledged
    assert count_trace_contexts(east) == 2
    with east.transaction() as tx:
        messages = tx.receive(STOCK_QUEUE)
        assert [m.message_body for m in messages] == [b"small", b"of nobody", b"large" * 20_000]
        tx.send(messages[0].conversation_handle, REPLY, b"done")
    pair.rounds(8)
    with west.transaction() as tx:
        assert bodies(tx.receive(ORDERS_QUEUE)) == [b"done"]
    assert span_recorder.path(f"process {ORDERS_QUEUE}")[1:3] == [f"send {REPLY}", f"process {STOCK_QUEUE}"]
    assert span_recorder.path(f"process {ORDERS_QUEUE}")[-1] == "first"
    (link,) = span_recorder.spans()[f"process {STOCK_QUEUE}"].links
    assert link.context.trace_id == second.get_span_context().trace_id
    assert count_trace_contexts(west) == count_trace_contexts(east) == 0


def test_trace_contexts_come_from_the_sender(pair: Pair, span_recorder: SpanRecorder) -> None:
    """The peer may send no context, or one of a trace unknown here."""
    west, east = pair.west.database, pair.east.database
    handle = west.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    west.send(handle, ORDER, b"1")
    pair.rounds()
    assert count_trace_contexts(east) == 0
    assert bodies(east.receive(STOCK_QUEUE)) == [b"1"]
    with east.instance.connection() as connection:
        assert run_alone(connection, traces.take([(handle, 0)])) == []
