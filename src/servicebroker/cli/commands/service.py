"""`servicebroker service list | create | drop`."""

from __future__ import annotations

from typing import Annotated

import typer

from servicebroker.cli.existing import open_database
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.engine.catalog.present import find_present

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Services: their queues, and what they answer to.")

NameArgument = Annotated[str, typer.Argument(metavar="SERVICE", help="Its name, compared byte by byte.")]


@app.command("list")
def list_(database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show the services of a database, each with its queue and contracts."""
    with open_database(instance, database) as opened:
        services = opened._do(find_present(opened.database_id, opened.name)).services
    if as_json:
        told = [{"service": name, "queue": one.queue, "contracts": one.contracts} for name, one in services.items()]
        say_json({"services": told})
        return
    for name, one in services.items():
        say(f"{name} on {one.queue}{': ' if one.contracts else ''}{', '.join(one.contracts)}")
    if not services:
        say("No services yet.")


@app.command()
def create(
    name: NameArgument,
    queue: Annotated[str, typer.Option(help="Its queue.")],
    database: DatabaseOption,
    contract: Annotated[list[str] | None, typer.Option(help="A contract that it answers to; may be repeated.")] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="One of that name may be there.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """CREATE SERVICE."""
    with open_database(instance, database) as opened:
        opened.create_service(name, queue, contract or [], exist_ok=exist_ok)
    say(f"The service {name} is there.")


@app.command()
def drop(name: NameArgument, database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """DROP SERVICE with its messages and conversations; their other sides get an Error."""
    with open_database(instance, database) as opened:
        opened.drop_service(name)
    say(f"The service {name} is dropped.")
