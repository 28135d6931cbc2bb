"""SENDs of a pipeline: one statement for all those whose cached path leads to one queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import count, groupby, takewhile
from typing import NamedTuple, TypeAlias
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, Channel, Usage
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.send import known_usage
from servicebroker.engine.conversation.validation import accepts
from servicebroker.model.errors import BrokerError
from servicebroker.operations.send import Send, SendBatch
from servicebroker.store.server_clock import Clock
from servicebroker.store.statements import Bodies, Statement, Steps

SendBatchVerb: TypeAlias = Callable[[SendBatch], Steps[int]]


class PipelinedSend(NamedTuple):
    """A pipelined SEND, its arguments checked. `place` is its position in its pipeline, from 0; `at`: its delay."""

    place: int
    handle: UUID
    message_type: str
    at: datetime | None
    content: bytes | None


def checked_send(place: int, operation: Send[int], maximum_body: int, clock: Clock) -> PipelinedSend:
    """Return a pipelined SEND.

    Raises:
        BrokerError: what SEND says of its arguments.
    """
    content = operation.content(maximum_body)
    assert isinstance(operation.handle, UUID)
    due = operation.due(clock()) if operation.is_delayed else None
    return PipelinedSend(place, operation.handle, operation.message_type, due, content)


def send_pipelined(
    catalog: Catalog, sends: Sequence[PipelinedSend], send_batch: SendBatchVerb, now: datetime
) -> Steps[dict[int, int]]:
    """SEND all of them, as if one after the other. Returns the sequence numbers by place.

    `send_batch` is the verb for SENDs whose path is not cached, or leads to another instance.

    Raises:
        BrokerError: as `send`, naming the SEND that was refused. The SENDs before it are done.
    """
    numbers: dict[int, int] = {}
    left = sends
    while left := (yield from _send_known(catalog, left, now, numbers)):
        channel = catalog.channels.get(left[0].handle)
        is_remote = channel is not None and not channel.far_queue_id
        # a message that a local peer refuses fails the conversation, and the next one is refused: so send one by one
        yield from _send_run(_first_run(left) if is_remote else left[:1], send_batch, numbers)
        left = [send for send in left if send.place not in numbers]
    return numbers


def send_in_runs(sends: Sequence[PipelinedSend], send_batch: SendBatchVerb) -> Steps[dict[int, int]]:
    """SEND without cached paths: one verb for messages of one type on one conversation.

    Raises:
        BrokerError: as `send_pipelined`.
    """
    numbers: dict[int, int] = {}
    while left := [send for send in sends if send.place not in numbers]:
        yield from _send_run(_first_run(left), send_batch, numbers)
    return numbers


def _first_run(sends: Sequence[PipelinedSend]) -> Sequence[PipelinedSend]:
    """Return the first SEND, and those of its type and delay that follow it on its conversation."""
    first = sends[0]
    same = (send for send in sends if send.handle == first.handle)
    return list(takewhile(lambda send: send.message_type == first.message_type and send.at == first.at, same))


def _send_run(run: Sequence[PipelinedSend], send_batch: SendBatchVerb, numbers: dict[int, int]) -> Steps[None]:
    """SEND messages of one type on one conversation, and record their numbers."""
    first = run[0]
    try:
        number = yield from send_batch(
            SendBatch(first.handle, first.message_type, [send.content or b"" for send in run], at=first.at)
        )
    except BrokerError as refused:
        raise refused.of_send(first.place, f"'{first.message_type}' on the conversation {first.handle}") from None
    numbers.update({send.place: number + i for i, send in enumerate(run)})


class _Run(NamedTuple):
    """SENDs of one type on one conversation."""

    channel: Channel
    message_type: str
    usage: Usage
    sends: list[PipelinedSend]


def _send_known(
    catalog: Catalog, sends: Sequence[PipelinedSend], now: datetime, numbers: dict[int, int]
) -> Steps[list[PipelinedSend]]:
    """SEND those before the first whose path is not cached or not free, and record numbers. Returns the others."""
    runs_by_queue: dict[tuple[int, int], dict[UUID, list[_Run]]] = defaultdict(lambda: defaultdict(list))
    for (handle, message_type, at), given in groupby(sends, lambda send: send[1:4]):
        channel, waiting = catalog.channels.get(handle), list(given)
        usage = channel and known_usage(channel, message_type)
        if channel is None or usage is None or at is not None:
            break
        taken = waiting[: _taken(usage, channel.is_initiator, waiting)]
        runs = runs_by_queue[channel.far_queue_id, channel.catalog_version][handle]
        if runs and runs[-1].message_type == message_type:
            runs[-1].sends.extend(taken)
        elif taken:
            runs.append(_Run(channel, message_type, usage, taken))
        if len(taken) < len(waiting):
            break
    for (queue_id, version), conversations in runs_by_queue.items():
        if runs := [run for handle in sorted(conversations) for run in conversations[handle]]:
            yield from _send_many(catalog, queue_id, version, runs, now, numbers)
    return [send for send in sends if send.place not in numbers]


def _taken(usage: Usage, is_initiator: bool, sends: Sequence[PipelinedSend]) -> int:
    """Return how many of them the peer takes before the first that it refuses."""
    refused = (place for place, send in enumerate(sends) if not accepts(usage, is_initiator, send.content))
    return next(refused, len(sends))


def _send_many(
    catalog: Catalog, queue_id: int, version: int, runs: Sequence[_Run], now: datetime, numbers: dict[int, int]
) -> Steps[None]:
    """SEND to one queue, whose peers are unchanged since that version. Runs are ordered by handle, for locking."""
    handles: list[UUID] = []
    counts: list[int] = []
    which, firsts, starts, start = [], [], [], 1
    for run in runs:
        if not handles or handles[-1] != run.sends[0].handle:
            handles.append(run.sends[0].handle)
            counts.append(0)
        which.append(len(handles))
        firsts.append(counts[-1])
        starts.append(start)
        counts[-1] += len(run.sends)
        start += len(run.sends)
    rows = yield Statement(
        "pipelined_sends.send_many",
        enqueue.send_many(queue_id),
        (
            handles,
            counts,
            which,
            firsts,
            [len(run.sends) for run in runs],
            starts,
            [run.usage.message_type_id for run in runs],
            [run.usage.validation for run in runs],
            Bodies(send.content for run in runs for send in run.sends),
            now,
            version,
        ),
    )
    drawn = {handles[place - 1]: number for place, number, _ in rows}
    for handle in set(handles) - drawn.keys():
        catalog.forget(handle)  # ended, or its queue was altered: _send_slowly finds out
    for run, first in zip(runs, firsts, strict=True):
        number = drawn.get(run.sends[0].handle)
        if number is not None:
            numbers.update(zip((send.place for send in run.sends), count(number + first)))
            catalog.count_enqueued(run.channel.far_priority, len(run.sends))
