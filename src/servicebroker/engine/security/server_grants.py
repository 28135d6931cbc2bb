"""GRANT, DENY and REVOKE of permissions on the instance, and on its logins, to logins. The caller may: it was asked.

CONNECT ON ENDPOINT is in `engine/security/logins.py`.
"""

from __future__ import annotations

from servicebroker.engine.security.logins import find_login
from servicebroker.model.errors import BrokerError
from servicebroker.model.permissions import Kind, bringing
from servicebroker.store.statements import Statement, Steps


def set_permission(permission: str, principal: str, on_login: str | None, state: str | None) -> Steps[None]:
    """GRANT (G), DENY (D) or REVOKE (None) for a login, or public; on another login, or on the instance.

    Raises:
        BrokerError: 4606 no such permission, 15151 no such login, 4624 to a login on itself.
    """
    kind = Kind.SERVER if on_login is None else Kind.LOGIN
    bringing(kind, permission)
    on_id = 0 if on_login is None else (yield from find_login("find", on_login))
    login_id = yield from find_login("find", principal)
    if kind is Kind.LOGIN and on_id == login_id:
        raise BrokerError(4624)
    key = (kind.value, on_id, login_id, permission)
    if state is None:
        yield Statement(
            "server_grants.set_permission.delete_permissions",
            "delete from servicebroker.server_permissions "
            "where class = $1 and major_id = $2 and grantee_id = $3 and permission = $4",
            key,
        )
    else:
        yield Statement(
            "server_grants.set_permission.insert_permissions",
            'insert into servicebroker.server_permissions values ($1, $2, $3, $4, $5::"char") '
            "on conflict (grantee_id, class, major_id, permission) do update set state = excluded.state",
            (*key, state),
        )
