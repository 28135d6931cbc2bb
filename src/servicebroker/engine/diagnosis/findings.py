"""Findings as values: a problem in words, with advice and acts."""

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


class Act(NamedTuple):
    """An act that a finding advises, as the dashboard offers it: its name, and the object that it acts on.

    `database` is that of a conversation, if the finding is about something else.
    """

    name: str
    subject: str
    database: str = ""


class Finding(NamedTuple):
    """A problem, or a possible one: its subject, its description, and advice, with acts that follow the advice."""

    subject: str
    problem: str
    advice: str
    severity: Severity = Severity.TROUBLE
    acts: tuple[Act, ...] = ()


class ConversationFinding(NamedTuple):
    """A finding about a conversation, whose handle is known."""

    problem: str
    advice: str
    severity: Severity = Severity.TROUBLE
    acts: tuple[Act, ...] = ()


def end_session(pid: int) -> Act:
    """Return the act that ends a session of the server."""
    return Act("end-session", str(pid))


def duration(time: timedelta) -> str:
    """Return a time in the largest unit of which there are two: `2 minutes`."""
    seconds = int(time.total_seconds())
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
