"""TOML files written by users, with one kind of error for all mistakes in them."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 100  # parts of a key such as a.b.c; the time of tomllib grows with their square
MAX_DEPTH = 100  # nested tables and arrays; readers are recursive
_PART = r"(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')"
_PARTS = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the contents of a TOML text. A byte order mark, as editors of Windows write it, is skipped.

    Raises:
        ValueError: the text is not TOML, or has values that Python cannot read; the message names them.
    """
    if any(len(re.findall(_PART, match[0])) > MAX_KEY_PARTS for match in _PARTS.finditer(text)):
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts")
    try:
        content = tomllib.loads(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"))
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has too many digits") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not _is_shallow(content):
        raise ValueError("it is nested too deeply")
    return content


def _is_shallow(content: dict[str, Any]) -> bool:
    """Return whether no value is nested deeper than `MAX_DEPTH`. The loop goes level by level, without recursion."""
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False
