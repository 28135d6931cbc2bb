"""Workers in the double: whenever something is committed, they do what there is to do, and then the test goes on."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from servicebroker.model.arguments import check_count
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message
from servicebroker.model.wording import shown
from servicebroker.model.workers import Worker

T = TypeVar("T")

_ENDED = {8426, 8427}  # what END CONVERSATION says of a conversation that its handler has ended


def check(workers: Iterable[Worker], concurrency: int, *, is_async: bool) -> None:
    """Refuse what the real one refuses.

    Raises:
        BrokerError: 402 no worker, one without handlers, or with handlers of the other kind.
    """
    check_count("concurrency", concurrency)
    for worker in workers:
        if not isinstance(worker, Worker):
            raise BrokerError(402, "worker", shown(worker), "a servicebroker.Worker")
        worker.check(is_async=is_async)


def by_group(messages: Iterable[Message]) -> list[list[Message]]:
    """The messages of each group, which stand one after the other."""
    return [list(own) for _, own in groupby(messages, attrgetter("conversation_group_id"))]


async def handle(worker: Worker, transaction: Any, messages: list[Message]) -> None:
    """Call the handlers in the messages' order, and end what the other side has ended.

    What a handler raises is the test's: the transaction is rolled back, no policy is asked.
    """
    ended = set()
    for handler, run in groupby(messages, worker.handler_of):
        theirs = [message for message in run if message.conversation_handle not in ended]
        for given in [theirs] if worker.batch and theirs else theirs:
            if handler is not None:
                result = handler(transaction, given)
                check_result(await result if worker.is_async else result)
        for message in theirs:
            if message.is_end_dialog or message.is_error:
                ended.add(message.conversation_handle)
                try:
                    await _now(transaction.end_conversation(message.conversation_handle))
                except BrokerError as refused:
                    if refused.number not in _ENDED:
                        raise


async def _now(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def driven(work: Coroutine[Any, Any, T]) -> T:
    """The result of what never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise InstanceError("A handler waits for something of asyncio: use servicebroker.testing.open_async.")
