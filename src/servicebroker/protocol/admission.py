"""Limits on connections that are not authenticated yet.

**The problem.** An unknown client can open connections faster than honest peers finish their handshakes, and each costs
a file descriptor.

**The rules.** Unauthenticated connections share a fixed number of slots, and a network has a part of them. If that
part is used up, a new connection takes the slot of the oldest one of its network. If no slot is free at all, it takes
that of the oldest one of the network with the most slots: an honest peer finishes its handshake within a second. Each
step of a handshake has a deadline, which no received bytes extend.

A network is an IPv4 address, or the 64-bit prefix of an IPv6 address.
"""

from __future__ import annotations

from collections.abc import Hashable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

_OF_SUBSCRIBER = 64  # bits of an IPv6 address


class SlotLimits(NamedTuple):
    """The limits of unauthenticated connections: in total, and of one network."""

    in_all: int
    of_network: int


class _Slot(NamedTuple):
    network: str
    deadline: float


class Admission(Generic[Key]):
    """The unauthenticated connections, each with the deadline of its present step."""

    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._taken: dict[Key, _Slot] = {}
        self._networks: dict[str, dict[Key, None]] = {}  # the oldest first
        self._by_count: dict[int, dict[str, None]] = {}  # number of slots -> networks

    def __len__(self) -> int:
        return len(self._taken)

    def expect(self, key: Key, host: str, deadline: float) -> Key | None:
        """Give a connection a slot, or its next step a deadline. Return the connection that loses its slot."""
        slot = self._taken.get(key)
        if slot is not None:
            self._taken[key] = slot._replace(deadline=deadline)
            return None
        network = network_of(host)
        displaced = self._displaced(network)
        if displaced is not None:
            self.leave(displaced)
        self._taken[key] = _Slot(network, deadline)
        of_network = self._networks.setdefault(network, {})
        of_network[key] = None
        self._sort(network, len(of_network) - 1, len(of_network))
        return displaced

    def leave(self, key: Key) -> None:
        """Free the slot of a connection that is authenticated or closed. No error if it has none."""
        slot = self._taken.pop(key, None)
        if slot is not None:
            of_network = self._networks[slot.network]
            del of_network[key]
            self._sort(slot.network, len(of_network) + 1, len(of_network))
            if not of_network:
                del self._networks[slot.network]

    def oldest(self) -> Key | None:
        """Return the connection to close when descriptors run short: the oldest of the network with most slots."""
        if not self._by_count:
            return None
        network = next(iter(self._by_count[max(self._by_count)]))
        return _first(self._networks[network])

    def overdue(self, now: float) -> list[Key]:
        """Return the connections whose step has taken too long."""
        return [key for key, slot in self._taken.items() if now >= slot.deadline]

    def _displaced(self, network: str) -> Key | None:
        of_network = self._networks.get(network, {})
        if len(of_network) >= self._limits.of_network:
            return _first(of_network)
        return self.oldest() if len(self._taken) >= self._limits.in_all else None

    def _sort(self, network: str, before: int, after: int) -> None:
        """Record the new number of slots of a network. It becomes the last of the networks with as many."""
        if before:
            del self._by_count[before][network]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[network] = None


def network_of(host: str) -> str:
    """Return the network of an address. A text that is not an address is its own network."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(IPv6Address(int(address) >> _OF_SUBSCRIBER << _OF_SUBSCRIBER))
        address = address.ipv4_mapped
    return str(address)


def _first(keys: dict[Key, None]) -> Key:
    return next(iter(keys))
