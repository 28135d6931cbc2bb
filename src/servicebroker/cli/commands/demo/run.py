"""One run of the main job, from a file to a Delta table, and what it tells a person."""

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

POLL_S = 0.1  # between two looks at the rows that have landed
SENDING_POLL_S = 1.0  # between two looks while lines are sent
ROWS_SHOWN = 5
_BOXED: dict[str, Any] = {"box": box.HEAVY_HEAD, "pad_edge": True, "title_justify": "center"}
LOCK_TIMEOUT_S = 20  # for another run in the same folder to end


@dataclass(frozen=True)
class Summary:
    """The result of a run. `sent`, `landed`, `conversations` (opened) and `closed` count this run, `lines` the file."""

    input: str
    lines: int
    sent: int
    landed: int
    conversations: int
    closed: int
    seconds: float
    messages_per_second: float
    table: str


@dataclass(frozen=True)
class Voice:
    """The output of a run.

    Attributes:
        say: a sentence.
        show: a bar's name with how many messages are done and expected.
        first: the first rows of the table, as soon as this run has landed some.
    """

    say: Callable[[str], None]
    show: Callable[[str, int, int], None]
    first: Callable[[list[Row]], None]


def say_nothing() -> Voice:
    """Discard the output, for scripts."""
    return Voice(lambda sentence: None, lambda name, done, expected: None, lambda rows: None)


def run_demo(source: Path | None, out: Path, voice: Voice) -> Summary:
    """Send the lines of `source` that were not sent yet and land everything that is under way.

    Raises:
        InstanceError, OSError: no Java, an unreadable file, a folder that cannot be used, a full disk ...
    """
    check_java()
    path = source or default_source()
    table = out.resolve() / "table"
    with open_source(path) as file, _only_one(out) as lock:
        begin = time.monotonic()
        voice.say(f"Input: {path}")
        voice.say(f"Starting the embedded PostgreSQL in {out / 'instance'}, and Spark.")
        with (
            open_instance(out / "instance") as instance,
            Landing(instance.url, table, out.resolve() / "checkpoint", lock) as landing,
        ):
            database = instance.database(names.DATABASE, create=True)
            set_up(database)
            shipper = Shipper(database, path, file)
            landed = _Landed(landing, landed_rows(table), voice)
            voice.say(f"Sending each line from {names.SHIPPER} to {names.WAREHOUSE}; Spark lands them in {table}.")
            _ship(shipper, os.fstat(file.fileno()).st_size, landed)
            landing.begin()
            _drain(shipper, landed)
        seconds = time.monotonic() - begin
        if shipper.failures:
            raise InstanceError(" ".join(shipper.failures))
        rows = landed_rows(table) - landed.before
    return Summary(
        str(path),
        shipper.position.lines,
        shipper.sent,
        rows,
        shipper.opened,
        shipper.closed,
        round(seconds, 3),
        round(rows / seconds, 1),
        str(table),
    )


@dataclass
class _Landed:
    """The rows that this run has landed, beside the `before` rows of the table; it reports them."""

    landing: Landing
    before: int
    voice: Voice
    _looked: float = field(default_factory=time.monotonic)
    _is_shown: bool = False

    def look(self, sent: int, pause: float = 0.0) -> None:
        """Tell how many rows there are, and show the first ones; not within `pause` seconds of the last look."""
        if time.monotonic() < self._looked + pause:
            return
        count = self.landing.rows() - self.before
        self.voice.show("landed", count, max(sent, count))
        if count and not self._is_shown:
            self.voice.first(self.landing.first_rows(ROWS_SHOWN))
            self._is_shown = True
        self._looked = time.monotonic()


def _ship(shipper: Shipper, size: int, landed: _Landed) -> None:
    """Send, and land as soon as Spark is there."""
    for offset in shipper.ship(size):
        landed.voice.show("sent", shipper.sent, round(shipper.sent * size / max(offset, 1)))
        shipper.answer()
        if landed.landing.is_ready:
            landed.landing.begin()
            landed.look(shipper.sent, SENDING_POLL_S)
        landed.landing.check()
    shipper.finish()
    landed.voice.show("sent", shipper.sent, shipper.sent)


def _drain(shipper: Shipper, landed: _Landed) -> None:
    """Until every conversation is closed on both sides: then everything has landed and is acknowledged."""
    while True:
        while shipper.answer():
            pass
        landed.look(shipper.sent)
        if not shipper.open_conversations():
            return
        landed.landing.check()
        time.sleep(POLL_S)


@contextlib.contextmanager
def _only_one(out: Path) -> Iterator[int]:
    """The folder of the demo, made if missing, for one run at a time; yields the descriptor of its lock.

    Waits a while: the Spark of a run that was killed needs a moment to go.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / "lock").open("w")
    except OSError as problem:
        raise OSError(f"The folder '{out}' cannot be used: {problem.strerror}. Name another with --out.") from None
    with lock:
        give_up = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise InstanceError(
                        f"Another run of the demo is at work in '{out}': wait for it, or name another --out."
                    ) from None
                time.sleep(POLL_S)
        yield lock.fileno()


def show(source: Path | None, out: Path) -> None:
    """A run for a person: sentences, two bars, the first rows as soon as there are some, and a summary."""
    console = Terminal()
    shown: list[Row] = []

    def show_rows(rows: list[Row]) -> None:
        shown.extend(rows)
        if rows:
            console.print(_rows_table(rows))

    columns = (TextColumn("{task.description:>7}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=False) as progress:
        bars = {name: progress.add_task(name, total=None) for name in ("sent", "landed")}

        def update(name: str, done: int, expected: int) -> None:
            progress.update(bars[name], completed=done, total=max(expected, 1) if done or expected else 1)

        voice = Voice(lambda sentence: console.print(line(sentence)), update, show_rows)
        summary = run_demo(source, out, voice)
    if not shown:  # no new rows
        show_rows(first_rows(Path(summary.table), ROWS_SHOWN))
    console.print(_summary_table(summary))
    console.print("Run it again: only lines that are new since then are sent and landed.")


def _rows_table(rows: list[Row]) -> Listing:
    table = Listing("conversation", "number", "message_body", title="First rows of the table", **_BOXED)
    for handle, number, body in rows:
        table.row(handle[:8], str(number), body.decode(errors="replace")[:100])
    return table


def _summary_table(summary: Summary) -> Listing:
    table = Listing("what", "how much", title="What happened", show_header=False, **_BOXED)
    for name, value in (
        ("lines in the file", f"{summary.lines:,}"),
        ("sent in this run", f"{summary.sent:,}"),
        ("landed in this run", f"{summary.landed:,}"),
        ("conversations opened, closed", f"{summary.conversations:,}, {summary.closed:,}"),
        ("seconds, with starting Spark", f"{summary.seconds:.1f}"),
        ("messages per second", f"{summary.messages_per_second:,.0f}"),
        ("Delta table", summary.table),
    ):
        table.row(name, value)
    return table
