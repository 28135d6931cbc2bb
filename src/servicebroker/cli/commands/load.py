"""`servicebroker load`: a load generator that measures throughput and latency of an existing instance.

The command creates a temporary broker database with two services. Sender processes send to a queue for some seconds,
reader processes receive until the queue is empty, and the database is dropped. Every body begins with the time when
it was sent, from which the readers compute the latency.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, suppress
from typing import Annotated, NamedTuple

import typer

from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, require_finite
from servicebroker.cli.output import say_block, say_json
from servicebroker.model.errors import BrokerError, InstanceError

DATABASE = "ServiceBrokerLoad"
MESSAGE_TYPE, CONTRACT = "//load/Message", "//load/Contract"
INITIATOR, TARGET, QUEUE = "//load/Initiator", "//load/Target", "TargetQueue"

TIMESTAMP_BYTES = 8  # the first bytes of each body: the nanoseconds from 1970 to the SEND of its batch
EMPTY_WAIT_S = 1.0  # a reader stops if the queue stays empty this long after the senders have stopped


class ProcessResult(NamedTuple):
    """The result of one process: messages sent or received, the seconds taken, and latencies of a reader.

    `latencies_ms` has one entry for each RECEIVE, that of its oldest message.
    """

    messages: int
    seconds: float
    latencies_ms: Sequence[float] = ()


def load(
    instance: InstanceOption = DEFAULT_INSTANCE,
    seconds: Annotated[
        float, typer.Option(callback=require_finite, min=0.1, max=86_400, help="How long the senders send, in seconds.")
    ] = 10.0,
    senders: Annotated[int, typer.Option(min=1, max=256, help="The number of sender processes.")] = 1,
    readers: Annotated[int, typer.Option(min=1, max=256, help="The number of reader processes.")] = 1,
    batch: Annotated[
        int, typer.Option(min=1, max=10_000, help="Messages per transaction, of senders and of readers.")
    ] = 1,
    size: Annotated[int, typer.Option(min=TIMESTAMP_BYTES, max=1 << 24, help="The size of each body, in bytes.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Measure messages per second and latency, in a temporary broker database of the instance."""
    with open_existing(instance) as opened:
        set_up(opened)
        try:
            sent, received = run(opened.url, seconds, senders, readers, batch, size)
        finally:
            opened.drop_database(DATABASE, rollback_after=0)
    figures = summarize(sent, received)
    if as_json:
        say_json(figures)
    else:
        say_block(format_summary(figures), hanging="")


def set_up(instance: Instance) -> None:
    """Create the temporary database with its services.

    Raises:
        InstanceError: the database exists: another run uses it, or a killed run has left it behind.
    """
    with suppress(BrokerError):  # 911: no such database
        instance.database(DATABASE)
        raise InstanceError(
            f"The broker database {DATABASE} exists: another `servicebroker load` runs, or one was killed. "
            f"If no other one runs, drop it: servicebroker sql -Q 'DROP DATABASE {DATABASE}'."
        )
    database = instance.database(DATABASE, create=True)
    database.create_message_type(MESSAGE_TYPE)
    database.create_contract(CONTRACT, {MESSAGE_TYPE: "INITIATOR"})
    database.create_queue("InitiatorQueue")
    database.create_queue(QUEUE)
    database.create_service(INITIATOR, "InitiatorQueue")
    database.create_service(TARGET, QUEUE, [CONTRACT])


def run(
    url: str, seconds: float, senders: int, readers: int, batch: int, size: int
) -> tuple[list[ProcessResult], list[ProcessResult]]:
    """Run senders and readers, each in a process. Return the results of the senders and of the readers."""
    with ProcessPoolExecutor(senders + readers, mp_context=multiprocessing.get_context("spawn")) as pool:
        sending = [pool.submit(send, url, seconds, batch, size) for _ in range(senders)]
        reading = [pool.submit(receive, url, seconds, batch) for _ in range(readers)]
        return _results(sending), _results(reading)


def _results(futures: Sequence[Future[ProcessResult]]) -> list[ProcessResult]:
    return [future.result() for future in futures]


def send(url: str, seconds: float, batch: int, size: int) -> ProcessResult:
    """Send on one conversation for `seconds`, with `batch` messages in each transaction."""
    with closing(open_instance(url, upkeep=None)) as instance:
        database = instance.database(DATABASE)
        handle = database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT, encryption=False)
        padding = bytes(size - TIMESTAMP_BYTES)
        messages, started = 0, time.monotonic()
        while (elapsed_s := time.monotonic() - started) < seconds:
            body = time.time_ns().to_bytes(TIMESTAMP_BYTES) + padding
            if batch == 1:
                database.send(handle, MESSAGE_TYPE, body)
            else:
                database.send_batch(handle, MESSAGE_TYPE, [body] * batch)
            messages += batch
        return ProcessResult(messages, elapsed_s)


def receive(url: str, seconds: float, batch: int) -> ProcessResult:
    """Receive until the senders have stopped and the queue stays empty."""
    with closing(open_instance(url, upkeep=None)) as instance:
        database = instance.database(DATABASE)
        messages, latencies_ms = 0, []
        started = last = time.monotonic()
        deadline = started + seconds + EMPTY_WAIT_S
        while received := database.receive(QUEUE, top=batch, wait=max(EMPTY_WAIT_S, deadline - last)):
            messages += len(received)
            last = time.monotonic()
            sent_ns = int.from_bytes((received[0].message_body or b"")[:TIMESTAMP_BYTES])
            latencies_ms.append((time.time_ns() - sent_ns) / 1e6)
        return ProcessResult(messages, last - started, latencies_ms)


def summarize(sent: Sequence[ProcessResult], received: Sequence[ProcessResult]) -> dict[str, float]:
    """Return the figures of a run: messages, messages per second of all processes, percentiles of the latency."""
    latencies_ms = sorted(latency for result in received for latency in result.latencies_ms)
    longest_s = max((result.seconds for result in received), default=1.0)
    return {
        "sent": sum(result.messages for result in sent),
        "received": sum(result.messages for result in received),
        "sent_per_second": round(sum(result.messages / result.seconds for result in sent), 1),
        "received_per_second": round(sum(result.messages for result in received) / longest_s, 1),
        "latency_p50_ms": round(percentile(latencies_ms, 0.50), 2),
        "latency_p99_ms": round(percentile(latencies_ms, 0.99), 2),
    }


def percentile(sorted_values: Sequence[float], fraction: float) -> float:
    """Return the percentile for a fraction, such as 0.99; 0 if there are no values."""
    return sorted_values[min(len(sorted_values) - 1, int(fraction * len(sorted_values)))] if sorted_values else 0.0


def format_summary(figures: dict[str, float]) -> str:
    """Return the figures as lines for a terminal."""
    return (
        f"sent      {figures['sent']:>12,.0f} messages, {figures['sent_per_second']:>10,.0f} per second\n"
        f"received  {figures['received']:>12,.0f} messages, {figures['received_per_second']:>10,.0f} per second\n"
        f"latency   p50 {figures['latency_p50_ms']:,.1f} ms, p99 {figures['latency_p99_ms']:,.1f} ms"
    )
