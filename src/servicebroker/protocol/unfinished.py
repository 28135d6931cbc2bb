"""The quota of each peer for incomplete messages: fragments that are stored, but cannot be delivered yet.

**The problem.** A large message arrives in fragments, and messages may arrive out of order. Both are stored on disk
until they are complete and in order. A peer may begin many messages and complete none, and so fill the disk. But a
quota that just refused every fragment could let two honest large messages block each other for ever.

**The rules.** A peer is the owner of a certificate, with all of its connections and conversations. Of its incomplete
messages there are two classes:

* Reserved: messages that are next in order in their conversation, the oldest first, as long as their declared sizes
  fit the quota together. The first one is reserved whatever its size. Fragments of reserved messages are always
  accepted, so each reserved message completes.
* Shared: all others. They share the quota by their received bytes. If the quota is used up, their fragments are refused
  and the senders repeat them. When a reserved message is complete, the oldest of the others becomes reserved.

So the disk space of a peer is bounded, and an honest peer's messages arrive, perhaps more slowly.

An opening is a conversation of which no message has been delivered yet. The budget of a peer limits these as well
(`budgets.py`).

**Timeouts.** The fragments of a conversation are deleted after an hour without a new one. If the peer has used up a
budget, or an opening lacks its first message, they are deleted after five minutes. The sender notices that, and repeats
the messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from servicebroker.protocol.budgets import Budgets, share_of
from servicebroker.protocol.incoming import FREE, Allowance, Begun
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.outgoing import NEVER

SEARCH_INTERVAL_S = 30.0  # seconds between two searches for idle conversations
MAX_CHECKED = 1_000  # conversations of one search


class Stored(NamedTuple):
    """The stored incomplete messages of one conversation, their owner, and the seconds since the last fragment."""

    conversation_handle: UUID
    owner: str
    begun: Begun
    idle: float


@dataclass(slots=True)
class _Conversation:
    """The incomplete messages of one conversation of a peer."""

    owner: str
    begun: Begun
    at: float  # the time of its last fragment
    is_reserved: bool = False

    @property
    def shared(self) -> int:
        """The bytes that count for the shared part of the quota."""
        return self.begun.ahead + (0 if self.is_reserved else self.begun.current)

    @property
    def is_opening(self) -> bool:
        """Return whether none of its messages has been delivered."""
        return self.begun.number == 0


@dataclass(slots=True)
class _Account:
    """The incomplete messages of one peer. `waiting`: conversations whose message may be reserved, oldest first."""

    conversations: int = 0
    openings: int = 0  # the openings of these conversations
    shared: int = 0  # bytes
    reserved: int = 0  # declared bytes of reserved messages
    waiting: OrderedDict[UUID, None] = field(default_factory=OrderedDict)


class UnfinishedMessages:
    """The accounts of all peers in one share. Each of the `shares` has an equal part of every budget."""

    def __init__(self, limits: Limits, budgets: Budgets, shares: int = 1) -> None:
        self._limits = limits
        self._budgets = budgets
        self._shares = shares
        self._accounts: dict[str, _Account] = {}
        self._conversations: OrderedDict[UUID, _Conversation] = OrderedDict()  # the longest idle first
        self._next_search = NEVER

    def __len__(self) -> int:
        return len(self._conversations)

    def __contains__(self, handle: UUID) -> bool:
        return handle in self._conversations

    @property
    def wake_at(self) -> float:
        """The time of the next search for idle conversations."""
        return self._next_search if self._conversations else NEVER

    def owner(self, handle: UUID) -> str | None:
        """Return the owner of the incomplete messages of a conversation."""
        conversation = self._conversations.get(handle)
        return None if conversation is None else conversation.owner

    def quota(self, owner: str) -> int:
        """Return the quota of a peer in this share, in bytes."""
        return share_of(self._budgets.of(owner).unfinished_bytes, self._shares)

    def max_openings(self, owner: str) -> int:
        """Return how many openings a peer may have in this share."""
        return share_of(self._budgets.of(owner).openings, self._shares)

    def has_room(self, owner: str, more: int) -> bool:
        """Return whether a peer may have another opening besides those counted here and `more` others."""
        account = self._accounts.get(owner)
        return (0 if account is None else account.openings) + more < self.max_openings(owner)

    def is_headless(self, handle: UUID) -> bool:
        """Return whether a conversation is an opening without any fragment of its first message."""
        conversation = self._conversations.get(handle)
        return conversation is not None and conversation.is_opening and not conversation.begun.declared

    def allowance(self, owner: str, handle: UUID, fragments: int) -> Allowance:
        """Return the allowance of a conversation, for a message of `fragments` fragments."""
        account = self._accounts.get(owner)
        if account is None or account.shared < self.quota(owner):
            return FREE
        known = self._conversations.get(handle)
        is_reserved = known is not None and known.is_reserved
        may_be = not account.waiting and self._fits(owner, account, fragments * self._limits.fragment_size)
        return Allowance(current=is_reserved or may_be, ahead=False)

    def note(self, owner: str, handle: UUID, begun: Begun, now: float) -> None:
        """Update the account after a fragment of a conversation has arrived, or messages were delivered."""
        known = self._conversations.get(handle)
        is_same = known is not None and known.owner == owner and known.begun.number == begun.number
        is_reserved = known is not None and is_same and known.is_reserved
        self._remove(handle, is_waiting_on=is_same and not is_reserved and begun.declared > 0)
        if begun.current or begun.ahead:
            self._add(handle, _Conversation(owner, begun, now, is_reserved))
        if known is not None:
            self._promote(known.owner)
        self._promote(owner)

    def forget(self, handle: UUID) -> None:
        """Remove the incomplete messages of a conversation from the account."""
        known = self._conversations.get(handle)
        self._remove(handle)
        if known is not None:
            self._promote(known.owner)

    def load(self, stored: Iterable[Stored], now: float) -> None:
        """Replace all accounts by those of the stored fragments."""
        self._accounts.clear()
        self._conversations.clear()
        for messages in sorted(stored, key=lambda messages: -messages.idle):
            self.note(messages.owner, messages.conversation_handle, messages.begun, now - messages.idle)

    def quiet(self, now: float) -> list[UUID]:
        """Return conversations without a fragment since the last search, which may have ended."""
        oldest = islice(self._conversations.items(), MAX_CHECKED)
        return [handle for handle, conversation in oldest if now - conversation.at >= SEARCH_INTERVAL_S]

    def is_due(self, now: float) -> bool:
        """Return whether a search for idle conversations is due. If so, set the time of the next one."""
        if now < self.wake_at:
            return False
        self._next_search = now + SEARCH_INTERVAL_S
        return True

    def idle(self, now: float) -> list[UUID]:
        """Return the conversations whose fragments must be deleted, by the timeouts above."""
        idle = []
        for handle, conversation in self._conversations.items():
            waited = now - conversation.at
            if waited < self._limits.unfinished_idle_full:
                break
            if waited >= self._limits.unfinished_idle or self.is_headless(handle) or self._is_full(conversation.owner):
                idle.append(handle)
        return idle

    def _is_full(self, owner: str) -> bool:
        return self._accounts[owner].shared >= self.quota(owner) or not self.has_room(owner, 0)

    def _fits(self, owner: str, account: _Account, declared: int) -> bool:
        return declared > 0 and (account.reserved == 0 or account.reserved + declared <= self.quota(owner))

    def _add(self, handle: UUID, conversation: _Conversation) -> None:
        if not self._conversations:
            self._next_search = conversation.at + SEARCH_INTERVAL_S
        self._conversations[handle] = conversation
        account = self._accounts.setdefault(conversation.owner, _Account())
        account.conversations += 1
        account.openings += conversation.is_opening
        account.shared += conversation.shared
        if conversation.is_reserved:
            account.reserved += conversation.begun.declared
        elif conversation.begun.declared:
            account.waiting.setdefault(handle)

    def _remove(self, handle: UUID, *, is_waiting_on: bool = False) -> None:
        """Remove a conversation from its peer's account. With `is_waiting_on` it keeps its place in `waiting`."""
        conversation = self._conversations.pop(handle, None)
        if conversation is None:
            return
        account = self._accounts[conversation.owner]
        account.conversations -= 1
        account.openings -= conversation.is_opening
        account.shared -= conversation.shared
        if conversation.is_reserved:
            account.reserved -= conversation.begun.declared
        elif not is_waiting_on:
            account.waiting.pop(handle, None)
        if not account.conversations and not account.waiting:
            del self._accounts[conversation.owner]

    def _promote(self, owner: str) -> None:
        """Reserve waiting messages, the oldest first, as long as they fit the quota."""
        account = self._accounts.get(owner)
        while account is not None and account.waiting:
            handle = next(iter(account.waiting))
            conversation = self._conversations[handle]
            if not self._fits(owner, account, conversation.begun.declared):
                return
            del account.waiting[handle]
            account.shared -= conversation.begun.current
            account.reserved += conversation.begun.declared
            conversation.is_reserved = True
