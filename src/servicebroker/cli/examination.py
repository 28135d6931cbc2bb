"""The examination of an instance, as doctor and the dashboard make it: the same looks, and the same judgement."""

from __future__ import annotations

from servicebroker.cli.diagnosed_instance import DiagnosedInstance
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.daemon_findings import judge_daemon_version
from servicebroker.engine.diagnosis.fact_types import Facts
from servicebroker.engine.diagnosis.facts import looks
from servicebroker.engine.diagnosis.findings import Finding
from servicebroker.engine.diagnosis.judgement import judge, judge_schema
from servicebroker.engine.diagnosis.own_facts import gather_own
from servicebroker.engine.diagnosis.server_findings import judge_hosts, judge_refused, judge_timeouts
from servicebroker.store.migrations import this_version


def gather(opened: DiagnosedInstance, *, at_a_glance: bool = False) -> Facts:
    """Return the facts about an instance, each look with its deadline; `at_a_glance`: for polls every second."""
    facts = Facts(opened.clock())
    if opened.engine is RestrictedVerbs:
        return opened.look("what is its own", gather_own(facts.now), facts)
    for one in looks(at_a_glance=at_a_glance):
        facts = opened.look(one.subject, one.ask(facts), facts)
    return facts


def judge_instance(opened: DiagnosedInstance, facts: Facts) -> list[Finding]:
    """Return the problems of the instance, also of its schema and its daemon's version."""
    findings = judge(facts)
    if opened.inspected is not None:
        findings += judge_schema(opened.inspected.schema, this_version())
    if facts.daemon is not None:
        findings += judge_daemon_version(facts.daemon.reports, this_version())
    return findings


def judge_access(opened: DiagnosedInstance) -> list[Finding]:
    """Return findings about access to the server: its hosts, refusals and timeouts. Opens connections of its own."""
    return [
        *judge_hosts(opened.find_hosts()),
        *judge_refused(opened.refusal),
        *judge_timeouts(opened.find_timeouts()),
    ]
