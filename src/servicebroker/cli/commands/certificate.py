"""`servicebroker certificate`: certificates of the instance and its peers (transport security).

With --database: the certificates of a database's users (dialog security), in `user_certificate.py`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.api.certificates import after
from servicebroker.api.instance import Instance
from servicebroker.cli.amounts import read_amounts
from servicebroker.cli.commands import user_certificate
from servicebroker.cli.commands.user_certificate import DatabaseOption, Row, UserOption
from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.operation_commands import takes
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, KeysOption
from servicebroker.cli.output import say, say_document, say_json
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.engine.catalog.network_endpoints import find_endpoint
from servicebroker.engine.remote.domain_state import find_membership
from servicebroker.engine.security.transport_certificates import (
    TransportCertificate,
    all_certificates,
    choose_own,
    find_certificate,
)
from servicebroker.model.security.authentication import Method
from servicebroker.operations.certificates import (
    CreateCertificate,
    CreateTransportCertificate,
    DropTransportCertificate,
)
from servicebroker.protocol.budgets import DEFAULT
from servicebroker.store.keys.x509_certificates import VALIDITY_DAYS, as_pem
from servicebroker.store.running import run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Certificates: the identity of this instance, and the peers that may connect.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The certificate's name in this instance.")]
_COMPARE = "Compare its SHA-256 with the one that its owner sees: {}"


@app.command()
@takes(CreateTransportCertificate, only={"name", "subject"})
def create(
    operation: CreateTransportCertificate,
    instance: InstanceOption = DEFAULT_INSTANCE,
    days: Annotated[int, typer.Option(metavar="DAYS", help="How many days the certificate is valid.")] = VALIDITY_DAYS,
    keys: KeysOption = None,
    database: DatabaseOption = None,
    user: UserOption = None,
) -> None:
    """Make a certificate of this instance, or of a user, with its private key."""
    name = operation.name
    with open_existing(instance, keys) as opened:
        expiry_date = after(opened.clock().replace(microsecond=0), max(days, 0))
        if database is not None:
            of_user = CreateCertificate(name, authorization=user, subject=operation.subject, expiry_date=expiry_date)
            created = user_certificate.create(opened, database, of_user)
            say(f"Certificate {name} of {user or 'dbo'} is valid until {_format_time(created.facts.expiry_date)}.")
            return
        opened.run(replace(operation, expiry_date=expiry_date))
        folder = opened.key_folder()
        certificate = _find(opened, name)
    say(
        f"Certificate {name} is valid until {_format_time(certificate.facts.expiry_date)}; its key is in {folder.path}."
    )
    say(f"Next: servicebroker certificate export {name} {name}.pem, and import that file at each peer.")


@app.command()
def export(
    name: NameArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The file to write. Default: standard output.")
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: DatabaseOption = None,
) -> None:
    """Write a certificate without its key, for peers to import."""
    with open_existing(instance) as opened:
        if database is None:
            der = _find(opened, name).facts.der
        else:
            der = user_certificate.find(opened.database(database), name).facts.der
        pem = as_pem(der)
    if file is None:
        say_document(pem.decode())
    else:
        file.write_bytes(pem)
        say(f"Certificate {name} is in {file}.")


@app.command("import")
@takes(CreateTransportCertificate, only={"name", "authorization"}, options={"authorization": "--login"})
def import_(
    operation: CreateTransportCertificate,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate that a peer has exported.")],
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: DatabaseOption = None,
    user: UserOption = None,
    to_service: Annotated[
        str | None, typer.Option(metavar="SERVICE", help="With --database: bind this remote service to the user.")
    ] = None,
    grant_send: Annotated[
        str | None, typer.Option(metavar="SERVICE", help="With --database: grant the user SEND on this local service.")
    ] = None,
) -> None:
    """Import a peer's certificate: let the peer connect, or with --database trust the signatures of its dialogs."""
    name, login = operation.name, operation.authorization
    with open_existing(instance) as opened:
        if database is not None:
            imported = user_certificate.import_(opened, database, name, file, user, to_service, grant_send)
            until = _format_time(imported.facts.expiry_date)
            say(f"A peer that signs with certificate {name} acts as user {user} until {until}.")
            say(_COMPARE.format(imported.facts.thumbprint.hex()))
            return
        thumbprint = opened.run(replace(operation, file=file))
        certificate = _find(opened, name)
    until = _format_time(certificate.facts.expiry_date)
    if certificate.may_connect:
        say(f"The peer with certificate {name} may connect until {until}.")
    else:
        say(f"The peer with certificate {name}, valid until {until}, needs CONNECT on the endpoint for {login}.")
    say(_COMPARE.format(thumbprint.hex()))


