"""GRANT, DENY, REVOKE and ALTER AUTHORIZATION. The caller holds the lock of `lock_catalog`.

Each statement renews the catalog version of every queue, so that clients check cached permissions again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from servicebroker.engine.catalog.alter import renew_versions
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.security import authorization
from servicebroker.engine.security.authorization import Lookup, authorize, find_rights, forget_permissions
from servicebroker.engine.security.principals import OWNED, Principal, find_owner, find_principal
from servicebroker.engine.security.tsql_objects import look_up_registered
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import (
    DBO_ID,
    DENY,
    FIXED_PRINCIPALS,
    GRANT,
    GRANT_WITH_GRANT_OPTION,
    KIND_WORDS,
    PUBLIC_ID,
    Kind,
    Securable,
    User,
    implied_by,
    is_allowed,
    may_grant,
)
from servicebroker.operations.permissions import AlterAuthorization, Deny, Grant, OwnedObject, Revoke
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_FIXED_ROLES = {one.principal_id for one in FIXED_PRINCIPALS if one.is_role and one.principal_id != PUBLIC_ID}

# the permissions that can be granted and denied on built-in services, queues and contracts
_ON_BUILT_IN = frozenset({"SEND", "RECEIVE", "REFERENCES"})


class _Target(NamedTuple):
    """The target of a statement: a named object, or the database, which has no lookup."""

    kind: Kind
    name: str
    lookup: Lookup | None = None


_LOOKUPS: dict[str, tuple[Kind, Callable[[str], Lookup]]] = {
    "service": (Kind.SERVICE, authorization.service),
    "queue": (Kind.QUEUE, authorization.queue),
    "contract": (Kind.CONTRACT, lambda name: authorization.contracts([name])),
    "message_type": (Kind.MESSAGE_TYPE, lambda name: authorization.message_types([name])),
    "route": (Kind.ROUTE, authorization.route),
    "remote_service_binding": (Kind.REMOTE_SERVICE_BINDING, authorization.remote_service_binding),
    "certificate": (Kind.CERTIFICATE, authorization.certificate),
    "user": (Kind.USER, authorization.user_named),
    "schema": (Kind.SCHEMA, authorization.schema),
    "tsql_object": (Kind.OBJECT, look_up_registered),
}


def _find_target(operation: OwnedObject) -> _Target:
    """Return the named object, or the database.

    Raises:
        BrokerError: 402 more than one object.
    """
    targets = [
        _Target(kind, name, lookup(name))
        for keyword, (kind, lookup) in _LOOKUPS.items()
        if (name := getattr(operation, keyword, None)) is not None
    ]
    if len(targets) > 1:
        raise BrokerError(402, "the object", "more than one", "one service, queue, contract or whatever it is")
    return targets[0] if targets else _Target(Kind.DATABASE, "")


def grant(definer: Definer, operation: Grant) -> Steps[None]:
    """Insert the grant, and delete a DENY."""
    change = yield from _prepare(definer.user, operation)
    yield _delete(change, f"state = '{DENY}'", [change.grantee_id])
    yield SQL(
        "grant",  # an existing grant option is kept
        (
            *change.key,
            change.grantee_id,
            change.permission,
            change.user_id,
            GRANT_WITH_GRANT_OPTION if operation.with_grant_option else GRANT,
        ),
    )
    yield renew_versions()


def deny(definer: Definer, operation: Deny) -> Steps[None]:
    """Insert the denial, and delete the grants."""
    change = yield from _prepare(definer.user, operation)
    holders = yield from _find_holders(change, operation.cascade)
    yield _delete(change, "true", holders)
    yield SQL("deny", (*change.key, holders, change.permission, change.user_id, DENY))
    yield renew_versions()


def revoke(definer: Definer, operation: Revoke) -> Steps[None]:
    """Delete grants or denials."""
    change = yield from _prepare(definer.user, operation)
    holders = yield from _find_holders(change, operation.cascade)
    if operation.grant_option_for:
        yield SQL(
            "revoke",
            (*change.key, change.grantee_id, change.permission, change.only_by, GRANT, GRANT_WITH_GRANT_OPTION),
        )
        holders = [holder for holder in holders if holder != change.grantee_id]
    yield _delete(change, "true", holders)
    yield renew_versions()


def alter_authorization(definer: Definer, operation: AlterAuthorization) -> Steps[None]:
    """Change the owner, and delete all permissions on the object."""
    user, named = definer.user, _find_target(operation)
    if named.lookup is None:
        raise BrokerError(402, "ALTER AUTHORIZATION", "the database", "an object of it")
    names.checked("user", operation.owner)
    securable = yield from _find(user, named)
    yield from authorize(user, operation.permission, named.lookup)
    owner_id = yield from find_owner(user, operation.owner)
    column = {Kind.CONTRACT: "service_contract_id"}.get(named.kind, f"{named.kind.name.lower()}_id")
    yield Statement(
        "grants.alter_authorization",
        f"update servicebroker.{OWNED[named.kind]} set owner_id = $3 where database_id = $1 and {column} = $2",
        (user.database_id, securable.major_id, owner_id),
    )
    yield forget_permissions(user.database_id, named.kind, securable.major_id)
    yield renew_versions()


class _Change(NamedTuple):
    """A change of permissions by the user `user_id`: the permission, the object, the grantee.

    `only_by` is the grantor whose grants the user may revoke; None for grants of all grantors.
    """

    database_id: int
    kind: Kind
    major_id: int
    permission: str
    grantee_id: int
    user_id: int
    only_by: int | None

    @property
    def key(self) -> tuple[int, int, int]:
        return self.database_id, self.kind.value, self.major_id


def _prepare(user: User, operation: Grant | Deny | Revoke) -> Steps[_Change]:
    """Check permission, object, grantee and grantor of the statement, and return the change that it makes.

    Raises:
        BrokerError: what the checks refuse.
    """
    operation.check()
    permission, target = operation.permission, _find_target(operation)
    securable = yield from _find(user, target, takes_built_in=permission in _ON_BUILT_IN)
    implied_by(target.kind, permission)  # raises 4606 if the object has no such permission
    grantee = yield from find_principal("find", user.database_id, operation.principal)
    _refuse_grantee(user, grantee, securable)
    rights = yield from find_rights(user.database_id, user.principal_id, user.name, user.also)
    if not may_grant(rights.identities, permission, securable, rights.entries):
        if target.kind is Kind.DATABASE:
            raise BrokerError(4613)
        raise BrokerError(15151, "find", KIND_WORDS[target.kind], target.name)
    may_revoke_all = is_allowed(rights.identities, "CONTROL", securable, rights.entries)
    return _Change(
        user.database_id,
        target.kind,
        securable.major_id,
        permission,
        grantee.principal_id,
        user.principal_id,
        None if may_revoke_all else user.principal_id,
    )


def _refuse_grantee(user: User, grantee: Principal, securable: Securable) -> None:
    if grantee.principal_id in _FIXED_ROLES:
        raise BrokerError(4617)
    if grantee.principal_id in (DBO_ID, user.principal_id) or (
        securable.kind is not Kind.DATABASE and grantee.principal_id == securable.owner_id
    ):
        raise BrokerError(4624)


def _find(user: User, target: _Target, *, takes_built_in: bool = False) -> Steps[Securable]:
    if target.lookup is None:
        return Securable(Kind.DATABASE, 0, DBO_ID, user.database)
    securables = yield from target.lookup(user)
    if not securables:
        raise BrokerError(15151, "find", KIND_WORDS[target.kind], target.name)
    if securables[0].is_built_in and not takes_built_in:
        raise BrokerError(9663)
    return securables[0]


def _find_holders(change: _Change, cascade: bool) -> Steps[list[int]]:
    """Return the grantee, and with CASCADE all principals to which the grantee has granted the permission.

    Raises:
        BrokerError: 4611 the permission is grantable, and CASCADE is missing.
    """
    rows = yield SQL(
        "find_holders",
        (*change.key, change.grantee_id, change.permission, GRANT_WITH_GRANT_OPTION, cascade, change.user_id),
    )
    if rows[0][1] and not cascade:
        raise BrokerError(4611)
    return [holder for holder, _ in rows]


def _delete(change: _Change, condition: str, grantees: list[int]) -> Statement:
    """Delete grants and denials of these grantees.

    `only_by` restricts this for the statement's grantee; what cascades is deleted whoever granted it.
    """
    return Statement(
        "grants.delete",
        "delete from servicebroker.permissions where database_id = $1 and class = $2 and major_id = $3 "
        f"and grantee_id = any ($4) and permission = $5 and {condition} "
        "and ($6::int is null or grantor_id = $6 or grantee_id <> $7)",
        (*change.key, grantees, change.permission, change.only_by, change.grantee_id),
    )
