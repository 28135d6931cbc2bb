"""The metrics of `servicebroker serve` for Prometheus: the daemon's own counters, and values stored in PostgreSQL.

One registry has both. The daemon's counters rise where the events are logged (broker/journal.py).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

import prometheus_client
import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servicebroker.engine.diagnosis.counters import Counter, counters
from servicebroker.model.errors import InstanceError
from servicebroker.model.events import ACTIVATION_CLASS, QUEUE_DISABLED_CLASS, BrokerEvent
from servicebroker.overriding import override
from servicebroker.store.connection import connect, one_line
from servicebroker.store.running import run

_log = logging.getLogger("servicebroker.broker")

PREFIX = "servicebroker_"
MAX_PARTS = 1_000  # combinations of labels that are cached for each counter

REGISTRY = prometheus_client.CollectorRegistry()

Counted = dict[tuple[str, tuple[str, ...]], float]  # (name of the counter, labels) -> amount
_COUNTERS: dict[str, prometheus_client.Counter] = {}
_TAKEN: Counted = {}


def _counter(name: str, meaning: str, *labels: str) -> prometheus_client.Counter:
    counter = _COUNTERS[name] = prometheus_client.Counter(PREFIX + name, meaning, labels, registry=REGISTRY)
    # Cached, since the library takes a lock and makes strings at each call.
    counter.labels = functools.lru_cache(MAX_PARTS)(counter.labels)  # type: ignore[method-assign]
    return counter


def _gauge(name: str, meaning: str) -> prometheus_client.Gauge:
    return prometheus_client.Gauge(PREFIX + name, meaning, registry=REGISTRY)


CORRUPTED = _counter("corrupted_messages", "Corrupted Messages Total: dropped, and sent again by their sender.")
DROPPED = _counter("dropped_messages", "Dropped Messages Total: received, and not deliverable to a queue.")
FORWARDED = _counter("forwarded_messages", "Forwarded Messages Total.")
DISCARDED = _counter("forwarded_messages_discarded", "Forwarded Msg Discarded Total.")
CONNECTIONS = _counter("connection_events", "Broker:Connection events.", "subclass")
LOGINS = _counter("login_events", "Audit Broker Login events.", "subclass")
MISTRUSTED = _counter(
    "mistrusted_peers",
    "False claims of peers, and messages that they may not send.",
    "owner",
    "claim",
)
ACTIVATIONS = _counter(
    "activation_events", "Broker:Activation events: Tasks Started, Tasks Aborted and their like.", "subclass"
)
DISABLED = _counter("queue_disabled_events", "Broker:Queue Disabled events: queues disabled by poison detection.")
LIMIT_REACHED = _counter("task_limit_reached", "Task Limit Reached: a reader was wanted beyond MAX_QUEUE_READERS.")
INVOKED = _counter("stored_procedures_invoked", "Stored Procedures Invoked: calls of activated procedures.")
ACTIVATION_ERRORS = _counter("activation_errors", "Activation Errors Total: calls of them that have raised.")
TRANSMISSIONS = _counter("transmission_events", "Broker:Transmission events: messages that wait for a connection.")
CLASSIFIED = _counter("message_classify_events", "Broker:Message Classify events.", "subclass")
CONVERSATIONS = _counter(
    "conversation_events", "Broker:Conversation events of messages from other instances.", "subclass"
)
ACKNOWLEDGEMENTS = _counter("remote_message_acknowledgement_events", "Remote Message Acknowledgement.", "subclass")

ARRIVED = _counter(
    "enqueued_transport_messages", "Enqueued Transport Msgs Total: messages from other instances, stored."
)
ARRIVED_FRAGMENTS = _counter("enqueued_transport_fragments", "Enqueued Transport Msg Frag Tot, likewise.")
ARRIVED_BY_PRIORITY = _counter(
    "enqueued_transport_priority_messages", "Enqueued P1 to P10 Msgs, of those from other instances.", "priority"
)
FORWARDED_BYTES = _counter("forwarded_message_bytes", "Forwarded Msg Byte Total.")
FORWARDED_PENDING = _gauge("forwarded_pending_messages", "Forwarded Pending Msg Count.")
FORWARDED_PENDING_BYTES = _gauge("forwarded_pending_bytes", "Forwarded Pending Msg Bytes.")
DIALOGS = _gauge("active_dialogs", "Dialog Timer Event Count: conversations that this daemon has in memory.")
PROCESSES = _gauge("processes", "Processes that run the rounds of the instance.")
REPLACED = _counter("replaced_processes", "Processes of shares that were killed, and replaced.")
PRIORITY_SENDS = _counter(
    "priority_fragment_sends", "Message Fragment P1 to P10 Sends, without forwarded ones.", "priority"
)


# Broker TO Statistics: a transmission object is the relay's memory of a conversation. A batch is the objects that one
# round writes. Averages are quotients of the sums
OBJECT_GETS = _counter("transmission_object_gets", "Tran Object Gets.")
OBJECTS_DIRTY = _counter("transmission_objects_marked_dirty", "Tran Objects Marked Dirty.")
OBJECT_WRITES = _counter("transmission_object_writes", "Tran Object Writes; by batches Avg. Length of Batched Writes.")
BATCHES = _counter("transmission_object_batches", "Batched writes.")
BATCH_SECONDS = _counter("transmission_object_batch_seconds", "By batches Avg. Time to Write Batch.")
BETWEEN_SECONDS = _counter("transmission_object_between_batches_seconds", "By batches Avg. Time Between Batches.")

PENDING_RECEIVE_BYTES = _gauge("pending_receive_bytes", "Pending Bytes for Recv I/O: received, and not in a round yet.")
PENDING_RECEIVE_FRAGMENTS = _gauge("pending_receive_fragments", "Pending Msg Frags for Recv I/O.")
PENDING_SEND_BYTES = _gauge("pending_send_bytes", "Pending Bytes for Send I/O: ready to be sent.")
PENDING_SEND_FRAGMENTS = _gauge("pending_send_fragments", "Pending Msg Frags for Send I/O.")
CURRENT_SEND_BYTES = _gauge(
    "current_send_bytes", "Current Bytes for Send I/O: given to sockets that have not taken them."
)
CURRENT_SEND_FRAGMENTS = _gauge("current_send_fragments", "Current Msg Frags for Send I/O.")


def show_backlog(*amounts: int) -> None:
    """Set the gauges of pending and current bytes and fragments."""
    gauges = (PENDING_RECEIVE_BYTES, PENDING_RECEIVE_FRAGMENTS, PENDING_SEND_BYTES, PENDING_SEND_FRAGMENTS)
    for gauge, amount in zip((*gauges, CURRENT_SEND_BYTES, CURRENT_SEND_FRAGMENTS), amounts, strict=True):
        gauge.set(amount)


def show_relays(dialogs: int, messages: int, size: int, processes: int) -> None:
    """Set the gauges of the relays' memory."""
    DIALOGS.set(dialogs)
    FORWARDED_PENDING.set(messages)
    FORWARDED_PENDING_BYTES.set(size)
    PROCESSES.set(processes)


