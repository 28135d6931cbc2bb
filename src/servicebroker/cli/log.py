"""The log of a serving process, on standard error: its format, and a limit on lines that peers can cause.

Peers cause the records of broker/journal.py, of sign-ins in tds/, and those of asyncio and uvicorn. A repeated line of
these is logged once a minute. From one kind of record and one host, the first twenty different lines in a minute are
logged. The lines of one peer have a budget of bytes, which refills with time; beyond it, only the first line of each
kind is logged. The lines left out are counted, and one line reports their number.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any, NamedTuple

from servicebroker.cli import shutdown
from servicebroker.cli.output import block, hidden, log_handler, redirect_errors
from servicebroker.model.wording import cleaned, counted
from servicebroker.overriding import override
from servicebroker.protocol.admission import network_of

REPEAT_INTERVAL_S = 60.0  # the time before a repeated line is logged again
MAX_DIFFERENT_LINES = 20  # the most different lines of one kind in one interval
# of the lines of one peer: enough to see why a change of certificates fails, and then as many in each minute as stay
# below 1 MB an hour. A peer is seen as host, as owner and as neither; the counts of lines left out come in addition.
MAX_SOURCE_BYTES = 14_000
SOURCE_BYTES_PER_S = 2_500 / 60
MAX_KINDS = 500  # counted separately in one interval: bounds memory
BROKER_LOG = "servicebroker.broker"  # the logger of broker/journal.py, whose records peers cause
PEER_LOGS = (BROKER_LOG, "servicebroker.tds")  # their records with fields are caused by peers
LIBRARIES = ("asyncio", "uvicorn")  # libraries that serve peers: their lines are limited, too
POOL_LOG = "psycopg.pool"  # the logger of psycopg_pool
_MAX_LINE_CHARACTERS = 10_000
_MAX_KIND_CHARACTERS = 100  # lines of a library with the same first 100 characters are of one kind


def log_to_standard_error(*, as_json: bool) -> None:
    """Log the broker's messages, and warnings of libraries. `as_json`: each record is one line with a JSON object.

    With JSON, errors that the command prints on standard error become records of the log, too.
    """
    handler = log_handler()
    handler.setFormatter(_Json() if as_json else Lines("{time} {level} {text}"))
    repeats = Repeats(handler)
    handler.addFilter(repeats)
    atexit.register(repeats.report_left_out)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("servicebroker").setLevel(logging.INFO)
    logging.getLogger(POOL_LOG).addFilter(_is_news_of_pool)
    logging.captureWarnings(True)
    if as_json:
        redirect_errors(logging.getLogger("servicebroker").error)
        shutdown.log_in_json()


def _is_news_of_pool(record: logging.LogRecord) -> bool:
    """Return False for the warning that the pool replaces a closed connection, which needs nothing."""
    return not record.getMessage().startswith("discarding closed connection")


def log_errors_in_json() -> None:
    """Print only errors on standard error, as JSON. For a process that logs nothing else."""
    handler = log_handler()
    handler.setFormatter(_Json())
    logging.basicConfig(handlers=[handler], force=True)
    redirect_errors(logging.getLogger("servicebroker").error)


class Kind(NamedTuple):
    """The kind of a record: the event, and the host that caused it, or the network of an IPv6 address."""

    event: str
    subclass: str
    host: str


class _Recent:
    """The records of one kind in the current interval: the texts logged, and the number of records left out."""

    def __init__(self) -> None:
        self.logged: set[str] = set()
        self.left_out = 0


class Repeats(logging.Filter):
    """A filter that limits repeated lines. Once a minute it logs, for each kind, how many were left out."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._lock = threading.Lock()
        self._kinds: dict[Kind, _Recent] = {}
        self._bytes: Counter[str] = Counter()  # the bytes of the budget in use, by source
        self._refilled_at = time.monotonic()

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record; count it otherwise."""
        text = record.getMessage()
        kind = _kind(record, text)
        if kind is None:
            return True
        with self._lock:
            if not self._kinds:
                self._refill()
                timer = threading.Timer(REPEAT_INTERVAL_S, self.report_left_out)
                timer.daemon = True
                timer.start()
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                kind = Kind("Broker", "", "")
            recent, source = self._kinds.setdefault(kind, _Recent()), _source(record, kind)
            has_many = len(recent.logged) >= MAX_DIFFERENT_LINES
            is_over = bool(recent.logged) and self._bytes[source] >= MAX_SOURCE_BYTES
            if text in recent.logged or has_many or is_over:
                recent.left_out += 1
                return False
            recent.logged.add(text)
            self._bytes[source] += len(self._handler.format(record).encode(errors="replace"))
            return True

    def report_left_out(self) -> None:
        """Log how many records of each kind were left out, and begin a new interval."""
        with self._lock:
            kinds, self._kinds = self._kinds, {}
            self._refill()
        for kind, recent in kinds.items():
            if recent.left_out:
                self._handler.emit(_left_out_record(kind, recent.left_out))

    def _refill(self) -> None:
        now = time.monotonic()
        refilled = round((now - self._refilled_at) * SOURCE_BYTES_PER_S)
        self._bytes = Counter({source: used - refilled for source, used in self._bytes.items() if used > refilled})
        self._refilled_at = now


def _kind(record: logging.LogRecord, text: str) -> Kind | None:
    """Return the kind of a record that a peer may have caused; None for any other record.

    The kind of a library's record is the beginning of its text, that of a broker's record its event and host.
    """
    if record.name.partition(".")[0] in LIBRARIES:
        return Kind(record.name, " ".join(text.splitlines()[:1])[:_MAX_KIND_CHARACTERS], "")
    fields = getattr(record, "fields", None)
    if fields is None or record.name not in PEER_LOGS:
        return None
    return Kind(fields["event"], fields.get("subclass", ""), _host(fields.get("peer", "")))


def _host(peer: str) -> str:
    """Return a peer's address without its port. An IPv6 address is replaced by its network: a host has all of them."""
    scheme, slashes, host = peer.rpartition(":")[0].rpartition("//")
    return f"{scheme}{slashes}[{network_of(host[1:-1])}]" if host.startswith("[") else f"{scheme}{slashes}{host}"


