"""Ports for the servers of a benchmark."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

from servicebroker.model.errors import InstanceError


def free_port() -> int:
    """A port that an endpoint may have and nobody listens on now."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise InstanceError("No port is free.")
