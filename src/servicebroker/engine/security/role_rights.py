"""The rights of PostgreSQL roles: restrict a role to the functions of store/fence.sql, and list its effective rights.

Grants and revokes are plain SQL statements, which can be run or printed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from servicebroker.engine.catalog.alter import lock_catalog, renew_versions
from servicebroker.engine.catalog.catalog import find_queue_uncached
from servicebroker.engine.catalog.databases import find_database
from servicebroker.model import names
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.security.permissions import DBO_ID, DENY, GRANT, KIND_WORDS, PUBLIC_ID, Kind
from servicebroker.operations.rights import GrantRights, RevokeRights, RightsChange
from servicebroker.store.lock_functions import (
    CLOSING_COMMAND,
    SCHEMA_OWNER,
    find_lock_rights,
    plan_closing,
    plan_revoke,
)
from servicebroker.store.queue import quoted
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class RoleRights(NamedTuple):
    """The rights of a PostgreSQL role in an instance.

    Attributes:
        role: the name of the role.
        as_owner: the reason why the role can do everything; '' if it cannot.
        has_verbs: the role may call the functions of store/fence.sql.
        direct: rights on the broker's tables, sequences, and functions that check no permission.
        users: the role's user in each broker database, with grants and denials.
    """

    role: str
    as_owner: str
    has_verbs: bool
    direct: list[str]
    users: dict[str, list[str]]


# ---------------------------------------------------------------- granting and revoking


def statements_of(operation: RightsChange) -> Steps[list[Statement]]:
    """Return the SQL statements for a change of rights.

    Raises:
        BrokerError: 15007 no such role, 911, 15151 unknown names, 15023 the user's name is taken, 402 names without a
            database.
        InstanceError: the role has the rights of the schema's owner, or the caller has not.
    """
    operation.check()
    return (yield from _STATEMENTS[type(operation)](operation))


def _plan_grant(operation: GrantRights) -> Steps[list[Statement]]:
    """Return the statements that create a user with these permissions for the role, and revoke its direct rights."""
    role = operation.role
    yield from _check_role(role)
    statements = [*(yield from _plan_revoke_direct(role)), *(yield from plan_revoke(role)), *_plan_usage(role)]
    if operation.database is None:
        return statements
    database_id = yield from find_database(operation.database)
    statements += yield from _plan_user(role, database_id)
    for kind, number, permission in (yield from _find_permissions(database_id, operation)):
        values = (database_id, kind.value, number, role, permission)
        statements += [
            Statement(
                "role_rights.plan_grant.delete_permissions",
                f"delete from servicebroker.permissions where {_OF_ROLE} and state = '{DENY}'",
                values,
            ),
            Statement(
                "role_rights.plan_grant.insert_permissions",
                "insert into servicebroker.permissions select $1, $2, $3, principal_id, "
                f"{DBO_ID}, $5, '{GRANT}' from servicebroker.principals where database_id = $1 and postgres_role = $4 "
                "on conflict do nothing",
                values,
            ),
        ]
    return [*statements, renew_versions()]


def _plan_revoke(operation: RevokeRights) -> Steps[list[Statement]]:
    """Return the statements that revoke these permissions; without names all permissions in the database.

    Without a database they revoke all rights and permissions of the role in all databases, except for DENY entries.
    """
    role = operation.role
    yield from _check_owner(role)
    if operation.database is None:
        fence = "servicebroker_fence"
        return [
            *(yield from _plan_revoke_direct(role)),
            *(yield from plan_revoke(role)),
            Statement(
                "role_rights.plan_revoke.functions",
                f"revoke all on all functions in schema {fence} from {quoted(role)}",
                prepared=False,
            ),
            Statement(
                "role_rights.plan_revoke.tables",
                f"revoke all on all tables in schema {fence} from {quoted(role)}",
                prepared=False,
            ),
            Statement(
                "role_rights.plan_revoke.schema", f"revoke all on schema {fence} from {quoted(role)}", prepared=False
            ),
            SQL("plan_revoke.delete_fenced_roles", (role,)),
            # otherwise the next grant of one permission would make all old permissions effective again
            SQL("plan_revoke.permissions_everywhere", (role, DENY)),
            renew_versions(),
        ]
    database_id = yield from find_database(operation.database)
    permissions = yield from _find_permissions(database_id, operation)
    statements = [
        Statement(
            "role_rights.plan_revoke.permissions",
            f"delete from servicebroker.permissions where {_OF_ROLE}",
            (database_id, kind.value, number, role, permission),
        )
        for kind, number, permission in permissions
    ]
    if not permissions:
        statements = [SQL("plan_revoke.permissions_in_database", (database_id, role))]
    return [*statements, renew_versions()]


def plan_lock_closing() -> Steps[list[Statement]]:
    """Return the statements that restrict the advisory lock functions to roles that use the broker's tables."""
    return plan_closing((yield from find_lock_rights()), for_all=True)


