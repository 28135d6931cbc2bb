"""The query of each page. It calls the functions of the commands status, doctor and poison, so results agree.

A function here takes an instance and the query string, and returns the query, a function of a `Reader`. A page runs
its statements in one read-only transaction with a deadline. The overview gives each statement its own, as doctor does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.cli.diagnosed_instance import DiagnosedInstance
from servicebroker.cli.examination import gather, judge_disk_of, judge_instance
from servicebroker.dashboard.readers import Reader
from servicebroker.dashboard.remedies import Button, QueueNames, buttons
from servicebroker.dashboard.snapshot_cache import CounterName, ObservedInstance
from servicebroker.dashboard.timeline import timeline_rows
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.routes import explain_route
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis import dashboard_queries, poison_report, trail
from servicebroker.engine.diagnosis.audit import find_records
from servicebroker.engine.diagnosis.conversation_findings import judge_conversation
from servicebroker.engine.diagnosis.counters import message_flows
from servicebroker.engine.diagnosis.dashboard_queries import DeadLetterFilter, Work, Worker
from servicebroker.engine.diagnosis.fact_types import QueueFacts
from servicebroker.engine.diagnosis.facts import gather_conversation, queue_facts
from servicebroker.engine.diagnosis.findings import Finding, Severity
from servicebroker.engine.diagnosis.history import SAMPLE_INTERVAL_S, RateHistory, queue_histories, total_history
from servicebroker.engine.diagnosis.judgement import judge_failed_queries
from servicebroker.engine.diagnosis.own_facts import gather_own, gather_own_conversation
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, limit_for, refusals
from servicebroker.engine.diagnosis.queue_findings import judge_queue
from servicebroker.engine.diagnosis.tds_clients import connected_clients
from servicebroker.engine.diagnosis.totals import statement_totals
from servicebroker.engine.security.certificate_ages import find_used_certificates
from servicebroker.model.errors import BrokerError
from servicebroker.model.remedies import after_status
from servicebroker.model.wording import about_instance, short_repr
from servicebroker.protocol.explanation import words
from servicebroker.store.statements import Steps

MAX_QUEUES = 300  # the most queues on one page
MAX_CLIENTS = 200  # the most SQL Server clients on one page
TOP_STATEMENTS = 20  # shown unless the address has all=...
SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=30)}

PageQuery = Mapping[str, str]  # the query string of the page's address


class Advice(NamedTuple):
    """A finding of doctor, with buttons for what it advises.

    `page` is the page of the finding's subject, '' for none; `fields` is the query string of that page's address.
    """

    finding: Finding
    buttons: list[Button]
    page: str
    fields: Mapping[str, str]


class QueueLine(NamedTuple):
    """A queue in the list of queues.

    `is_more`: more than `messages` wait, since counting stops at a limit. Rates are messages per second. `facts` and
    `findings` are doctor's.
    """

    database: str
    name: str
    services: list[str]
    messages: int
    is_more: bool
    oldest: datetime | None
    rate_in: float
    rate_out: float
    facts: QueueFacts
    findings: list[Finding]
    history: RateHistory | None

    @property
    def severity(self) -> Severity:
        """The greatest severity of the findings."""
        return _severity(self.findings)


class Summary(NamedTuple):
    """An instance on the overview: totals of its queues, peers and findings.

    `is_more`: at least one queue has more messages than were counted. `waiting` counts messages in the transmission
    queue, and `off` the queues that are off.
    """

    now: datetime
    advice: list[Advice]
    rate_in: float
    rate_out: float
    messages: int
    is_more: bool
    oldest: datetime | None
    waiting: int
    queues: int
    off: int
    readers: int
    peers: int
    dead_letters: int
    history: RateHistory | None

    @property
    def troubles(self) -> int:
        """The number of findings that are trouble."""
        return sum(advice.finding.severity == Severity.TROUBLE for advice in self.advice)

    @property
    def warnings(self) -> int:
        """The number of findings that are warnings."""
        return sum(advice.finding.severity == Severity.WARNING for advice in self.advice)


class WorkerLine(NamedTuple):
    """A session that reads a queue, with its current work, if it is known."""

    worker: Worker
    work: Work | None


class QueueWorkers(NamedTuple):
    """The workers of a queue, the messages per second that leave it, and doctor's findings about it.

    `limits` are those of all the workers together, in words.
    """

    database: str
    name: str
    messages: int
    rate_out: float
    findings: list[Finding]
    workers: list[WorkerLine]
    limits: str


def overview(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], Summary]:
    """Return the query for the summary of an instance."""

    def summarize(reader: Reader) -> Summary:
        instance = reader.begin()
        facts = gather(instance, is_quick=True)
        links: list[Any] = []
        history: RateHistory | None = None
        if instance.engine is not RestrictedVerbs:
            links = instance.query("links to peers", dashboard_queries.links(), links)
            history = instance.query("the history", total_history(*_span(facts.now, fields)), history)
        rates_in, rates_out = instance.query("rates", _rates(observed, instance), ({}, {}))
        findings = [*reader.access, *judge_instance(instance, facts)]
        findings += judge_disk_of(observed.target, reader.disk_usage)
        names = instance.query("names of queues", _names(instance), {})
        findings += judge_failed_queries(instance.failed_queries)
        ages = [queue.oldest for queue in facts.queues if queue.oldest]
        return Summary(
            facts.now,
            _advice(findings, names),
            sum(rates_in.values()),
            sum(rates_out.values()),
            sum(queue.messages for queue in facts.queues),
            any(queue.messages >= _count_limit(instance, len(facts.queues)) for queue in facts.queues),
            min(ages, default=None),
            sum(wait.messages for wait in facts.waits),
            len(facts.queues),
            sum(not queue.is_on for queue in facts.queues),
            sum(queue.readers + queue.holders for queue in facts.queues),
            len(links),
            sum(of_queue.letters for of_queue in facts.dead_letters),
            history and history.with_current_depth(sum(queue.messages for queue in facts.queues)),
        )

    return summarize


def queues(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for the queues of applications, the most severe findings first."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        now = instance.clock()
        facts = yield from _queue_facts(instance)
        rates_in, rates_out = yield from _rates(observed, instance)
        names = yield from _names(instance)
        services: dict[str, tuple[str, str, list[str]]] = {}
        histories: dict[tuple[str, str], RateHistory] = {}
        if instance.engine is not RestrictedVerbs:
            services = yield from dashboard_queries.queue_names()
            histories = yield from queue_histories(*_span(now, fields))
        lines = []
        for queue in facts:
            database, name = names.get(queue.name) or _split(queue.name)
            lines.append(
                QueueLine(
                    database,
                    name,
                    services[queue.name][2] if queue.name in services else [],
                    queue.messages,
                    queue.messages >= _count_limit(instance, len(facts)),
                    queue.oldest,
                    rates_in.get((database, name), 0.0),
                    rates_out.get((database, name), 0.0),
                    queue,
                    list(judge_queue(queue, now)),
                    histories.get((database, name)),
                )
            )
        name_part = fields.get("name", "").lower()
        shown_lines = [line for line in lines if name_part in line.name.lower()]
        if len(shown_lines) > MAX_QUEUES:
            shown_lines = sorted(shown_lines, key=lambda line: (line.severity, line.messages), reverse=True)
            shown_lines = shown_lines[:MAX_QUEUES]
        shown_lines = sorted(shown_lines, key=lambda line: -line.severity)  # stable: by name among equals
        return {"now": now, "queues": shown_lines, "all": len(lines), "most": MAX_QUEUES}

    return _in_one_transaction(steps)


def queue(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for one queue, with its first messages."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        now = instance.clock()
        rates_in, rates_out = yield from _rates(observed, instance)
        details = yield from dashboard_queries.find_queue_details(fields["database"], fields["queue"])
        facts = yield from _queue_facts(instance, details.queue_id)
        full_name = f"{details.database}.{details.name}"
        facts_of_queue = next((queue for queue in facts if queue.name == full_name), None)
        histories = yield from queue_histories(*_span(now, fields), details.queue_id)
        history = next(iter(histories.values()), None)
        if history is not None and facts_of_queue is not None:
            history = history.with_current_depth(facts_of_queue.messages)
        message_type, text = fields.get("type", ""), fields.get("text", "")
        findings = [] if facts_of_queue is None else list(judge_queue(facts_of_queue, now))
        return {
            "now": now,
            "queue": details,
            "facts": facts_of_queue,
            "advice": _advice(findings, {full_name: (details.database, details.name)}),
            "rate_in": rates_in.get((details.database, details.name), 0.0),
            "rate_out": rates_out.get((details.database, details.name), 0.0),
            "history": history,
            "states": (yield from dashboard_queries.conversation_states(details.queue_id)),
            "locks": (yield from dashboard_queries.group_locks(details.queue_id)),
            "messages": (yield from dashboard_queries.message_heads(details.queue_id, message_type, text)),
            "searched": dashboard_queries.SEARCHED_MESSAGES,
            "limit": COUNT_LIMIT,
        }

    return _in_one_transaction(steps)


def workers(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for the sessions that read queues, by queue, with their current work."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        now = instance.clock()
        _, rates_out = yield from _rates(observed, instance)
        facts = yield from _queue_facts(instance)
        names = yield from _names(instance)
        sessions = yield from dashboard_queries.workers()
        work_by_session: dict[tuple[int, int], Work] = {}  # the work of a session, by queue and process id
        busy_queues = sorted({worker.queue_id for worker in sessions if worker.doing == "works"})
        for queue_id in busy_queues[: dashboard_queries.MAX_WORKING_QUEUES]:
            for work in (yield from dashboard_queries.current_work(queue_id)):
                work_by_session[queue_id, work.pid] = work
        groups = []
        for queue in facts:
            database, name = names.get(queue.name) or _split(queue.name)
            lines = [
                WorkerLine(worker, work_by_session.get((worker.queue_id, worker.pid)))
                for worker in sessions
                if (worker.database, worker.queue) == (database, name)
            ]
            findings = list(judge_queue(queue, now))
            if lines or queue.messages or findings or queue.limits:
                rate, limits = rates_out.get((database, name), 0.0), queue.limits.describe(now) if queue.limits else ""
                groups.append(QueueWorkers(database, name, queue.messages, rate, findings, lines, limits))
        schedules = [] if instance.engine is RestrictedVerbs else (yield from dashboard_queries.schedules())
        groups.sort(key=lambda group: -_severity(group.findings))  # stable: by name among equals
        pids = {worker.pid for worker in sessions}
        return {"now": now, "groups": groups, "schedules": schedules, "sessions": len(pids)}

    return _in_one_transaction(steps)


def conversations(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for conversations by service and state."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        now = instance.clock()
        service, state, newest = fields.get("service", ""), fields.get("state", ""), fields.get("order") == "newest"
        endpoints = yield from dashboard_queries.endpoints(service, state, now, newest_first=newest)
        return {"now": now, "endpoints": endpoints, "most": dashboard_queries.MAX_ROWS}

    return _in_one_transaction(steps)


def conversation(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for one side of a conversation, and the other side if it is in this instance."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        try:
            handle = UUID(fields["handle"].strip())
        except ValueError:
            raise BrokerError(402, "handle", short_repr(fields["handle"]), "a conversation handle (a UUID)") from None
        is_restricted = instance.engine is RestrictedVerbs
        now = instance.clock()
        events = [] if is_restricted else (yield from trail.find_events(handle))
        try:
            endpoint = yield from dashboard_queries.endpoint(handle)
        except BrokerError:
            if not events:
                raise
            return {"now": now, "handle": handle, "endpoint": None, "life": timeline_rows(events, handle)}
        other = None
        handles = [handle] if endpoint.peer_handle is None else [handle, endpoint.peer_handle]
        if endpoint.peer_handle is not None:
            other = yield from dashboard_queries.endpoint(endpoint.peer_handle)
        database_id = yield from instance.engine.find_database(endpoint.database, create=False)
        gather_facts = gather_own_conversation if is_restricted else gather_conversation
        facts = yield from gather_facts(database_id, handle, now)
        names = yield from _names(instance)
        return {
            "now": now,
            "endpoint": endpoint,
            "other": other,
            "facts": facts,
            "advice": _advice(judge_conversation(facts), names, endpoint.database),
            "messages": (yield from dashboard_queries.conversation_heads(endpoint)),
            "sent": (yield from dashboard_queries.sent_heads(handle)),
            "letters": [] if is_restricted else (yield from dashboard_queries.dead_letters_of(handles)),
            "life": timeline_rows(events, handle),
        }

    return _in_one_transaction(steps)


def way(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for undelivered messages, and the routes, links and certificates that they depend on."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        now = instance.clock()
        brokers = yield from dashboard_queries.brokers()
        explained: list[str] = []
        service, database = fields.get("service", ""), fields.get("database", "")
        if service and database:
            database_id = yield from instance.engine.find_database(database, create=False)
            broker = fields.get("broker") or None
            explained = words((yield from explain_route(Catalog(), database_id, service, broker, now)), brokers)
        waiting = yield from dashboard_queries.waiting(now)
        certificates = yield from find_used_certificates(now)
        return {
            "now": now,
            "waiting": [(wait, about_instance(wait.status), after_status(wait.status)) for wait in waiting],
            "delayed": (yield from dashboard_queries.find_delayed(now)),
            "routes": (yield from dashboard_queries.routes(now)),
            "links": (yield from dashboard_queries.links()),
            "refusals": (yield from refusals()),
            "clients": (yield from connected_clients(MAX_CLIENTS)),
            "certificates": [(certificate, certificate.is_expiring(now)) for certificate in certificates],
            "forwarded": (yield from dashboard_queries.count_forwarded()),
            "databases": sorted(brokers.values()),
            "explained": explained,
        }

    return _in_one_transaction(steps)


def dead_letters(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for queues that are off, failing messages, and dead letters, grouped and listed."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        chosen = chosen_dead_letters(fields)
        before = int(fields["before"]) if re.fullmatch("[0-9]{1,18}", fields.get("before", "")) else None
        groups = yield from dashboard_queries.dead_letter_groups(chosen)
        return {
            "now": instance.clock(),
            "off": (yield from poison_report.off_queues()),
            "failing": (yield from poison_report.failing_messages()),
            "groups": groups,
            "count": sum(group.letters for group in groups),
            "has_all_groups": len(groups) < dashboard_queries.MAX_ROWS,
            "chosen": {name: value for name, value in chosen._asdict().items() if value},
            "letters": (yield from dashboard_queries.dead_letters(chosen, before)),
            "most": dashboard_queries.MAX_ROWS,
            "bulk": dashboard_queries.MAX_BULK,
        }

    return _in_one_transaction(steps)


def chosen_dead_letters(fields: PageQuery) -> DeadLetterFilter:
    """Return the filter in the fields of an address or a form."""
    return DeadLetterFilter(*(fields.get(name, "") for name in DeadLetterFilter._fields))


def statements(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for the statements that the instance's processes have run, by name."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        totals = yield from statement_totals()
        top = totals if fields.get("all") else totals[:TOP_STATEMENTS]
        microseconds = sum(total.microseconds for total in totals)
        return {"now": instance.clock(), "statements": top, "all": len(totals), "microseconds": microseconds}

    return _in_one_transaction(steps)


def audit(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for definitions and operators' actions in the audit."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        acts = yield from find_records(None, fields.get("who", ""), fields.get("what", ""), dashboard_queries.MAX_ROWS)
        return {"now": instance.clock(), "acts": acts, "most": dashboard_queries.MAX_ROWS}

    return _in_one_transaction(steps)


def search(observed: ObservedInstance, fields: PageQuery) -> Callable[[Reader], dict[str, Any]]:
    """Return the query for queues and services by name, and conversations by handle."""

    def steps(instance: DiagnosedInstance) -> Steps[dict[str, Any]]:
        text = fields.get("q", "").strip()
        matches = (yield from dashboard_queries.matches(text)) if text else []
        return {"now": instance.clock(), "matches": matches, "text": text, "most": dashboard_queries.MAX_ROWS}

    return _in_one_transaction(steps)


def _in_one_transaction(
    steps: Callable[[DiagnosedInstance], Steps[dict[str, Any]]],
) -> Callable[[Reader], dict[str, Any]]:
    """Return a query that runs these steps in one read-only transaction with deadlines."""

    def read(reader: Reader) -> dict[str, Any]:
        instance = reader.begin()
        return instance.read(steps(instance))

    return read


def _advice(findings: Iterable[Finding], names: QueueNames, database: str = "") -> list[Advice]:
    """Return findings with their buttons, the most severe first."""
    by_severity = sorted(findings, key=lambda finding: -finding.severity)
    return [Advice(finding, buttons(finding, names, database), *_page_of(finding, names)) for finding in by_severity]


def _page_of(finding: Finding, names: QueueNames) -> tuple[str, Mapping[str, str]]:
    """Return the page of a finding's subject, with the query of its address."""
    kind, _, name = finding.subject.partition(" ")
    if kind == "queue" and name in names:
        database, queue = names[name]
        return "queue", {"database": database, "queue": queue}
    return {"service": "way", "peer": "way"}.get(kind, ""), {}


