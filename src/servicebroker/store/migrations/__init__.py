"""Create and upgrade the schema: a baseline, and numbered migrations.

The baseline (`baseline/`, a file for each subject) creates the schema of number 296 in a new instance. Each numbered
file is applied once, in the order of the numbers. An instance whose schema is older than number 296 is refused: a
version of servicebroker with schema 296 must upgrade it first (decision 450).

To change a table, write a migration. Never change the baseline, because existing instances were created by it.

Every migration also recreates the views and functions: those of queues (`store/queue.sql`), of the catalog
(`store/views.sql`), of verbs (`store/verbs.sql`, `store/fence.sql`), of audit and trail (`store/audit.sql`,
`store/trail.sql`), and of translated T-SQL (`store/tsql/`). So a change of these files needs a migration, possibly an
empty one. After that the rights on lock functions are revoked (`store/lock_functions.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Set
from importlib import resources
from importlib.metadata import version
from typing import NamedTuple

import psycopg
from psycopg import sql

from servicebroker.model.errors import InstanceError, NoInstance
from servicebroker.model.schema_difference import SchemaDifference
from servicebroker.store import locks
from servicebroker.store.connection import one_line
from servicebroker.store.expected_objects import is_foreign, record, trust_queues
from servicebroker.store.lock_functions import close_where_allowed
from servicebroker.store.migrations.catalog_views import make_views
from servicebroker.store.queue import renewed_objects
from servicebroker.store.running import execute, run
from servicebroker.store.server_errors import explain_error, explain_lock_refusal
from servicebroker.store.sql_verbs import audit, fence, trail, verbs
from servicebroker.store.tsql import library
from servicebroker.store.tsql.dependent_views import DependentView, find_views, restore_views

BASELINE_NUMBER = 296  # the number of the schema that `baseline/` creates
# the files of the baseline; each refers only to objects of earlier ones
_SUBJECTS = (
    "instance",
    "catalog",
    "security",
    "conversations",
    "receive",
    "network",
    "activation",
    "diagnosis",
    "tsql",
    "pipeline",
)


class Migration(NamedTuple):
    """One numbered migration."""

    number: int
    name: str
    text: str


@functools.cache
def this_version() -> str:
    """Return the version of servicebroker, with the number of its schema, for messages."""
    return f"servicebroker {version('servicebroker')}, schema {migrations()[-1].number}"


def compare(applied: Set[int]) -> SchemaDifference:
    """Compare a schema, given by its migrations, with the schema of this version."""
    known = {migration.number for migration in migrations()}
    since_baseline = {number for number in applied if number >= BASELINE_NUMBER}
    return SchemaDifference(max(applied, default=0), len(known - applied), len(since_baseline - known))


def migrations() -> list[Migration]:
    """Return the baseline and every later migration that this version knows, in order."""
    folder = resources.files(__package__)
    baseline = "\n".join((folder / "baseline" / f"{subject}.sql").read_text() for subject in _SUBJECTS)
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    later = [Migration(int(name[:4]), name, (folder / name).read_text()) for name in names]
    return [Migration(BASELINE_NUMBER, f"{BASELINE_NUMBER:04}_baseline", baseline), *later]


def migrate(connection: psycopg.Connection[object]) -> list[Migration]:
    """Upgrade the schema under a lock, and return the migrations that this call has applied.

    A migration that is merged late, with a smaller number than applied ones, is applied, too.

    Raises:
        InstanceError: the schema is newer than this version or too old for it, or this role may not create a schema.
    """
    try:
        if not _missing(applied_numbers(connection)):
            return []
        with connection.transaction():
            execute(connection, "migrations.migrate", "select pg_advisory_xact_lock($1, 0)", locks.SCHEMA_MIGRATION)
            done = applied_numbers(connection)
            new = _missing(done)
            if not done:
                _check_free(connection)
            _set_path(connection)
            views = find_views(connection)  # before the migrations, which may drop a view
            for migration in new:
                _apply(connection, migration)
            if new:
                _recreate_objects(connection, views)
                _check_owners(connection)
                run(connection, record())
                run(connection, trust_queues())
    except psycopg.errors.InsufficientPrivilege as refused:
        if locked_out := explain_lock_refusal(refused, connection.info.user):
            raise InstanceError(locked_out) from None
        if "row-level security" in (refused.diag.message_primary or ""):
            raise InstanceError(_refusal(connection, refused)) from None
        raise InstanceError(
            f"The PostgreSQL role '{connection.info.user}' may not create or use the schema of servicebroker "
            f"({refused.diag.message_primary}). If the instance exists, let its owner run servicebroker rights grant "
            "for this role. To create an instance, the role needs CREATE on the PostgreSQL database."
        ) from None
    except psycopg.Error as refused:
        if explained := explain_error(refused):
            raise explained from None
        raise InstanceError(_refusal(connection, refused)) from None
    return new


def _check_free(connection: psycopg.Connection[object]) -> None:
    """Check that the schemas of an instance do not exist, except an empty schema servicebroker of this role.

    Raises:
        InstanceError: something else uses one of them.
    """
    taken = execute(
        connection,
        "migrations.check_free",
        "select nspname from pg_namespace n where nspname in ('servicebroker_fence', 'sys', 'tsql') "
        "or nspname = 'servicebroker' and (nspowner <> current_user::regrole "
        "or exists (select from pg_class where relnamespace = n.oid) "
        "or exists (select from pg_proc where pronamespace = n.oid)) order by 1",
    )
    if taken:
        raise InstanceError(
            f"This PostgreSQL database cannot hold an instance, because it has a schema {taken[0][0]} that no instance "
            "has made: servicebroker, servicebroker_fence, sys and tsql must be free. Use a PostgreSQL database of its "
            "own."
        )


def _set_path(connection: psycopg.Connection[object]) -> None:
    """Empty search_path for the transaction, so that unqualified names mean objects of PostgreSQL."""
    execute(connection, "migrations.set_path", "select set_config('search_path', '', true)")


def _check_owners(connection: psycopg.Connection[object]) -> None:
    """Check that the tables belong to the schema's owner. Switch off row security that an event trigger has set.

    Raises:
        InstanceError: an event trigger has given a table to another role.
    """
    tables = execute(
        connection,
        "migrations.check_owners",
        "select c.oid::regclass::text, c.relowner::regrole::text, c.relowner <> n.nspowner "
        "from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = 'servicebroker' and c.relkind in ('r', 'p') "
        "and (c.relowner <> n.nspowner or c.relrowsecurity or c.relforcerowsecurity)",
    )
    for table, owner, is_foreign_owner in tables:
        if is_foreign_owner:
            raise InstanceError(
                f"An event trigger has made {owner} the owner of the new table {table}. The table must belong to the "
                "owner of its schema. "
                f"{_name_event_triggers(connection)}"
            )
        connection.execute(sql.SQL(f"alter table {table} disable row level security, no force row level security"))


def _refusal(connection: psycopg.Connection[object], refused: psycopg.Error) -> str:
    """Return the text of an error in a migration. It names event triggers, which may have raised the error."""
    problem = refused.diag.message_primary or one_line(refused)
    text = f"PostgreSQL refuses the schema of servicebroker ({problem}), and nothing of it was changed."
    return text if connection.closed else f"{text} {_name_event_triggers(connection)}".rstrip()


def _name_event_triggers(connection: psycopg.Connection[object]) -> str:
    """Return a sentence that names the event triggers of this database; '' if it has none."""
    triggers = execute(
        connection,
        "migrations.name_event_triggers",
        "select evtname from pg_event_trigger where evtenabled in ('O', 'A') order by 1",
    )
    if not triggers:
        return ""
    named = ", ".join(name for (name,) in triggers)
    return (
        f"Event triggers of this PostgreSQL database see its statements ({named}): a superuser can disable them "
        "for as long as the instance is opened (ALTER EVENT TRIGGER ... DISABLE)."
    )


def no_instance(database: str) -> NoInstance:
    """Return the error for a PostgreSQL database without an instance, for commands that do not create one."""
    return NoInstance(
        f"There is no instance in the PostgreSQL database '{database}': make one with servicebroker init."
    )


def check_complete(applied: set[int]) -> None:
    """Check that the schema has all migrations of this version. For connections that cannot upgrade it.

    Raises:
        InstanceError: the schema lacks a migration.
    """
    if missing := _missing(applied):
        raise InstanceError(
            f"The schema lacks migration {missing[0].number}. A restricted role or a standby cannot apply it: let the "
            "schema's owner open the instance on the primary with this version first."
        )


def check_known(applied: Set[int]) -> None:
    """Check that this version can open a schema with the given migrations.

    Raises:
        InstanceError: the schema is of a newer version, or of one that is too old.
    """
    _missing(applied)


def _missing(applied: Set[int]) -> list[Migration]:
    """Return the migrations that the schema lacks.

    Raises:
        InstanceError: the schema has migrations that this version does not know, or is older than the baseline.
    """
    known = migrations()
    newer = {number for number in applied if number > BASELINE_NUMBER} - {migration.number for migration in known}
    if newer:
        raise InstanceError(
            f"The instance was made by a newer servicebroker (its schema is number {max(newer)}, "
            f"this version knows {known[-1].number}): upgrade servicebroker."
        )
    if applied and BASELINE_NUMBER not in applied:
        raise InstanceError(
            f"The instance was made by an older servicebroker: its schema is number {max(applied)}, and this version "
            f"upgrades from number {BASELINE_NUMBER}. Open it first with a version whose schema is number "
            f"{BASELINE_NUMBER}."
        )
    return [migration for migration in known if migration.number not in applied]


def _apply(connection: psycopg.Connection[object], migration: Migration) -> None:
    connection.execute(sql.SQL(migration.text))  # a file of this package, not input
    execute(
        connection,
        "migrations.apply",
        "insert into servicebroker.migrations (number, name) values ($1, $2)",
        migration.number,
        migration.name,
    )


def _recreate_objects(connection: psycopg.Connection[object], views: list[DependentView]) -> None:
    """Recreate the views and functions of this version, and the views of applications that were dropped with them."""
    connection.execute(sql.SQL(verbs()))
    queues = execute(
        connection,
        "migrations.recreate_objects",
        "select queue_id, postgres_schema, postgres_name, is_retention_enabled from servicebroker.queues",
    )
    make_views(connection)
    for queue in queues:
        statement = renewed_objects(*queue)
        execute(connection, statement.name, statement.sql)
    for text in library():
        connection.execute(sql.SQL(text))
    restore_views(connection, views)
    connection.execute(sql.SQL(audit()))
    connection.execute(sql.SQL(trail()))
    connection.execute(sql.SQL(fence()))
    run(connection, close_where_allowed())


def mend(connection: psycopg.Connection[object]) -> None:
    """Recreate the views and functions of this version.

    If another server has recorded the definitions (before an upgrade or a restore), record them again.

    Raises:
        InstanceError: the role is not the owner of the schema.
    """
    try:
        with connection.transaction():
            execute(connection, "migrations.mend", "select pg_advisory_xact_lock($1, 0)", locks.SCHEMA_MIGRATION)
            _set_path(connection)
            _recreate_objects(connection, find_views(connection))
            if run(connection, is_foreign()):
                run(connection, record())
            run(connection, trust_queues())
    except psycopg.errors.InsufficientPrivilege as refused:
        if locked_out := explain_lock_refusal(refused, connection.info.user):
            raise InstanceError(locked_out) from None
        raise InstanceError(f"Only the owner of the schema can mend it ({refused.diag.message_primary}).") from None


def applied_numbers(connection: psycopg.Connection[object]) -> set[int]:
    """Return the numbers of the migrations that the schema has."""
    if not _exists(connection):
        return set()
    return {
        number
        for (number,) in execute(
            connection, "migrations.applied_numbers", "select number from servicebroker.migrations"
        )
    }


def _exists(connection: psycopg.Connection[object]) -> bool:
    # Not to_regclass: its cache may be older than the lock that was just acquired. Three names, because another program
    # may have a table `migrations`.
    return bool(
        execute(
            connection,
            "migrations.exists",
            "select from pg_class where relnamespace = (select oid from pg_namespace where nspname = 'servicebroker') "
            "and relname in ('migrations', 'instance', 'conversation_endpoints') having count(*) = 3",
        )
    )
