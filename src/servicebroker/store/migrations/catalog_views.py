"""The catalog views of `store/views.sql`, recreated after migrations and by `servicebroker check --mend`.

PostgreSQL replaces a view only if its columns stay and new ones follow. A new column of a view of `sys` stands before
the last one, `broker_database`. Such a view is dropped with all that reads it, and made with the grants that it had.
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

# views of `servicebroker` are parts of the views of queues, and no migration may change them so
_VIEW = re.compile(r"^create or replace view (sys\.\S+)", re.MULTILINE)


def make_views(connection: psycopg.Connection[object]) -> None:
    """Create or replace the views. `dependent_views.py` makes those of applications again."""
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
    """Return the number and name of each catalog view with a statement that grants a right on it."""
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
    """Run statements. Returns False, with nothing done, if more than the end of a view's columns has changed."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL(text))
    except psycopg.errors.InvalidTableDefinition:
        return False
    return True
