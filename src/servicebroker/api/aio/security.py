"""Principals, owners and permissions of a broker database as methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from servicebroker.api.aio.definitions import defined
from servicebroker.engine.security import authorization, grants, principals
from servicebroker.engine.security.authorization import Lookup
from servicebroker.engine.security.grants import Target
from servicebroker.engine.security.tsql_objects import registered
from servicebroker.model.errors import BrokerError
from servicebroker.model.permissions import Kind, User
from servicebroker.store.statements import Steps

T = TypeVar("T")


class AsyncSecurity(ABC):
    """CREATE and DROP of users and roles; GRANT, DENY, REVOKE; ALTER AUTHORIZATION.

    The object of a permission is named by one of the keywords `service`, `queue`, `contract`, `message_type`,
    `route`, `remote_service_binding`, `certificate` and `user`; without any it is the database. Of T-SQL there are
    `schema`, and `tsql_object`: a table, view, sequence, procedure or function, as `name` or `schema.name`.
    """

    user: User

    @abstractmethod
    async def _alone(self, steps: Steps[T]) -> T:
        """Run the steps of DDL; they see for themselves whether the user may."""

    create_user = defined(principals.create_user)

    drop_user = defined(principals.drop_user)

    create_role = defined(principals.create_role)

    drop_role = defined(principals.drop_role)

    add_role_member = defined(principals.add_role_member)

    drop_role_member = defined(principals.drop_role_member)

    async def grant(
        self,
        permission: str,
        principal: str,
        *,
        service: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        message_type: str | None = None,
        route: str | None = None,
        remote_service_binding: str | None = None,
        certificate: str | None = None,
        user: str | None = None,
        schema: str | None = None,
        tsql_object: str | None = None,
        with_grant_option: bool = False,
    ) -> None:
        """GRANT permission ON object TO principal; it takes back a DENY.

        Raises:
            BrokerError: 4606 no such permission on such an object, 4613, 4617, 4624, 9663, 15151.
        """
        target = _target(
            service=service,
            queue=queue,
            contract=contract,
            message_type=message_type,
            route=route,
            remote_service_binding=remote_service_binding,
            certificate=certificate,
            user=user,
            schema=schema,
            tsql_object=tsql_object,
        )
        await self._alone(grants.grant(self.user, permission, principal, target, with_grant_option=with_grant_option))

    async def deny(
        self,
        permission: str,
        principal: str,
        *,
        service: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        message_type: str | None = None,
        route: str | None = None,
        remote_service_binding: str | None = None,
        certificate: str | None = None,
        user: str | None = None,
        schema: str | None = None,
        tsql_object: str | None = None,
        cascade: bool = False,
    ) -> None:
        """DENY permission ON object TO principal: counts more than any GRANT, to it or to a role that it is in.

        With `cascade` also to all to whom the principal has granted the permission.

        Raises:
            BrokerError: as `grant`, and 4611 the principal may grant it and `cascade` is not set.
        """
        target = _target(
            service=service,
            queue=queue,
            contract=contract,
            message_type=message_type,
            route=route,
            remote_service_binding=remote_service_binding,
            certificate=certificate,
            user=user,
            schema=schema,
            tsql_object=tsql_object,
        )
        await self._alone(grants.deny(self.user, permission, principal, target, cascade=cascade))

    async def revoke(
        self,
        permission: str,
        principal: str,
        *,
        service: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        message_type: str | None = None,
        route: str | None = None,
        remote_service_binding: str | None = None,
        certificate: str | None = None,
        user: str | None = None,
        schema: str | None = None,
        tsql_object: str | None = None,
        cascade: bool = False,
        grant_option_for: bool = False,
    ) -> None:
        """REVOKE [GRANT OPTION FOR] permission ON object FROM principal, granted or denied; nothing there is no error.

        With `cascade` also from all to whom the principal has granted the permission.

        Raises:
            BrokerError: as `deny`.
        """
        target = _target(
            service=service,
            queue=queue,
            contract=contract,
            message_type=message_type,
            route=route,
            remote_service_binding=remote_service_binding,
            certificate=certificate,
            user=user,
            schema=schema,
            tsql_object=tsql_object,
        )
        await self._alone(
            grants.revoke(self.user, permission, principal, target, cascade=cascade, grant_option_for=grant_option_for)
        )

    async def alter_authorization(
        self,
        owner: str,
        *,
        service: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        message_type: str | None = None,
        route: str | None = None,
        remote_service_binding: str | None = None,
        certificate: str | None = None,
    ) -> None:
        """ALTER AUTHORIZATION ON object TO owner. All permissions on the object are dropped.

        Raises:
            BrokerError: 15151 unknown names or no right, 9663 built-in, 15405 public or guest, 402 no object given.
        """
        target = _target(
            service=service,
            queue=queue,
            contract=contract,
            message_type=message_type,
            route=route,
            remote_service_binding=remote_service_binding,
            certificate=certificate,
        )
        await self._alone(grants.alter_authorization(self.user, target, owner))


_LOOKUPS: dict[str, tuple[Kind, Callable[[str], Lookup]]] = {
    "service": (Kind.SERVICE, authorization.service),
    "queue": (Kind.QUEUE, authorization.queue),
    "contract": (Kind.CONTRACT, lambda name: authorization.contracts([name])),
    "message_type": (Kind.MESSAGE_TYPE, lambda name: authorization.message_types([name])),
    "route": (Kind.ROUTE, authorization.route),
    "remote_service_binding": (Kind.REMOTE_SERVICE_BINDING, authorization.remote_service_binding),
    "certificate": (Kind.CERTIFICATE, authorization.certificate),
    "user": (Kind.USER, authorization.user_named),
    "schema": (Kind.SCHEMA, authorization.schema),
    "tsql_object": (Kind.OBJECT, registered),
}


def _target(**given: str | None) -> Target:
    targets = [
        Target(_LOOKUPS[keyword][0], name, _LOOKUPS[keyword][1](name))
        for keyword, name in given.items()
        if name is not None
    ]
    if len(targets) > 1:
        raise BrokerError(402, "the object", "more than one", "one service, queue, contract or whatever it is")
    return targets[0] if targets else Target(Kind.DATABASE, "")
