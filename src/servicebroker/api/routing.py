# Made from aio/routing.py by tools/make_sync.py: change that file, then run `make sync`.
"""The routes of a broker database as methods, and the answer to "why did it go there?"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from servicebroker.engine.catalog import routes
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security import principals
from servicebroker.model.arguments import may_exist
from servicebroker.model.security.permissions import User
from servicebroker.protocol.explanation import Explanation
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance

T = TypeVar("T")


class Routing(ABC):
    """CREATE, ALTER and DROP ROUTE; and what routing decides."""

    instance: Instance
    database_id: int
    user: User
    catalog: Catalog

    @abstractmethod
    def _do(self, steps: Steps[T]) -> T:
        """Run steps in a transaction of their own."""

    @abstractmethod
    def _deliver(self, steps: Callable[[], Steps[list[UUID]]], statement: str, *objects: rights.Lookup) -> None:
        """Do what delivers waiting messages."""

    def create_route(
        self,
        name: str,
        *,
        service_name: str | None = None,
        broker_instance: str | UUID | None = None,
        lifetime: int | None = None,
        address: str,
        mirror_address: str | None = None,
        authorization: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        """CREATE ROUTE: where the services of that name are reached, for conversations that begin in this database.

        Args:
            name: of the route, compared without case.
            service_name: of the service, compared byte by byte; any service when it is not given.
            broker_instance: identifier of the database that has the service; any when it is not given.
            lifetime: seconds from now after which the route is ignored; never when it is not given.
            address: TCP://host:port, "LOCAL" for this instance, or "TRANSPORT" for the address with which the
                service's own name begins.
            mirror_address: of the other broker of a mirrored pair.
            authorization: the owner; the user that this object works as when it is not given.
            exist_ok: whether one of that name may be there, which stays as it is.

        Raises:
            BrokerError: 9659, 9660, 9661, 9662, 9743, 9744, 9745, 9746, 9747, 1093, 2714 name taken, 15151 no such
                owner, 262.
        """
        clauses = routes.Clauses(service_name, broker_instance, lifetime, address, mirror_address)

        def steps() -> Steps[list[UUID]]:
            owner = yield from principals.find_owner(self.user, authorization)
            now = self.instance.clock()
            return (yield from routes.create_route(self.catalog, self.database_id, name, clauses, now, owner))

        with may_exist(exist_ok):
            self._deliver(steps, "CREATE ROUTE")

    def alter_route(
        self,
        name: str,
        *,
        service_name: str | None = None,
        broker_instance: str | UUID | None = None,
        lifetime: int | None = None,
        address: str | None = None,
        mirror_address: str | None = None,
    ) -> None:
        """ALTER ROUTE: what is given changes, also for what already waits. A lifetime counts from now.

        There is no way back to any service, any instance or no lifetime: drop the route and create it anew.

        Raises:
            BrokerError: as `create_route`, and 15151 no such route.
        """
        clauses = routes.Clauses(service_name, broker_instance, lifetime, address, mirror_address)
        self._deliver(
            lambda: routes.alter_route(self.catalog, self.database_id, name, clauses, self.instance.clock()),
            "ALTER ROUTE",
            rights.route(name),
        )

    def drop_route(self, name: str) -> None:
        """DROP ROUTE; conversations that would have taken it wait for another one.

        Raises:
            BrokerError: 15151 no such route.
        """
        self._deliver(
            lambda: routes.drop_route(self.catalog, self.database_id, name, self.instance.clock()),
            "DROP ROUTE",
            rights.route(name),
        )

    def explain_route(
        self, service: str, broker_instance: str | UUID | None = None, *, from_outside: bool = False
    ) -> Explanation:
        """What routing decides now about a conversation to `service` that begins in this database.

        Args:
            service: the name of the service, compared byte by byte.
            broker_instance: the identifier that BEGIN DIALOG names, if any.
            from_outside: explain instead what becomes of a first message that arrives from another instance.

        Raises:
            BrokerError: 1093 no broker identifier, 402 no name of a service.
        """

        def steps() -> Steps[Explanation]:
            database_id = None if from_outside else self.database_id
            now = self.instance.clock()
            return (yield from routes.explain_route(self.catalog, database_id, service, broker_instance, now))

        return self._do(steps())
