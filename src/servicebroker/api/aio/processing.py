"""A procedure that is run on what RECEIVE takes, each time as a transaction; COMMIT travels with the next RECEIVE."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from servicebroker.api import tracing
from servicebroker.api.aio.guarded import AsyncGuard
from servicebroker.api.aio.transaction import AsyncTransaction, translated
from servicebroker.model.messages import Message
from servicebroker.model.poison import Policy
from servicebroker.store.aio.direct import AsyncDirectConnection

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase

Procedure: TypeAlias = Callable[[AsyncTransaction, list[Message]], Awaitable[object]]


async def process(
    database: AsyncDatabase,
    queue: str,
    procedure: Procedure,
    *,
    top: int | None,
    wait: float,
    poison: Policy | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """`Database.process`, which also ends between two transactions once `stopping` says so."""
    guard = None if poison is None else AsyncGuard(database, queue, poison)
    done = 0

    async def once() -> int:
        nonlocal done
        taken = await _drain(database, queue, procedure, top, guard, stopping)
        done += taken
        return taken

    await database._waiting(queue, once, 0 if top == 0 else wait, choosy=False, enough=lambda _: stopping())
    return done


async def _drain(
    database: AsyncDatabase,
    queue: str,
    procedure: Procedure,
    top: int | None,
    guard: AsyncGuard | None,
    stopping: Callable[[], bool],
) -> int:
    """Process what the queue has, on one connection: how many messages those were."""
    done = 0
    there = await database._find(queue)

    async def first(transaction: AsyncTransaction, messages: list[Message]) -> None:
        await database.instance.doorbell.share(there.queue_id)
        await procedure(transaction, messages)

    async with database.instance.connection() as connection, translated(also_theirs=True):

        async def take() -> int:
            if guard is not None:
                return await guard.take(connection, top, procedure if done else first)
            return await _take(database, connection, queue, procedure if done else first, top)

        try:
            while taken := await take():
                done += taken
                if stopping():
                    async with AsyncTransaction(database, connection):
                        pass  # the last COMMIT, which would have travelled with the next RECEIVE
                    break
            if guard is not None:
                await guard.rest(connection)
        finally:
            database.instance.poison.unanswered(connection)
    return done


async def _take(
    database: AsyncDatabase, connection: AsyncDirectConnection, queue: str, procedure: Procedure, top: int | None
) -> int:
    async with AsyncTransaction(database, connection) as transaction:
        messages = await transaction.receive(queue, top=top)
        if messages:
            with tracing.current(transaction._processing):
                await procedure(transaction, messages)
            transaction._let_commit_travel()
    return len(messages)
