"""`servicebroker people show | add | remove`: the people who may sign in to the dashboard by name."""

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
FileOption = Annotated[Path, typer.Option("--people", metavar="FILE", help="The file of people.")]
FILE = Path("servicebroker-people")


@app.command()
def show(file: FileOption = FILE, as_json: JsonOption = False) -> None:
    """Show the people of the file and their roles."""
    rows = [
        {"name": person.name, "role": person.role.name.lower(), "password": bool(person.password_hash)}
        for person in People(file).all().values()
    ]
    if as_json:
        say_json({"people": rows})
        return
    for row in rows:
        say(f"{row['name']}: {row['role']}{'' if row['password'] else ', by a proxy only'}")


@app.command()
def add(
    name: NameArgument,
    role: Annotated[
        RoleName, typer.Option(help="What the person may do: see (no bodies), bodies or act (read and change).")
    ] = RoleName.SEE,
    proxied: Annotated[
        bool, typer.Option("--proxied", help="The person has no password: a proxy authenticates the person.")
    ] = False,
    file: FileOption = FILE,
) -> None:
    """Add a person, or change a person's password and role. A running dashboard applies this immediately.

    The command prompts for the password; without a terminal it is the first line of standard input.
    """
    is_new = people_file.add(file, name, Role[role.name], None if proxied else _read_password())
    say(f"{name} {'is added' if is_new else 'is changed'}: {role.value}.")


@app.command()
def remove(name: NameArgument, file: FileOption = FILE) -> None:
    """Remove a person, and sign the person out immediately."""
    people_file.remove(file, name)
    say(f"{name} is removed.")


def _read_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt="Repeat the password")
    return typed
