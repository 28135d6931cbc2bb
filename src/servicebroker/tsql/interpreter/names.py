"""Names as text: bracketed for T-SQL, and in the form that the API takes."""

from __future__ import annotations

import re

from servicebroker.tsql.syntax import Name

_NEEDS_BRACKETS = re.compile(r"[.\[\]]")


def bracketed(*parts: str) -> str:
    """Return the name with each part in brackets. A part that is left out stays empty, as in database..name."""
    return ".".join("[" + part.replace("]", "]]") + "]" if part else "" for part in parts)


def api_name(name: Name) -> str:
    """Return a queue's name for the API, without the database, with brackets only where they are needed."""
    parts = [part for part in (name.schema, name.object) if part]
    return ".".join(bracketed(part) if _NEEDS_BRACKETS.search(part) else part for part in parts)
