"""Read the facts for `servicebroker doctor`, at a bounded cost: each query has a limit of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.conversation.requests import count_late
from servicebroker.engine.diagnosis.consistency import changes_of
from servicebroker.engine.diagnosis.fact_types import (
    LONG_WAIT,
    NOTABLE_SHARE,
    REFUSAL_AGE,
    TIMEOUTS,
    BlockerFacts,
    CommitFacts,
    ConnectionFacts,
    ConversationFacts,
    DaemonFacts,
    DisputeFacts,
    Facts,
    HoarderFacts,
    HolderFacts,
    NeighbourFacts,
    OldCopyFacts,
    PeerFacts,
    QueueFacts,
    SessionFacts,
    SnapshotFacts,
    TableLockFacts,
    WaitFacts,
)
from servicebroker.engine.diagnosis.poison_report import count_failing
from servicebroker.engine.diagnosis.publications import find_blocking
from servicebroker.engine.diagnosis.queue_counts import (
    COUNT_LIMIT,
    dead_letters_by_queue,
    limit_for,
    processes,
    queue_depths,
)
from servicebroker.engine.diagnosis.tds_clients import tds_refusals, tds_servers
from servicebroker.engine.diagnosis.worker_limits import find_worker_limits
from servicebroker.engine.diagnosis.wrong_clocks import find_wrong_clocks
from servicebroker.engine.remote.domain_state import find_membership
from servicebroker.engine.remote.refusals import find_refusals
from servicebroker.engine.remote.unfinished_arrivals import sum_by_peer
from servicebroker.engine.security.certificate_ages import find_used_certificates
from servicebroker.engine.security.logins import find_connect
from servicebroker.engine.security.role_rights import find_rights_of
from servicebroker.model import names
from servicebroker.model.daemon_reports import DaemonReport
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import read_error
from servicebroker.store import locks
from servicebroker.store.expected_objects import find_changed_objects, is_foreign
from servicebroker.store.lock_functions import find_lock_rights, has_tables, is_able, is_owner
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_MAX_ROWS = 100
_MAX_NAMES = 2000  # service names that are compared to find a similar one: difflib compares each
_OLD_SNAPSHOT_AGE = 10_000  # transactions between a snapshot and now
_IN_THIS_DATABASE = "l.database = (select oid from pg_database where datname = current_database())"
_WITH_READERS = "with readers as materialized (select * from servicebroker.readers_here())"
_SESSIONS = (
    "select a.pid, a.application_name, a.state, a.xact_start, left(regexp_replace(a.query, '\\s+', ' ', 'g'), 200), "
    f"(select count(distinct l.objid) from pg_locks l where l.pid = a.pid and l.locktype = 'advisory' and l.granted "
    f"and l.classid::bigint = {locks.CONVERSATION_GROUP} and {_IN_THIS_DATABASE}), a.usename::text "
    "from pg_stat_activity a "
    "where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start is not null "
    "and a.backend_type = 'client backend'"
)


class FactQuery(NamedTuple):
    """A part of the facts: its subject, in words, and the steps that return the facts with this part added.

    Each query is independent of the others. The caller may cancel it at a deadline, and run the others.
    """

    subject: str
    ask: Callable[[Facts], Steps[Facts]]


def fact_queries(*, is_quick: bool = False) -> list[FactQuery]:
    """Return the queries for the facts about an instance. `is_quick` is that of `queue_facts`."""

    def read_queues(facts: Facts) -> Steps[Facts]:
        return facts._replace(queues=(yield from queue_facts(is_quick=is_quick)))

    return [
        FactQuery("the server", _read_server),
        FactQuery("its commits", _read_commits),
        FactQuery("the daemon", _read_daemon),
        FactQuery("sessions", _read_sessions),
        FactQuery("locks of tables", _read_table_locks),
        FactQuery("other roles and sessions", _read_neighbours),
        FactQuery("databases", _read_databases),
        FactQuery("queues", read_queues),
        FactQuery("dead letters", _read_dead_letters),
        FactQuery("messages that wait", _read_waits),
        FactQuery("certificates", _read_certificates),
        FactQuery("the network", _read_network),
        FactQuery("peers", _read_peers),
        FactQuery("SQL Server's clients", _read_clients),
        FactQuery("clocks", _read_clocks),
        FactQuery("definitions", _read_definitions),
        FactQuery("late answers", _read_late_answers),
    ]


def gather(now: datetime, *, is_quick: bool = False) -> Steps[Facts]:
    """Return the facts about an instance. `is_quick` is that of `queue_facts`."""
    facts = Facts(now)
    for look in fact_queries(is_quick=is_quick):
        facts = yield from look.ask(facts)
    return facts


def _read_server(facts: Facts) -> Steps[Facts]:
    rows = yield SQL("read_server")
    return facts._replace(settings=dict(rows))


def _read_commits(facts: Facts) -> Steps[Facts]:
    rows = yield SQL("read_commits")
    return facts._replace(commits=CommitFacts(*rows[0]))


def _read_daemon(facts: Facts) -> Steps[Facts]:
    daemons = yield Statement(
        "facts.read_daemon",
        "select l.pid, a.state, a.state_change, coalesce(a.wait_event = 'SyncRep', false) "
        "from pg_locks l left join pg_stat_activity a using (pid) "
        f"where l.locktype = 'advisory' and l.granted and {_IN_THIS_DATABASE} "
        f"and l.classid::bigint = {locks.BROKER_DAEMON}",
    )
    daemon = None
    if daemons:
        pid, state, since, awaits_standby = daemons[0]
        daemon = DaemonFacts(pid, state, since, (yield from find_reports(pid)), awaits_standby)
    return facts._replace(daemon=daemon, processes=(yield from processes()))


def _read_sessions(facts: Facts) -> Steps[Facts]:
    sessions = yield Statement(
        "facts.read_sessions",  # without commits that wait for a standby: they cannot be rolled back
        f"{_SESSIONS} and a.wait_event is distinct from 'SyncRep' order by a.xact_start limit {_MAX_ROWS}",
    )
    return facts._replace(sessions=[SessionFacts(*row) for row in sessions])


def _read_table_locks(facts: Facts) -> Steps[Facts]:
    rows = yield SQL("read_table_locks", (_MAX_ROWS,))
    return facts._replace(table_locks=[TableLockFacts(*row) for row in rows])


def _read_neighbours(facts: Facts) -> Steps[Facts]:
    return facts._replace(neighbours=(yield from _neighbours(facts.now)))


def _read_databases(facts: Facts) -> Steps[Facts]:
    disabled = yield SQL("read_databases")
    return facts._replace(disabled=[name for (name,) in disabled])


def _read_dead_letters(facts: Facts) -> Steps[Facts]:
    return facts._replace(dead_letters=(yield from dead_letters_by_queue()))


def _read_waits(facts: Facts) -> Steps[Facts]:
    waits = yield Statement(
        "facts.read_waits",
        "select far_service, transmission_status, count(*), min(enqueue_time), "
        "(array_agg(conversation_handle order by enqueue_time, conversation_handle))[1], "
        "(array_agg(d.name order by enqueue_time, conversation_handle))[1] from (select * from "
        "servicebroker.transmission_queue where conversation_handle not in (select conversation_handle "
        f"from servicebroker.transmission_queue where delayed_until > $1) limit {COUNT_LIMIT}) t "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        "join servicebroker.databases d on d.database_id = e.database_id "
        f"group by 1, 2 order by 4 limit {_MAX_ROWS}",
        (facts.now,),
    )
    similar = (yield from find_similar_services([service for service, *_ in waits])) if waits else {}
    return facts._replace(
        waits=[
            WaitFacts(service, status, messages, oldest, (handle, database), similar.get(service))
            for service, status, messages, oldest, handle, database in waits
        ]
    )


def find_similar_services(wanted: Iterable[str]) -> Steps[dict[str, str]]:
    """Return a service with a similar name, for each of these names that no service of the instance has."""
    rows = yield Statement(
        "facts.find_similar_services", f"select distinct name from servicebroker.services limit {_MAX_NAMES}"
    )
    services = {name for (name,) in rows}
    similar = {name: get_close_matches(name, services, 1) for name in set(wanted) - services}
    return {name: matches[0] for name, matches in similar.items() if matches}


def _read_certificates(facts: Facts) -> Steps[Facts]:
    return facts._replace(certificates=(yield from find_used_certificates(facts.now)))


def _read_network(facts: Facts) -> Steps[Facts]:
    connect, membership = (yield from find_connect()), (yield from find_membership())
    rows = yield SQL("read_network")
    remote_routes, in_recovery, endpoint, encryption = rows[0]
    return facts._replace(
        is_public=connect.is_public,
        membership=membership,
        remote_routes=remote_routes,
        in_recovery=in_recovery,
        endpoint=endpoint,
        encryption=encryption,
    )


def _read_peers(facts: Facts) -> Steps[Facts]:
    peers = yield Statement(
        "facts.read_peers.find_mistrusted",
        "select m.owner, m.claim, m.times, m.last_time, m.last_detail, (select c.name "
        "from servicebroker.transport_certificates c where c.owner = m.owner and not c.is_own "
        "order by c.certificate_id desc limit 1) from servicebroker.mistrusted m "
        # without peers whose certificate was dropped: they may no longer connect
        "where m.owner !~ '^(certificate|login) ' or exists (select from servicebroker.transport_certificates c "
        f"where c.owner = m.owner and not c.is_own) order by m.last_time desc limit {_MAX_ROWS}",
    )
    disputes = yield Statement(
        "facts.read_peers.find_disputes",
        "with claims as (select owner, instance_id, name from servicebroker.transport_certificates "
        "where instance_id is not null and not is_own union select p.owner, p.instance_id, c.name "
        "from servicebroker.peers p join servicebroker.transport_certificates c on c.owner = p.owner and not c.is_own "
        "where not exists (select from servicebroker.transport_certificates n "
        "  where n.instance_id = p.instance_id and not n.is_own)) "
        "select instance_id, array_agg(distinct name order by name) from claims "
        "where instance_id not in (select instance_id from servicebroker.accepted_peers) "
        f"group by instance_id having count(distinct owner) > 1 limit {_MAX_ROWS}",
    )
    copies = yield Statement(
        "facts.read_peers.find_old_copies",
        "select coalesce(d.name, ''), o.own_broker, o.far_broker, o.is_here, o.far_service, o.times, o.last_time, "
        "o.last_detail from servicebroker.old_copies o "
        "left join servicebroker.databases d on d.service_broker_guid = o.own_broker "
        f"order by o.last_time desc limit {_MAX_ROWS}",
    )
    return facts._replace(
        peers=[PeerFacts(*row) for row in peers],
        disputes=[DisputeFacts(*row) for row in disputes],
        old_copies=[OldCopyFacts(*row) for row in copies],
        refusals=(yield from find_refusals(facts.now - REFUSAL_AGE)),
        unfinished=(yield from sum_by_peer(_MAX_ROWS)),
    )


def _read_clients(facts: Facts) -> Steps[Facts]:
    return facts._replace(tds_servers=(yield from tds_servers()), tds_refusals=(yield from tds_refusals()))


def _read_clocks(facts: Facts) -> Steps[Facts]:
    return facts._replace(clocks=(yield from find_wrong_clocks(_MAX_ROWS)))


def _read_definitions(facts: Facts) -> Steps[Facts]:
    changes = yield from find_changed_objects(_MAX_ROWS)
    return facts._replace(
        changed=tuple(changes_of(*change) for change in changes),
        is_foreign=(yield from is_foreign()),
        publications=(yield from find_blocking(_MAX_ROWS)),
    )


def _read_late_answers(facts: Facts) -> Steps[Facts]:
    return facts._replace(late=(yield from count_late(facts.now - LONG_WAIT)))


def find_reports(pid: int) -> Steps[list[DaemonReport]]:
    """Return the reports of the daemon whose session has this process id."""
    rows = yield SQL("find_reports", (pid,))
    return [DaemonReport(*row) for row in rows]


def find_timeouts() -> Steps[dict[str, int]]:
    """Return the timeouts with which this session has begun, in milliseconds."""
    rows = yield SQL("find_timeouts", (list(TIMEOUTS),))
    return dict(rows)


_LOCK_WORDS = {
    locks.CONVERSATION_GROUP: "a conversation group",
    locks.PIPELINE_QUEUE: "a pipeline",
    locks.SERVICE_NAME: "a service",
    locks.DIALOG_BEGIN: "a service or contract",
    locks.DATABASE_BEGIN: "a database",
    locks.PARKED_DELIVERY: "delivery",
    locks.CATALOG_CHANGE: "definitions",
    locks.CONVERSATION_MOVE: "a conversation that moves",
    locks.SCHEMA_MIGRATION: "the schema",
    locks.ROUTE_REQUEST: "a request for a route",
}
_ALL_LOCK_WORDS = _LOCK_WORDS | {  # locks without waiters, or with rules of T-SQL
    locks.BROKER_DAEMON: "the daemon",
    locks.QUEUE_ACTIVATION: "a queue monitor",
    locks.QUEUE_SLOT: "a limit of workers",
    locks.TSQL_KEY: "a key of a T-SQL table",
    locks.TSQL_APPLICATION: "sp_getapplock",
    locks.TSQL_IDENTITY: "an IDENTITY",
    locks.TSQL_SESSION: "a T-SQL session",
}
# locks that functions of the broker take for sessions of restricted roles: exclusive ones, and shared ones
_EXCLUSIVE_IN_VERBS = (locks.CONVERSATION_GROUP, locks.CONVERSATION_MOVE, locks.QUEUE_SLOT)
_SHARED_IN_VERBS = (
    locks.PARKED_DELIVERY,
    locks.SERVICE_NAME,
    locks.PIPELINE_QUEUE,
    locks.DIALOG_BEGIN,
    locks.DATABASE_BEGIN,
)
_IS_STRANGER = f"not r.rolsuper and not {is_owner('r.oid')} and not {has_tables('r.oid')}"


def _neighbours(now: datetime) -> Steps[NeighbourFacts]:
    rights = yield from find_rights_of()
    words = ", ".join(f"({number}, '{word}')" for number, word in _LOCK_WORDS.items())
    blockers = yield Statement(
        "facts.neighbours.find_blockers",
        "select h.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), k.word, count(*), "
        "min(w.waitstart) "
        "from pg_locks w join pg_locks h on h.locktype = 'advisory' and h.granted and h.pid <> w.pid "
        "  and (h.database, h.classid, h.objid, h.objsubid) = (w.database, w.classid, w.objid, w.objsubid) "
        "  and 'ExclusiveLock' in (h.mode, w.mode) "
        f"join (values {words}) k (class, word) on k.class = w.classid::bigint "
        "left join pg_stat_activity a on a.pid = h.pid "
        "where w.locktype = 'advisory' and not w.granted and w.objsubid = 2 and w.waitstart < $1 "
        "and w.database = (select oid from pg_database where datname = current_database()) "
        f"group by 1, 2, 3, 4 order by 6 limit {_MAX_ROWS}",
        (now - LONG_WAIT,),
    )
    holders = yield from _find_holders()
    able = yield from _find_able()
    snapshots = yield Statement(
        "facts.neighbours.find_snapshots",
        "select pid, usename::text, application_name, age(backend_xmin) from pg_stat_activity "
        "where datname = current_database() and xact_start is null and age(backend_xmin) > $1 "
        f"order by 4 desc limit {_MAX_ROWS}",
        (_OLD_SNAPSHOT_AGE,),
    )
    connections = yield SQL("neighbours.count_connections")
    return NeighbourFacts(
        [
            (role_rights.role, ", ".join(role_rights.direct[:3]), len(role_rights.direct))
            for role_rights in rights
            if role_rights.direct
        ],
        [
            blocker
            for blocker in map(BlockerFacts._make, blockers)
            if blocker.pid not in {holder.pid for holder in holders}
        ],
        [SnapshotFacts(*row) for row in snapshots],
        ConnectionFacts(*connections[0]),
        holders,
        (yield from _find_hoarders()),
        able,
        (yield from find_lock_rights()),
    )


def _find_holders() -> Steps[list[HolderFacts]]:
    """Find sessions that hold or wait for a lock of the broker which no function of the broker has taken for them.

    Functions of the broker also lock the broker's tables, which a role without rights on them cannot do. The session of
    a restricted role may have lost these by a rollback to a savepoint, and still hold the lock of a group.
    """
    words = ", ".join(f"({number}, '{word}')" for number, word in _ALL_LOCK_WORDS.items())
    exclusive, shared = (", ".join(map(str, numbers)) for numbers in (_EXCLUSIVE_IN_VERBS, _SHARED_IN_VERBS))
    rows = yield Statement(
        "facts.find_holders",
        "select coalesce(l.pid, 0), coalesce(x.gid, ''), r.rolname::text, coalesce(a.application_name, ''), "
        "count(*), string_agg(distinct k.word, ', ' order by k.word), min(coalesce(a.backend_start, x.prepared)) "
        f"from pg_locks l join (values {words}) k (class, word) on k.class = l.classid::bigint "
        "left join pg_stat_activity a on a.pid = l.pid "
        "left join pg_locks t on l.pid is null and t.pid is null and t.locktype = 'transactionid' "
        "  and t.virtualtransaction = l.virtualtransaction "
        "left join pg_prepared_xacts x on x.transaction = t.transactionid "
        "join pg_roles r on r.oid = a.usesysid or r.rolname = x.owner "
        f"where l.locktype = 'advisory' and l.objsubid = 2 and {_IN_THIS_DATABASE} and {_IS_STRANGER} "
        f"and not ((k.class in ({exclusive}) or k.class in ({shared}) and l.mode = 'ShareLock') and ("
        "  exists (select from servicebroker.fenced_roles f join pg_roles o on o.rolname = f.postgres_role "
        "    where pg_has_role(r.oid, o.oid, 'member')) "
        "  or exists (select from pg_locks o join pg_class c on c.oid = o.relation "
        "    where o.virtualtransaction = l.virtualtransaction and o.database = l.database "
        "    and c.relnamespace = 'servicebroker'::regnamespace))) "
        f"group by 1, 2, 3, 4 order by 7, 1 limit {_MAX_ROWS}",
    )
    return [HolderFacts(*row) for row in rows]


def _find_hoarders() -> Steps[list[HoarderFacts]]:
    """Find sessions that hold a large part of the server's shared lock table, without fast-path locks."""
    rows = yield SQL("find_hoarders", (NOTABLE_SHARE,))
    return [HoarderFacts(*row) for row in rows]


