"""The body of an event notification's message: UTF-16 XML, written and read.

The rules: docs/reference/rules.md#event-notifications.
"""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import NamedTuple

QUEUE_ACTIVATION = "QUEUE_ACTIVATION"
BROKER_QUEUE_DISABLED = "BROKER_QUEUE_DISABLED"
ON_QUEUE = (QUEUE_ACTIVATION, BROKER_QUEUE_DISABLED)  # the events that a notification on a queue may name


class EventInstance(NamedTuple):
    """What happened to which queue, in the words and order of the message."""

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


_ELEMENTS = (
    *("EventType", "PostTime", "SPID", "ServerName", "LoginName", "UserName"),
    *("DatabaseName", "SchemaName", "ObjectName", "ObjectType"),
)


def post_time(at: datetime) -> str:
    """A moment as it stands in the message, to the millisecond."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}"


def event_body(event: EventInstance) -> bytes:
    """The message body, UTF-16 with a byte order mark."""
    inner = "".join(
        f"<{name}>{escape(str(value), quote=False)}</{name}>" for name, value in zip(_ELEMENTS, event, strict=True)
    )
    return f"<EVENT_INSTANCE>{inner}</EVENT_INSTANCE>".encode("utf-16")


def read_event(body: bytes | None) -> EventInstance:
    """The event of a message of the type EventNotification.

    Raises:
        ValueError: the body is none.
    """
    from lxml import etree  # who reads no XML does not load what parses it

    from servicebroker.model.xml import parse

    try:
        root = parse(body or b"")
    except etree.XMLSyntaxError as problem:
        raise ValueError(f"not an event notification: {problem}") from None
    values = [root.findtext(name) for name in _ELEMENTS]
    spid = values[2] or ""
    if root.tag != "EVENT_INSTANCE" or None in values or not spid.isdecimal():
        raise ValueError("not an event notification: elements of EVENT_INSTANCE are missing")
    event = EventInstance._make([value or "" for value in values])
    return event._replace(spid=int(spid))
