"""Rights on PostgreSQL's functions for advisory locks, which are revoked from PUBLIC (decision 165).

A lock of the broker has two keys (`store/locks.py`), which everybody can compute or read in pg_locks. So EXECUTE on the
eight functions that take locks with two keys is revoked from PUBLIC. It is granted to the owner of the schema and to
the roles with rights on the tables. Functions for locks with one key, and functions that release locks, stay public.

Only a superuser can revoke these rights. If a superuser creates, upgrades or repairs an instance, this happens then.
For another owner, `servicebroker rights locks --sql` prints the statements, and `servicebroker doctor` reports the
problem.
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

    Attributes:
        is_public: PUBLIC may call a function.
        may_close: the current role may revoke the rights from others.
        needing: the roles that run verbs on the tables, and so take the locks themselves.
        is_lacking: a role in `needing` may not call a function.
        strangers: roles with a grant that do not need it.
    """

    is_public: bool
    may_close: bool
    needing: Sequence[str]
    is_lacking: bool
    strangers: Sequence[str]

    @property
    def is_closed(self) -> bool:
        """True if PUBLIC may call no function, and each role in need may call all."""
        return not (self.is_public or self.is_lacking)


def find_lock_rights() -> Steps[LockRights]:
    """Read the rights on the lock functions from PostgreSQL's catalogs."""
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
    """Return the SQL condition that a role is a member of the schema's owner."""
    return f"pg_has_role({role}, {SCHEMA_OWNER}, 'member')"


def has_tables(role: str) -> str:
    """Return the SQL condition that a role has rights on the tables, so that its verbs take the locks directly."""
    return f"has_table_privilege({role}, 'servicebroker.conversation_endpoints', 'update')"


def is_able(role: str) -> str:
    """Return the SQL condition that a role may call one of the lock functions."""
    return f"exists (select from unnest({_OIDS}) f (id) where has_function_privilege({role}, f.id, 'execute'))"


def plan_closing(rights: LockRights, *, for_all: bool) -> list[Statement]:
    """Return statements that grant the functions to the roles in need, and revoke them from PUBLIC.

    `for_all`: revoke them from other roles, too.
    """
    statements = []
    if rights.needing:
        statements.append(_change("grant", "to", *map(quoted, rights.needing)))
    losing = ["public", *(map(quoted, rights.strangers) if for_all else ())]
    return [*statements, _change("revoke", "from", *losing)]


def close_where_allowed() -> Steps[None]:
    """Run `plan_closing` if that is necessary, and allowed for this role."""
    rights = yield from find_lock_rights()
    if rights.may_close and not rights.is_closed:
        for statement in plan_closing(rights, for_all=False):  # noqa: UP028 # `yield from` a list returns no rows
            yield statement


def plan_revoke(role: str) -> Steps[list[Statement]]:
    """Return the statement that revokes the functions from a role with a grant. Empty if this role may not."""
    rights = yield from find_lock_rights()
    is_stranger = role in rights.strangers or role in rights.needing
    return [_change("revoke", "from", quoted(role))] if rights.may_close and is_stranger else []


def _change(verb: str, word: str, *roles: str) -> Statement:
    text = f"{verb} execute on function {ALL_FUNCTIONS} {word} {', '.join(roles)}"
    return Statement("lock_functions.change", text, prepared=False)
