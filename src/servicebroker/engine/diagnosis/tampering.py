"""Whether what guards an instance in PostgreSQL guards it: its owner or a superuser can have changed it.

How our objects are defined is compared by `store/expected_objects.py`.
"""

from __future__ import annotations

from servicebroker.store.statements import Statement, Steps

_OPEN = ("rows_here", "approximate_count", "shown_number")  # functions that views call as their reader
_OURS = "('servicebroker', 'servicebroker_fence', 'sys', 'tsql')"

_FAULTS = (
    "select format('everybody may execute the function %s', p.oid::regprocedure) from pg_proc p "
    "cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a "
    "where p.pronamespace in ('servicebroker'::regnamespace, 'servicebroker_fence'::regnamespace) and a.grantee = 0 "
    f"and p.proname not in {_OPEN}",
    "select format('%s %s belongs to %s', case c.relkind when 'v' then 'the view' when 'S' then 'the sequence' "
    "else 'the table' end, c.oid::regclass, c.relowner::regrole) from pg_class c join pg_namespace n "
    f"on n.oid = c.relnamespace where n.nspname in {_OURS} and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f') "
    "and c.relowner <> (select nspowner from pg_namespace where nspname = 'servicebroker')",
    "select format('the function %s belongs to %s', p.oid::regprocedure, p.proowner::regrole) from pg_proc p "
    f"join pg_namespace n on n.oid = p.pronamespace where n.nspname in {_OURS} "
    "and p.proowner <> (select nspowner from pg_namespace where nspname = 'servicebroker')",
    "select format('the table %s has row level security', c.oid::regclass) from pg_class c "
    "where c.relnamespace = 'servicebroker'::regnamespace and c.relrowsecurity",
)


def tampered() -> Steps[list[str]]:
    """What is not as we have made it, in words; nothing, when all is."""
    said: list[str] = []
    for text in _FAULTS:
        rows = yield Statement("tampering.tampered", text, prepared=False)
        said += [fault for (fault,) in rows]
    return said
