"""`servicebroker people show | add | remove`: who may sign in to the dashboard by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli import people_file
from servicebroker.cli.commands.dashboard import RoleName
from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.cli.people_file import People, Role

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="People who may sign in to the dashboard by name, and their roles.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name, as the person or the proxy writes it.")]
FileOption = Annotated[Path, typer.Option("--people", metavar="FILE", help="The file for servicebroker dashboard.")]
FILE = Path("servicebroker-people")


@app.command()
def show(file: FileOption = FILE, as_json: JsonOption = False) -> None:
    """Show the people of the file and their roles."""
    found = [
        {"name": person.name, "role": person.role.name.lower(), "password": bool(person.seal)}
        for person in People(file).all().values()
    ]
    if as_json:
        say_json({"people": found})
        return
    for person in found:
        say(f"{person['name']}: {person['role']}{'' if person['password'] else ', by a proxy only'}")


@app.command()
def add(
    name: NameArgument,
    role: Annotated[RoleName, typer.Option(help="What the person may do.")] = RoleName.SEE,
    proxied: Annotated[
        bool, typer.Option("--proxied", help="The person has no password here: a proxy authenticates them.")
    ] = False,
    file: FileOption = FILE,
) -> None:
    """Add a person, or change password and role; a running dashboard uses it at once.

    The password is asked for, or is the first line of standard input.
    """
    is_new = people_file.add(file, name, Role[role.name], None if proxied else _password())
    say(f"{name} {'is let in' if is_new else 'is changed'}: {role.value}.")


@app.command()
def remove(name: NameArgument, file: FileOption = FILE) -> None:
    """Remove a person, who is signed out at once."""
    people_file.remove(file, name)
    say(f"{name} is not let in any more.")


def _password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt="The same again")
    return typed