def _find_able() -> Steps[list[str]]:
    """Find roles that can connect and take a lock of the broker, although they need none."""
    rows = yield Statement(
        "facts.find_able",
        f"select r.rolname::text from pg_roles r where r.rolcanlogin and {_IS_STRANGER} "
        f"and has_database_privilege(r.oid, current_database(), 'connect') and {is_able('r.oid')} "
        f"order by 1 limit {_MAX_ROWS}",
    )
    return [role for (role,) in rows]


class _EndpointRow(NamedTuple):
    """A row of `find_endpoint`. `peer` is the handle of the other endpoint, None if that is not in this instance."""

    state: str
    far_service: str
    lifetime: datetime
    queue_id: int
    queue: str
    is_on: bool
    is_activated: bool
    priority: int
    group: UUID
    peer_queue_id: int | None
    peer: UUID | None
    peer_priority: int
    peer_group: UUID | None
    peer_queue: str
    readers: int
    peer_is_on: bool
    peer_readers: int
    peer_is_activated: bool


def gather_conversation(database_id: int, handle: UUID, now: datetime) -> Steps[ConversationFacts]:
    """Return the facts about one endpoint.

    Raises:
        BrokerError: 8426 no such conversation in the database.
    """
    rows = yield Statement(
        "facts.gather_conversation.find_endpoint",
        f"{_WITH_READERS} "
        "select e.state, e.far_service, e.lifetime, q.queue_id, d.name || '.' || q.schema_name || '.' || q.name, "
        "q.is_receive_enabled, q.is_activation_enabled, e.priority, e.conversation_group_id, "
        "p.queue_id, p.conversation_handle, coalesce(p.priority, 0), p.conversation_group_id, "
        "coalesce(dp.name || '.' || qp.schema_name || '.' || qp.name, ''), "
        "(select count(*) from readers w where w.queue_id = e.queue_id and not w.is_monitor), "
        "coalesce(qp.is_receive_enabled, true), "
        "(select count(*) from readers w where w.queue_id = p.queue_id and not w.is_monitor), "
        "coalesce(qp.is_activation_enabled, false) "
        "from servicebroker.conversation_endpoints e join servicebroker.queues q using (queue_id) "
        "join servicebroker.databases d on d.database_id = e.database_id "
        "left join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle "
        "left join servicebroker.queues qp on qp.queue_id = p.queue_id "
        "left join servicebroker.databases dp on dp.database_id = p.database_id "
        "where e.conversation_handle = $2 and e.database_id = $1",
        (database_id, handle),
    )
    if not rows:
        raise BrokerError(8426, handle)
    endpoint = _EndpointRow._make(rows[0])
    own = yield _count_queued(endpoint.queue_id, endpoint.priority, endpoint.group, handle)
    at_peer = yield _count_queued(endpoint.peer_queue_id, endpoint.peer_priority, endpoint.peer_group, endpoint.peer)
    failed = yield Statement(
        "facts.gather_conversation.find_error",
        f"select message_body from servicebroker.queue_{endpoint.queue_id} where priority = $1 "
        f"and conversation_group_id = $2 and conversation_handle = $3 and message_type_id = {names.ERROR_ID} limit 1",
        (endpoint.priority, endpoint.group, handle),
    )
    waits = yield Statement(
        "facts.gather_conversation.find_transmission_queue",
        "select count(*), coalesce((array_agg(transmission_status order by message_sequence_number))[1], ''), "
        "min(enqueue_time), (array_agg(delayed_until order by message_sequence_number))[1] "
        f"from (select * from servicebroker.transmission_queue where conversation_handle = $1 limit {COUNT_LIMIT}) t",
        (handle,),
    )
    holders = yield Statement(
        "facts.gather_conversation.find_holders",
        f"{_SESSIONS} and a.pid in (select l.pid from pg_locks l where l.locktype = 'advisory' and l.granted "
        f"and {_IN_THIS_DATABASE} and l.classid::bigint = {locks.CONVERSATION_GROUP} "
        "and l.objid::bigint = (uuid_hash($1)::bigint & 4294967295))",
        (endpoint.group,),
    )
    failures = yield SQL("gather_conversation.find_failures", (handle,))
    (messages, oldest), (waiting, status, sent, delayed_until) = own[0], waits[0]
    count, last_error, held_until = failures[0] if failures else (0, "", None)
    return ConversationFacts(
        now,
        handle,
        endpoint.state,
        endpoint.far_service,
        endpoint.lifetime,
        endpoint.queue,
        endpoint.is_on,
        messages,
        oldest,
        waiting,
        status,
        endpoint.peer_queue,
        at_peer[0][0],
        [SessionFacts(*row) for row in holders],
        count,
        last_error,
        held_until,
        read_error(failed[0][0]) if failed else None,
        endpoint.readers,
        endpoint.is_activated,
        sent,
        delayed_until,
        endpoint.peer_is_on,
        endpoint.peer_readers,
        endpoint.peer_is_activated,
    )


