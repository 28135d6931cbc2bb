"""The interface of a measured system: its version, and its implementations of each scenario."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks.measure import Work

BODY_BYTES = 200
BATCH_MESSAGES = 1000  # messages in one statement of the batch scenarios
LOOP_SENDS = 100  # SENDs in one transaction

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True)
class Implementation:
    """An implementation of a scenario by one system.

    Attributes:
        label: the call, as users write it.
        settings: further details for a reader who wants to repeat it.
        prepare: prepares for a number of messages; not measured.
        work: the measured function.
    """

    label: str
    settings: str
    prepare: Callable[[int], None]
    work: Work


class System(Protocol):
    """A system under test, connected to the PostgreSQL server that all systems share."""

    name: str
    version: str

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return the implementations of a scenario; empty if the system is not compared there."""

    def close(self) -> None:
        """Close the connections."""


def text_body() -> str:
    """Return BODY_BYTES ASCII letters and digits, which do not change between runs."""
    return "".join(random.Random(1).choices(_LETTERS, k=BODY_BYTES))


def batches(messages: int, size: int = BATCH_MESSAGES) -> Iterator[int]:
    """Divide a number of messages into batches. Yields the sizes."""
    for first in range(0, messages, size):
        yield min(size, messages - first)


def free_port() -> int:
    """Return a free port for an endpoint."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise InstanceError("No port is free.")