def close_locks() -> Steps[None]:
    """Run the statements of `plan_lock_closing`. They wait for no lock of the broker, which another role may hold.

    Raises:
        InstanceError: the caller is not a superuser.
    """
    rights = yield from find_lock_rights()
    if not rights.may_close:
        raise InstanceError(
            "Only a superuser can revoke functions of PostgreSQL from PUBLIC: let one run, in this database, the "
            f"statements that {CLOSING_COMMAND} --sql prints."
        )
    for statement in plan_closing(rights, for_all=True):  # noqa: UP028 # `yield from` a list returns no rows
        yield statement


_OF_ROLE = (
    "database_id = $1 and class = $2 and major_id = $3 and permission = $5 and grantee_id = (select principal_id "
    "from servicebroker.principals where database_id = $1 and postgres_role = $4)"
)


def _check_owner(role: str) -> Steps[None]:
    """Check that the caller may grant, and that the role exists.

    Raises:
        InstanceError: the caller has not the rights of the schema's owner.
        BrokerError: 15007 no such role.
    """
    rows = yield Statement(
        "role_rights.check_owner",
        f"select pg_has_role({SCHEMA_OWNER}, 'usage'), exists (select from pg_roles where rolname = $1)",
        (names.checked("login", role),),
    )
    is_owner, is_there = rows[0]
    if not is_owner:
        raise InstanceError("Only the PostgreSQL role that owns the instance's schema may grant and revoke rights.")
    if not is_there:
        hint = f"Whoever may create roles makes it: create role {quoted(role)} login."
        raise BrokerError(15007, role, hint=hint)


def _check_role(role: str) -> Steps[None]:
    yield from _check_owner(role)
    rows = yield Statement(
        "role_rights.check_role",
        f"select pg_has_role(oid, {SCHEMA_OWNER}, 'member') from pg_roles where rolname = $1",
        (role,),
    )
    if rows[0][0]:
        raise InstanceError(
            f"The PostgreSQL role '{role}' has, or can take, the rights of the schema's owner, as a superuser or a "
            "member of that role: nothing restricts it. Give the application a role of its own."
        )


def _plan_usage(role: str) -> list[Statement]:
    to = quoted(role)
    return [
        Statement(
            "role_rights.plan_usage.grant_usage", f"grant usage on schema servicebroker_fence to {to}", prepared=False
        ),
        Statement(
            "role_rights.plan_usage.grant_select", f"grant select on servicebroker_fence.caller to {to}", prepared=False
        ),
        Statement(
            "role_rights.plan_usage.grant_execute",
            f"grant execute on all functions in schema servicebroker_fence to {to}",
            prepared=False,
        ),
        SQL("plan_usage.insert_fenced_roles", (role,)),
    ]


def _plan_revoke_direct(role: str) -> Steps[list[Statement]]:
    """Return the statements that revoke the role's direct rights in the broker's schemas; none if it has none."""
    rows = yield SQL("plan_revoke_direct.find_rights", (role,))
    if not rows[0][0]:
        return []
    object_groups = ("all tables in schema", "all sequences in schema", "all functions in schema", "schema")
    return [
        Statement(
            "role_rights.plan_revoke_direct.revoke",
            f"revoke all on {objects} servicebroker, sys from {quoted(role)}",
            prepared=False,
        )
        for objects in object_groups
    ]


def _plan_user(role: str, database_id: int) -> Steps[list[Statement]]:
    """Return the statements that create a user with the role's name, unless it exists, and grant it CONNECT."""
    rows = yield SQL("plan_user.find_principals", (database_id, role))
    is_user, is_taken = rows[0]
    if is_taken and not is_user:
        raise BrokerError(15023, role)
    insert = SQL("plan_user.insert_principals", (database_id, role))
    connects = Statement(
        "role_rights.plan_user.insert_permissions",
        f"insert into servicebroker.permissions select $1, {Kind.DATABASE.value}, 0, principal_id, {DBO_ID}, "
        f"'CONNECT', '{GRANT}' from servicebroker.principals where database_id = $1 and postgres_role = $2 "
        "on conflict do nothing",
        (database_id, role),
    )
    return [connects] if is_user else [insert, connects]


def _find_permissions(database_id: int, operation: RightsChange) -> Steps[list[tuple[Kind, int, str]]]:
    """Return the permissions of the statement: kind and id of the object, and the permission."""
    permissions = []
    for queue in operation.receive:
        queue_row = yield from find_queue_uncached("find", database_id, queue)
        permissions.append((Kind.QUEUE, queue_row.queue_id, "RECEIVE"))
    for service in operation.send:
        rows = yield SQL(
            "find_permissions.find_contracts_used",
            (database_id, names.checked("service", service), names.FIRST_USER_ID),
        )
        if not rows:
            raise BrokerError(15151, "find", "service", service)
        number, contracts = rows[0]
        permissions += [
            (Kind.SERVICE, number, "SEND"),
            *((Kind.CONTRACT, contract_id, "REFERENCES") for contract_id in contracts),
        ]
    for contract in operation.contracts:
        rows = yield SQL("find_permissions.find_contracts", (database_id, names.checked("service contract", contract)))
        if not rows:
            raise BrokerError(15151, "find", "service contract", contract)
        permissions.append((Kind.CONTRACT, rows[0][0], "REFERENCES"))
    return list(dict.fromkeys(permissions))


