"""Under which addresses this machine is reached."""

from __future__ import annotations

import os

from servicebroker.protocol.routing import Address


def own_addresses(host: str, port: int) -> frozenset[Address]:
    """Where routes mean a listener at `host` ('' for every address of the machine) and `port`."""
    hosts = (host,) if host else ("localhost", "127.0.0.1", "::1", os.uname().nodename)
    return frozenset(Address(one.lower(), port) for one in hosts)
