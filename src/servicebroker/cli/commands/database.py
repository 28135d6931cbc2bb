"""`servicebroker database list | create | alter | drop`: the broker databases of an instance."""

from __future__ import annotations

from typing import Annotated

import typer

from servicebroker.cli.existing import find_database, open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.model.errors import BrokerError
from servicebroker.store.running import execute

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Broker databases: what there is, and whether their brokers are on.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name, compared without case.")]
RollbackOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="End the transactions that use it after so long; 0 at once."),
]

_COLUMNS = "database", "service_broker_guid", "is_broker_enabled", "is_honor_broker_priority_on"


@app.command("list")
def list_(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show the databases, each with the identifier of its broker and whether that is on."""
    with open_existing(instance) as opened, opened.connection() as connection:
        found = execute(
            connection,
            "database.list",
            "select name, service_broker_guid, is_broker_enabled = 1, is_honor_broker_priority_on = 1 "
            "from sys.databases order by name",
        )
    if as_json:
        say_json({"databases": [dict(zip(_COLUMNS, row, strict=True)) for row in found]})
        return
    for name, broker, is_enabled, _ in found:
        say(f"{name}: broker {broker}{'' if is_enabled else ', disabled'}")


@app.command()
def create(
    name: NameArgument,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="One of that name may be there.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """CREATE DATABASE, with a broker that is on."""
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
    say(f"The database {name} is there.")


@app.command()
def alter(
    name: NameArgument,
    broker: Annotated[bool | None, typer.Option("--on/--off", help="ENABLE_BROKER or DISABLE_BROKER.")] = None,
    new_broker: Annotated[
        bool, typer.Option("--new-broker", help="NEW_BROKER: a new identifier; all conversations end, silently.")
    ] = False,
    error_broker_conversations: Annotated[
        bool,
        typer.Option("--error-broker-conversations", help="ERROR_BROKER_CONVERSATIONS: all end with an Error."),
    ] = False,
    honor_broker_priority: Annotated[bool | None, typer.Option(help="HONOR_BROKER_PRIORITY.")] = None,
    trustworthy: Annotated[bool | None, typer.Option(help="TRUSTWORTHY.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Refuse (5070) instead of waiting for its users.")] = False,
    rollback_after: RollbackOption = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """ALTER DATABASE SET: what is given changes."""
    if not (new_broker or error_broker_conversations) and (broker, honor_broker_priority, trustworthy) == (None,) * 3:
        raise typer.BadParameter("say what changes: --on, --off, --new-broker ...")
    with open_existing(instance) as opened:
        find_database(opened, name).alter(
            enable_broker=broker is True,
            disable_broker=broker is False,
            new_broker=new_broker,
            error_broker_conversations=error_broker_conversations,
            honor_broker_priority=honor_broker_priority,
            trustworthy=trustworthy,
            no_wait=no_wait,
            rollback_after=rollback_after,
        )
    say(f"The database {name} is altered.")


@app.command()
def drop(
    name: NameArgument,
    rollback_after: RollbackOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """DROP DATABASE with its conversations and objects; your own tables stay."""
    with open_existing(instance) as opened:
        find_database(opened, name)
        if not yes:
            typer.confirm(f"All conversations and messages of {name} will be lost. Go on?", abort=True)
        opened.drop_database(name, rollback_after=rollback_after)
    say(f"The database {name} is dropped.")
