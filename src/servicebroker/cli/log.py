"""The log of a process that serves, on standard error: its form, and how much of it peers can cause.

Of what peers cause (the records of broker/journal.py, and those of asyncio and uvicorn) a line that is repeated
is told once a minute; so is one that differs, from the twenty-first of its kind and host on. The others are counted,
and how many they were is told.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
from datetime import UTC, datetime
from typing import Any, NamedTuple

from servicebroker.cli import stopping
from servicebroker.cli.output import block, errors_into, log_handler
from servicebroker.model.wording import cleaned, counted

AGAIN = 60.0  # seconds until the same is told again
DIFFERENT = 20  # lines of a kind in that time
KINDS = 500  # that are told apart in that time
OF_PEERS = "servicebroker.broker"  # the log of broker/journal.py
LIBRARIES = ("asyncio", "uvicorn")  # that serve peers: theirs are limited too, not those of procedures
_LONGEST = 10_000  # characters of a line
_LONGEST_KIND = 100  # characters by which lines of libraries are alike


def log_to_standard_error(*, as_json: bool) -> None:
    """Say what the broker does, and what anybody else warns of; `as_json`: nothing but JSON is written there.

    Warnings of libraries are records of the log, and so is, as JSON, what the command says on standard error.
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
        stopping.say_in_json()


def say_errors_in_json() -> None:
    """Say what goes to standard error as a log in JSON does, in a process that has no log."""
    handler = log_handler()
    handler.setFormatter(_Json())
    logging.basicConfig(handlers=[handler], force=True)
    errors_into(logging.getLogger("servicebroker").error)


class Kind(NamedTuple):
    """What is alike: the event, and the host that it came from."""

    event: str
    subclass: str
    host: str


class _Lately:
    """What was told of a kind since the last sum, and what was not."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.left_out = 0


class Repeats(logging.Filter):
    """Lets through what is news; the rest is counted, and summed up each minute in one line of each kind."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._lock = threading.Lock()
        self._kinds: dict[Kind, _Lately] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is told now."""
        text = record.getMessage()
        kind = _kind(record, text)
        if kind is None:
            return True
        with self._lock:
            if not self._kinds:
                timer = threading.Timer(AGAIN, self.sum_up)
                timer.daemon = True
                timer.start()
            if kind not in self._kinds and len(self._kinds) >= KINDS:
                kind = Kind("Broker", "", "")
            lately = self._kinds.setdefault(kind, _Lately())
            if text in lately.told or len(lately.told) >= DIFFERENT:
                lately.left_out += 1
                return False
            lately.told.add(text)
            return True

    def sum_up(self) -> None:
        """Tell how many were not told, and begin anew."""
        with self._lock:
            kinds, self._kinds = self._kinds, {}
        for kind, lately in kinds.items():
            if lately.left_out:
                self._handler.emit(_summed_up(kind, lately.left_out))


def _kind(record: logging.LogRecord, text: str) -> Kind | None:
    """Return what a record is alike with: a library's by its first line, ours by its event. None: no peer caused it."""
    if record.name.partition(".")[0] in LIBRARIES:
        return Kind(record.name, " ".join(text.splitlines()[:1])[:_LONGEST_KIND], "")
    fields = getattr(record, "fields", None)
    if fields is None or record.name != OF_PEERS:
        return None
    return Kind(fields["event"], fields.get("subclass", ""), fields.get("peer", "").rpartition(":")[0])


def _summed_up(kind: Kind, times: int) -> logging.LogRecord:
    whose = f" from {kind.host}" if kind.host else ""
    many = counted(times, "line like these was", "lines like these were")
    text = f"{' '.join(filter(None, (kind.event, kind.subclass)))}: {many} left out{whose} in {AGAIN:g} seconds."
    record = logging.LogRecord("servicebroker.broker", logging.WARNING, __file__, 0, text, None, None)
    record.fields = {"event": kind.event, "subclass": kind.subclass, "peer": kind.host, "times": str(times)}
    return record


class Lines(logging.Formatter):
    """One line for each record, by a template of `time`, `level` and `text`; a traceback follows in indented lines."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    def format(self, record: logging.LogRecord) -> str:
        """Return what is written of a record; nothing in it steers a terminal, or looks like another record."""
        text = cleaned(" ".join(record.getMessage().split()), _LONGEST)
        said = self._template.format(time=_time(record), level=record.levelname, text=text)
        return block(f"{said}\n{self.formatException(record.exc_info)}") if record.exc_info else said


class _Json(logging.Formatter):
    """One JSON object for each record, with the fields of an event beside its text."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {"time": _time(record), "level": record.levelname, "message": record.getMessage()}
        told |= getattr(record, "fields", {})
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
