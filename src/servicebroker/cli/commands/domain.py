"""`servicebroker domain`: a certificate authority that instances share, AUTHENTICATION = WINDOWS of their endpoints."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, KeysOption, finite
from servicebroker.cli.output import say, say_json
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.model.security.domain import Token, account
from servicebroker.store.keys.domain_folder import Domain, machine_name
from servicebroker.store.membership import Membership, default_folder
from servicebroker.store.server_clock import system_time

app = typer.Typer(
    no_args_is_help=True,
    help="Domains: instances that trust each other by AUTHENTICATION = WINDOWS. Unless it joins another one, an "
    "instance is in the domain of the operating-system user that runs it.",
)

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        envvar="SERVICEBROKER_DOMAIN",
        metavar="DIR",
        help="The folder of the domain, which its members can reach. Default: that of your own domain.",
    ),
]
MemberArgument = Annotated[str, typer.Argument(metavar="MEMBER", help="Its login is DOMAIN\\MEMBER.")]


@app.command()
def create(
    folder: FolderOption = None,
    name: Annotated[str | None, typer.Option(help="Its name. Default: that of this machine.")] = None,
) -> None:
    """Make a domain. Its key is yours alone: whoever has that can be anybody in the domain."""
    place = folder or default_folder()
    called = machine_name() if name is None else name
    made = Domain.create(place.absolute(), called, system_time(), is_shared=folder is not None)
    say(f"The domain {made.name} is in {made.folder}; its key, in authority.key there, is yours alone.")
    if folder is not None:
        say(f"Instances of yours join it with servicebroker domain join --folder {made.folder} --instance ...")
        say("Others need a token besides: servicebroker domain invite MEMBER.")


@app.command()
def show(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show a domain: its members, whom it has invited and whom it has revoked."""
    found = _domain(folder)
    if as_json:
        say_json(_told(found))
        return
    say(f"The domain {found.name} in {found.folder}; its key is {'yours' if found.holds_key else 'not yours'}.")
    say(f"SHA-256 of its authority: {found.authority.thumbprint.hex()}")
    revoked = found.revoked()
    table = Listing("login", "instance", "certificate until", "state")
    for member, instances in sorted(found.members().items()):
        state = f"revoked {_time(revoked[member.lower()])}" if member.lower() in revoked else "member"
        for instance, issued in instances.items():
            table.row(account(found.name, member), str(instance), _time(issued.expires), state)
    for guest in found.invitations():
        if not guest.is_used:
            state = "invited until" if guest.expires > system_time() else "was invited until"
            table.row(account(found.name, guest.member), "", "", f"{state} {_time(guest.expires)}")
    if table.rows:
        Terminal().print(table)
    else:
        say("It has no members yet.")


@app.command()
def invite(
    member: MemberArgument,
    folder: FolderOption = None,
    hours: Annotated[int, typer.Option(min=1, max=24 * 30, help="How long the token can be used.")] = 24,
) -> None:
    """Print a token that lets one instance in, once, as that member."""
    found = _domain(folder)
    token = found.invite(member, system_time(), timedelta(hours=hours))
    say(str(token))
    say(
        f"One instance may join with it as {account(found.name, member)}, within {hours} h: "
        f"servicebroker domain join TOKEN --folder {found.folder} --instance ...",
        error=True,
    )


@app.command()
def join(
    token: Annotated[
        str | None, typer.Argument(metavar="[TOKEN]", help="Not needed by whoever holds the domain's key.")
    ] = None,
    folder: FolderOption = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    keys: KeysOption = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", callback=finite, min=0, help="How long to wait for the answer.")
    ] = 30.0,
) -> None:
    """Make an instance a member of a domain, instead of the one that it is in."""
    read = None if token is None else Token.read(token)
    with open_existing(instance, keys) as opened:
        membership = Membership(opened.key_folder(), opened.identifier())
        standing = membership.join(folder or default_folder(), read, system_time(), wait)
    assert standing.member is not None
    assert standing.facts is not None
    say(f"The instance is {standing.member.account}, until {_time(standing.facts.expiry_date)}.")
    say("Its daemon renews that by itself. Next: CREATE ENDPOINT with AUTHENTICATION = WINDOWS.")


@app.command()
def revoke(member: MemberArgument, folder: FolderOption = None) -> None:
    """End a membership, for good: no certificate any more, and not let in wherever the folder is read."""
    found = _domain(folder)
    found.revoke(member, system_time())
    say(
        f"{account(found.name, member)} is revoked. Instances that cannot read the folder accept its certificate for "
        "up to 7 more days."
    )


@app.command()
def answer(folder: FolderOption = None) -> None:
    """Answer what members have asked, as the daemons of the key's owner do by themselves every second."""
    found = _domain(folder)
    found.check_key()
    say(f"{found.answer(system_time())} answered.")


def _domain(folder: Path | None) -> Domain:
    return Domain((folder or default_folder()).absolute())


def _told(found: Domain) -> dict[str, object]:
    return {
        "name": found.name,
        "folder": str(found.folder),
        "holds_key": found.holds_key,
        "sha256": found.authority.thumbprint.hex(),
        "members": [
            {
                "login": account(found.name, member),
                "instance": str(instance),
                "issued": issued.issued.isoformat(),
                "expires": issued.expires.isoformat(),
            }
            for member, instances in sorted(found.members().items())
            for instance, issued in instances.items()
        ],
        "invitations": [
            {"login": account(found.name, guest.member), "expires": guest.expires.isoformat(), "is_used": guest.is_used}
            for guest in found.invitations()
        ],
        "revoked": {account(found.name, member): at.isoformat() for member, at in found.revoked().items()},
    }


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
