"""`servicebroker pipeline`: queues into tables, as a file describes it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from servicebroker.cli import shutdown
from servicebroker.cli.http_server import served
from servicebroker.cli.log import log_to_standard_error
from servicebroker.cli.options import JsonOption, finite
from servicebroker.cli.output import line, mask_with, say, say_document, say_json
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.wording import counted

if TYPE_CHECKING:
    from servicebroker.pipeline.definition import Pipeline
    from servicebroker.pipeline.queue_run import QueueRun
    from servicebroker.pipeline.run import Run
    from servicebroker.pipeline.sinks.maintenance import Status

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Pipelines: write queues to tables of a warehouse, through Spark."
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file (TOML).")]
WATCH_INTERVAL_S = 2.0  # of status --watch

_log = logging.getLogger("servicebroker.pipeline")


@app.command()
def run(
    file: FileArgument,
    once: Annotated[
        bool, typer.Option("--once/--continuous", help="Read what is there and end, or go on until Ctrl-C.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs, as it names it: local[4], spark://host:7077 ...")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve metrics for Prometheus on this port.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address of that port; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1",
    fails_on_quarantine: Annotated[
        bool,
        typer.Option("--fail-on-quarantine", help="Exit code 3 when a message of this run went into quarantine."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            callback=finite,
            help="With --once: how long to wait for open transactions that hold back messages.",
        ),
    ] = 30.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON object on standard output, the log as JSON lines."),
    ] = False,
) -> None:
    """Land messages in the pipeline's tables, each once.

    A terminal shows a live line; elsewhere each start, batch, restart and end is a line of the log. Exit code 3 when
    more messages went into quarantine than the limits allow, 4 when an open transaction held back committed messages.
    """
    console = Terminal(error=True)
    shows = console.is_terminal and not as_json
    if shows:
        _log_above(console)
    else:
        log_to_standard_error(as_json=as_json)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # of a Java that has ended we tell ourselves
    pipeline = _read(file)
    from prometheus_client import make_wsgi_app

    from servicebroker.pipeline.metrics import Metrics
    from servicebroker.pipeline.run import POLL_INTERVAL_S, Run, running

    over = threading.Event()
    shutdown.at_signal(over.set, shutdown.kill_all)
    tell = console.print if shows else _log.info
    _warn(pipeline, tell)
    for table, change in _changes(pipeline):
        tell(line(f"The table {table} {change}."))
    metrics = Metrics(pipeline.name)
    names = ", ".join(queue.label for queue in pipeline.queues)
    _log.info(
        "The pipeline '%s' begins, process %d: %s.",
        *(pipeline.name, os.getpid(), names),
        extra={"fields": {"event": "run begins", "pipeline": pipeline.name, "process": os.getpid()}},
    )
    found = Run([])
    try:
        with (
            nullcontext()
            if metrics_port is None
            else served(make_wsgi_app(metrics.registry), metrics_host, metrics_port),
            console.status("Starting Spark") if shows else nullcontext() as live,
            running(pipeline, once=once, master=master, fails_on_quarantine=fails_on_quarantine, wait_s=wait) as found,
        ):
            metrics.queues = found.queues
            while not found.is_over and not over.is_set():
                found.poll()
                if live is not None:
                    live.update(Text(line("  ".join(_shown(queue_run) for queue_run in found.queues))))
                over.wait(POLL_INTERVAL_S)
            if live is not None:
                live.update("Ending")
            found.check()
    finally:
        _told_end(pipeline, found)
        _tell(found.queues, as_json)
    if over.is_set():
        tell("Stopped. Nothing is lost: run the same command again and it goes on from here.")
        raise typer.Exit(130)


def _log_above(console: Terminal) -> None:
    """Print the log of the pipeline above the live line, except batches without quarantine, which that line shows."""

    class Above(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno > logging.INFO or getattr(record, "fields", {}).get("event") != "batch":
                console.print(line(record.getMessage()))

    logging.basicConfig(handlers=[Above()], level=logging.WARNING, force=True)
    logging.getLogger("servicebroker").setLevel(logging.INFO)


def _shown(queue_run: QueueRun) -> str:
    """A queue in the live line."""
    behind = queue_run.behind.get("messagesBehind", 0)
    bad = f", {queue_run.quarantined.total():,} in quarantine" if queue_run.quarantined else ""
    told = f"{queue_run.label}: {queue_run.messages:,} messages{bad}, {behind:,} behind"
    return told if queue_run.state == "runs" else f"{told} ({queue_run.state})"


def _told_end(pipeline: Pipeline, found: Run) -> None:
    kinds = ("batches", "messages", "bytes", "quarantined", "restarts")
    totals = {key: sum(queue_run.totals()[key] for queue_run in found.queues) for key in kinds}
    _log.info(
        "The pipeline '%s' ends: %s in %s, %s in quarantine, %s.",
        pipeline.name,
        counted(totals["messages"], "message"),
        counted(totals["batches"], "batch", "batches"),
        f"{totals['quarantined']:,}",
        counted(totals["restarts"], "restart"),
        extra={"fields": {"event": "run ends", "pipeline": pipeline.name, **totals}},
    )


def _tell(runs: list[QueueRun], as_json: bool) -> None:
    if as_json:
        told = [
            {"queue": queue_run.label, **queue_run.counts(), "state": queue_run.state, "reason": queue_run.reason}
            for queue_run in runs
        ]
        say_json({"queues": told})
        return
    for queue_run in runs:
        again = f", {counted(queue_run.restarts, 'restart')}" if queue_run.restarts else ""
        say(f"{queue_run.label}: {queue_run.describe_landed()}{again}")


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Look whether the pipeline could run: the file, Java, schema registries, queues, and the tables that are there."""
    pipeline = _read(file)
    from servicebroker.pipeline.late_rules import find_late
    from servicebroker.pipeline.schema_registry import check_registry
    from servicebroker.pipeline.sinks.maintenance import status as look
    from servicebroker.pipeline.sinks.maintenance import unknown_types
    from servicebroker.pipeline.spark_session import check_java, check_modules

    check_java()
    check_modules(pipeline.format)
    for url in {rule.registry for rule in pipeline.messages} - {""}:
        check_registry(url)
    changes = _changes(pipeline)
    found = look(pipeline)
    problems = [queue.problem for queue in found.queues if queue.problem]
    if problems:
        raise InstanceError(" ".join(problems))
    unknown = unknown_types(pipeline)
    late_messages = find_late(pipeline)
    if as_json:
        told = [{"table": table, "change": change} for table, change in changes]
        queues = [queue.queue for queue in found.queues]
        late = [late_type._asdict() for late_type in late_messages]
        say_json({"pipeline": pipeline.name, "queues": queues, "changes": told, "unknown_types": unknown, "late": late})
        return
    _warn(pipeline, partial(say, error=True))
    for message_type in unknown:
        say(
            f"Warning: no database of its queues has the message type '{message_type}': its rule reads nothing.",
            error=True,
        )
    for rule in pipeline.messages:
        columns = ", ".join(f"{column.name} {column.kind}" for column in rule.decoder().columns)
        say(f"{rule.message_type} -> {rule.table} ({columns})")
    for table, change in changes:
        say(f"At its next run the table {table} {change}.")
    for late_type in late_messages:
        count = counted(late_type.messages, "older message", "older messages")
        say(
            f"The table {late_type.table} lacks {count} of the type '{late_type.message_type}', which landed in bronze "
            "before the rule: a run leaves them there, and 'servicebroker pipeline replay' takes them."
        )
    size = f"{counted(len(found.queues), 'queue')}, {counted(len(found.tables), 'table')}"
    say(f"The pipeline '{pipeline.name}' could run: {size}.")


