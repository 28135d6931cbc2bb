"""Compare servicebroker with its alternatives, on one server in one run."""

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
    PIPELINE,
    PIPELINE_ROUNDS,
    PREFIXES,
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
    """Run benchmarks on a new embedded server, and return the report.

    Args:
        names: names of `SCENARIOS`; "storage", "remote", "tsql", "tds", "fence", "dialog", "request", "cpu" or "scale"
            for all scenarios with this prefix; or "all".
        pgmq_sql: the SQL file of a pgmq release; without it pgmq is not measured.
        jdbc_jar: the jar of PostgreSQL's JDBC driver; without it Spark's JDBC is not measured.
        scale: a factor of the number of messages in each round.
        rounds: the number of measurements of each line; at most three for the pipeline.
        folder: an existing folder on the disk to measure. The default is the system's folder for large temporary files.
        command: the command line that the report shows. The default is `python -m servicebroker_lab.benchmarks ...`.
        progress: called with a short text before each measurement and for each result.

    Raises:
        InstanceError: a name is unknown, the scale or the number of rounds is invalid, the server does not start, Java
            is missing, or a file is not that of pgmq or no jar.
    """
    names_to_run = chosen_scenarios(names)
    if not 0 < scale <= 1000 or rounds < 1:
        raise InstanceError("A benchmark needs a scale above 0 and at least one round.")
    messages = {name: max(10, round(SCENARIOS[name].messages * scale)) for name in names_to_run}
    with ExitStack() as stack:
        work_folder = Path(stack.enter_context(_scratch(folder)))
        work_folder.chmod(0o711)  # the server of root runs as another user, who needs search permission
        progress("starting a server")
        jdbc = reachable(work_folder / "instance", jdbc_jar) if jdbc_jar else None
        instance = stack.enter_context(open_instance(work_folder / "instance"))
        meter = stack.enter_context(closing(Meter(instance.url)))
        field = open_field(instance, pgmq_sql, stack)
        lines: list[Line] = []
        for name in names_to_run:
            new_lines = _lines(name, instance, field, meter, work_folder, messages[name], rounds, progress, jdbc)
            for line in new_lines:
                progress(in_words(line))
            lines += new_lines
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
    """Return the scenarios with these names or prefixes, each once, in the order of `SCENARIOS`.

    Raises:
        InstanceError: a name is unknown, or there are no names.
    """
    valid_names = [*SCENARIOS, *PREFIXES, ALL]
    for name in names:
        if name not in valid_names:
            raise InstanceError(f"There is no benchmark '{name}'; there are {', '.join(valid_names)}.")
    if not names:
        raise InstanceError(f"Name a benchmark: {', '.join(valid_names)}.")
    return [
        name
        for name in SCENARIOS
        if name in names or ALL in names or name.partition("-")[0] in PREFIXES.intersection(names)
    ]


def command_line(
    names: Sequence[str], pgmq_sql: Path | None, scale: float, rounds: int, jdbc_jar: Path | None = None
) -> str:
    """Return the command line of a run. A file is shown without its folder."""
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
    folder: Path,
    messages: int,
    rounds: int,
    progress: Progress,
    jdbc: Jdbc | None,
) -> list[Line]:
    scenario = SCENARIOS[name]
    if name == REMOTE_SCALE:
        return compare_cores(name, scenario, folder, messages, progress)
    if name.startswith(REMOTE_OPEN):
        return compare_openings(name, scenario, folder, messages, rounds, progress)
    if name.startswith(f"{REMOTE}-"):
        return compare_remote(name, scenario, folder, messages, rounds, progress)
    if not name.startswith(PIPELINE):
        return compare(name, scenario, field, meter, messages=messages, rounds=rounds, progress=progress)
    from servicebroker_lab.benchmarks.pipeline import compare_pipeline

    rounds = min(rounds, PIPELINE_ROUNDS)
    return compare_pipeline(name, scenario, instance, field, meter, folder, messages, rounds, progress, jdbc)


def _scratch(folder: Path | None) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder on a disk. A folder in memory, as /tmp may be, would make durable commits free."""
    parent = folder or (_LARGE_TEMPORARY if _LARGE_TEMPORARY.is_dir() else None)
    return tempfile.TemporaryDirectory(prefix="servicebroker-bench-", dir=parent, ignore_cleanup_errors=True)


def _server_version(instance: Instance) -> str:
    with instance.connection() as connection:
        row = connection.execute("show server_version").fetchone()
    return str(row[0]) if row else ""
