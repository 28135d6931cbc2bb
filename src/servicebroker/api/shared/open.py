"""Opening an instance, for threads and for asyncio."""

from __future__ import annotations

import os

from servicebroker.api.aio.instance import AsyncInstance
from servicebroker.api.instance import UPKEEP_INTERVAL_S, Instance
from servicebroker.model.arguments import MAX_BODY_BYTES
from servicebroker.store.server_clock import Clock


def open_instance(
    target: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    upkeep: float | None = UPKEEP_INTERVAL_S,
    maximum_body: int = MAX_BODY_BYTES,
    keys: str | os.PathLike[str] | None = None,
) -> Instance:
    """Open an instance, and make it where there is none.

    Close it at the end, by a `with` block or `close()`. One instance serves all threads of a process.

    Args:
        target: a folder, in which an embedded PostgreSQL is made or joined; or a PostgreSQL database, as
            `postgresql://...` or `key=value ...`.
        clock: whose time every rule goes by, in tests (docs/how-to/testing.md). It is that of the PostgreSQL server.
        upkeep: every so many seconds a thread fires timers and ends lifetimes that are due in queues that nobody
            receives from, and removes closed endpoints. None for no such thread.
        maximum_body: SEND refuses a body of more bytes (8459). 512 MB, and 900 MB at most.
        keys: the folder of private keys; `keys` in the data folder, for a server one in the user's own data.

    Raises:
        BrokerError: 402 an impossible `maximum_body`.
        InstanceError: it cannot be made, reached or used; the message says why.
    """
    return Instance(target, clock=clock, upkeep=upkeep, maximum_body=maximum_body, keys=keys).open()


def open_async(
    target: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    upkeep: float | None = UPKEEP_INTERVAL_S,
    maximum_body: int = MAX_BODY_BYTES,
    keys: str | os.PathLike[str] | None = None,
) -> AsyncInstance:
    """The same for asyncio: `async with open_async(...) as instance`, or `instance = await open_async(...)`.

    The instance belongs to the event loop that it is opened in. Arguments and errors are those of `open`.
    """
    return AsyncInstance(target, clock=clock, upkeep=upkeep, maximum_body=maximum_body, keys=keys)
