"""A procedure that is run on what RECEIVE takes, each time as a transaction; COMMIT travels with the next RECEIVE."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from servicebroker.api.aio.transaction import AsyncTransaction, translated
from servicebroker.model.messages import Message
from servicebroker.store.aio.direct import AsyncDirectConnection

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase

Procedure: TypeAlias = Callable[[AsyncTransaction, list[Message]], Awaitable[object]]


async def drain(database: AsyncDatabase, queue: str, procedure: Procedure, top: int | None) -> int:
    """Process what the queue has, on one connection: how many messages those were."""
    done = 0
    async with database.instance.connection() as connection, translated():
        while taken := await _take(database, connection, queue, procedure, top):
            done += taken
    return done


async def _take(
    database: AsyncDatabase, connection: AsyncDirectConnection, queue: str, procedure: Procedure, top: int | None
) -> int:
    async with AsyncTransaction(database, connection) as transaction:
        messages = await transaction.receive(queue, top=top)
        if messages:
            await procedure(transaction, messages)
            transaction._let_commit_travel()
    return len(messages)
