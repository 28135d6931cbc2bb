"""What translated T-SQL calls: functions and views of the schema tsql, made anew after every migration."""

from __future__ import annotations

from importlib import resources


def library() -> list[str]:
    """The files, in the order in which they need each other."""
    names = ("conversions", "numbers", "strings", "times", "json", "xml", "sizes", "views", "names")
    return [(resources.files(__package__) / f"{name}.sql").read_text() for name in names]
