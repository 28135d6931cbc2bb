"""The asyncio API with the methods of the blocking API, so that the same tests run on both.

Calls run on an event loop in a separate thread. Coroutines become calls, and async context managers become blocking
ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import psycopg

import servicebroker as sb
import servicebroker.api.aio.maintenance
import servicebroker.api.maintenance
from servicebroker import api
from servicebroker.api.aio.notifier import Notifier
from servicebroker.model.handlers.typed import Handler
from servicebroker.model.workers import ScheduledHandler

_STAND_INS = (
    sb.AsyncInstance,
    sb.AsyncDatabase,
    sb.AsyncJoinedTransaction,
    Notifier,
    psycopg.AsyncConnection,
    psycopg.AsyncCursor,
    AbstractAsyncContextManager,
)


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="event loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class StandIn:
    """A blocking stand-in for an object of the asyncio API."""

    def __init__(self, real: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__.update(real=real, loop=loop)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if inspect.ismethod(value) or inspect.isbuiltin(value):
            return lambda *arguments, **options: self._call(value, arguments, options)
        return self._wrap(value)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.real, name, value)

    def process(self, queue: str, procedure: Callable[..., Any], **options: Any) -> Any:
        """Run `Database.process` with a blocking procedure."""

        async def awaited(transaction: sb.AsyncTransaction, messages: list[sb.Message]) -> None:
            await asyncio.to_thread(procedure, self._wrap(transaction), messages)

        return self._call(self.real.process, (queue, awaited), options)

    def working(self, *workers: sb.Worker, **options: Any) -> Any:
        """Run `Database.working` with blocking handlers."""
        return self._call(self.real.working, tuple(map(self._as_async_worker, workers)), options)

    def _as_async_worker(self, worker: sb.Worker) -> sb.Worker:
        turned = sb.Worker(
            worker.queue,
            batch=worker.batch,
            groups=worker.groups,
            answers_ends=worker.answers_ends,
            poison=worker.poison,
            concurrency=worker.concurrency,
            rate=worker.rate,
            global_concurrency=worker.global_concurrency,
            global_rate=worker.global_rate,
        )
        for message_type, handler in worker._handlers.items():

            async def awaited(transaction: Any, given: Any, handler: Callable[..., Any] = handler) -> None:
                await asyncio.to_thread(handler, self._wrap(transaction), given)

            turned.on(*filter(None, [message_type]))(awaited)
        for name, (schedule, handler) in worker._schedules.items():
            turned._schedules[name] = ScheduledHandler(schedule, self._as_async_handler(handler))
        return turned

    def _as_async_handler(self, handler: Handler) -> Handler:
        async def awaited(transaction: Any, given: Any) -> None:
            await asyncio.to_thread(handler, self._wrap(transaction), given)

        return Handler(awaited, [], is_batch=False, scope={})

    def __enter__(self) -> Any:
        return self._call(self.real.__aenter__, (), {})

    def __exit__(self, *error: Any) -> Any:
        return self._call(self.real.__aexit__, error, {})

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        async def call() -> Any:
            result = function(
                *(argument.real if isinstance(argument, StandIn) else argument for argument in arguments), **options
            )
            return await result if isinstance(result, Coroutine) else result

        return self._wrap(asyncio.run_coroutine_threadsafe(call(), self.loop).result())

    def _wrap(self, value: Any) -> Any:
        return StandIn(value, self.loop) if isinstance(value, _STAND_INS) else value


def choose_by_argument(blocking: Callable[..., Any], awaited: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the blocking or the asyncio function, according to its first argument."""

    def call(first: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(first, StandIn):
            return first._call(awaited, (first, *arguments), options)
        return blocking(first, *arguments, **options)

    return call


run_maintenance = choose_by_argument(api.maintenance.run_maintenance, api.aio.maintenance.run_maintenance)
deliver = choose_by_argument(api.maintenance.deliver, api.aio.maintenance.deliver)
connect = choose_by_argument(  # a connection of the application
    lambda instance, **options: psycopg.connect(instance.url, **options),
    lambda instance, **options: psycopg.AsyncConnection.connect(instance.url, **options),
)


@contextlib.contextmanager
def open_behind_portal(target: str, **options: Any) -> Iterator[Any]:
    """Open an instance of the asyncio API, which is used like a blocking one."""
    with event_loop() as loop, StandIn(sb.open_async(target, **options), loop) as instance:
        yield instance
