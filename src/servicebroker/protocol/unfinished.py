"""The quota of each peer for incomplete messages: fragments that are stored, but cannot be delivered yet.

**The problem.** A large message comes in fragments, and messages may come out of order. Both are stored on disk until
they are complete and in order. A peer may begin many messages and complete none, and so fill the disk. But if its quota
just refused every fragment, two honest large messages could block each other for ever.

**The rules.** A peer is the owner of a certificate, with all of its connections and conversations. Of its incomplete
messages there are two classes:

* Reserved: the first-come messages that are next in order in their conversation, as long as their declared sizes fit
  the quota together. The very first one is reserved whatever its size. Fragments of reserved messages are always
  accepted, so each reserved message completes.
* Shared: all others. They share the quota by the bytes that have come. When it is used up, their fragments are refused
  and the senders repeat them. When a reserved message is complete, the oldest of the others becomes reserved.

So the disk space of a peer is bounded, and an honest peer's messages arrive, perhaps more slowly.

An opening is a conversation of which no message has been delivered yet. A peer has a budget of them, too
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

LOOK_S = 30.0  # between two searches for idle conversations
MOST_LOOKED_AT = 1_000  # conversations of one search


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
    openings: int = 0  # of these conversations
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
        self._look_at = NEVER

    def __len__(self) -> int:
        return len(self._conversations)

    def __contains__(self, handle: UUID) -> bool:
        return handle in self._conversations

    @property
    def wake_at(self) -> float:
        """The time of the next search for idle conversations."""
        return self._look_at if self._conversations else NEVER

    def owner(self, handle: UUID) -> str | None:
        """Return the owner of the incomplete messages of a conversation."""
        found = self._conversations.get(handle)
        return None if found is None else found.owner

    def quota(self, owner: str) -> int:
        """Return the quota of a peer in this share, in bytes."""
        return share_of(self._budgets.of(owner).unfinished_bytes, self._shares)

    def max_openings(self, owner: str) -> int:
        """Return how many openings a peer may have in this share."""
        return share_of(self._budgets.of(owner).openings, self._shares)

    def has_room(self, owner: str, more: int) -> bool:
        """Return whether a peer may have another opening beside those noted here and `more` others."""
        account = self._accounts.get(owner)
        return (0 if account is None else account.openings) + more < self.max_openings(owner)

    def is_headless(self, handle: UUID) -> bool:
        """Return whether a conversation is an opening without any fragment of its first message."""
        found = self._conversations.get(handle)
        return found is not None and found.is_opening and not found.begun.declared

    def allowance(self, owner: str, handle: UUID, fragments: int) -> Allowance:
        """Return the allowance of a conversation, of which a message in `fragments` fragments arrives."""
        account = self._accounts.get(owner)
        if account is None or account.shared < self.quota(owner):
            return FREE
        known = self._conversations.get(handle)
        is_reserved = known is not None and known.is_reserved
        may_be = not account.waiting and self._fits(owner, account, fragments * self._limits.fragment_size)
        return Allowance(current=is_reserved or may_be, ahead=False)

    def note(self, owner: str, handle: UUID, begun: Begun, now: float) -> None:
        """Note what is stored of a conversation, after a fragment has come or messages were delivered."""
        known = self._conversations.get(handle)
        is_same = known is not None and known.owner == owner and known.begun.number == begun.number
        is_reserved = known is not None and is_same and known.is_reserved
        self._take_out(handle, is_waiting_on=is_same and not is_reserved and begun.declared > 0)
        if begun.current or begun.ahead:
            self._put_in(handle, _Conversation(owner, begun, now, is_reserved))
        if known is not None:
            self._promote(known.owner)
        self._promote(owner)

    def forget(self, handle: UUID) -> None:
        """Forget the incomplete messages of a conversation."""
        known = self._conversations.get(handle)
        self._take_out(handle)
        if known is not None:
            self._promote(known.owner)

    def load(self, stored: Iterable[Stored], now: float) -> None:
        """Replace all accounts by those of the stored fragments."""
        self._accounts.clear()
        self._conversations.clear()
        for one in sorted(stored, key=lambda one: -one.idle):
            self.note(one.owner, one.conversation_handle, one.begun, now - one.idle)

    def quiet(self, now: float) -> list[UUID]:
        """Return conversations without a fragment since the last search, which may have ended."""
        oldest = islice(self._conversations.items(), MOST_LOOKED_AT)
        return [handle for handle, one in oldest if now - one.at >= LOOK_S]

    def is_due(self, now: float) -> bool:
        """Return whether a search for idle conversations is due. If so, set the time of the next one."""
        if now < self.wake_at:
            return False
        self._look_at = now + LOOK_S
        return True

    def idle(self, now: float) -> list[UUID]:
        """Return the conversations whose fragments are to be deleted, by the timeouts above."""
        found = []
        for handle, one in self._conversations.items():
            waited = now - one.at
            if waited < self._limits.unfinished_idle_full:
                break
            if waited >= self._limits.unfinished_idle or self.is_headless(handle) or self._is_full(one.owner):
                found.append(handle)
        return found

    def _is_full(self, owner: str) -> bool:
        return self._accounts[owner].shared >= self.quota(owner) or not self.has_room(owner, 0)

    def _fits(self, owner: str, account: _Account, declared: int) -> bool:
        return declared > 0 and (account.reserved == 0 or account.reserved + declared <= self.quota(owner))

    def _put_in(self, handle: UUID, one: _Conversation) -> None:
        if not self._conversations:
            self._look_at = one.at + LOOK_S
        self._conversations[handle] = one
        account = self._accounts.setdefault(one.owner, _Account())
        account.conversations += 1
        account.openings += one.is_opening
        account.shared += one.shared
        if one.is_reserved:
            account.reserved += one.begun.declared
        elif one.begun.declared:
            account.waiting.setdefault(handle)

    def _take_out(self, handle: UUID, *, is_waiting_on: bool = False) -> None:
        """Remove a conversation from its peer's account. With `is_waiting_on` it keeps its place in line."""
        one = self._conversations.pop(handle, None)
        if one is None:
            return
        account = self._accounts[one.owner]
        account.conversations -= 1
        account.openings -= one.is_opening
        account.shared -= one.shared
        if one.is_reserved:
            account.reserved -= one.begun.declared
        elif not is_waiting_on:
            account.waiting.pop(handle, None)
        if not account.conversations and not account.waiting:
            del self._accounts[one.owner]

    def _promote(self, owner: str) -> None:
        """Reserve waiting messages, the oldest first, as long as they fit the quota."""
        account = self._accounts.get(owner)
        while account is not None and account.waiting:
            handle = next(iter(account.waiting))
            one = self._conversations[handle]
            if not self._fits(owner, account, one.begun.declared):
                return
            del account.waiting[handle]
            account.shared -= one.begun.current
            account.reserved += one.begun.declared
            one.is_reserved = True
