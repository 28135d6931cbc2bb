"""Opening an instance, for threads and for asyncio."""

from __future__ import annotations

import os

from servicebroker.api.aio.instance import AsyncInstance
from servicebroker.api.instance import MAINTENANCE_INTERVAL_S, Instance
from servicebroker.model.arguments import MAX_BODY_BYTES
from servicebroker.store.server_clock import Clock


def open_instance(
    target: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    upkeep: float | None = MAINTENANCE_INTERVAL_S,
    maximum_body: int = MAX_BODY_BYTES,
    keys: str | os.PathLike[str] | None = None,
) -> Instance:
    """Open an instance. Create it if it does not exist.

    Close it at the end, with a `with` block or `close()`. One instance serves all threads of a process.

    Args:
        target: a data folder, for an embedded PostgreSQL server that is created, started or joined; or the URL of a
            PostgreSQL database, as `postgresql://...` or `key=value ...`.
        clock: a clock for tests (docs/how-to/testing.md). Default: the time of the PostgreSQL server.
        upkeep: seconds between two runs of the maintenance thread. It fires timers and ends lifetimes in queues
            without readers, and removes closed endpoints. None for no such thread.
        maximum_body: the largest body in bytes that SEND accepts (8459 otherwise). Default: 512 MB; at most 900 MB.
        keys: the folder of private keys. Default: `keys` in the data folder; for a URL, a folder in the user's data.

    Raises:
        BrokerError: 402 an impossible `maximum_body`.
        InstanceError: it cannot be created, reached or used; the message has the reason.
    """
    return Instance(target, clock=clock, upkeep=upkeep, maximum_body=maximum_body, keys=keys).open()


def open_async(
    target: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    upkeep: float | None = MAINTENANCE_INTERVAL_S,
    maximum_body: int = MAX_BODY_BYTES,
    keys: str | os.PathLike[str] | None = None,
) -> AsyncInstance:
    """Open an instance for asyncio: `async with open_async(...) as instance`, or `instance = await open_async(...)`.

    The instance belongs to the event loop in which it is opened. Arguments and errors are those of `open`.
    """
    return AsyncInstance(target, clock=clock, upkeep=upkeep, maximum_body=maximum_body, keys=keys)
