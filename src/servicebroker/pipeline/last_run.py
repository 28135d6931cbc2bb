"""How the last run of a pipeline stands or has ended: a file beside its checkpoints, which `pipeline status` reads."""

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
from typing import Any

from servicebroker.model.named_files import read_file
from servicebroker.model.wording import counted
from servicebroker.pipeline.definition import Pipeline
from servicebroker.pipeline.quarantine_counts import in_words as in_words_of
from servicebroker.pipeline.queue_run import QueueRun

NAME = "_last_run.json"
EVERY = 1.0  # seconds between two notes of a run


@dataclass
class LastRun:
    """A run that notes how it stands, each second and at its end."""

    path: Path
    queues: list[QueueRun] = field(default_factory=list)
    began: str = field(default_factory=lambda: _now())
    _ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextmanager
    def noted(cls, pipeline: Pipeline) -> Iterator[LastRun]:
        """A run that begins now and ends with the block; what ends it is noted."""
        run = cls(place(pipeline))
        run.path.parent.mkdir(parents=True, exist_ok=True)
        run.note()
        noting = threading.Thread(target=run._keep_noting, daemon=True)
        noting.start()
        error = ""
        try:
            yield run
        except Exception as problem:
            error = " ".join(str(problem).split()) or type(problem).__name__
            raise
        finally:
            run._ended.set()
            noting.join()
            run.note(ended=_now(), error=error)

    def note(self, *, ended: str | None = None, error: str = "") -> None:
        """Write how it stands; whoever reads the file sees the old text or the new one."""
        told = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "began": self.began,
            "ended": ended,
            "error": error or None,
            "queues": [
                {"queue": one.label, "state": str(one.state), **one.figures(), "reason": one.reason or None}
                for one in self.queues
            ],
        }
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(told), encoding="utf-8")
        fresh.replace(self.path)

    def _keep_noting(self) -> None:
        while not self._ended.wait(EVERY):
            with contextlib.suppress(OSError):  # a full disk is not the run's end
                self.note()


def place(pipeline: Pipeline) -> Path:
    """Where the file is."""
    return pipeline.checkpoint(pipeline.queues[0]).parent / NAME


def last_run(pipeline: Pipeline) -> dict[str, Any] | None:
    """What was noted, None when there was no run. A run that was killed could not note its end: `error` says so."""
    try:
        told: dict[str, Any] = json.loads(read_file(place(pipeline)))
    except (OSError, ValueError):
        return None
    if told["ended"] is None and told["host"] == socket.gethostname() and not _lives(told["process"]):
        told["error"] = f"It was killed: its process {told['process']} is gone, and has noted no end."
    return told


def in_words(run: dict[str, Any] | None) -> list[str]:
    """The last run in words: when, how it stands or has ended, and which queues have failed."""
    if run is None:
        return ["There was no run yet."]
    if run["error"]:
        lines = [f"The run of {run['began']} has failed: {run['error']}"]
    elif run["ended"]:
        lines = [f"The last run began at {run['began']} and ended at {run['ended']}."]
    else:
        lines = [f"It runs since {run['began']}, as process {run['process']} of {run['host']}."]
    for queue in run["queues"]:
        if queue.get("quarantined"):  # not there in notes of earlier versions
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
    of_all = f"{counts.total():,} of {counted(queue['messages'], 'message')}"
    return f"{queue['queue']}: {of_all} went into quarantine ({in_words_of(counts)})."


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
