"""The interface of a measured system: its version and the ways of each scenario; free ports for servers."""

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
class Way:
    """One way to do what a scenario asks for.

    Attributes:
        label: the call, as its users write it.
        settings: what a reader must know to repeat it, "" when the label says all.
        prepare: makes everything ready for that many messages; not measured.
        work: the measured part.
    """

    label: str
    settings: str
    prepare: Callable[[int], None]
    work: Work


class System(Protocol):
    """A system under test, open on the common server."""

    name: str
    version: str

    def ways(self, scenario: str) -> list[Way]:
        """Return the ways of a scenario; empty if the system is not compared there."""

    def close(self) -> None:
        """Let the server go."""


def text_body() -> str:
    """A body of BODY_BYTES ASCII letters and digits, the same in every run."""
    return "".join(random.Random(1).choices(_LETTERS, k=BODY_BYTES))


def batches(messages: int, most: int = BATCH_MESSAGES) -> Iterator[int]:
    """The sizes of the batches that make up `messages`."""
    for begin in range(0, messages, most):
        yield min(most, messages - begin)


def free_port() -> int:
    """A port that an endpoint may have and nobody listens on now."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise InstanceError("No port is free.")
