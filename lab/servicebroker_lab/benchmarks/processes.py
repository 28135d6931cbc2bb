"""Read the memory and processor time of processes from /proc. Without /proc the values are 0 or empty."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

SAMPLE_INTERVAL_S = 0.25  # the time between two samples of memory
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
KINDS = {"java": "Java", "python": "Python"}  # kinds of processes, by the prefix of the process name


class Memory:
    """Samples, while the block runs, the memory of the driver, of Java and of the largest Python process."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Counter[str]]] = []
        self._stop_requested = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_requested.set()
        self._thread.join()
        self._sample()

    def peak(self, last: float = float("inf"), *, until: float = float("inf")) -> str:
        """Return the peak memory as text: of the last `last` seconds, or of the first `until` seconds."""
        start, end = self._samples[0][0], self._samples[-1][0]
        peak: Counter[str] = Counter()
        for time_, sample in self._samples:
            if time_ - start <= until and end - time_ <= last:
                peak |= sample
        return ", ".join(f"{kind} {peak[kind] / 1e6:.0f} MB" for kind in ("driver", *KINDS.values()))

    def _watch(self) -> None:
        while not self._stop_requested.wait(SAMPLE_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        self._samples.append((time.monotonic(), resident_bytes_by_kind()))


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def processor_time(process: int) -> float:
    """Return the processor time of a process in seconds."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return 0.0


def resident_bytes_by_kind() -> Counter[str]:
    """Return the memory in bytes of this process, the driver, and of the largest child process of each kind.

    Forked processes share most of their memory, so a sum would count it several times.
    """
    largest: Counter[str] = Counter()
    for process, name in family(os.getpid()):
        kind = "driver" if process == os.getpid() else next((KINDS[k] for k in KINDS if name.startswith(k)), None)
        if kind:
            largest[kind] = max(largest[kind], resident_bytes(process))
    return largest


def family(root: int) -> Iterator[tuple[int, str]]:
    """Yield the id and name of a process and of all its descendants."""
    names: dict[int, str] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, tail = file.read_text(errors="replace").rpartition(")")
            process = int(file.parent.name)
            names[process] = head.partition("(")[2]
            children[int(tail.split()[1])].append(process)
    descendants = [root]
    for process in descendants:  # grows
        if process in names:
            yield process, names[process]
        descendants += children[process]