def _source(record: logging.LogRecord, kind: Kind) -> str:
    """Return whose budget a record uses: the owner of the peer's certificate, else its host, else the library."""
    owner: str = getattr(record, "fields", {}).get("peer_owner", "")
    return owner or kind.host or (record.name if record.name != BROKER_LOG else "")


def _left_out_record(kind: Kind, times: int) -> logging.LogRecord:
    """Return the record that reports how many records of a kind were left out."""
    from_host = f" from {kind.host}" if kind.host else ""
    count = counted(times, "line like these was", "lines like these were")
    event = " ".join(filter(None, (kind.event, kind.subclass)))
    text = f"{event}: {count} left out{from_host} in {REPEAT_INTERVAL_S:g} seconds."
    record = logging.LogRecord("servicebroker.broker", logging.WARNING, __file__, 0, text, None, None)
    record.fields = {"event": kind.event, "subclass": kind.subclass, "peer": kind.host, "times": str(times)}
    return record


class Lines(logging.Formatter):
    """Formats a record as one line. `template` has the fields `time`, `level` and `text`.

    A traceback follows in indented lines.
    """

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without control characters and line ends from the text."""
        text = cleaned(" ".join(hidden(record.getMessage()).split()), _MAX_LINE_CHARACTERS)
        line = self._template.format(time=_time(record), level=record.levelname, text=text)
        return block(f"{line}\n{self.formatException(record.exc_info)}") if record.exc_info else line


class _Json(logging.Formatter):
    """Formats a record as one JSON object, with the fields of its event."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {"time": _time(record), "level": record.levelname, "message": record.getMessage()}
        document |= getattr(record, "fields", {})
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return json.dumps({key: hidden(value) if type(value) is str else value for key, value in document.items()})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
