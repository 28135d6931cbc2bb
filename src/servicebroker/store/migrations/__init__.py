"""The schema, step by step: each file is applied once, in the order of its number.

A change of the queue template (`store/queue.sql`), of the catalog views (`store/views.sql`), of the server's verbs
(`store/verbs.sql`, `store/fence.sql`), of the triggers of audit and trail (`store/audit.sql`, `store/trail.sql`) or of
what translated T-SQL calls (`store/tsql/`) ships with a migration, an empty one if need be, because what they make is
made again whenever one was applied. Then the functions that take our locks are closed, too (`store/lock_functions.py`).
"""

from __future__ import annotations

from collections.abc import Set
from importlib import resources
from typing import NamedTuple

import psycopg
from psycopg import sql

from servicebroker.model.errors import InstanceError
from servicebroker.store import locks
from servicebroker.store.expected_objects import is_foreign, record, trust_queues
from servicebroker.store.lock_functions import close_where_allowed
from servicebroker.store.queue import renewed_objects
from servicebroker.store.running import execute, run
from servicebroker.store.server_errors import explain_lock_refusal
from servicebroker.store.sql_verbs import audit, fence, trail, verbs
from servicebroker.store.tsql import library


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

    Numbers may have gaps, and a step that comes late is applied late: what counts is which ones the schema has.

    Raises:
        InstanceError: the schema is newer than this version, or cannot be made here.
    """
    try:
        if not _missing(applied(connection)):
            return []
        with connection.transaction():
            execute(connection, "migrations.migrate", "select pg_advisory_xact_lock($1, 0)", locks.MIGRATION)
            _ensure_table(connection)
            new = _missing(applied(connection))
            for step in new:
                _apply(connection, step)
            if new:
                _make_anew(connection)
                if MADE in applied(connection):
                    run(connection, record())
                    run(connection, trust_queues())
    except psycopg.errors.InsufficientPrivilege as refused:
        if locked_out := explain_lock_refusal(refused, connection.info.user):
            raise InstanceError(locked_out) from None
        raise InstanceError(
            f"The PostgreSQL role may not make or use the schema of servicebroker ({refused.diag.message_primary}): "
            "grant it CREATE on the database, or the rights of the role that has made the schema."
        ) from None
    except psycopg.errors.DuplicateSchema as taken:
        raise InstanceError(
            f"This PostgreSQL database cannot hold an instance ({taken.diag.message_primary}): the schemas "
            "servicebroker and sys must be free. Use a PostgreSQL database of its own."
        ) from None
    return new


def check_whole(applied: set[int]) -> None:
    """That the schema has the steps that this version needs, where it cannot be changed.

    Raises:
        InstanceError: it has not.
    """
    if missing := _missing(applied):
        raise InstanceError(
            f"The instance lacks step {missing[0].number} of the schema, which a restricted role cannot make, nor "
            "anybody on a standby: let the schema's owner open the instance on the primary with this version first."
        )


def check_known(applied: Set[int]) -> None:
    """That a schema with these steps is none of a newer version.

    Raises:
        InstanceError: it has steps that this version does not know.
    """
    _missing(applied)


def _missing(applied: Set[int]) -> list[Migration]:
    """The steps that the schema lacks.

    Raises:
        InstanceError: it has steps that this version does not know.
    """
    known = migrations()
    newer = applied - {step.number for step in known}
    if newer:
        raise InstanceError(
            f"The instance was made by a newer servicebroker (its schema is number {max(newer)}, "
            f"this version knows {known[-1].number}): upgrade servicebroker."
        )
    return [step for step in known if step.number not in applied]


def _apply(connection: psycopg.Connection[object], step: Migration) -> None:
    connection.execute(sql.SQL(step.text))  # our own file, not input
    execute(
        connection,
        "migrations.apply",
        "insert into servicebroker.migrations (number, name) values ($1, $2)",
        step.number,
        step.name,
    )


def _make_anew(connection: psycopg.Connection[object]) -> None:
    connection.execute(sql.SQL(verbs()))
    queues = execute(
        connection,
        "migrations.make_anew",
        "select queue_id, postgres_schema, postgres_name, is_retention_enabled from servicebroker.queues",
    )
    connection.execute(sql.SQL((resources.files("servicebroker.store") / "views.sql").read_text()))
    for queue in queues:
        statement = renewed_objects(*queue)
        execute(connection, statement.name, statement.sql)
    for text in library():
        connection.execute(sql.SQL(text))
    connection.execute(sql.SQL(audit()))
    connection.execute(sql.SQL(trail()))
    connection.execute(sql.SQL(fence()))
    run(connection, close_where_allowed())


def mend(connection: psycopg.Connection[object]) -> None:
    """Make views and functions anew as this version has them; what another PostgreSQL has recorded is recorded again.

    Raises:
        InstanceError: the role may not.
    """
    try:
        with connection.transaction():
            execute(connection, "migrations.mend", "select pg_advisory_xact_lock($1, 0)", locks.MIGRATION)
            _make_anew(connection)
            if run(connection, is_foreign()):
                run(connection, record())
            run(connection, trust_queues())
    except psycopg.errors.InsufficientPrivilege as refused:
        if locked_out := explain_lock_refusal(refused, connection.info.user):
            raise InstanceError(locked_out) from None
        raise InstanceError(f"Only the owner of the schema can mend it ({refused.diag.message_primary}).") from None


def _ensure_table(connection: psycopg.Connection[object]) -> None:
    if not _exists(connection):
        execute(connection, "migrations.ensure_table.create_schema", "create schema if not exists servicebroker")
        execute(
            connection,
            "migrations.ensure_table.create_table",
            "create table servicebroker.migrations (number integer primary key, name text not null, "
            "applied_at timestamptz not null default clock_timestamp())",
        )


MADE = 91  # the migration since which it is recorded how everything is defined


def applied(connection: psycopg.Connection[object]) -> set[int]:
    """The numbers of the steps that the schema has."""
    if not _exists(connection):
        return set()
    return {
        number for (number,) in execute(connection, "migrations.applied", "select number from servicebroker.migrations")
    }


def _exists(connection: psycopg.Connection[object]) -> bool:
    # not to_regclass: it may answer from a cache that is older than the lock we have just waited for
    return bool(
        execute(
            connection,
            "migrations.exists",
            "select from pg_tables where schemaname = 'servicebroker' and tablename = 'migrations'",
        )
    )
