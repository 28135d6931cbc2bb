"""Shared bodies: the body of a multicast (one SEND on several conversations) is stored once.

A message row with `is_shared` has the key of a reference row (`shared_body_readers`) in place of the body. A statement
that deletes such a message for good must delete its reference row, too. A trigger deletes the body with its last
reference row.
"""

from __future__ import annotations

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MESSAGE_BODY = (  # the body of a message row, in any table of messages
    "case when is_shared then (select body from servicebroker.shared_bodies "
    "join servicebroker.shared_body_readers using (body_id) where reader = message_body) else message_body end"
)
DELETE_REFERENCES_SQL = (
    "delete from servicebroker.shared_body_readers where reader = any (array("
    "select message_body from deleted where is_shared))"
)
NEW_REFERENCE_SQL = "uuid_send(gen_random_uuid())"


def store(body: bytes) -> Steps[int]:
    """Store a body without reference rows. Returns its id."""
    rows = yield SQL("store", (body,))
    return int(rows[0][0])


def remove_if_unread(body_id: int) -> Statement:
    """Delete a body that has no reference row."""
    return SQL("remove_if_unread", (body_id,))


def delete_unreferenced_bodies(limit: int = 100) -> Steps[int]:
    """Delete up to `limit` bodies without reference rows. Returns their number.

    The trigger leaves them if two transactions delete the last two reference rows at the same time.
    """
    rows = yield SQL("delete_unreferenced_bodies", (limit,))
    return len(rows)


def purge(table: str, condition: str, *parameters: object) -> Statement:
    """Delete the rows of a message table that meet the condition, with their reference rows. No body is read."""
    return Statement(
        "shared_bodies.purge",
        f"with deleted as (delete from servicebroker.{table} where {condition} returning is_shared, message_body) "
        + DELETE_REFERENCES_SQL,
        parameters,
    )
