"""Run coroutine procedures in an event loop of its own thread, on an asyncio form of the instance."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from servicebroker.activation.stop_signal import StopSignal
from servicebroker.activation.task_spec import TaskSpec
from servicebroker.api.activated_session import ReceiveHistory
from servicebroker.api.aio.activated_session import AsyncActivatedSession
from servicebroker.api.aio.database import AsyncDatabase
from servicebroker.api.aio.instance import AsyncInstance
from servicebroker.api.instance import Instance
from servicebroker.engine.activation import monitors
from servicebroker.model.reporting import report
from servicebroker.store.aio.connection import connect
from servicebroker.store.aio.running import run

Work = Callable[[AsyncDatabase], Awaitable[None]]

_LOG = logging.getLogger("servicebroker.activation")


class CoroutineRunner:
    """Runs coroutine procedures in one event loop, in a thread of its own.

    The event loop starts with the first coroutine and ends with `close`.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._async_instance: AsyncInstance | None = None
        self._is_closed = False

    def run(self, spec: TaskSpec, history: ReceiveHistory, work: Work, stop: StopSignal) -> None:
        """Run a coroutine function in a session of its own, and wait for its end."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._keep_running, args=(self._loop,), name="servicebroker procedures", daemon=True
                )
                self._thread.start()
            loop = self._loop
        asyncio.run_coroutine_threadsafe(self._run(spec, history, work, stop), loop).result()

    def _keep_running(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the event loop until `close`.

        sys.exit or KeyboardInterrupt in a coroutine stops the loop; it is started again, for the other coroutines.
        """
        while not self._is_closed:
            try:
                loop.run_forever()
            except BaseException as problem:
                text = "The event loop of activated procedures goes on: one of them has ended by %s."
                report(_LOG, logging.ERROR, text, type(problem).__name__)

    def close(self) -> None:
        """Close the loop. The caller has stopped all coroutines."""
        if self._loop is None:
            return
        if self._async_instance is not None:
            asyncio.run_coroutine_threadsafe(self._async_instance.close(), self._loop).result()
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop, self._is_closed = None, False

    async def _run(self, spec: TaskSpec, history: ReceiveHistory, work: Work, stop: StopSignal) -> None:
        connection = await connect(self._instance.url, application_name=spec.application_name)
        async with connection:
            await run(connection, monitors.enter_task(spec.queue_id, spec.procedure, spec.execute_as))
            session = AsyncActivatedSession(await self._open(), connection, history)  # type: ignore[arg-type] # mypy sees two classes
            stop.add_session(session, asyncio.get_running_loop().call_soon_threadsafe)
            await work(await session.enter(spec.database, spec.principal))
            await session.roll_back()
            await run(connection, monitors.leave_task())

    async def _open(self) -> AsyncInstance:
        if self._async_instance is None:
            folder = self._instance.keys.folder
            keys = None if folder is None else folder.path
            async_instance = AsyncInstance(self._instance.url, clock=self._instance.clock, upkeep=None, keys=keys)
            async_instance.share_events(self._instance)
            self._async_instance = async_instance
            await async_instance.open()
        return await self._async_instance.open()
