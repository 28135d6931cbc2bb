"""Judges of one text: `tsql check`, and the run in an instance of its own."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from servicebroker.api.instance import Instance
from servicebroker.cli.sqlcmd import Sqlcmd
from servicebroker.model.errors import BrokerError
from servicebroker.tsql.check import check
from servicebroker.tsql.postgres_errors import UNMAPPED_ERROR
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError

CHECK_LIMIT_S = 20.0  # the time for one text; more is a failure
RUN_LIMIT_S = 3.0  # the time for one text; more is not a failure, because of loops and WAITFOR
_REPEAT_S = 0.5  # an exception in a callback of the garbage collector is lost, so the signal repeats
CASES_PER_DATABASE = 50  # a database that has collected too many objects tells less
_DATABASE = "Fuzzed"
_WRITES_FILES = ("FILE", "BACKUP")  # a script with one of these words is not run


class Failure(NamedTuple):
    """A text that broke check or the run, and how."""

    number: int
    judge: str
    problem: str
    text: str


class _TimeIsUp(BaseException):
    """The time of a text is over."""


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[list[float]]:
    """Raise `_TimeIsUp` in the block after a time. The yielded list is empty until then.

    A `_TimeIsUp` that the garbage collector loses is not reported.
    """
    over: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        over.append(seconds)
        raise _TimeIsUp

    report = sys.unraisablehook

    def report_unless_late(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not _TimeIsUp:
            report(unraisable)

    before, wakeup = signal.signal(signal.SIGALRM, stop), signal.set_wakeup_fd(-1)
    sys.unraisablehook = report_unless_late
    signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_S)
    try:
        yield over
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        signal.signal(signal.SIGALRM, before)
        signal.set_wakeup_fd(wakeup)


def judge_check(text: str, folder: Path) -> str:
    """Check a text as the command does. Return the problem, "" if there is none."""
    try:
        with _limit(CHECK_LIMIT_S):
            try:
                script = Sqlcmd().expand(text, folder).text
            except TsqlError:  # a directive has failed
                script = text
            findings = list(check(script))
    except _TimeIsUp:
        return f"takes more than {CHECK_LIMIT_S} s"
    except Exception as error:
        return _describe(error)
    wrong = [finding for finding in findings if not finding.line or not finding.statement]
    return f"a finding without its place: {wrong[0]}" if wrong else ""


class Runner:
    """Runs texts in an instance."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._count = 0

    def judge_run(self, text: str) -> str:
        """Run a text in a session of its own. Return the problem, "" if there is none."""
        if any(word in text.upper() for word in _WRITES_FILES):
            return ""
        self._count += 1
        if self._count % CASES_PER_DATABASE == 0:
            with contextlib.suppress(BrokerError):
                self._instance.drop_database(_DATABASE)
        outputs: list[object] = []
        with _limit(RUN_LIMIT_S) as over:
            try:
                with Session(self._instance.database(_DATABASE, create=True), outputs.append) as session:
                    session.run(text)
            except _TimeIsUp:
                return ""
            except Exception as error:  # a session whose statement was interrupted fails to roll back
                return "" if over else _describe(error)
        errors = [output for output in outputs if isinstance(output, TsqlError)]
        unmapped = [output for output in errors if output.number == UNMAPPED_ERROR and "(PostgreSQL" in output.text]
        wrong = unmapped or [output for output in errors if output.line < 1]
        return f"{wrong[0]}" if wrong else ""


def _describe(raised: Exception) -> str:
    """Return the exception with the place that raised it."""
    trace = raised.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code if trace is not None else None
    location = f" in {Path(code.co_filename).name} {code.co_name}" if code is not None else ""
    return f"{type(raised).__name__}: {raised}"[:400] + location
