"""What each page shows of an instance, by the functions that status, doctor and poison ask: there is one judge."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.api.instance import Instance
from servicebroker.dashboard.observed import Name, Observed
from servicebroker.engine.conversation.fenced_verbs import Fenced
from servicebroker.engine.diagnosis import looks, poison_report
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
from servicebroker.engine.security.certificate_ages import certificates_in_use
from servicebroker.model.errors import BrokerError
from servicebroker.model.remedies import after_status
from servicebroker.model.wording import shown
from servicebroker.protocol.explanation import words
from servicebroker.store.connection import is_url
from servicebroker.store.running import run

MOST_QUEUES = 300  # that one page shows
SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=30)}

Asked = Mapping[str, str]  # what stands in the address of the page


class QueueLine(NamedTuple):
    """A queue in a list; `is_more`: it has more messages than were counted. `facts` are doctor's."""

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
    """An instance in five seconds."""

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


def overview(observed: Observed, asked: Asked) -> Callable[[Instance], Summary]:
    """Whether all is well, and how much happens."""

    def look(instance: Instance) -> Summary:
        facts = _facts(instance)
        with instance.connection() as connection:
            links = [] if instance.engine is Fenced else run(connection, looks.links())
            course = None if instance.engine is Fenced else run(connection, whole_course(*_span(facts.now, asked)))
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