def _count_queued(queue_id: int | None, priority: int, group: UUID | None, handle: UUID | None) -> Statement:
    """Count a conversation's messages in a queue, up to COUNT_LIMIT, and return the time of the oldest."""
    if queue_id is None:
        return SQL("count_queued.nowhere")
    return Statement(
        "facts.count_queued.count",
        "select count(*), min(message_enqueue_time) from (select message_enqueue_time "
        f"from servicebroker.queue_{queue_id} where priority = $1 and conversation_group_id = $2 "
        f"and conversation_handle = $3 limit {COUNT_LIMIT}) m",
        (priority, group, handle),
    )


def queue_facts(only: int | None = None, *, is_quick: bool = False) -> Steps[list[QueueFacts]]:
    """Return depth, readers, activation and limits of workers of all application queues, or of one.

    `is_quick`: counts of messages stop early, so that the query may run every second.
    """
    rows = yield Statement(
        "facts.queue_facts",
        f"{_WITH_READERS}, "
        "locked as materialized (select l.pid, l.locktype, l.mode, l.relation, l.classid::bigint as kind, "
        f"l.objid::bigint as number from pg_locks l where l.granted and {_IN_THIS_DATABASE} "
        "and (l.mode = 'RowExclusiveLock' "
        "or l.locktype = 'advisory' and l.classid::bigint in "
        f"({locks.QUEUE_ACTIVATION}, {locks.PIPELINE_QUEUE}, {locks.CONVERSATION_GROUP}))), "
        "takers as materialized (select relation, count(distinct pid) as many from locked "
        "where locktype = 'relation' and mode = 'RowExclusiveLock' "  # a session without a group lock has only sent
        "and pid in (select pid from locked where locktype = 'advisory' "
        f"and kind = {locks.CONVERSATION_GROUP}) group by 1), "
        "monitors as materialized (select * from servicebroker.rows_here(null::servicebroker.queue_monitors)), "
        "tasks as materialized (select t.queue_id from servicebroker.rows_here(null::servicebroker.activated_tasks) t "
        "where t.spid in (select pid from pg_stat_activity)) "
        "select d.name || '.' || q.schema_name || '.' || q.name, q.is_receive_enabled, q.queue_id, "
        "(select count(*) from readers w where w.queue_id = q.queue_id and not w.is_monitor), "
        "coalesce(w.many, 0), q.is_activation_enabled, q.activation_procedure, q.max_readers, "
        f"q.queue_id in (select number from locked where locktype = 'advisory' and kind = {locks.QUEUE_ACTIVATION}), "
        "q.queue_id in (select number from locked "
        f"  where locktype = 'advisory' and mode = 'ExclusiveLock' and kind = {locks.PIPELINE_QUEUE}), "
        "0, q.notifies_activation, m.state, m.last_activated_time, "
        "(select count(*) from tasks where tasks.queue_id = q.queue_id) "
        "from servicebroker.queues q join servicebroker.databases d using (database_id) "
        "left join monitors m using (queue_id) "
        "left join takers w on w.relation = to_regclass('servicebroker.queue_' || q.queue_id) "
        "where q.queue_id >= $1 and ($2::int is null or q.queue_id = $2) order by 1",
        (names.FIRST_USER_ID, only),
    )
    depths = yield from queue_depths((row[2] for row in rows), limit_for(len(rows)) if is_quick else COUNT_LIMIT)
    limits = yield from find_worker_limits()
    failing = yield from count_failing()
    return [
        QueueFacts(name, is_on, *depths[queue_id][:2], *rest)._replace(
            failing=failing.get(queue_id, 0),
            is_for_callers=depths[queue_id].is_for_callers,
            limits=limits.get(queue_id),
        )
        for name, is_on, queue_id, *rest in rows
    ]
