"""Principals, owners and permissions of a broker database as methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from servicebroker.api.aio.definitions import defined
from servicebroker.engine.security import grants, principals
from servicebroker.model.security.permissions import User
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

    grant = defined(grants.grant)

    deny = defined(grants.deny)

    revoke = defined(grants.revoke)

    alter_authorization = defined(grants.alter_authorization)
