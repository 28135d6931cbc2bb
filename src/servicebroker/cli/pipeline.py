"""`servicebroker pipeline`: queues into tables, as a file describes it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from servicebroker.cli.options import JsonOption
from servicebroker.model.errors import InstanceError

if TYPE_CHECKING:
    from servicebroker.pipeline.definition import Pipeline
    from servicebroker.pipeline.run import QueueRun

app = typer.Typer(no_args_is_help=True, help="Queues into tables of a warehouse, through Spark.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file (TOML).")]
LOOK = 0.3  # seconds between looks at the queries


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
        int | None, typer.Option(metavar="PORT", help="Serve metrics for Prometheus on this port of 127.0.0.1.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Land messages in the pipeline's tables, each once."""
    pipeline = _read(file)
    from servicebroker.pipeline.metrics import Metrics, served
    from servicebroker.pipeline.run import running

    console = Console(stderr=True)
    _warn(pipeline, console)
    for table, change in _changes(pipeline):
        console.print(f"The table {table} {change}.", highlight=False)
    metrics = Metrics(pipeline.name)
    runs: list[QueueRun] = []
    stopped = False
    try:
        with (
            served(metrics, metrics_port),
            console.status("Starting Spark") as line,
            running(pipeline, once=once, master=master) as runs,
        ):
            _watch(runs, metrics.show, lambda sentence: line.update(sentence))
        if once:
            for one in runs:
                one.acknowledge_last()
    except KeyboardInterrupt:
        stopped = True
    _tell(runs, as_json)
    if stopped:
        typer.echo("Stopped. Nothing is lost: run the same command again and it goes on from here.", err=True)
        raise typer.Exit(130)


def _watch(runs: list[QueueRun], show: Callable[[list[QueueRun]], None], say: Callable[[str], None]) -> None:
    """Until every query has ended. One that fails ends all.

    Raises:
        InstanceError: with what broke it.
    """
    while True:
        ended = [one.has_ended() for one in runs]
        for one in runs:
            one.update()
        show(runs)
        say("  ".join(f"{one.queue.label}: {one.messages:,}" for one in runs))
        if all(ended):
            return
        time.sleep(LOOK)


def _tell(runs: list[QueueRun], as_json: bool) -> None:
    told = [{"queue": one.queue.label, "batches": one.batches, "messages": one.messages} for one in runs]
    if as_json:
        typer.echo(json.dumps({"queues": told}))
        return
    for one in told:
        typer.echo(f"{one['queue']}: {one['messages']:,} messages in {one['batches']:,} batches")


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Look whether the pipeline could run: the file, Java, each queue, and the tables that are there already."""
    pipeline = _read(file)
    from servicebroker.pipeline.maintenance import status as look
    from servicebroker.pipeline.spark_session import check_java

    check_java()
    changes = _changes(pipeline)
    found = look(pipeline)
    if as_json:
        told = [{"table": table, "change": change} for table, change in changes]
        queues = [queue.queue for queue in found.queues]
        typer.echo(json.dumps({"pipeline": pipeline.name, "queues": queues, "changes": told}))
        return
    _warn(pipeline, Console(stderr=True))
    for rule in pipeline.messages:
        columns = ", ".join(f"{column.name} {column.kind}" for column in rule.decoder().columns)
        typer.echo(f"{rule.message_type} -> {rule.table} ({columns})")
    for table, change in changes:
        typer.echo(f"At its next run the table {table} {change}.")
    typer.echo(f"The pipeline '{pipeline.name}' could run: {len(found.queues)} queues, {len(found.tables)} tables.")


@app.command()
def status(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show the tables, what lies in quarantine and why, and how far behind each queue is."""
    pipeline = _read(file)
    from servicebroker.pipeline.maintenance import status as look

    found = look(pipeline)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "tables": [table._asdict() for table in found.tables],
                    "queues": [queue._asdict() for queue in found.queues],
                    "quarantined": found.quarantined,
                }
            )
        )
        return
    console = Console()
    console.print(_table("table", "rows", "files", "bytes", rows=found.tables))
    shown = [
        (
            queue.queue,
            queue.batch,
            queue.behind["messagesBehind"],
            queue.behind.get("oldestMessageSeconds", ""),
            queue.behind.get("blockingPid", ""),
        )
        for queue in found.queues
    ]
    console.print(_table("queue", "last batch", "behind", "oldest, seconds", "held back by process", rows=shown))
    for reason, count in found.quarantined.items():
        console.print(f"{count:,} in quarantine: {reason}", highlight=False)


@app.command()
def replay(
    file: FileArgument,
    message_type: Annotated[str | None, typer.Option("--type", help="Only messages of this type.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read what lies in quarantine again, by the rules as they are now."""
    pipeline = _read(file)
    from servicebroker.pipeline.maintenance import replay as read_again

    found = read_again(pipeline, message_type)
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in found]))
        return
    for one in found:
        typer.echo(f"{one.message_type}: {one.landed:,} landed, {one.left:,} still in quarantine")


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
        typer.echo(json.dumps(found._asdict()))
        return
    typer.echo(
        f"{found.table}: {found.rows:,} rows, {found.quarantined:,} messages cannot be read and are in quarantine"
    )


@app.command()
def compact(
    file: FileArgument,
    keep_hours: Annotated[
        float,
        typer.Option(help="Keep what younger versions need, since a reader may be at one."),
    ] = 168.0,
    as_json: JsonOption = False,
) -> None:
    """Merge the tables' small files, and remove files that nothing needs any more."""
    pipeline = _read(file)
    from servicebroker.pipeline.maintenance import compact as merge

    found = merge(pipeline, keep_hours)
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in found]))
        return
    for one in found:
        typer.echo(f"{one.table}: {one.merged:,} files merged into {one.written:,}, {one.removed:,} removed")


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
        typer.echo(json.dumps([hour._asdict() for hour in hours], default=str))
        return
    typer.echo(f"{sum(hour.messages for hour in hours):,} messages of {len(hours):,} groups of an hour: {out}")


def _read(file: Path) -> Pipeline:
    try:
        from servicebroker.pipeline.file import read_pipeline
    except ImportError:
        raise InstanceError("The pipeline needs PySpark: pip install 'servicebroker[spark]'.") from None
    return read_pipeline(file)


def _changes(pipeline: Pipeline) -> list[tuple[str, str]]:
    """What a run does to the tables that are there, first of all: a table, and a sentence that goes on from its name.

    Raises:
        InstanceError: one cannot become what its rule says.
    """
    from servicebroker.pipeline.landing import target

    return [
        (table, change) for table in pipeline.table_names() for change in target(pipeline, table).lacks().sentences()
    ]


def _warn(pipeline: Pipeline, console: Console) -> None:
    if pipeline.format == "parquet":
        console.print(
            "Warning: tables of Parquet files show a batch in part while it lands, and a lost checkpoint doubles rows; "
            "Delta does neither.",
            highlight=False,
        )


def _table(*columns: str, rows: Any) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    return table
