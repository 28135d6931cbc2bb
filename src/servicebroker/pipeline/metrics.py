"""Prometheus metrics of a running pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.queue_run import QueueRun, QueueState

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_COUNTERS: dict[str, tuple[str, Callable[[QueueRun], float]]] = {
    "messages": ("Messages written to the tables since the start", lambda run: run.messages),
    "bytes": ("Bytes of the bodies of these messages", lambda run: run.bytes),
    "batches": ("Batches with messages since the start", lambda run: run.batches),
    "restarts": ("Restarts of a query after a failure", lambda run: run.restarts),
}
_GAUGES: dict[str, tuple[str, Callable[[QueueRun], float]]] = {
    "up": (
        "1 if the query of a queue runs, 0 if it waits for its start, has ended or has failed",
        lambda run: _is_up(run),
    ),
    "batch_seconds": ("Duration of the last batch with messages", lambda run: run.seconds),
    "messages_behind": (
        "Upper bound of the messages that have arrived and are not planned yet",
        lambda run: run.behind.get("messagesBehind", 0),
    ),
    "oldest_message_seconds": (
        "Age of the oldest message that is not planned yet",
        lambda run: run.behind.get("oldestMessageSeconds", 0),
    ),
    "frontier_lag": ("Transaction ids from the frontier on", lambda run: run.behind.get("frontierLag", 0)),
    "blocking_seconds": (
        "Age of the transaction that holds the frontier back",
        lambda run: run.behind.get("blockingSeconds", 0),
    ),
}


class Metrics:
    """A Prometheus collector. Every metric has the labels pipeline and queue; values are read at each scrape."""

    def __init__(self, pipeline: str) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = CollectorRegistry()
        self.queues: Iterable[QueueRun] = ()
        self._pipeline = pipeline
        collector: Any = self
        self.registry.register(collector)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present value."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for kind, definitions in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, (text, value) in definitions.items():
                family = kind(f"servicebroker_pipeline_{name}", text, labels=("pipeline", "queue"))
                for run in self.queues:
                    family.add_metric((self._pipeline, run.label), value(run))
                yield family
        text = "Messages put into quarantine since the start"
        quarantined = CounterMetricFamily(
            "servicebroker_pipeline_quarantined", text, labels=("pipeline", "queue", "type", "reason")
        )
        for run in self.queues:
            for key, number in run.quarantined.items():
                quarantined.add_metric((self._pipeline, run.label, *key), number)
        yield quarantined


def _is_up(run: QueueRun) -> float:
    return float(run.state is QueueState.RUNNING)
