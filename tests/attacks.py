"""Limits that hold while somebody attacks: memory and log of the attacked process, and times of honest messages."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

MAX_MEMORY_BYTES = 300_000_000
MAX_LOG_BYTES_PER_HOUR = 1_000_000  # for each attacker
LOG_BURST_BYTES = 50_000  # in addition: each kind of event is logged 20 times in its first minute
MAX_P99_S = 1.0
RESTORE_LIMIT_S = 10.0  # from the end of the attack until honest messages are as fast as before
MAX_SLOWDOWN = 2.0  # of the median
MIN_JUDGED_S = 60.0  # shorter runs have other tests beside them, whose load would be the harm
SLICE_S = 0.5  # seconds of a slice of the measurement, without the attack or with it


class Costs:
    """The costs of an attack for a process, since this object was made. `written` counts the bytes of its log."""

    def __init__(self, pid: int, written: Callable[[], int]) -> None:
        self._pid, self._written = pid, written
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak of memory begins anew
        self._before, self._began = written(), time.monotonic()

    @property
    def memory_bytes(self) -> int:
        """The peak of the resident memory of the process."""
        (line,) = [one for one in Path(f"/proc/{self._pid}/status").read_text().splitlines() if "VmHWM" in one]
        return int(line.split()[1]) * 1_024

    @property
    def log_bytes(self) -> int:
        return self._written() - self._before

    def check(self, attackers: int = 1) -> str:
        """Compare the costs with the limits. Return them in words."""
        seconds = time.monotonic() - self._began
        report = f"{self.memory_bytes / 1e6:.0f} MB of memory, {self.log_bytes / 1e3:.1f} kB of log in {seconds:.0f} s"
        assert self.memory_bytes < MAX_MEMORY_BYTES, report
        assert self.log_bytes < attackers * (LOG_BURST_BYTES + MAX_LOG_BYTES_PER_HOUR * seconds / 3_600), report
        return report


class Times:
    """The times of honest messages: without the attack, with it, and after its end."""

    def __init__(self) -> None:
        self.quiet: list[float] = []
        self.harmed: list[float] = []

    def check(self, *, are_judged: bool = True) -> str:
        """Compare the times with the limits, unless other tests run beside this one. Return them in words."""
        quiet, attacked = statistics.median(self.quiet), statistics.median(self.harmed)
        p99 = sorted(self.harmed)[int(len(self.harmed) * 0.99)]
        report = f"median {quiet * 1e3:.1f} ms quiet and {attacked * 1e3:.1f} ms harmed, p99 {p99 * 1e3:.0f} ms harmed"
        assert not are_judged or attacked <= MAX_SLOWDOWN * quiet, report
        assert not are_judged or p99 < MAX_P99_S, report
        return report

    def wait_until_restored(self, measure: Callable[[float], Iterable[float]]) -> str:
        """Measure slices until their median is as before. Return the time in words."""
        began = time.monotonic()
        while statistics.median(measure(SLICE_S)) > MAX_SLOWDOWN * statistics.median(self.quiet):
            assert time.monotonic() - began < RESTORE_LIMIT_S, "messages are not as fast as before"
        return f"restored after {time.monotonic() - began - SLICE_S:.1f} s"


class AttackProcess:
    """A process of a program of attacks, paused until `go`. The program prints a line when it begins.

    At the end of its standard input it prints how many attacks it has made.
    """

    def __init__(self, program: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self.pause()

    def go(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> int:
        """Stop the attacks. Return their number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self.go()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def log_size(lines: list[dict[str, Any]]) -> Callable[[], int]:
    """Return a function that counts the bytes of a daemon's log. Another function of the same lines reads on."""
    totals = [0, 0]  # lines, and their bytes

    def new_bytes() -> int:
        new = lines[totals[0] :]
        totals[0] += len(new)
        totals[1] += sum(len(str(line)) for line in new)
        return totals[1]

    return new_bytes
