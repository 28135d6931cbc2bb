"""A fault that can be planted in a file, whatever its language."""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    """One change of a text: the `occurrence`-th place, from 0, at which the operator applies."""

    family: str
    operator: str
    occurrence: int
    line: int  # the line number, from 1
