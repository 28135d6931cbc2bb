"""SENDs of a pipeline (`Transaction.pipeline`): those with cached paths to one queue go into one SQL statement."""

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
    """A pipelined SEND with checked arguments, at `position` in its pipeline. `at` is the due time if delayed."""

    position: int
    handle: UUID
    message_type: str
    at: datetime | None
    content: bytes | None


def checked_send(index: int, operation: Send[int], maximum_body: int, clock: Clock) -> PipelinedSend:
    """Return a pipelined SEND.

    Raises:
        BrokerError: what SEND raises for its arguments.
    """
    content = operation.content(maximum_body)
    assert isinstance(operation.handle, UUID)
    due = operation.due(clock()) if operation.is_delayed else None
    return PipelinedSend(index, operation.handle, operation.message_type, due, content)


def send_pipelined(
    catalog: Catalog, sends: Sequence[PipelinedSend], send_batch: SendBatchVerb, now: datetime
) -> Steps[dict[int, int]]:
    """SEND all messages, with the result of sending in order. Returns the sequence numbers, by position of the SEND.

    `send_batch` is the verb for SENDs whose path is not cached, or leads to another instance.

    Raises:
        BrokerError: as `send`, naming the SEND that was refused. The SENDs before it are done.
    """
    numbers: dict[int, int] = {}
    remaining = sends
    while remaining := (yield from _send_cached(catalog, remaining, now, numbers)):
        channel = catalog.channels.get(remaining[0].handle)
        is_remote = channel is not None and not channel.delivery_queue_id
        # to a local peer one by one: if the peer refuses it, the conversation fails, and the next SEND raises
        yield from _send_run(_first_run(remaining) if is_remote else remaining[:1], send_batch, numbers)
        remaining = [send for send in remaining if send.position not in numbers]
    return numbers


def send_in_runs(sends: Sequence[PipelinedSend], send_batch: SendBatchVerb) -> Steps[dict[int, int]]:
    """SEND without cached paths: one call of `send_batch` for each run of messages (`_first_run`).

    Raises:
        BrokerError: as `send_pipelined`.
    """
    numbers: dict[int, int] = {}
    while remaining := [send for send in sends if send.position not in numbers]:
        yield from _send_run(_first_run(remaining), send_batch, numbers)
    return numbers


def _first_run(sends: Sequence[PipelinedSend]) -> Sequence[PipelinedSend]:
    """Return the first run: the first SEND, and those on its conversation that follow with equal type and delay."""
    first = sends[0]
    same = (send for send in sends if send.handle == first.handle)
    return list(takewhile(lambda send: send.message_type == first.message_type and send.at == first.at, same))


def _send_run(run: Sequence[PipelinedSend], send_batch: SendBatchVerb, numbers: dict[int, int]) -> Steps[None]:
    """SEND a run with one call of `send_batch`, and record the sequence numbers in `numbers`."""
    first = run[0]
    try:
        number = yield from send_batch(
            SendBatch(first.handle, first.message_type, [send.content or b"" for send in run], at=first.at)
        )
    except BrokerError as refused:
        raise refused.of_send(first.position, f"'{first.message_type}' on the conversation {first.handle}") from None
    numbers.update({send.position: number + i for i, send in enumerate(run)})


class _Run(NamedTuple):
    """SENDs of one type on one conversation."""

    channel: Channel
    message_type: str
    usage: Usage
    sends: list[PipelinedSend]


def _send_cached(
    catalog: Catalog, sends: Sequence[PipelinedSend], now: datetime, numbers: dict[int, int]
) -> Steps[list[PipelinedSend]]:
    """SEND the messages before the first one that needs more than a cached channel. Returns the remaining SENDs.

    Such a message has no cached channel, is delayed, or is refused by the peer. Records sequence numbers in `numbers`.
    """
    runs_by_queue: dict[tuple[int, int], dict[UUID, list[_Run]]] = defaultdict(lambda: defaultdict(list))
    for (handle, message_type, at), group in groupby(sends, lambda send: send[1:4]):
        channel, group_sends = catalog.channels.get(handle), list(group)
        usage = channel and known_usage(channel, message_type)
        if channel is None or usage is None or at is not None:
            break
        accepted = group_sends[: _count_accepted(usage, channel.is_initiator, group_sends)]
        runs = runs_by_queue[channel.delivery_queue_id, channel.catalog_version][handle]
        if runs and runs[-1].message_type == message_type:
            runs[-1].sends.extend(accepted)
        elif accepted:
            runs.append(_Run(channel, message_type, usage, accepted))
        if len(accepted) < len(group_sends):
            break
    for (queue_id, version), conversations in runs_by_queue.items():
        if runs := [run for handle in sorted(conversations) for run in conversations[handle]]:
            yield from _send_many(catalog, queue_id, version, runs, now, numbers)
    return [send for send in sends if send.position not in numbers]


def _count_accepted(usage: Usage, is_initiator: bool, sends: Sequence[PipelinedSend]) -> int:
    """Return the number of messages before the first one that the peer refuses."""
    refused = (index for index, send in enumerate(sends) if not accepts(usage, is_initiator, send.content))
    return next(refused, len(sends))


def _send_many(
    catalog: Catalog, queue_id: int, version: int, runs: Sequence[_Run], now: datetime, numbers: dict[int, int]
) -> Steps[None]:
    """SEND these runs to one queue, in one statement. They are ordered by handle, the locking order.

    Records the sequence numbers in `numbers`. A conversation that has ended, or whose queue does not have the catalog
    version `version` any more, sends nothing.
    """
    handles: list[UUID] = []
    counts: list[int] = []
    # for each run: index of its handle, its first message's index on the handle, index of its first body
    handle_indexes, firsts, starts, start = [], [], [], 1
    for run in runs:
        if not handles or handles[-1] != run.sends[0].handle:
            handles.append(run.sends[0].handle)
            counts.append(0)
        handle_indexes.append(len(handles))
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
            handle_indexes,
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
    first_numbers = {handles[handle_index - 1]: number for handle_index, number, _ in rows}
    for handle in set(handles) - first_numbers.keys():
        catalog.forget(handle)  # ended, or its queue was altered: `send_batch` finds the reason
    for run, first in zip(runs, firsts, strict=True):
        number = first_numbers.get(run.sends[0].handle)
        if number is not None:
            numbers.update(zip((send.position for send in run.sends), count(number + first)))
            catalog.count_enqueued(run.channel.peer_priority, len(run.sends))
