"""The loop of a reader: RECEIVE, call the procedure, COMMIT; repeat until the queue stays empty.

**The flow.** `process` waits for messages and drains the queue each time that some have arrived. `_drain` borrows one
connection and runs transactions on it until the queue is empty. Each transaction is one of three:

* `_take`: RECEIVE of one group. An exception of the procedure rolls back, and leaves `process`.
* `_take_groups`: messages of many groups, each with a savepoint.
* `take` of the failure handler: the policy decides about an exception (retry, dead letter and so on).

**The rules.**

* COMMIT is deferred: it is sent with the next RECEIVE, in one round trip. If the server refuses it, the next RECEIVE
  raises. If no RECEIVE follows, `_commit` sends COMMIT before the connection returns to the pool.
* If the first RECEIVE of a drain leaves groups in the queue, it wakes another reader.
* During a pause of the rate limit, a reader holds no connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from servicebroker.api.aio.failure_policy import AsyncFailureHandler
from servicebroker.api.aio.throttle import AsyncThrottle
from servicebroker.api.aio.transaction import AsyncTransaction, translate_errors
from servicebroker.api.aio.turns import Procedure, hold, link_turns
from servicebroker.api.shared import tracing
from servicebroker.model.errors import InstanceError
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message
from servicebroker.model.poison import Policy
from servicebroker.operations.receive import Receive
from servicebroker.store.aio.concurrency import StopDetector
from servicebroker.store.aio.direct import AsyncDirectConnection
from servicebroker.store.server_errors import is_transaction_conflict

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase


async def process(
    database: AsyncDatabase,
    operation: Receive,
    procedure: Procedure,
    *,
    poison: Policy | None = None,
    stopping: Callable[[], bool] | None = None,
    failure_handler: AsyncFailureHandler | None = None,
    throttle: AsyncThrottle | None = None,
) -> int:
    """Run `Database.process` for a RECEIVE, and return the number of messages taken.

    Args:
        poison: the policy for failures. Without it and `failure_handler`, an exception of the procedure is raised.
        stopping: called between two transactions; True ends the loop.
        failure_handler: that of a reader that calls this repeatedly, instead of `poison`.
        throttle: the limits of the worker, which may pause the loop between two transactions.
    """
    if poison is not None:
        failure_handler = AsyncFailureHandler(database, operation.queue, poison, exits=stopping is None)
    should_stop = stopping or _never
    receive, total = operation.at_once, 0

    async def drain() -> int:
        nonlocal total
        processed, shall_repeat = await drain_within_limits()
        while shall_repeat and not should_stop():
            if throttle is not None:
                await throttle.pause()
            more, shall_repeat = await drain_within_limits()
            processed += more
        total += processed
        return processed

    async def drain_within_limits() -> tuple[int, bool]:
        if throttle is None:
            return await _drain(database, receive, procedure, failure_handler, should_stop, None)
        queue_id = (await database._find(operation.queue)).queue_id
        if not await throttle.begin(queue_id):
            return 0, True
        processed, shall_repeat = await _drain(database, receive, procedure, failure_handler, should_stop, throttle)
        await throttle.end(queue_id, processed)
        return processed, shall_repeat

    await database._waiting(operation.queue, drain, operation.timeout_s, filtered=False, enough=lambda _: should_stop())
    return total


def _never() -> bool:
    return False


async def _drain(
    database: AsyncDatabase,
    operation: Receive,
    procedure: Procedure,
    failure_handler: AsyncFailureHandler | None,
    stopping: Callable[[], bool],
    throttle: AsyncThrottle | None,
) -> tuple[int, bool]:
    """Process the messages of the queue on one connection, until none is left.

    Returns the number of messages, and whether to call this again: the connection was lost, or the throttle requires
    a pause.
    """
    total = 0
    queue = await database._find(operation.queue)
    has_woken = False

    async def wake_and_process(transaction: AsyncTransaction, messages: list[Message]) -> object:
        nonlocal has_woken
        if not has_woken and transaction._may_have_more_groups:
            has_woken = True
            await database.instance.notifier.wake_another(queue.queue_id)
        return await procedure(transaction, messages)

    async with database.instance.connection() as connection, translate_errors(runs_application_sql=True):

        async def process_next() -> int:
            if throttle is None:
                return await take_next()
            processed = 0
            try:
                processed = await take_next()
            finally:
                throttle.settle(processed)
            return processed

        async def take_next() -> int:
            run = procedure if total else wake_and_process
            if failure_handler is not None:
                return await failure_handler.take(connection, operation, run)
            if operation.groups > 1:
                return await _take_groups(database, connection, operation, run)
            return await _take(database, connection, operation, run)

        if throttle is not None and not await throttle.enter(connection, queue.queue_id):
            return 0, True
        try:
            while throttle is None or throttle.take():
                processed = await process_next()
                if not processed:
                    break
                total += processed
                if connection.closed:
                    return total, True
                if stopping():
                    await _commit(database, connection, failure_handler)
                    break
            else:
                await _commit(database, connection, failure_handler)
                return total, True
            if failure_handler is not None:
                await failure_handler.sweep(connection)
        except (psycopg.Error, InstanceError):
            if failure_handler is not None:
                await connection.close()  # no message caused it; perhaps a procedure has changed a session setting
            raise
        finally:
            if throttle is not None:
                await throttle.leave(connection, queue.queue_id)
            database.instance.poison.note_unknown_commit(connection)
    return total, False


async def _commit(
    database: AsyncDatabase, connection: AsyncDirectConnection, failure_handler: AsyncFailureHandler | None
) -> None:
    """Send the deferred COMMIT, since no RECEIVE follows."""
    if failure_handler is not None:
        await failure_handler.commit(connection)
        return
    async with AsyncTransaction(database, connection):
        pass


async def _take(
    database: AsyncDatabase, connection: AsyncDirectConnection, operation: Receive, procedure: Procedure
) -> int:
    async with AsyncTransaction(database, connection) as transaction:
        messages = await transaction.run(operation)
        if messages:
            stop = StopDetector(exits=True)
            try:
                with tracing.current(transaction._processing):
                    check_result(await procedure(transaction, messages))
            except BaseException as problem:
                transaction._rollback_counts = not stop.is_stop(problem)
                raise
            await transaction._defer_commit()
    return len(messages)


async def _take_groups(
    database: AsyncDatabase, connection: AsyncDirectConnection, operation: Receive, procedure: Procedure
) -> int:
    """Process many groups in one transaction. If one fails, commit those before it, and raise its exception.

    A deadlock, a serialization failure, a lost connection or a stop rolls back all of them.
    """
    processed, failure = 0, None
    async with AsyncTransaction(database, connection) as transaction:
        for index, turn in enumerate(link_turns(await hold(transaction, operation))):
            if not await turn.begin(is_first=index == 0):
                continue
            stop = StopDetector(exits=True)
            try:
                await turn.run(procedure)
            except BaseException as problem:
                transaction._rollback_counts = not stop.is_stop(problem)
                is_of_group = (
                    isinstance(problem, Exception)
                    and transaction._rollback_counts
                    and not is_transaction_conflict(problem)
                )
                if not processed or not is_of_group or transaction._has_finished():
                    raise
                failure = problem
                await turn.put_back()
                break
            processed += len(turn.messages)
            if transaction._has_finished():
                break
        if processed and failure is None:  # otherwise no RECEIVE follows, and COMMIT is sent at once
            await transaction._defer_commit()
    if failure is not None:
        raise failure
    return processed
