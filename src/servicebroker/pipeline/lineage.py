"""Where data comes from and where it goes, told in events of OpenLineage: one of its runs for each query of a pipeline.

What is told: "Lineage" in docs/how-to/pipeline.md.
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
from servicebroker.pipeline.queue_run import Hear, QueueRun
from servicebroker.pipeline.sinks.storage import Folder
from servicebroker.pipeline.sorting import columns_of
from servicebroker.store.connection import is_url

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from requests import Response

EVERY = 60.0  # seconds between two events of a query that goes on
PATIENCE_S = 10.0  # that a query waits for whoever listens; what comes while an event is still on its way is not told
MAX_ANSWER_BYTES = 65_536  # of an answer, which nobody reads
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


def lineage(pipeline: Pipeline) -> Hear:
    """What hears of a pipeline's queries and tells OpenLineage of them; nothing where the environment names nobody."""
    if not any(name.startswith("OPENLINEAGE_") for name in os.environ):
        return lambda one, event: None
    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        _log.warning("OpenLineage is told nothing: its client is missing: pip install 'servicebroker[lineage]'.")
        return lambda one, event: None
    client = OpenLineageClient()
    _bound_answers(client)
    return Lineage(pipeline, client).hear


def _bound_answers(client: OpenLineageClient) -> None:
    """Have the client read no more than the beginning of an answer: it would keep all that a listener sends."""
    session = getattr(client.transport, "session", None)  # of transports that speak HTTP by `requests`
    if hooks := getattr(session, "hooks", None):
        hooks["response"].append(_read_beginning)


def _read_beginning(response: Response, **options: object) -> None:
    response._content = next(response.iter_content(MAX_ANSWER_BYTES), b"")
    response.close()


class Lineage:
    """Tells OpenLineage of the queries of a pipeline; whether it listens or not, they go on."""

    def __init__(
        self, pipeline: Pipeline, client: OpenLineageClient, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pipeline = pipeline
        self._client = client
        self._clock = clock
        self._runs: dict[str, str] = {}
        self._next: dict[str, float] = {}
        self._is_heard = True
        self._telling: threading.Thread | None = None  # the last event

    def hear(self, one: QueueRun, event: str) -> None:
        """Tell of what a query has said: its first start, its end, and once a minute that it goes on."""
        from openlineage.client.uuid import generate_new_uuid

        state = _STATES[event]
        is_due = self._clock() >= self._next.get(one.label, 0.0)
        if (state == "START" and one.label in self._runs) or (state == "RUNNING" and not is_due):
            return
        self._next[one.label] = self._clock() + EVERY
        run = self._runs.setdefault(one.label, str(generate_new_uuid()))
        told = self._event(one, state, run)
        if self._telling is None or not self._telling.is_alive():
            self._telling = threading.Thread(target=self._emit, args=(told,), name="lineage", daemon=True)
            self._telling.start()
            self._telling.join(PATIENCE_S)
        if self._telling.is_alive():
            self._complain(f"it has not answered within {PATIENCE_S:g} s")

    def _emit(self, event: Any) -> None:
        try:
            self._client.emit(event)
        except Exception as problem:  # a transport raises what it likes, and no batch depends on it
            self._complain(problem)
        else:
            self._is_heard = True

    def _complain(self, problem: object) -> None:
        """Tell once until it listens again."""
        if self._is_heard:
            _log.warning("OpenLineage does not listen: %s. The pipeline goes on.", problem)
        self._is_heard = False

    def _event(self, one: QueueRun, state: str, run: str) -> Any:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, job_type_job

        kind = job_type_job.JobTypeJobFacet("BATCH" if one.once else "STREAMING", "SERVICEBROKER", "PIPELINE")
        error = error_message_run.ErrorMessageRunFacet(one.reason, "Python")
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "servicebroker"
        return RunEvent(
            eventType=RunState(state),
            eventTime=datetime.now(UTC).isoformat(),
            producer=PRODUCER,
            run=Run(run, {"errorMessage": error} if state == "FAIL" else {}),
            job=Job(namespace, f"{self._pipeline.name}.{one.label}", {"jobType": kind}),
            inputs=[_queue(one.queue)],
            outputs=[_table(self._pipeline, name, one) for name in self._pipeline.table_names()],
        )


def _queue(queue: QueueRule) -> InputDataset:
    from openlineage.client.event_v2 import InputDataset

    place = queue.instance
    if is_url(place):  # without user and password
        parts = conninfo_to_dict(place)
        name = quote(str(parts.get("dbname") or ""))
        place = f"{str(parts.get('host') or '').lower()}:{parts.get('port') or 5432}{'/' * bool(name)}{name}"
    return InputDataset(f"servicebroker://{place}", f"{queue.database}.{queue.queue}")


def _table(pipeline: Pipeline, name: str, one: QueueRun) -> OutputDataset:
    """A table with its columns; in bronze, which gets every message, with how many have landed since the start."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset, schema_dataset

    columns = [
        schema_dataset.SchemaDatasetFacetFields(column.name, column.kind) for column in columns_of(pipeline, name)
    ]
    landed = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=one.messages)
    return OutputDataset(
        *_named(pipeline.folder(name)),
        facets={"schema": schema_dataset.SchemaDatasetFacet(columns)},
        outputFacets={"outputStatistics": landed} if name == pipeline.bronze else {},
    )


def _named(folder: Folder) -> tuple[str, str]:
    """A folder's namespace and name, as OpenLineage has them for files and stores."""
    if isinstance(folder, Path):
        return "file", str(folder.absolute())
    parts = urlsplit(folder.url)
    return f"{parts.scheme.replace('s3a', 's3')}://{parts.netloc}", parts.path.strip("/")
