"""One run of `servicebroker demo`: send the lines of a file, and write them to a Delta table, with progress output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from servicebroker.api.shared.open import open_instance
from servicebroker.cli.commands.demo import shipper as names
from servicebroker.cli.commands.demo.input_file import default_source, open_source
from servicebroker.cli.commands.demo.shipper import Shipper, set_up
from servicebroker.cli.commands.demo.warehouse import Landing, Row, first_rows, landed_rows
from servicebroker.cli.output import line
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.spark_session import check_java

POLL_S = 0.1  # the time between two counts of the table's rows
SENDING_POLL_S = 1.0  # the time between two counts while lines are sent
ROWS_SHOWN = 5
_BOXED: dict[str, Any] = {"box": box.HEAVY_HEAD, "pad_edge": True, "title_justify": "center"}
LOCK_TIMEOUT_S = 20  # the time for another run in the folder to end, such as the Spark of a killed run


@dataclass(frozen=True)
class Summary:
    """The result of a run.

    `sent` lines, `landed` rows, and `conversations` opened and `closed` are those of this run; `lines` counts the lines
    of the file that any run has sent. `start_seconds` is the time until the Spark query began: PostgreSQL and Spark
    start in it, and lines are sent. `landed_per_second` is the rate after it.
    """

    input: str
    lines: int
    sent: int
    landed: int
    conversations: int
    closed: int
    seconds: float
    start_seconds: float
    sent_per_second: float
    landed_per_second: float
    table: str


@dataclass(frozen=True)
class Reporter:
    """The output of a run.

    Attributes:
        print_line: print a sentence.
        update_bar: set a progress bar: its name, messages done, messages expected.
        print_first_rows: print the first rows of the table, once this run has written some.
    """

    print_line: Callable[[str], None]
    update_bar: Callable[[str, int, int], None]
    print_first_rows: Callable[[list[Row]], None]


def silent_reporter() -> Reporter:
    """Return a reporter that prints nothing."""
    return Reporter(lambda sentence: None, lambda name, done, expected: None, lambda rows: None)


def run_demo(source: Path | None, out: Path, reporter: Reporter) -> Summary:
    """Send the lines of `source` that were not sent yet, and wait until all messages are in the table.

    Raises:
        InstanceError, OSError: no Java, an unreadable file, a folder that cannot be used, a full disk ...
    """
    check_java()
    path = source or default_source()
    table = out.resolve() / "table"
    with open_source(path) as file, _locked_folder(out) as lock:
        started_at = time.monotonic()
        reporter.print_line(f"Input: {path}")
        reporter.print_line(f"Starting the embedded PostgreSQL in {out / 'instance'}, and Spark.")
        with (
            open_instance(out / "instance") as instance,
            Landing(instance.url, table, out.resolve() / "checkpoint", lock) as landing,
        ):
            database = instance.database(names.DATABASE, create=True)
            set_up(database)
            shipper = Shipper(database, path, file)
            progress = _TableProgress(landing, landed_rows(table), reporter)
            reporter.print_line(
                f"Sending each line from {names.SHIPPER} to {names.WAREHOUSE}; Spark writes them to {table}."
            )
            shipping_at = time.monotonic()
            _ship(shipper, os.fstat(file.fileno()).st_size, progress)
            shipped_at = time.monotonic()
            landing.begin()
            _drain(shipper, progress)
            landed_at = time.monotonic()
        seconds = time.monotonic() - started_at
        if shipper.failures:
            raise InstanceError(" ".join(shipper.failures))
        rows = landed_rows(table) - progress.rows_before
    return Summary(
        str(path),
        shipper.position.lines,
        shipper.sent,
        rows,
        shipper.opened,
        shipper.closed,
        round(seconds, 3),
        round(landing.begun_at - started_at, 3),
        round(shipper.sent / (shipped_at - shipping_at), 1),
        round(rows / (landed_at - landing.begun_at), 1),
        str(table),
    )


@dataclass
class _TableProgress:
    """Counts the rows that this run has written, which are all rows less `rows_before`, and reports them."""

    landing: Landing
    rows_before: int
    reporter: Reporter
    _reported_at: float = field(default_factory=time.monotonic)
    _has_printed_rows: bool = False

    def report(self, sent: int, interval_s: float = 0.0) -> None:
        """Report the number of rows, and once the first rows. Do nothing within `interval_s` of the last report."""
        if time.monotonic() < self._reported_at + interval_s:
            return
        count = self.landing.rows() - self.rows_before
        self.reporter.update_bar("landed", count, max(sent, count))
        if count and not self._has_printed_rows:
            self.reporter.print_first_rows(self.landing.first_rows(ROWS_SHOWN))
            self._has_printed_rows = True
        self._reported_at = time.monotonic()


def _ship(shipper: Shipper, size: int, progress: _TableProgress) -> None:
    """Send all lines. Start the Spark query as soon as Spark has started."""
    for offset in shipper.ship(size):
        progress.reporter.update_bar("sent", shipper.sent, round(shipper.sent * size / max(offset, 1)))
        shipper.receive_answers()
        if progress.landing.is_ready:
            progress.landing.begin()
            progress.report(shipper.sent, SENDING_POLL_S)
        progress.landing.check()
    shipper.finish()
    progress.reporter.update_bar("sent", shipper.sent, shipper.sent)


def _drain(shipper: Shipper, progress: _TableProgress) -> None:
    """Wait until every conversation is closed on both sides. Then all rows are written and acknowledged."""
    while True:
        while shipper.receive_answers():
            pass
        progress.report(shipper.sent)
        if not shipper.open_conversations():
            return
        progress.landing.check()
        time.sleep(POLL_S)


@contextlib.contextmanager
def _locked_folder(out: Path) -> Iterator[int]:
    """Create the folder of the demo, and lock it for one run. Yield the descriptor of the lock.

    Raises:
        OSError: the folder cannot be used.
        InstanceError: another run still has the lock after `LOCK_TIMEOUT_S`.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / "lock").open("w")
    except OSError as problem:
        raise OSError(f"The folder '{out}' cannot be used: {problem.strerror}. Name another with --out.") from None
    with lock:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InstanceError(
                        f"Another run of the demo uses '{out}': wait until it ends, or give another folder with --out."
                    ) from None
                time.sleep(POLL_S)
        yield lock.fileno()


