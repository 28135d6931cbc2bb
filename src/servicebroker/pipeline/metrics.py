"""What a running pipeline tells Prometheus, on a port of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.run import QueueRun

_GAUGES = {
    "messagesBehind": ("messages_behind", "Messages that have arrived and are not planned yet, at most"),
    "oldestMessageSeconds": ("oldest_message_seconds", "Age of the oldest message that is not planned yet"),
    "frontierLag": ("frontier_lag", "Transaction ids beyond the frontier"),
    "blockingSeconds": ("blocking_seconds", "Age of the transaction that holds the frontier back"),
}


class Metrics:
    """Counters and gauges, each with the labels pipeline and queue."""

    def __init__(self, pipeline: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge

        self.registry = CollectorRegistry()
        self._pipeline = pipeline
        labels = ("pipeline", "queue")

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"servicebroker_pipeline_{name}", text, labels, registry=self.registry)

        self._messages = gauge("messages", "Messages that have landed since the start")
        self._batches = gauge("batches", "Batches with messages since the start")
        self._behind = {key: gauge(*words) for key, words in _GAUGES.items()}

    def show(self, runs: Iterable[QueueRun]) -> None:
        """Take over what the runs know now."""
        for run in runs:
            labels = (self._pipeline, run.queue.label)
            self._messages.labels(*labels).set(run.messages)
            self._batches.labels(*labels).set(run.batches)
            for key, gauge in self._behind.items():
                gauge.labels(*labels).set(run.behind.get(key, 0))


@contextmanager
def served(metrics: Metrics, port: int | None, host: str = "127.0.0.1") -> Iterator[None]:
    """The metrics at http://host:port/metrics; nothing without a port.

    Raises:
        InstanceError: the port is taken.
    """
    if port is None:
        yield
        return
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as problem:
        raise InstanceError(f"The metrics cannot be served on {host}:{port}: {problem.strerror}.") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
