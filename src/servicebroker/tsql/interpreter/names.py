"""Names in the form that the API takes."""

from __future__ import annotations

import re

from servicebroker.model.names import bracketed
from servicebroker.tsql.syntax import Name

_NEEDS_BRACKETS = re.compile(r"[.\[\]]")


def api_name(name: Name) -> str:
    """Return a queue's name for the API, without the database, with brackets only where they are needed."""
    parts = [part for part in (name.schema, name.object) if part]
    return ".".join(bracketed(part) if _NEEDS_BRACKETS.search(part) else part for part in parts)
