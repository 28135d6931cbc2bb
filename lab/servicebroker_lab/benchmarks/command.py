"""`python -m servicebroker_lab.benchmarks`: run benchmarks and print them as a page or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_document, say_json
from servicebroker_lab import benchmarks


def bench(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Benchmarks by name, or all.")],
    pgmq_sql: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The SQL file of a pgmq release; without it pgmq is left out.")
    ] = None,
    jdbc_jar: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The jar of PostgreSQL's JDBC driver; without it Spark's JDBC is left out."),
    ] = None,
    scale: Annotated[float, typer.Option(help="Times the standard number of messages.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="How often each line is measured; the median counts.")] = 5,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page there, and the chart beside it as .svg.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure against what you would use instead, on the same server in the same run."""

    def progress(sentence: str) -> None:
        say(sentence, error=True)

    report = benchmarks.run(names, pgmq_sql=pgmq_sql, jdbc_jar=jdbc_jar, scale=scale, rounds=rounds, progress=progress)
    if write is not None:
        report.write(write)
    say_json(report.as_json()) if as_json else say_document(report.markdown() + "\n")
