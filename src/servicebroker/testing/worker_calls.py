"""Workers in the double: after each commit they process all messages, then the test continues."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from servicebroker.model.arguments import check_count
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers.schedules import is_of_schedule
from servicebroker.model.messages import Message
from servicebroker.model.wording import short_repr
from servicebroker.model.workers import ExpectedType, Worker
from servicebroker.operations.schedules import KeepSchedule, TakeTurn
from servicebroker.testing.catalog import Broker, Queue
from servicebroker.testing.definitions import find_queue

T = TypeVar("T")

_ENDED_ERRORS = {8426, 8427}  # errors of END CONVERSATION if the handler has ended it already


def check(broker: Broker, workers: Iterable[Worker], concurrency: int, *, is_async: bool) -> None:
    """Refuse workers that the real instance refuses.

    Raises:
        BrokerError: 15151 no such queue; 402 an invalid `concurrency`, an object that is not a worker, a worker without
            handlers, with handlers of the other kind, or without one of a type that initiators send.
    """
    check_count("concurrency", concurrency)
    for worker in workers:
        if not isinstance(worker, Worker):
            raise BrokerError(402, "worker", short_repr(worker), "a servicebroker.Worker")
        worker.check(is_async=is_async)
        worker.check_handles(_expected_types(broker, find_queue(broker, worker.queue)))


def _expected_types(broker: Broker, queue: Queue) -> Iterator[ExpectedType]:
    """Yield the message types that only initiators send to the services of a queue."""
    for service in broker.services.values():
        if service.queue is queue:
            for contract in service.contracts.values():
                for message_type, (_, by_initiator, by_target) in contract.usages.items():
                    if by_initiator and not by_target:
                        yield ExpectedType(message_type, contract.name, service.name)


def keep_schedules(run: Callable[[KeepSchedule], object], workers: Iterable[Worker]) -> None:
    """Begin the schedules of workers."""
    for worker in workers:
        for name, schedule in worker.schedules.items():
            run(KeepSchedule(worker.queue, name, schedule))


def group_messages(messages: Iterable[Message]) -> list[list[Message]]:
    """Return the messages of each group as a list. Messages of a group are adjacent."""
    return [list(group_of_messages) for _, group_of_messages in groupby(messages, attrgetter("conversation_group_id"))]


async def handle(worker: Worker, transaction: Any, messages: list[Message]) -> None:
    """Call the handlers in the order of the messages, and end conversations that the other side has ended."""
    if is_of_schedule(messages[0]):  # its group has no other conversation
        for message in messages:
            await _fire(worker, transaction, message)
        return
    ended = set()
    for handler, consecutive in groupby(messages, worker.handler_of):
        open_messages = [message for message in consecutive if message.conversation_handle not in ended]
        for argument in [open_messages] if worker.batch and open_messages else open_messages:
            if handler is not None:
                await _await_if_needed(handler(transaction, argument))
        for message in open_messages:
            if message.is_end_dialog or message.is_error:
                ended.add(message.conversation_handle)
                try:
                    await _await_if_needed(transaction.end_conversation(message.conversation_handle))
                except BrokerError as refused:
                    if refused.number not in _ENDED_ERRORS:
                        raise


async def _fire(worker: Worker, transaction: Any, message: Message) -> None:
    """Call the handler of a schedule for its due time."""
    firing = await _await_if_needed(transaction.run(TakeTurn.of(message)))
    if firing is not None and (argument := firing.given(message)) is not None:
        handler = worker.handler_of_schedule(firing.name)
        await _await_if_needed(handler(transaction, argument if worker.batch is None else [argument]))


async def _await_if_needed(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise InstanceError("A handler awaits something of asyncio: use servicebroker.testing.open_async.")
