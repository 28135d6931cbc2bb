"""`servicebroker route list | create | alter | drop | explain`: the routes of an instance."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from servicebroker.cli.existing_instance import find_database, open_database, open_existing
from servicebroker.cli.operation_commands import add_command
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.engine.catalog.databases import SYSTEM_DATABASE
from servicebroker.operations.routes import AlterRoute, CreateRoute, DropRoute
from servicebroker.protocol.explanation import Explanation, words
from servicebroker.protocol.routing import Decision
from servicebroker.store.running import execute

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Routes: the addresses of services, and why a message takes one."
)

_COLUMNS = "name", "remote_service_name", "broker_instance", "lifetime", "address", "mirror_address", "broker_database"


@app.command("list")
def list_(
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: Annotated[
        str | None, typer.Option("--database", "-d", metavar="NAME", help="Only routes of this broker database.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the routes; an expired one is ignored until it is altered."""
    with open_existing(instance) as opened, opened.connection() as connection:
        if database is not None:
            find_database(opened, database)
        rows = execute(
            connection,
            "route.list",
            "select name, remote_service_name, broker_instance, lifetime, address, mirror_address, broker_database, "
            "lifetime <= $1 from sys.routes where $2::text is null or lower(broker_database) = lower($2) "
            "order by broker_database, route_id",
            opened.clock(),
            database,
        )
    if as_json:
        routes = [dict(zip((*_COLUMNS, "is_expired"), (*row[:-1], bool(row[-1])), strict=True)) for row in rows]
        say_json({"routes": routes})
        return
    if not rows:
        say("No routes: no message can be delivered.")
        return
    table = Listing("database", "name", "service", "address", "broker instance", "until")
    for name, service, broker, lifetime, address, mirror, broker_database, is_expired in rows:
        addresses = address if mirror is None else [address, f"mirror {mirror}"]
        until = "" if lifetime is None else f"{lifetime:%Y-%m-%d %H:%M:%S} UTC" + (" (expired)" if is_expired else "")
        table.row(broker_database, name, service or "any", addresses, broker or "any", until)
    Terminal().print(table)


_OPTIONS = {"service_name": "--service"}
_SENTENCE = "Route {name} of database {database} is "
add_command(app, "create", "route", CreateRoute, f"{_SENTENCE}created.", options=_OPTIONS)
add_command(app, "alter", "route", AlterRoute, f"{_SENTENCE}altered.", options=_OPTIONS)
add_command(app, "drop", "route", DropRoute, f"{_SENTENCE}dropped.")


@app.command()
def explain(
    service: Annotated[str, typer.Option(metavar="SERVICE", help="The target service; case-sensitive.")],
    from_database: Annotated[
        str | None, typer.Option("--from-database", metavar="NAME", help="The database where the conversation begins.")
    ] = None,
    from_outside: Annotated[
        bool,
        typer.Option("--from-outside", help="The message arrives from another instance, so the routes of msdb apply."),
    ] = False,
    broker_instance: Annotated[
        str | None,
        typer.Option("--broker-instance", metavar="GUID", help="The broker instance that BEGIN DIALOG names, if any."),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Explain which routes match, which one is chosen and why, and where the message goes. Nothing is sent."""
    if (from_database is None) != from_outside:
        raise typer.BadParameter("give either --from-database or --from-outside")
    with open_database(instance, from_database or SYSTEM_DATABASE) as opened:
        explanation = opened.explain_route(service, broker_instance, from_outside=from_outside)
        with opened.instance.connection() as connection:
            rows = execute(
                connection, "route.explain", "select service_broker_guid::text, broker_database from sys.databases"
            )
    sentences = words(explanation, dict(rows))
    if as_json:
        say_json(_to_json(explanation, sentences))
    else:
        say(*sentences)


def _to_json(explanation: Explanation, sentences: list[str]) -> dict[str, Any]:
    return {
        "conversation": explanation.conversation._asdict(),
        "decisions": [_decision_to_json(decision) for decision in explanation.decisions],
        "expired": [route._asdict() for route in explanation.expired],
        "words": sentences,
    }


def _decision_to_json(decision: Decision) -> dict[str, Any]:
    destination = decision.destination
    fields = destination._asdict().items()
    return {
        "rule": decision.rule.name,
        "matched": [route.name for route in decision.matched],
        "chosen": decision.chosen.name if decision.chosen else None,
        "through_outside": decision.through_outside,
        "destination": type(destination).__name__,
        **{name: value if isinstance(value, int | None) else str(value) for name, value in fields},
    }
