"""The id of this process, without a system call: every verb asks whether its instance was opened before a fork."""

import os

_process_id = os.getpid()


def process_id() -> int:
    """Return what `os.getpid()` does."""
    return _process_id


def _renew() -> None:
    global _process_id
    _process_id = os.getpid()


os.register_at_fork(after_in_child=_renew)
