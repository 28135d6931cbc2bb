"""Logins: server-level names for peers and for clients of SQL Server, and their permissions.

The rules: docs/reference/rules.md#endpoints-and-logins.

Passwords are in `tsql/login_passwords.py`: only clients of SQL Server sign in as logins. Other sessions use PostgreSQL
roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from servicebroker.model import names
from servicebroker.model.arguments import check_switch
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.domain import check_account
from servicebroker.model.security.permissions import Kind, implied_by
from servicebroker.operations.logins import (
    CreateLogin,
    DenyConnect,
    DenyOnInstance,
    DropLogin,
    GrantConnect,
    GrantOnInstance,
    RevokeConnect,
    RevokeOnInstance,
)
from servicebroker.operations.operation import Definition
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


PUBLIC_LOGIN_ID = 2  # the server role public, to which every login belongs
GRANT, DENY = "G", "D"
_STATES: Mapping[type[Definition[Any]], str | None] = {
    GrantConnect: GRANT,
    DenyConnect: DENY,
    RevokeConnect: None,
    GrantOnInstance: GRANT,
    DenyOnInstance: DENY,
    RevokeOnInstance: None,
}


def demand_administrator() -> Steps[None]:
    """Refuse a statement about the whole instance unless the caller has the rights of the schema's owner.

    Raises:
        BrokerError: 15247 the caller is not an administrator.
    """
    rows = yield SQL("demand_administrator")
    if not rows[0][0]:
        raise BrokerError(15247)


def create_login(operation: CreateLogin, now: datetime) -> Steps[None]:
    """Insert the login."""
    name, from_windows = operation.name, operation.from_windows
    check_switch("FROM WINDOWS", from_windows)
    names.checked("login", name)
    if from_windows:
        check_account(name)
    rows = yield SQL("create_login", (name, from_windows))
    if not rows:
        raise BrokerError(15025, name)
    if operation.from_certificate is not None:
        yield SQL("create_login.update_logins", (rows[0][0], (yield from _thumbprint_of(operation.from_certificate))))


def _thumbprint_of(certificate: str) -> Steps[bytes]:
    rows = yield SQL("thumbprint_of", (names.checked("certificate", certificate),))
    if not rows:
        raise BrokerError(15151, "find", "certificate", certificate)
    return bytes(rows[0][0])


def drop_login(operation: DropLogin, now: datetime) -> Steps[None]:
    """Delete a login that has no certificate."""
    login_id = yield from _find_own("drop", operation.name)
    owned = yield SQL("drop_login.find_certificates", (login_id,))
    if owned:
        raise BrokerError(15141, "certificate")
    yield SQL("drop_login.update_principals", (login_id,))
    yield SQL("drop_login.delete_permissions", (Kind.LOGIN.value, login_id))
    yield SQL("drop_login.delete_logins", (login_id,))


class Connect(NamedTuple):
    """CONNECT ON ENDPOINT: the state for public, and for logins FROM WINDOWS by name in lower case.

    None means neither granted nor denied.
    """

    public: str | None
    members: Mapping[str, str | None]

    @property
    def is_public(self) -> bool:
        """True if peers may connect whose certificate was not imported."""
        return self.public == GRANT

    def of_member(self, account: str, *, is_ours: bool) -> bool:
        """Check whether a domain member may connect. `is_ours`: this instance is that member, no GRANT needed."""
        states = (self.public, self.members.get(account.lower()))
        return DENY not in states and (is_ours or GRANT in states)


def find_connect() -> Steps[Connect]:
    """Return the CONNECT states of public and of logins FROM WINDOWS, for peers without an imported certificate."""
    rows = yield Statement(
        "logins.find_connect",
        f"select l.login_id, lower(l.name), case when l.is_disabled then '{DENY}' else p.state::text end "
        "from servicebroker.logins l "
        "left join servicebroker.endpoint_permissions p using (login_id) where l.is_windows or l.login_id = $1",
        (PUBLIC_LOGIN_ID,),
    )
    public = next((state for login_id, _, state in rows if login_id == PUBLIC_LOGIN_ID), None)
    return Connect(public, {name: state for login_id, name, state in rows if login_id != PUBLIC_LOGIN_ID})


def set_connect(operation: GrantConnect | DenyConnect | RevokeConnect, now: datetime) -> Steps[None]:
    """Insert or delete a CONNECT state."""
    endpoint, state = operation.endpoint, _STATES[type(operation)]
    login_id = yield from find_login("find", operation.login)
    rows = yield SQL("set_connect.find_endpoints", (names.checked("endpoint", endpoint),))
    if not rows:
        raise BrokerError(15151, "find", "endpoint", endpoint)
    key = (rows[0][0], login_id)
    if state is None:
        yield SQL("set_connect.delete_permissions", key)
    else:
        yield SQL("set_connect.insert_permissions", (*key, state))


def switch_login(name: str, *, is_disabled: bool, who: str) -> Steps[None]:
    """ALTER LOGIN name ENABLE or DISABLE: peers with a disabled login may not connect. `who` is for the audit log.

    Raises:
        BrokerError: 15151 no such login, or public.
    """
    yield Statement(
        "logins.switch_login",
        f"update servicebroker.logins set is_disabled = $2 where login_id = $1 returning {audit_context_sql(3)}",
        ((yield from _find_own("alter", name)), is_disabled, who, client_kind()),
    )


def find_login(action: str, name: str) -> Steps[int]:
    """Return the id of the login of that name, compared without case. `action` is the verb for the error's text.

    Raises:
        BrokerError: 15151 no such login.
    """
    rows = yield SQL("find_login", (names.checked("login", name),))
    if not rows:
        raise BrokerError(15151, action, "login", name)
    return int(rows[0][0])


def _find_own(action: str, name: str) -> Steps[int]:
    """Return the id of a login other than public, as `find_login`."""
    login_id = yield from find_login(action, name)
    if login_id == PUBLIC_LOGIN_ID:
        raise BrokerError(15151, action, "login", name)
    return login_id


def set_permission(operation: GrantOnInstance | DenyOnInstance | RevokeOnInstance, now: datetime) -> Steps[None]:
    """Insert or delete a permission of a login."""
    permission, on_login, state = operation.permission, operation.login, _STATES[type(operation)]
    kind = Kind.SERVER if on_login is None else Kind.LOGIN
    if not isinstance(permission, str):
        raise BrokerError(402, "the permission", type(permission).__name__, "str")
    implied_by(kind, permission)
    on_id = 0 if on_login is None else (yield from find_login("find", on_login))
    login_id = yield from find_login("find", operation.principal)
    if kind is Kind.LOGIN and on_id == login_id:
        raise BrokerError(4624)
    key = (kind.value, on_id, login_id, permission)
    if state is None:
        yield SQL("set_permission.delete_permissions", key)
    else:
        yield SQL("set_permission.insert_permissions", (*key, state))
