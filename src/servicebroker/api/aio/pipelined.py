"""SENDs of a transaction that wait and leave together: `transaction.pipeline()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.engine.conversation.together import Waiting, checked_send
from servicebroker.engine.diagnosis.totals import SENDS
from servicebroker.model.errors import InstanceError
from servicebroker.operations.send import Send
from servicebroker.store.aio.direct import AsyncDirectConnection
from servicebroker.store.direct import is_idle
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase

ENDED_ON_ITS_CONNECTION = (
    "The transaction was committed or rolled back on its connection: leave the block to end it, and begin another one."
)
MOST_SENDS = 1_000  # that wait
MOST_BYTES = 8 * 1024 * 1024  # of their bodies


class AsyncPipeline:
    """SENDs of one `pipeline()` block.

    Attributes:
        numbers: the sequence numbers of those that have left, by the place that `send` has returned.
    """

    def __init__(self, database: AsyncDatabase, connection: AsyncDirectConnection) -> None:
        self.numbers: list[int] = []
        self._database = database
        self._connection = connection
        self._waiting: list[Waiting] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time that what waits leaves."""
        return len(self._waiting) >= MOST_SENDS or self._bytes >= MOST_BYTES

    def wait(self, operation: Send[int]) -> int:
        """A SEND that leaves before the next statement on the connection. Returns its place."""
        place = len(self.numbers) + len(self._waiting)
        send = checked_send(place, operation, self._database.instance.maximum_body)
        self._waiting.append(send)
        self._bytes += len(send.content or b"")
        self._connection.waiting.verbs = self._leave
        return place

    def sent(self, number: int) -> int:
        """A SEND that did not wait has this number, and nothing waits any more. Returns its place."""
        self.numbers.append(number)
        return len(self.numbers) - 1

    def _leave(self) -> Steps[None]:
        if is_idle(self._connection):
            raise InstanceError(ENDED_ON_ITS_CONNECTION)
        sends, self._waiting, self._bytes = self._waiting, [], 0
        database, is_done = self._database, False
        try:
            numbers = yield from database.engine.in_broker(database.engine.send_together(sends))
            is_done = True
        finally:
            if not is_done:  # what this process remembers of them may be why
                for send in sends:
                    database.catalog.forget(send.handle)
        self.numbers += [numbers[send.place] for send in sends]
        database.instance.tally.add(SENDS, len(sends))
