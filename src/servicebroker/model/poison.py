"""When a queue is switched off by itself: five rollbacks in a row of transactions that received from it.

Plain values: who asks says which transactions have ended and how (reference 04 section 7.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LIMIT = 5  # rollbacks
_PENDING_KEPT = 10_000


class Rollbacks:
    """The rollbacks of each queue, and the transactions that have received and whose end is not known yet."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._pending: dict[int, set[int]] = {}

    def received(self, transaction: int, queues: Iterable[int]) -> None:
        """A transaction has taken messages from these queues; how it ends will be asked for."""
        self._pending.setdefault(transaction, set()).update(queues)
        while len(self._pending) > _PENDING_KEPT:
            del self._pending[next(iter(self._pending))]

    def committed(self, queues: Iterable[int]) -> None:
        """A transaction that took messages from these queues was committed."""
        for queue in queues:
            self._counts.pop(queue, None)

    def rolled_back(self, queues: Iterable[int]) -> list[int]:
        """A transaction that took messages from these queues was rolled back. Returns the queues to switch off."""
        reached = []
        for queue in queues:
            self._counts[queue] = self._counts.get(queue, 0) + 1
            if self._counts[queue] >= LIMIT:
                del self._counts[queue]  # it begins again when the queue is switched on
                reached.append(queue)
        return reached

    def is_due(self, queue: int) -> bool:
        """Whether the queue may have reached the limit: time to ask how the pending transactions have ended."""
        if not self._pending:
            return False
        return self._counts.get(queue, 0) + sum(queue in queues for queues in self._pending.values()) >= LIMIT

    def pending(self) -> list[int]:
        """The transactions to ask for."""
        return list(self._pending)

    def ended(self, outcomes: Mapping[int, str | None]) -> list[int]:
        """How transactions have ended: 'committed', 'aborted', 'in progress', None when too long ago to know.

        Returns the queues to switch off.
        """
        reached: list[int] = []
        for transaction in sorted(outcomes):
            if outcomes[transaction] == "in progress":
                continue
            queues = self._pending.pop(transaction, set())
            if outcomes[transaction] == "committed":
                self.committed(queues)
            elif outcomes[transaction] == "aborted":
                reached += self.rolled_back(queues)
        return reached


def reason(queue: str) -> str:
    """What the event says of a queue that was switched off."""
    return f"The queue '{queue}' was switched off after five rollbacks of transactions that received."
