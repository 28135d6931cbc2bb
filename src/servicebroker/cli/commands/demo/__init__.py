"""`servicebroker demo`: sends the lines of a file as messages and writes them to a Delta table, exactly once, in order.

`run.py` is one run, `input_file.py` reads the lines, `shipper.py` sends them, `warehouse.py` writes them through Spark.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json


def demo(
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="The file to send. Default: a readable log in /var/log, else a text of Python.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of the instance, the checkpoint and the table.")
    ] = Path("demo-data"),
    as_json: JsonOption = False,
) -> None:
    """Send every line of a file as a message, and write them to a Delta table through Spark, exactly once."""
    from servicebroker.cli.commands.demo.run import (  # Spark takes a second to import
        run_demo,
        run_on_terminal,
        silent_reporter,
    )

    try:
        if as_json:
            say_json(asdict(run_demo(source, out, silent_reporter())))
        else:
            run_on_terminal(source, out)
    except KeyboardInterrupt:
        say("", "Interrupted. Nothing is lost: run the same command again to go on.", error=True)
        raise typer.Exit(130) from None
