"""`servicebroker doctor`: finds the problems of an instance, or of one conversation, with advice for each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from servicebroker.cli.completion import complete_database
from servicebroker.cli.diagnosed_instance import DiagnosedInstance, diagnose
from servicebroker.cli.examination import find_users_of_disk, gather, judge_access, judge_disk_of, judge_instance
from servicebroker.cli.existing_instance import is_down, kept_certificates
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.cli.tables import say_state
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.conversation_findings import judge_conversation, judge_dead_letters
from servicebroker.engine.diagnosis.dashboard_queries import dead_letters_of_both_sides, endpoint
from servicebroker.engine.diagnosis.disk_usage import DiskUsage
from servicebroker.engine.diagnosis.facts import gather_conversation
from servicebroker.engine.diagnosis.findings import Finding, Severity
from servicebroker.engine.diagnosis.judgement import judge_failed_queries
from servicebroker.engine.diagnosis.own_facts import gather_own_conversation
from servicebroker.engine.diagnosis.server_findings import judge_down, judge_log
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import is_url
from servicebroker.store.embedded import EmbeddedServer

_PROGRAM = "servicebroker doctor"


def doctor(
    conversation: Annotated[
        UUID | None, typer.Option(metavar="HANDLE", help="Diagnose this conversation, by the handle of either side.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            "-d",
            envvar="SERVICEBROKER_DATABASE",
            metavar="NAME",
            help="The broker database of the conversation. Default: the one that has the handle.",
            autocompletion=complete_database,
        ),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Diagnose an instance: print problems, each with what to do. Exit code 1 if there are problems."""
    usage = DiskUsage()
    try:
        with diagnose(instance, _PROGRAM) as opened:
            if conversation is None:
                findings = judge_instance(opened, gather(opened))
                findings = [*judge_access(opened), *findings]
                usage = find_users_of_disk(opened)
            else:
                findings = _diagnose_conversation(opened, database, conversation)
            findings += judge_failed_queries(opened.failed_queries)
            if not is_url(instance) and (lost := EmbeddedServer.lost_log(instance)) is not None:
                findings.append(judge_log(str(lost.path), str(lost.written or "")))
            if opened.engine is RestrictedVerbs and not as_json:
                say(
                    "The role is restricted: doctor has read its own queues and conversations only, without dead "
                    "letters and the limits of all workers (global_concurrency, global_rate). The owner's doctor shows "
                    "them.",
                    error=True,
                )
    except InstanceError as problem:
        if not is_down(instance, problem):
            raise
        findings = judge_down(str(problem), kept_certificates(instance), datetime.now(UTC))
    findings += judge_disk_of(instance, usage)
    problems = sum(finding.severity > Severity.NOTE for finding in findings)
    if as_json:
        say_json({"findings": [_to_json(finding) for finding in findings]})
    else:
        for finding in findings:
            say_state(finding.subject, finding.severity.name.lower(), f": {finding.problem}")
            say(f"  {finding.advice}")
        say(f"{problems} found." if problems else "Nothing wrong was found.")
    if problems:
        raise typer.Exit(1)


def _to_json(finding: Finding) -> dict[str, str]:
    severity = finding.severity.name.lower()
    return {"subject": finding.subject, "problem": finding.problem, "advice": finding.advice, "severity": severity}


def _diagnose_conversation(opened: DiagnosedInstance, database: str | None, handle: UUID) -> list[Finding]:
    """Return the findings about a conversation of this database, by default of the one that has the handle.

    Raises:
        BrokerError: 8426 no such conversation.
        typer.BadParameter: a restricted role, which sees its own conversations only, has named no database.
    """
    if database is None and opened.engine is RestrictedVerbs:
        raise typer.BadParameter("a restricted role has to name the database of the conversation: --database")
    if database is None:
        side = opened.query("the conversation", endpoint(handle), None)
        if side is None:
            return []
        database = side.database
    gather_facts = gather_own_conversation if opened.engine is RestrictedVerbs else gather_conversation
    database_id = opened.query("the database", opened.engine.find_database(database, create=False), None)
    if database_id is None:
        return []
    facts = opened.query("the conversation", gather_facts(database_id, handle, opened.clock()), None)
    if facts is None:
        return []
    return [*judge_conversation(facts), *_dead_letters(opened, handle)]


def _dead_letters(opened: DiagnosedInstance, handle: UUID) -> list[Finding]:
    """Report the dead letters of both sides of a conversation."""
    if opened.engine is RestrictedVerbs:
        return []
    return judge_dead_letters(handle, opened.query("dead letters", dead_letters_of_both_sides(handle), []))