def _both(name: str, meaning: str) -> tuple[prometheus_client.Counter, prometheus_client.Counter]:
    """Return a pair of counters: sent and received."""
    counter = _counter(name, meaning, "direction")
    return counter.labels("send"), counter.labels("receive")


SEND_PLACE, RECEIVE_PLACE = 0, 1  # indexes in these pairs
IO_BYTES = _both("io_bytes", "Send and Receive I/O bytes Total.")
IOS = _both("ios", "Send and Receive I/Os; bytes by I/Os is the Len Avg.")
FRAGMENTS = _both("fragments", "Message Fragment Sends and Receives.")
FRAGMENT_BYTES = _both("fragment_bytes", "Bytes of these; by fragments it is the Msg Fragment Send and Recv Size Avg.")


def take_counted() -> Counted:
    """Return the counts of this process since the last call."""
    values = {
        (name, tuple(sample.labels.values())): sample.value
        for name, counter in _COUNTERS.items()
        for metric in counter.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    news = {key: value - _TAKEN.get(key, 0.0) for key, value in values.items() if value != _TAKEN.get(key, 0.0)}
    _TAKEN.update(values)
    return news


def add(counted: Counted) -> None:
    """Add the counts of a child process."""
    for (name, labels), amount in counted.items():
        counter = _COUNTERS[name]
        (counter.labels(*labels) if labels else counter).inc(amount)


def count_event(event: BrokerEvent) -> None:
    """Count an event of `Instance.events`."""
    if event.number == ACTIVATION_CLASS:
        ACTIVATIONS.labels(event.subclass).inc()
    elif event.number == QUEUE_DISABLED_CLASS:
        DISABLED.inc()


class StoredCounters(Collector):
    """Metrics stored in PostgreSQL, read at each scrape on a connection of their own. None while the server is down."""

    def __init__(self, url: str) -> None:
        self._url = url

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one scrape."""
        instance_counters: list[Counter] = []
        try:
            with connect(self._url) as connection:
                instance_counters = run(connection, counters())
        except (InstanceError, psycopg.Error) as problem:
            fields = {"event": "Metrics", "subclass": "Database"}  # the log counts them, since each scrape causes one
            _log.warning("The metrics cannot be read: %s", one_line(problem), extra={"fields": fields})
        yield GaugeMetricFamily(
            PREFIX + "up", "1 when the instance's PostgreSQL answers.", value=bool(instance_counters)
        )
        for counter in instance_counters:
            kind = CounterMetricFamily if counter.rises else GaugeMetricFamily
            family = kind(PREFIX + counter.name, counter.meaning, labels=counter.labels)
            for labels, value in counter.values:
                family.add_metric(labels, float(value))
            yield family


def registry(url: str) -> prometheus_client.CollectorRegistry:
    """Return the metrics of this process and of the instance at this URL."""
    both = prometheus_client.CollectorRegistry()
    both.register(REGISTRY)
    both.register(StoredCounters(url))
    return both
