"""The state of the last run of a pipeline, in a file beside its checkpoints, which `pipeline status` reads."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from servicebroker.model.named_files import read_file
from servicebroker.model.wording import counted
from servicebroker.pipeline.definition import Pipeline
from servicebroker.pipeline.quarantine_counts import describe as describe_counts
from servicebroker.pipeline.queue_run import QueueRun, QueueState
from servicebroker.pipeline.variables import mask_values

FILE_NAME = "_last_run.json"
WRITE_INTERVAL_S = 1.0  # the time between two writes of the file during a run


@dataclass
class LastRun:
    """Writes the state of a run to a file, every second and at its end.

    Attributes:
        path: the file.
        queues: the queries of the run.
        began: start of the run, in ISO 8601.
    """

    path: Path
    queues: list[QueueRun] = field(default_factory=list)
    began: str = field(default_factory=lambda: _now())
    _ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextmanager
    def recording(cls, pipeline: Pipeline) -> Iterator[LastRun]:
        """Record the run during the `with` block: its start, its state every second, and its end or error."""
        run = cls(last_run_path(pipeline))
        run.path.parent.mkdir(parents=True, exist_ok=True)
        run.write()
        thread = threading.Thread(target=run._keep_writing, daemon=True)
        thread.start()
        error = ""
        try:
            yield run
        except Exception as problem:
            error = " ".join(str(problem).split()) or type(problem).__name__
            raise
        finally:
            run._ended.set()
            thread.join()
            run.write(ended=_now(), error=error)

    def write(self, *, ended: str | None = None, error: str = "") -> None:
        """Write the state atomically: a reader of the file gets the old content or the new one."""
        content = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "began": self.began,
            "ended": ended,
            "error": mask_values(error) or None,
            "queues": [
                {
                    "queue": queue_run.label,
                    "state": str(queue_run.state),
                    **queue_run.counts(),
                    "reason": queue_run.reason or None,
                }
                for queue_run in self.queues
            ],
        }
        new_file = self.path.with_suffix(f".{os.getpid()}")
        new_file.write_text(json.dumps(content), encoding="utf-8")
        new_file.replace(self.path)

    def _keep_writing(self) -> None:
        while not self._ended.wait(WRITE_INTERVAL_S):
            with contextlib.suppress(OSError):  # a full disk must not end the run
                self.write()


def last_run_path(pipeline: Pipeline) -> Path:
    """Return the path of the file with the state of the last run."""
    return pipeline.checkpoint(pipeline.queues[0]).parent / FILE_NAME


class _QueueText(msgspec.Struct):
    """The state of a queue in the file. Files of earlier versions have no quarantine counts."""

    queue: str
    state: str
    messages: int
    restarts: int
    reason: str | None
    quarantined: int = 0
    quarantined_by_rule: dict[str, dict[str, int]] = {}


class _RunText(msgspec.Struct):
    """The fields of the file that are read."""

    host: str
    process: Annotated[int, Meta(ge=1, lt=2**31)]
    began: str
    ended: str | None
    error: str | None
    queues: list[_QueueText]


def read_last_run(pipeline: Pipeline) -> dict[str, Any] | None:
    """Return the state of the last run; None if there was no run, or if the file is invalid.

    A killed run cannot write its end. If its process is gone, `error` says that it was killed.
    """
    try:
        content: dict[str, Any] = json.loads(read_file(last_run_path(pipeline)))
        msgspec.convert(content, _RunText)
    except (OSError, ValueError, RecursionError):
        return None
    if content["ended"] is None and content["host"] == socket.gethostname() and not _is_alive(content["process"]):
        content["error"] = f"It was killed: its process {content['process']} is gone, and has not recorded its end."
        for queue in content["queues"]:
            if queue["state"] in (QueueState.RUNNING, QueueState.WAITING):
                queue["state"] = str(QueueState.STOPPED)
    return content


def describe(run: dict[str, Any] | None) -> list[str]:
    """Return lines that describe the last run: times, state or end, quarantine counts, and failed queues."""
    if run is None:
        return ["There was no run yet."]
    if run["error"]:
        lines = [f"The run of {run['began']} has failed: {run['error']}"]
    elif run["ended"]:
        lines = [f"The last run began at {run['began']} and ended at {run['ended']}."]
    else:
        lines = [f"It runs since {run['began']}, as process {run['process']} of {run['host']}."]
    for queue in run["queues"]:
        if queue.get("quarantined"):  # files of earlier versions lack the key
            lines.append(_quarantined(queue))
        if queue["reason"]:
            lines.append(
                f"{queue['queue']} {queue['state']}, {counted(queue['restarts'], 'restart')}: {queue['reason']}"
            )
    return lines


def _quarantined(queue: dict[str, Any]) -> str:
    counts = Counter(
        {
            (message_type, reason): number
            for message_type, reasons in queue["quarantined_by_rule"].items()
            for reason, number in reasons.items()
        }
    )
    quarantined = f"{counts.total():,} of {counted(queue['messages'], 'message')}"
    return f"{queue['queue']}: {quarantined} went into quarantine ({describe_counts(counts)})."


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