@app.command("test")
def try_rules(
    file: FileArgument,
    examples: Annotated[
        list[Path],
        typer.Argument(
            metavar="EXAMPLE...", help="Files of examples (.toml); with --type files that each hold a body."
        ),
    ],
    message_type: Annotated[str | None, typer.Option("--type", help="The message type of the bodies.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Let the rules read example messages, without Spark and without a server: say rows and quarantine.

    Exit code 1 if an example becomes something else than its file expects.
    """
    from servicebroker.pipeline.rules.trial import Example, find_differences, read_examples, try_message
    from servicebroker.pipeline.variables import Placeholders

    pipeline = _read(file, Placeholders(os.environ))
    if message_type is None:
        given = [example for path in examples for example in read_examples(path)]
    else:
        given = [Example(number, str(path), message_type, read_file(path)) for number, path in enumerate(examples)]
    told, failures = [], 0
    for example in given:
        trial = try_message(pipeline, example.message_type, example.body)
        differences = list(find_differences(pipeline, example, trial))
        failures += bool(differences)
        told.append({"example": example.name, **trial.to_json(), "differences": differences})
        if not as_json:
            say(f"{example.name}: {trial}")
            say(*(f"  {example.name} {difference}." for difference in differences), error=True) if differences else None
    if as_json:
        say_json({"examples": told})
    expecting = sum(example.has_expectation for example in given)
    if failures:
        raise InstanceError(f"{counted(failures, 'example')} of {expecting} became something else than expected.")
    if not as_json:
        say(f"{counted(len(given), 'example')}, {expecting:,} of them as expected.")


@app.command()
def infer(
    bodies: Annotated[
        list[Path], typer.Argument(metavar="BODY...", help="Files that each hold a sample body, in JSON or XML.")
    ],
    message_type: Annotated[str, typer.Option("--type", help="The message type of the rule.")],
    table: Annotated[str, typer.Option(help="The table of the rule.")] = "",
    lines: Annotated[bool, typer.Option("--lines", help="Each line of a file is a body.")] = False,
) -> None:
    """Print a first rule for a pipeline file, with the columns that sample bodies have.

    The rule reads every sample. Look at its types before you use it: a sample shows no other values.
    """
    from servicebroker.pipeline.rules.inference import infer_rule

    contents = [read_file(path) for path in bodies]
    samples = [line for content in contents for line in content.splitlines() if line.strip()] if lines else contents
    say_document(infer_rule(message_type, table, samples))


@app.command()
def status(
    file: FileArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the last run, the tables, what lies in quarantine and why, and how far behind each queue is.

    Exit code 1 if a queue cannot be reached; the rest is shown.
    """
    pipeline = _read(file)
    from servicebroker.pipeline.sinks.maintenance import status as look

    if not watch:
        found = look(pipeline)
        say_json(_status_told(pipeline, found)) if as_json else Terminal().print(_status(pipeline, found))
        if any(queue.problem for queue in found.queues):
            raise typer.Exit(1)
        return
    with suppress(KeyboardInterrupt):
        if as_json or not Terminal().is_terminal:
            while True:
                found = look(pipeline)
                say_json(_status_told(pipeline, found)) if as_json else Terminal().print(_status(pipeline, found))
                time.sleep(WATCH_INTERVAL_S)
        with Live(_status(pipeline, look(pipeline)), console=Terminal(), screen=True, auto_refresh=False) as page:
            while True:
                time.sleep(WATCH_INTERVAL_S)
                page.update(_status(pipeline, look(pipeline)), refresh=True)


def _status_told(pipeline: Pipeline, found: Status) -> dict[str, Any]:
    from servicebroker.pipeline.last_run import read_last_run

    return {
        "run": read_last_run(pipeline),
        "tables": [table._asdict() for table in found.tables],
        "queues": [queue._asdict() for queue in found.queues],
        "quarantined": {": ".join(pair): count for pair, count in found.quarantined.items()},
    }


def _status(pipeline: Pipeline, found: Status) -> Group:
    from servicebroker.pipeline.last_run import describe, read_last_run

    shown = [
        (
            queue.queue,
            queue.batch if queue.batch >= 0 else "",  # -1 before the first one
            queue.behind.get("messagesBehind", ""),
            queue.behind.get("oldestMessageSeconds", ""),
            queue.behind.get("blockingPid", ""),
        )
        for queue in found.queues
    ]
    return Group(
        *(Text(line(words)) for words in describe(read_last_run(pipeline))),
        _table("table", "rows", "files", "bytes", rows=found.tables),
        _table("queue", "last batch", "behind", "oldest, seconds", "held back by process", rows=shown),
        *(Text(line(f"{queue.queue}: {queue.problem}")) for queue in found.queues if queue.problem),
        *(Text(line(f"{count:,} in quarantine: {': '.join(pair)}")) for pair, count in found.quarantined.items()),
    )


@app.command()
def replay(
    file: FileArgument,
    message_type: Annotated[str | None, typer.Option("--type", help="Only messages of this type.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read what lies in quarantine again, by the rules as they are now.

    Messages that landed in bronze before their type had a rule are read too.
    """
    pipeline = _read(file)
    from servicebroker.pipeline.late_rules import replay as read_again

    found = read_again(pipeline, message_type)
    if as_json:
        say_json({"message_types": [replayed._asdict() for replayed in found]})
        return
    for replayed in found:
        say(f"{replayed.message_type}: {replayed.written:,} written, {replayed.remaining:,} still in quarantine")


@app.command()
def rebuild(
    file: FileArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table of one of its rules.")],
    as_json: JsonOption = False,
) -> None:
    """Make a table anew from bronze, by its rule as it is now."""
    pipeline = _read(file)
    from servicebroker.pipeline.rebuild import rebuild as make_anew

    found = make_anew(pipeline, table)
    if as_json:
        say_json(found._asdict())
        return
    say(f"{found.table}: {found.rows:,} rows, {found.quarantined:,} messages cannot be read and are in quarantine")


@app.command()
def compact(
    file: FileArgument,
    keep_hours: Annotated[
        float,
        typer.Option(callback=finite, help="Keep what younger versions need, since a reader may be at one."),
    ] = 168.0,
    as_json: JsonOption = False,
) -> None:
    """Merge the tables' small files, and remove files that nothing needs any more."""
    pipeline = _read(file)
    from servicebroker.pipeline.sinks.maintenance import compact as merge

    found = merge(pipeline, keep_hours)
    if as_json:
        say_json({"tables": [compacted._asdict() for compacted in found]})
        return
    for compacted in found:
        say(
            f"{compacted.table}: {compacted.merged:,} files merged into {compacted.written:,}, "
            f"{compacted.removed:,} removed"
        )


@app.command()
def report(
    file: FileArgument,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the page goes.")] = Path("report.html"),
    as_json: JsonOption = False,
) -> None:
    """Count messages, bytes, latencies and errors by hour into the table `analytics`, and draw them on a page."""
    pipeline = _read(file)
    from servicebroker.pipeline.analysis import analyze
    from servicebroker.pipeline.report import report as page

    hours = analyze(pipeline)
    out.write_text(page(pipeline.name, hours), encoding="utf-8")
    if as_json:
        say_json({"hours": [hour._asdict() for hour in hours]})
        return
    say(f"{sum(hour.messages for hour in hours):,} messages of {len(hours):,} groups of an hour: {out}")


def _read(file: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    try:
        from servicebroker.pipeline.file import read_pipeline
    except ImportError:
        raise InstanceError("The pipeline needs PySpark: pip install 'servicebroker[spark]'.") from None
    from servicebroker.pipeline.variables import masked

    mask_with(masked)
    return read_pipeline(file, environment)


def _changes(pipeline: Pipeline) -> list[tuple[str, str]]:
    """Return the changes that a run makes to existing tables first: a table, and a sentence that follows its name.

    Raises:
        InstanceError: one cannot become what its rule says.
    """
    from servicebroker.pipeline.sinks.target import target

    return [
        (table, change)
        for table in pipeline.table_names()
        for change in target(pipeline, table).plan_schema_change().sentences()
    ]


def _warn(pipeline: Pipeline, tell: Callable[[str], None]) -> None:
    if pipeline.format == "parquet":
        tell(
            "Warning: tables of Parquet files show a batch in part while it lands, and a lost checkpoint doubles rows; "
            "Delta does neither.",
        )


def _table(*columns: str, rows: Any) -> Listing:
    table = Listing(*columns, right=range(1, len(columns)))
    for row in rows:
        table.row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    return table
