"""The division of an instance's conversations among shares (partitions), by their identifiers.

Each conversation belongs to one share, so its messages stay in order.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

SLOT_COUNT = 256  # values of the last byte of an identifier, which is random


class Division(NamedTuple):
    """One share of a division: its number, and the number of shares."""

    number: int = 0
    shares: int = 1

    def has(self, conversation: UUID) -> bool:
        """Return whether a conversation belongs to this share."""
        return share_of(conversation, self.shares) == self.number


WHOLE = Division()


def share_of(conversation: UUID, count: int) -> int:
    """Return the number of the share that a conversation belongs to, of `count` shares."""
    return conversation.int % SLOT_COUNT % count
