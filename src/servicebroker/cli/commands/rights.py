"""`servicebroker rights`: PostgreSQL roles that may do the verbs and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

import typer
from psycopg import sql

from servicebroker.api.instance import Instance
from servicebroker.cli.existing import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_document, say_json
from servicebroker.engine.security.role_rights import (
    RoleRights,
    Wanted,
    close_locks,
    closing_locks,
    granting,
    revoking,
)
from servicebroker.store.running import in_transaction, run
from servicebroker.store.statements import Statement, Steps

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="PostgreSQL roles that may do the verbs and nothing else."
)

RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="A PostgreSQL role; whoever may, creates it before.")]
# not from the environment: without one, every right is taken back
DatabaseOption = Annotated[str | None, typer.Option("--database", "-d", metavar="D", help="The broker database.")]
SendOption = Annotated[
    list[str],
    typer.Option("--send", metavar="SERVICE", help="SEND on it, and REFERENCES on its contracts; may be repeated."),
]
ReceiveOption = Annotated[
    list[str],
    typer.Option(
        "--receive",
        metavar="QUEUE",
        help="RECEIVE on it: receive, and begin, send on and end the conversations of its services; may be repeated.",
    ),
]
ContractOption = Annotated[
    list[str], typer.Option("--contract", metavar="CONTRACT", help="REFERENCES on it; may be repeated.")
]
SqlOption = Annotated[bool, typer.Option("--sql", help="Print the statements, and run none.")]


@app.command()
def grant(
    role: RoleArgument,
    database: Annotated[
        str | None,
        typer.Option("--database", "-d", envvar="SERVICEBROKER_DATABASE", metavar="D", help="The broker database."),
    ] = None,
    send: SendOption = [],  # noqa: B006 # typer reads it
    receive: ReceiveOption = [],  # noqa: B006
    contract: ContractOption = [],  # noqa: B006
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_sql: SqlOption = False,
) -> None:
    """Let a role do the verbs, as a user of the broker database; any right on our tables is taken from it."""
    _change(instance, role, Wanted(database, send, receive, contract), granting, Instance.grant_rights, as_sql=as_sql)


@app.command()
def revoke(
    role: RoleArgument,
    database: DatabaseOption = None,
    send: SendOption = [],  # noqa: B006
    receive: ReceiveOption = [],  # noqa: B006
    contract: ContractOption = [],  # noqa: B006
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_sql: SqlOption = False,
) -> None:
    """Take permissions back: those that are named, all in the database, or without one every right of the role."""
    _change(instance, role, Wanted(database, send, receive, contract), revoking, Instance.revoke_rights, as_sql=as_sql)


@app.command()
def locks(instance: InstanceOption = DEFAULT_INSTANCE, as_sql: SqlOption = False) -> None:
    """As a superuser, take the functions that take the broker's locks from everybody but the roles that need them."""
    with open_existing(instance) as opened:
        if as_sql:
            _print(opened, closing_locks())
            return
        with opened.connection() as connection:
            in_transaction(connection, close_locks())
    say("Only the schema's owner, and roles that may write its tables, can take the broker's locks now.")


@app.command()
def show(
    role: Annotated[str | None, typer.Argument(metavar="[ROLE]", help="Every role, without it.")] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Say what a role can really do, by PostgreSQL's catalogs and the permissions of the broker."""
    with open_existing(instance) as opened:
        found = opened.show_rights(role)
    if as_json:
        say_json({"roles": [one._asdict() for one in found]})
    else:
        _show(found)


def _change(
    instance: str,
    role: str,
    wanted: Wanted,
    plan: Callable[[str, Wanted], Steps[list[Statement]]],
    change: Callable[..., None],
    *,
    as_sql: bool,
) -> None:
    """Change what a role may do and show what it can do then; with `as_sql` only print the statements of `plan`."""
    with open_existing(instance) as opened:
        if as_sql:
            _print(opened, plan(role, wanted))
        else:
            change(opened, role, **wanted._asdict())
            _show(opened.show_rights(role))


def _print(opened: Instance, plan: Steps[list[Statement]]) -> None:
    with opened.connection() as connection:
        statements = run(connection, plan)
    say_document("\n".join(["begin;", *map(_as_text, statements), "commit;", ""]))


def _as_text(statement: Statement) -> str:
    """A statement for psql, with its values."""
    values = [sql.Literal(value).as_string(None) for value in statement.parameters]
    return re.sub(r"\$(\d+)", lambda place: values[int(place[1]) - 1], statement.sql) + ";"


def _show(found: list[RoleRights]) -> None:
    for one in found:
        say(f"{one.role}: {_way(one)}")
        for user, permissions in one.users.items():
            say(f"  in {user}: {', '.join(permissions) or 'nothing'}")
        for right in one.direct:
            say(f"  past the verbs: {right}")
    if not found:
        say("No role but the owner's has any rights.")


def _way(one: RoleRights) -> str:
    if one.as_owner:
        return f"everything, since {one.as_owner}."
    if one.direct:
        return "what it likes with the tables below, whatever its permissions are."
    return "the verbs, as its permissions allow." if one.has_verbs else "nothing."
