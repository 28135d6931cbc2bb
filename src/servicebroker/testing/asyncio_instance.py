"""The in-memory double for asyncio: instance, database and transaction with asynchronous methods."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from servicebroker.model.arguments import check_groups, check_policy, check_procedure
from servicebroker.model.handlers import check_result
from servicebroker.model.handlers.typed import typed_procedure
from servicebroker.model.messages import Message
from servicebroker.model.poison import Policy
from servicebroker.model.workers import Worker
from servicebroker.operations.receive import Receive
from servicebroker.operations.request import Request
from servicebroker.overriding import override
from servicebroker.testing import definitions, failures, requests, worker_calls
from servicebroker.testing.instance import Clock, Database, Instance, Pipeline, Transaction

AsyncConnect = Callable[[], Awaitable[Any]]


class AsyncInstance:
    """An instance in memory, with the methods of `servicebroker.AsyncInstance`.

    Attributes:
        clock: returns the time for timers, lifetimes and delays; it stands still until a test moves it.
        events: events for an administrator.
    """

    def __init__(self, clock: Clock | None = None, connect: AsyncConnect | None = None) -> None:
        self._inner = Instance(clock)
        self._connect = connect
        self._workers: list[tuple[AsyncDatabase, Worker, bool]] = []
        self._is_working = False
        self.clock, self.events = self._inner.clock, self._inner.events

    async def database(self, name: str, *, create: bool = False) -> AsyncDatabase:
        """Return the broker database of that name. With `create`, a missing one is created."""
        return AsyncDatabase(self, self._inner.database(name, create=create))

    async def upkeep(self) -> None:
        """Do the work of a real instance's maintenance: everything that is due by the clock."""
        self._inner.upkeep()
        await self._run_workers()

    async def pass_time(self, **by: float) -> None:
        """Move the clock forward in steps, as `Instance.pass_time`."""
        end = self.clock() + timedelta(**by)
        while (due := self._inner._next_due()) is not None and due <= end:
            self.clock.jump_to(due)
            await self.upkeep()
        self.clock.jump_to(end)
        await self.upkeep()

    async def close(self) -> None:
        """Do nothing: an instance in memory has nothing to stop."""

    async def _run_workers(self) -> None:
        """Run the workers until their queues are empty."""
        if self._is_working or self._inner._memory.transactions:
            return
        self._is_working = True
        try:
            while any([await database._run_worker_once(worker, raises) for database, worker, raises in self._workers]):
                pass
        finally:
            self._is_working = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _AwaitableMethods:
    """A wrapper that makes the methods of a database or transaction asynchronous."""

    def __init__(self, inner: Database | Transaction) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name.startswith("_") or not inspect.ismethod(attribute):
            return attribute

        async def awaited(*arguments: Any, **keywords: Any) -> Any:
            result = attribute(*arguments, **keywords)
            await self._after_method()
            return result

        return awaited

    @override
    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._inner)})

    async def _after_method(self) -> None:
        """Run the workers after a method, if the object is a database."""


