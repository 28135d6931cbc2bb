"""`servicebroker doctor`: what is wrong with an instance, or why one conversation does not go on, and what to do."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from servicebroker.cli.diagnosed_instance import DiagnosedInstance, diagnose
from servicebroker.cli.existing_instance import is_down, kept_certificates
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.facts import gather_conversation, looks
from servicebroker.engine.diagnosis.findings import (
    Facts,
    Finding,
    judge,
    judge_conversation,
    judge_daemon_version,
    judge_disk,
    judge_down,
    judge_hosts,
    judge_log,
    judge_refused,
    judge_schema,
    judge_timeouts,
    judge_unseen,
)
from servicebroker.engine.diagnosis.own_facts import gather_own, gather_own_conversation
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import is_url
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.migrations import this_version

_PROGRAM = "servicebroker doctor"


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
        with diagnose(instance, _PROGRAM) as opened:
            findings = _look(opened) if conversation is None else _look_at(opened, database or "", conversation)
            findings += judge_unseen(opened.unseen)
            if not is_url(instance) and (lost := EmbeddedServer.lost_log(instance)) is not None:
                findings.append(judge_log(str(lost.path), str(lost.written or "")))
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


def _look(opened: DiagnosedInstance) -> list[Finding]:
    facts = Facts(opened.clock())
    if opened.engine is RestrictedVerbs:
        facts = opened.look("what is its own", gather_own(facts.now), facts)
    else:
        for one in looks():
            facts = opened.look(one.subject, one.ask(facts), facts)
    findings = judge(facts) + judge_timeouts(opened.find_timeouts())
    if opened.inspected is not None:
        findings += judge_schema(opened.inspected.schema, this_version())
    if facts.daemon is not None:
        findings += judge_daemon_version(facts.daemon.reports, this_version())
    return [*judge_hosts(opened.find_hosts()), *judge_refused(opened.refusal), *findings]


def _look_at(opened: DiagnosedInstance, database: str, handle: UUID) -> list[Finding]:
    gathered = gather_own_conversation if opened.engine is RestrictedVerbs else gather_conversation
    database_id = opened.look("the database", opened.engine.find_database(database, create=False), None)
    if database_id is None:
        return []
    facts = opened.look("the conversation", gathered(database_id, handle, opened.clock()), None)
    return [] if facts is None else judge_conversation(facts)
