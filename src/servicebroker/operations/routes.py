"""CREATE, ALTER and DROP ROUTE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from uuid import UUID

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateRoute(Definition[None]):
    """CREATE ROUTE: set the address of services, for conversations that begin in this database.

    Args:
        name: the name of the route, case-insensitive.
        service_name: the name of the service, compared byte by byte. Default: any service.
        broker_instance: the broker identifier of the service's database. Default: any database.
        lifetime: seconds from now until the route expires. Default: it does not expire.
        address: TCP://host:port (default port: 4022), "LOCAL" for this instance, or "TRANSPORT" if the service's name
            begins with its address (TCP://host:port/...).
        mirror_address: the address of the other server of a mirrored pair.
        authorization: the owner. Default: the current user.
        exist_ok: do nothing if a route of that name exists.

    Raises:
        BrokerError: 9659 an empty clause, 9660 a clause that is too long, 9661 and 9743 a mirrored route without
            service, broker or TCP address, 9662 a broker without service, 9744 an invalid address, 9745 TRANSPORT with
            a service, 9746 the lifetime, 9747 both addresses are the same, 1093 an invalid broker identifier, 2714 the
            name is taken, 15151 no such owner, 262 no permission.
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
    """ALTER ROUTE: change clauses. The change applies to waiting messages, too.

    The service, the broker identifier and the lifetime cannot be reset: drop the route and create it again.

    Args:
        name: the name of the route, case-insensitive.
        service_name: as for `create_route`.
        broker_instance: as for `create_route`.
        lifetime: seconds from now until the route expires. An expired route is valid again.
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
    """DROP ROUTE. Messages of conversations that no other route matches wait.

    Raises:
        BrokerError: 15151 no such route.
    """
