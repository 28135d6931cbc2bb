"""Preparation of a PostgreSQL database for an instance: check it, migrate its schema, find the rights of the role."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from servicebroker.api.shared.slow_steps import logged_if_slow
from servicebroker.engine.catalog.databases import SYSTEM_DATABASE, ensure_database
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs, applied_migrations, find_home_of
from servicebroker.model.schema_difference import SchemaDifference
from servicebroker.store.connection import connect
from servicebroker.store.home import check_home, find_home
from servicebroker.store.migrations import applied_numbers, check_complete, compare, migrate, no_instance
from servicebroker.store.running import execute, run, run_alone
from servicebroker.store.server import check_server
from servicebroker.store.server_clock import Clock
from servicebroker.store.server_errors import raise_broker_error
from servicebroker.store.server_time import follow
from servicebroker.store.statements import Rows, Steps


def prepare(url: str, clock: Clock | None = None, *, accepts_copies: bool = False) -> type[OwnerVerbs]:
    """Create the schema and the system database, or migrate them. Return the interpreter of operations for the role.

    A standby and a restricted role cannot migrate, so the schema must be up to date already.

    Args:
        url: the database.
        clock: if it follows the server's time, it is set.
        accepts_copies: accept a copied database, for `servicebroker instance adopt`.

    Raises:
        InstanceError: the server cannot be reached or used, or is unsuitable; the database is a copy of an instance.
    """
    with logged_if_slow("Connecting to PostgreSQL"):
        connected = connect(url)
    with connected as connection:
        check_server(connection, url)
        if clock is not None:
            follow(clock, connection)
        ((is_standby, is_fenced),) = execute(
            connection, "preparation.prepare", f"select pg_is_in_recovery(), {_IS_FENCED}"
        )
        if is_fenced:
            check_complete({number for (number,) in run(connection, _applied())})
            ((home,),) = run(connection, _home())
            check_home(home, connection.info.dbname)
            return RestrictedVerbs
        try:
            if is_standby:
                check_complete(applied_numbers(connection))
            else:
                with logged_if_slow("Bringing the schema of the instance up to date"):
                    migrate(connection)
            if not accepts_copies:
                check_home(find_home(connection), connection.info.dbname)
            if not is_standby:
                run_alone(connection, ensure_database(SYSTEM_DATABASE))
        except psycopg.errors.ReadOnlySqlTransaction as problem:
            raise_broker_error(problem)
    return OwnerVerbs


class Inspected(NamedTuple):
    """The state of an unchanged instance.

    Attributes:
        engine: the interpreter of operations for the role.
        schema: the differences between its schema and the schema of this version.
    """

    engine: type[OwnerVerbs]
    schema: SchemaDifference


def inspect(connection: psycopg.Connection[Any]) -> Inspected:
    """Check an instance as `prepare` does, and compare its schema with this version, without any change.

    Raises:
        InstanceError: the database is a copy of an instance, or holds no instance.
    """
    ((is_fenced,),) = execute(connection, "preparation.inspect", f"select {_IS_FENCED}")
    if is_fenced:
        schema = compare({number for (number,) in run(connection, _applied())})
        ((home,),) = run(connection, _home())
        check_home(home, connection.info.dbname)
        return Inspected(RestrictedVerbs, schema)
    if not (migrations := applied_numbers(connection)):
        raise no_instance(connection.info.dbname)
    schema = compare(migrations)
    if not schema.missing:  # an older schema may lack the function that returns the home
        check_home(find_home(connection), connection.info.dbname)
    return Inspected(OwnerVerbs, schema)


# the role has rights on the functions for restricted roles (the fence), the tables exist, and it has no rights on them
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
