"""Preparation of a PostgreSQL database for an instance."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from servicebroker.api.shared.slow_steps import told_if_slow
from servicebroker.engine.catalog.databases import SYSTEM_DATABASE, ensure_database
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs, applied_migrations, find_home_of
from servicebroker.model.schema_difference import SchemaDifference
from servicebroker.store.connection import connect
from servicebroker.store.home import check_home, find_home
from servicebroker.store.migrations import applied, check_whole, compare, migrate, no_instance
from servicebroker.store.running import execute, run, run_alone
from servicebroker.store.server import check_server
from servicebroker.store.server_clock import Clock
from servicebroker.store.server_errors import in_our_words
from servicebroker.store.server_time import follow
from servicebroker.store.statements import Rows, Steps


def prepare(url: str, clock: Clock | None = None, *, takes_copies: bool = False) -> type[OwnerVerbs]:
    """Bring the schema up to date, and what every instance has; the first time this makes both.

    A `clock` that follows the server is set by it. On a standby the primary migrates, and for a restricted role the
    owner; then the schema must be there. `takes_copies`: a copied database is accepted, for the commands that adopt
    one. Returns the interpreter of verbs for the role.

    Raises:
        InstanceError: the server cannot be reached or used, or is not fit for an instance; the database holds a copy.
    """
    with told_if_slow("Connecting to PostgreSQL"):
        connected = connect(url)
    with connected as connection:
        check_server(connection, url)
        if clock is not None:
            follow(clock, connection)
        ((is_standby, is_fenced),) = execute(
            connection, "preparation.prepare", f"select pg_is_in_recovery(), {_IS_FENCED}"
        )
        if is_fenced:
            check_whole({number for (number,) in run(connection, _applied())})
            ((home,),) = run(connection, _home())
            check_home(home, connection.info.dbname)
            return RestrictedVerbs
        try:
            if is_standby:
                check_whole(applied(connection))
            else:
                with told_if_slow("Bringing the schema of the instance up to date"):
                    migrate(connection)
            if not takes_copies:
                check_home(find_home(connection), connection.info.dbname)
            if not is_standby:
                run_alone(connection, ensure_database(SYSTEM_DATABASE))
        except psycopg.errors.ReadOnlySqlTransaction as problem:
            raise in_our_words(problem) or problem from problem
    return OwnerVerbs


class Inspected(NamedTuple):
    """An instance that was not changed: the interpreter of verbs for the role, and how its schema differs from ours."""

    engine: type[OwnerVerbs]
    schema: SchemaDifference


def inspect(connection: psycopg.Connection[Any]) -> Inspected:
    """Find out how an instance stands to this version, as `prepare` does, and change nothing.

    Raises:
        InstanceError: the database holds a copy, or no instance.
    """
    ((is_fenced,),) = execute(connection, "preparation.inspect", f"select {_IS_FENCED}")
    if is_fenced:
        schema = compare({number for (number,) in run(connection, _applied())})
        ((home,),) = run(connection, _home())
        check_home(home, connection.info.dbname)
        return Inspected(RestrictedVerbs, schema)
    if not (found := applied(connection)):
        raise no_instance(connection.info.dbname)
    schema = compare(found)
    if not schema.missing:  # an older schema may have no function that tells
        check_home(find_home(connection), connection.info.dbname)
    return Inspected(OwnerVerbs, schema)


# the role has rights on the functions of the fence, and none on the tables, which are there
_IS_FENCED = (
    "coalesce((select has_schema_privilege(oid, 'usage') from pg_namespace "
    "where nspname = 'servicebroker_fence'), false) "
    "and not coalesce((select has_table_privilege(c.oid, 'update') from pg_class c "
    "join pg_namespace n on n.oid = c.relnamespace "
    "where n.nspname = 'servicebroker' and c.relname = 'conversation_endpoints'), true)"
)


def _applied() -> Steps[Rows]:
    return (yield applied_migrations())


def _home() -> Steps[Rows]:
    return (yield find_home_of())
