"""`servicebroker pipeline`: runs and operates a pipeline, which writes the messages of queues to tables.

The pipeline file (TOML) names the queues, the tables, and a rule for each message type. Every message is also written
unchanged to the raw table ("bronze"). Messages that their rule cannot read are in quarantine, with the reason.
"""

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
from servicebroker.cli.http_server import serve_wsgi
from servicebroker.cli.log import log_to_standard_error
from servicebroker.cli.options import JsonOption, require_finite
from servicebroker.cli.output import line, mask_with, say, say_document, say_json
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.wording import counted
from servicebroker.overriding import override

if TYPE_CHECKING:
    from servicebroker.pipeline.definition import MessageRule, Pipeline
    from servicebroker.pipeline.queue_run import QueueRun
    from servicebroker.pipeline.run import Run
    from servicebroker.pipeline.sinks.maintenance import Status

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Pipelines: write queues to tables of a warehouse, through Spark."
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file (TOML).")]
WATCH_INTERVAL_S = 2.0  # the pause between two outputs of status --watch

_log = logging.getLogger("servicebroker.pipeline")


@app.command()
def run(
    file: FileArgument,
    once: Annotated[
        bool,
        typer.Option("--once/--continuous", help="Write the waiting messages, then end; or run until Ctrl-C."),
    ] = False,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="The master URL of Spark: local[4], spark://host:7077 ...")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A setting of Spark, such as spark.executor.memory=4g; may be repeated."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve metrics for Prometheus on this port.")
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(metavar="HOST", help="The address on which --metrics-port listens; 0.0.0.0 for all interfaces."),
    ] = "127.0.0.1",
    fails_on_quarantine: Annotated[
        bool,
        typer.Option("--fail-on-quarantine", help="Exit code 3 if a message of this run goes into quarantine."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            callback=require_finite,
            help="With --once: the time to wait for open transactions that hold back messages.",
        ),
    ] = 30.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON object on standard output, the log as JSON lines."),
    ] = False,
) -> None:
    """Write messages to the pipeline's tables, each exactly once.

    In a terminal a status line shows the progress. Otherwise each start, batch, restart and end is logged.
    Exit code 3: more messages are in quarantine than the limits allow. 4: `--once` ended before all messages, because
    an older transaction was still open.
    """
    config = _spark_settings(conf or [])
    console = Terminal(error=True)
    has_status_line = console.is_terminal and not as_json
    if has_status_line:
        _log_above_status(console)
    else:
        log_to_standard_error(as_json=as_json)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # we report a dead Java process; py4j's tracebacks add nothing
    pipeline = _read(file)
    from prometheus_client import make_wsgi_app

    from servicebroker.pipeline.metrics import Metrics
    from servicebroker.pipeline.run import POLL_INTERVAL_S, Run, running

    stop_requested = threading.Event()
    shutdown.at_signal(stop_requested.set, shutdown.kill_all)
    print_line = console.print if has_status_line else _log.info
    _warn(pipeline, print_line)
    for table, change in _schema_changes(pipeline):
        print_line(line(f"The table {table} {change}."))
    metrics = Metrics(pipeline.name)
    names = ", ".join(queue.label for queue in pipeline.queues)
    _log.info(
        "The pipeline '%s' begins, process %d: %s.",
        *(pipeline.name, os.getpid(), names),
        extra={"fields": {"event": "run begins", "pipeline": pipeline.name, "process": os.getpid()}},
    )
    pipeline_run = Run([])
    try:
        with (
            nullcontext()
            if metrics_port is None
            else serve_wsgi(make_wsgi_app(metrics.registry), metrics_host, metrics_port),
            console.status("Starting Spark") if has_status_line else nullcontext() as status_line,
            running(
                pipeline, once=once, master=master, fails_on_quarantine=fails_on_quarantine, wait_s=wait, config=config
            ) as pipeline_run,
        ):
            metrics.queues = pipeline_run.queues
            while not pipeline_run.is_over and not stop_requested.is_set():
                pipeline_run.poll()
                if status_line is not None:
                    progress = "  ".join(_progress_text(queue_run) for queue_run in pipeline_run.queues)
                    status_line.update(Text(line(progress)))
                stop_requested.wait(POLL_INTERVAL_S)
            if status_line is not None:
                status_line.update("Ending")
            pipeline_run.check()
    finally:
        _log_totals(pipeline, pipeline_run)
        _print_result(pipeline_run.queues, as_json)
    if stop_requested.is_set():
        print_line("Stopped. Nothing is lost: run the same command again to go on.")
        raise typer.Exit(130)


