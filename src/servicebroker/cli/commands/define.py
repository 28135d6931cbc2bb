"""`servicebroker define dump | diff | apply`: a whole application as one TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servicebroker.api.defining import differences, present
from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_document, say_json
from servicebroker.operations.application import written

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="A whole application as one file: types, contracts, queues, rights.",
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The definition, in TOML.")]


@app.command()
def dump(database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Print the objects of a database as a definition."""
    with open_database(instance, database) as opened:
        say_document(written(present(opened)))


@app.command()
def diff(
    file: FileArgument,
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show the changes that apply would make; exit code 1 if there are any."""
    with open_database(instance, database) as opened:
        changes, beyond = differences(opened, file)
    words = [change.words for change in changes]
    if as_json:
        say_json({"changes": words, "not_defined": beyond})
    else:
        for text in words:
            say(text)
        for text in beyond:
            say(f"only in the database: {text}")
        if not words:
            say("Nothing is to be done.")
    raise typer.Exit(1 if words else 0)


@app.command()
def apply(
    file: FileArgument,
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Create and alter the objects that differ, in one transaction. Nothing is dropped."""
    with open_database(instance, database) as opened:
        done = opened.define(file)
    if as_json:
        say_json({"changes": done})
        return
    for words in done or ["Nothing was to be done."]:
        say(words)
