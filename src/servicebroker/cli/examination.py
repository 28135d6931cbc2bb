"""The diagnosis of an instance, for `servicebroker doctor` and the dashboard: gather facts, then find problems."""

from __future__ import annotations

import shutil

from servicebroker.cli.diagnosed_instance import DiagnosedInstance
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.daemon_findings import judge_daemon_version
from servicebroker.engine.diagnosis.disk_usage import DiskUsage, find_disk_usage, judge_disk_usage, largest
from servicebroker.engine.diagnosis.fact_types import Facts
from servicebroker.engine.diagnosis.facts import fact_queries
from servicebroker.engine.diagnosis.findings import Finding
from servicebroker.engine.diagnosis.judgement import judge, judge_schema
from servicebroker.engine.diagnosis.own_facts import gather_own
from servicebroker.engine.diagnosis.server_findings import judge_disk, judge_hosts, judge_refused, judge_timeouts
from servicebroker.store.connection import is_url
from servicebroker.store.migrations import this_version


def gather(opened: DiagnosedInstance, *, is_quick: bool = False) -> Facts:
    """Return the facts about an instance; each query has a deadline.

    `is_quick`: counts of messages stop early, so that the queries may run every second. A restricted role gets the
    facts of its own queues only.
    """
    facts = Facts(opened.clock())
    if opened.engine is RestrictedVerbs:
        return opened.query("queues and conversations of the role", gather_own(facts.now), facts)
    for query in fact_queries(is_quick=is_quick):
        facts = opened.query(query.subject, query.ask(facts), facts)
    return facts


def judge_instance(opened: DiagnosedInstance, facts: Facts) -> list[Finding]:
    """Return the findings about the instance, its schema and the version of its daemon."""
    findings = judge(facts)
    if opened.inspected is not None:
        findings += judge_schema(opened.inspected.schema, this_version())
    if facts.daemon is not None:
        findings += judge_daemon_version(facts.daemon.reports, this_version())
    return findings


def find_users_of_disk(opened: DiagnosedInstance) -> DiskUsage:
    """Return the largest users of the server's disk; none for a restricted role."""
    if opened.engine is RestrictedVerbs:
        return DiskUsage()
    return opened.query("users of the disk", find_disk_usage(), DiskUsage())


def judge_disk_of(target: str, usage: DiskUsage) -> list[Finding]:
    """Return findings about the disk: a data folder without free space, and large users."""
    findings: list[Finding] = []
    if not is_url(target):
        used = shutil.disk_usage(target)
        findings = judge_disk(target, used.free, used.total)
    if users := largest(usage):
        findings = [finding._replace(advice=f"{finding.advice} Most of it: {users}.") for finding in findings]
    return [*findings, *judge_disk_usage(usage)]


def judge_access(opened: DiagnosedInstance) -> list[Finding]:
    """Return findings about hosts of the URL, an unsuitable server, and timeouts of the role.

    Opens a connection for each host and one for the timeouts.
    """
    return [
        *judge_hosts(opened.find_hosts()),
        *judge_refused(opened.refusal),
        *judge_timeouts(opened.find_timeouts()),
    ]
