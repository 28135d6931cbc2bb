"""A sending service, and a queue that a pipeline reads."""

from __future__ import annotations

import itertools
from uuid import UUID

import servicebroker as sb

DATABASE = "Warehouse"
LINE, END_OF_STREAM = "Line", "EndOfStream"

_numbers = itertools.count(1)


def warehouse(instance: sb.Instance) -> sb.Database:
    database = instance.database(DATABASE, create=True)
    for name in (LINE, END_OF_STREAM):
        database.create_message_type(name)
    database.create_contract("Lines", {LINE: "INITIATOR", END_OF_STREAM: "INITIATOR"})
    return database


class Feed:
    """Two services with a queue each. Messages from `from_service` arrive in the `queue` of `to_service`, which a
    pipeline reads.
    """

    def __init__(self, database: sb.Database) -> None:
        number = next(_numbers)
        self.database = database
        self.from_service, self.to_service = f"Near{number}", f"Far{number}"
        self.reply_queue, self.queue = f"Back{number}", f"Queue{number}"
        database.create_queue(self.reply_queue)
        database.create_service(self.from_service, self.reply_queue)
        self.options = {"instance": database.instance.url, "database": DATABASE, "queue": self.queue}
        self.create()

    def create(self) -> None:
        """Create the queue and its service, for the first time or after they were dropped."""
        self.database.create_queue(self.queue)
        self.database.create_service(self.to_service, self.queue, ["Lines"])
        with self.database.instance.connection() as connection:
            sql = "select queue_id from servicebroker.queues where name = %s"
            ((self.queue_id,),) = connection.execute(sql, (self.queue,)).fetchall()
        self.table = f"servicebroker.queue_{self.queue_id}"

    def dialog(self, *bodies: bytes) -> UUID:
        """Begin a conversation, and send messages with these bodies."""
        handle = self.database.begin_dialog(self.from_service, self.to_service, contract="Lines")
        for body in bodies:
            self.database.send(handle, LINE, body)
        return handle

    def waiting_count(self) -> int:
        """Return the number of messages in the queue."""
        with self.database.instance.connection() as connection:
            ((count,),) = connection.execute(f"select count(*) from {self.table}").fetchall()
            return int(count)

    def far_states(self) -> dict[str, int]:
        """Return the number of endpoints of the reading service, by state."""
        with self.database.instance.connection() as connection:
            sql = (
                "select state, count(*) from servicebroker.conversation_endpoints e "
                "join servicebroker.services s using (service_id) where s.name = %s group by 1"
            )
            return dict(connection.execute(sql, (self.to_service,)).fetchall())