def run_on_terminal(source: Path | None, out: Path) -> None:
    """Run the demo with output for a terminal: sentences, two progress bars, the first rows, and a summary."""
    console = Terminal()
    printed: list[Row] = []

    def print_rows(rows: list[Row]) -> None:
        printed.extend(rows)
        if rows:
            console.print(_rows_table(rows))

    columns = (TextColumn("{task.description:>7}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=False) as progress:
        bars = {name: progress.add_task(name, total=None) for name in ("sent", "landed")}

        def update(name: str, done: int, expected: int) -> None:
            progress.update(bars[name], completed=done, total=max(expected, 1) if done or expected else 1)

        reporter = Reporter(lambda sentence: console.print(line(sentence)), update, print_rows)
        summary = run_demo(source, out, reporter)
    if not printed:  # no new rows
        print_rows(first_rows(Path(summary.table), ROWS_SHOWN))
    console.print(_summary_table(summary))
    console.print("Run the command again: it sends only lines that are new.")


def _rows_table(rows: list[Row]) -> Listing:
    table = Listing("conversation", "number", "message_body", title="First rows of the table", **_BOXED)
    for handle, number, body in rows:
        table.row(handle[:8], str(number), body.decode(errors="replace")[:100])
    return table


def _summary_table(summary: Summary) -> Listing:
    table = Listing("figure", "value", title="Summary", show_header=False, **_BOXED)
    for name, value in (
        ("lines in the file", f"{summary.lines:,}"),
        ("sent in this run", f"{summary.sent:,}"),
        ("landed in this run", f"{summary.landed:,}"),
        ("conversations opened, closed", f"{summary.conversations:,}, {summary.closed:,}"),
        ("sent per second", f"{summary.sent_per_second:,.0f}"),
        ("landed per second", f"{summary.landed_per_second:,.0f}"),
        ("seconds until Spark was ready", f"{summary.start_seconds:.1f}"),
        ("seconds in all", f"{summary.seconds:.1f}"),
        ("Delta table", summary.table),
    ):
        table.row(name, value)
    return table
