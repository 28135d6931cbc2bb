"""Users and roles of a broker database, and who works there. The caller of DDL holds the lock of `lock_catalog`."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.catalog.alter import renew_versions
from servicebroker.engine.security.authorization import (
    authorize,
    authorize_login,
    demand,
    find_rights,
    forget_permissions,
    user_named,
)
from servicebroker.engine.security.logins import PUBLIC as PUBLIC_LOGIN
from servicebroker.engine.security.module_signatures import users_of
from servicebroker.engine.security.user_certificates import find_certificate
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import (
    DBO,
    FIXED_PRINCIPALS,
    GRANT,
    GUEST,
    KIND_WORDS,
    NOBODY,
    PUBLIC,
    Kind,
    Login,
    Securable,
    User,
)
from servicebroker.store.statements import Statement, Steps

ADMINISTRATORS = frozenset({"sa", "dbo"})
_FIXED = {principal.principal_id for principal in FIXED_PRINCIPALS}


class Principal(NamedTuple):
    """A user or a role."""

    principal_id: int
    name: str
    is_role: bool

    @property
    def kind(self) -> str:
        """What an error calls it."""
        return "role" if self.is_role else "user"


# ---------------------------------------------------------------- who works in a database


def find_user(database_id: int, name: str | None = None) -> Steps[User]:
    """Who works in the database: the user of that name, or the one that the connection's PostgreSQL role stands for.

    That is the user which is mapped to the role, else dbo for a role with the rights of the schema's owner, else guest.

    Raises:
        BrokerError: 916 without CONNECT, 15517 no such user, or one that the connection's own may not act as.
    """
    user = yield from _mapped(
        database_id,
        "p.postgres_role = current_user",
        "pg_has_role(current_user, (select nspowner from pg_namespace where nspname = 'servicebroker'), 'usage')",
    )
    if name is not None:
        return (yield from find_impersonated(user, name))
    yield from demand(user, "CONNECT")
    return user


def find_impersonated(user: User, name: str) -> Steps[User]:
    """The user of that name, whom another one wants to act as.

    Raises:
        BrokerError: 15517 no such user, or one that the other may not act as, 916 without CONNECT.
    """
    found = yield from _find(user.database_id, name)
    if found is None or found.is_role:
        raise BrokerError(15517, name)
    if found.principal_id != user.principal_id:
        yield from authorize(user, "EXECUTE AS USER", user_named(name))
    user = user._replace(principal_id=found.principal_id, name=found.name)
    yield from demand(user, "CONNECT")
    return user


def check_execute_as(user: User, name: str) -> Steps[None]:
    """Whether a module that the user makes may work as the user of that name.

    Raises:
        BrokerError: 15151 there is no such user, or this one may not act as it.
    """
    found = yield from _find(user.database_id, name)
    if found is None or found.is_role:
        raise BrokerError(15151, "execute as", "user", name)
    if found.principal_id != user.principal_id:
        yield from authorize(user, "WITH EXECUTE AS", user_named(name))


def find_module_user(database_id: int, database: str, name: str) -> Steps[User]:
    """The user that a module says it works as; its author was asked for the permission.

    Raises:
        BrokerError: 15517 there is no such user any more.
    """
    found = yield from _find(database_id, name)
    if found is None or found.is_role:
        raise BrokerError(15517, name)
    return User(database_id, database, found.principal_id, found.name)


def find_user_of(database_id: int, login: Login) -> Steps[User]:
    """Who somebody is in a database: the user of its login or its PostgreSQL role, for administrators dbo, else guest.

    Raises:
        BrokerError: 916 without CONNECT.
    """
    user = yield from _mapped(
        database_id,
        "coalesce(p.login_id = $2 or p.postgres_role = $3, false)",
        "$4::bool",
        (login.login_id, login.postgres_role, login.is_administrator),
    )
    yield from demand(user if user.is_dbo else user._replace(name=login.name), "CONNECT")
    return user


def find_login_of(user: User, *, everywhere: bool) -> Steps[Login]:
    """Who a user of a database is for the instance: whoever the login or the PostgreSQL role of the user is.

    Unless it counts `everywhere`, it is nobody outside of the database.
    """
    rows = yield Statement(
        "principals.find_login_of",
        "select l.name, p.login_id, p.postgres_role from servicebroker.principals p "
        "left join servicebroker.logins l using (login_id) where p.database_id = $1 and p.principal_id = $2",
        (user.database_id, user.principal_id),
    )
    name, login_id, role = rows[0] if rows else (None, None, None)
    if not everywhere:
        return Login(name or user.name)
    return Login(name or user.name, login_id, role, user.is_dbo)


def find_impersonated_login(person: Login, name: str) -> Steps[Login]:
    """The login of that name, which somebody wants to act as; sa and dbo stand for an administrator.

    Raises:
        BrokerError: 15406 no such login, or none that the other may act as.
    """
    if name.lower() in ADMINISTRATORS:
        if not person.is_administrator:
            raise BrokerError(15406, name)
        return Login(name, is_administrator=True)
    rows = yield Statement(
        "principals.find_impersonated_login",
        "select login_id, name from servicebroker.logins where lower(name) = lower($1) and login_id <> $2",
        (name, PUBLIC_LOGIN),
    )
    if not rows:
        raise BrokerError(15406, name)
    login_id, own = rows[0]
    if login_id != person.login_id:
        yield from authorize_login(person, "EXECUTE AS LOGIN", on=Securable(Kind.LOGIN, login_id, NOBODY, own))
    return Login(own, login_id)


def find_owning_login(person: Login, name: str) -> Steps[None]:
    """Check the login that AUTHORIZATION names: one that somebody may act as.

    Raises:
        BrokerError: 15151 no such login, or none that the other may act as.
    """
    if name.lower() == person.name.lower():
        return
    try:
        yield from find_impersonated_login(person, name)
    except BrokerError as refused:
        if refused.number != 15406:
            raise
        raise BrokerError(15151, "find", "login", name) from None


def _mapped(database_id: int, is_own: str, is_administrator: str, values: tuple[object, ...] = ()) -> Steps[User]:
    rows = yield Statement(
        "principals.mapped",
        "select d.name, p.principal_id, p.name from servicebroker.principals p "
        "join servicebroker.databases d using (database_id) "
        f"where p.database_id = $1 and ({is_own} or p.principal_id = {DBO} and {is_administrator} "
        f"or p.principal_id = {GUEST}) order by {is_own} desc nulls last, p.principal_id limit 1",
        (database_id, *values),
    )
    return User(database_id, *rows[0])


def find_owner(user: User, authorization: str | None) -> Steps[int]:
    """The principal that AUTHORIZATION names; the user itself when it names nobody.

    Raises:
        BrokerError: 15151 no such principal, or one for which the user may not act, 15405 public or guest.
    """
    if authorization is None:
        return user.principal_id
    owner = yield from find_principal("find", user.database_id, authorization)
    if owner.principal_id in (PUBLIC, GUEST):
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
    """The user or role of that name, compared without case.

    Raises:
        BrokerError: 15151 when there is none.
    """
    found = yield from _find(database_id, name)
    if found is None:
        raise BrokerError(15151, action, kind, name)
    return found


# ---------------------------------------------------------------- users


def create_user(
    user: User,
    name: str,
    postgres_role: str | None = None,
    *,
    for_login: str | None = None,
    from_certificate: str | None = None,
) -> Steps[None]:
    """CREATE USER: it may CONNECT, and nothing else until something is granted to it.

    Who opens the instance as `postgres_role` is this user by default. `for_login` is a login of
    `Instance.create_login`. A user with neither is one WITHOUT LOGIN, for the certificate of a remote service.
    `from_certificate` is a certificate of the database: modules that it has signed may what this user may.

    Raises:
        BrokerError: 15023 name taken, 15007 no such PostgreSQL role or login, 15151 no such certificate, 15063 it has a
            user already, 15247.
    """
    names.checked("user", name)
    yield from demand(user, "CREATE USER")
    if postgres_role is not None:
        names.checked("login", postgres_role)
        rows = yield Statement(
            "principals.create_user.find_principals",
            "select exists (select from servicebroker.principals where database_id = $1 and postgres_role = rolname) "
            "from pg_roles where rolname = $2",
            (user.database_id, postgres_role),
        )
        if not rows:
            raise BrokerError(15007, postgres_role)
        if rows[0][0]:
            raise BrokerError(15063)
    login_id = None if for_login is None else (yield from _login(user.database_id, for_login))
    thumbprint = None
    if from_certificate is not None:
        thumbprint = (yield from find_certificate("find", user.database_id, from_certificate)).facts.thumbprint
        if (yield from users_of(user.database_id, [thumbprint])):
            raise BrokerError(15063)
    principal_id = yield from _create(user.database_id, name, False, postgres_role, login_id)
    if thumbprint is not None:
        yield Statement(
            "principals.create_user.update_principals",
            "update servicebroker.principals set certificate_thumbprint = $3 "
            "where database_id = $1 and principal_id = $2",
            (user.database_id, principal_id, thumbprint),
        )
    yield Statement(
        "principals.create_user.insert_permissions",
        "insert into servicebroker.permissions values ($1, $2, 0, $3, $4, 'CONNECT', $5::\"char\")",
        (user.database_id, Kind.DATABASE.value, principal_id, DBO, GRANT),
    )


def _login(database_id: int, name: str) -> Steps[int]:
    """A login that has no user in the database."""
    rows = yield Statement(
        "principals.login",
        "select login_id, exists (select from servicebroker.principals p where p.database_id = $1 "
        "and p.login_id = l.login_id) from servicebroker.logins l where lower(name) = lower($2) and login_id <> $3",
        (database_id, names.checked("login", name), PUBLIC_LOGIN),
    )
    if not rows:
        raise BrokerError(15007, name)
    if rows[0][1]:
        raise BrokerError(15063)
    return int(rows[0][0])


def drop_user(user: User, name: str) -> Steps[None]:
    """DROP USER. What somebody does as the user from now on is refused with 15517.

    Raises:
        BrokerError: 15151, 15150 dbo or guest, 15138 it owns something, 15284 it has granted something, 15136 a
            procedure or a trigger works as it.
    """
    yield from demand(user, "DROP USER", "user", name)
    found = yield from find_principal("drop", user.database_id, name)
    if found.is_role:
        raise BrokerError(15151, "drop", "user", name)
    yield from _drop(user.database_id, found)


# ---------------------------------------------------------------- roles


def create_role(user: User, name: str) -> Steps[None]:
    """CREATE ROLE: its members have what it is granted, and are denied what it is denied.

    Raises:
        BrokerError: 15023 name taken, 15247.
    """
    names.checked("role", name)
    yield from demand(user, "CREATE ROLE")
    yield from _create(user.database_id, name, True)


def drop_role(user: User, name: str) -> Steps[None]:
    """DROP ROLE.

    Raises:
        BrokerError: 15151, 15150 public or a fixed role, 15144 it has members, 15138, 15284.
    """
    yield from demand(user, "DROP ROLE", "role", name)
    role = yield from find_role("drop", user.database_id, name)
    if role.principal_id in _FIXED:
        raise BrokerError(15150, "drop", "role", role.name)
    members = yield Statement(
        "principals.drop_role",
        "select from servicebroker.role_members where database_id = $1 and role_id = $2 limit 1",
        (user.database_id, role.principal_id),
    )
    if members:
        raise BrokerError(15144)
    yield from _drop(user.database_id, role)


def add_role_member(user: User, role: str, member: str) -> Steps[None]:
    """ALTER ROLE role ADD MEMBER member, a user or a role.

    Raises:
        BrokerError: 15151, 15081 public, 15405 dbo or a fixed role as a member, 15413 a role in itself.
    """
    of, one = yield from _find_both(user, role, member)
    if one.principal_id in _FIXED - {GUEST}:
        raise BrokerError(15405, one.name)
    rights = yield from find_rights(user.database_id, of.principal_id, of.name)
    if one.principal_id in rights.identities:
        raise BrokerError(15413)
    yield Statement(
        "principals.add_role_member",
        "insert into servicebroker.role_members (database_id, role_id, member_id) values ($1, $2, $3) "
        "on conflict do nothing",
        (user.database_id, of.principal_id, one.principal_id),
    )
    yield renew_versions()


def drop_role_member(user: User, role: str, member: str) -> Steps[None]:
    """ALTER ROLE role DROP MEMBER member.

    Raises:
        BrokerError: 15151, 15081 public.
    """
    of, one = yield from _find_both(user, role, member)
    rows = yield Statement(
        "principals.drop_role_member",
        "delete from servicebroker.role_members where database_id = $1 and role_id = $2 and member_id = $3 returning 1",
        (user.database_id, of.principal_id, one.principal_id),
    )
    if not rows:
        raise BrokerError(15151, "drop", "member", member)
    yield renew_versions()


def _find_both(user: User, role_name: str, member_name: str) -> Steps[tuple[Principal, Principal]]:
    yield from demand(user, "ALTER ROLE", "role", role_name)
    role = yield from find_role("alter", user.database_id, role_name)
    if role.principal_id == PUBLIC:
        raise BrokerError(15081)
    if role.principal_id in _FIXED:
        yield from demand(user, "ALTER FIXED ROLE", "role", role.name)
    return role, (yield from find_principal("find", user.database_id, member_name))


def find_role(action: str, database_id: int, name: str) -> Steps[Principal]:
    """Return the role of that name, compared without case.

    Raises:
        BrokerError: 15151 when there is none.
    """
    role = yield from find_principal(action, database_id, name, "role")
    if not role.is_role:
        raise BrokerError(15151, action, "role", name)
    return role


# ---------------------------------------------------------------- both


def _find(database_id: int, name: str) -> Steps[Principal | None]:
    rows = yield Statement(
        "principals.find",
        "select principal_id, name, is_role from servicebroker.principals "
        "where database_id = $1 and lower(name) = lower($2)",
        (database_id, names.checked("user", name)),
    )
    return Principal(*rows[0]) if rows else None


def _create(
    database_id: int, name: str, is_role: bool, postgres_role: str | None = None, login_id: int | None = None
) -> Steps[int]:
    rows = yield Statement(
        "principals.create",
        "insert into servicebroker.principals (database_id, name, is_role, postgres_role, login_id) "
        "values ($1, $2, $3, $4, $5) on conflict do nothing returning principal_id",
        (database_id, name, is_role, postgres_role, login_id),
    )
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
    bound = yield Statement(
        "principals.drop.find_bindings",
        "select from servicebroker.remote_service_bindings where database_id = $1 and remote_principal_id = $2 limit 1",
        (database_id, principal.principal_id),
    )
    if bound:
        raise BrokerError(15138, KIND_WORDS[Kind.REMOTE_SERVICE_BINDING])
    granted = yield Statement(
        "principals.drop.find_permissions",
        "select from servicebroker.permissions where database_id = $1 and grantor_id = $2 limit 1",
        (database_id, principal.principal_id),
    )
    if granted:
        raise BrokerError(15284)
    working = yield Statement(
        "principals.drop.find_tsql_modules",
        "select from servicebroker.tsql_modules where database_id = $1 and lower($2) = "
        "lower(case execute_as when 'SELF' then creator when 'OWNER' then null else execute_as end) limit 1",
        (database_id, principal.name),
    )
    if working:
        raise BrokerError(15136)
    yield forget_permissions(database_id, Kind.USER, principal.principal_id)
    yield Statement(
        "principals.drop.delete_principals",
        "delete from servicebroker.principals where database_id = $1 and principal_id = $2",
        (database_id, principal.principal_id),
    )
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