def _severity(findings: Iterable[Finding]) -> Severity:
    """Return the greatest severity."""
    return max((finding.severity for finding in findings), default=Severity.NOTE)


def _queue_facts(instance: DiagnosedInstance, only: int | None = None) -> Steps[Sequence[QueueFacts]]:
    """Return the facts of all queues, or of one."""
    if instance.engine is RestrictedVerbs:
        return (yield from gather_own(instance.clock())).queues
    return (yield from queue_facts(only, is_quick=True))


def _names(instance: DiagnosedInstance) -> Steps[QueueNames]:
    """Return the database and the `schema.name` of each queue, by its full name, `database.schema.name`."""
    if instance.engine is RestrictedVerbs:
        return {}
    named = yield from dashboard_queries.queue_names()
    return {full_name: (database, name) for full_name, (database, name, _) in named.items()}


def _count_limit(instance: DiagnosedInstance, queues: int) -> int:
    """Return the number of messages at which the count of a queue stops. With many queues it is smaller."""
    return COUNT_LIMIT if instance.engine is RestrictedVerbs else limit_for(queues)


def _span(now: datetime, fields: PageQuery) -> tuple[datetime, timedelta]:
    """Return end and length of the history to show.

    The end is the time of the last sample, so the picture changes only with a new sample.
    """
    last_sample = datetime.fromtimestamp(now.timestamp() // SAMPLE_INTERVAL_S * SAMPLE_INTERVAL_S, tz=now.tzinfo)
    return last_sample, SPANS.get(fields.get("span", ""), SPANS["hour"])


def _rates(
    observed: ObservedInstance, instance: DiagnosedInstance
) -> Steps[tuple[dict[CounterName, float], dict[CounterName, float]]]:
    """Return messages per second into and out of each queue, by database and name of the queue."""
    if instance.engine is RestrictedVerbs:
        return {}, {}
    counters = {counter.name: dict(counter.values) for counter in (yield from message_flows())}
    return observed.rates_in.update(counters["enqueued_messages"]), observed.rates_out.update(
        counters["dequeued_messages"]
    )


def _split(name: str) -> tuple[str, str]:
    """Split `database.schema.queue` into database and `schema.queue`, for a role that may not read queue names."""
    database, _, queue = name.partition(".")
    return database, queue
