"""The schema, step by step: each file is applied once, in the order of its number.

A change of the queue template (`store/queue.sql`) ships with a migration, an empty one if need be, because
the functions of existing queues are made again whenever one was applied.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import psycopg
from psycopg import sql

from servicebroker.model.errors import InstanceError
from servicebroker.store import locks
from servicebroker.store.queue import queue_functions
from servicebroker.store.statements import execute


class Migration(NamedTuple):
    """One numbered step."""

    number: int
    name: str
    text: str


def migrations() -> list[Migration]:
    """Every migration that this version knows, in order."""
    files = sorted(file.name for file in resources.files(__package__).iterdir() if file.name.endswith(".sql"))
    return [Migration(int(name[:4]), name, (resources.files(__package__) / name).read_text()) for name in files]


def migrate(connection: psycopg.Connection[object]) -> list[Migration]:
    """Bring the schema up to date, once, also when several processes start together. Returns what was applied.

    Raises:
        InstanceError: the schema is newer than this version, or the role may not create it.
    """
    known = migrations()
    try:
        if _applied(connection) == known[-1].number:
            return []
        with connection.transaction():
            execute(connection, "select pg_advisory_xact_lock($1, 0)", locks.MIGRATION)
            applied = _applied(connection)
            if applied > known[-1].number:
                raise InstanceError(
                    f"The instance was made by a newer servicebroker (its schema is number {applied}, "
                    f"this version knows {known[-1].number}): upgrade servicebroker."
                )
            new = [step for step in known if step.number > applied]
            for step in new:
                connection.execute(sql.SQL(step.text))  # our own file, not input
                execute(
                    connection,
                    "insert into servicebroker.migrations (number, name) values ($1, $2)",
                    step.number,
                    step.name,
                )
            if new:
                for (queue_id,) in execute(connection, "select queue_id from servicebroker.queues"):
                    for statement in queue_functions(queue_id):
                        execute(connection, statement.sql)
    except psycopg.errors.InsufficientPrivilege as refused:
        raise InstanceError(
            f"The PostgreSQL role may not make or use the schema of servicebroker ({refused.diag.message_primary}): "
            "grant it CREATE on the database, or the rights of the role that has made the schema."
        ) from None
    return new


def _applied(connection: psycopg.Connection[object]) -> int:
    # not to_regclass: it may answer from a cache that is older than the lock we have just waited for
    found = execute(connection, "select from pg_tables where schemaname = 'servicebroker' and tablename = 'migrations'")
    if not found:
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            return 0
        execute(connection, "create schema if not exists servicebroker")
        execute(
            connection,
            "create table servicebroker.migrations (number integer primary key, name text not null, "
            "applied_at timestamptz not null default clock_timestamp())",
        )
        return 0
    (number,) = execute(connection, "select coalesce(max(number), 0) from servicebroker.migrations")[0]
    return int(number)
