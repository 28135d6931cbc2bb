"""Any number of instances with their relays, and simulated links that the test controls."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

import servicebroker as sb
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.relay import Relay
from servicebroker.broker.transport.links import Arrival
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.routing import Address
from servicebroker.store.connection import connect
from support import Clock, standard_database


class Pipe:
    """The frames that one site has sent to another."""

    owner = ""
    room = 2**40

    def __init__(self) -> None:
        self.frames: deque[tuple[bytes, bool]] = deque()

    def refused(self, number: int, text: str) -> None:
        """Ignore a refusal."""

    def complain(self) -> None:
        """Do nothing, because no peer floods here."""

    def opened(self) -> None:
        """Do nothing, as `complain`."""

    def charge(self, seconds: float) -> None:
        """Do nothing, because no peer is limited here."""

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        self.frames.append((body, is_forwarded))


class Site:
    """An instance with its relay, and links to all other sites."""

    def __init__(self, name: str, url: str, clock: Clock, world: dict[str, Site]) -> None:
        self.name, self.world, self.seconds = name, world, 0.0
        self.instance = sb.open(url, clock=clock, upkeep=None)
        self.database = standard_database(self.instance)
        self.database.grant("CONTROL", "public")  # the service accepts unsecured messages
        self.msdb = self.instance.database("msdb")
        self.out: dict[str, Pipe] = {}
        self.lost: set[str] = set()
        self.asked: set[str] = set()  # sites that were asked whether they are the principal
        self.here = LocalInstance(frozenset({Address(name, 4022)}), forwards=True, forward_size=10)
        self.connection = connect(url)
        self.store = PostgresStore(self.connection, clock)
        self.clock = clock
        self.restart()

    def restart(self) -> None:
        """Restart the relay, which loses its memory."""
        self.relay = Relay(self, self.clock, lambda: self.seconds, random.Random(1), lambda: self.here)

    def reach(self, address: Address) -> Pipe | str:
        if address.host in self.lost:
            return "The target service broker is unreachable."
        return self.out.setdefault(address.host, Pipe())

    def ask(self, address: Address, known: KnownTimeline) -> None:
        self.asked.add(address.host)

    def route(self, service: str, to: str, *, outside: bool = False) -> None:
        (self.msdb if outside else self.database).create_route(
            f"{service} to {to}", service_name=service, address=f"TCP://{to}:4022"
        )

    def round(self) -> int:
        """Run a round with the frames of all other sites. Return the number of frames."""
        arrivals = []
        for other in self.world.values():
            if pipe := other.out.get(self.name):
                back = self.out.setdefault(other.name, Pipe())
                arrivals += [Arrival(back, *frame) for frame in pipe.frames]
                pipe.frames.clear()
        self.relay.round(self.store, arrivals)
        return len(arrivals)

    def close(self) -> None:
        self.connection.close()
        self.instance.close()


def rounds(sites: Iterable[Site], count: int = 12) -> None:
    """Run rounds of all sites, each with the frames of the others."""
    everybody = list(sites)
    for _ in range(count):
        for site in everybody:
            site.round()
