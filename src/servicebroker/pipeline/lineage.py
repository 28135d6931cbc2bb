"""Sends OpenLineage events of a pipeline: one OpenLineage run for each query, from its queue to the tables.

The content of the events: "Lineage" in docs/how-to/pipeline.md.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from psycopg.conninfo import conninfo_to_dict

from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.queue_run import EventListener, QueueRun
from servicebroker.pipeline.sinks.storage import Folder
from servicebroker.pipeline.sorting import columns_of
from servicebroker.store.connection import is_url

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from requests import Response

RUNNING_EVENT_INTERVAL_S = 60.0  # the time between two RUNNING events of a query
# Maximum wait of a query until the server has accepted an event. Events that follow before that are dropped.
EMIT_TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 65_536  # read of the server's response, which is not used
PRODUCER = "servicebroker"
_STATES = {
    "queue started": "START",
    "batch": "RUNNING",
    "queue restarts": "RUNNING",
    "queue failed": "FAIL",
    "queue ended": "COMPLETE",
    "queue stopped": "ABORT",
}

_log = logging.getLogger("servicebroker.pipeline")


def lineage_listener(pipeline: Pipeline) -> EventListener:
    """Return a listener that sends a pipeline's events to OpenLineage.

    If the environment does not configure OpenLineage, the listener does nothing.
    """
    if not any(name.startswith("OPENLINEAGE_") for name in os.environ):
        return lambda queue_run, event: None
    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        _log.warning("OpenLineage gets no events, since its client is missing: pip install 'servicebroker[lineage]'.")
        return lambda queue_run, event: None
    client = OpenLineageClient()
    _limit_responses(client)
    return Lineage(pipeline, client).on_event


def _limit_responses(client: OpenLineageClient) -> None:
    """Make the client read only the beginning of a response: by default it keeps a response of any size in memory."""
    session = getattr(client.transport, "session", None)  # only transports over `requests` have one
    if hooks := getattr(session, "hooks", None):
        hooks["response"].append(_read_beginning)


def _read_beginning(response: Response, **options: object) -> None:
    response._content = next(response.iter_content(MAX_RESPONSE_BYTES), b"")
    response.close()


class Lineage:
    """Sends events of a pipeline's queries to OpenLineage. A failure is logged and does not disturb the queries."""

    def __init__(
        self, pipeline: Pipeline, client: OpenLineageClient, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pipeline = pipeline
        self._client = client
        self._clock = clock
        self._run_ids: dict[str, str] = {}  # the id of the run, by queue
        # The time of the next RUNNING event in seconds of `clock`, by queue
        self._next_running_event: dict[str, float] = {}
        self._is_reachable = True
        self._sender: threading.Thread | None = None  # thread that sends the last event

    def on_event(self, queue_run: QueueRun, event: str) -> None:
        """Send an event: the first start of a query, its end, and at most one RUNNING event per interval."""
        from openlineage.client.uuid import generate_new_uuid

        state = _STATES[event]
        is_due = self._clock() >= self._next_running_event.get(queue_run.label, 0.0)
        if (state == "START" and queue_run.label in self._run_ids) or (state == "RUNNING" and not is_due):
            return
        self._next_running_event[queue_run.label] = self._clock() + RUNNING_EVENT_INTERVAL_S
        run_id = self._run_ids.setdefault(queue_run.label, str(generate_new_uuid()))
        run_event = self._event(queue_run, state, run_id)
        if self._sender is None or not self._sender.is_alive():
            self._sender = threading.Thread(target=self._emit, args=(run_event,), name="lineage", daemon=True)
            self._sender.start()
            self._sender.join(EMIT_TIMEOUT_S)
        if self._sender.is_alive():
            self._warn(f"it has not answered within {EMIT_TIMEOUT_S:g} s")

    def _emit(self, event: Any) -> None:
        try:
            self._client.emit(event)
        except Exception as problem:  # transports raise errors of many types, and no batch may fail because of lineage
            self._warn(problem)
        else:
            self._is_reachable = True

    def _warn(self, problem: object) -> None:
        """Log a warning, unless one was logged since the server last responded."""
        if self._is_reachable:
            _log.warning("OpenLineage cannot be reached: %s. The pipeline goes on.", problem)
        self._is_reachable = False

    def _event(self, queue_run: QueueRun, state: str, run_id: str) -> Any:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, job_type_job

        kind = job_type_job.JobTypeJobFacet("BATCH" if queue_run.once else "STREAMING", "SERVICEBROKER", "PIPELINE")
        error = error_message_run.ErrorMessageRunFacet(queue_run.reason, "Python")
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "servicebroker"
        return RunEvent(
            eventType=RunState(state),
            eventTime=datetime.now(UTC).isoformat(),
            producer=PRODUCER,
            run=Run(run_id, {"errorMessage": error} if state == "FAIL" else {}),
            job=Job(namespace, f"{self._pipeline.name}.{queue_run.label}", {"jobType": kind}),
            inputs=[_queue(queue_run.queue)],
            outputs=[_table(self._pipeline, name, queue_run) for name in self._pipeline.table_names()],
        )


def _queue(queue: QueueRule) -> InputDataset:
    from openlineage.client.event_v2 import InputDataset

    address = queue.instance
    if is_url(address):  # user and password must not appear in lineage
        parts = conninfo_to_dict(address)
        name = quote(str(parts.get("dbname") or ""))
        address = f"{str(parts.get('host') or '').lower()}:{parts.get('port') or 5432}{'/' * bool(name)}{name}"
    return InputDataset(f"servicebroker://{address}", f"{queue.database}.{queue.queue}")


def _table(pipeline: Pipeline, name: str, queue_run: QueueRun) -> OutputDataset:
    """Return a table with its columns. Bronze, which gets every message, also has the number of written messages."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset, schema_dataset

    columns = [
        schema_dataset.SchemaDatasetFacetFields(column.name, column.kind) for column in columns_of(pipeline, name)
    ]
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=queue_run.messages)
    return OutputDataset(
        *_dataset_name(pipeline.folder(name)),
        facets={"schema": schema_dataset.SchemaDatasetFacet(columns)},
        outputFacets={"outputStatistics": statistics} if name == pipeline.bronze else {},
    )


def _dataset_name(folder: Folder) -> tuple[str, str]:
    """Return the namespace and name of a folder, by OpenLineage's naming rules for files and object stores."""
    if isinstance(folder, Path):
        return "file", str(folder.absolute())
    parts = urlsplit(folder.url)
    return f"{parts.scheme.replace('s3a', 's3')}://{parts.netloc}", parts.path.strip("/")
