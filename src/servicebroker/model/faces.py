"""By which face somebody works: Python, T-SQL, a command or the dashboard. The audit notes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FACE: ContextVar[str] = ContextVar("servicebroker_face", default="Python")


def face() -> str:
    """The face by which the caller works."""
    return _FACE.get()


def telling(first: int) -> str:
    """Values of a select, or of RETURNING, that tell the triggers of the audit who it is; these run behind both.

    Their parameters, from that number on, are the principal and `face()`.
    """
    return (
        f"set_config('servicebroker.principal', ${first}, true), set_config('servicebroker.face', ${first + 1}, true)"
    )


@contextmanager
def working_by(name: str) -> Iterator[None]:
    """What the block does is done by that face."""
    before = _FACE.set(name)
    try:
        yield
    finally:
        _FACE.reset(before)
