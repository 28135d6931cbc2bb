"""Findings about sessions and roles of the PostgreSQL server: transactions, locks, rights and connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from servicebroker.engine.diagnosis.fact_types import (
    LONG_WAIT,
    NOTABLE_SHARE,
    HolderFacts,
    NeighbourFacts,
    SessionFacts,
    TableLockFacts,
)
from servicebroker.engine.diagnosis.findings import Finding, Severity, duration, end_session
from servicebroker.model.wording import counted
from servicebroker.store.lock_functions import CLOSING_COMMAND

TABLE_LOCK_TIME = timedelta(seconds=5)  # a transaction that locks a table against writes for longer is reported
_MOST_NAMED = 5  # roles that one finding names


def judge_table_locks(table_locks: Iterable[TableLockFacts], now: datetime) -> Iterator[Finding]:
    """Report sessions that have locked a table of the broker against writes for longer than `TABLE_LOCK_TIME`."""
    for lock in table_locks:
        if _is_long(lock, now):
            yield _table_lock(lock, now)


def _is_long(lock: TableLockFacts, now: datetime) -> bool:
    return lock.since is not None and now - lock.since > TABLE_LOCK_TIME


def _table_lock(lock: TableLockFacts, now: datetime) -> Finding:
    more = f" and {counted(lock.tables - 1, 'other table')}" if lock.tables > 1 else ""
    since = duration(now - lock.since) if lock.since is not None else ""
    return Finding(
        f"session {lock.pid}",
        f"It ({lock.role}, {lock.application or 'no name'}) has locked {lock.table}{more} against writes, in a "
        f"transaction that has been open for {since}: other sessions that write to it wait.",
        f"See what that program does. select pg_terminate_backend({lock.pid}) rolls it back.",
        acts=(end_session(lock.pid),),
    )


def judge_sessions(sessions: Iterable[SessionFacts], now: datetime) -> Iterator[Finding]:
    """Report transactions that have been open for longer than `LONG_WAIT`."""
    for session in sessions:
        if now - session.since > LONG_WAIT:
            yield Finding(
                f"session {session.pid}",
                describe_transaction(session, now),
                advise_on_transaction(session),
                acts=(end_session(session.pid),),
            )


def judge_neighbours(facts: NeighbourFacts, now: datetime) -> Iterator[Finding]:
    """Report other roles and sessions of the server that disturb the instance, or could read its messages."""
    for role, examples, count in facts.trespassers:
        yield Finding(
            f"role {role}",
            f"It has {counted(count, 'right')} beyond the verbs ({examples}): with rights on tables it can "
            "read, redirect "
            "and forge the messages of others.",
            f"servicebroker rights grant {role} --database ... --receive ... revokes them, and grants the verbs.",
            Severity.WARNING,
        )
    for blocker in facts.blockers:
        yield Finding(
            f"session {blocker.pid}",
            f"It ({blocker.role}, {blocker.application or 'no name'}) holds the broker's lock of "
            f"{blocker.lock}, for which "
            f"{counted(blocker.waiting, 'session waits', 'sessions wait')}, the first for "
            f"{duration(now - blocker.since)}.",
            f"See what that program does. select pg_terminate_backend({blocker.pid}) ends it.",
            acts=(end_session(blocker.pid),),
        )
    yield from _locks(facts)
    for hoarder in facts.hoarders:
        yield Finding(
            f"session {hoarder.pid}",
            f"It ({hoarder.role}, {hoarder.application or 'no name'}) holds {hoarder.taken:,} of about "
            f"{hoarder.possible:,} locks that the server has room for: when none is left, verbs fail.",
            f"select pg_terminate_backend({hoarder.pid}) ends it. Do less in one transaction, or raise "
            "max_locks_per_transaction.",
            Severity.WARNING,
            (end_session(hoarder.pid),),
        )
    for old in facts.snapshots:
        yield Finding(
            f"session {old.pid}",
            f"It ({old.role}, {old.application or 'no name'}) has a transaction open since {old.age:,} transactions "
            "ago: received messages take up space until it ends.",
            "Grant pg_read_all_stats to the schema's owner, so that doctor shows its start time and statement. "
            f"select pg_terminate_backend({old.pid}) ends it.",
            Severity.WARNING,
            (end_session(old.pid),),
        )
    connections = facts.connections
    if connections.used >= 0.9 * connections.possible:
        yield Finding(
            "PostgreSQL",
            f"{connections.used} of {connections.possible} connections are in use, {connections.of_role} by the role "
            f"{connections.role}.",
            f"ALTER ROLE {connections.role} CONNECTION LIMIT ...; end sessions with pg_terminate_backend.",
            Severity.WARNING,
        )
    if connections.notifications > NOTABLE_SHARE:
        yield Finding(
            "PostgreSQL",
            f"The queue of notifications is {connections.notifications:.0%} full: when it is full, "
            "transactions that wake a reader fail.",
            "A session that listens keeps a transaction open: the server's log names its process. End it with "
            "pg_terminate_backend.",
            Severity.WARNING,
        )


def _locks(facts: NeighbourFacts) -> Iterator[Finding]:
    """Report other sessions with the broker's locks, roles that could take such locks, and roles that lack them."""
    rights = facts.lock_rights
    close = f"{CLOSING_COMMAND} takes the functions from others."
    if not rights.may_close:
        close = f"Let a superuser run what {CLOSING_COMMAND} --sql prints."
    for holder in facts.holders:
        yield _holder(holder, close)
    if facts.able:
        examples = ", ".join(facts.able[:_MOST_NAMED])
        more = f" and {counted(len(facts.able) - _MOST_NAMED, 'other')}" if len(facts.able) > _MOST_NAMED else ""
        yield Finding(
            "PostgreSQL",
            f"{counted(len(facts.able), 'role')} ({examples}{more}) can take the broker's locks and need none: while "
            "such a role holds one, BEGIN DIALOG, SEND and RECEIVE may wait.",
            f"{close} Or REVOKE CONNECT ON DATABASE ... FROM PUBLIC, and GRANT it to the roles that you trust.",
            Severity.WARNING,
        )
    if rights.is_lacking and not rights.is_public:
        yield Finding(
            "PostgreSQL",
            f"A role that needs our locks may not take them ({', '.join(rights.needing)}): its verbs are refused.",
            f"{CLOSING_COMMAND} gives it the functions." if rights.may_close else close,
        )


