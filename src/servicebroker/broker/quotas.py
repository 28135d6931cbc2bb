"""Quotas of incomplete messages: applied to received fragments, and kept equal to the stored ones.

The rules are those of `protocol/unfinished.py`. The accounts are in memory, and are loaded from the store at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.conversations import Conversations, Entry
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Link
from servicebroker.protocol.conversation_states import Storing
from servicebroker.protocol.unfinished import UnfinishedMessages


class ExpiredConversations(NamedTuple):
    """The conversations whose incomplete messages were deleted. `openings`: those that were deleted as a whole."""

    handles: list[UUID]
    openings: list[UUID]


NONE_EXPIRED = ExpiredConversations([], [])


class Quotas:
    """The quotas of the peers of one share, used only for conversations with incomplete messages."""

    def __init__(
        self, conversations: Conversations, unfinished: UnfinishedMessages, seconds: Callable[[], float]
    ) -> None:
        self._conversations = conversations
        self._unfinished = unfinished
        self._seconds = seconds

    def load(self, store: Store) -> None:
        """Count the stored incomplete messages."""
        self._unfinished.load(store.unfinished(), self._seconds())

    def note(self, link: Link, handle: UUID, entry: Entry) -> None:
        """Count the incomplete messages of a conversation after a frame of a link."""
        begun = entry.dialog.begun
        if begun is not None:
            self._unfinished.note(link.owner, handle, begun, self._seconds())
        elif handle in self._unfinished:
            self._unfinished.forget(handle)

    def renote(self, handle: UUID) -> None:
        """Count a conversation again after its batch was dropped."""
        owner, entry = self._unfinished.owner(handle), self._conversations.get(handle)
        if owner is None or entry is None:
            return
        begun = entry.dialog.begun
        if begun is None:
            self._unfinished.forget(handle)
        else:
            self._unfinished.note(owner, handle, begun, self._seconds())

    def forget(self, handles: Iterable[UUID]) -> None:
        """Stop counting conversations that have ended."""
        for handle in handles:
            if handle in self._unfinished:
                self._unfinished.forget(handle)

    def owners(self, handles: Iterable[UUID]) -> dict[UUID, str]:
        """Return the owners of the stored fragments of these conversations, for those that have some."""
        owners = {handle: self._unfinished.owner(handle) for handle in handles}
        return {handle: owner for handle, owner in owners.items() if owner is not None}

    def expire(self, store: Store) -> ExpiredConversations:
        """Delete incomplete messages that were idle for too long. Returns their conversations, for the log.

        Conversations that applications have ended are no longer counted: nothing else reports their end to this side.
        """
        now = self._seconds()
        quiet = [handle for handle in self._unfinished.quiet(now) if self._is_at_rest(handle)]
        if quiet:
            self.forget(set(quiet) - {stored.conversation_handle for stored in store.unfinished(quiet)})
        idle = [handle for handle in self._unfinished.idle(now) if self._is_at_rest(handle)]
        dropped = store.drop_unfinished(idle) if idle else []
        headless = [handle for handle in dropped if self._unfinished.is_headless(handle)]
        return ExpiredConversations(dropped, store.drop_openings(headless) if headless else [])

    def _is_at_rest(self, handle: UUID) -> bool:
        entry = self._conversations.get(handle)
        return entry is None or (entry.storing is Storing.NOTHING and not entry.dialog.is_storing)

    def expired(self, expired: ExpiredConversations) -> None:
        """Update the memory after incomplete messages were deleted: they are no longer acknowledged."""
        for handle in expired.handles:
            owner = self._unfinished.owner(handle)
            if owner is not None:
                journal.log_expired_fragments(owner, handle)
                self._unfinished.forget(handle)
            if entry := self._conversations.get(handle):
                entry.dialog.forget_kept()
        for handle in expired.openings:
            self._conversations.forget(handle)
