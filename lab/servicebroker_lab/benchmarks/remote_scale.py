"""The rate of two instances on 2, 4, 8 ... cores of one machine, and the load of each process meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from servicebroker.api.instance import Instance
from servicebroker_lab.benchmarks.measure import Figures
from servicebroker_lab.benchmarks.processes import processor_time
from servicebroker_lab.benchmarks.remote import CONVERSATION_COUNT, SECURED, LinkedInstances
from servicebroker_lab.benchmarks.report import OURS, Line
from servicebroker_lab.benchmarks.scenarios import BASELINE, Scenario

STEADY_TIME_S = 10.0  # seconds
CLOCK_START_PART = 0.5  # the clock starts when this part of all messages has been read
CLOCK_STOP_PART = 0.9  # the clock stops when this part of all messages has been read
POLL_INTERVAL_S = 0.01  # seconds
BATCHES = (100, 10, 1)  # messages of a SEND transaction
SENDER_COUNT = 16  # as many as conversations

Progress = Callable[[str], None]


def compare_cores(name: str, scenario: Scenario, folder: Path, messages: int, progress: Progress) -> list[Line]:
    """Return a line for each number of cores and batch size, with the speed-up from twice as many cores."""
    rates: dict[tuple[int, int], float] = {}
    cpu_use: dict[tuple[int, int], str] = {}
    counts = core_counts(len(os.sched_getaffinity(0)))
    for cores in counts:
        progress(f"{name}: {cores} cores")
        with (
            pinned_to(cores),
            closing(LinkedInstances(folder / f"{name}-{cores}", is_secured=True, senders=SENDER_COUNT)) as linked,
        ):
            for batch in BATCHES:
                rates[cores, batch], cpu_use[cores, batch] = _steady(linked, messages, batch)
    lines = []
    for (cores, batch), rate in rates.items():
        next_rate = rates.get((2 * cores, batch))
        label = f"{SECURED}, {cores} cores, {batch} per transaction"
        system = OURS if next_rate is None else BASELINE
        figures, ratio = Figures(rate, 0.0, 0.0), None if next_rate is None else next_rate / rate
        lines.append(
            Line(name, system, "", label, cpu_use[cores, batch], figures, "", ratio, scenario.goals.get(system))
        )
    return lines


def core_counts(cores: int) -> list[int]:
    """Return 2, 4, 8 ... up to the number of cores; on a machine with one core, 1."""
    return [2**power for power in range(1, cores.bit_length()) if 2**power <= cores] or [cores]


@contextmanager
def pinned_to(cores: int) -> Iterator[None]:
    """Restrict this process, and those that it starts in the block, to this number of cores."""
    own_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own_cores)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own_cores)


def _steady(linked: LinkedInstances, messages: int, batch: int) -> tuple[float, str]:
    """Return the rate in messages per second and, as text, the CPU use of each process.

    A calibration run finds how many messages take about ten seconds. The clock runs only from 50 to 90 % of them: at
    the beginning the daemon still has one share, and at the end a single share is busy. The daemon may add shares
    while the clock runs.
    """
    started_at = time.perf_counter()
    linked.send_and_receive(messages, batch)
    calibration_s = time.perf_counter() - started_at
    timed_part = CLOCK_STOP_PART - CLOCK_START_PART
    message_count = max(CONVERSATION_COUNT, round(messages * STEADY_TIME_S / timed_part / calibration_s))
    received = linked.received
    with ThreadPoolExecutor(1) as executor:
        transfer = executor.submit(linked.send_and_receive, message_count, batch)
        first, started_at = _wait(linked, transfer, received + message_count * CLOCK_START_PART)
        before, cpu_before = _cpu_seconds(linked), linked.cpu()
        last, stopped_at = _wait(linked, transfer, received + message_count * CLOCK_STOP_PART)
        after, cpu = _cpu_seconds(linked), linked.cpu() - cpu_before
        transfer.result()
    seconds = stopped_at - started_at
    cpu_per_message_us = cpu / max(1, last - first) * 1e6
    use = _describe_cpu_use(before, after, seconds)
    return (last - first) / seconds, f"all daemons: {cpu_per_message_us:.0f} µs of CPU per message; {use}"


def _wait(linked: LinkedInstances, transfer: Future[int], count: float) -> tuple[int, float]:
    """Wait until the readers have received `count` messages. Returns their number and the time."""
    while linked.received < count and not transfer.done():
        time.sleep(POLL_INTERVAL_S)
    return linked.received, time.perf_counter()


def _describe_cpu_use(before: dict[str, dict[int, float]], after: dict[str, dict[int, float]], seconds: float) -> str:
    """Return, as text, the CPU use of the busiest process of each kind, and the sum if there are several."""
    parts = []
    for name, seconds_by_pid in after.items():
        uses = [(cpu_seconds - before[name].get(pid, 0.0)) / seconds for pid, cpu_seconds in seconds_by_pid.items()]
        total = f" ({sum(uses):.0%} in {len(uses)})" if len(uses) > 1 else ""
        parts.append(f"{name} {max(uses, default=0.0):.0%}{total}")
    return f"busiest of each, in parts of a core: {', '.join(parts)}"


def _cpu_seconds(linked: LinkedInstances) -> dict[str, dict[int, float]]:
    """Return the seconds of processor time of each process, by kind of process and id."""
    pids_by_kind = {f"daemon of {name}": linked.daemon_pids(name) for name in linked.daemons}
    pids_by_kind |= {f"backend of {name}": _backends(instance) for name, instance in linked.instances.items()}
    pids_by_kind["senders"] = linked.sender_pids
    pids_by_kind["readers"] = linked.reader_pids
    return {kind: {pid: processor_time(pid) for pid in pids} for kind, pids in pids_by_kind.items()}


def _backends(instance: Instance) -> list[int]:
    with instance.connection() as connection:
        return [pid for (pid,) in connection.execute("select pid from pg_stat_activity where pid is not null")]
