"""Bodies of multicasts, stored once: who may forget a row that refers to one, and what sweeps up after all.

A row with `is_shared` carries the key of its reader in place of the body. Whoever takes such a row away for good
removes its reader too, and a trigger removes the body with the last of them.
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
    """Store a body that nobody refers to yet. Returns its number."""
    rows = yield SQL("store", (body,))
    return int(rows[0][0])


def remove_if_unread(body_id: int) -> Statement:
    """Remove a body that nobody came to refer to."""
    return SQL("remove_if_unread", (body_id,))


def remove_unread(limit: int = 100) -> Steps[int]:
    """Remove bodies whose last readers went at the same time and did not see each other. Returns how many."""
    rows = yield SQL("remove_unread", (limit,))
    return len(rows)


def purge(table: str, condition: str, *parameters: object) -> Statement:
    """Delete the rows of a table of messages that meet the condition, unread."""
    return Statement(
        "shared_bodies.purge",
        f"with gone as (delete from servicebroker.{table} where {condition} returning is_shared, message_body) "
        + READERS_GONE,
        parameters,
    )
