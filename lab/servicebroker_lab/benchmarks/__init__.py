"""Benchmarks against what a user would pick instead, on the same server in the same run."""

from __future__ import annotations

import platform
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.broker.shares import cores
from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks.jdbc import Jdbc, reachable
from servicebroker_lab.benchmarks.measure import Meter
from servicebroker_lab.benchmarks.remote import compare_remote
from servicebroker_lab.benchmarks.remote_open import compare_openings
from servicebroker_lab.benchmarks.remote_scale import compare_cores
from servicebroker_lab.benchmarks.report import Conditions, Line, Report, in_words
from servicebroker_lab.benchmarks.runner import Field, Progress, compare, open_field
from servicebroker_lab.benchmarks.scenarios import (
    GROUPS,
    PIPELINE,
    PIPELINE_ROUNDS,
    REMOTE,
    REMOTE_OPEN,
    REMOTE_SCALE,
    SCENARIOS,
)

__all__ = ["ALL", "SCENARIOS", "Line", "Report", "run"]

ALL = "all"

_LARGE_TEMPORARY = Path("/var/tmp")


def run(
    names: Sequence[str] = (ALL,),
    *,
    pgmq_sql: Path | None = None,
    jdbc_jar: Path | None = None,
    scale: float = 1.0,
    rounds: int = 5,
    folder: Path | None = None,
    command: str | None = None,
    progress: Progress = lambda sentence: None,
) -> Report:
    """Run benchmarks on a fresh embedded server and return what they found.

    Args:
        names: of `SCENARIOS`, "storage", "remote", "tsql", "fence", "dialog", "request", "cpu" or "scale" for all whose
            names begin so, or "all".
        pgmq_sql: the SQL file of a pgmq release; without it pgmq is not measured.
        jdbc_jar: the jar of PostgreSQL's JDBC driver; without it Spark's JDBC is not measured.
        scale: of the number of messages in each round; 1 is the standard, 2,000,000 for the pipeline.
        rounds: how often each line is measured; the pipeline takes three at most.
        folder: an existing folder on the disk to measure; default the system's folder for large temporary files.
        command: what the report says it was made by; default the matching `python -m servicebroker_lab.benchmarks`.
        progress: is told, in a few words, what is being measured, and what came out.

    Raises:
        InstanceError: an unknown name, a scale or a number of rounds that makes no sense, no server, no Java, or
            a file that is not pgmq's, or is no jar.
    """
    chosen = chosen_scenarios(names)
    if not 0 < scale <= 1000 or rounds < 1:
        raise InstanceError("A benchmark needs a scale above 0 and at least one round.")
    messages = {name: max(10, round(SCENARIOS[name].messages * scale)) for name in chosen}
    with ExitStack() as stack:
        place = Path(stack.enter_context(_scratch(folder)))
        place.chmod(0o711)  # a server that root starts runs as another user, who has to pass
        progress("starting a server")
        jdbc = reachable(place / "instance", jdbc_jar) if jdbc_jar else None
        instance = stack.enter_context(open_instance(place / "instance"))
        meter = stack.enter_context(closing(Meter(instance.url)))
        field = open_field(instance, pgmq_sql, stack)
        lines: list[Line] = []
        for name in chosen:
            found = _lines(name, instance, field, meter, place, messages[name], rounds, progress, jdbc)
            for line in found:
                progress(in_words(line))
            lines += found
        conditions = Conditions(
            command or command_line(names, pgmq_sql, scale, rounds, jdbc_jar),
            datetime.now(UTC).date().isoformat(),
            platform.python_version(),
            _server_version(instance),
            cores(),
            rounds,
            scale,
            messages,
        )
    return Report(conditions, tuple(lines))


def chosen_scenarios(names: Sequence[str]) -> list[str]:
    """The scenarios that are meant, each once, in the order of `SCENARIOS`.

    Raises:
        InstanceError: an unknown name, or none at all.
    """
    known = [*SCENARIOS, *GROUPS, ALL]
    for name in names:
        if name not in known:
            raise InstanceError(f"There is no benchmark '{name}'; there are {', '.join(known)}.")
    if not names:
        raise InstanceError(f"Name a benchmark: {', '.join(known)}.")
    return [
        name
        for name in SCENARIOS
        if name in names or ALL in names or name.partition("-")[0] in GROUPS.intersection(names)
    ]


def command_line(
    names: Sequence[str], pgmq_sql: Path | None, scale: float, rounds: int, jdbc_jar: Path | None = None
) -> str:
    """The command that makes the same run; a file is named without its folder."""
    words = ["python", "-m", __name__, *names]
    if pgmq_sql is not None:
        words += ["--pgmq-sql", pgmq_sql.name]
    if jdbc_jar is not None:
        words += ["--jdbc-jar", jdbc_jar.name]
    if scale != 1:
        words += ["--scale", f"{scale:g}"]
    if rounds != 5:
        words += ["--rounds", str(rounds)]
    return shlex.join(words)


def _lines(
    name: str,
    instance: Instance,
    field: Field,
    meter: Meter,
    place: Path,
    messages: int,
    rounds: int,
    progress: Progress,
    jdbc: Jdbc | None,
) -> list[Line]:
    scenario = SCENARIOS[name]
    if name == REMOTE_SCALE:
        return compare_cores(name, scenario, place, messages, progress)
    if name.startswith(REMOTE_OPEN):
        return compare_openings(name, scenario, place, messages, rounds, progress)
    if name.startswith(f"{REMOTE}-"):
        return compare_remote(name, scenario, place, messages, rounds, progress)
    if not name.startswith(PIPELINE):
        return compare(name, scenario, field, meter, messages=messages, rounds=rounds, progress=progress)
    from servicebroker_lab.benchmarks.pipeline import compare_pipeline

    rounds = min(rounds, PIPELINE_ROUNDS)
    return compare_pipeline(name, scenario, instance, field, meter, place, messages, rounds, progress, jdbc)


def _scratch(folder: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A folder on a real disk: where /tmp lives in memory, a durable commit would cost nothing."""
    where = folder or (_LARGE_TEMPORARY if _LARGE_TEMPORARY.is_dir() else None)
    return tempfile.TemporaryDirectory(prefix="servicebroker-bench-", dir=where, ignore_cleanup_errors=True)


def _server_version(instance: Instance) -> str:
    with instance.connection() as connection:
        row = connection.execute("show server_version").fetchone()
    return str(row[0]) if row else ""
