"""T-SQL for asyncio: a blocking session in a thread, on a connection of the instance's pool.

The T-SQL interpreter exists once, for threads. A script runs in a thread of its own, on a blocking view of the instance
(`ThreadInstance`) with the same catalog, counts, events and notifier. The event loop runs coroutines for the thread.
The pool lends the script a connection that only the thread uses.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from servicebroker.api.aio.notifier import Notifier, WaitingReader
from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.poison import PoisonDetector
from servicebroker.api.transaction import release_group_locks
from servicebroker.model.arguments import check_script
from servicebroker.model.security.permissions import User
from servicebroker.overriding import override
from servicebroker.store import session_locks
from servicebroker.store.aio.direct import blocking
from servicebroker.store.direct import DirectConnection

if TYPE_CHECKING:
    from servicebroker.api.aio.instance import AsyncInstance
    from servicebroker.tsql.results import Results

T = TypeVar("T")
Awaited = Callable[[Coroutine[Any, Any, T]], T]  # runs a coroutine in the event loop, and waits for its result


class AsyncScripts:
    """T-SQL on a database. A script inside a transaction is not offered: it would block the event loop."""

    instance: AsyncInstance
    user: User

    async def execute_tsql(self, script: str, parameters: Mapping[str, object] | None = None) -> Results:
        """Run a T-SQL script in a thread, in a session of its own; see `Database.execute_tsql`."""
        check_script(script, parameters)
        self.instance.check_caller()
        database = Database(_thread_view_of(self.instance), self.user.database, self.user)
        return await _in_own_thread(lambda: database.execute_tsql(script, parameters))


class AsyncTransactionScripts:
    """An empty base: T-SQL inside a transaction has only the blocking form."""


def _thread_view_of(instance: AsyncInstance) -> ThreadInstance:
    """Return the blocking view of the instance: one object, since T-SQL caches by instance."""
    loop, view = asyncio.get_running_loop(), instance.thread_view
    if not isinstance(view, ThreadInstance) or not view.is_of(instance, loop):
        view = instance.thread_view = ThreadInstance(instance, loop)
    return view


async def _in_own_thread(work: Callable[[], T]) -> T:
    """Run blocking work that needs the event loop meanwhile, in a thread of its own.

    The executor of the loop has few threads, and the loop itself needs one to open a connection. If all of them waited
    for the loop, the program would deadlock.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            set_outcome, value = result.set_result, context.run(work)
        except BaseException as problem:
            set_outcome, value = result.set_exception, problem  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if result.done() else set_outcome(value))

    threading.Thread(target=run, name="servicebroker T-SQL", daemon=True).start()
    return await result


class ThreadInstance(Instance):
    """A blocking view of an open asyncio instance, for one thread. Its connections are those of the instance."""

    def __init__(self, instance: AsyncInstance, loop: asyncio.AbstractEventLoop) -> None:
        def awaited(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        self.__dict__.update(instance.__dict__)
        self._is_closed = True  # dropped while the instance stays open
        self._inner, self._loop, self._awaited = instance, loop, awaited
        self._event_loop = None  # any thread may use the view
        self.works_as_user = instance.works_as_user
        self.poison = PoisonDetector(self.connection, self.clock, self._disable_queue, self.events, self.tally)
        self.poison.share_counts_with(instance.poison)
        self.notifier = ThreadNotifier(instance.notifier, awaited)  # type: ignore[assignment] # has its methods

    def is_of(self, instance: AsyncInstance, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this is the view of that instance in that event loop, and the instance was not reopened."""
        return self._inner is instance and self._loop is loop and self.notifier.is_of(instance.notifier)  # type: ignore[attr-defined]

    @override
    @contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        """Lend a connection of the pool to this thread alone, until the block ends."""
        with _enter_in_loop(self._inner.connection(), self._awaited) as lent, blocking(lent) as connection:
            try:
                yield connection
            finally:
                if session_locks.may_keep_locks(connection):
                    release_group_locks(connection)

    @override
    def close(self) -> None:
        """Do nothing: the instance is closed where it was opened."""

    @override
    def renew(self) -> None:
        """Replace the connections that were lost with the server."""
        self._awaited(self._inner.renew())

    @override
    def count_received(self, queue_id: int, messages: int, *, filtered: bool) -> None:
        """Count the messages of a RECEIVE."""
        self._loop.call_soon_threadsafe(lambda: self._inner.count_received(queue_id, messages, filtered=filtered))

    @override
    def count_polled(self, found: bool) -> None:
        """Note whether GET CONVERSATION GROUP returned a group."""
        self._loop.call_soon_threadsafe(self._inner.count_polled, found)

    @override
    def sleep(self, reader: Any, seconds: float) -> bool:
        """Wait until the reader is woken, at most `seconds`. Return whether the queue may have been altered."""
        return self._awaited(self._inner.sleep(reader, seconds))


class ThreadNotifier:
    """A blocking view of the notifier of an asyncio instance."""

    def __init__(self, inner: Notifier, awaited: Awaited[Any]) -> None:
        self._inner, self._awaited = inner, awaited
        self.is_registered, self.count_asleep = inner.is_registered, inner.count_asleep
        self.service_changes = inner.service_changes

    def is_of(self, notifier: Notifier) -> bool:
        """Return whether this is the view of that notifier."""
        return self._inner is notifier

    @contextmanager
    def listening(self, queue_id: int, *, filtered: bool) -> Iterator[WaitingReader]:
        """Register a reader for the block, and wake it when a message was sent to the queue."""
        with _enter_in_loop(self._inner.listening(queue_id, filtered=filtered), self._awaited) as reader:
            yield reader

    def keep_waiting(self, queue_id: int, reader: WaitingReader) -> bool:
        """Keep waiting after a message. Return False if a message may have been missed."""
        return bool(self._awaited(self._inner.keep_waiting(queue_id, reader)))

    def wake_another(self, queue_id: int) -> None:
        """Wake a sleeping reader, which polls for more messages while the caller processes one."""
        self._awaited(self._inner.wake_another(queue_id))


@contextmanager
def _enter_in_loop(entered: AbstractAsyncContextManager[T], awaited: Awaited[Any]) -> Iterator[T]:
    """Enter and leave an asynchronous context manager from a thread, in the event loop."""

    async def enter() -> T:
        return await entered.__aenter__()

    async def leave() -> None:
        await entered.__aexit__(None, None, None)

    value: T = awaited(enter())
    try:
        yield value
    finally:
        awaited(leave())
