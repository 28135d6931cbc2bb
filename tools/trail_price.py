"""The price of the trail: processor time of SEND and RECEIVE, of this process and of its session of PostgreSQL
together.

    python tools/trail_price.py [ROUNDS]

Off and on by turns on one embedded server; printed are the medians, and what is more with the trail on.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable

from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app
from servicebroker_lab.benchmarks.processes import processor_time

SINGLE_CALLS, BATCH_COUNT, BATCH_MESSAGES = 4000, 100, 500


def main(rounds: int) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, sb.open(folder, upkeep=None) as instance:
        database = instance.database("Test", create=True)
        database.create_queue("Q")
        database.create_service("S", "Q", ["DEFAULT"])
        handle = database.begin_dialog("S", "S", encryption=False)
        database.send(handle, "DEFAULT", b"first")
        with instance.connection() as connection:
            pid = connection.info.backend_pid
        body = b"x" * 200

        def single() -> None:
            for _ in range(SINGLE_CALLS):
                database.send(handle, "DEFAULT", body)

        def batches() -> None:
            for _ in range(BATCH_COUNT):
                database.send_batch(handle, "DEFAULT", [body] * BATCH_MESSAGES)

        def one_by_one() -> None:
            for _ in range(SINGLE_CALLS):
                database.receive("Q", top=1)

        def many() -> None:
            while database.receive("Q", top=BATCH_MESSAGES):
                pass

        works = {"SEND single": single, "SEND in batches": batches, "RECEIVE single": one_by_one, "RECEIVE": many}
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for switch in ("off", "on"):
                CliRunner().invoke(app, ["trail", switch, "--instance", instance.url], catch_exceptions=False)
                single()  # plans are made anew
                many()
                for name, work in works.items():
                    found.setdefault((name, switch), []).append(spent(pid, work))
        for name in works:
            off, on = (statistics.median(found[name, switch]) for switch in ("off", "on"))
            many_of = SINGLE_CALLS if "single" in name else BATCH_COUNT * BATCH_MESSAGES
            print(f"{name}: {off / many_of * 1e6:.2f} us off, {on / many_of * 1e6:.2f} us on: {on / off - 1:+.1%}")


def spent(pid: int, work: Callable[[], None]) -> float:
    """Seconds of processor time, of this process and of that one."""
    before = sum(os.times()[:2]) + processor_time(pid)
    work()
    return sum(os.times()[:2]) + processor_time(pid) - before


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
