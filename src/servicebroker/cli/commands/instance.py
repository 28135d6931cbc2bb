"""`servicebroker init`, `check`, and `instance`: a copy in a file, another instance from it, one of its own server."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from servicebroker.api.shared.open import open_instance
from servicebroker.api.shared.preparation import prepare
from servicebroker.cli.diagnosed_instance import diagnose
from servicebroker.cli.existing_instance import must_exist, open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.engine.catalog.databases import SYSTEM_DATABASE
from servicebroker.engine.diagnosis.adoption import adopt as adopting
from servicebroker.engine.diagnosis.adoption import check_alone, databases
from servicebroker.engine.diagnosis.consistency import Report, check_parts
from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import counted
from servicebroker.store import copies
from servicebroker.store.connection import connect, is_url
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.home import COPY, UPGRADED, find_home, settle
from servicebroker.store.migrations import check_known
from servicebroker.store.migrations import mend as make_anew
from servicebroker.store.running import execute, in_transaction, run
from servicebroker.store.server import check_server

KEEP, NEW, ERROR = "keep", "new", "error"
LOST = {  # losses of an original
    NEW: "all its conversations and their messages will be lost.",
    ERROR: "all its conversations will get an Error.",
}

app = typer.Typer(no_args_is_help=True, add_completion=False, help="An instance as a whole.")


@app.callback()
def whole() -> None:
    """An instance as a whole."""


IdentifierOption = Annotated[
    str | None,
    typer.Option(
        metavar="keep|new|error",
        help="keep: it takes the original's place, which lost nothing; error: it does, and what came after the "
        "dump is lost (ERROR_BROKER_CONVERSATIONS); new: it stands beside the original (NEW_BROKER).",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The copy, as pg_dump -Fc makes it.")]


def init(
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: Annotated[str | None, typer.Option(help="A broker database to create, if it is missing.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an instance, or bring the schema of an existing one up to date."""
    with open_instance(instance) as opened:
        if database is not None:
            opened.database(database, create=True)
        if as_json:
            say_json({"instance": instance, "url": opened.url, "database": database})
            return
        say(f"The instance is ready: {instance}")
        say(f"Its PostgreSQL: {opened.url}")
        if database is not None:
            say(f"Broker database: {database}")


