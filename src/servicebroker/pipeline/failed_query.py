"""Finds the reason of a failed Spark query in Spark's error text."""

from __future__ import annotations

import itertools
import re

from pyspark.errors import PySparkException

from servicebroker.pipeline.definition import StopError

_ERROR = re.compile(r"([\w.]+(Error|Exception)|([a-z_]\w*\.)+[A-Z]\w+): ")
_OWN_ERROR = re.compile(r"\bservicebroker(?:\.[a-z_]+)+\.([A-Z]\w*): (.+)")


def reason(problem: PySparkException) -> str:
    """Return the reason of a failure, without query plan and stack traces.

    For an error of servicebroker, return its text. For another error of Python, return its type and text. Otherwise
    return the first lines of Spark's message and the last cause.
    """
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    own_errors = [match[2] for line in lines if (match := _OWN_ERROR.search(line))]
    if own_errors:
        return own_errors[-1]
    if python_errors := _python_errors(str(problem)):
        return python_errors[-1]
    head = list(itertools.takewhile(lambda line: not line.startswith(("=== ", "JVM stacktrace", "at ")), lines))
    causes = [line for line in lines if line.startswith("Caused by:") or _ERROR.match(line)]
    return " ".join([*head[:2], *causes[-1:]]) or "no reason was given"


def _python_errors(text: str) -> list[str]:
    """Return the error of each Python traceback in a text: its first line that is not indented."""
    errors = []
    is_inside = False
    for line in text.splitlines():
        if "Traceback (most recent call last):" in line:
            is_inside = True
        elif is_inside and line[:1].strip():
            name, separator, sentence = line.strip().partition(": ")
            errors.append(f"{name.rpartition('.')[2]}{separator}{sentence}")
            is_inside = False
    return errors


def is_final(problem: PySparkException) -> bool:
    """True if the query must not be restarted, because a rule of its pipeline says "stop"."""
    return any(match[1] == StopError.__name__ for match in _OWN_ERROR.finditer(str(problem)))
