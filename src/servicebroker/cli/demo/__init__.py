"""The main job: the lines of a file become messages, the messages a warehouse table, exactly once, in order."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption


def demo(
    source: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="The file to send. Default: a log of this machine.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the instance, the checkpoint and the table live.")
    ] = Path("demo-data"),
    as_json: JsonOption = False,
) -> None:
    """Send every line of a file as a message and land them in a Delta table through Spark, exactly once."""
    from servicebroker.cli.demo.run import run_demo, say_nothing, show  # Spark takes a second to import

    try:
        if as_json:
            typer.echo(json.dumps(asdict(run_demo(source, out, say_nothing()))))
        else:
            show(source, out)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted. Nothing is lost: run the same command again and it goes on from here.", err=True)
        raise typer.Exit(130) from None
