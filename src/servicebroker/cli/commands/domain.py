"""`servicebroker domain`: domains, for AUTHENTICATION = WINDOWS of endpoints.

A domain is a folder with a certificate authority. Its members are instances, which trust each other.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, KeysOption, require_finite
from servicebroker.cli.output import say, say_json
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.model.security.domain import Token, account
from servicebroker.store.keys.domain_folder import Domain, machine_name
from servicebroker.store.membership import Membership, default_folder
from servicebroker.store.server_clock import system_time

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Domains: instances that trust each other by AUTHENTICATION = WINDOWS. Unless it joins another one, an "
    "instance is in the domain of the operating-system user that runs it.",
)

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        envvar="SERVICEBROKER_DOMAIN",
        metavar="DIR",
        help="The folder of the domain, which its members can read. Default: the folder of your own domain.",
    ),
]
MemberArgument = Annotated[str, typer.Argument(metavar="MEMBER", help="The member; its login is DOMAIN\\MEMBER.")]


@app.command()
def create(
    folder: FolderOption = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the domain. Default: the name of this machine.")
    ] = None,
) -> None:
    """Create a domain. Keep its key private: with the key a program can act as any member."""
    domain_name = machine_name() if name is None else name
    domain = Domain.create(
        (folder or default_folder()).absolute(), domain_name, system_time(), is_shared=folder is not None
    )
    say(f"The domain {domain.name} is in {domain.folder}; only you can read its key, authority.key.")
    if folder is not None:
        say(f"Your own instances join it with servicebroker domain join --folder {domain.folder} --instance ...")
        say("Instances of other users also need a token: servicebroker domain invite MEMBER.")


@app.command()
def show(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show a domain: its members, open invitations and revoked members."""
    domain = _domain(folder)
    if as_json:
        say_json(_to_json(domain))
        return
    say(f"The domain {domain.name} in {domain.folder}; its key is {'yours' if domain.holds_key else 'not yours'}.")
    say(f"SHA-256 of its authority: {domain.authority.thumbprint.hex()}")
    revoked = domain.revoked()
    table = Listing("login", "instance", "certificate until", "state")
    for member, instances in sorted(domain.members().items()):
        state = f"revoked {_format_time(revoked[member.lower()])}" if member.lower() in revoked else "member"
        for instance, issued in instances.items():
            table.row(account(domain.name, member), str(instance), _format_time(issued.expires), state)
    for invitation in domain.invitations():
        if not invitation.is_used:
            state = "invited until" if invitation.expires > system_time() else "was invited until"
            table.row(account(domain.name, invitation.member), "", "", f"{state} {_format_time(invitation.expires)}")
    if table.rows:
        Terminal().print(table)
    else:
        say("The domain has no members yet.")


@app.command()
def invite(
    member: MemberArgument,
    folder: FolderOption = None,
    hours: Annotated[int, typer.Option(min=1, max=24 * 30, help="Hours until the token expires.")] = 24,
) -> None:
    """Print a token with which one instance can join the domain as this member."""
    domain = _domain(folder)
    token = domain.invite(member, system_time(), timedelta(hours=hours))
    say(str(token))
    say(
        f"One instance may join with this token as {account(domain.name, member)}, within {hours} h: "
        f"servicebroker domain join TOKEN --folder {domain.folder} --instance ...",
        error=True,
    )


@app.command()
def join(
    token: Annotated[
        str | None, typer.Argument(metavar="[TOKEN]", help="The invitation; not needed with the domain's key.")
    ] = None,
    folder: FolderOption = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    keys: KeysOption = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", callback=require_finite, min=0, help="The time to wait for the domain's certificate."
        ),
    ] = 30.0,
) -> None:
    """Make an instance a member of a domain. It leaves the domain that it is in."""
    invitation = None if token is None else Token.read(token)
    with open_existing(instance, keys) as opened:
        membership = Membership(opened.key_folder(), opened.identifier())
        status = membership.join(folder or default_folder(), invitation, system_time(), wait)
    assert status.member is not None
    assert status.facts is not None
    say(f"The instance is {status.member.account}, until {_format_time(status.facts.expiry_date)}.")
    say("Its daemon renews the membership. Next: CREATE ENDPOINT with AUTHENTICATION = WINDOWS.")


@app.command()
def revoke(member: MemberArgument, folder: FolderOption = None) -> None:
    """End a membership permanently: the member gets no new certificate, and members refuse its connections."""
    domain = _domain(folder)
    domain.revoke(member, system_time())
    say(
        f"{account(domain.name, member)} is revoked. Instances that cannot read the folder accept its certificate for "
        "up to 7 more days."
    )


@app.command()
def answer(folder: FolderOption = None) -> None:
    """Issue the certificates that members have requested. A daemon of the key's owner does the same every second."""
    domain = _domain(folder)
    domain.check_key()
    say(f"{domain.answer(system_time())} answered.")


def _domain(folder: Path | None) -> Domain:
    return Domain((folder or default_folder()).absolute())


def _to_json(domain: Domain) -> dict[str, object]:
    return {
        "name": domain.name,
        "folder": str(domain.folder),
        "holds_key": domain.holds_key,
        "sha256": domain.authority.thumbprint.hex(),
        "members": [
            {
                "login": account(domain.name, member),
                "instance": str(instance),
                "issued": issued.issued.isoformat(),
                "expires": issued.expires.isoformat(),
            }
            for member, instances in sorted(domain.members().items())
            for instance, issued in instances.items()
        ],
        "invitations": [
            {
                "login": account(domain.name, invitation.member),
                "expires": invitation.expires.isoformat(),
                "is_used": invitation.is_used,
            }
            for invitation in domain.invitations()
        ],
        "revoked": {account(domain.name, member): at.isoformat() for member, at in domain.revoked().items()},
    }


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
