"""The body of an event notification's message: UTF-16 XML, written and read.

The rules: docs/reference/rules.md#event-notifications.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from servicebroker.model.messages import xml_text

Element: TypeAlias = "tuple[str, str | Sequence[Element]]"  # its name, and its text or its child elements


class EventInstance(NamedTuple):
    """An event and its object, with the names and the order of the message.

    A missing element is '': a login has no schema, and only DDL has a command.
    """

    event_type: str
    post_time: str
    spid: int
    server_name: str
    login_name: str
    user_name: str
    database_name: str
    schema_name: str
    object_name: str
    object_type: str = "QUEUE"
    command: str = ""


_ELEMENTS = (
    *("EventType", "PostTime", "SPID", "ServerName", "LoginName", "UserName"),
    *("DatabaseName", "SchemaName", "ObjectName", "ObjectType"),
)
_REQUIRED_ELEMENTS = 5  # elements that every event has
_COMMAND = "TSQLCommand/CommandText"
_SET_OPTIONS = (
    '<SetOptions ANSI_NULLS="ON" ANSI_NULL_DEFAULT="ON" ANSI_PADDING="ON" QUOTED_IDENTIFIER="ON" ENCRYPTED="FALSE"/>'
)


def post_time(at: datetime) -> str:
    """Return a time as it is written in the message, to the millisecond."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}"


def event_body(event: EventInstance, more: Sequence[Element] = ()) -> bytes:
    """Return the message body, UTF-16 with a byte order mark. `more` are elements of this type of event only.

    Characters that XML cannot represent become U+FFFD: the text of a statement must not fail the conversation.
    """
    known = [(name, str(value)) for name, value in zip(_ELEMENTS, event, strict=False) if value != ""]
    inner = _written([*known, *more])
    if event.command:
        inner += f"<TSQLCommand>{_SET_OPTIONS}{_written([('CommandText', event.command)])}</TSQLCommand>"
    return f"<EVENT_INSTANCE>{inner}</EVENT_INSTANCE>".encode("utf-16")


def _written(elements: Sequence[Element]) -> str:
    return "".join(
        f"<{name}>{_escaped(value) if isinstance(value, str) else _written(value)}</{name}>" for name, value in elements
    )


def _escaped(text: str) -> str:
    return xml_text(text).replace("\r", "&#x0D;")


def read_event(body: bytes | None) -> EventInstance:
    """Return the event of a message of the type EventNotification.

    Raises:
        ValueError: the body is not an event notification.
    """
    from lxml import etree  # programs that read no XML do not load its parser

    from servicebroker.model.xml import parse

    try:
        root = parse(body or b"")
    except etree.XMLSyntaxError as problem:
        raise ValueError(f"not an event notification: {problem}") from None
    values = [root.findtext(name) for name in (*_ELEMENTS, _COMMAND)]
    spid = values[2] or ""
    if root.tag != "EVENT_INSTANCE" or None in values[:_REQUIRED_ELEMENTS] or not spid.isdecimal():
        raise ValueError("not an event notification: elements of EVENT_INSTANCE are missing")
    event = EventInstance._make([value or "" for value in values])
    return event._replace(spid=int(spid))