def check(
    mend: Annotated[bool, typer.Option("--mend", help="First recreate the broker's views and functions.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Check the consistency of everything stored; exit code 1 if something is wrong or could not be checked."""
    must_exist(instance)
    if mend:
        _settle_upgraded(instance)
        with open_existing(instance) as opened, opened.connection() as connection:
            make_anew(connection)
    with diagnose(instance, "servicebroker check", is_thorough=True) as diagnosed:
        report = Report({}, [])
        for part in check_parts(diagnosed.clock()):
            report = report.joined(diagnosed.look(part.subject, part.ask(), Report({}, [])))
        unseen = [*diagnosed.unseen]
        is_whole = diagnosed.tell_unseen()
    analyzed, findings = report
    if as_json:
        told = {"findings": [one._asdict() for one in findings], "unseen": [one._asdict() for one in unseen]}
        say_json({"analyzed": analyzed, **told})
    else:
        for finding in findings:
            say(f"Msg {finding.number}: {finding.text}")
        for kind, count in analyzed.items():
            say(f"{kind} analyzed: {count:,}.")
        say(f"{counted(len(findings), 'problem')} found.")
    if findings or not is_whole:
        raise typer.Exit(1)


def _settle_upgraded(instance: str) -> None:
    """Make the server that pg_upgrade has moved an instance to its home; who may not is refused by what follows."""
    with _reached(instance) as url, connect(url) as connection, suppress(psycopg.errors.InsufficientPrivilege):
        if find_home(connection) == UPGRADED:
            settle(connection)


@app.command()
def dump(file: FileArgument, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Write a consistent copy into a file: conversations, messages and your own tables. The instance may be in use."""
    if file.exists():
        raise InstanceError(f"'{file}' exists already: name another file.")
    must_exist(instance)
    with _server(instance) as url:
        copies.dump(url, file)
    say(f"The instance is in {file}. Copy its key folder too: it opens the master keys.")


@app.command()
def restore(
    file: FileArgument,
    instance: InstanceOption,
    identifier: IdentifierOption = None,
    no_privileges: Annotated[
        bool, typer.Option("--no-privileges", help="Leave out what was granted to roles of PostgreSQL.")
    ] = False,
) -> None:
    """Restore an instance from a dump, all or nothing, and adopt it. The PostgreSQL version may differ."""
    chosen = _chosen(identifier)
    if not file.is_file():
        raise InstanceError(f"There is no file '{file}'.")
    archive = copies.read(file)
    check_known(archive.migrations)
    with _place(instance) as url:
        _check_place(instance, url, [] if no_privileges else archive.roles)
        copies.restore(archive, url, privileges=not no_privileges)
        try:
            _adopt(instance, chosen)
        except Exception as problem:
            if not is_url(instance):
                raise
            raise InstanceError(
                f"{problem} The copy was restored, and is not adopted: mend that, and run servicebroker instance adopt "
                "before anything uses it."
            ) from problem


def _check_place(instance: str, url: str, roles: Sequence[str]) -> None:
    """Refuse a server that cannot hold the copy, before anything is made there."""
    with connect(url) as connection:
        check_server(connection, url)
        taken = execute(
            connection, "instance.check_place.find_schema", "select from pg_namespace where nspname = 'servicebroker'"
        )
        known = execute(
            connection,
            "instance.check_place.find_roles",
            "select rolname from pg_roles where rolname = any ($1)",
            list(roles),
        )
    if taken:
        raise InstanceError(f"There is an instance in '{instance}' already: restore into another place.")
    if missing := sorted(set(roles).difference(name for (name,) in known)):
        raise InstanceError(
            f"The copy holds rights of roles that the server does not have: {', '.join(missing)}. Create them, or "
            "leave out what was granted to roles with --no-privileges."
        )


@app.command()
def adopt(
    identifier: IdentifierOption = None, yes: YesOption = False, instance: InstanceOption = DEFAULT_INSTANCE
) -> None:
    """Give the rows of a restored copy transaction ids of this server. Run this before anything uses the copy."""
    chosen = _chosen(identifier)
    if chosen != KEEP and not yes and not _is_copy(instance):
        must_exist(instance)
        typer.confirm(
            f"'{instance}' looks like an original, not like a copy: {LOST[chosen]} Go on?",
            abort=True,
        )
    _adopt(instance, chosen)


def _is_copy(instance: str) -> bool:
    """Return whether the instance is known to be a copy, by its folder here or by the server that made it."""
    with _reached(instance) as url, connect(url) as connection:
        return find_home(connection) == COPY or (not is_url(instance) and EmbeddedServer.is_copy(instance))


def _chosen(identifier: str | None) -> str:
    if identifier is None:
        if not sys.stdin.isatty():
            raise typer.BadParameter("say --identifier keep, new or error")
        identifier = str(typer.prompt("Broker identifiers: keep, new or error"))
    if identifier not in (KEEP, NEW, ERROR):
        raise typer.BadParameter("--identifier is keep, new or error")
    return identifier


def _adopt(instance: str, identifier: str) -> None:
    with _reached(instance) as url, connect(url) as connection:
        run(connection, check_alone())
        changed = in_transaction(connection, adopting(beside=identifier == NEW))
        make_anew(connection)
        names = run(connection, databases())
        if not is_url(instance):
            EmbeddedServer.settle(instance)
    with open_existing(instance) as opened:
        for name in names:
            if identifier != KEEP and name != SYSTEM_DATABASE:
                database = opened.database(name)
                database.alter(new_broker=identifier == NEW, error_broker_conversations=identifier == ERROR)
    say(f"The instance is adopted. Rows that got a transaction number of this server: {changed:,}.")
    say(
        {
            KEEP: "Its broker identifiers are those of the original, which must not run any more.",
            NEW: "Each database has another broker identifier and no conversations. If the instance has a network "
            "endpoint, it is stopped: give it a port of its own before you start it.",
            ERROR: "Every conversation has its Error; the applications begin anew.",
        }[identifier]
    )
    say("Start each Spark pipeline with a new checkpoint.")


@contextmanager
def _server(target: str, *, takes_copies: bool = False) -> Iterator[str]:
    """The URL of a server that exists."""
    if is_url(target):
        yield target
        return
    with EmbeddedServer.join(target, takes_copies=takes_copies) as server:
        yield server.url


@contextmanager
def _place(target: str) -> Iterator[str]:
    """The URL of a server; in a data folder without one it is made, and unmade when the block fails."""
    if is_url(target) or EmbeddedServer.exists(target):
        with _server(target) as url:
            yield url
        return
    with EmbeddedServer.made(target) as server:
        yield server.url


@contextmanager
def _reached(target: str) -> Iterator[str]:
    """The URL of an instance that exists, its schema up to date, without a connection that stays."""
    must_exist(target)
    with _server(target, takes_copies=True) as url:
        prepare(url, takes_copies=True)
        yield url
