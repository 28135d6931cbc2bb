"""`servicebroker init`, `servicebroker check`, and `servicebroker instance dump | restore | adopt`."""

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
from servicebroker.cli.existing_instance import check_exists, open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.engine.catalog.databases import SYSTEM_DATABASE
from servicebroker.engine.diagnosis.adoption import adopt as adopting
from servicebroker.engine.diagnosis.adoption import check_alone, databases
from servicebroker.engine.diagnosis.consistency import Report, check_parts
from servicebroker.model.errors import InstanceError
from servicebroker.model.hidden_passwords import without_password
from servicebroker.model.wording import counted
from servicebroker.store import copies
from servicebroker.store.connection import connect, is_url
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.home import COPY, UPGRADED, find_home, settle
from servicebroker.store.migrations import check_known
from servicebroker.store.migrations import mend as recreate_views_and_functions
from servicebroker.store.running import execute, in_transaction, run
from servicebroker.store.server import check_server

KEEP, NEW, ERROR = "keep", "new", "error"
LOST = {  # the consequence for an original that is adopted as a copy
    NEW: "all its conversations and their messages will be lost.",
    ERROR: "all its conversations will get an Error.",
}

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Instances: dump, restore, adopt a copy.")


@app.callback()
def instances() -> None:
    """Instances: dump, restore, adopt a copy."""


