"""Recreate the catalog views of `store/views.sql`, after migrations and for `servicebroker check --mend`.

PostgreSQL can replace a view only if new columns come last. But a new column of a view of `sys` comes before the last
one, `broker_database`. Such a view is dropped with the views that read it, and created again with its grants.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, cast

import psycopg
from psycopg import sql

from servicebroker.store.running import execute
from servicebroker.store.tsql.dependent_views import grant_on

# Only views of `sys` are dropped. The views of queues read those of `servicebroker`, so no migration may drop these.
_VIEW = re.compile(r"^create or replace view (sys\.\S+)", re.MULTILINE)


def make_views(connection: psycopg.Connection[object]) -> None:
    """Create or replace the views. `dependent_views.py` restores views of applications that are dropped with them."""
    text = (resources.files("servicebroker.store") / "views.sql").read_text()
    if _replace(connection, text):
        return
    grants = _find_grants(connection)
    starts = [view.start() for view in _VIEW.finditer(text)]
    for start, end in zip([0, *starts], [*starts, len(text)], strict=True):
        part = text[start:end]
        name = _VIEW.match(part)
        if name is None:
            connection.execute(sql.SQL(part))
        elif not _replace(connection, part):
            connection.execute(sql.SQL(f"drop view {name[1]} cascade"))
            connection.execute(sql.SQL(part))
    for number, view, grant in grants:
        if _number_of(connection, view) not in (number, None):
            connection.execute(sql.SQL(grant))


def _find_grants(connection: psycopg.Connection[object]) -> Sequence[tuple[Any, ...]]:
    """Return a row for each grant on a catalog view: the oid and name of the view, and the GRANT statement."""
    return execute(
        connection,
        "catalog_views.find_grants",
        f"select c.oid, c.oid::regclass::text, {grant_on('c.oid::regclass')} "
        "from pg_class c, aclexplode(c.relacl) g "
        "where c.relnamespace = to_regnamespace('sys') and c.relkind = 'v' and g.grantee <> c.relowner",
    )


def _number_of(connection: psycopg.Connection[object], view: str) -> int | None:
    ((number,),) = execute(connection, "catalog_views.number_of", "select to_regclass($1)::oid", view)
    return cast("int | None", number)


def _replace(connection: psycopg.Connection[object], text: str) -> bool:
    """Run CREATE OR REPLACE VIEW statements. Returns False, and changes nothing, if a view cannot be replaced."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL(text))
    except psycopg.errors.InvalidTableDefinition:
        return False
    return True
