"""Memory and processor time of processes, read from /proc; 0 or nothing where there is no /proc."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

SAMPLE_INTERVAL_S = 0.25  # seconds between two looks
TICKS = os.sysconf("SC_CLK_TCK")  # a second's
KINDS = {"java": "Java", "python": "Python"}  # of processes, by what their names begin with


class Memory:
    """Looks again and again, until its end, how much the driver, Java and the largest process of Python hold."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, Counter[str]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def peak(self, last: float = float("inf"), *, until: float = float("inf")) -> str:
        """The most that was held at a time in the `last` seconds, or `until` so many had passed, for a person."""
        begun, ended = self._looks[0][0], self._looks[-1][0]
        most: Counter[str] = Counter()
        for moment, held in self._looks:
            if moment - begun <= until and ended - moment <= last:
                most |= held
        return ", ".join(f"{kind} {most[kind] / 1e6:.0f} MB" for kind in ("driver", *KINDS.values()))

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        self._looks.append((time.monotonic(), held_now()))


def held(process: int) -> int:
    """Bytes of memory that a process holds."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def processor_time(process: int) -> float:
    """Seconds of processor time that a process has used."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def held_now() -> Counter[str]:
    """Bytes of this process, the driver, and of the largest of each kind below it.

    Not their sum: processes that were forked from one another share most of what they hold.
    """
    most: Counter[str] = Counter()
    for process, name in family(os.getpid()):
        kind = "driver" if process == os.getpid() else next((KINDS[k] for k in KINDS if name.startswith(k)), None)
        if kind:
            most[kind] = max(most[kind], held(process))
    return most


def family(eldest: int) -> Iterator[tuple[int, str]]:
    """A process and all below it, with their names."""
    names: dict[int, str] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, tail = place.read_text(errors="replace").rpartition(")")
            process = int(place.parent.name)
            names[process] = head.partition("(")[2]
            children[int(tail.split()[1])].append(process)
    found = [eldest]
    for process in found:
        if process in names:
            yield process, names[process]
        found += children[process]
