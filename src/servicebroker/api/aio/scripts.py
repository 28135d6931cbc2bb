"""T-SQL for asyncio: the same session, in a thread, on a connection of the instance's own pool.

T-SQL is written once, for threads. A script runs in a thread of its own, which sees the instance as a blocking one
(`ThreadInstance`), with the same catalog, counts, events and doorbell. The event loop awaits coroutines for the thread.
The connection that a script works on is lent from the pool, and used by the thread alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from servicebroker.api.aio.doorbell import Bell, Doorbell
from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.poison import PoisonDetector
from servicebroker.api.transaction import release_kept
from servicebroker.model.arguments import check_script
from servicebroker.model.security.permissions import User
from servicebroker.store import session_locks
from servicebroker.store.aio.direct import blocking
from servicebroker.store.direct import DirectConnection

if TYPE_CHECKING:
    from servicebroker.api.aio.instance import AsyncInstance
    from servicebroker.tsql.results import Results

T = TypeVar("T")
Awaited = Callable[[Coroutine[Any, Any, T]], T]  # has the event loop do it, and waits


class AsyncScripts:
    """T-SQL on a database. There is no form inside a transaction: a script may wait, and would hold up the loop."""

    instance: AsyncInstance
    user: User

    async def execute_tsql(self, script: str, parameters: Mapping[str, object] | None = None) -> Results:
        """Run a T-SQL script in a thread, in a session of its own; see `Database.execute_tsql`."""
        check_script(script, parameters)
        self.instance.check_process()
        database = Database(_seen_by_threads(self.instance), self.user.database, self.user)
        return await _in_own_thread(lambda: database.execute_tsql(script, parameters))


class AsyncTransactionScripts:
    """An empty base: T-SQL inside a transaction has only the blocking form."""


def _seen_by_threads(instance: AsyncInstance) -> ThreadInstance:
    """Return the instance as threads see it, made once, since T-SQL keeps what it finds out about each instance."""
    loop, seen = asyncio.get_running_loop(), instance.seen_by_threads
    if not isinstance(seen, ThreadInstance) or not seen.is_of(instance, loop):
        seen = instance.seen_by_threads = ThreadInstance(instance, loop)
    return seen


async def _in_own_thread(work: Callable[[], T]) -> T:
    """Run work that blocks and needs the event loop meanwhile, in a thread of its own.

    The executor of the loop has few threads, and the loop itself needs them to open a connection. If all of them waited
    for the loop, nothing would go on.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done, value = result.set_result, context.run(work)
        except BaseException as problem:
            done, value = result.set_exception, problem  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if result.done() else done(value))

    threading.Thread(target=run, name="servicebroker T-SQL", daemon=True).start()
    return await result


class ThreadInstance(Instance):
    """An open instance of asyncio as a thread sees it. Nothing is opened for it, and nothing is closed."""

    def __init__(self, instance: AsyncInstance, loop: asyncio.AbstractEventLoop) -> None:
        def awaited(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        self.__dict__.update(instance.__dict__)
        self._is_closed = True  # dropped while the instance stays open
        self._inner, self._loop, self._awaited = instance, loop, awaited
        self.works_as_user = instance.works_as_user
        self.poison = PoisonDetector(self.connection, self.clock, self._disable_queue, self.events, self.tally)
        self.poison.share(instance.poison)
        self.doorbell = ThreadDoorbell(instance.doorbell, awaited)  # type: ignore[assignment] # has its methods

    def is_of(self, instance: AsyncInstance, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this is the view of that instance, as it was opened last, in that event loop."""
        return self._inner is instance and self._loop is loop and self.doorbell.is_of(instance.doorbell)  # type: ignore[attr-defined]

    @contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        """Lend a connection of the pool to this thread alone, until the block ends."""
        with _entered(self._inner.connection(), self._awaited) as lent, blocking(lent) as connection:
            try:
                yield connection
            finally:
                if session_locks.may_keep_locks(connection):
                    release_kept(connection)

    def close(self) -> None:
        """Do nothing: the instance is closed where it was opened."""

    def renew(self) -> None:
        """Replace the connections that were lost with the server."""
        self._awaited(self._inner.renew())

    def count_received(self, queue_id: int, messages: int, *, filtered: bool) -> None:
        """Count the messages that a RECEIVE took."""
        self._loop.call_soon_threadsafe(lambda: self._inner.count_received(queue_id, messages, filtered=filtered))

    def count_polled(self, found: bool) -> None:
        """Note whether a GET CONVERSATION GROUP found a group."""
        self._loop.call_soon_threadsafe(self._inner.count_polled, found)

    def sleep(self, bell: Any, seconds: float) -> bool:
        """Wait for the bell, at most `seconds`. Return whether the queue itself may have changed meanwhile."""
        return self._awaited(self._inner.sleep(bell, seconds))


class ThreadDoorbell:
    """A doorbell of asyncio as a thread sees it."""

    def __init__(self, inner: Doorbell, awaited: Awaited[Any]) -> None:
        self._inner, self._awaited = inner, awaited
        self.is_registered, self.count_asleep = inner.is_registered, inner.count_asleep
        self.service_changes = inner.service_changes

    def is_of(self, doorbell: Doorbell) -> bool:
        """Return whether this is the view of that doorbell."""
        return self._inner is doorbell

    @contextmanager
    def listening(self, queue_id: int, *, filtered: bool) -> Iterator[Bell]:
        """Give the block a bell that rings when a message was sent to the queue."""
        with _entered(self._inner.listening(queue_id, filtered=filtered), self._awaited) as bell:
            yield bell

    def keep_waiting(self, queue_id: int, bell: Bell) -> bool:
        """Keep waiting after a message. Return False if a message may have been missed."""
        return bool(self._awaited(self._inner.keep_waiting(queue_id, bell)))

    def wake_another(self, queue_id: int) -> None:
        """Let a sleeping reader poll for more, while another reader is busy with a message."""
        self._awaited(self._inner.wake_another(queue_id))


@contextmanager
def _entered(entered: AbstractAsyncContextManager[T], awaited: Awaited[Any]) -> Iterator[T]:
    """Enter and leave in the event loop, from a thread."""

    async def enter() -> T:
        return await entered.__aenter__()

    async def leave() -> None:
        await entered.__aexit__(None, None, None)

    value: T = awaited(enter())
    try:
        yield value
    finally:
        awaited(leave())
