"""Bodies of multicasts, stored once.

A row with `is_shared` has the key of its reader in place of the body. Deleting such a row for good must delete its
reader too; a trigger removes the body with the last reader.
"""

from __future__ import annotations

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MESSAGE_BODY = (  # of a row, wherever it is stored
    "case when is_shared then (select body from servicebroker.shared_bodies "
    "join servicebroker.shared_body_readers using (body_id) where reader = message_body) else message_body end"
)
READERS_GONE = (
    "delete from servicebroker.shared_body_readers where reader = any (array("
    "select message_body from gone where is_shared))"
)
NEW_READER = "uuid_send(gen_random_uuid())"


def store(body: bytes) -> Steps[int]:
    """Store a body that has no reader yet. Returns its id."""
    rows = yield SQL("store", (body,))
    return int(rows[0][0])


def remove_if_unread(body_id: int) -> Statement:
    """Remove a body that has no reader."""
    return SQL("remove_if_unread", (body_id,))


def remove_unread(limit: int = 100) -> Steps[int]:
    """Remove bodies whose last readers were deleted at the same time, unseen by each other. Returns their number."""
    rows = yield SQL("remove_unread", (limit,))
    return len(rows)


def purge(table: str, condition: str, *parameters: object) -> Statement:
    """Delete unread those rows of a message table that meet the condition."""
    return Statement(
        "shared_bodies.purge",
        f"with gone as (delete from servicebroker.{table} where {condition} returning is_shared, message_body) "
        + READERS_GONE,
        parameters,
    )
