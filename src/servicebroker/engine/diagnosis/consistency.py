"""Consistency checks of stored data (`servicebroker check`), like DBCC CHECKDB. They only read.

They also check ownership and rights of the broker's objects, and their definitions (`store/expected_objects.py`), which
the schema's owner or a superuser may have changed.

Every check is one statement, so it sees one snapshot, and a running instance gives no false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from servicebroker.engine.activation.clause import OWNER_ID
from servicebroker.engine.catalog.alter import find_dropped_queues
from servicebroker.engine.delivery.transmission import PATH_IS_FREE
from servicebroker.engine.diagnosis.queue_counts import in_parts, stored_queues
from servicebroker.model.errors import BrokerError
from servicebroker.store.expected_objects import find_changed_objects
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MAX_FINDINGS = 100  # findings of one kind, for each queue
_MIN_AGES = {28021: timedelta(minutes=1)}  # the maintenance thread has had time to deliver older messages


class Inconsistency(NamedTuple):
    """A finding of the check: an error number, and its text."""

    number: int
    text: str


class Report(NamedTuple):
    """The number of checked objects by kind, and the findings: at most MAX_FINDINGS of a kind."""

    analyzed: dict[str, int]
    findings: list[Inconsistency]

    def joined(self, other: Report) -> Report:
        """Return both reports as one."""
        return Report(self.analyzed | other.analyzed, self.findings + other.findings)


# by error number: a query for the inconsistent rows, which returns the values for the error's text
_CHECKS = {
    9680: (
        "select conversation_handle, conversation_group_id from servicebroker.conversation_endpoints e "
        "where not exists (select from servicebroker.conversation_groups g "
        "where g.conversation_group_id = e.conversation_group_id)"
    ),
    9681: (
        "select conversation_handle, service_contract_id from servicebroker.conversation_endpoints e where not exists "
        "(select from servicebroker.service_contracts c where c.database_id = e.database_id "
        "and c.service_contract_id = e.service_contract_id) and state in ('SO', 'SI', 'CO')"
    ),
    9682: (
        "select conversation_handle, service_id from servicebroker.conversation_endpoints e where not exists "
        "(select from servicebroker.services s where s.service_id = e.service_id)"
    ),
    9683: (
        "select conversation_group_id, service_id from servicebroker.conversation_groups g where not exists "
        "(select from servicebroker.services s where s.service_id = g.service_id)"
    ),
    9707: (
        "select queue_id, execute_as_principal_id from servicebroker.queues q "
        f"where q.execute_as_principal_id <> {OWNER_ID} and not exists (select from servicebroker.principals p "
        "where p.database_id = q.database_id and p.principal_id = q.execute_as_principal_id)"
    ),
    9711: (
        "select distinct conversation_handle from servicebroker.transmission_queue t where not exists "
        "(select from servicebroker.conversation_endpoints e where e.conversation_handle = t.conversation_handle)"
    ),
    # SEND would deliver to another endpoint than the peer, or draw a number that is in use
    9715: (
        "select e.conversation_id, e.is_initiator::int from servicebroker.conversation_endpoints e "
        "left join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle "
        "left join servicebroker.services s on s.service_id = e.service_id "
        "where e.queue_id <> s.queue_id "
        "or p.conversation_id <> e.conversation_id or p.is_initiator = e.is_initiator "
        "or e.state = 'CO' and p.state = 'CO' and (e.far_queue_id <> p.queue_id "
        "or (e.far_group_id, e.far_service_id, e.far_contract_id) "
        "is distinct from (p.conversation_group_id, p.service_id, p.service_contract_id)) "
        "or e.state = 'CO' and e.far_handle is not null and p.conversation_handle is null and e.lifetime > $1 "
        "or exists (select from servicebroker.transmission_queue t where t.conversation_handle = e.conversation_handle "
        "and t.message_sequence_number >= e.send_sequence)"
    ),
    9716: (
        "select conversation_group_id from servicebroker.conversation_groups g where not exists "
        "(select from servicebroker.conversation_endpoints e where e.conversation_group_id = g.conversation_group_id)"
    ),
    28021: (
        f"select distinct e.conversation_handle {PATH_IS_FREE} "
        "and exists (select from servicebroker.transmission_queue t "
        "where t.conversation_handle = e.conversation_handle and t.enqueue_time < $1)"
    ),
}

_OF_A_QUEUE = {
    # a shared body was removed before a message that refers to it
    8444: (
        "select distinct {id} from (select is_shared, message_body from servicebroker.queue_{id} "
        "union all select is_shared, message_body from servicebroker.retained_{id}) m where is_shared and not exists "
        "(select from servicebroker.shared_body_readers r join servicebroker.shared_bodies using (body_id) "
        "where r.reader = m.message_body)"
    ),
    9705: (
        "select distinct {id}, conversation_handle from (select conversation_handle from servicebroker.queue_{id} "
        "union all select conversation_handle from servicebroker.retained_{id}) m where not exists "
        "(select from servicebroker.conversation_endpoints e "
        "where e.conversation_handle = m.conversation_handle and e.queue_id = {id})"
    ),
    9708: (
        "select distinct {id}, m.conversation_group_id from servicebroker.queue_{id} m "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        "where e.conversation_group_id <> m.conversation_group_id"
    ),
    9709: (
        "select distinct {id}, message_type_id from servicebroker.queue_{id} m where not exists "
        "(select from servicebroker.queues q join servicebroker.message_types t using (database_id) "
        "where q.queue_id = {id} and t.message_type_id = m.message_type_id)"
    ),
}

_COUNTS = {
    "Conversation Priorities": "broker_priorities",
    "Services": "services",
    "Service Queues": "queues",
    "Conversation Endpoints": "conversation_endpoints",
    "Conversation Groups": "conversation_groups",
    "Message Types": "message_types",
    "Service Contracts": "service_contracts",
}


class CheckPart(NamedTuple):
    """An independent part of the check: its subject, in words, and the function that returns its steps."""

    subject: str
    ask: Callable[[], Steps[Report]]


def check(now: datetime) -> Steps[Report]:
    """Check the whole instance."""
    whole = Report({}, [])
    for part in check_parts(now):
        whole = whole.joined((yield from part.ask()))
    return whole


def check_parts(now: datetime) -> list[CheckPart]:
    """Return the parts of the check. They can run separately: one that waits for a lock does not block the others."""
    return [
        CheckPart("the number of objects", _count_objects),
        *(
            CheckPart(f"rows, for error {number}", partial(_check_rows, number, text, now))
            for number, text in _CHECKS.items()
        ),
        CheckPart("messages in queues", _check_queues),
        CheckPart("dropped queues", _check_dropped_queues),
        CheckPart("definitions", _check_definitions),
        CheckPart("ownership and rights", _check_ownership),
    ]


def _count_objects() -> Steps[Report]:
    counts = ", ".join(f"(select count(*) from servicebroker.{table})" for table in _COUNTS.values())
    rows = yield Statement("consistency.count_objects", f"select {counts}", prepared=False)
    return Report(dict(zip(_COUNTS, rows[0], strict=True)), [])


def _check_rows(number: int, text: str, now: datetime) -> Steps[Report]:
    times = (now - _MIN_AGES.get(number, timedelta(0)),) if "$1" in text else ()
    rows = yield Statement("consistency.check_rows", f"{text} limit {MAX_FINDINGS}", times, prepared=False)
    return Report({}, _findings(number, rows))


def _check_queues() -> Steps[Report]:
    rows = yield SQL("check_queues.find_queues")
    findings = _findings(8444, [(queue_id,) for queue_id, is_whole in rows if not is_whole])
    whole = [queue_id for queue_id, is_whole in rows if is_whole]
    with_retained = yield from stored_queues(whole, "retained")
    for queue_ids in in_parts(sorted({*(yield from stored_queues(whole)), *with_retained})):
        for number, text in _OF_A_QUEUE.items():
            texts = (f"({text.format(id=queue_id)} limit {MAX_FINDINGS})" for queue_id in queue_ids)
            differences = yield Statement("consistency.check_queues.compare", " union all ".join(texts), prepared=False)
            findings += _findings(number, differences)
    return Report({}, findings)


def _check_dropped_queues() -> Steps[Report]:
    return Report({}, _findings(8444, [(queue_id,) for queue_id in (yield from find_dropped_queues())]))


def _check_definitions() -> Steps[Report]:
    return Report(
        {}, _findings(3859, [(changes_of(*change),) for change in (yield from find_changed_objects(MAX_FINDINGS))])
    )


def _check_ownership() -> Steps[Report]:
    return Report({}, _findings(8992, [(fault,) for fault in (yield from find_tampering())]))


def changes_of(kind: str, name: str, is_there: bool) -> str:
    """Return a description of a change to an object of the broker's schema that was made by other means."""
    return f"the {kind} {name} {'has another definition' if is_there else 'is missing'}"


