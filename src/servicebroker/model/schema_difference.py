"""The difference between the schema of an instance and the schema of this version."""

from __future__ import annotations

from typing import NamedTuple


class SchemaDifference(NamedTuple):
    """The highest migration number of a schema, and the numbers of missing and of unknown migrations."""

    number: int
    missing: int
    unknown: int
