"""`servicebroker endpoint show | create | alter | drop`: the network endpoint of an instance."""

from __future__ import annotations

import typer

from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.operation_commands import takes
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.operations.endpoints import AlterEndpoint, CreateEndpoint, DropEndpoint
from servicebroker.operations.operation import Definition
from servicebroker.store.running import execute

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The endpoint: the address where `servicebroker serve` accepts connections of other instances.",
)

_COLUMNS = "name", "state", "ip_address", "port", "authentication", "encryption", "message_forwarding"
LOOPBACK = "127.0.0.1"  # the default of --ip: no other machine can connect
_OPTIONS = {"listener_port": "--port", "listener_ip": "--ip"}


@app.command()
def show(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show the endpoint of the instance."""
    with open_existing(instance) as opened, opened.connection() as connection:
        endpoints = execute(
            connection,
            "endpoint.show",
            "select b.name, b.state_desc, coalesce(t.ip_address, 'ALL'), t.port, b.connection_auth_desc, "
            "(array['DISABLED', null, 'REQUIRED', null, 'SUPPORTED'])[b.encryption_algorithm + 1], "
            "b.is_message_forwarding_enabled = 1 "
            "from sys.service_broker_endpoints b join sys.tcp_endpoints t using (endpoint_id)",
        )
    rows = [dict(zip(_COLUMNS, endpoint, strict=True)) for endpoint in endpoints]
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
        say("No endpoint yet: this instance exchanges no messages with other instances.")


@app.command()
@takes(CreateEndpoint, options=_OPTIONS, defaults={"state": "STARTED", "listener_ip": LOOPBACK})
def create(operation: CreateEndpoint, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """CREATE ENDPOINT ... FOR SERVICE_BROKER: create the endpoint. It is STARTED unless --state is given.

    Without --ip only programs of this machine can connect; --ip ALL listens on all interfaces.
    """
    local_only = "" if operation.listener_ip != LOOPBACK else " Only this machine can connect: --ip ALL admits others."
    _run(
        operation, instance, f"The endpoint {operation.name} is created. servicebroker serve listens there.{local_only}"
    )


@app.command()
@takes(AlterEndpoint, options=_OPTIONS)
def alter(operation: AlterEndpoint, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """ALTER ENDPOINT: change the options given. The daemon applies them within a second."""
    _run(operation, instance, f"The endpoint {operation.name} is altered.")


@app.command()
@takes(DropEndpoint)
def drop(operation: DropEndpoint, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """DROP ENDPOINT: close all connections. The instance then sends and receives no messages over the network."""
    _run(operation, instance, f"The endpoint {operation.name} is dropped.")


def _run(operation: Definition[str | None] | Definition[None], instance: str, sentence: str) -> None:
    """Run the operation, print `sentence`, and print the warning that the operation returns, if any."""
    with open_existing(instance) as opened:
        warning = opened.run(operation)
    say(sentence)
    if warning:
        say(warning, error=True)