def _findings(number: int, rows: Iterable[Sequence[object]]) -> list[Inconsistency]:
    return [Inconsistency(number, BrokerError(number, *values).text) for values in rows]


_OPEN = ("rows_here", "readers_here", "approximate_count", "shown_number")  # functions for readers of views
_OUR_SCHEMAS = "('servicebroker', 'servicebroker_fence', 'sys', 'tsql')"

_FAULTS = (
    "select format('everybody may execute the function %s', p.oid::regprocedure) from pg_proc p "
    "cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a "
    "where p.pronamespace in ('servicebroker'::regnamespace, 'servicebroker_fence'::regnamespace) and a.grantee = 0 "
    f"and p.proname not in {_OPEN}",
    "select format('%s %s belongs to %s', case c.relkind when 'v' then 'the view' when 'S' then 'the sequence' "
    "else 'the table' end, c.oid::regclass, c.relowner::regrole) from pg_class c join pg_namespace n "
    f"on n.oid = c.relnamespace where n.nspname in {_OUR_SCHEMAS} and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f') "
    "and c.relowner <> (select nspowner from pg_namespace where nspname = 'servicebroker')",
    "select format('the function %s belongs to %s', p.oid::regprocedure, p.proowner::regrole) from pg_proc p "
    f"join pg_namespace n on n.oid = p.pronamespace where n.nspname in {_OUR_SCHEMAS} "
    "and p.proowner <> (select nspowner from pg_namespace where nspname = 'servicebroker')",
    "select format('the table %s has row level security', c.oid::regclass) from pg_class c "
    "where c.relnamespace = 'servicebroker'::regnamespace and c.relrowsecurity",
)


def find_tampering() -> Steps[list[str]]:
    """Return descriptions of changed ownership and rights of the broker's objects; none without a change."""
    faults: list[str] = []
    for text in _FAULTS:
        rows = yield Statement("consistency.find_tampering", text, prepared=False)
        faults += [fault for (fault,) in rows]
    return faults
