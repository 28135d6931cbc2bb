"""Users and roles of a broker database, and the current user. The caller of DDL holds the lock of `lock_catalog`."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.catalog.alter import renew_versions
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.security.authorization import (
    authorize,
    authorize_login,
    demand,
    find_rights,
    forget_permissions,
    user_named,
)
from servicebroker.engine.security.logins import PUBLIC_LOGIN_ID
from servicebroker.engine.security.module_signatures import find_certificate_users
from servicebroker.engine.security.user_certificates import find_certificate
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import (
    DBO_ID,
    FIXED_PRINCIPALS,
    GRANT,
    GUEST_ID,
    KIND_WORDS,
    NOBODY_ID,
    PUBLIC_ID,
    Kind,
    Login,
    Securable,
    User,
)
from servicebroker.operations.principals import (
    AddRoleMember,
    CreateRole,
    CreateUser,
    DropRole,
    DropRoleMember,
    DropUser,
)
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


ADMINISTRATORS = frozenset({"sa", "dbo"})
_FIXED = {principal.principal_id for principal in FIXED_PRINCIPALS}


class Principal(NamedTuple):
    """A user or a role."""

    principal_id: int
    name: str
    is_role: bool

    @property
    def kind(self) -> str:
        """The word for the kind of principal in errors."""
        return "role" if self.is_role else "user"


# ---------------------------------------------------------------- the current user and login


def find_user(database_id: int, name: str | None = None) -> Steps[User]:
    """Return the database user of that name, or without a name the user of the connection's PostgreSQL role.

    The latter is the user that is mapped to the role. Without such a user it is dbo, if the role has the rights of the
    schema's owner; otherwise guest.

    Raises:
        BrokerError: 916 without CONNECT, 15517 no such user, or the connection's user may not impersonate it.
    """
    user = yield from _map_login(
        database_id,
        "p.postgres_role = current_user",
        "pg_has_role(current_user, (select nspowner from pg_namespace where nspname = 'servicebroker'), 'usage')",
    )
    if name is not None:
        return (yield from find_impersonated(user, name))
    yield from demand(user, "CONNECT")
    return user


def find_impersonated(user: User, name: str) -> Steps[User]:
    """Return the user of that name, after checking that `user` may impersonate it.

    Raises:
        BrokerError: 15517 no such user, or `user` may not impersonate it, 916 without CONNECT.
    """
    principal = yield from _find(user.database_id, name)
    if principal is None or principal.is_role:
        raise BrokerError(15517, name)
    if principal.principal_id != user.principal_id:
        yield from authorize(user, "EXECUTE AS USER", user_named(name))
    user = user._replace(principal_id=principal.principal_id, name=principal.name)
    yield from demand(user, "CONNECT")
    return user


def check_execute_as(user: User, name: str) -> Steps[None]:
    """Check whether a module that the user creates may run as the user of that name.

    Raises:
        BrokerError: 15151 no such user, or this one may not impersonate it.
    """
    principal = yield from _find(user.database_id, name)
    if principal is None or principal.is_role:
        raise BrokerError(15151, "execute as", "user", name)
    if principal.principal_id != user.principal_id:
        yield from authorize(user, "WITH EXECUTE AS", user_named(name))


def find_module_user(database_id: int, database: str, name: str) -> Steps[User]:
    """Return the user of a module's EXECUTE AS clause. The permission was checked when the module was created.

    Raises:
        BrokerError: 15517 the user was dropped.
    """
    principal = yield from _find(database_id, name)
    if principal is None or principal.is_role:
        raise BrokerError(15517, name)
    return User(database_id, database, principal.principal_id, principal.name)


def find_user_of(database_id: int, login: Login) -> Steps[User]:
    """Return the user as which a login uses a database.

    It is the user of the login or of its PostgreSQL role; without one dbo for administrators, otherwise guest.

    Raises:
        BrokerError: 916 without CONNECT.
    """
    user = yield from _map_login(
        database_id,
        "coalesce(p.login_id = $2 or p.postgres_role = $3, false)",
        "$4::bool",
        (login.login_id, login.postgres_role, login.is_administrator),
    )
    yield from demand(user if user.is_dbo else user._replace(name=login.name), "CONNECT")
    return user


def find_login_of(user: User, *, everywhere: bool) -> Steps[Login]:
    """Return the login that a database user stands for, with its PostgreSQL role; a user without login has only a name.

    Without `everywhere` the login has no rights outside of the database.
    """
    rows = yield SQL("find_login_of", (user.database_id, user.principal_id))
    name, login_id, role = rows[0] if rows else (None, None, None)
    if not everywhere:
        return Login(name or user.name)
    return Login(name or user.name, login_id, role, user.is_dbo)


def find_impersonated_login(person: Login, name: str) -> Steps[Login]:
    """Return the login of that name, after checking that `person` may impersonate it. sa and dbo are administrators.

    Raises:
        BrokerError: 15406 no such login, or `person` may not impersonate it.
    """
    if name.lower() in ADMINISTRATORS:
        if not person.is_administrator:
            raise BrokerError(15406, name)
        return Login(name, is_administrator=True)
    rows = yield SQL("find_impersonated_login", (name, PUBLIC_LOGIN_ID))
    if not rows:
        raise BrokerError(15406, name)
    login_id, own = rows[0]
    if login_id != person.login_id:
        yield from authorize_login(person, "EXECUTE AS LOGIN", on=Securable(Kind.LOGIN, login_id, NOBODY_ID, own))
    return Login(own, login_id)


def find_owning_login(person: Login, name: str) -> Steps[None]:
    """Check that `person` may impersonate the login that AUTHORIZATION names.

    Raises:
        BrokerError: 15151 no such login, or `person` may not impersonate it.
    """
    if name.lower() == person.name.lower():
        return
    try:
        yield from find_impersonated_login(person, name)
    except BrokerError as refused:
        if refused.number != 15406:
            raise
        raise BrokerError(15151, "find", "login", name) from None


def _map_login(database_id: int, is_own: str, is_administrator: str, values: tuple[object, ...] = ()) -> Steps[User]:
    rows = yield Statement(
        "principals.map_login",
        "select d.name, p.principal_id, p.name from servicebroker.principals p "
        "join servicebroker.databases d using (database_id) "
        f"where p.database_id = $1 and ({is_own} or p.principal_id = {DBO_ID} and {is_administrator} "
        f"or p.principal_id = {GUEST_ID}) order by {is_own} desc nulls last, p.principal_id limit 1",
        (database_id, *values),
    )
    return User(database_id, *rows[0])


def find_owner(user: User, authorization: str | None) -> Steps[int]:
    """Return the id of the principal that AUTHORIZATION names; without the clause that of the user.

    Raises:
        BrokerError: 15151 no such principal, or the user may not impersonate it, 15405 public or guest.
    """
    if authorization is None:
        return user.principal_id
    owner = yield from find_principal("find", user.database_id, authorization)
    if owner.principal_id in (PUBLIC_ID, GUEST_ID):
        raise BrokerError(15405, owner.name)
    if owner.principal_id == user.principal_id:
        return owner.principal_id
    if not owner.is_role:
        yield from authorize(user, "AUTHORIZATION", user_named(authorization))
        return owner.principal_id
    rights = yield from find_rights(user.database_id, user.principal_id, user.name, user.also)
    if owner.principal_id not in rights.identities:
        yield from demand(user, "AUTHORIZATION OF A ROLE", owner.kind, owner.name)
    return owner.principal_id


def find_principal(action: str, database_id: int, name: str, kind: str = "user") -> Steps[Principal]:
    """Return the user or role of that name, compared without case. `action` is the verb for the error's text.

    Raises:
        BrokerError: 15151 no such principal.
    """
    principal = yield from _find(database_id, name)
    if principal is None:
        raise BrokerError(15151, action, kind, name)
    return principal


# ---------------------------------------------------------------- users


def create_user(definer: Definer, operation: CreateUser) -> Steps[None]:
    """Insert the user, and grant it CONNECT."""
    user, name, postgres_role = definer.user, operation.name, operation.postgres_role
    names.checked("user", name)
    yield from demand(user, operation.permission)
    if postgres_role is not None:
        names.checked("login", postgres_role)
        rows = yield SQL("create_user.find_principals", (user.database_id, postgres_role))
        if not rows:
            raise BrokerError(15007, postgres_role)
        if rows[0][0]:
            raise BrokerError(15063)
    login = operation.for_login
    login_id = None if login is None else (yield from _login(user.database_id, login))
    thumbprint = None
    if operation.from_certificate is not None:
        certificate = yield from find_certificate("find", user.database_id, operation.from_certificate)
        thumbprint = certificate.facts.thumbprint
        if (yield from find_certificate_users(user.database_id, [thumbprint])):
            raise BrokerError(15063)
    principal_id = yield from _create(user.database_id, name, False, postgres_role, login_id)
    if thumbprint is not None:
        yield SQL("create_user.update_principals", (user.database_id, principal_id, thumbprint))
    yield SQL("create_user.insert_permissions", (user.database_id, Kind.DATABASE.value, principal_id, DBO_ID, GRANT))


def _login(database_id: int, name: str) -> Steps[int]:
    """Return the id of a login that has no user in the database yet.

    Raises:
        BrokerError: 15007 no such login, 15063 it has a user.
    """
    rows = yield SQL("login", (database_id, names.checked("login", name), PUBLIC_LOGIN_ID))
    if not rows:
        raise BrokerError(15007, name)
    if rows[0][1]:
        raise BrokerError(15063)
    return int(rows[0][0])


def drop_user(definer: Definer, operation: DropUser) -> Steps[None]:
    """Delete the user."""
    user, name = definer.user, operation.name
    yield from demand(user, operation.permission, "user", name)
    principal = yield from find_principal("drop", user.database_id, name)
    if principal.is_role:
        raise BrokerError(15151, "drop", "user", name)
    yield from _drop(user.database_id, principal)


# ---------------------------------------------------------------- roles


def create_role(definer: Definer, operation: CreateRole) -> Steps[None]:
    """Insert the role."""
    user, name = definer.user, names.checked("role", operation.name)
    yield from demand(user, operation.permission)
    yield from _create(user.database_id, name, True)


def drop_role(definer: Definer, operation: DropRole) -> Steps[None]:
    """Delete a role without members."""
    user, name = definer.user, operation.name
    yield from demand(user, operation.permission, "role", name)
    role = yield from find_role("drop", user.database_id, name)
    if role.principal_id in _FIXED:
        raise BrokerError(15150, "drop", "role", role.name)
    members = yield SQL("drop_role", (user.database_id, role.principal_id))
    if members:
        raise BrokerError(15144)
    yield from _drop(user.database_id, role)


def add_role_member(definer: Definer, operation: AddRoleMember) -> Steps[None]:
    """Add the member to the role."""
    user = definer.user
    role, member = yield from _find_both(user, operation)
    if member.principal_id in _FIXED - {GUEST_ID}:
        raise BrokerError(15405, member.name)
    rights = yield from find_rights(user.database_id, role.principal_id, role.name)
    if member.principal_id in rights.identities:
        raise BrokerError(15413)
    yield SQL("add_role_member", (user.database_id, role.principal_id, member.principal_id))
    yield renew_versions()


def drop_role_member(definer: Definer, operation: DropRoleMember) -> Steps[None]:
    """Remove the member from the role."""
    user = definer.user
    role, member = yield from _find_both(user, operation)
    rows = yield SQL("drop_role_member", (user.database_id, role.principal_id, member.principal_id))
    if not rows:
        raise BrokerError(15151, "drop", "member", operation.member)
    yield renew_versions()


def _find_both(user: User, operation: AddRoleMember | DropRoleMember) -> Steps[tuple[Principal, Principal]]:
    yield from demand(user, operation.permission, "role", operation.role)
    role = yield from find_role("alter", user.database_id, operation.role)
    if role.principal_id == PUBLIC_ID:
        raise BrokerError(15081)
    if role.principal_id in _FIXED:
        yield from demand(user, "ALTER FIXED ROLE", "role", role.name)
    return role, (yield from find_principal("find", user.database_id, operation.member))


def find_role(action: str, database_id: int, name: str) -> Steps[Principal]:
    """Return the role of that name, compared without case.

    Raises:
        BrokerError: 15151 no such role.
    """
    role = yield from find_principal(action, database_id, name, "role")
    if not role.is_role:
        raise BrokerError(15151, action, "role", name)
    return role


# ---------------------------------------------------------------- both


def _find(database_id: int, name: str) -> Steps[Principal | None]:
    rows = yield SQL("find", (database_id, names.checked("user", name)))
    return Principal(*rows[0]) if rows else None


def _create(
    database_id: int, name: str, is_role: bool, postgres_role: str | None = None, login_id: int | None = None
) -> Steps[int]:
    rows = yield SQL("create", (database_id, name, is_role, postgres_role, login_id))
    if not rows:
        raise BrokerError(15023, name)
    return int(rows[0][0])


def _drop(database_id: int, principal: Principal) -> Steps[None]:
    if principal.principal_id in _FIXED:
        raise BrokerError(15150, "drop", principal.kind, principal.name)
    for kind, table in OWNED.items():
        owned = yield Statement(
            "principals.drop.find_owned",
            f"select from servicebroker.{table} where database_id = $1 and owner_id = $2 limit 1",
            (database_id, principal.principal_id),
        )
        if owned:
            raise BrokerError(15138, KIND_WORDS[kind])
    bound = yield SQL("drop.find_bindings", (database_id, principal.principal_id))
    if bound:
        raise BrokerError(15138, KIND_WORDS[Kind.REMOTE_SERVICE_BINDING])
    granted = yield SQL("drop.find_permissions", (database_id, principal.principal_id))
    if granted:
        raise BrokerError(15284)
    working = yield SQL("drop.find_tsql_modules", (database_id, principal.name))
    if working:
        raise BrokerError(15136)
    yield forget_permissions(database_id, Kind.USER, principal.principal_id)
    yield SQL("drop.delete_principals", (database_id, principal.principal_id))
    yield renew_versions()


OWNED = {
    Kind.MESSAGE_TYPE: "message_types",
    Kind.CONTRACT: "service_contracts",
    Kind.QUEUE: "queues",
    Kind.SERVICE: "services",
    Kind.REMOTE_SERVICE_BINDING: "remote_service_bindings",
    Kind.ROUTE: "routes",
    Kind.CERTIFICATE: "certificates",
}
