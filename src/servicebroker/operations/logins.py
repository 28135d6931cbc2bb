"""Logins, names of an instance for peers: CREATE, DROP, and what is granted to them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateLogin(Definition[None]):
    """CREATE LOGIN name [FROM WINDOWS]: a name for a peer. It has no password: nobody opens a session as a login.

    Args:
        name: compared without case.
        from_windows: the login is the domain member of that name, DOMAIN\\\\member, and needs CONNECT on the endpoint.
        from_certificate: a certificate of the transport: modules that it has signed have the permissions of this login.

    Raises:
        BrokerError: 15025 name taken, 15151 no such certificate, 15407 a member is not named like that, 15247, 402.
    """

    name: str
    _: KW_ONLY
    from_windows: bool = False
    from_certificate: str | None = None


@dataclass(frozen=True, slots=True)
class DropLogin(Named, Definition[None]):
    """DROP LOGIN, with what was granted to it. Users that are for it stay, for nobody.

    Raises:
        BrokerError: 15151 no such login, or public, 15141 a certificate is its, 15247.
    """


@dataclass(frozen=True, slots=True)
class _Connect(Definition[None]):
    """CONNECT on the endpoint, and a login.

    Args:
        endpoint: compared without case.
        login: the login of peers; public for every peer that proves to have the key of its certificate, also without an
            import.
    """

    permission: ClassVar[str] = "CONNECT ON ENDPOINT"

    endpoint: str
    login: str


@dataclass(frozen=True, slots=True)
class GrantConnect(_Connect):
    """GRANT CONNECT ON ENDPOINT::endpoint TO login: peers with this login are let in.

    Raises:
        BrokerError: 15151 no such endpoint or login, 15247.
    """


@dataclass(frozen=True, slots=True)
class DenyConnect(_Connect):
    """DENY CONNECT ON ENDPOINT::endpoint TO login: counts more than what was granted to public.

    Raises:
        BrokerError: as `grant_connect`.
    """


@dataclass(frozen=True, slots=True)
class RevokeConnect(_Connect):
    """REVOKE CONNECT ON ENDPOINT::endpoint FROM login, granted or denied; nothing there is no error.

    Raises:
        BrokerError: as `grant_connect`.
    """


@dataclass(frozen=True, slots=True)
class _ServerPermission:
    """A permission on the instance or on a login, and a login.

    Args:
        permission: ALTER ANY LOGIN, IMPERSONATE ...
        principal: a login, which may be public.
        login: it is ON LOGIN::login; without it, on the instance.
    """

    permission: str
    principal: str
    _: KW_ONLY
    login: str | None = None


@dataclass(frozen=True, slots=True)
class GrantOnInstance(_ServerPermission, Definition[None]):
    """GRANT permission TO a login: on the instance, or ON LOGIN::login. It takes back a DENY.

    What a login is granted counts where T-SQL works as that login (EXECUTE AS LOGIN).

    Raises:
        BrokerError: 4606 no such permission there, 15151 no such login, 4624 on itself, 15247.
    """

    method: ClassVar[str] = "grant"


@dataclass(frozen=True, slots=True)
class DenyOnInstance(_ServerPermission, Definition[None]):
    """DENY permission TO a login: counts more than any GRANT, to it or to public.

    Raises:
        BrokerError: as `grant`.
    """

    method: ClassVar[str] = "deny"


@dataclass(frozen=True, slots=True)
class RevokeOnInstance(_ServerPermission, Definition[None]):
    """REVOKE permission FROM a login, granted or denied; nothing there is no error.

    Raises:
        BrokerError: as `grant`.
    """

    method: ClassVar[str] = "revoke"
