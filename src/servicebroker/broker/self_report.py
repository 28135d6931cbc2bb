"""What the daemon tells of itself, for `doctor` and `status`: where it listens, and what it fails at now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from servicebroker.broker.transport.connections import show
from servicebroker.model.daemon_reports import Subject


class Report(NamedTuple):
    """One row of servicebroker.daemon_reports, without its pid."""

    subject: str
    is_trouble: bool
    report: str
    since: datetime


class SelfReport:
    """The reports of one daemon; they are written when one has changed."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._reports: dict[Subject, Report] = {}
        self._shown: list[Report] | None = None

    def trouble(self, subject: Subject, problem: str) -> bool:
        """Note what the daemon fails at; '' when it fails no more. Returns whether that is new."""
        return self._note(subject, problem, is_trouble=True)

    def note(self, subject: Subject, report: str) -> bool:
        """Note a state that is no trouble; '' when there is none. Returns whether that is new."""
        return self._note(subject, report, is_trouble=False)

    def _note(self, subject: Subject, report: str, *, is_trouble: bool) -> bool:
        known = self._reports.get(subject)
        if (known.report if known else "") == report:
            return False
        if report:
            self._reports[subject] = Report(subject, is_trouble, report, self._clock())
        else:
            del self._reports[subject]
        return True

    def write(self, connection: psycopg.Connection[Any], *, anew: bool = False) -> None:
        """Show the reports, if one has changed; `anew` is for a new session, whose pid is another one."""
        reports = list(self._reports.values())
        if anew or reports != self._shown:
            show(connection, "daemon_reports", Report._fields, reports)
            self._shown = reports
