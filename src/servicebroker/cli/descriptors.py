"""How many descriptors a process that serves may have."""

from __future__ import annotations

import resource

DESCRIPTORS = 65_536  # that a process asks for: systemd's soft limit of 1,024 is for programs that call select()


def raise_limit() -> None:
    """Raise the soft limit of descriptors as far as the hard one allows, and no further than is of use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