_STATEMENTS: Mapping[type[RightsChange], Callable[[Any], Steps[list[Statement]]]] = {
    GrantRights: _plan_grant,
    RevokeRights: _plan_revoke,
}


def apply(operation: RightsChange) -> Steps[None]:
    """Run the statements of a change of rights, under the lock of the catalog."""
    yield lock_catalog()
    statements = yield from statements_of(operation)
    for statement in statements:  # noqa: UP028 # `yield from` a list returns no rows
        yield statement


# ---------------------------------------------------------------- listing


def find_rights_of(role: str | None = None) -> Steps[list[RoleRights]]:
    """Return the rights of one role, or of every role with rights in the instance, from PostgreSQL's catalogs.

    Rights of a role include those of the roles whose member it is, and those of public.

    Raises:
        BrokerError: 15007 no such role, 15151 an invalid name.
    """
    if role is not None:
        names.checked("role", role)
    roles = yield Statement(
        "role_rights.find_rights_of",
        "select rolname::text, case when rolsuper then 'it is a superuser' "
        f"when oid = {SCHEMA_OWNER} then 'it owns the schema' "
        f"when pg_has_role(oid, {SCHEMA_OWNER}, 'member') then 'it is a member of ' || {SCHEMA_OWNER}::regrole "
        "else '' end, "
        "has_schema_privilege(oid, 'servicebroker_fence', 'usage') "
        "and exists (select from servicebroker.fenced_roles where postgres_role = rolname), "
        "exists (select from servicebroker.principals where postgres_role = rolname) "
        "from pg_roles where $1::text is null and oid >= 16384 or rolname = $1 order by 1",
        (role,),
    )
    if role is not None and not roles:
        raise BrokerError(15007, role)
    direct = yield from _find_direct_rights([name for name, as_owner, *_ in roles if not as_owner])
    users = yield from _find_users()
    return [
        RoleRights(name, as_owner, has_verbs, direct[name], users[name])
        for name, as_owner, has_verbs, is_user in roles
        if role is not None or has_verbs or is_user or direct[name]
    ]


def _find_direct_rights(roles: list[str]) -> Steps[dict[str, list[str]]]:
    rows = yield SQL("find_direct_rights", (roles,))
    rights: dict[str, list[str]] = defaultdict(list)
    for role, right in rows:
        rights[role].append(right)
    return rights


def _find_users() -> Steps[dict[str, dict[str, list[str]]]]:
    """Return, by role, its user in each database with the grants and denials of that user and its database roles."""
    words = ", ".join(f"({kind.value}, '{word}')" for kind, word in KIND_WORDS.items())
    rows = yield Statement(
        "role_rights.find_users",
        "with recursive identities (role, database_id, principal_id, id) as ("
        "select postgres_role, database_id, principal_id, unnest(array[principal_id, "
        f"{PUBLIC_ID}]) from servicebroker.principals where postgres_role is not null "
        "union select i.role, i.database_id, i.principal_id, m.role_id from identities i "
        "join servicebroker.role_members m on m.database_id = i.database_id and m.member_id = i.id), "
        "objects (database_id, class, id, name) as ("
        "select database_id, 1, queue_id, schema_name || '.' || name from servicebroker.queues "
        "union all select database_id, 15, message_type_id, name from servicebroker.message_types "
        "union all select database_id, 16, service_contract_id, name from servicebroker.service_contracts "
        "union all select database_id, 17, service_id, name from servicebroker.services "
        "union all select database_id, 3, schema_id, name from servicebroker.tsql_schemas "
        "union all select database_id, 3, 1, 'dbo' from servicebroker.databases) "
        "select distinct i.role, d.name || ': ' || u.name, case when p.permission is not null then "
        f"case p.state when '{DENY}' then 'DENY ' else '' end || p.permission || ' on ' || case p.class "
        "when 0 then 'the database' else w.word || ' ' || coalesce(o.name, p.major_id::text) end "
        "when g.principal_id is not null then 'member of ' || g.name end "
        "from identities i join servicebroker.databases d using (database_id) "
        "join servicebroker.principals u on u.database_id = i.database_id and u.principal_id = i.principal_id "
        "left join servicebroker.permissions p on p.database_id = i.database_id and p.grantee_id = i.id "
        "left join servicebroker.principals g on p.permission is null and g.database_id = i.database_id "
        f"  and g.principal_id = i.id and g.is_role and g.principal_id <> {PUBLIC_ID} "
        "left join objects o on o.database_id = p.database_id and o.class = p.class and o.id = p.major_id "
        f"left join (values {words}) w (class, word) on w.class = p.class order by 1, 2, 3",
    )
    rights: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for role, user, right in rows:
        rights[role].setdefault(user, []).extend([right] if right else [])
    return rights
