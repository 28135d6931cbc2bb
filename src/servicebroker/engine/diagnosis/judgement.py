"""The findings of `servicebroker doctor` about the facts of an instance. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from servicebroker.engine.diagnosis.client_findings import judge_clients
from servicebroker.engine.diagnosis.daemon_findings import judge_clocks, judge_daemon, judge_network, judge_replaced
from servicebroker.engine.diagnosis.fact_types import Facts, FailedQueryFacts
from servicebroker.engine.diagnosis.findings import Finding, Severity
from servicebroker.engine.diagnosis.peer_findings import (
    judge_certificates,
    judge_claims,
    judge_disputes,
    judge_old_copies,
    judge_refusals,
    judge_unfinished,
)
from servicebroker.engine.diagnosis.queue_findings import (
    judge_dead_letters_of_queues,
    judge_disabled,
    judge_late,
    judge_queue,
    judge_waits,
)
from servicebroker.engine.diagnosis.server_findings import judge_commits, judge_publications, judge_settings
from servicebroker.engine.diagnosis.session_findings import judge_neighbours, judge_sessions, judge_table_locks
from servicebroker.model.schema_difference import SchemaDifference


def judge(facts: Facts) -> list[Finding]:
    """Return the findings about the instance; none if it has no problem."""
    now = facts.now
    return [
        *judge_settings(facts),
        *judge_commits(facts),
        *judge_table_locks(facts.table_locks, now),
        *_definitions(facts),
        *judge_disabled(facts.disabled),
        *(finding for queue in facts.queues for finding in judge_queue(queue, now)),
        *judge_dead_letters_of_queues(facts.dead_letters, now),
        *judge_waits(facts),
        *judge_network(facts),
        *judge_clocks(facts.clocks, now),
        *judge_daemon(facts.daemon, now),
        *judge_replaced(facts.processes, now),
        *judge_refusals(facts.refusals, now),
        *judge_clients(facts.tds_servers, facts.tds_refusals, now),
        *judge_disputes(facts.disputes),
        *judge_claims(facts.peers, now),
        *judge_old_copies(facts.old_copies, now),
        *judge_unfinished(facts.unfinished, now),
        *judge_certificates(facts.certificates, now),
        *judge_sessions(facts.sessions, now),
        *judge_neighbours(facts.neighbours, now),
        *judge_publications(facts.publications),
        *judge_late(facts.late),
    ]


def judge_schema(schema: SchemaDifference, version: str) -> list[Finding]:
    """Report a schema of another version. Diagnosis does not migrate it."""
    if not schema.missing and not schema.unknown:
        return []
    age, advice = "an older", "upgrade: stop all processes of the instance, run servicebroker init, and start them."
    if schema.unknown:
        age, advice = "a newer", "upgrade servicebroker here."
    return [
        Finding(
            "schema",
            f"It is number {schema.number}, of {age} servicebroker than this one ({version}), which may miss "
            "problems and has changed nothing.",
            f"Run servicebroker doctor of that version, or {advice}",
            Severity.WARNING,
        )
    ]


def judge_failed_queries(unseen: Iterable[FailedQueryFacts]) -> list[Finding]:
    """Report queries that have failed: without a finding, their subject would seem to have no problem."""
    return [
        Finding(
            "doctor",
            f"The query of {failed.subject} failed: {failed.reason}",
            "Run doctor again. If the query fails again, pg_stat_activity and pg_locks show what it waits for."
            if failed.is_cut
            else "The other findings are valid.",
        )
        for failed in unseen
    ]


def _definitions(facts: Facts) -> Iterator[Finding]:
    for changed_object in facts.changed:
        advice = (
            "Undo the change, or restore a backup: recreating it would lose its contents."
            if changed_object.startswith(("the table", "the trigger", "the index", "the sequence"))
            else "servicebroker check --mend recreates views and functions. For what it still finds, restore a backup."
        )
        yield Finding("schema", f"Somebody has changed the broker's own schema: {changed_object}.", advice)
    if facts.is_foreign:
        yield Finding(
            "schema",
            "The schema was made by another PostgreSQL, or is a restored copy: changes of it cannot be detected.",
            "servicebroker check --mend recreates views and functions, and records all definitions for later checks.",
            Severity.WARNING,
        )
