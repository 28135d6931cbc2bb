"""The main job: the lines of a file become messages, the messages a warehouse table, exactly once, in order."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json


def demo(
    source: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="The file to send. Default: a log of this machine.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the instance, the checkpoint and the table live.")
    ] = Path("demo-data"),
    as_json: JsonOption = False,
) -> None:
    """Send every line of a file as a message, and write them to a Delta table through Spark, exactly once."""
    from servicebroker.cli.commands.demo.run import run_demo, say_nothing, show  # Spark takes a second to import

    try:
        if as_json:
            say_json(asdict(run_demo(source, out, say_nothing())))
        else:
            show(source, out)
    except KeyboardInterrupt:
        say("", "Interrupted. Nothing is lost: run the same command again and it goes on from here.", error=True)
        raise typer.Exit(130) from None
