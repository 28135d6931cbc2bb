"""An instance with two restricted roles, their services and conversations, for tests of the fence (functions for such
roles)."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import servicebroker as sb
from portal import deliver
from support import query, queue_number

MALLORY = "mallory"
ALICE = "alice"
SECRET = b"a secret of Alice's"


class TwoRoles(NamedTuple):
    """A database, and the URLs with which the restricted roles Alice and Mallory connect to it."""

    database: sb.Database
    alice: str
    mallory: str


def deliver_now(two_roles: TwoRoles) -> None:
    with two_roles.database.instance.connection() as connection:
        deliver(connection, two_roles.database.instance.clock())


def conversation(two_roles: TwoRoles, initiator: str, target: str, body: bytes) -> tuple[UUID, UUID]:
    """Begin a conversation, with a waiting message in the queue of each side. Returns both handles."""
    database = two_roles.database
    handle = database.begin_dialog(f"//bank/{initiator}", f"//bank/{target}", contract="//bank/Contract")
    database.send(handle, "//bank/Order", body)
    (peer,) = query(
        database, "select far_handle from servicebroker.conversation_endpoints where conversation_handle = %s", handle
    )[0]
    database.send(peer, "//bank/Order", body)
    return handle, peer


def in_queue(two_roles: TwoRoles, queue: str) -> list[bytes | None]:
    """Return the bodies of the messages in a queue, without receiving them."""
    text = (
        f"select message_body from servicebroker.queue_{queue_number(two_roles.database, queue)} order by queuing_order"
    )
    return [row[0] for row in query(two_roles.database, text)]
