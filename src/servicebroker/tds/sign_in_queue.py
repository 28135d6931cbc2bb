"""The turns of sign-ins: a few at a time, and the networks one after the other.

A sign-in costs a hash of memory and processor time, and a connection to PostgreSQL. A network that floods the server
with sign-ins delays its own. A client that has left loses its turn before it has cost anything.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from servicebroker.protocol.admission import network_of

Key = TypeVar("Key", bound=Hashable)
Work = Callable[[], object]

MAX_RUNNING, MAX_RUNNING_OF_NETWORK = 16, 4


class SignInQueue(Generic[Key]):
    """The sign-ins that wait or run. All methods run in the event loop.

    Args:
        in_thread: runs work in a worker thread.
        in_loop: runs work in the event loop.
    """

    def __init__(self, in_thread: Callable[[Work], None], in_loop: Callable[[Work], None]) -> None:
        self._in_thread, self._in_loop = in_thread, in_loop
        # The waiting clients by network, the next one first
        self._waiting: OrderedDict[str, OrderedDict[Key, Work]] = OrderedDict()
        self._networks: dict[Key, str] = {}  # the network of each waiting client
        self._running: Counter[str] = Counter()

    def add(self, key: Key, address: str, work: Work) -> None:
        """Run the sign-in of a client when it is its turn."""
        network = network_of(address)
        self._networks[key] = network
        self._waiting.setdefault(network, OrderedDict())[key] = work
        self._start()

    def leave(self, key: Key) -> None:
        """Forget a client that has gone. No error if it does not wait."""
        if (network := self._networks.pop(key, None)) is not None:
            self._forget(network, key)

    def _forget(self, network: str, key: Key) -> Work:
        waiting = self._waiting[network]
        work = waiting.pop(key)
        if not waiting:
            del self._waiting[network]
        return work

    def _start(self) -> None:
        """Start those whose turn it is, one of each network at a time."""
        for network in tuple(self._waiting):
            if self._running.total() >= MAX_RUNNING:
                return
            if self._running[network] < MAX_RUNNING_OF_NETWORK:
                key = next(iter(self._waiting[network]))
                del self._networks[key]
                work = self._forget(network, key)
                if network in self._waiting:
                    self._waiting.move_to_end(network)
                self._running[network] += 1
                self._in_thread(partial(self._run, network, work))

    def _run(self, network: str, work: Work) -> None:
        """Run a sign-in, in a worker thread."""
        try:
            work()
        finally:
            self._in_loop(lambda: self._ended(network))

    def _ended(self, network: str) -> None:
        self._running[network] -= 1
        if not self._running[network]:
            del self._running[network]
        self._start()
