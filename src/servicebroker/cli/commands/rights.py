"""`servicebroker rights`: the rights of restricted PostgreSQL roles, which may use Service Broker and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

import typer
from psycopg import sql

from servicebroker.api.instance import Instance
from servicebroker.cli.amounts import read_amounts
from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.operation_commands import takes
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_document, say_json
from servicebroker.engine.security.budgets import RoleBudget
from servicebroker.engine.security.role_rights import RoleRights, close_locks, plan_lock_closing, statements_of
from servicebroker.operations.rights import GrantRights, RevokeRights
from servicebroker.store.running import in_transaction, run
from servicebroker.store.statements import Statement, Steps

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Rights of restricted PostgreSQL roles, which may use Service Broker and nothing else.",
)

SqlOption = Annotated[bool, typer.Option("--sql", help="Print the SQL statements instead of running them.")]

_OPTIONS = {"contracts": "--contract"}


@app.command()
@takes(GrantRights, without={"database"}, options=_OPTIONS)
def grant(
    operation: GrantRights,
    database: Annotated[
        str | None,
        typer.Option("--database", "-d", envvar="SERVICEBROKER_DATABASE", metavar="NAME", help="The broker database."),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_sql: SqlOption = False,
) -> None:
    """Let a PostgreSQL role act as a user of the broker database. Revokes its rights on the broker's tables."""
    _change(instance, replace(operation, database=database), as_sql=as_sql)


@app.command()
@takes(RevokeRights, without={"database"}, options=_OPTIONS)
def revoke(
    operation: RevokeRights,
    # not from the environment: without --database every right is revoked
    database: Annotated[
        str | None, typer.Option("--database", "-d", metavar="NAME", help="The broker database.")
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_sql: SqlOption = False,
) -> None:
    """Revoke the named rights of a role. Without names: all its rights in --database, or in every database."""
    _change(instance, replace(operation, database=database), as_sql=as_sql)


@app.command()
def locks(instance: InstanceOption = DEFAULT_INSTANCE, as_sql: SqlOption = False) -> None:
    """Revoke PostgreSQL's advisory lock functions from roles that do not need them. Needs a superuser."""
    with open_existing(instance) as opened:
        if as_sql:
            _print(opened, plan_lock_closing())
            return
        with opened.connection() as connection:
            in_transaction(connection, close_locks())
    say("Only the schema's owner, and roles that may write its tables, can use advisory lock functions now.")


@app.command()
def budget(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A PostgreSQL role with granted rights.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="RESOURCE=AMOUNT", help=f"One of {', '.join(RoleBudget._fields)}; may be repeated."
        ),
    ] = None,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Remove the limits of all other resources.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show or change a restricted role's limits: conversations, and waiting messages and bytes on each."""
    amounts = read_amounts(changes or (), RoleBudget._fields)
    with open_existing(instance) as opened:
        if no_limits:
            opened.set_role_budget(role, None)
        new_budget = opened.set_role_budget(role, amounts)
    if as_json:
        say_json({"role": role, "budget": new_budget._asdict()})
        return
    for resource, amount in new_budget._asdict().items():
        say(f"{resource}: {'no limit' if amount is None else f'{amount:,}'}")


@app.command()
def show(
    role: Annotated[
        str | None, typer.Argument(metavar="[ROLE]", help="The PostgreSQL role. Default: all roles.")
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show the effective rights of a role, from PostgreSQL's catalogs and the broker's permissions."""
    with open_existing(instance) as opened:
        roles = opened.show_rights(role)
    if as_json:
        say_json({"roles": [rights._asdict() for rights in roles]})
    else:
        _show(roles)


def _change(instance: str, operation: GrantRights | RevokeRights, *, as_sql: bool) -> None:
    """Run the operation and show the rights of the role then; with `as_sql` only print the statements."""
    with open_existing(instance) as opened:
        if as_sql:
            _print(opened, statements_of(operation))
        else:
            opened.run(operation)
            _show(opened.show_rights(operation.role))


def _print(opened: Instance, plan: Steps[list[Statement]]) -> None:
    with opened.connection() as connection:
        statements = run(connection, plan)
    say_document("\n".join(["begin;", *map(_as_text, statements), "commit;", ""]))


def _as_text(statement: Statement) -> str:
    """Return a statement for psql, with literals in place of its parameters."""
    values = [sql.Literal(value).as_string(None) for value in statement.parameters]
    return re.sub(r"\$(\d+)", lambda parameter: values[int(parameter[1]) - 1], statement.sql) + ";"


def _show(roles: list[RoleRights]) -> None:
    for rights in roles:
        say(f"{rights.role}: {_summarize(rights)}")
        for user, permissions in rights.users.items():
            say(f"  in {user}: {', '.join(permissions) or 'nothing'}")
        for right in rights.direct:
            say(f"  direct access: {right}")
    if not roles:
        say("No role but the owner has any rights.")


def _summarize(rights: RoleRights) -> str:
    if rights.as_owner:
        return f"may do everything, since {rights.as_owner}."
    if rights.direct:
        return "has direct access to the tables below, so the broker's permissions do not restrict it."
    return "may use Service Broker, as its permissions allow." if rights.has_verbs else "has no rights."
