"""The routes of a run: during faults they may be wrong, missing or expiring; in the end they are correct."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from itertools import permutations

from servicebroker.protocol.routing import LOCAL, Route
from servicebroker_lab.simulation.links import address_of
from servicebroker_lab.simulation.simulated_instance import Instance, World
from servicebroker_lab.simulation.simulated_network import NOWHERE_INDEX, OTHER_HALF_OFFSET

EVERYWHERE = "//sim/everywhere"  # a service that all instances have


class Routes:
    """The routes of all instances: by service name, and by broker identifier to the service that all instances have."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self._faults = world.network.faults
        self._hops: dict[tuple[int, int], int] = {}  # (from, to): the next hop
        # by instance: the instances to which it has routes by broker identifier
        self._named: defaultdict[int, list[Instance]] = defaultdict(list)
        # The only instance with routes to the common service, in half of these runs
        self._alone: Instance | None = None
        self._unnamed: Instance | None = (
            None  # and one of its routes, without broker identifier, leads to this instance
        )

    def change(self) -> None:
        """Draw new routes: correct ones, to another instance, or to an unused address."""
        count = len(self._world.instances)
        for here, there in permutations(range(count), 2):
            is_detour = self._loop.happens(self._faults.detour)
            others = [index for index in range(count) if index != here]
            self._hops[here, there] = self._loop.random.choice(others) if is_detour else there
            if self._loop.happens(self._faults.nowhere):
                self._hops[here, there] = NOWHERE_INDEX
        self._set_routes(unrouted=self._faults.unrouted, scattered=self._faults.scattered)

    def settle(self, *, detours: bool = False, scattered: float = 0.0) -> None:
        """Correct every route: directly, or with `detours` through one forwarder."""
        count = len(self._world.instances)
        everywhere = self._loop.random.randrange(count) if detours and self._world.proves else None
        for there in range(count):
            forwarder = self._loop.random.randrange(count) if detours else there
            if (
                everywhere is not None
            ):  # unsigned messages are accepted only from the peer to which the route back leads
                forwarder = everywhere
            for here in range(count):
                self._hops[here, there] = there if forwarder in (here, there) else forwarder
        self._set_routes(scattered=scattered)

    def begin(self) -> None:
        """Create the first routes."""
        if self._loop.happens(0.5 if self._faults.scattered else 0.0):
            self._alone = self._loop.random.choice(self._world.instances)
            self._unnamed = self._loop.random.choice(self._other_instances(self._alone))
        self.settle(scattered=self._faults.scattered)

    def reach_all(self, here: Instance) -> bool:
        """Check whether an instance has routes to the service that all instances have."""
        return self._faults.scattered > 0 and self._alone in (None, here)

    def _other_instances(self, here: Instance) -> list[Instance]:
        return [instance for instance in self._world.instances if instance is not here]

    def _set_routes(self, *, unrouted: float = 0.0, scattered: float = 0.0) -> None:
        for instance in self._world.instances:
            others = self._other_instances(instance)
            hops = [self._hops[instance.index, there.index] for there in others]
            routes = [
                Route("", there.service, None, None, *self._addresses_of_hop(hop))
                for there, hop in zip(others, hops, strict=True)
            ]
            if self._loop.happens(unrouted):
                route = routes.pop(self._loop.random.randrange(len(routes)))
                if self._loop.happens(0.5):
                    routes.append(route._replace(expires=self._near_expiry(instance)))
            if self.reach_all(instance):
                routes += (
                    self._growing(instance, scattered) if self._alone is None else self._moving(instance, scattered)
                )
            routes.append(Route("AutoCreatedLocal", None, None, None, LOCAL))
            if routes != list(instance.tables.routes.routes):
                instance.tables.set_routes(routes)
                instance.poke()

    def _growing(self, here: Instance, scattered: float) -> list[Route]:
        """Return routes to the common service by broker identifier. From time to time one is added.

        A single route may be missing or expire. One of several routes is never dropped: unacknowledged messages for its
        instance would go to another one (decision 56).
        """
        named = self._named[here.index]
        missing = [there for there in self._other_instances(here) if there not in named]
        if not scattered:
            named += missing
        elif missing and self._loop.happens(scattered):
            named.append(self._loop.random.choice(missing))
        routes = [self._to_all(there, str(there.tables.broker)) for there in named]
        if len(routes) == 1 and self._loop.happens(scattered):
            return [routes[0]._replace(expires=self._near_expiry(here))] if self._loop.happens(0.5) else []
        return routes

    def _moving(self, here: Instance, scattered: float) -> list[Route]:
        """Return routes to the common service: to each instance by its identifier, and to one of them without.

        The latter route changes only while all conversations of the service are acknowledged, for the reason given at
        `_growing`. The other instances have no such routes, so they do not forward messages without a broker.
        """
        others = self._other_instances(here)
        conversations = [
            endpoint
            for endpoint in here.tables.endpoints.values()
            if endpoint.far_service == EVERYWHERE and endpoint.is_remote
        ]
        if all(endpoint.is_acknowledged for endpoint in conversations) and self._loop.happens(scattered):
            self._unnamed = self._loop.random.choice(others)
        assert self._unnamed is not None
        return [self._to_all(self._unnamed, None), *[self._to_all(there, str(there.tables.broker)) for there in others]]

    def _to_all(self, there: Instance, broker: str | None) -> Route:
        return Route("", EVERYWHERE, broker, None, *self._addresses_of_hop(there.index))

    def _near_expiry(self, instance: Instance) -> datetime:
        return instance.clock() + timedelta(seconds=10 * self._loop.random.random())

    def _addresses_of_hop(self, hop: int) -> tuple[str, str | None]:
        """Return the address of a hop, and that of its other server if routes are mirrored."""
        return str(address_of(hop)), str(address_of(hop + OTHER_HALF_OFFSET)) if self._faults.promoted else None
