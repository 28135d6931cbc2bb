"""Why a query of Spark has failed, for people."""

from __future__ import annotations

import itertools
import re

from pyspark.errors import PySparkException

from servicebroker.pipeline.definition import StopError


def reason(problem: PySparkException) -> str:
    """What Spark says, without the plan of the query and the stack: its first lines and the root of the chain.

    Where the root is an error of ours, its sentence alone.
    """
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    ours = [found[2] for line in lines if (found := _OURS.search(line))]
    if ours:
        return ours[-1]
    said = list(itertools.takewhile(lambda line: not line.startswith(("=== ", "JVM stacktrace", "at ")), lines))
    causes = [line for line in lines if line.startswith("Caused by:") or _ERROR.match(line)]
    return " ".join([*said[:2], *causes[-1:]]) or "no reason was given"


def is_final(problem: PySparkException) -> bool:
    """Whether the query is to stay as it is: a rule of its pipeline says stop."""
    return any(found[1] == StopError.__name__ for found in _OURS.finditer(str(problem)))


_ERROR = re.compile(r"([\w.]+(Error|Exception)|([a-z_]\w*\.)+[A-Z]\w+): ")
_OURS = re.compile(r"servicebroker\.(?:model\.errors|pipeline\.definition)\.(\w+): (.+)")
