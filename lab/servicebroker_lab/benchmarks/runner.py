"""Run a scenario: each implementation in turn, round after round, on one server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from servicebroker.api.instance import Instance
from servicebroker_lab.benchmarks.activation import activation_systems
from servicebroker_lab.benchmarks.bare import BareCommits
from servicebroker_lab.benchmarks.competitors import Pgmq, PgQueuer, Procrastinate
from servicebroker_lab.benchmarks.dialogs import dialog_systems
from servicebroker_lab.benchmarks.fence import fence_systems
from servicebroker_lab.benchmarks.measure import Figures, Meter, Sample, figures
from servicebroker_lab.benchmarks.measured_system import Implementation, System
from servicebroker_lab.benchmarks.report import OURS, Line
from servicebroker_lab.benchmarks.requests import request_systems
from servicebroker_lab.benchmarks.routing import network_systems
from servicebroker_lab.benchmarks.scale import scaled_systems
from servicebroker_lab.benchmarks.scenarios import BARE, CPU, SCALE, Scenario
from servicebroker_lab.benchmarks.servicebroker_system import ServiceBroker
from servicebroker_lab.benchmarks.storage import storage_systems
from servicebroker_lab.benchmarks.tds import tds_systems
from servicebroker_lab.benchmarks.tsql import tsql_systems

NEEDS_FILE = "give --pgmq-sql FILE"
NEEDS_EXTRA = "pip install 'servicebroker[bench]'"

Progress = Callable[[str], None]
_MAX_TURNS = 10  # parts of a round in which costs are compared


@dataclass(frozen=True)
class Field:
    """The measured systems, and by name the reasons why others are missing."""

    systems: list[System]
    missing: dict[str, str]


def open_field(instance: Instance, pgmq_sql: Path | None, stack: ExitStack) -> Field:
    """Open every installed system on the instance's server.

    Raises:
        InstanceError: the SQL file is not one of pgmq.
    """
    makers: dict[str, Callable[[], System]] = {
        OURS: lambda: ServiceBroker(instance),
        BARE: lambda: BareCommits(instance.url),
        "pgqueuer": lambda: PgQueuer(instance.url),
        "procrastinate": lambda: Procrastinate(instance.url),
    }
    missing = {}
    if pgmq_sql is None:
        missing["pgmq"] = NEEDS_FILE
    else:
        path = pgmq_sql
        makers["pgmq"] = lambda: Pgmq(instance.url, path)
    systems: list[System] = []
    for name, make in makers.items():
        try:
            systems.append(stack.enter_context(closing(make())))
        except ImportError:
            missing[name] = NEEDS_EXTRA
    systems += [stack.enter_context(closing(measured)) for measured in network_systems(instance.url)]
    systems += [stack.enter_context(closing(measured)) for measured in activation_systems(instance)]
    systems += [stack.enter_context(closing(measured)) for measured in request_systems(instance)]
    systems += [stack.enter_context(closing(measured)) for measured in tsql_systems(instance)]
    systems += [stack.enter_context(closing(measured)) for measured in tds_systems(instance)]
    systems += [stack.enter_context(closing(measured)) for measured in fence_systems(instance)]
    systems += [stack.enter_context(closing(measured)) for measured in dialog_systems(instance)]
    for system in list(systems):
        if isinstance(system, ServiceBroker):
            systems += [stack.enter_context(closing(measured)) for measured in storage_systems(system)]
    systems += [stack.enter_context(closing(measured)) for measured in scaled_systems(systems, instance.url)]
    return Field(systems, missing)


def compare(
    name: str, scenario: Scenario, field: Field, meter: Meter, *, messages: int, rounds: int, progress: Progress
) -> list[Line]:
    """Measure all implementations of a scenario, and return the lines with ratios."""
    base_name = name.removeprefix(f"{CPU}-")
    entrants = [
        (system, implementation)
        for system in _in_order(scenario, field)
        for implementation in system.implementations(base_name)
    ]
    samples: dict[Implementation, list[Sample]] = defaultdict(list)
    if scenario.compares_cpu_time:  # in short turns, so that other load of the machine affects all systems alike
        turns = max(1, min(_MAX_TURNS, messages // 100))
        messages, rounds = messages // turns, rounds * turns
    for number in range(rounds):
        for system, implementation in _rotate(entrants, number):
            progress(f"{name}: round {number + 1} of {rounds}, {system.name} {implementation.label}")
            implementation.prepare(messages)
            samples[implementation].append(
                meter.sample(implementation.work, messages, samples_waits=name.startswith(SCALE))
            )
    lines = [
        Line(
            name,
            system.name,
            system.version,
            implementation.label,
            implementation.settings,
            figures(samples[implementation]),
        )
        for system, implementation in entrants
    ]
    absent = [Line(name, peer, reason=field.missing[peer]) for peer in scenario.goals if peer in field.missing]
    return with_ratios([*lines, *absent], scenario)


def with_ratios(lines: Sequence[Line], scenario: Scenario) -> list[Line]:
    """Add to each line of a scenario the ratio to servicebroker, and the goal of its system."""
    ours = next(line.figures for line in lines if line.system == OURS)
    return [
        replace(
            line,
            ratio=_ratio(ours, line.figures, scenario) if line.system != OURS else None,
            goal=scenario.goals.get(line.system),
            is_cost=scenario.compares_cpu_time,
        )
        for line in lines
    ]


def _ratio(ours: Figures | None, other: Figures | None, scenario: Scenario) -> float | None:
    if ours is None or other is None:
        return None
    if scenario.compares_cpu_time:
        return ours.server / other.server if other.server else None
    return ours.per_second / other.per_second


def _in_order(scenario: Scenario, field: Field) -> Iterator[System]:
    """Yield servicebroker, then its competitors in the order of the goals, then bare PostgreSQL."""
    for name in dict.fromkeys([OURS, *scenario.goals, BARE]):
        yield from (system for system in field.systems if system.name == name)


def _rotate(entrants: list[tuple[System, Implementation]], number: int) -> list[tuple[System, Implementation]]:
    """Rotate the entrants by the round, so that a system does not always follow the same one."""
    first = number % len(entrants)
    return entrants[first:] + entrants[:first]
