"""The options of `servicebroker serve` for SQL Server's clients."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from servicebroker.api.instance import Instance
from servicebroker.cli.http_server import parse_address

_log = logging.getLogger("servicebroker.tds")


class TdsListener(NamedTuple):
    """An address at which SQL Server's clients connect, with the files of its certificate."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


def parse_tds_listener(address: str | None, certificate: Path | None, key: Path | None) -> TdsListener | None:
    """Return the listener of --tds HOST:PORT, None without the option.

    Raises:
        BrokerError: 402 `address` is not HOST:PORT.
    """
    if address is None:
        return None
    host, port = parse_address("--tds", address)
    return TdsListener(host, port, certificate, key)


@contextlib.contextmanager
def serve_tds_clients(instance: Instance, listener: TdsListener | None) -> Iterator[None]:
    """Serve SQL Server's clients during the block. Without a listener, do nothing.

    Raises:
        InstanceError: the address or the certificate cannot be used.
    """
    if listener is None:
        yield
        return
    from servicebroker.tds.server import serve_tds  # imported here: most daemons serve no clients of SQL Server

    host, port, certificate, key = listener
    with serve_tds(instance, host, port, certificate=certificate, key=key) as bound_port:
        _log.info("SQL Server's clients connect at %s:%s.", host or "0.0.0.0", bound_port)
        yield
