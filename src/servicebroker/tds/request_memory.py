"""The memory that the requests of all clients take until they have run."""

from __future__ import annotations

MAX_REQUEST_BYTES = 1_200 * 2**20  # a body of 512 MiB takes 1,024 MiB as nvarchar; the rest is for its statement
MAX_BYTES = 2 * MAX_REQUEST_BYTES  # all clients together
FREE_BYTES = 64 * 1024  # a client that holds no more than this is never refused


class RequestMemory:
    """Counts the bytes of requests that have arrived in part, wait, or run."""

    def __init__(self) -> None:
        self._bytes = 0

    def charge(self, change: int, held: int) -> bool:
        """Count a change by a client that now holds `held` bytes. Return False if the limit is exceeded."""
        self._bytes += change
        return change <= 0 or held <= FREE_BYTES or self._bytes <= MAX_BYTES
