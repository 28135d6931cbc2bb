"""`servicebroker endpoint show | create | alter | drop`: where other instances connect to."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from servicebroker.cli.existing import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.engine.catalog import network_endpoints
from servicebroker.store.running import execute

app = typer.Typer(
    no_args_is_help=True, help="The endpoint: where other instances connect to; `servicebroker serve` obeys it."
)


class State(StrEnum):
    """Whether peers are served."""

    STARTED = network_endpoints.STARTED
    STOPPED = network_endpoints.STOPPED
    DISABLED = network_endpoints.DISABLED


class Encryption(StrEnum):
    """Whether connections have to be encrypted."""

    REQUIRED = network_endpoints.REQUIRED
    SUPPORTED = network_endpoints.SUPPORTED
    DISABLED = network_endpoints.DISABLED


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="An instance has one endpoint at most.")]
IP_HELP = "The address that it listens on; ALL for every one."
STATE_HELP = "STOPPED closes connections and takes none; DISABLED answers peers with an error."
AUTHENTICATION_HELP = "CERTIFICATE, also with a name; WINDOWS; or both, in the order in which they are tried."

_COLUMNS = "name", "state", "ip_address", "port", "authentication", "encryption", "message_forwarding"


@app.command()
def show(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show the endpoint of the instance."""
    with open_existing(instance) as opened, opened.connection() as connection:
        found = execute(
            connection,
            "endpoint.show",
            "select b.name, b.state_desc, coalesce(t.ip_address, 'ALL'), t.port, b.connection_auth_desc, "
            "(array['DISABLED', null, 'REQUIRED', null, 'SUPPORTED'])[b.encryption_algorithm + 1], "
            "b.is_message_forwarding_enabled = 1 "
            "from sys.service_broker_endpoints b join sys.tcp_endpoints t using (endpoint_id)",
        )
    rows = [dict(zip(_COLUMNS, row, strict=True)) for row in found]
    if as_json:
        say_json({"endpoint": next(iter(rows), None)})
        return
    for row in rows:
        forwards = ", forwards messages" if row["message_forwarding"] else ""
        say(
            f"{row['name']}: {row['state']} at {row['ip_address']}:{row['port']}, authentication "
            f"{row['authentication']}, encryption {row['encryption']}{forwards}"
        )
    if not rows:
        say("No endpoint yet: nothing leaves this instance and nothing comes in.")


@app.command()
def create(
    name: NameArgument,
    port: Annotated[int, typer.Option(help="The TCP port, 1024 to 32767.")],
    ip: Annotated[str, typer.Option(help=IP_HELP)] = network_endpoints.ALL,
    state: Annotated[State, typer.Option(help=STATE_HELP)] = State.STARTED,
    authentication: Annotated[str | None, typer.Option(help=AUTHENTICATION_HELP)] = None,
    encryption: Annotated[Encryption, typer.Option(help="Of connections.")] = Encryption.REQUIRED,
    forward: Annotated[
        bool, typer.Option("--forward", help="MESSAGE_FORWARDING: carry messages that are for others.")
    ] = False,
    forward_size: Annotated[
        int, typer.Option(metavar="MB", help="Of messages that are being forwarded.")
    ] = network_endpoints.FORWARD_SIZE,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """CREATE ENDPOINT ... FOR SERVICE_BROKER, started."""
    with open_existing(instance) as opened:
        warning = opened.create_endpoint(
            name,
            listener_port=port,
            listener_ip=ip,
            state=state,
            authentication=authentication,
            encryption=encryption,
            message_forwarding="ENABLED" if forward else "DISABLED",
            message_forward_size=forward_size,
        )
    _done(f"The endpoint {name} is there. servicebroker serve obeys it.", warning)


@app.command()
def alter(
    name: NameArgument,
    port: Annotated[int | None, typer.Option(help="The TCP port, 1024 to 32767.")] = None,
    ip: Annotated[str | None, typer.Option(help=IP_HELP)] = None,
    state: Annotated[State | None, typer.Option(help=STATE_HELP)] = None,
    authentication: Annotated[str | None, typer.Option(help=AUTHENTICATION_HELP)] = None,
    encryption: Annotated[Encryption | None, typer.Option(help="Of connections.")] = None,
    forward: Annotated[bool | None, typer.Option(help="MESSAGE_FORWARDING.")] = None,
    forward_size: Annotated[
        int | None, typer.Option(metavar="MB", help="Of messages that are being forwarded.")
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """ALTER ENDPOINT: what is given changes; the daemon follows within a second."""
    with open_existing(instance) as opened:
        warning = opened.alter_endpoint(
            name,
            listener_port=port,
            listener_ip=ip,
            state=state,
            authentication=authentication,
            encryption=encryption,
            message_forwarding=None if forward is None else "ENABLED" if forward else "DISABLED",
            message_forward_size=forward_size,
        )
    _done(f"The endpoint {name} is altered.", warning)


@app.command()
def drop(name: NameArgument, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """DROP ENDPOINT: connections end, and nothing leaves or comes in."""
    with open_existing(instance) as opened:
        opened.drop_endpoint(name)
    say(f"The endpoint {name} is dropped.")


def _done(sentence: str, warning: str | None) -> None:
    say(sentence)
    if warning:
        say(warning, error=True)
