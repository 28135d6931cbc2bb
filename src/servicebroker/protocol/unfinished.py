"""The quota of each peer for what it has begun to send: messages of which something is kept, and that nobody can read.

A peer is whoever owns the certificate that its links have shown, whatever conversations and connections it has. Two
parts of what it has begun are told apart:

* Reserved are the messages next in order that came first, as long as the sizes which they say to have fit the quota
  together. The first of all is reserved in any case. They are always taken, so each of them comes to its end.
* All else shares the quota by the bytes that have come. When they are used up, nothing more is taken of it; its senders
  try again. When a reserved message is complete, the oldest of the others takes its place.

So a peer fills a bounded part of the disk, and what an honest one sends arrives, if more slowly. What has brought
nothing for an hour is deleted, and after five minutes where its peer has used up a budget: its sender notices that, and
sends it again. After five minutes an opening goes, too, of whose first message nothing has come.

An opening is a conversation of which no message has been delivered. A peer has so many at a time (`budgets.py`).
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

LOOK_S = 30.0  # between two looks for what is idle
MOST_LOOKED_AT = 1_000  # conversations


class Stored(NamedTuple):
    """The incomplete messages of one conversation in the store, their owner, and the seconds since the last came."""

    conversation_handle: UUID
    owner: str
    begun: Begun
    idle: float


@dataclass(slots=True)
class _Conversation:
    """The incomplete messages of one conversation of a peer."""

    owner: str
    begun: Begun
    at: float  # when it has brought something
    is_reserved: bool = False

    @property
    def shared(self) -> int:
        """Bytes that are not reserved."""
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
    reserved: int = 0  # bytes that reserved messages say to have
    waiting: OrderedDict[UUID, None] = field(default_factory=OrderedDict)


class UnfinishedMessages:
    """The accounts of all peers of one share, of so many that divide each budget."""

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
        """When to look for what is idle."""
        return self._look_at if self._conversations else NEVER

    def owner(self, handle: UUID) -> str | None:
        """Return the owner of the incomplete messages of a conversation."""
        found = self._conversations.get(handle)
        return None if found is None else found.owner

    def quota(self, owner: str) -> int:
        """Return the bytes that a peer may fill in this share."""
        return share_of(self._budgets.of(owner).unfinished_bytes, self._shares)

    def max_openings(self, owner: str) -> int:
        """Return how many openings a peer may have in this share."""
        return share_of(self._budgets.of(owner).openings, self._shares)

    def has_room(self, owner: str, more: int) -> bool:
        """Return whether a peer may have another opening, beside those noted and so many more."""
        account = self._accounts.get(owner)
        return (0 if account is None else account.openings) + more < self.max_openings(owner)

    def is_headless(self, handle: UUID) -> bool:
        """Return whether a conversation is an opening of whose first message nothing has come."""
        found = self._conversations.get(handle)
        return found is not None and found.is_opening and not found.begun.declared

    def allowance(self, owner: str, handle: UUID, fragments: int) -> Allowance:
        """Return the allowance of a conversation, of which a message in so many fragments arrives."""
        account = self._accounts.get(owner)
        if account is None or account.shared < self.quota(owner):
            return FREE
        known = self._conversations.get(handle)
        is_reserved = known is not None and known.is_reserved
        may_be = not account.waiting and self._fits(owner, account, fragments * self._limits.fragment_size)
        return Allowance(current=is_reserved or may_be, ahead=False)

    def note(self, owner: str, handle: UUID, begun: Begun, now: float) -> None:
        """Note what is kept of a conversation now that its peer has brought something, or that it went."""
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
        """Begin with what the store has."""
        self._accounts.clear()
        self._conversations.clear()
        for one in sorted(stored, key=lambda one: -one.idle):
            self.note(one.owner, one.conversation_handle, one.begun, now - one.idle)

    def quiet(self, now: float) -> list[UUID]:
        """Return conversations that may be over: their peer has brought nothing since the last look."""
        oldest = islice(self._conversations.items(), MOST_LOOKED_AT)
        return [handle for handle, one in oldest if now - one.at >= LOOK_S]

    def is_due(self, now: float) -> bool:
        """Return whether it is time to look for what is idle; then the next time is set."""
        if now < self.wake_at:
            return False
        self._look_at = now + LOOK_S
        return True

    def idle(self, now: float) -> list[UUID]:
        """Return the conversations whose peer has brought nothing for so long that what is kept of them goes."""
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
        """Without what it is counted for; in line where it goes on waiting."""
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
        """Reserve what waits, the oldest first, as far as it fits."""
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