def _holder(holder: HolderFacts, close: str) -> Finding:
    since = f" since {holder.since:%Y-%m-%d %H:%M:%S} UTC" if holder.since else ""
    held = f"{counted(holder.locks, 'lock')} of the broker ({holder.kinds}): sessions that need them wait."
    if holder.prepared:
        return Finding(
            f"transaction {holder.prepared}",
            f"The role {holder.role} has prepared it{since}, and it holds {held}",
            f"As a superuser: rollback prepared '{holder.prepared}'. {close}",
        )
    who = f"{holder.role}, {holder.application or 'no name'}{', connected' + since if since else ''}"
    return Finding(
        f"session {holder.pid}",
        f"It ({who}) does not belong to the broker, and holds or waits for {held}",
        f"As a superuser or a member of pg_signal_backend: select pg_terminate_backend({holder.pid}). {close}",
        acts=(end_session(holder.pid),),
    )


def describe_transaction(session: SessionFacts, now: datetime) -> str:
    """Return a description of an open transaction: session, age, locked groups, last statement."""
    groups = f" and holds {session.groups:,} conversation groups" if session.groups else ""
    who = ", ".join(filter(None, (session.role, session.application or "no name", session.state)))
    return (
        f"Its transaction ({who}) has been open for {duration(now - session.since)}{groups}; "
        f"its last statement: {session.query}"
    )


def advise_on_transaction(session: SessionFacts) -> str:
    """Return advice on an open transaction: what to look for, and how to end it."""
    return (
        f"See what that program waits for. select pg_terminate_backend({session.pid}) rolls it back: what it "
        "has received "
        "is in its queue again."
    )
