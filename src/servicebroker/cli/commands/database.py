"""`servicebroker database list | create | alter | drop`: the broker databases of an instance."""

from __future__ import annotations

from typing import Annotated

import typer

from servicebroker.cli.existing_instance import find_database, open_existing
from servicebroker.cli.operation_commands import takes
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.cli.tables import Listing, show_rows, state
from servicebroker.model.errors import BrokerError
from servicebroker.operations.databases import AlterDatabase, DropDatabase
from servicebroker.store.running import execute

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Broker databases: list, create, alter, drop.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the database; case-insensitive.")]

_COLUMNS = "database", "service_broker_guid", "is_broker_enabled", "is_honor_broker_priority_on"


@app.command("list")
def list_(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show the databases, each with the identifier and the state of its broker."""
    with open_existing(instance) as opened, opened.connection() as connection:
        rows = execute(
            connection,
            "database.list",
            "select name, service_broker_guid, is_broker_enabled = 1, is_honor_broker_priority_on = 1 "
            "from sys.databases order by name",
        )
    if as_json:
        say_json({"databases": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]})
        return
    table = Listing("database", "broker identifier", "broker")
    for name, broker, is_enabled, _ in rows:
        table.row(name, broker, state("enabled" if is_enabled else "disabled"))
    show_rows(table, "No databases yet.")


@app.command()
def create(
    name: NameArgument,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Do nothing if the database exists.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """CREATE DATABASE: create a broker database with its broker enabled."""
    with open_existing(instance) as opened:
        try:
            opened.database(name)
        except BrokerError as missing:
            if missing.number != 911:
                raise
            opened.database(name, create=True)
        else:
            if not exist_ok:
                raise BrokerError(1801, name)
    say(f"The database {name} is created.")


@app.command()
@takes(AlterDatabase, options={"enable_broker": "--on", "disable_broker": "--off"})
def alter(operation: AlterDatabase, name: NameArgument, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """ALTER DATABASE SET: change the options given."""
    with open_existing(instance) as opened:
        find_database(opened, name).run(operation)
    say(f"The database {name} is altered.")


@app.command()
@takes(DropDatabase)
def drop(
    operation: DropDatabase,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """DROP DATABASE with its conversations and objects; your own tables stay."""
    with open_existing(instance) as opened:
        find_database(opened, operation.name)
        if not yes:
            typer.confirm(f"All conversations and messages of {operation.name} will be lost. Go on?", abort=True)
        opened.run(operation)
    say(f"The database {operation.name} is dropped.")
