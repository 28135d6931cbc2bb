"""TOML of files that people write, with one kind of error for everything that may be wrong in them."""

from __future__ import annotations

import tomllib
from typing import Any


def parse_toml(text: str) -> dict[str, Any]:
    """Return the contents of a TOML text.

    Raises:
        ValueError: it is no TOML, or has values that Python does not read; the message says which.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has too many digits") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
