# Made from aio/bindings.py by tools/make_sync.py: change that file, then run `make sync`.
"""Remote service bindings of a broker database as methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from servicebroker.engine.catalog import bindings
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security import principals
from servicebroker.model.permissions import User
from servicebroker.store.statements import Steps

T = TypeVar("T")


class Bindings(ABC):
    """CREATE, ALTER and DROP REMOTE SERVICE BINDING."""

    user: User

    @abstractmethod
    def _alone(self, steps: Steps[T]) -> T:
        """Run the steps of DDL."""

    def create_remote_service_binding(
        self, name: str, *, to_service: str, user: str, anonymous: bool = False, authorization: str | None = None
    ) -> None:
        """CREATE REMOTE SERVICE BINDING: conversations with that service are secured for the owner of a certificate.

        Args:
            name: compared without case.
            to_service: the remote service, compared byte by byte.
            user: whose certificate the remote service has.
            anonymous: the remote side does not learn who begins the conversation, and works as public.
            authorization: the owner; the user that this object works as when it is not given.

        Raises:
            BrokerError: 9619 the service has one already, 2714 name taken, 28083 the user is a role, 15151 no such
                user, or one for whom this one may not act, 262, 402.
        """

        def steps() -> Steps[None]:
            yield from rights.authorize(self.user, "CREATE REMOTE SERVICE BINDING")
            owner = yield from principals.find_owner(self.user, authorization)
            yield from bindings.create_binding(self.user, name, to_service, user, anonymous=anonymous, owner_id=owner)

        self._alone(steps())

    def alter_remote_service_binding(
        self, name: str, *, user: str | None = None, anonymous: bool | None = None
    ) -> None:
        """ALTER REMOTE SERVICE BINDING: what is given changes, for conversations that begin from now on.

        Raises:
            BrokerError: 15151 no such binding or user, 28083 the user is a role, 402.
        """
        steps = bindings.alter_binding(self.user, name, user, anonymous)
        look = rights.remote_service_binding(name)
        self._alone(rights.authorized(steps, self.user, "ALTER REMOTE SERVICE BINDING", look))

    def drop_remote_service_binding(self, name: str) -> None:
        """DROP REMOTE SERVICE BINDING; conversations that have begun go on as they are.

        Raises:
            BrokerError: 15151 no such binding.
        """
        look = rights.remote_service_binding(name)
        steps = bindings.drop_binding(self.user, name)
        self._alone(rights.authorized(steps, self.user, "DROP REMOTE SERVICE BINDING", look))