def queues(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """Every queue of applications."""

    def look(instance: Instance) -> dict[str, Any]:
        now, facts = instance.clock(), _queue_facts(instance)
        came, left = _rates(observed, instance)
        named, past = {}, {}
        if instance.engine is not Fenced:
            with instance.connection() as connection:
                named = run(connection, looks.queue_names())
                past = run(connection, courses(*_span(now, asked)))
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
        wanted = asked.get("name", "").lower()
        found = [line for line in lines if wanted in line.name.lower()]
        if len(found) > MOST_QUEUES:
            found = sorted(found, key=lambda line: line.messages, reverse=True)[:MOST_QUEUES]
        return {"now": now, "queues": found, "all": len(lines), "most": MOST_QUEUES}

    return look


def queue(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """One queue, and the messages at its head."""

    def look(instance: Instance) -> dict[str, Any]:
        now = instance.clock()
        came, left = _rates(observed, instance)
        with instance.connection() as connection:
            one = run(connection, looks.queue_look(asked["database"], asked["queue"]))
            facts = _queue_facts(instance, one.queue_id)
            mine = next((queue for queue in facts if queue.name == f"{one.database}.{one.name}"), None)
            return {
                "now": now,
                "queue": one,
                "facts": mine,
                "findings": [] if mine is None else list(judge_queue(mine, now)),
                "came": came.get((one.database, one.name), 0.0),
                "left": left.get((one.database, one.name), 0.0),
                "course": next(iter(run(connection, courses(*_span(now, asked), one.queue_id)).values()), None),
                "states": run(connection, looks.conversation_states(one.queue_id)),
                "locks": run(connection, looks.group_locks(one.queue_id)),
                "messages": run(
                    connection, looks.message_heads(one.queue_id, asked.get("type", ""), asked.get("text", ""))
                ),
                "searched": looks.SEARCHED_MESSAGES,
                "limit": COUNT_LIMIT,
            }

    return look


def conversations(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """Some conversations, to be found by service and state."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            found = run(connection, looks.endpoints(asked.get("service", ""), asked.get("state", "")))
            return {"now": instance.clock(), "endpoints": found, "most": looks.MAX_ROWS}

    return look


def conversation(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """One side of a conversation, and the other where it is in this instance."""

    def look(instance: Instance) -> dict[str, Any]:
        try:
            handle = UUID(asked["handle"].strip())
        except ValueError:
            raise BrokerError(402, "handle", shown(asked["handle"]), "an identifier") from None
        gathered = gather_own_conversation if instance.engine is Fenced else gather_conversation
        with instance.connection() as connection:
            past = [] if instance.engine is Fenced else run(connection, life(handle))
            try:
                one = run(connection, looks.endpoint(handle))
            except BrokerError:
                if not past:
                    raise
                return {"now": instance.clock(), "handle": handle, "endpoint": None, "life": past}
            other = None if one.far_handle is None else run(connection, looks.endpoint(one.far_handle))
        database = instance.database(one.database)
        facts = database._do(gathered(database.database_id, handle, instance.clock()))
        with instance.connection() as connection:
            return {
                "now": facts.now,
                "endpoint": one,
                "other": other,
                "facts": facts,
                "findings": judge_conversation(facts),
                "messages": run(connection, looks.conversation_heads(one)),
                "sent": run(connection, looks.sent_heads(handle)),
                "life": past,
            }

    return look


def way(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """What is sent and not delivered, and what it goes by."""

    def look(instance: Instance) -> dict[str, Any]:
        now = instance.clock()
        explained: list[str] = []
        service, database = asked.get("service", ""), asked.get("database", "")
        if service and database:
            explanation = instance.database(database).explain_route(service, asked.get("broker") or None)
            explained = words(explanation, _brokers(instance))
        with instance.connection() as connection:
            return {
                "now": now,
                "waiting": [(wait, after_status(wait.status)) for wait in run(connection, looks.waiting())],
                "routes": run(connection, looks.routes(now)),
                "links": run(connection, looks.links()),
                "refusals": run(connection, refusals()),
                "certificates": [(one, one.is_expiring(now)) for one in run(connection, certificates_in_use(now))],
                "forwarded": run(connection, looks.forwarded()),
                "databases": sorted(_brokers(instance).values()),
                "explained": explained,
            }

    return look


def poison(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """The queues that are off, what has failed, and what was set aside."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            return {
                "now": instance.clock(),
                "off": run(connection, poison_report.off_queues()),
                "failing": run(connection, poison_report.failing_messages()),
                "set_aside": run(connection, looks.set_aside_heads()),
                "most": looks.MAX_ROWS,
            }

    return look


def statements(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """What the processes of the instance have run, by name."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            return {"now": instance.clock(), "statements": run(connection, statement_totals())}

    return look


def audit(observed: Observed, asked: Asked) -> Callable[[Instance], dict[str, Any]]:
    """Who has defined what, and what operators have done."""

    def look(instance: Instance) -> dict[str, Any]:
        with instance.connection() as connection:
            acts = run(connection, find_acts(None, asked.get("who", ""), asked.get("what", ""), looks.MAX_ROWS))
        return {"now": instance.clock(), "acts": acts, "most": looks.MAX_ROWS}

    return look


def _facts(instance: Instance) -> Facts:
    now = instance.clock()
    with instance.connection() as connection:
        return run(connection, gather_own(now) if instance.engine is Fenced else gather(now, at_a_glance=True))


def _queue_facts(instance: Instance, only: int | None = None) -> list[QueueFacts]:
    """Of all queues, or of one."""
    if instance.engine is Fenced:
        return _facts(instance).queues
    with instance.connection() as connection:
        return run(connection, queue_facts(only, at_a_glance=True))


def _counted(instance: Instance, queues: int) -> int:
    """How far each of so many queues was counted."""
    return COUNT_LIMIT if instance.engine is Fenced else share_of(queues)


def _disk(observed: Observed) -> list[Finding]:
    if is_url(observed.target):
        return []
    used = shutil.disk_usage(observed.target)
    return judge_disk(observed.target, used.free, used.total)


def _span(now: datetime, asked: Asked) -> tuple[datetime, timedelta]:
    """Until when and how long the history is shown: to the last whole sample, so that it is the same for a while."""
    whole = datetime.fromtimestamp(now.timestamp() // SAMPLE_INTERVAL_S * SAMPLE_INTERVAL_S, tz=now.tzinfo)
    return whole, SPANS.get(asked.get("span", ""), SPANS["hour"])


def _rates(observed: Observed, instance: Instance) -> tuple[dict[Name, float], dict[Name, float]]:
    """Messages a second that came into each queue and left it, by database and name of the queue."""
    if instance.engine is Fenced:
        return {}, {}
    with instance.connection() as connection:
        counters = {counter.name: dict(counter.values) for counter in run(connection, message_flows())}
    return observed.came.after(counters["enqueued_messages"]), observed.left.after(counters["dequeued_messages"])


def _brokers(instance: Instance) -> dict[str, str]:
    with instance.connection() as connection:
        return run(connection, looks.brokers())


def _split(name: str) -> tuple[str, str]:
    """Database and `schema.queue` of a queue as doctor calls it, for a role that may not look them up."""
    database, _, queue = name.partition(".")
    return database, queue
