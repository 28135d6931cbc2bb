"""CREATE and DROP of users and roles, and members of roles."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateUser(Definition[None]):
    """CREATE USER: it may CONNECT, and nothing else until something is granted to it.

    A user with neither a role nor a login is one WITHOUT LOGIN, for the certificate of a remote service.

    Args:
        name: compared without case.
        postgres_role: sessions that open the instance as this PostgreSQL role are the user by default.
        for_login: a login of `Instance.create_login`.
        from_certificate: a certificate of the database: modules that it has signed have the permissions of this user.

    Raises:
        BrokerError: 15023 name taken, 15007 no such PostgreSQL role or login, 15151 no such certificate, 15063 it has a
            user already, 15247.
    """

    name: str
    postgres_role: str | None = None
    _: KW_ONLY
    for_login: str | None = None
    from_certificate: str | None = None


@dataclass(frozen=True, slots=True)
class DropUser(Named, Definition[None]):
    """DROP USER. From now on, statements as that user are refused with 15517.

    Raises:
        BrokerError: 15151, 15150 dbo or guest, 15138 it owns something, 15284 it has granted something, 15136 a
            procedure or a trigger works as it.
    """


@dataclass(frozen=True, slots=True)
class CreateRole(Named, Definition[None]):
    """CREATE ROLE: its members have what it is granted, and are denied what it is denied.

    Raises:
        BrokerError: 15023 name taken, 15247.
    """


@dataclass(frozen=True, slots=True)
class DropRole(Named, Definition[None]):
    """DROP ROLE.

    Raises:
        BrokerError: 15151, 15150 public or a fixed role, 15144 it has members, 15138, 15284.
    """


@dataclass(frozen=True, slots=True)
class AddRoleMember(Definition[None]):
    """ALTER ROLE role ADD MEMBER member.

    Args:
        role: compared without case.
        member: a user or a role.

    Raises:
        BrokerError: 15151, 15081 public, 15405 dbo or a fixed role as a member, 15413 a role in itself.
    """

    permission: ClassVar[str] = "ALTER ROLE"

    role: str
    member: str


@dataclass(frozen=True, slots=True)
class DropRoleMember(Definition[None]):
    """ALTER ROLE role DROP MEMBER member.

    Args:
        role: compared without case.
        member: a user or a role.

    Raises:
        BrokerError: 15151, 15081 public.
    """

    permission: ClassVar[str] = "ALTER ROLE"

    role: str
    member: str
