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
from servicebroker_lab.benchmarks.remote import CONVERSATION_COUNT, SECURED, Linked
from servicebroker_lab.benchmarks.report import OURS, Line
from servicebroker_lab.benchmarks.scenarios import BASELINE, Scenario

STEADY_TIME_S = 10.0  # seconds
CLOCK_START_SHARE, CLOCK_STOP_SHARE = (
    0.5,
    0.9,
)  # which parts of all messages have been read when the clock starts, and when it stops
POLL_INTERVAL_S = 0.01  # seconds
BATCHES = (100, 10, 1)  # messages of a SEND transaction
SENDER_COUNT = 16  # as many as conversations

Progress = Callable[[str], None]


def compare_cores(name: str, scenario: Scenario, place: Path, messages: int, progress: Progress) -> list[Line]:
    """A line for each number of cores and size of a transaction, and how much the next number of cores gives."""
    rates: dict[tuple[int, int], float] = {}
    busy: dict[tuple[int, int], str] = {}
    counts = core_counts(len(os.sched_getaffinity(0)))
    for cores in counts:
        progress(f"{name}: {cores} cores")
        with only(cores), closing(Linked(place / f"{name}-{cores}", is_secured=True, senders=SENDER_COUNT)) as linked:
            for batch in BATCHES:
                rates[cores, batch], busy[cores, batch] = _steady(linked, messages, batch)
    lines = []
    for (cores, batch), rate in rates.items():
        more = rates.get((2 * cores, batch))
        label = f"{SECURED}, {cores} cores, {batch} per transaction"
        system = OURS if more is None else BASELINE
        figures, ratio = Figures(rate, 0.0, 0.0), None if more is None else more / rate
        lines.append(Line(name, system, "", label, busy[cores, batch], figures, "", ratio, scenario.goals.get(system)))
    return lines


def core_counts(cores: int) -> list[int]:
    """2, 4, 8 ... as far as there are so many; the one that there is."""
    return [2**power for power in range(1, cores.bit_length()) if 2**power <= cores] or [cores]


@contextmanager
def only(cores: int) -> Iterator[None]:
    """This process, and all that it starts meanwhile, on so many of its cores."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(mine)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _steady(linked: Linked, messages: int, batch: int) -> tuple[float, str]:
    """Messages a second for about ten seconds, after as many as that takes to know; and who was how busy.

    Not at the beginning, when there is one share, nor until the last message has been read, when one is busy alone.
    More of them may still come meanwhile.
    """
    begun = time.perf_counter()
    linked.carry(messages, batch)
    due = max(
        CONVERSATION_COUNT,
        round(messages * STEADY_TIME_S / (CLOCK_STOP_SHARE - CLOCK_START_SHARE) / (time.perf_counter() - begun)),
    )
    taken = linked.taken
    with ThreadPoolExecutor(1) as aside:
        carrying = aside.submit(linked.carry, due, batch)
        first, begun = _wait(linked, carrying, taken + due * CLOCK_START_SHARE)
        before, cpu = _used(linked), linked.cpu()
        last, ended = _wait(linked, carrying, taken + due * CLOCK_STOP_SHARE)
        after, each = _used(linked), (linked.cpu() - cpu) / max(1, last - first) * 1e6
        carrying.result()
    busy = _busy(before, after, ended - begun)
    return (last - first) / (ended - begun), f"all daemons: {each:.0f} µs of CPU per message; {busy}"


def _wait(linked: Linked, carrying: Future[int], many: float) -> tuple[int, float]:
    """Until the readers have had so many messages: how many it has become, and when."""
    while linked.taken < many and not carrying.done():
        time.sleep(POLL_INTERVAL_S)
    return linked.taken, time.perf_counter()


def _busy(before: dict[str, dict[int, float]], after: dict[str, dict[int, float]], seconds: float) -> str:
    """The busiest process of each kind, and all of them together where there are more."""
    parts = []
    for name, used in after.items():
        found = [(used[pid] - before[name].get(pid, 0.0)) / seconds for pid in used]
        together = f" ({sum(found):.0%} in {len(found)})" if len(found) > 1 else ""
        parts.append(f"{name} {max(found, default=0.0):.0%}{together}")
    return f"busiest of each, in parts of a core: {', '.join(parts)}"


def _used(linked: Linked) -> dict[str, dict[int, float]]:
    """Seconds of processor time of each process, by what it is."""
    found = {f"daemon of {name}": linked.daemon_pids(name) for name in linked.daemons}
    found |= {f"backend of {name}": _backends(instance) for name, instance in linked.instances.items()}
    found["senders"] = linked.sender_pids
    found["readers"] = linked.reader_pids
    return {name: {pid: processor_time(pid) for pid in pids} for name, pids in found.items()}


def _backends(instance: Instance) -> list[int]:
    with instance.connection() as connection:
        return [pid for (pid,) in connection.execute("select pid from pg_stat_activity where pid is not null")]
