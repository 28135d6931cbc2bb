"""Why a Spark query has failed, in a sentence for people."""

from __future__ import annotations

import itertools
import re

from pyspark.errors import PySparkException

from servicebroker.pipeline.definition import StopError


def reason(problem: PySparkException) -> str:
    """Return Spark's message without query plan and stacks: its first lines and the root of the chain of causes.

    If the root is an error of ours, return its sentence alone; if it is an error of Python, this error alone.
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
    """Return the errors at the ends of Python's tracebacks in a text: the first lines that are not indented."""
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
    """True if the query must not be restarted, since a rule of its pipeline says "stop"."""
    return any(found[1] == StopError.__name__ for found in _OWN_ERROR.finditer(str(problem)))


_ERROR = re.compile(r"([\w.]+(Error|Exception)|([a-z_]\w*\.)+[A-Z]\w+): ")
_OWN_ERROR = re.compile(r"\bservicebroker(?:\.[a-z_]+)+\.([A-Z]\w*): (.+)")
