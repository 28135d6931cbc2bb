"""A sending service and a queue that a pipeline reads, for the tests of the pipeline."""

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
    """Two services on queues of their own: what `near` sends, `far` gets in `queue`."""

    def __init__(self, database: sb.Database) -> None:
        number = next(_numbers)
        self.database = database
        self.near, self.far = f"Near{number}", f"Far{number}"
        self.back, self.queue = f"Back{number}", f"Queue{number}"
        database.create_queue(self.back)
        database.create_service(self.near, self.back)
        self.options = {"instance": database.instance.url, "database": DATABASE, "queue": self.queue}
        self.create()

    def create(self) -> None:
        """The queue that is read, and its service: they may have been dropped."""
        self.database.create_queue(self.queue)
        self.database.create_service(self.far, self.queue, ["Lines"])
        with self.database.instance.connection() as connection:
            sql = "select queue_id from servicebroker.queues where name = %s"
            ((self.queue_id,),) = connection.execute(sql, (self.queue,)).fetchall()
        self.table = f"servicebroker.queue_{self.queue_id}"

    def dialog(self, *bodies: bytes) -> UUID:
        """A new conversation that has sent `bodies`."""
        handle = self.database.begin_dialog(self.near, self.far, contract="Lines")
        for body in bodies:
            self.database.send(handle, LINE, body)
        return handle

    def left(self) -> int:
        """Messages in the queue."""
        with self.database.instance.connection() as connection:
            ((count,),) = connection.execute(f"select count(*) from {self.table}").fetchall()
            return int(count)

    def far_states(self) -> dict[str, int]:
        """Return the number of conversations of the reading side by state."""
        with self.database.instance.connection() as connection:
            sql = (
                "select state, count(*) from servicebroker.conversation_endpoints e "
                "join servicebroker.services s using (service_id) where s.name = %s group by 1"
            )
            return dict(connection.execute(sql, (self.far,)).fetchall())
