"""`servicebroker define dump | diff | apply`: the objects of an application in one TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servicebroker.api.defining import current_definition, differences
from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_document, say_json
from servicebroker.operations.application import to_toml as to_toml

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="A whole application as one file: types, contracts, queues, rights.",
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The definition, in TOML.")]


@app.command()
def dump(database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Print the objects of a database as a definition in TOML, as `define apply` reads it."""
    with open_database(instance, database) as opened:
        say_document(to_toml(current_definition(opened)))


@app.command()
def diff(
    file: FileArgument,
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show the changes that apply would make; exit code 1 if there are any."""
    with open_database(instance, database) as opened:
        changes, undefined = differences(opened, file)
    sentences = [change.words for change in changes]
    if as_json:
        say_json({"changes": sentences, "not_defined": undefined})
    else:
        for sentence in sentences:
            say(sentence)
        for name in undefined:
            say(f"only in the database: {name}")
        if not sentences:
            say("No changes.")
    raise typer.Exit(1 if sentences else 0)


@app.command()
def apply(
    file: FileArgument,
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Create and alter the objects that differ, in one transaction. Nothing is dropped."""
    with open_database(instance, database) as opened:
        changes = opened.define(file)
    if as_json:
        say_json({"changes": changes})
        return
    for sentence in changes or ["No changes."]:
        say(sentence)
