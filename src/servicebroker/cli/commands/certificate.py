"""`servicebroker certificate`: who may connect to an instance, and with --database who its users are to others."""

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
    help="Certificates: the identity of this instance, and the peers that it lets in.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The certificate's name in this instance.")]


@app.command()
@takes(CreateTransportCertificate, only={"name", "subject"})
def create(
    operation: CreateTransportCertificate,
    instance: InstanceOption = DEFAULT_INSTANCE,
    days: Annotated[int, typer.Option(help="How long it is valid.")] = VALIDITY_DAYS,
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
            made = user_certificate.create(opened, database, of_user)
            say(f"Certificate {name} of {user or 'dbo'} is valid until {_day(made.facts.expiry_date)}.")
            return
        opened.run(replace(operation, expiry_date=expiry_date))
        folder = opened.key_folder()
        found = _found(opened, name)
    say(f"Certificate {name} is valid until {_day(found.facts.expiry_date)}; its key is in {folder.path}.")
    say(f"Next: servicebroker certificate export {name} {name}.pem, and import that file at each peer.")


@app.command()
def export(
    name: NameArgument,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Standard output without it.")] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: DatabaseOption = None,
) -> None:
    """Write a certificate, without its key, for others to import."""
    with open_existing(instance) as opened:
        found = _found(opened, name) if database is None else user_certificate.find(opened.database(database), name)
        pem = as_pem(found.facts.der)
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
        str | None, typer.Option(metavar="SERVICE", help="With --database: let the user send to this service of ours.")
    ] = None,
) -> None:
    """Let in the instance that has this certificate, or believe what is signed with it."""
    name, login = operation.name, operation.authorization
    with open_existing(instance) as opened:
        if database is not None:
            kept = user_certificate.import_(opened, database, name, file, user, to_service, grant_send)
            say(f"A peer that signs with certificate {name} acts as {user} here, until {_day(kept.facts.expiry_date)}.")
            say(f"Compare its SHA-256 with the one that its owner sees: {kept.facts.thumbprint.hex()}")
            return
        thumbprint = opened.run(replace(operation, file=file))
        found = _found(opened, name)
    until = _day(found.facts.expiry_date)
    if found.may_connect:
        say(f"The peer with certificate {name} is let in until {until}.")
    else:
        say(f"The peer with certificate {name}, valid until {until}, needs CONNECT on the endpoint for {login}.")
    say(f"Compare its SHA-256 with the one that its owner sees: {thumbprint.hex()}")


@app.command("master-key")
def master_key(
    database: Annotated[str, typer.Option("--database", help="The database that gets it.")],
    instance: InstanceOption = DEFAULT_INSTANCE,
    keys: KeysOption = None,
) -> None:
    """Make the master key of a database, under which the private keys of its users are kept.

    Its password comes from SERVICEBROKER_MASTER_KEY_PASSWORD, or is asked for.
    """
    with open_existing(instance, keys) as opened:
        user_certificate.create_master_key(opened, database)
        folder = opened.key_folder()
    say(f"Database {database} has a master key; the daemon opens it by the service master key in {folder.path}.")


@app.command("list")
def list_(
    instance: InstanceOption = DEFAULT_INSTANCE, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Show the certificates of this instance and those of its peers, and which one is shown to them.

    With --database those of its users, and which one conversations that begin take.
    """
    with open_existing(instance) as opened:
        now = opened.clock()
        if database is not None:
            rows = user_certificate.listed(opened, database)
        else:
            with opened.connection() as connection:
                endpoint, found = run(connection, find_endpoint()), run(connection, all_certificates())
                membership = run(connection, find_membership())
            used = choose_own(endpoint, found, now)
            takes = endpoint is None or Method.CERTIFICATE in endpoint.authentication.methods
            rows = [
                Row(
                    certificate.name,
                    "this instance" if certificate.is_own else "a peer",
                    certificate.is_own,
                    takes and certificate == used,
                    certificate.by_password,
                    certificate.facts,
                )
                for certificate in found
            ]
    if as_json:
        say_json({"certificates": [row.told() for row in rows]})
        return
    if not rows:
        say("No certificates yet.")
    else:
        Terminal().print(_table(rows, now))
    if database is None and membership is not None and membership.expiry_date is not None:
        until = _day(membership.expiry_date)
        say(f"The domain lets this instance be {membership.account} until {until}, and renews that.")


def _table(rows: list[Row], now: datetime) -> Listing:
    table = Listing("name", "of", "valid until", "used", "SHA-256")
    for row in rows:
        facts = row.facts
        out = " (expired)" if facts.expiry_date <= now else " (not yet valid)" if facts.start_date > now else ""
        used = "yes" if row.is_used else "under a password" if row.by_password else ""
        table.row(row.name, row.whose, _day(facts.expiry_date) + out, used, facts.thumbprint.hex())
    return table


@app.command()
def accept(name: NameArgument, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Of several peers that claim to be one instance, believe the one with this certificate, and no other."""
    with open_existing(instance) as opened:
        accepted = opened.accept_certificate(name)
    for identifier in accepted.instances:
        say(f"The peer with certificate {name} is instance {identifier}.")
    for address in accepted.addresses:
        say(f"The peer with certificate {name} is at {address}.")
    if accepted == ((), ()):
        say(f"Nobody else claims anything of what the peer with certificate {name} is.")


@app.command()
def budget(
    name: NameArgument,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RESOURCE=AMOUNT", help=f"One of {', '.join(DEFAULT._fields)}; may be repeated."),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Restore the default of all others.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show or change how much of this instance the peer with a certificate may use."""
    amounts = read_amounts(changes or (), DEFAULT._fields)
    with open_existing(instance) as opened:
        if default:
            opened.set_peer_budget(name, None)
        found = opened.set_peer_budget(name, amounts)
    if as_json:
        say_json({"certificate": name, "budget": found._asdict(), "default": DEFAULT._asdict()})
        return
    table = Listing("resource", "amount", "default", right={1, 2})
    for resource, amount in found._asdict().items():
        table.row(resource, f"{amount:,}", f"{DEFAULT._asdict()[resource]:,}")
    Terminal().print(table)


@app.command()
@takes(DropTransportCertificate)
def drop(
    operation: DropTransportCertificate, instance: InstanceOption = DEFAULT_INSTANCE, keys: KeysOption = None
) -> None:
    """Remove a certificate: of a peer, it is let in no more; of this instance, its key is removed too."""
    with open_existing(instance, keys) as opened:
        opened.run(operation)
    say(f"Certificate {operation.name} is removed.")


def _found(opened: Instance, name: str) -> TransportCertificate:
    with opened.connection() as connection:
        return run(connection, find_certificate("find", name))


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
