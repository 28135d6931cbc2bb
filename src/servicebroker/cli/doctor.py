"""`servicebroker doctor`: what is wrong with an instance, or why one conversation does not go on, and what to do."""

from __future__ import annotations

import json
from typing import Annotated
from uuid import UUID

import typer

from servicebroker.cli.existing import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.texts import printable
from servicebroker.engine.diagnosis.facts import gather, gather_conversation
from servicebroker.engine.diagnosis.findings import Finding, judge, judge_conversation
from servicebroker.store.running import run


def doctor(
    conversation: Annotated[
        UUID | None, typer.Option(metavar="HANDLE", help="Why this conversation does not go on; needs --database.")
    ] = None,
    database: Annotated[str | None, typer.Option(metavar="D", help="The broker database of the conversation.")] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Say in words what is wrong and what to do; exit code 1 when something is found."""
    if (conversation is None) != (database is None):
        raise typer.BadParameter("--conversation and --database go together")
    with open_existing(instance) as opened:
        findings: list[Finding]
        if conversation is None or database is None:
            with opened.connection() as connection:
                findings = judge(run(connection, gather(opened.clock())))
        else:
            found = opened.database(database)
            findings = judge_conversation(
                found._do(gather_conversation(found.database_id, conversation, opened.clock()))
            )
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        for finding in findings:
            typer.echo(f"{finding.subject}: {printable(finding.problem)}\n  {finding.advice}")
        typer.echo(f"{len(findings)} found." if findings else "Nothing wrong was found.")
    if findings:
        raise typer.Exit(1)