def _spark_settings(conf: list[str]) -> dict[str, str]:
    """Return the settings of Spark in the values of --conf.

    Raises:
        typer.BadParameter: a value is not KEY=VALUE, or not a Spark setting.
    """
    settings = {}
    for setting in conf:
        key, is_pair, value = setting.partition("=")
        if not is_pair or not key.startswith("spark."):
            raise typer.BadParameter(
                f"'{setting}' is not a Spark setting: write spark.KEY=VALUE.", param_hint="'--conf'"
            )
        settings[key] = value
    return settings


def _log_above_status(console: Terminal) -> None:
    """Print the log above the status line. Batches without quarantine are left out, since that line counts them."""

    class Above(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno > logging.INFO or getattr(record, "fields", {}).get("event") != "batch":
                console.print(line(record.getMessage()))

    logging.basicConfig(handlers=[Above()], level=logging.WARNING, force=True)
    logging.getLogger("servicebroker").setLevel(logging.INFO)


def _progress_text(queue_run: QueueRun) -> str:
    """Return the text of a queue in the status line."""
    behind = queue_run.behind.get("messagesBehind", 0)
    quarantined = f", {queue_run.quarantined.total():,} in quarantine" if queue_run.quarantined else ""
    progress = f"{queue_run.label}: {queue_run.messages:,} messages{quarantined}, {behind:,} behind"
    return progress if queue_run.state == "runs" else f"{progress} ({queue_run.state})"


def _log_totals(pipeline: Pipeline, pipeline_run: Run) -> None:
    kinds = ("batches", "messages", "bytes", "quarantined", "restarts")
    totals = {key: sum(queue_run.totals()[key] for queue_run in pipeline_run.queues) for key in kinds}
    _log.info(
        "The pipeline '%s' ends: %s in %s, %s in quarantine, %s.",
        pipeline.name,
        counted(totals["messages"], "message"),
        counted(totals["batches"], "batch", "batches"),
        f"{totals['quarantined']:,}",
        counted(totals["restarts"], "restart"),
        extra={"fields": {"event": "run ends", "pipeline": pipeline.name, **totals}},
    )


def _print_result(runs: list[QueueRun], as_json: bool) -> None:
    if as_json:
        queues = [
            {"queue": queue_run.label, **queue_run.counts(), "state": queue_run.state, "reason": queue_run.reason}
            for queue_run in runs
        ]
        say_json({"queues": queues})
        return
    for queue_run in runs:
        restarts = f", {counted(queue_run.restarts, 'restart')}" if queue_run.restarts else ""
        say(f"{queue_run.label}: {queue_run.describe_totals()}{restarts}")


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check that the pipeline can run: the file, Java, schema registries, queues, and existing tables."""
    pipeline = _read(file)
    from servicebroker.pipeline.late_rules import find_late
    from servicebroker.pipeline.schema_registry import check_registry
    from servicebroker.pipeline.sinks.maintenance import status as read_status
    from servicebroker.pipeline.sinks.maintenance import unknown_types
    from servicebroker.pipeline.spark_session import check_java, check_modules

    check_java()
    check_modules(pipeline.format)
    for url in {rule.registry for rule in pipeline.messages} - {""}:
        check_registry(url)
    changes = _schema_changes(pipeline)
    pipeline_status = read_status(pipeline)
    problems = [queue.problem for queue in pipeline_status.queues if queue.problem]
    if problems:
        raise InstanceError(" ".join(problems))
    unknown = unknown_types(pipeline)
    late_messages = find_late(pipeline)
    if as_json:
        say_json(
            {
                "pipeline": pipeline.name,
                "queues": [queue.queue for queue in pipeline_status.queues],
                "changes": [{"table": table, "change": change} for table, change in changes],
                "unknown_types": unknown,
                "late": [late_type._asdict() for late_type in late_messages],
            }
        )
        return
    _warn(pipeline, partial(say, error=True))
    for message_type in unknown:
        say(
            f"Warning: no database of the queues has the message type '{message_type}', so its rule reads nothing.",
            error=True,
        )
    for rule in pipeline.messages:
        say(f"{rule.message_type} -> {rule.table} ({_describe_rule(pipeline, rule)})")
    for table, change in changes:
        say(f"At the next run the table {table} {change}.")
    for late_type in late_messages:
        count = counted(late_type.messages, "older message", "older messages")
        say(
            f"The table {late_type.table} lacks {count} of the type '{late_type.message_type}': they were written to "
            "the raw table ('bronze') before the type had a rule. To add them: servicebroker pipeline replay."
        )
    size = f"{counted(len(pipeline_status.queues), 'queue')}, {counted(len(pipeline_status.tables), 'table')}"
    say(f"The pipeline '{pipeline.name}' can run: {size}.")


def _describe_rule(pipeline: Pipeline, rule: MessageRule) -> str:
    """Return the columns of the rows, and the messages that delete by the key."""
    columns = ", ".join(f"{column.name} {column.kind}" for column in rule.decoder().columns)
    row_rule = pipeline.row_rule(rule.table)
    if rule.delete is None or row_rule is None:
        return columns
    deletes = f"{rule.delete} deletes by {', '.join(row_rule.key)}"
    return f"{columns}; {deletes}" if rule.has_rows else deletes


@app.command("test")
def try_rules(
    file: FileArgument,
    examples: Annotated[
        list[Path],
        typer.Argument(
            metavar="EXAMPLE...", help="Files of examples (.toml); with --type files that each contain one body."
        ),
    ],
    message_type: Annotated[str | None, typer.Option("--type", help="The message type of the bodies.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Apply the rules to example messages, and print the rows and the unreadable messages. Needs no Spark, no server.

    Exit code 1 if the result of an example is not the one that its file expects.
    """
    from servicebroker.pipeline.rules.trial import Example, find_differences, read_examples, try_message
    from servicebroker.pipeline.variables import Placeholders

    pipeline = _read(file, Placeholders(os.environ))
    if message_type is None:
        trials = [example for path in examples for example in read_examples(path)]
    else:
        trials = [Example(number, str(path), message_type, read_file(path)) for number, path in enumerate(examples)]
    results, failures = [], 0
    for example in trials:
        trial = try_message(pipeline, example.message_type, example.body)
        differences = list(find_differences(pipeline, example, trial))
        failures += bool(differences)
        results.append({"example": example.name, **trial.to_json(), "differences": differences})
        if not as_json:
            say(f"{example.name}: {trial}")
            say(*(f"  {example.name} {difference}." for difference in differences), error=True) if differences else None
    if as_json:
        say_json({"examples": results})
    expecting = sum(example.has_expectation for example in trials)
    if failures:
        raise InstanceError(f"{failures:,} of {counted(expecting, 'example')} did not give the expected result.")
    if not as_json:
        say(f"{counted(len(trials), 'example')}, {expecting:,} of them as expected.")


@app.command()
def infer(
    bodies: Annotated[
        list[Path], typer.Argument(metavar="BODY...", help="Files that each contain one sample body, in JSON or XML.")
    ],
    message_type: Annotated[str, typer.Option("--type", help="The message type of the rule.")],
    table: Annotated[str, typer.Option(help="The table of the rule.")] = "",
    lines: Annotated[bool, typer.Option("--lines", help="Each line of a file is a body.")] = False,
) -> None:
    """Print a first rule for a pipeline file, with the columns of sample bodies.

    The rule can read all samples. Check its types before you use it: other bodies may have other values.
    """
    from servicebroker.pipeline.rules.inference import infer_rule

    contents = [read_file(path) for path in bodies]
    samples = [line for content in contents for line in content.splitlines() if line.strip()] if lines else contents
    say_document(infer_rule(message_type, table, samples))


@app.command()
def status(
    file: FileArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the last run, the tables, the messages in quarantine with the reasons, and how far behind each queue is.

    Exit code 1 if a queue cannot be reached; the other queues are shown.
    """
    pipeline = _read(file)
    from servicebroker.pipeline.sinks.maintenance import status as read_status

    if not watch:
        pipeline_status = read_status(pipeline)
        _print_status(pipeline, pipeline_status, as_json=as_json)
        if any(queue.problem for queue in pipeline_status.queues):
            raise typer.Exit(1)
        return
    with suppress(KeyboardInterrupt):
        if as_json or not Terminal().is_terminal:
            while True:
                _print_status(pipeline, read_status(pipeline), as_json=as_json)
                time.sleep(WATCH_INTERVAL_S)
        screen = _draw_status(pipeline, read_status(pipeline))
        with Live(screen, console=Terminal(), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_INTERVAL_S)
                live.update(_draw_status(pipeline, read_status(pipeline)), refresh=True)


def _print_status(pipeline: Pipeline, pipeline_status: Status, *, as_json: bool) -> None:
    if as_json:
        say_json(_status_to_json(pipeline, pipeline_status))
    else:
        Terminal().print(_draw_status(pipeline, pipeline_status))


def _status_to_json(pipeline: Pipeline, pipeline_status: Status) -> dict[str, Any]:
    from servicebroker.pipeline.last_run import read_last_run

    return {
        "run": read_last_run(pipeline),
        "tables": [table._asdict() for table in pipeline_status.tables],
        "queues": [queue._asdict() for queue in pipeline_status.queues],
        "quarantined": {": ".join(pair): count for pair, count in pipeline_status.quarantined.items()},
    }


def _draw_status(pipeline: Pipeline, pipeline_status: Status) -> Group:
    """Return the lines and tables of the status for a terminal."""
    from servicebroker.pipeline.last_run import describe, read_last_run

    queue_rows = [
        (
            queue.queue,
            queue.batch if queue.batch >= 0 else "",  # -1 before the first batch
            queue.behind.get("messagesBehind", ""),
            queue.behind.get("oldestMessageSeconds", ""),
            queue.behind.get("blockingPid", ""),
        )
        for queue in pipeline_status.queues
    ]
    quarantined = pipeline_status.quarantined.items()
    return Group(
        *(Text(line(sentence)) for sentence in describe(read_last_run(pipeline))),
        _table("table", "rows", "files", "bytes", rows=pipeline_status.tables),
        _table("queue", "last batch", "behind", "oldest, seconds", "held back by process", rows=queue_rows),
        *(Text(line(f"{queue.queue}: {queue.problem}")) for queue in pipeline_status.queues if queue.problem),
        *(
            Text(line(f"{count:,} in quarantine: {': '.join(type_and_reason)}"))
            for type_and_reason, count in quarantined
        ),
    )


@app.command()
def replay(
    file: FileArgument,
    message_type: Annotated[str | None, typer.Option("--type", help="Only messages of this type.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Apply the current rules to the messages in quarantine.

    They are also applied to messages that were written to the raw table ("bronze") before their type had a rule.
    """
    pipeline = _read(file)
    from servicebroker.pipeline.late_rules import replay as replay_messages

    replayed_types = replay_messages(pipeline, message_type)
    if as_json:
        say_json({"message_types": [replayed._asdict() for replayed in replayed_types]})
        return
    for replayed in replayed_types:
        say(f"{replayed.message_type}: {replayed.written:,} written, {replayed.remaining:,} still in quarantine")


@app.command()
def rebuild(
    file: FileArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table of a rule.")],
    as_json: JsonOption = False,
) -> None:
    """Rebuild a table from the raw table ("bronze") with its current rule."""
    pipeline = _read(file)
    from servicebroker.pipeline.rebuild import rebuild as rebuild_table

    rebuilt = rebuild_table(pipeline, table)
    if as_json:
        say_json(rebuilt._asdict())
        return
    say(f"{rebuilt.table}: {rebuilt.rows:,} rows, {rebuilt.quarantined:,} unreadable messages in quarantine")


@app.command()
def compact(
    file: FileArgument,
    keep_hours: Annotated[
        float,
        typer.Option(
            metavar="HOURS",
            callback=require_finite,
            help="Keep the files of table versions younger than this: a query may still read them.",
        ),
    ] = 168.0,
    as_json: JsonOption = False,
) -> None:
    """Merge small files of the tables, and remove files that are no longer needed."""
    pipeline = _read(file)
    from servicebroker.pipeline.sinks.maintenance import compact as compact_tables

    compacted_tables = compact_tables(pipeline, keep_hours)
    if as_json:
        say_json({"tables": [compacted._asdict() for compacted in compacted_tables]})
        return
    for compacted in compacted_tables:
        say(
            f"{compacted.table}: {compacted.merged:,} files merged into {compacted.written:,}, "
            f"{compacted.removed:,} removed"
        )


@app.command()
def report(
    file: FileArgument,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    as_json: JsonOption = False,
) -> None:
    """Write messages, bytes, latencies and errors by hour to the table `analytics`, and draw them on an HTML page."""
    pipeline = _read(file)
    from servicebroker.pipeline.analysis import analyze
    from servicebroker.pipeline.report import report as draw_page

    hours = analyze(pipeline)
    out.write_text(draw_page(pipeline.name, hours), encoding="utf-8")
    if as_json:
        say_json({"hours": [hour._asdict() for hour in hours]})
        return
    say(f"{sum(hour.messages for hour in hours):,} messages of {len(hours):,} groups of an hour: {out}")


def _read(file: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    try:
        from servicebroker.pipeline.file import read_pipeline
    except ImportError:
        raise InstanceError("The pipeline needs PySpark: pip install 'servicebroker[spark]'.") from None
    from servicebroker.pipeline.variables import mask_values

    mask_with(mask_values)
    return read_pipeline(file, environment)


def _schema_changes(pipeline: Pipeline) -> list[tuple[str, str]]:
    """Return (table, predicate) for each schema change that a run makes before it starts.

    "gets the column x" is a predicate: the table's name goes before it.

    Raises:
        InstanceError: a table cannot be changed as its rule requires.
    """
    from servicebroker.pipeline.sinks.target import target

    return [
        (table, change)
        for table in pipeline.table_names()
        for change in target(pipeline, table).plan_schema_change().sentences()
    ]


def _warn(pipeline: Pipeline, print_line: Callable[[str], None]) -> None:
    if pipeline.format == "parquet":
        print_line(
            "Warning: readers of Parquet tables see a part of a batch while it is written, and a lost checkpoint "
            "duplicates rows. Delta has neither problem.",
        )


def _table(*columns: str, rows: Any) -> Listing:
    table = Listing(*columns, right=range(1, len(columns)))
    for row in rows:
        table.row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    return table
