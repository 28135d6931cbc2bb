"""A JSON number as it was written."""

from __future__ import annotations


class JsonNumber:
    """A JSON number as written, for numbers that Python would change: `1.10`, `1e400`, `-0`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text
