"""`servicebroker instance adopt`: a restored copy becomes an instance of its own server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from servicebroker.api.preparation import prepare
from servicebroker.cli.existing import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption
from servicebroker.engine.adopting import adopt as adopting
from servicebroker.engine.adopting import check_alone, databases
from servicebroker.engine.databases import SYSTEM_DATABASE
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import connect, is_url
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.running import in_transaction, run

KEEP, NEW, ERROR = "keep", "new", "error"

app = typer.Typer(no_args_is_help=True, help="An instance as a whole.")


@app.callback()
def whole() -> None:
    """An instance as a whole."""


@app.command()
def adopt(
    identifier: Annotated[
        str | None,
        typer.Option(
            metavar="keep|new|error",
            help="keep: it takes the original's place, which lost nothing; error: it does, and what came after the "
            "dump is lost (ERROR_BROKER_CONVERSATIONS); new: it stands beside the original (NEW_BROKER).",
        ),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """After a restore, before anything uses the copy: give it stamps of its server, and decide on its identifiers."""
    if identifier is None:
        if not sys.stdin.isatty():
            raise typer.BadParameter("say --identifier keep, new or error")
        identifier = typer.prompt("Broker identifiers: keep, new or error")
    if identifier not in (KEEP, NEW, ERROR):
        raise typer.BadParameter("--identifier is keep, new or error")
    with _reached(instance) as url, connect(url) as connection:
        run(connection, check_alone())
        changed = in_transaction(connection, adopting(beside=identifier == NEW))
        names = run(connection, databases())
    with open_existing(instance) as opened:
        for name in names:
            if identifier != KEEP and name != SYSTEM_DATABASE:
                database = opened.database(name)
                database.alter(new_broker=identifier == NEW, error_broker_conversations=identifier == ERROR)
    typer.echo(f"The instance is adopted: {changed:,} stamps are of this server now.")
    typer.echo(
        {
            KEEP: "Its broker identifiers are those of the original, which must not run any more.",
            NEW: "Each database has another broker identifier and no conversations.",
            ERROR: "Every conversation has its Error; the applications begin anew.",
        }[identifier]
    )
    typer.echo("A Spark pipeline begins with a new checkpoint.")


@contextmanager
def _reached(target: str) -> Iterator[str]:
    """The URL of an instance that exists, its schema up to date, without a connection that stays."""
    if is_url(target):
        prepare(target)
        yield target
        return
    if not EmbeddedServer.exists(target):
        raise InstanceError(f"There is no instance in '{target}': make one with servicebroker init.")
    with EmbeddedServer.start(target) as server:
        prepare(server.url)
        yield server.url
