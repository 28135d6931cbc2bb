"""Findings as values: a problem in words, advice, and remedies that the dashboard offers as buttons."""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum
from typing import NamedTuple

UNEXPLAINED_WAIT = timedelta(seconds=10)  # wait without a known reason, from which it is reported
REPEATED_TIMES = 3  # broken connections with a peer, or replaced processes of the daemon, from which they are reported
NO_REASON = "nobody has said why."


class Severity(IntEnum):
    """The urgency of a finding. Only TROUBLE is shown in red."""

    NOTE = 0  # no action is needed
    WARNING = 1  # messages still move; somebody should look in the daytime
    TROUBLE = 2  # messages stand still, are refused, or may be lost


class Remedy(NamedTuple):
    """An action that a finding advises: its name in dashboard/remedies.py, and the object to act on.

    `database` is the database of a conversation, if the finding is about another object.
    """

    name: str
    subject: str
    database: str = ""


class Finding(NamedTuple):
    """A problem, or a possible one: its subject, its description, advice, and remedies that follow the advice."""

    subject: str
    problem: str
    advice: str
    severity: Severity = Severity.TROUBLE
    acts: tuple[Remedy, ...] = ()


class ConversationFinding(NamedTuple):
    """A finding about one conversation, which needs no subject."""

    problem: str
    advice: str
    severity: Severity = Severity.TROUBLE
    acts: tuple[Remedy, ...] = ()


def end_session(pid: int) -> Remedy:
    """Return the remedy that ends a session of the server."""
    return Remedy("end-session", str(pid))


def duration(time: timedelta) -> str:
    """Return a time as text, in the largest unit that gives at least 2: `2 minutes`, `119 seconds`."""
    seconds = int(time.total_seconds())
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
