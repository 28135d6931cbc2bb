"""The difference between the schema of an instance and the one that this version makes."""

from __future__ import annotations

from typing import NamedTuple


class SchemaDifference(NamedTuple):
    """The highest number of a schema, and how many steps it lacks or has that this version does not know."""

    number: int
    missing: int
    unknown: int