IdentifierOption = Annotated[
    str | None,
    typer.Option(
        metavar="keep|new|error",
        help="keep: the copy replaces the original and has all its messages; error: it replaces the original, whose "
        "later messages are lost (ERROR_BROKER_CONVERSATIONS); new: both go on (NEW_BROKER).",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of the copy, in the custom format of pg_dump (-Fc).")
]


def init(
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: Annotated[
        str | None, typer.Option(metavar="NAME", help="A broker database to create if missing.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create an instance, or upgrade the schema of an existing one."""
    with open_instance(instance) as opened:
        if database is not None:
            opened.database(database, create=True)
        if as_json:
            urls = {"instance": without_password(instance), "url": without_password(opened.url)}
            say_json(urls | {"database": database})
            return
        say(f"The instance is ready: {without_password(instance)}")
        say(f"Its PostgreSQL: {without_password(opened.url)}")
        if database is not None:
            say(f"Broker database: {database}")


def check(
    mend: Annotated[bool, typer.Option("--mend", help="First recreate the broker's views and functions.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Check the consistency of the stored data; exit code 1 if there are problems or a check has failed."""
    check_exists(instance)
    if mend:
        _settle_upgraded(instance)
        with open_existing(instance) as opened, opened.connection() as connection:
            recreate_views_and_functions(connection)
    with diagnose(instance, "servicebroker check", is_thorough=True) as diagnosed:
        report = Report({}, [])
        for part in check_parts(diagnosed.clock()):
            report = report.joined(diagnosed.query(part.subject, part.ask(), Report({}, [])))
        failures = [*diagnosed.failed_queries]
        is_complete = diagnosed.report_failed_queries()
    analyzed, findings = report
    if as_json:
        say_json(
            {
                "analyzed": analyzed,
                "findings": [finding._asdict() for finding in findings],
                "unseen": [failure._asdict() for failure in failures],
            }
        )
    else:
        for finding in findings:
            say(f"Msg {finding.number}: {finding.text}")
        for kind, count in analyzed.items():
            say(f"{kind} analyzed: {count:,}.")
        say(f"{counted(len(findings), 'problem')} found.")
    if findings or not is_complete:
        raise typer.Exit(1)


def _settle_upgraded(instance: str) -> None:
    """Record the server as the instance's own, if pg_upgrade has moved the instance there.

    A role without the right to do so is ignored: the next step of the command reports it.
    """
    with _prepared(instance) as url, connect(url) as connection, suppress(psycopg.errors.InsufficientPrivilege):
        if find_home(connection) == UPGRADED:
            settle(connection)


@app.command()
def dump(file: FileArgument, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Write a consistent copy to a file: conversations, messages and your own tables. The instance may be in use."""
    if file.exists():
        raise InstanceError(f"'{file}' exists already: name another file.")
    check_exists(instance)
    with _server(instance) as url:
        copies.dump(url, file)
    say(f"The instance is in {file}. Copy its key folder too: it opens the master keys.")


@app.command()
def restore(
    file: FileArgument,
    instance: InstanceOption,
    identifier: IdentifierOption = None,
    no_privileges: Annotated[
        bool, typer.Option("--no-privileges", help="Do not restore privileges of PostgreSQL roles.")
    ] = False,
) -> None:
    """Restore an instance from a dump, all or nothing, and adopt it. The PostgreSQL version may differ."""
    choice = _choose_identifier(identifier)
    if not file.is_file():
        raise InstanceError(f"There is no file '{file}'.")
    archive = copies.read(file)
    check_known(archive.migrations)
    with _restore_target(instance) as url:
        _check_target(instance, url, [] if no_privileges else archive.roles)
        copies.restore(archive, url, privileges=not no_privileges)
        try:
            _adopt(instance, choice)
        except Exception as problem:
            if not is_url(instance):
                raise
            raise InstanceError(
                f"{problem} The copy was restored, but not adopted. Remove the cause, and run servicebroker instance "
                "adopt before any program uses the copy."
            ) from problem


def _check_target(instance: str, url: str, roles: Sequence[str]) -> None:
    """Refuse a server that cannot hold the copy, before anything is written there.

    Raises:
        InstanceError: the server is unsuitable, has an instance already, or lacks one of the roles.
    """
    with connect(url) as connection:
        check_server(connection, url)
        has_instance = execute(
            connection, "instance.check_target.find_schema", "select from pg_namespace where nspname = 'servicebroker'"
        )
        known_roles = execute(
            connection,
            "instance.check_target.find_roles",
            "select rolname from pg_roles where rolname = any ($1)",
            list(roles),
        )
    if has_instance:
        raise InstanceError(f"There is an instance in '{without_password(instance)}' already: name another --instance.")
    if missing := sorted(set(roles).difference(name for (name,) in known_roles)):
        raise InstanceError(
            f"The copy has privileges of roles that the server does not have: {', '.join(missing)}. Create these "
            "roles, or restore without privileges by --no-privileges."
        )


@app.command()
def adopt(
    identifier: IdentifierOption = None, yes: YesOption = False, instance: InstanceOption = DEFAULT_INSTANCE
) -> None:
    """Adapt a restored copy to this server's transaction ids. Run this before any program uses the copy."""
    choice = _choose_identifier(identifier)
    if choice != KEEP and not yes and not _is_copy(instance):
        check_exists(instance)
        typer.confirm(
            f"'{without_password(instance)}' looks like an original, not like a copy: {LOST[choice]} Go on?",
            abort=True,
        )
    _adopt(instance, choice)


def _is_copy(instance: str) -> bool:
    """Return whether the instance is known to be a copy: another server has written it, or its folder was copied."""
    with _prepared(instance) as url, connect(url) as connection:
        return find_home(connection) == COPY or (not is_url(instance) and EmbeddedServer.is_copy(instance))


def _choose_identifier(identifier: str | None) -> str:
    """Return the value of --identifier; without one, prompt for it on a terminal."""
    if identifier is None:
        if not sys.stdin.isatty():
            raise typer.BadParameter("give --identifier keep, new or error")
        identifier = str(typer.prompt("Broker identifiers: keep, new or error"))
    if identifier not in (KEEP, NEW, ERROR):
        raise typer.BadParameter("--identifier is keep, new or error")
    return identifier


def _adopt(instance: str, identifier: str) -> None:
    with _prepared(instance) as url, connect(url) as connection:
        run(connection, check_alone())
        changed_rows = in_transaction(connection, adopting(beside=identifier == NEW))
        recreate_views_and_functions(connection)
        names = run(connection, databases())
        if not is_url(instance):
            EmbeddedServer.settle(instance)
    with open_existing(instance) as opened:
        for name in names:
            if identifier != KEEP and name != SYSTEM_DATABASE:
                database = opened.database(name)
                database.alter(new_broker=identifier == NEW, error_broker_conversations=identifier == ERROR)
    say(f"The instance is adopted. Rows that got a transaction id of this server: {changed_rows:,}.")
    say(
        {
            KEEP: "It has the broker identifiers of the original, which must not run any more.",
            NEW: "Each database has a new broker identifier and no conversations. If the instance has a network "
            "endpoint, it is stopped: give it a port of its own before you start it.",
            ERROR: "Every conversation has ended with an Error; the applications begin new ones.",
        }[identifier]
    )
    say("Start each Spark pipeline with a new checkpoint.")


@contextmanager
def _server(target: str, *, accepts_copies: bool = False) -> Iterator[str]:
    """Yield the URL of an existing server; join an embedded one for the block."""
    if is_url(target):
        yield target
        return
    with EmbeddedServer.join(target, accepts_copies=accepts_copies) as server:
        yield server.url


@contextmanager
def _restore_target(target: str) -> Iterator[str]:
    """Yield the URL of the server to restore into. A missing data folder is created, and removed if the block fails."""
    if is_url(target) or EmbeddedServer.exists(target):
        with _server(target) as url:
            yield url
        return
    with EmbeddedServer.made(target) as server:
        yield server.url


@contextmanager
def _prepared(target: str) -> Iterator[str]:
    """Yield the URL of an existing instance, which may be a copy, after upgrading its schema."""
    check_exists(target)
    with _server(target, accepts_copies=True) as url:
        prepare(url, accepts_copies=True)
        yield url
