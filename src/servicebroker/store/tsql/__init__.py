"""The functions and views of the schema `tsql`, which translated T-SQL calls. Every migration recreates them."""

from __future__ import annotations

import re
from importlib import resources

from servicebroker.model.errors import RULES
from servicebroker.model.event_types import parents
from servicebroker.model.number_bounds import MONEY, WHOLE
from servicebroker.model.xml_problems import TEXTS
from servicebroker.model.zero_character import ZERO


def library() -> list[str]:
    """Return the definitions of the schema, from the SQL files and generated, in the order of their dependencies."""
    values = (
        "conversions",
        "binary_forms",
        "numbers",
        "strings",
        "times",
        "time_zones",
        "compression",
        "json",
        "xml",
        "xml_changes",
        "xquery",
        "sizes",
    )
    catalog = ("views", "constraints", "names", "variants", "isolation", "diversions")
    return [
        _bounds(),
        _zero(),
        _xml_problems(),
        *((resources.files(__package__) / f"{name}.sql").read_text() for name in values + catalog),
        _messages(),
        *_event_types(),
        *((resources.files(__package__) / f"{name}.sql").read_text() for name in ("legacy_views", "column_types")),
    ]


def _bounds() -> str:
    """Return the definition of `tsql.bounds()`: the bounds of T-SQL's numeric types."""
    rows = ", ".join(f"('{name}', {low}::numeric, {high}::numeric)" for name, (low, high) in {**WHOLE, **MONEY}.items())
    return (
        "create or replace function tsql.bounds() returns table (type text, low numeric, high numeric) "
        f"language sql immutable parallel safe as $$ values {rows} $$"
    )


def _zero() -> str:
    """Return the definition of `tsql.zero()`: the substitute for U+0000, which PostgreSQL cannot store."""
    return (
        "create or replace function tsql.zero() returns text language sql immutable parallel safe "
        f"return chr({ord(ZERO)})"
    )


def _xml_problems() -> str:
    """Return the definition of `tsql.xml_problem()`: the text of an error in XML, by its number."""
    texts = " ".join(f"when {number} then $text${text}$text$" for number, text in TEXTS.items())
    return (
        "create or replace function tsql.xml_problem(number integer) returns text language sql immutable parallel safe "
        f"return case number {texts} end"
    )


def _messages() -> str:
    """Return the definition of the view for sys.messages, with the broker's errors and those of sp_addmessage."""
    rows = ", ".join(f"({number}, {rule.severity}, '{_shown(rule.text)}')" for number, rule in sorted(RULES.items()))
    return (
        "create or replace view tsql.messages with (security_invoker = true) as "
        "select number as message_id, 1033::smallint as language_id, level::smallint as severity, "
        "0::smallint as is_event_logged, text "
        f"from (values {rows}) known (number, level, text) union all "
        "select message_id, language_id, severity, is_event_logged::integer::smallint, text "
        "from servicebroker.tsql_messages"
    )


def _event_types() -> list[str]:
    """Return the definitions of the views for sys.event_notification_event_types and sys.trigger_event_types.

    Groups have ids from 10001, as in SQL Server.
    """
    known = dict(parents())  # the view shows an event of two groups in the last one
    groups = set(known.values()) - {""}
    events = [name for name in known if name not in groups]
    numbers = {name: number for number, name in enumerate(events, 1)}
    numbers |= {name: number for number, name in enumerate((name for name in known if name in groups), 10001)}
    rows = ", ".join(
        f"({numbers[name]}, '{name}', {numbers.get(parent, 'null::integer')})" for name, parent in known.items()
    )
    return [
        f"create or replace view tsql.{name} with (security_invoker = true) as "
        f"select type, type_name, parent_type from (values {rows}) known (type, type_name, parent_type)"
        for name in ("event_notification_event_types", "trigger_event_types")
    ]


def _shown(text: str) -> str:
    """Return a text for a string literal of SQL, with %s for its parameters."""
    return re.sub(r"\{\d+\}", "%s", text).replace("'", "''")
