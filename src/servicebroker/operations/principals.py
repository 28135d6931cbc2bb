"""CREATE and DROP of users and roles, and the members of roles."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateUser(Definition[None]):
    """CREATE USER. A new user has the permission CONNECT, and no other.

    A user with neither a PostgreSQL role nor a login is created WITHOUT LOGIN, for the certificate of a remote service.

    Args:
        name: the name of the user, case-insensitive.
        postgres_role: the PostgreSQL role whose sessions are this user by default.
        for_login: a login of `Instance.create_login`.
        from_certificate: a certificate of the database: modules signed with it have the permissions of this user.

    Raises:
        BrokerError: 15023 the name is taken, 15007 no such PostgreSQL role or login, 15151 no such certificate, 15063
            the role or login has a user already, 15247 no permission.
    """

    name: str
    postgres_role: str | None = None
    _: KW_ONLY
    for_login: str | None = None
    from_certificate: str | None = None


@dataclass(frozen=True, slots=True)
class DropUser(Named, Definition[None]):
    """DROP USER. Later statements as that user are refused with 15517.

    Raises:
        BrokerError: 15151 no such user, 15150 dbo or guest, 15138 the user owns an object, 15284 the user has granted a
            permission, 15136 a procedure or trigger executes as the user.
    """


@dataclass(frozen=True, slots=True)
class CreateRole(Named, Definition[None]):
    """CREATE ROLE. A GRANT or DENY to the role applies to its members.

    Raises:
        BrokerError: 15023 the name is taken, 15247 no permission.
    """


@dataclass(frozen=True, slots=True)
class DropRole(Named, Definition[None]):
    """DROP ROLE.

    Raises:
        BrokerError: 15151 no such role, 15150 public or a fixed role, 15144 it has members, 15138 it owns an object,
            15284 it has granted a permission.
    """


@dataclass(frozen=True, slots=True)
class AddRoleMember(Definition[None]):
    """ALTER ROLE role ADD MEMBER member.

    Args:
        role: the name of the role, case-insensitive.
        member: a user or a role.

    Raises:
        BrokerError: 15151 no such role or member, 15081 the role is public, 15405 the member is dbo or a fixed role,
            15413 the role would be a member of itself.
    """

    permission: ClassVar[str] = "ALTER ROLE"

    role: str
    member: str


@dataclass(frozen=True, slots=True)
class DropRoleMember(Definition[None]):
    """ALTER ROLE role DROP MEMBER member.

    Args:
        role: the name of the role, case-insensitive.
        member: a user or a role.

    Raises:
        BrokerError: 15151 no such role or member, 15081 the role is public.
    """

    permission: ClassVar[str] = "ALTER ROLE"

    role: str
    member: str
