"""Whether what guards an instance in PostgreSQL is as we made it: its owner or a superuser can have changed it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from servicebroker.store.queue import queue_functions
from servicebroker.store.statements import Statement, Steps
from servicebroker.store.verbs import fence, verbs

_TRIGGERS = ("remove_unread_body", "arrival")  # ours, on our tables
_OPEN = ("rows_here", "approximate_count")  # functions that views call as their reader
_OURS = "('servicebroker', 'servicebroker_fence', 'sys', 'tsql')"

_FAULTS = (
    # functions that check permissions, and would not
    "select format('the function %s does not run as the owner of the schema, or finds names where its caller says', "
    "p.oid::regprocedure) from pg_proc p where p.pronamespace = 'servicebroker_fence'::regnamespace "
    "and p.proname <> 'me' and (not p.prosecdef "
    "or not 'search_path=pg_catalog, pg_temp' = any (coalesce(p.proconfig, '{}')))",
    "select format('everybody may execute the function %s', p.oid::regprocedure) from pg_proc p "
    "cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a "
    "where p.pronamespace in ('servicebroker'::regnamespace, 'servicebroker_fence'::regnamespace) and a.grantee = 0 "
    f"and p.proname not in {_OPEN}",
    "select 'the view servicebroker_fence.caller shows what it should not' where not exists (select from pg_class "
    "where oid = to_regclass('servicebroker_fence.caller') and 'security_barrier=true' = any (reloptions) "
    "and pg_get_viewdef(oid) ~ 'postgres_role = CURRENT_USER')",
    # what others have put beside ours, or in its way
    "select format('%s %s belongs to %s', case c.relkind when 'v' then 'the view' when 'S' then 'the sequence' "
    "else 'the table' end, c.oid::regclass, c.relowner::regrole) from pg_class c join pg_namespace n "
    f"on n.oid = c.relnamespace where n.nspname in {_OURS} and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f') "
    "and c.relowner <> (select nspowner from pg_namespace where nspname = 'servicebroker')",
    "select format('the function %s belongs to %s', p.oid::regprocedure, p.proowner::regrole) from pg_proc p "
    f"join pg_namespace n on n.oid = p.pronamespace where n.nspname in {_OURS} "
    "and p.proowner <> (select nspowner from pg_namespace where nspname = 'servicebroker')",
    "select format('the trigger %s on %s is not ours', t.tgname, t.tgrelid::regclass) from pg_trigger t "
    "join pg_class c on c.oid = t.tgrelid where c.relnamespace = 'servicebroker'::regnamespace and not t.tgisinternal "
    f"and t.tgname not in {_TRIGGERS}",
    "select format('the rule %s on %s is not ours', r.rulename, r.ev_class::regclass) from pg_rewrite r "
    "join pg_class c on c.oid = r.ev_class where c.relnamespace = 'servicebroker'::regnamespace "
    "and r.rulename <> '_RETURN'",
    "select format('the table %s has row level security', c.oid::regclass) from pg_class c "
    "where c.relnamespace = 'servicebroker'::regnamespace and c.relrowsecurity",
)


def tampered() -> Steps[list[str]]:
    """What is not as we have made it, in words; nothing, when all is."""
    said: list[str] = []
    for text in _FAULTS:
        rows = yield Statement(text, prepared=False)
        said += [fault for (fault,) in rows]
    queues = yield Statement("select queue_id, is_retention_enabled from servicebroker.queues")
    texts = [fence(), verbs()]
    for queue_id, retention in queues:
        texts += [statement.sql for statement in queue_functions(queue_id, retention)]
    wanted = dict(_bodies(texts))
    rows = yield Statement(
        "select n.nspname || '.' || p.proname, p.prosrc from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
        "where n.nspname in ('servicebroker', 'servicebroker_fence')"
    )
    found: dict[str, set[str]] = {}
    for name, body in rows:
        found.setdefault(name, set()).add(body)
    for name, body in sorted(wanted.items()):
        if name not in found:
            said.append(f"the function {name} is missing")
        elif found[name] != {body}:
            said.append(f"the function {name} is not the one of this version")
    return said


def _bodies(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The functions that these statements make, with their bodies."""
    for text in texts:
        for piece in re.split(r"^(?=create or replace function )", text, flags=re.MULTILINE):
            made = re.match(r"create or replace function (\w+\.\w+)\b.*? as \$\$(.*?)\$\$", piece, flags=re.DOTALL)
            if made:
                yield made[1], made[2]
