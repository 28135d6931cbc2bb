"""The page of pipelines: the status as in `servicebroker pipeline status`, and the replay of messages in quarantine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from servicebroker.dashboard.snapshot_cache import CachedSource, Snapshot
from servicebroker.model.wording import counted
from servicebroker.pipeline.file import read_pipeline

FRESH_S = 5.0  # a younger status is shown without a query; longer than for an instance, since it reads table logs


class Reason(NamedTuple):
    """Messages of one type in quarantine for one reason."""

    message_type: str
    reason: str
    messages: int


class CachedPipeline(CachedSource):
    """A pipeline on a page, with the cache of its status."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def read(self) -> Snapshot:
        """Return the status of the pipeline; the last one while it cannot be read."""
        return self.snapshot("pipeline", self._query_status, FRESH_S)

    def replay(self, message_type: str) -> str:
        """Replay the quarantine and late messages of a type, as the command does. Return the result as a sentence.

        Raises:
            InstanceError: the tables cannot be changed, or no rule of the file is of that type.
        """
        from servicebroker.pipeline.late_rules import replay

        results = replay(read_pipeline(self._path), message_type)  # empty if the quarantine has become empty
        self.invalidate()
        written, remaining = sum(result.written for result in results), sum(result.remaining for result in results)
        return f"{counted(written, 'message')} of {message_type} written, {remaining:,} still in quarantine."

    def _query_status(self) -> dict[str, Any]:
        from servicebroker.pipeline.last_run import describe, read_last_run
        from servicebroker.pipeline.sinks.maintenance import status

        pipeline = read_pipeline(self._path)
        pipeline_status = status(pipeline)
        return {
            "name": pipeline.name,
            "run": describe(read_last_run(pipeline)),
            "tables": pipeline_status.tables,
            "queues": pipeline_status.queues,
            "quarantined": [Reason(*pair, count) for pair, count in pipeline_status.quarantined.items()],
        }
