"""Keep views of applications that read catalog views: a migration that drops a catalog view drops them, too.

`find_views` reads their definitions before the migration, and `restore_views` recreates the dropped ones.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from servicebroker.store.connection import one_line
from servicebroker.store.running import execute

_LOG = logging.getLogger("servicebroker")


class DependentView(NamedTuple):
    """A view or materialized view of an application.

    Attributes:
        name: its qualified name.
        statements: the statements that create it, with its comments, owner, indexes, grants and triggers.
        refresh: the statement that fills a materialized view; None for a view. It is separate because the query may
            call any function: REFRESH runs it with the rights of the view's owner, but CREATE with those of this role.
    """

    name: str
    statements: list[str]
    refresh: str | None


def grant_on(view: str) -> str:
    """Return SQL for the GRANT statement of a right `g` (a row of aclexplode). `view` is SQL for the view's name."""
    return (
        f"format('grant %s on %s to %s%s', g.privilege_type, {view}, "
        "case g.grantee when 0 then 'public' else g.grantee::regrole::text end, "
        "case when g.is_grantable then ' with grant option' else '' end)"
    )


def find_views(connection: psycopg.Connection[Any]) -> list[DependentView]:
    """Return the views of applications that read catalog views, also through other views, oldest first."""
    rows = execute(
        connection,
        "dependent_views.find_views",
        "with recursive ours as (select c.oid from pg_class c where c.relkind = 'v' "
        "  and c.relnamespace in (to_regnamespace('tsql'), to_regnamespace('sys'), to_regnamespace('servicebroker'))), "
        "readers (oid) as (select o.oid from ours o union select r.ev_class from readers p "
        "  join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = p.oid "
        "  and d.classid = 'pg_rewrite'::regclass join pg_rewrite r on r.oid = d.objid), "
        "views as (select c.*, format('%I.%I', c.relnamespace::regnamespace::text, c.relname) as name "
        "  from readers join pg_class c using (oid) where c.relkind in ('v', 'm') "
        "  and oid not in (select oid from ours)), "
        "forms as (select v.*, case relkind when 'm' then 'materialized view' else 'view' end as kind from views v) "
        "select v.name, array_remove(array["
        "  format('create %s %s%s as %s', v.kind, v.name, ' with (' || array_to_string(v.reloptions, ', ') || ')', "
        "    rtrim(pg_get_viewdef(v.oid), ';') || case relkind when 'm' then ' with no data' else '' end), "
        "  format('comment on %s %s is ', v.kind, v.name) || quote_literal(obj_description(v.oid, 'pg_class')), "
        "  case when v.relowner <> current_user::regrole "
        "       then format('alter %s %s owner to %s', v.kind, v.name, v.relowner::regrole) end] "
        "|| array(select pg_get_indexdef(i.indexrelid) from pg_index i where i.indrelid = v.oid) "
        "|| array(select format('comment on column %s.%I is %L', v.name, a.attname, col_description(v.oid, a.attnum)) "
        "  from pg_attribute a where a.attrelid = v.oid and col_description(v.oid, a.attnum) is not null) "
        f"|| array(select {grant_on('v.name')} from aclexplode(v.relacl) g where g.grantee <> v.relowner) "
        "|| array(select pg_get_triggerdef(t.oid) from pg_trigger t where t.tgrelid = v.oid and not t.tgisinternal), "
        "null), case when relkind = 'm' and relispopulated then format('refresh materialized view %s', v.name) end "
        "from forms v order by v.oid",
    )
    return [DependentView(*row) for row in rows]


def restore_views(connection: psycopg.Connection[Any], views: list[DependentView]) -> None:
    """Recreate the dropped views. If PostgreSQL refuses a view, log its statement."""
    left = [view for view in views if not _is_there(connection, view)]
    created: list[DependentView] = []
    while left:  # a view may read another one that comes later in the list
        refused = []
        for view in left:
            if problem := _make(connection, view):
                refused.append((view, problem))
            else:
                created.append(view)
        if len(refused) == len(left):
            for view, problem in refused:
                _LOG.error("The view %s could not be made again: %s. %s", view.name, problem, view.statements[0])
            break
        left = [view for view, _ in refused]
    for view in created:
        if view.refresh is not None:
            _fill(connection, view.name, view.refresh)


def _is_there(connection: psycopg.Connection[Any], view: DependentView) -> bool:
    ((is_there,),) = execute(connection, "dependent_views.is_there", "select to_regclass($1) is not null", view.name)
    return bool(is_there)


def _make(connection: psycopg.Connection[Any], view: DependentView) -> str:
    """Create a view. Returns PostgreSQL's error, or ''."""
    try:
        with connection.transaction():
            for statement in view.statements:
                connection.execute(sql.SQL(statement))
    except psycopg.Error as problem:
        return one_line(problem)
    return ""


def _fill(connection: psycopg.Connection[Any], name: str, refresh: str) -> None:
    """Fill a materialized view. If that fails, for example because its owner lacks a right, log the error."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL(refresh))
    except psycopg.Error as problem:
        _LOG.error("The materialized view %s could not be filled again: %s. Run %s.", name, one_line(problem), refresh)
