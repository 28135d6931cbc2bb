"""JSON numbers that keep the spelling of the body."""

from __future__ import annotations

from servicebroker.overriding import override


class JsonNumber:
    """A JSON number as it was written. Python would change numbers such as `1.10`, `1e400` and `-0`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    @override
    def __repr__(self) -> str:
        return self.text
