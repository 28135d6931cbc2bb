"""The limit of file descriptors of a serving process."""

from __future__ import annotations

import resource

WANTED_DESCRIPTORS = 65_536  # the soft limit of 1,024 of systemd is for programs that call select()


def raise_limit() -> None:
    """Raise the soft limit of descriptors to the wanted number, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
