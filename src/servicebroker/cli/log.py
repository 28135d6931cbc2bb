"""The log of a serving process, on standard error: its format, and a limit on lines that peers can cause.

Peers cause the records of broker/journal.py, and those of asyncio and uvicorn. Of these a repeated line is logged once
a minute. Of different lines of one kind and host, the first twenty in a minute are logged. The others are counted, and
one line gives their number.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
from datetime import UTC, datetime
from typing import Any, NamedTuple

from servicebroker.cli import shutdown
from servicebroker.cli.output import block, errors_into, hidden, log_handler
from servicebroker.model.wording import cleaned, counted

REPEAT_INTERVAL_S = 60.0  # until a repeated line is logged again
MAX_DIFFERENT_LINES = 20  # of a kind in that time
MAX_KINDS = 500  # that are counted apart in that time
OF_PEERS = "servicebroker.broker"  # the log of broker/journal.py
LIBRARIES = ("asyncio", "uvicorn")  # libraries that serve peers: their lines are limited, too
_MAX_LINE_CHARACTERS = 10_000
_MAX_KIND_CHARACTERS = 100  # lines of a library that begin with the same ones are of one kind


def log_to_standard_error(*, as_json: bool) -> None:
    """Log the broker's messages, and warnings of libraries; `as_json`: as one JSON object for each line.

    With JSON, errors that the command prints on standard error are records of the log, too.
    """
    handler = log_handler()
    handler.setFormatter(_Json() if as_json else Lines("{time} {level} {text}"))
    repeats = Repeats(handler)
    handler.addFilter(repeats)
    atexit.register(repeats.sum_up)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("servicebroker").setLevel(logging.INFO)
    logging.captureWarnings(True)
    if as_json:
        errors_into(logging.getLogger("servicebroker").error)
        shutdown.say_in_json()


def say_errors_in_json() -> None:
    """Print errors as JSON on standard error, in a process without a log."""
    handler = log_handler()
    handler.setFormatter(_Json())
    logging.basicConfig(handlers=[handler], force=True)
    errors_into(logging.getLogger("servicebroker").error)


class Kind(NamedTuple):
    """The kind of a record: the event, and the host that caused it."""

    event: str
    subclass: str
    host: str


class _Recent:
    """The records of a kind since the last sum: texts that were logged, and the number of those left out."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.left_out = 0


class Repeats(logging.Filter):
    """A filter that passes new lines; it counts the others and logs a sum for each kind once a minute."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._lock = threading.Lock()
        self._kinds: dict[Kind, _Recent] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged now."""
        text = record.getMessage()
        kind = _kind(record, text)
        if kind is None:
            return True
        with self._lock:
            if not self._kinds:
                timer = threading.Timer(REPEAT_INTERVAL_S, self.sum_up)
                timer.daemon = True
                timer.start()
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                kind = Kind("Broker", "", "")
            recent = self._kinds.setdefault(kind, _Recent())
            if text in recent.told or len(recent.told) >= MAX_DIFFERENT_LINES:
                recent.left_out += 1
                return False
            recent.told.add(text)
            return True

    def sum_up(self) -> None:
        """Log how many records of each kind were left out, and reset the counts."""
        with self._lock:
            kinds, self._kinds = self._kinds, {}
        for kind, recent in kinds.items():
            if recent.left_out:
                self._handler.emit(_summed_up(kind, recent.left_out))


def _kind(record: logging.LogRecord, text: str) -> Kind | None:
    """Return the kind of a record: by the first line of a library, by the event of ours. None: no peer caused it."""
    if record.name.partition(".")[0] in LIBRARIES:
        return Kind(record.name, " ".join(text.splitlines()[:1])[:_MAX_KIND_CHARACTERS], "")
    fields = getattr(record, "fields", None)
    if fields is None or record.name != OF_PEERS:
        return None
    return Kind(fields["event"], fields.get("subclass", ""), fields.get("peer", "").rpartition(":")[0])


def _summed_up(kind: Kind, times: int) -> logging.LogRecord:
    whose = f" from {kind.host}" if kind.host else ""
    count = counted(times, "line like these was", "lines like these were")
    event = " ".join(filter(None, (kind.event, kind.subclass)))
    text = f"{event}: {count} left out{whose} in {REPEAT_INTERVAL_S:g} seconds."
    record = logging.LogRecord("servicebroker.broker", logging.WARNING, __file__, 0, text, None, None)
    record.fields = {"event": kind.event, "subclass": kind.subclass, "peer": kind.host, "times": str(times)}
    return record


class Lines(logging.Formatter):
    """One line for each record, by a template of `time`, `level` and `text`; a traceback follows in indented lines."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, in which nothing steers a terminal or looks like another record."""
        text = cleaned(" ".join(hidden(record.getMessage()).split()), _MAX_LINE_CHARACTERS)
        said = self._template.format(time=_time(record), level=record.levelname, text=text)
        return block(f"{said}\n{self.formatException(record.exc_info)}") if record.exc_info else said


class _Json(logging.Formatter):
    """One JSON object for each record, with the fields of an event beside its text."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {"time": _time(record), "level": record.levelname, "message": record.getMessage()}
        told |= getattr(record, "fields", {})
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps({key: hidden(value) if type(value) is str else value for key, value in told.items()})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
