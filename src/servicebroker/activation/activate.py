"""`activate`: run activation in the application's process, for a blocking or an asyncio instance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self, overload

from servicebroker.activation.host import DEFAULT_PATIENCE_S, Host
from servicebroker.activation.procedures import Resolver, load
from servicebroker.api.aio.instance import AsyncInstance
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.model.errors import BrokerError
from servicebroker.model.wording import short_repr
from servicebroker.protocol.queue_monitor import READER_INTERVAL_S


class AsyncHost:
    """A `Host` for an asyncio instance. It works in threads, with a blocking instance of its own."""

    def __init__(
        self, instance: AsyncInstance, resolvers: Iterable[Resolver], interval: float, patience: float
    ) -> None:
        self._instance = instance
        self._arguments = tuple(resolvers), interval, patience
        self._host: Host | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._stop)

    def _start(self) -> None:
        blocking_instance = open_instance(self._instance.url, clock=self._instance.clock, upkeep=None)
        blocking_instance.share_events(self._instance)
        resolvers, interval, patience = self._arguments
        self._host = Host(blocking_instance, resolvers, interval=interval, patience=patience).start()

    def _stop(self) -> None:
        if self._host is not None:
            self._host.stop()
            self._host.instance.close()


@overload
def activate(
    instance: Instance,
    *,
    procedures: Iterable[str] = ...,
    resolvers: Iterable[Resolver] = ...,
    interval: float = ...,
    patience: float = ...,
) -> Host: ...


@overload
def activate(
    instance: AsyncInstance,
    *,
    procedures: Iterable[str] = ...,
    resolvers: Iterable[Resolver] = ...,
    interval: float = ...,
    patience: float = ...,
) -> AsyncHost: ...


def activate(
    instance: Instance | AsyncInstance,
    *,
    procedures: Iterable[str] = (),
    resolvers: Iterable[Resolver] = (),
    interval: float = READER_INTERVAL_S,
    patience: float = DEFAULT_PATIENCE_S,
) -> Host | AsyncHost:
    """Run activation in this process: `with sb.activate(instance): ...`, under asyncio `async with`.

    Readers of queues with ACTIVATION run as threads of this process, and event notifications for QUEUE_ACTIVATION are
    sent. At the end of the block no further reader is started, waiting readers end, and calls in progress have
    `patience` seconds. The sessions of longer calls are closed, so that their transactions are rolled back. If several
    processes or the daemon run activation, each queue is served by one of them that can resolve its procedure.

    Args:
        instance: the open instance; it stays open.
        procedures: modules to import, by name or file, so that they register their procedures (`sb.procedure`). Modules
            of the entry points `servicebroker.procedures` are imported too.
        resolvers: further ways to find a procedure by name; see `servicebroker.activation.procedures`.
        interval: seconds between two starts of readers of a queue, also after a failed start.
        patience: the timeout in seconds of the calls in progress at the end of the block.

    Raises:
        BrokerError: 402 the interval is not positive, or the patience is negative.
        InstanceError: a module cannot be imported.
    """
    if not isinstance(interval, int | float) or isinstance(interval, bool) or not interval > 0:
        raise BrokerError(402, "interval", short_repr(interval), "a positive number of seconds")
    if not isinstance(patience, int | float) or isinstance(patience, bool) or not patience >= 0:
        raise BrokerError(402, "patience", short_repr(patience), "a number of seconds, 0 or more")
    load(procedures)
    if isinstance(instance, AsyncInstance):
        return AsyncHost(instance, resolvers, interval, patience)
    return Host(instance, resolvers, interval=interval, patience=patience)
