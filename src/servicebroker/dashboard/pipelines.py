"""A pipeline as the dashboard sees it: what `servicebroker pipeline status` tells, and reading quarantine again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from servicebroker.dashboard.observed import Seen, Watched
from servicebroker.model.wording import counted
from servicebroker.pipeline.file import read_pipeline

FRESH = 5.0  # seconds for which everybody is shown the same: the logs of tables are read for it


class Reason(NamedTuple):
    """Messages of one type that lie in quarantine for one reason."""

    message_type: str
    reason: str
    messages: int


class WatchedPipeline(Watched):
    """The pipeline of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def see(self) -> Seen:
        """How it stands, or stood when that was last known."""
        return self.seen("pipeline", self._look, FRESH)

    def replay(self, message_type: str) -> str:
        """Read what lies in quarantine of that type again; what came of it.

        Raises:
            InstanceError: the tables cannot be changed, or no rule of the file is of that type.
        """
        from servicebroker.pipeline.sinks.maintenance import replay

        found = replay(read_pipeline(self._path), message_type)  # nothing, where there is no quarantine any more
        self.forget()
        landed, left = sum(one.landed for one in found), sum(one.left for one in found)
        return f"{counted(landed, 'message')} of {message_type} landed, {left:,} are still in quarantine."

    def _look(self) -> dict[str, Any]:
        from servicebroker.pipeline.last_run import in_words, last_run
        from servicebroker.pipeline.sinks.maintenance import status

        pipeline = read_pipeline(self._path)
        found = status(pipeline)
        return {
            "name": pipeline.name,
            "run": in_words(last_run(pipeline)),
            "tables": found.tables,
            "queues": found.queues,
            "quarantined": [Reason(*pair, count) for pair, count in found.quarantined.items()],
        }
