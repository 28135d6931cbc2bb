"""CREATE and DROP LOGIN, and permissions of logins. A login is the name of a peer in an instance."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateLogin(Definition[None]):
    """CREATE LOGIN name [FROM WINDOWS]: create a name for a peer, or for clients of SQL Server.

    T-SQL gives it the password that such a client needs.

    Args:
        name: the name of the login, case-insensitive.
        from_windows: True for the domain member DOMAIN\\\\member of that name. It needs CONNECT on the endpoint.
        from_certificate: a transport certificate: modules signed with it have the permissions of this login.

    Raises:
        BrokerError: 15025 the name is taken, 15151 no such certificate, 15407 not the name of a domain member, 15247 no
            permission, 402 a wrong argument.
    """

    name: str
    _: KW_ONLY
    from_windows: bool = False
    from_certificate: str | None = None


@dataclass(frozen=True, slots=True)
class DropLogin(Named, Definition[None]):
    """DROP LOGIN with its permissions. Users for the login remain, without a login.

    Raises:
        BrokerError: 15151 no such login, or it is public; 15141 it owns a certificate, 15247 no permission.
    """


@dataclass(frozen=True, slots=True)
class _Connect(Definition[None]):
    """The permission CONNECT of a login on the endpoint.

    Args:
        endpoint: the name of the endpoint, case-insensitive.
        login: the login of peers; public for every peer that proves its certificate, even one that was not imported.
    """

    permission: ClassVar[str] = "CONNECT ON ENDPOINT"

    endpoint: str
    login: str


@dataclass(frozen=True, slots=True)
class GrantConnect(_Connect):
    """GRANT CONNECT ON ENDPOINT::endpoint TO login: let peers with this login connect.

    Raises:
        BrokerError: 15151 no such endpoint or login, 15247 no permission.
    """


@dataclass(frozen=True, slots=True)
class DenyConnect(_Connect):
    """DENY CONNECT ON ENDPOINT::endpoint TO login. A DENY takes precedence over a GRANT to public.

    Raises:
        BrokerError: as `grant_connect`.
    """


@dataclass(frozen=True, slots=True)
class RevokeConnect(_Connect):
    """REVOKE CONNECT ON ENDPOINT::endpoint FROM login: remove a GRANT or DENY. Without one, this does nothing.

    Raises:
        BrokerError: as `grant_connect`.
    """


@dataclass(frozen=True, slots=True)
class _ServerPermission:
    """A permission of a login, on the instance or on another login.

    Args:
        permission: ALTER ANY LOGIN, IMPERSONATE and so on.
        principal: the login that has the permission; it may be public.
        login: the login of ON LOGIN::login. Default: the permission is on the instance.
    """

    permission: str
    principal: str
    _: KW_ONLY
    login: str | None = None


@dataclass(frozen=True, slots=True)
class GrantOnInstance(_ServerPermission, Definition[None]):
    """GRANT permission TO a login: on the instance, or ON LOGIN::login. This removes a DENY.

    Permissions of a login apply when T-SQL runs as that login (EXECUTE AS LOGIN).

    Raises:
        BrokerError: 4606 the object has no such permission, 15151 no such login, 4624 a login on itself, 15247 no
            permission.
    """

    method: ClassVar[str] = "grant"


@dataclass(frozen=True, slots=True)
class DenyOnInstance(_ServerPermission, Definition[None]):
    """DENY permission TO a login. A DENY takes precedence over any GRANT, to the login or to public.

    Raises:
        BrokerError: as `grant`.
    """

    method: ClassVar[str] = "deny"


@dataclass(frozen=True, slots=True)
class RevokeOnInstance(_ServerPermission, Definition[None]):
    """REVOKE permission FROM a login: remove a GRANT or DENY. Without one, this does nothing.

    Raises:
        BrokerError: as `grant`.
    """

    method: ClassVar[str] = "revoke"
