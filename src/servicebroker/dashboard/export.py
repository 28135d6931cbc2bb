"""Exports: the messages or the dead letters of a page as JSON lines, one object on each line.

An export has at most as many messages as a page searches, and the whole body of each, up to a limit. Bodies and
tracebacks are left out for a role that may not see them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from servicebroker.dashboard.pages import PageQuery, chosen_dead_letters
from servicebroker.dashboard.readers import Reader
from servicebroker.engine.diagnosis import dashboard_queries
from servicebroker.store.statements import Steps

MAX_EXPORT = 1000  # messages
MAX_BODY_BYTES = 16_384  # the most bytes of a body, because a whole export is in memory
MEDIA_TYPE = "application/x-ndjson"

Lines = Callable[[Reader], list[str]]


def export_queue(fields: PageQuery, *, with_bodies: bool) -> Lines:
    """Return the query for the first messages of a queue that match the search of its page."""

    def steps() -> Steps[list[str]]:
        queue = yield from dashboard_queries.find_queue_details(fields["database"], fields["queue"])
        messages = yield from dashboard_queries.message_heads(
            queue.queue_id,
            fields.get("type", ""),
            fields.get("text", ""),
            limit=MAX_EXPORT,
            head_bytes=MAX_BODY_BYTES if with_bodies else 0,
        )
        place = {"database": queue.database, "queue": queue.name}
        return _lines(({**place, **message._asdict()} for message in messages), with_bodies)

    return lambda reader: reader.begin().read(steps())


def export_dead_letters(fields: PageQuery, *, with_bodies: bool) -> Lines:
    """Return the query for the dead letters that match the filter of their page, the latest first."""

    def steps() -> Steps[list[str]]:
        letters = yield from dashboard_queries.dead_letters(
            chosen_dead_letters(fields), limit=MAX_EXPORT, head_bytes=MAX_BODY_BYTES if with_bodies else 0
        )
        return _lines((letter._asdict() for letter in letters), with_bodies)

    return lambda reader: reader.begin().read(steps())


EXPORTS: Mapping[str, Callable[..., Lines]] = {"queue": export_queue, "dead-letters": export_dead_letters}


def _lines(rows: Iterable[dict[str, Any]], with_bodies: bool) -> list[str]:
    return [json.dumps(_exported(row, with_bodies), default=_to_text) + "\n" for row in rows]


def _exported(row: dict[str, Any], with_bodies: bool) -> dict[str, Any]:
    """Return a message for its line. A body is a text in UTF-8 if possible, else hexadecimal."""
    head, size = row.pop("head"), row["size"]
    del row["validation"]
    if not with_bodies:
        row.pop("traceback", None)
        return row
    body = bytes(head or b"")
    try:
        row["body"] = None if head is None else body.decode()
    except UnicodeDecodeError:
        row["body_hex"] = body.hex()
    if len(body) < size:
        row["is_body_cut"] = True
    return row


def _to_text(value: datetime | UUID) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