class AsyncDatabase(_AwaitableMethods):
    """One broker database, as `servicebroker.AsyncDatabase`."""

    def __init__(self, instance: AsyncInstance, inner: Database) -> None:
        super().__init__(inner)
        self.instance = instance

    @override
    async def _after_method(self) -> None:
        await self.instance._run_workers()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Begin a transaction. The end of the block commits it, an exception rolls it back."""
        connect = self.instance._connect
        connection = await connect() if connect else None
        try:
            with Database.transaction(self._inner) as inner:  # type: ignore[arg-type]
                yield AsyncTransaction(inner, connection)
                if connection is not None:
                    await connection.commit()
        except BaseException:
            if connection is not None:
                await connection.rollback()
            raise
        finally:
            if connection is not None:
                await connection.close()
        await self.instance._run_workers()

    async def process(
        self,
        queue: str,
        procedure: Callable[[AsyncTransaction, list[Any]], Awaitable[object]],
        *,
        top: int | None = 1,
        groups: int = 1,
        wait: float = 0.0,
        poison: Policy | None = None,
    ) -> int:
        """Await `procedure(transaction, messages)` for the messages of each RECEIVE, each in a transaction."""
        check_procedure(procedure, may_be_async=True)
        check_groups(groups)
        check_policy(poison)
        procedure = typed_procedure(procedure)
        processed = 0
        while poison is not None:
            operation = Receive(queue, top=top, groups=groups, wait=wait)
            taken = await self._take(operation, partial(_called, procedure), poison)
            if not taken:
                return processed
            processed += taken
        while True:
            async with self.transaction() as transaction:
                messages = await transaction.receive(queue, top=top, groups=groups, wait=wait)
                if not messages:
                    return processed
                for group_of_messages in worker_calls.group_messages(messages):
                    check_result(await procedure(transaction, group_of_messages))
            processed += len(messages)

    async def request(self, *arguments: Any, **keywords: Any) -> Message:
        """Send a request, let the workers answer, and return the answer."""
        operation = Request(*arguments, **keywords)
        handle = requests.send_request(self._inner, operation)
        await self.instance._run_workers()
        return requests.receive_answer(self._inner, handle, operation.timeout)  # type: ignore[arg-type]

    async def process_late_answers(
        self, queue: str, procedure: Callable[[AsyncTransaction, list[Message]], Awaitable[object]]
    ) -> int:
        """Await `procedure(transaction, messages)` for each late answer in a queue, and end its conversation."""
        check_procedure(procedure, may_be_async=True)
        queue_object = definitions.find_queue(self._inner.broker, queue)  # type: ignore[union-attr]
        handles = requests.late_answers_to_handle(self._inner, queue_object)  # type: ignore[arg-type]
        for handle in handles:
            async with self.transaction() as transaction:
                messages = await transaction.receive(queue, conversation_handle=handle)
                check_result(await procedure(transaction, messages))
                requests.end_unless_ended(transaction._inner, handle)
        return len(handles)

    @asynccontextmanager
    async def working(self, *workers: Worker, concurrency: int = 1, raises: bool = False) -> AsyncIterator[None]:
        """Run workers for the block, as `Database.working`."""
        worker_calls.check(self._inner.broker, workers, concurrency, is_async=True)  # type: ignore[union-attr]
        worker_calls.keep_schedules(self._inner.run, workers)
        added = [(self, worker, raises) for worker in workers]
        self.instance._workers += added
        try:
            await self.instance._run_workers()
            yield
        finally:
            self.instance._workers = [entry for entry in self.instance._workers if entry not in added]

    async def _run_worker_once(self, worker: Worker, raises: bool) -> bool:
        if not raises:
            operation = Receive.of_worker(worker)
            return bool(await self._take(operation, partial(worker_calls.handle, worker), worker.poison))
        async with self.transaction() as transaction:
            messages = await transaction.run(Receive.of_worker(worker))
            for group_of_messages in worker_calls.group_messages(messages):
                await worker_calls.handle(worker, transaction, group_of_messages)
        return bool(messages)

    async def _take(self, operation: Receive, procedure: Callable[..., Awaitable[object]], policy: Policy) -> int:
        @asynccontextmanager
        async def begin() -> AsyncIterator[tuple[AsyncTransaction, Transaction]]:
            async with self.transaction() as transaction:
                yield transaction, transaction._inner  # type: ignore[misc]

        return await failures.take(self._inner, operation, procedure, policy, begin)  # type: ignore[arg-type]


async def _called(procedure: Callable[..., Awaitable[object]], *work: Any) -> None:
    check_result(await procedure(*work))


class AsyncTransaction(_AwaitableMethods):
    """A transaction, as `servicebroker.AsyncTransaction`. Its connection comes from the test."""

    def __init__(self, inner: Transaction, connection: Any) -> None:
        super().__init__(inner)
        self._connection = connection

    @property
    def connection(self) -> Any:
        """The connection that `connect` has returned for this transaction."""
        return self._inner.connection if self._connection is None else self._connection

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[Pipeline]:
        """Buffer the SENDs of the block, and send them together, as `Transaction.pipeline`."""
        with self._inner.pipeline() as sent:  # type: ignore[union-attr]
            yield sent

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Set a savepoint, as `Transaction.savepoint`."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._inner.savepoint())  # type: ignore[union-attr]
            if self._connection is not None:
                await self._connection.execute("savepoint servicebroker")
                stack.push_async_exit(self._end_savepoint)
            yield

    async def _end_savepoint(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self._connection.execute("rollback to savepoint servicebroker")
        await self._connection.execute("release savepoint servicebroker")


def open_async(*, clock: Clock | None = None, connect: AsyncConnect | None = None) -> AsyncInstance:
    """Open an instance in memory for asyncio: `async with servicebroker.testing.open_async() as instance`.

    Args:
        clock: a clock that instances share. Default: a new one.
        connect: as in `open`, but asynchronous, with a result whose methods are asynchronous.
    """
    return AsyncInstance(clock, connect)
