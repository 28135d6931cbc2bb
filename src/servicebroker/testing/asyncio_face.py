"""The double for applications of asyncio: the same instance, database and transaction, whose methods are awaited."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from servicebroker.model.arguments import check_groups, check_procedure
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message
from servicebroker.model.workers import Worker
from servicebroker.operations.request import Request
from servicebroker.testing import definitions, requesting, working
from servicebroker.testing.instance import Clock, Database, Instance, Pipeline, Transaction

AsyncConnect = Callable[[], Awaitable[Any]]


class AsyncInstance:
    """An instance in memory, as `servicebroker.AsyncInstance`.

    Attributes:
        clock: gives every rule its time; it stands still until it is told to jump.
        events: what an administrator wants to know.
    """

    def __init__(self, clock: Clock | None = None, connect: AsyncConnect | None = None) -> None:
        self._inner = Instance(clock)
        self._connect = connect
        self._workers: list[tuple[AsyncDatabase, Worker]] = []
        self._is_working = False
        self.clock, self.events = self._inner.clock, self._inner.events

    async def database(self, name: str, *, create: bool = False) -> AsyncDatabase:
        """The broker database of that name; made when it is missing and `create` is set."""
        return AsyncDatabase(self, self._inner.database(name, create=create))

    async def upkeep(self) -> None:
        """What the background of a real instance does now and then."""
        self._inner.upkeep()
        await self._work()

    async def close(self) -> None:
        """Nothing to stop."""

    async def _work(self) -> None:
        """What the workers have to do now, until they have nothing left."""
        if self._is_working or self._inner._memory.transactions:
            return
        self._is_working = True
        try:
            while any([await database._work_once(worker) for database, worker in self._workers]):
                pass
        finally:
            self._is_working = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Awaited:
    """The methods of a database or transaction, awaited; its values as they are."""

    def __init__(self, inner: Database | Transaction) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name.startswith("_") or not inspect.ismethod(found):
            return found

        async def awaited(*arguments: Any, **named: Any) -> Any:
            result = found(*arguments, **named)
            await self._after()
            return result

        return awaited

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._inner)})

    async def _after(self) -> None:
        """A method has ended."""


class AsyncDatabase(_Awaited):
    """One broker database, as `servicebroker.AsyncDatabase`."""

    def __init__(self, instance: AsyncInstance, inner: Database) -> None:
        super().__init__(inner)
        self.instance = instance

    async def _after(self) -> None:
        await self.instance._work()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """A transaction: committed at the end of the block, rolled back by an exception."""
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
        await self.instance._work()

    async def process(
        self,
        queue: str,
        procedure: Callable[[AsyncTransaction, list[Message]], Awaitable[object]],
        *,
        top: int | None = 1,
        groups: int = 1,
        wait: float = 0.0,
    ) -> int:
        """Await `procedure(transaction, messages)` on what RECEIVE takes, each time as a transaction."""
        check_procedure(procedure, may_be_async=True)
        check_groups(groups)
        done = 0
        while True:
            async with self.transaction() as transaction:
                messages = await transaction.receive(queue, top=top, groups=groups, wait=wait)
                if not messages:
                    return done
                for own in working.by_group(messages):
                    check_result(await procedure(transaction, own))
            done += len(messages)

    async def request(self, *given: Any, **named: Any) -> Message:
        """Send a request, let the workers answer, and return the answer."""
        operation = Request(*given, **named)
        handle = requesting.ask(self._inner, operation)
        await self.instance._work()
        return requesting.wait(self._inner, handle, operation.timeout)  # type: ignore[arg-type]

    async def process_late_answers(
        self, queue: str, procedure: Callable[[AsyncTransaction, list[Message]], Awaitable[object]]
    ) -> int:
        """Await `procedure(transaction, messages)` on each late answer in a queue, and end its conversation."""
        check_procedure(procedure, may_be_async=True)
        found = definitions.find_queue(self._inner.broker, queue)  # type: ignore[union-attr]
        late = requesting.late_answers_to_handle(self._inner, found)  # type: ignore[arg-type]
        for handle in late:
            async with self.transaction() as transaction:
                messages = await transaction.receive(queue, conversation_handle=handle)
                check_result(await procedure(transaction, messages))
                requesting.end_unless_ended(transaction._inner, handle)
        return len(late)

    @asynccontextmanager
    async def working(self, *workers: Worker, concurrency: int = 1) -> AsyncIterator[None]:
        """Run workers beside the block: whenever something is committed, they do at once what there is to do."""
        working.check(workers, concurrency, is_async=True)
        for worker in workers:
            definitions.find_queue(self._inner.broker, worker.queue)  # type: ignore[union-attr]
        added = [(self, worker) for worker in workers]
        self.instance._workers += added
        try:
            await self.instance._work()
            yield
        finally:
            self.instance._workers = [one for one in self.instance._workers if one not in added]

    async def _work_once(self, worker: Worker) -> bool:
        async with self.transaction() as transaction:
            messages = await transaction.receive(worker.queue, top=worker.batch or 1, groups=worker.groups)
            for own in working.by_group(messages):
                await working.handle(worker, transaction, own)
        return bool(messages)


class AsyncTransaction(_Awaited):
    """A transaction, as `servicebroker.AsyncTransaction`; its connection is what the test has given."""

    def __init__(self, inner: Transaction, connection: Any) -> None:
        super().__init__(inner)
        self._connection = connection

    @property
    def connection(self) -> Any:
        """What `connect` has returned for this transaction."""
        return self._inner.connection if self._connection is None else self._connection

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[Pipeline]:
        """SENDs of the block wait, and leave together."""
        with self._inner.pipeline() as sent:  # type: ignore[union-attr]
            yield sent

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A savepoint: rolled back when the block raises; the transaction lives."""
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
        clock: another one.
        connect: as in `open`; it is awaited, and so are the methods of what it returns.
    """
    return AsyncInstance(clock, connect)
