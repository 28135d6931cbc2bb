"""Rights on the functions for advisory locks: in the database of an instance they are not public (decision 165).

A lock of ours has two keys (`store/locks.py`), which everybody can compute or read in pg_locks. So EXECUTE on the eight
functions that take such locks is revoked from PUBLIC, and granted to the owner of the schema and to the roles with
rights on our tables. Locks with one key are never ours: their functions stay public, and so do those that release.

Only a superuser can revoke it. If a superuser creates, upgrades or mends an instance, it is done on the way. For
another owner `servicebroker rights locks --sql` prints the statements, and `servicebroker doctor` reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from servicebroker.store.queue import quoted
from servicebroker.store.statements import Statement, Steps

SCHEMA_OWNER = "(select nspowner from pg_namespace where nspname = 'servicebroker')"
FUNCTIONS = tuple(
    f"pg_catalog.pg_{attempt}advisory_{scope}lock{mode}(integer, integer)"
    for attempt in ("", "try_")
    for scope in ("", "xact_")
    for mode in ("", "_shared")
)
CLOSING_COMMAND = "servicebroker rights locks"

ALL_FUNCTIONS = ", ".join(FUNCTIONS)
_OIDS = "array[" + ", ".join(f"'{function}'" for function in FUNCTIONS) + "]::regprocedure[]::oid[]"


class LockRights(NamedTuple):
    """The rights on the lock functions in this database.

    `may_close`: this role may revoke them from others. `needing` are the roles that take our locks by themselves, and
    `is_lacking` tells that one of these lacks a grant of the functions. `strangers` have them by a grant without need.
    """

    is_public: bool
    may_close: bool
    needing: Sequence[str]
    is_lacking: bool
    strangers: Sequence[str]

    @property
    def is_closed(self) -> bool:
        """True if no role has them by default, and no role lacks them."""
        return not (self.is_public or self.is_lacking)


def find_lock_rights() -> Steps[LockRights]:
    """Read the rights on the functions, and whether this role may change them, from PostgreSQL's catalogs."""
    rows = yield Statement(
        "lock_functions.find_lock_rights",
        "with functions as materialized (select p.oid as id, p.proowner, a.grantee from pg_proc p "
        "  left join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a "
        f"  on a.privilege_type = 'EXECUTE' where p.oid = any ({_OIDS})), "
        "users as materialized (select r.oid, r.rolname::text as name from pg_roles r where not r.rolsuper "
        f"  and r.oid >= 16384 and (r.oid = {SCHEMA_OWNER} or not pg_has_role(r.oid, {SCHEMA_OWNER}, 'usage') "
        f"    and {has_tables('r.oid')})) "
        "select coalesce((select bool_or(grantee = 0) from functions), false), "
        "(select bool_and(pg_has_role(proowner, 'usage')) from functions), "
        "array(select name from users order by 1), "
        f"exists (select from users u, unnest({_OIDS}) f (id) where not exists (select from functions g "
        "  where g.id = f.id and g.grantee <> 0 and pg_has_role(u.oid, g.grantee, 'usage'))), "
        "array(select r.rolname::text from pg_roles r where r.oid in (select grantee from functions) and "
        f"  not r.rolsuper and not {is_owner('r.oid')} and r.oid not in (select oid from users) order by 1)",
        prepared=False,
    )
    return LockRights(*rows[0])


def is_owner(role: str) -> str:
    """Return the condition that a role has the rights of the schema's owner, or can take them."""
    return f"pg_has_role({role}, {SCHEMA_OWNER}, 'member')"


def has_tables(role: str) -> str:
    """Return the condition that a role runs the verbs on our tables, so that it takes our locks by itself."""
    return f"has_table_privilege({role}, 'servicebroker.conversation_endpoints', 'update')"


def is_able(role: str) -> str:
    """Return the condition that a role has one of the functions, in any way."""
    return f"exists (select from unnest({_OIDS}) f (id) where has_function_privilege({role}, f.id, 'execute'))"


def plan_closing(rights: LockRights, *, for_all: bool) -> list[Statement]:
    """Return statements that grant the functions to roles in need and revoke PUBLIC; `for_all`: strangers, too."""
    statements = []
    if rights.needing:
        statements.append(_change("grant", "to", *map(quoted, rights.needing)))
    losing = ["public", *(map(quoted, rights.strangers) if for_all else ())]
    return [*statements, _change("revoke", "from", *losing)]


def close_where_allowed() -> Steps[None]:
    """Grant the functions to roles in need and revoke PUBLIC, unless that is done or this role may not."""
    rights = yield from find_lock_rights()
    if rights.may_close and not rights.is_closed:
        for statement in plan_closing(rights, for_all=False):  # noqa: UP028 # `yield from` a list returns no rows
            yield statement


def plan_revoke(role: str) -> Steps[list[Statement]]:
    """Return the statements that revoke the functions from a role with a grant, if we may."""
    rights = yield from find_lock_rights()
    is_stranger = role in rights.strangers or role in rights.needing
    return [_change("revoke", "from", quoted(role))] if rights.may_close and is_stranger else []


def _change(verb: str, word: str, *roles: str) -> Statement:
    text = f"{verb} execute on function {ALL_FUNCTIONS} {word} {', '.join(roles)}"
    return Statement("lock_functions.change", text, prepared=False)
