"""`servicebroker load`: a load generator that measures how fast messages pass through an instance of yours.

The command makes a broker database of its own with two services. Sender processes send into a queue for some seconds,
reader processes receive from it until it is empty, and the database is dropped. Every message carries the time when it
was sent, so the readers can tell how long it was on its way.
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
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, finite
from servicebroker.cli.output import say_block, say_json
from servicebroker.model.errors import BrokerError, InstanceError

DATABASE = "ServiceBrokerLoad"
MESSAGE_TYPE, CONTRACT = "//load/Message", "//load/Contract"
INITIATOR, TARGET, QUEUE = "//load/Initiator", "//load/Target", "TargetQueue"

TIME_BYTES = 8  # at the start of each body: nanoseconds since 1970 when its batch was made
EMPTY_WAIT_S = 1.0  # a reader that finds nothing for so long after the senders' time has read everything


class Rate(NamedTuple):
    """Messages that one process sent or received, in how many seconds, and how long those received were on their way.

    `latencies_ms` has one entry for each RECEIVE: its oldest message, which waited longest.
    """

    messages: int
    seconds: float
    latencies_ms: Sequence[float] = ()


def load(
    instance: InstanceOption = DEFAULT_INSTANCE,
    seconds: Annotated[float, typer.Option(callback=finite, min=0.1, max=86_400, help="How long to send.")] = 10.0,
    senders: Annotated[int, typer.Option(min=1, max=256, help="Processes that send.")] = 1,
    readers: Annotated[int, typer.Option(min=1, max=256, help="Processes that receive.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages in a transaction, on both sides.")] = 1,
    size: Annotated[int, typer.Option(min=TIME_BYTES, max=1 << 24, help="Bytes of each body.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Measure messages per second and latency, in a temporary broker database of the instance."""
    with open_existing(instance) as opened:
        set_up(opened)
        try:
            sent, received = run(opened.url, seconds, senders, readers, batch, size)
        finally:
            opened.drop_database(DATABASE, rollback_after=0)
    found = summary(sent, received)
    if as_json:
        say_json(found)
    else:
        say_block(in_words(found), hanging="")


def set_up(instance: Instance) -> None:
    """Make the database of a run, with its services.

    Raises:
        InstanceError: another run uses it, or one was killed and has left it behind.
    """
    with suppress(BrokerError):  # 911: no such database
        instance.database(DATABASE)
        raise InstanceError(
            f"The broker database {DATABASE} exists: another `servicebroker load` runs, or one was killed. "
            f"In the second case drop it: servicebroker sql -Q 'DROP DATABASE {DATABASE}'."
        )
    database = instance.database(DATABASE, create=True)
    database.create_message_type(MESSAGE_TYPE)
    database.create_contract(CONTRACT, {MESSAGE_TYPE: "INITIATOR"})
    database.create_queue("InitiatorQueue")
    database.create_queue(QUEUE)
    database.create_service(INITIATOR, "InitiatorQueue")
    database.create_service(TARGET, QUEUE, [CONTRACT])


def run(url: str, seconds: float, senders: int, readers: int, batch: int, size: int) -> tuple[list[Rate], list[Rate]]:
    """Run senders and readers in processes of their own. Returns what each sender and each reader did."""
    with ProcessPoolExecutor(senders + readers, mp_context=multiprocessing.get_context("spawn")) as pool:
        sending = [pool.submit(send, url, seconds, batch, size) for _ in range(senders)]
        reading = [pool.submit(receive, url, seconds, batch) for _ in range(readers)]
        return _results(sending), _results(reading)


def _results(futures: Sequence[Future[Rate]]) -> list[Rate]:
    return [future.result() for future in futures]


def send(url: str, seconds: float, batch: int, size: int) -> Rate:
    """Send on one conversation for so many seconds, `batch` messages in each transaction."""
    with closing(open_instance(url, upkeep=None)) as instance:
        database = instance.database(DATABASE)
        handle = database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT, encryption=False)
        padding = bytes(size - TIME_BYTES)
        messages, started = 0, time.monotonic()
        while (spent := time.monotonic() - started) < seconds:
            body = time.time_ns().to_bytes(TIME_BYTES) + padding
            if batch == 1:
                database.send(handle, MESSAGE_TYPE, body)
            else:
                database.send_batch(handle, MESSAGE_TYPE, [body] * batch)
            messages += batch
        return Rate(messages, spent)


def receive(url: str, seconds: float, batch: int) -> Rate:
    """Receive until the senders' time is over and the queue stays empty."""
    with closing(open_instance(url, upkeep=None)) as instance:
        database = instance.database(DATABASE)
        messages, latencies_ms = 0, []
        started = last = time.monotonic()
        deadline = started + seconds + EMPTY_WAIT_S
        while received := database.receive(QUEUE, top=batch, wait=max(EMPTY_WAIT_S, deadline - last)):
            messages += len(received)
            last = time.monotonic()
            sent_ns = int.from_bytes((received[0].message_body or b"")[:TIME_BYTES])
            latencies_ms.append((time.time_ns() - sent_ns) / 1e6)
        return Rate(messages, last - started, latencies_ms)


def summary(sent: Sequence[Rate], received: Sequence[Rate]) -> dict[str, float]:
    """The figures of a run: messages, messages per second of all processes together, percentiles of the latency."""
    latencies_ms = sorted(latency for rate in received for latency in rate.latencies_ms)
    return {
        "sent": sum(rate.messages for rate in sent),
        "received": sum(rate.messages for rate in received),
        "sent_per_second": round(sum(rate.messages / rate.seconds for rate in sent), 1),
        "received_per_second": round(
            sum(rate.messages for rate in received) / max((rate.seconds for rate in received), default=1.0), 1
        ),
        "latency_p50_ms": round(percentile(latencies_ms, 0.50), 2),
        "latency_p99_ms": round(percentile(latencies_ms, 0.99), 2),
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that so large a share of the ordered values does not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def in_words(found: dict[str, float]) -> str:
    """The figures as lines for a terminal."""
    return (
        f"sent      {found['sent']:>12,.0f} messages, {found['sent_per_second']:>10,.0f} per second\n"
        f"received  {found['received']:>12,.0f} messages, {found['received_per_second']:>10,.0f} per second\n"
        f"latency   p50 {found['latency_p50_ms']:,.1f} ms, p99 {found['latency_p99_ms']:,.1f} ms"
    )
