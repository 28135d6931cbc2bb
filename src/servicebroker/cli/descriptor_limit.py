"""The limit of file descriptors of a serving process."""

from __future__ import annotations

import resource

MIN_DESCRIPTORS = 65_536  # systemd's soft limit of 1,024 protects programs that call select(), which we do not


def raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors to `MIN_DESCRIPTORS`, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MIN_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MIN_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
