"""GRANT, DENY, REVOKE and ALTER AUTHORIZATION in a database."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from servicebroker.model.arguments import check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Definition


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject:
    """The name of an object that can be handed to another owner, under the keyword of its kind.

    Args:
        service: the object is a service.
        queue: the object is a queue.
        contract: the object is a contract.
        message_type: the object is a message type.
        route: the object is a route.
        remote_service_binding: the object is a remote service binding.
        certificate: the object is a certificate.
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
    """The name of an object that a permission is on. Without any the permission is on the database.

    Args:
        user: the object is a user.
        schema: the object is a schema.
        tsql_object: the object is a table, view, sequence, procedure or function of T-SQL: `name` or `schema.name`.
    """

    user: str | None = None
    schema: str | None = None
    tsql_object: str | None = None


@dataclass(frozen=True, slots=True)
class _Permission(PermissionObject):
    """A permission, and a user or a role.

    Args:
        permission: SEND, RECEIVE, CREATE QUEUE ...
        principal: a user or a role.
    """

    permission: str
    principal: str

    def check(self) -> None:
        """Refuse options of wrong types.

        Raises:
            BrokerError: 402.
        """
        for option in ("with_grant_option", "cascade", "grant_option_for"):
            check_switch(option.upper().replace("_", " "), getattr(self, option, False))
        if not isinstance(self.permission, str):
            raise BrokerError(402, "the permission", type(self.permission).__name__, "str")


@dataclass(frozen=True, slots=True)
class Grant(_Permission, Definition[None]):
    """GRANT permission ON object TO principal [WITH GRANT OPTION]; it takes back a DENY.

    Args:
        with_grant_option: whether the principal may grant it to others.

    Raises:
        BrokerError: 4606 no such permission on such an object, 15151 unknown names or no right to grant, 4613 no
            right to grant on the database, 4617 fixed roles, 4624 dbo, the owner or oneself, 9663 built-in object,
            402 more than one object.
    """

    _: KW_ONLY
    with_grant_option: bool = False


@dataclass(frozen=True, slots=True)
class Deny(_Permission, Definition[None]):
    """DENY permission ON object TO principal: counts more than any GRANT, to it or to a role that it is in.

    Args:
        cascade: whether it is denied also to all to whom the principal has granted it.

    Raises:
        BrokerError: as `grant`, and 4611 the principal may grant it and `cascade` is not set.
    """

    _: KW_ONLY
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Revoke(_Permission, Definition[None]):
    """REVOKE [GRANT OPTION FOR] permission ON object FROM principal, granted or denied; nothing there is no error.

    Whoever has CONTROL revokes what anybody granted or denied, another only what it has granted itself.

    Args:
        cascade: whether it is revoked also from all to whom the principal has granted it.
        grant_option_for: whether the principal keeps it, and may grant it no more.

    Raises:
        BrokerError: as `deny`.
    """

    _: KW_ONLY
    cascade: bool = False
    grant_option_for: bool = False


@dataclass(frozen=True, slots=True)
class AlterAuthorization(OwnedObject, Definition[None]):
    """ALTER AUTHORIZATION ON object TO owner. All permissions on the object are dropped.

    Args:
        owner: a user or a role.

    Raises:
        BrokerError: 15151 unknown names or no right, 9663 built-in, 15405 public or guest, 402 no object given.
    """

    owner: str
