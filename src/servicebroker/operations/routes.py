"""CREATE, ALTER and DROP ROUTE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from uuid import UUID

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateRoute(Definition[None]):
    """CREATE ROUTE: where the services of that name are reached, for conversations that begin in this database.

    Args:
        name: of the route, compared without case.
        service_name: the name of the service, compared byte by byte; without it, any service.
        broker_instance: identifier of the database that has the service; without it, any database.
        lifetime: seconds from now after which the route is ignored; without it, the route does not expire.
        address: TCP://host:port (port 4022 if it names none), "LOCAL" for this instance, or "TRANSPORT" for the
            address with which the service's own name begins.
        mirror_address: the address of the other server of a mirrored pair.
        authorization: the owner; the user that this object works as when it is not given.
        exist_ok: whether an existing object of that name is left as it is, instead of an error.

    Raises:
        BrokerError: 9659, 9660, 9661, 9662, 9743, 9744, 9745, 9746, 9747, 1093, 2714 name taken, 15151 no such
            owner, 262.
    """

    name: str
    _: KW_ONLY
    service_name: str | None = None
    broker_instance: str | UUID | None = None
    lifetime: int | None = None
    address: str
    mirror_address: str | None = None
    authorization: str | None = None
    exist_ok: bool = False


@dataclass(frozen=True, slots=True)
class AlterRoute(Definition[None]):
    """ALTER ROUTE: change the given clauses, also for messages that already wait.

    A service, an instance or a lifetime cannot be removed again: drop the route and create it anew.

    Args:
        name: of the route, compared without case.
        service_name: as for `create_route`.
        broker_instance: as for `create_route`.
        lifetime: seconds from now; it revives an expired route.
        address: as for `create_route`.
        mirror_address: as for `create_route`.

    Raises:
        BrokerError: as `create_route`, and 15151 no such route.
    """

    name: str
    _: KW_ONLY
    service_name: str | None = None
    broker_instance: str | UUID | None = None
    lifetime: int | None = None
    address: str | None = None
    mirror_address: str | None = None


@dataclass(frozen=True, slots=True)
class DropRoute(Named, Definition[None]):
    """DROP ROUTE; conversations that would have taken it wait for another one.

    Raises:
        BrokerError: 15151 no such route.
    """
