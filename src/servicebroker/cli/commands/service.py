"""`servicebroker service list | create | alter | drop`."""

from __future__ import annotations

import typer

from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.operation_commands import add_command
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say_json
from servicebroker.cli.tables import Listing, show_rows
from servicebroker.engine.catalog.current_application import find_application
from servicebroker.operations.services import AlterService, CreateService, DropService

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Services: their queues and contracts.")


@app.command("list")
def list_(database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show the services of a database, each with its queue and contracts."""
    with open_database(instance, database) as opened:
        services = opened._do(find_application(opened.database_id, opened.name)).services
    if as_json:
        rows = [
            {"service": name, "queue": service.queue, "contracts": service.contracts}
            for name, service in services.items()
        ]
        say_json({"services": rows})
        return
    table = Listing("service", "queue", "contracts")
    for name, service in services.items():
        table.row(name, service.queue, list(service.contracts))
    show_rows(table, "No services yet.")


_OPTIONS = {"contracts": "--contract", "add_contracts": "--add-contract", "drop_contracts": "--drop-contract"}
add_command(app, "create", "service", CreateService, "The service {name} is created.", options=_OPTIONS)
add_command(app, "alter", "service", AlterService, "The service {name} is altered.", options=_OPTIONS)
add_command(app, "drop", "service", DropService, "The service {name} is dropped.")
