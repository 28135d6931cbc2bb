"""What translated T-SQL calls: functions and views of the schema tsql, made anew after every migration."""

from __future__ import annotations

import re
from importlib import resources

from servicebroker.model.errors import RULES


def library() -> list[str]:
    """The files, in the order in which they need each other, and the view of the errors."""
    values = (
        "conversions",
        "binary_forms",
        "numbers",
        "strings",
        "times",
        "json",
        "xml",
        "xml_changes",
        "xquery",
        "sizes",
    )
    catalog = ("views", "constraints", "names", "variants", "isolation", "column_types", "diversions")
    return [*((resources.files(__package__) / f"{name}.sql").read_text() for name in values + catalog), _messages()]


def _messages() -> str:
    """sys.messages: the errors of the broker; those of the language stand where they are raised."""
    rows = ", ".join(f"({number}, {rule.severity}, '{_shown(rule.text)}')" for number, rule in sorted(RULES.items()))
    return (
        "create or replace view tsql.messages with (security_invoker = true) as "
        "select number as message_id, 1033::smallint as language_id, level::smallint as severity, "
        "0::smallint as is_event_logged, text "
        f"from (values {rows}) known (number, level, text)"
    )


def _shown(text: str) -> str:
    return re.sub(r"\{\d+\}", "%s", text).replace("'", "''")
