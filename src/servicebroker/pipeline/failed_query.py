"""Why a Spark query has failed, in a sentence for people."""

from __future__ import annotations

import itertools
import re

from pyspark.errors import PySparkException

from servicebroker.pipeline.definition import StopError


def reason(problem: PySparkException) -> str:
    """Return Spark's message without query plan and stack: its first lines and the root of the chain of causes.

    If the root is an error of ours, return its sentence alone.
    """
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    own_errors = [match[2] for line in lines if (match := _OWN_ERROR.search(line))]
    if own_errors:
        return own_errors[-1]
    head = list(itertools.takewhile(lambda line: not line.startswith(("=== ", "JVM stacktrace", "at ")), lines))
    causes = [line for line in lines if line.startswith("Caused by:") or _ERROR.match(line)]
    return " ".join([*head[:2], *causes[-1:]]) or "no reason was given"


def is_final(problem: PySparkException) -> bool:
    """True if the query must not be restarted, since a rule of its pipeline says "stop"."""
    return any(found[1] == StopError.__name__ for found in _OWN_ERROR.finditer(str(problem)))


_ERROR = re.compile(r"([\w.]+(Error|Exception)|([a-z_]\w*\.)+[A-Z]\w+): ")
_OWN_ERROR = re.compile(r"servicebroker\.(?:model\.errors|pipeline\.definition)\.(\w+): (.+)")
