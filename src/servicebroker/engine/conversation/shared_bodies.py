"""Shared bodies: the body of a multicast (one SEND on several conversations) is stored once.

A message row with `is_shared` has the key of a reader row in place of the body. Who deletes such a message for good
deletes its reader row too. A trigger deletes the body with its last reader row.
"""

from __future__ import annotations

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MESSAGE_BODY = (  # the body of a message row, in any table of messages
    "case when is_shared then (select body from servicebroker.shared_bodies "
    "join servicebroker.shared_body_readers using (body_id) where reader = message_body) else message_body end"
)
READERS_GONE = (
    "delete from servicebroker.shared_body_readers where reader = any (array("
    "select message_body from gone where is_shared))"
)
NEW_READER = "uuid_send(gen_random_uuid())"


def store(body: bytes) -> Steps[int]:
    """Store a body without reader rows. Returns its id."""
    rows = yield SQL("store", (body,))
    return int(rows[0][0])


def remove_if_unread(body_id: int) -> Statement:
    """Delete a body that has no reader row."""
    return SQL("remove_if_unread", (body_id,))


def remove_unread(limit: int = 100) -> Steps[int]:
    """Delete up to `limit` bodies without reader rows. Returns their number.

    The trigger leaves them if two transactions delete the last two reader rows at the same time.
    """
    rows = yield SQL("remove_unread", (limit,))
    return len(rows)


def purge(table: str, condition: str, *parameters: object) -> Statement:
    """Delete the rows of a message table that meet the condition, with their reader rows. No body is read."""
    return Statement(
        "shared_bodies.purge",
        f"with gone as (delete from servicebroker.{table} where {condition} returning is_shared, message_body) "
        + READERS_GONE,
        parameters,
    )