@app.command("master-key")
def master_key(
    database: Annotated[str, typer.Option("--database", metavar="NAME", help="The broker database.")],
    instance: InstanceOption = DEFAULT_INSTANCE,
    keys: KeysOption = None,
) -> None:
    """Create the master key of a database, which encrypts the private keys of its users.

    The password comes from SERVICEBROKER_MASTER_KEY_PASSWORD; without it the command prompts for one.
    """
    with open_existing(instance, keys) as opened:
        user_certificate.create_master_key(opened, database)
        folder = opened.key_folder()
    say(f"Database {database} has a master key; the daemon opens it with the service master key in {folder.path}.")


@app.command("list")
def list_(
    instance: InstanceOption = DEFAULT_INSTANCE, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Show the certificates of this instance and of its peers, and which one this instance presents to peers.

    With --database: the certificates of its users, and which one new conversations use.
    """
    with open_existing(instance) as opened:
        now = opened.clock()
        if database is not None:
            rows = user_certificate.list_certificates(opened, database)
        else:
            with opened.connection() as connection:
                endpoint, certificates = run(connection, find_endpoint()), run(connection, all_certificates())
                membership = run(connection, find_membership())
            presented = choose_own(endpoint, certificates, now)
            uses_certificates = endpoint is None or Method.CERTIFICATE in endpoint.authentication.methods
            rows = [
                Row(
                    certificate.name,
                    "this instance" if certificate.is_own else "a peer",
                    certificate.is_own,
                    uses_certificates and certificate == presented,
                    certificate.by_password,
                    certificate.facts,
                )
                for certificate in certificates
            ]
    if as_json:
        say_json({"certificates": [row.to_json() for row in rows]})
        return
    if not rows:
        say("No certificates yet.")
    else:
        Terminal().print(_table(rows, now))
    if database is None and membership is not None and membership.expiry_date is not None:
        until = _format_time(membership.expiry_date)
        say(f"In its domain this instance is {membership.account} until {until}; the daemon renews that.")


def _table(rows: list[Row], now: datetime) -> Listing:
    table = Listing("name", "of", "valid until", "used", "SHA-256")
    for row in rows:
        facts = row.facts
        suffix = " (expired)" if facts.expiry_date <= now else " (not yet valid)" if facts.start_date > now else ""
        used = "yes" if row.is_used else "under a password" if row.by_password else ""
        table.row(row.name, row.owner, _format_time(facts.expiry_date) + suffix, used, facts.thumbprint.hex())
    return table


@app.command()
def accept(name: NameArgument, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """If several peers claim to be the same instance, accept only the peer with this certificate."""
    with open_existing(instance) as opened:
        accepted = opened.accept_certificate(name)
    for identifier in accepted.instances:
        say(f"The peer with certificate {name} is instance {identifier}.")
    for address in accepted.addresses:
        say(f"The peer with certificate {name} is at {address}.")
    if accepted == ((), ()):
        say(f"No other peer claims an instance or an address of the peer with certificate {name}.")


@app.command()
def budget(
    name: NameArgument,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RESOURCE=AMOUNT", help=f"One of {', '.join(DEFAULT._fields)}; may be repeated."),
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Restore the default amount of all other resources.")
    ] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show or change how much of this instance the peer with a certificate may use."""
    amounts = read_amounts(changes or (), DEFAULT._fields)
    with open_existing(instance) as opened:
        if default:
            opened.set_peer_budget(name, None)
        new_budget = opened.set_peer_budget(name, amounts)
    if as_json:
        say_json({"certificate": name, "budget": new_budget._asdict(), "default": DEFAULT._asdict()})
        return
    table = Listing("resource", "amount", "default", right={1, 2})
    for resource, amount in new_budget._asdict().items():
        table.row(resource, f"{amount:,}", f"{DEFAULT._asdict()[resource]:,}")
    Terminal().print(table)


@app.command()
@takes(DropTransportCertificate)
def drop(
    operation: DropTransportCertificate, instance: InstanceOption = DEFAULT_INSTANCE, keys: KeysOption = None
) -> None:
    """Remove a certificate. The peer may not connect any more; for an own certificate its key is removed, too."""
    with open_existing(instance, keys) as opened:
        opened.run(operation)
    say(f"Certificate {operation.name} is removed.")


def _find(opened: Instance, name: str) -> TransportCertificate:
    with opened.connection() as connection:
        return run(connection, find_certificate("find", name))


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
