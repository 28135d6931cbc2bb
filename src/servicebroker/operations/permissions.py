"""GRANT, DENY, REVOKE and ALTER AUTHORIZATION in a database."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from servicebroker.model.arguments import check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Definition


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject:
    """The name of an object that has an owner. The keyword is the kind of the object.

    Args:
        service: the name of a service.
        queue: the name of a queue.
        contract: the name of a contract.
        message_type: the name of a message type.
        route: the name of a route.
        remote_service_binding: the name of a remote service binding.
        certificate: the name of a certificate.
    """

    service: str | None = None
    queue: str | None = None
    contract: str | None = None
    message_type: str | None = None
    route: str | None = None
    remote_service_binding: str | None = None
    certificate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionObject(OwnedObject):
    """The name of the object of a permission. Without a name, the object is the database.

    Args:
        user: the name of a user.
        schema: the name of a schema.
        tsql_object: a table, view, sequence, procedure or function of T-SQL: `name` or `schema.name`.
    """

    user: str | None = None
    schema: str | None = None
    tsql_object: str | None = None


@dataclass(frozen=True, slots=True)
class _Permission(PermissionObject):
    """A permission of a user or a role.

    Args:
        permission: SEND, RECEIVE, CREATE QUEUE and so on.
        principal: the user or role that has the permission.
    """

    permission: str
    principal: str

    def check(self) -> None:
        """Refuse options of wrong types.

        Raises:
            BrokerError: 402 a wrong type.
        """
        for option in ("with_grant_option", "cascade", "grant_option_for"):
            check_switch(option.upper().replace("_", " "), getattr(self, option, False))
        if not isinstance(self.permission, str):
            raise BrokerError(402, "the permission", type(self.permission).__name__, "str")


@dataclass(frozen=True, slots=True)
class Grant(_Permission, Definition[None]):
    """GRANT permission ON object TO principal [WITH GRANT OPTION]. This removes a DENY.

    Args:
        with_grant_option: whether the principal may grant the permission to others.

    Raises:
        BrokerError: 4606 the object has no such permission, 15151 an unknown name or no right to grant, 4613 no right
            to grant on the database, 4617 a fixed role, 4624 dbo, the owner or oneself, 9663 a built-in object, 402
            more than one object.
    """

    _: KW_ONLY
    with_grant_option: bool = False


@dataclass(frozen=True, slots=True)
class Deny(_Permission, Definition[None]):
    """DENY permission ON object TO principal. A DENY takes precedence over any GRANT to the principal or its roles.

    Args:
        cascade: deny the permission also to all to whom the principal has granted it.

    Raises:
        BrokerError: as `grant`, and 4611 the principal may grant the permission and `cascade` is not set.
    """

    _: KW_ONLY
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Revoke(_Permission, Definition[None]):
    """REVOKE [GRANT OPTION FOR] permission ON object FROM principal: remove a GRANT or DENY. Without one, do nothing.

    A user with CONTROL on the object revokes permissions of any grantor; other users only those that they granted.

    Args:
        cascade: revoke the permission also from all to whom the principal has granted it.
        grant_option_for: revoke only the right to grant the permission; the principal keeps the permission.

    Raises:
        BrokerError: as `deny`.
    """

    _: KW_ONLY
    cascade: bool = False
    grant_option_for: bool = False


@dataclass(frozen=True, slots=True)
class AlterAuthorization(OwnedObject, Definition[None]):
    """ALTER AUTHORIZATION ON object TO owner. All permissions on the object are removed.

    Args:
        owner: the new owner, a user or a role.

    Raises:
        BrokerError: 15151 an unknown name or no permission, 9663 a built-in object, 15405 public or guest, 402 no
            object.
    """

    owner: str
