"""A limit of memory for a process that runs one trial."""

from __future__ import annotations

import resource
from pathlib import Path


def limit_memory(more_bytes: int) -> None:
    """Let this process have so many bytes of address space beside what it has already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes,) * 2)
