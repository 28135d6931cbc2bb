"""The query of each page, with the functions that status, doctor and poison use: there is one judgement."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.api.instance import Instance
from servicebroker.dashboard.snapshot_cache import CounterName, ObservedInstance
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis import dashboard_queries, poison_report
from servicebroker.engine.diagnosis.audit import find_acts
from servicebroker.engine.diagnosis.counters import message_flows
from servicebroker.engine.diagnosis.facts import gather, gather_conversation, queue_facts
from servicebroker.engine.diagnosis.findings import (
    Facts,
    Finding,
    QueueFacts,
    judge,
    judge_conversation,
    judge_disk,
    judge_queue,
)
from servicebroker.engine.diagnosis.history import SAMPLE_INTERVAL_S, Course, courses, whole_course
from servicebroker.engine.diagnosis.own_facts import gather_own, gather_own_conversation
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, refusals, share_of
from servicebroker.engine.diagnosis.totals import statement_totals
from servicebroker.engine.diagnosis.trail import life
from servicebroker.engine.security.certificate_ages import find_used_certificates
from servicebroker.model.errors import BrokerError
from servicebroker.model.remedies import after_status
from servicebroker.model.wording import shown
from servicebroker.protocol.explanation import words
from servicebroker.store.connection import is_url
from servicebroker.store.running import run

MAX_QUEUES = 300  # on one page
SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=30)}

PageQuery = Mapping[str, str]  # the query string of the page's address


class QueueLine(NamedTuple):
    """A queue in a list. `is_more`: not all of its messages were counted. `facts` are doctor's."""

    database: str
    name: str
    services: list[str]
    messages: int
    is_more: bool
    oldest: datetime | None
    came: float
    left: float
    facts: QueueFacts
    course: Course | None


class Summary(NamedTuple):
    """The state of an instance at a glance."""

    now: datetime
    findings: list[Finding]
    came: float
    left: float
    messages: int
    is_more: bool
    oldest: datetime | None
    waiting: int
    queues: int
    off: int
    readers: int
    peers: int
    course: Course | None


def overview(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], Summary]:
    """Return the query for findings and rates."""

    def look(instance: Instance) -> Summary:
        facts = _facts(instance)
        with instance.connection() as connection:
            links = [] if instance.engine is RestrictedVerbs else run(connection, dashboard_queries.links())
            course = (
                None if instance.engine is RestrictedVerbs else run(connection, whole_course(*_span(facts.now, fields)))
            )
        came, left = _rates(observed, instance)
        ages = [queue.oldest for queue in facts.queues if queue.oldest]
        return Summary(
            facts.now,
            [*judge(facts), *_disk(observed)],
            sum(came.values()),
            sum(left.values()),
            sum(queue.messages for queue in facts.queues),
            any(queue.messages >= _counted(instance, len(facts.queues)) for queue in facts.queues),
            min(ages, default=None),
            sum(wait.messages for wait in facts.waits),
            len(facts.queues),
            sum(not queue.is_on for queue in facts.queues),
            sum(queue.readers + queue.holders for queue in facts.queues),
            len(links),
            course,
        )

    return look


