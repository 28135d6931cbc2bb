"""The kind of client that calls: Python, T-SQL, a command or the dashboard. The audit records it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CLIENT_KIND: ContextVar[str] = ContextVar("servicebroker_face", default="Python")


def client_kind() -> str:
    """Return the kind of client of the current context."""
    return _CLIENT_KIND.get()


def audit_context_sql(first: int) -> str:
    """Return select or RETURNING expressions that give the audit's triggers the principal and the kind of client.

    The triggers run after them. Their parameters, from number `first` on, are the principal and `client_kind()`.
    """
    return (
        f"set_config('servicebroker.principal', ${first}, true), set_config('servicebroker.face', ${first + 1}, true)"
    )


@contextmanager
def entered_by(name: str) -> Iterator[None]:
    """Run the block as this kind of client."""
    before = _CLIENT_KIND.set(name)
    try:
        yield
    finally:
        _CLIENT_KIND.reset(before)
