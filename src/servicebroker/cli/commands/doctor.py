"""`servicebroker doctor`: what is wrong with an instance, or why one conversation does not go on, and what to do."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from servicebroker.api.instance import Instance
from servicebroker.cli.existing_instance import is_down, kept_certificates, open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.facts import find_timeouts, gather, gather_conversation
from servicebroker.engine.diagnosis.findings import (
    Finding,
    judge,
    judge_conversation,
    judge_disk,
    judge_down,
    judge_timeouts,
)
from servicebroker.engine.diagnosis.own_facts import gather_own, gather_own_conversation
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import connect, is_url
from servicebroker.store.running import run


def doctor(
    conversation: Annotated[
        UUID | None, typer.Option(metavar="HANDLE", help="Diagnose this conversation; needs --database.")
    ] = None,
    database: Annotated[
        str | None, typer.Option("--database", "-d", metavar="D", help="The broker database of the conversation.")
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Diagnose an instance: say what is wrong and what to do; exit code 1 if something is found."""
    if (conversation is None) != (database is None):
        raise typer.BadParameter("--conversation and --database go together")
    try:
        with open_existing(instance) as opened:
            findings = _look(opened) if conversation is None else _look_at(opened, database or "", conversation)
            if opened.engine is RestrictedVerbs and not as_json:
                say("Seen by a restricted role: its own queues and conversations.", error=True)
    except InstanceError as problem:
        if not is_down(instance, problem):
            raise
        findings = judge_down(str(problem), kept_certificates(instance), datetime.now(UTC))
    if not is_url(instance):
        used = shutil.disk_usage(instance)
        findings += judge_disk(instance, used.free, used.total)
    if as_json:
        say_json({"findings": [finding._asdict() for finding in findings]})
    else:
        for finding in findings:
            say(f"{finding.subject}: {finding.problem}", f"  {finding.advice}")
        say(f"{len(findings)} found." if findings else "Nothing wrong was found.")
    if findings:
        raise typer.Exit(1)


def _look(opened: Instance) -> list[Finding]:
    gathered = gather_own if opened.engine is RestrictedVerbs else gather
    with opened.connection() as connection:
        timeouts = run(connection, find_timeouts())
    with connect(opened.url, application_name="servicebroker doctor") as connection:  # which those do not cut
        return judge(run(connection, gathered(opened.clock()))) + judge_timeouts(timeouts)


def _look_at(opened: Instance, database: str, handle: UUID) -> list[Finding]:
    gathered = gather_own_conversation if opened.engine is RestrictedVerbs else gather_conversation
    found = opened.database(database)
    return judge_conversation(found._do(gathered(found.database_id, handle, opened.clock())))