def queues(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for all queues of applications."""

    def look(instance: Instance) -> dict[str, Any]:
        now, facts = instance.clock(), _queue_facts(instance)
        came, left = _rates(observed, instance)
        named, past = {}, {}
        if instance.engine is not RestrictedVerbs:
            with instance.connection() as connection:
                named = run(connection, dashboard_queries.queue_names())
                past = run(connection, courses(*_span(now, fields)))
        lines = []
        for queue in facts:
            database, name, services = named.get(queue.name) or (*_split(queue.name), [])
            lines.append(
                QueueLine(
                    database,
                    name,
                    services,
                    queue.messages,
                    queue.messages >= _counted(instance, len(facts)),
                    queue.oldest,
                    came.get((database, name), 0.0),
                    left.get((database, name), 0.0),
                    queue,
                    past.get((database, name)),
                )
            )
        name_part = fields.get("name", "").lower()
        shown_lines = [line for line in lines if name_part in line.name.lower()]
        if len(shown_lines) > MAX_QUEUES:
            shown_lines = sorted(shown_lines, key=lambda line: line.messages, reverse=True)[:MAX_QUEUES]
        return {"now": now, "queues": shown_lines, "all": len(lines), "most": MAX_QUEUES}

    return look


def queue(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for one queue, and the messages at its head."""

    def look(instance: Instance) -> dict[str, Any]:
        now = instance.clock()
        came, left = _rates(observed, instance)
        with instance.connection() as connection:
            details = run(connection, dashboard_queries.queue_look(fields["database"], fields["queue"]))
            facts = _queue_facts(instance, details.queue_id)
            full_name = f"{details.database}.{details.name}"
            facts_of_queue = next((queue for queue in facts if queue.name == full_name), None)
            histories = run(connection, courses(*_span(now, fields), details.queue_id))
            message_type, text = fields.get("type", ""), fields.get("text", "")
            return {
                "now": now,
                "queue": details,
                "facts": facts_of_queue,
                "findings": [] if facts_of_queue is None else list(judge_queue(facts_of_queue, now)),
                "came": came.get((details.database, details.name), 0.0),
                "left": left.get((details.database, details.name), 0.0),
                "course": next(iter(histories.values()), None),
                "states": run(connection, dashboard_queries.conversation_states(details.queue_id)),
                "locks": run(connection, dashboard_queries.group_locks(details.queue_id)),
                "messages": run(connection, dashboard_queries.message_heads(details.queue_id, message_type, text)),
                "searched": dashboard_queries.SEARCHED_MESSAGES,
                "limit": COUNT_LIMIT,
            }

    return look


def conversations(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for conversations by service and state."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            endpoints = run(connection, dashboard_queries.endpoints(fields.get("service", ""), fields.get("state", "")))
            return {"now": instance.clock(), "endpoints": endpoints, "most": dashboard_queries.MAX_ROWS}

    return look


def conversation(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for one side of a conversation, and the other side if it is in this instance."""

    def look(instance: Instance) -> dict[str, Any]:
        try:
            handle = UUID(fields["handle"].strip())
        except ValueError:
            raise BrokerError(402, "handle", shown(fields["handle"]), "an identifier") from None
        gather_facts = gather_own_conversation if instance.engine is RestrictedVerbs else gather_conversation
        with instance.connection() as connection:
            past = [] if instance.engine is RestrictedVerbs else run(connection, life(handle))
            try:
                endpoint = run(connection, dashboard_queries.endpoint(handle))
            except BrokerError:
                if not past:
                    raise
                return {"now": instance.clock(), "handle": handle, "endpoint": None, "life": past}
            far_endpoint = (
                None
                if endpoint.far_handle is None
                else run(connection, dashboard_queries.endpoint(endpoint.far_handle))
            )
        database = instance.database(endpoint.database)
        facts = database._do(gather_facts(database.database_id, handle, instance.clock()))
        with instance.connection() as connection:
            return {
                "now": facts.now,
                "endpoint": endpoint,
                "other": far_endpoint,
                "facts": facts,
                "findings": judge_conversation(facts),
                "messages": run(connection, dashboard_queries.conversation_heads(endpoint)),
                "sent": run(connection, dashboard_queries.sent_heads(handle)),
                "life": past,
            }

    return look


def way(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for undelivered messages, and the routes, links and certificates that they depend on."""

    def look(instance: Instance) -> dict[str, Any]:
        now = instance.clock()
        explained: list[str] = []
        service, database = fields.get("service", ""), fields.get("database", "")
        if service and database:
            explanation = instance.database(database).explain_route(service, fields.get("broker") or None)
            explained = words(explanation, _brokers(instance))
        with instance.connection() as connection:
            return {
                "now": now,
                "waiting": [(wait, after_status(wait.status)) for wait in run(connection, dashboard_queries.waiting())],
                "routes": run(connection, dashboard_queries.routes(now)),
                "links": run(connection, dashboard_queries.links()),
                "refusals": run(connection, refusals()),
                "certificates": [(one, one.is_expiring(now)) for one in run(connection, find_used_certificates(now))],
                "forwarded": run(connection, dashboard_queries.forwarded()),
                "databases": sorted(_brokers(instance).values()),
                "explained": explained,
            }

    return look


def poison(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for queues that are off, failing messages, and messages that were set aside."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            return {
                "now": instance.clock(),
                "off": run(connection, poison_report.off_queues()),
                "failing": run(connection, poison_report.failing_messages()),
                "set_aside": run(connection, dashboard_queries.set_aside_heads()),
                "most": dashboard_queries.MAX_ROWS,
            }

    return look


def statements(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for the statements that the instance's processes have run, by name."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            return {"now": instance.clock(), "statements": run(connection, statement_totals())}

    return look


def audit(observed: ObservedInstance, fields: PageQuery) -> Callable[[Instance], dict[str, Any]]:
    """Return the query for definitions and operators' actions in the audit."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            acts = run(
                connection, find_acts(None, fields.get("who", ""), fields.get("what", ""), dashboard_queries.MAX_ROWS)
            )
        return {"now": instance.clock(), "acts": acts, "most": dashboard_queries.MAX_ROWS}

    return look


def _facts(instance: Instance) -> Facts:
    now = instance.clock()
    with instance.connection() as connection:
        return run(connection, gather_own(now) if instance.engine is RestrictedVerbs else gather(now, at_a_glance=True))


def _queue_facts(instance: Instance, only: int | None = None) -> list[QueueFacts]:
    """Return the facts of all queues, or of one."""
    if instance.engine is RestrictedVerbs:
        return list(_facts(instance).queues)
    with instance.connection() as connection:
        return run(connection, queue_facts(only, at_a_glance=True))


def _counted(instance: Instance, queues: int) -> int:
    """Return the limit up to which each of so many queues was counted."""
    return COUNT_LIMIT if instance.engine is RestrictedVerbs else share_of(queues)


def _disk(observed: ObservedInstance) -> list[Finding]:
    if is_url(observed.target):
        return []
    used = shutil.disk_usage(observed.target)
    return judge_disk(observed.target, used.free, used.total)


def _span(now: datetime, fields: PageQuery) -> tuple[datetime, timedelta]:
    """Return end and length of the shown history. The end is the last whole sample, so that it rarely changes."""
    last_sample = datetime.fromtimestamp(now.timestamp() // SAMPLE_INTERVAL_S * SAMPLE_INTERVAL_S, tz=now.tzinfo)
    return last_sample, SPANS.get(fields.get("span", ""), SPANS["hour"])


def _rates(observed: ObservedInstance, instance: Instance) -> tuple[dict[CounterName, float], dict[CounterName, float]]:
    """Return messages per second into and out of each queue, by database and name of the queue."""
    if instance.engine is RestrictedVerbs:
        return {}, {}
    with instance.connection() as connection:
        counters = {counter.name: dict(counter.values) for counter in run(connection, message_flows())}
    return observed.came.update(counters["enqueued_messages"]), observed.left.update(counters["dequeued_messages"])


def _brokers(instance: Instance) -> dict[str, str]:
    with instance.connection() as connection:
        return run(connection, dashboard_queries.brokers())


def _split(name: str) -> tuple[str, str]:
    """Split doctor's name of a queue into database and `schema.queue`, for a role that may not look them up."""
    database, _, queue = name.partition(".")
    return database, queue
