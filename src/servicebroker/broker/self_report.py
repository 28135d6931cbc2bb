"""The daemon's reports for `doctor`: its version, its address and its present failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg

from servicebroker.broker.transport.connections import show
from servicebroker.model.daemon_reports import DaemonReport, Subject


class SelfReport:
    """The reports of one daemon, at most one for each subject. They are written after a change."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._reports: dict[Subject, DaemonReport] = {}
        self._written: list[DaemonReport] | None = None

    def tell(self, subject: Subject, report: str) -> bool:
        """Set the report of a subject; '' removes it. Returns whether it has changed."""
        if self._report_on(subject) == report:
            return False
        if report:
            self._reports[subject] = DaemonReport(subject, report, self._clock())
        else:
            del self._reports[subject]
        return True

    def has(self, subject: Subject) -> bool:
        """Return whether the subject has a report."""
        return subject in self._reports

    def _report_on(self, subject: Subject) -> str:
        return self._reports[subject].report if subject in self._reports else ""

    def write(self, connection: psycopg.Connection[Any], *, anew: bool = False) -> None:
        """Write the reports if one has changed.

        `anew`: write them in any case. A new session needs this, since the rows belong to a pid.
        """
        reports = list(self._reports.values())
        if anew or reports != self._written:
            show(connection, "daemon_reports", DaemonReport._fields, reports)
            self._written = reports
