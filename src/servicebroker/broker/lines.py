"""The lines at the links: which conversation sends next, how much of each is under way, and why it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.links import Link, Links
from servicebroker.broker.relay_memory import Entry, Memory
from servicebroker.model.dialog_security import NO_SERVICE_MASTER_KEY
from servicebroker.model.errors import RULES
from servicebroker.protocol.fairness import FairQueue
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address


class Lines:
    """One line for each link, by priority."""

    def __init__(self, memory: Memory, links: Links, seconds: Callable[[], float]) -> None:
        self._memory = memory
        self._links = links
        self._seconds = seconds
        self._lines: dict[Link, FairQueue[UUID]] = {}
        self._loads: Counter[Link] = Counter()
        self._disabled: frozenset[int] = frozenset()
        self._statuses: dict[UUID, str] = {}
        self.hungry: dict[UUID, None] = {}  # to be read further, in turns

    def __iter__(self) -> Iterator[tuple[Link, FairQueue[UUID]]]:
        return iter(list(self._lines.items()))

    @property
    def wake_at(self) -> float:
        """When somebody may send."""
        return self._seconds() if any(line and link.room > 0 for link, line in self._lines.items()) else NEVER

    def load(self, link: Link) -> int:
        """Bytes that are under way on it."""
        return self._loads[link]

    def take_statuses(self) -> dict[UUID, str]:
        """What is to be written of why messages wait."""
        taken, self._statuses = self._statuses, {}
        return taken

    def reached(self, address: Address) -> None:
        """There is a link to that address now: whoever waits for it may send at once."""
        for handle, entry in self._memory.items():
            if entry.address == address and entry.link is None:
                entry.dialog.link_up()
                self._match_now(entry)
                self.line_up(handle)

    def unreached(self, address: Address, status: str) -> None:
        """There is no link to that address, and why."""
        for _, entry in self._memory.items():
            if entry.address == address and entry.link is None:
                self._match_now(entry)  # there may be another instance of the service
                self._link_down(entry, status)

    def _match_now(self, entry: Entry) -> None:
        if not entry.is_claimed:
            entry.match_at = self._seconds()
            self._memory.set_alarm(entry)

    def lost(self, link: Link, status: str) -> set[Address]:
        """A link is over: what was under way on it travels again. Returns the addresses that it led to."""
        self._lines.pop(link, None)
        torn: set[Address] = set()
        for _, entry in self._memory.items():
            if entry.link is link:
                self._link_down(entry, status)
                if entry.address is not None:
                    torn.add(entry.address)
        self._loads.pop(link, None)
        return torn

    def enable(self, disabled: frozenset[int]) -> set[UUID]:
        """Brokers may have been disabled, or enabled again: their messages wait, or go."""
        changed, self._disabled = self._disabled ^ disabled, disabled
        if not changed:
            return set()
        touched = {handle for handle, entry in self._memory.items() if entry.endpoint.database_id in changed}
        for handle in touched:
            if (entry := self._memory.get(handle)) and entry.endpoint.database_id not in disabled:
                entry.dialog.link_up()
        return touched

    def is_enabled(self, entry: Entry) -> bool:
        """Whether the broker of its database sends."""
        return entry.endpoint.database_id not in self._disabled

    def attach(self, entry: Entry) -> bool:
        """Whether it has a link, or gets one now."""
        if entry.link is None and entry.address is not None and entry.is_claimed:
            found = self._links.reach(entry.address)
            if isinstance(found, str):
                return False
            entry.link = found
            entry.dialog.link_up()
            self._loads[found] += entry.load
            self.say(entry, "")
        return entry.link is not None

    def forget(self, handle: UUID) -> None:
        """It is gone, or can wait."""
        if entry := self._memory.get(handle):
            if entry.link is not None:
                self._loads[entry.link] -= entry.load
            self._memory.forget(handle)

    def leave(self, entry: Entry) -> None:
        """Its route has changed: what was under way travels again, on another one."""
        if entry.link is not None:
            self._loads[entry.link] -= entry.load
            entry.link = None
        entry.dialog.link_down(self._seconds(), "")
        entry.dialog.link_up()
        self._memory.release(entry)

    def weigh(self, entry: Entry) -> None:
        """What its link carries has changed."""
        before, entry.load = entry.load, entry.dialog.load
        if entry.link is not None:
            self._loads[entry.link] += entry.load - before

    def line_up(self, handle: UUID) -> None:
        """Whoever has something to send gets in line at the link of its address."""
        entry = self._memory.get(handle)
        if entry is None:
            return
        if not self.is_enabled(entry):
            if entry.wants_more or entry.dialog.has_work(self._seconds()):
                self._link_down(entry, RULES[9791].text)
        elif entry.session is None:
            if entry.wants_more or entry.dialog.has_work(self._seconds()):
                text = RULES[28054].text.format(entry.endpoint.own_service, NO_SERVICE_MASTER_KEY)
                self._link_down(entry, text)
        elif entry.dialog.has_work(self._seconds()):
            if entry.link is None and entry.address is not None:
                found = self._links.reach(entry.address)
                if isinstance(found, str):
                    self._link_down(entry, found)
                    return
                self._match_now(entry)
                self.hungry[handle] = None
            if self.attach(entry):
                assert entry.link is not None
                self._lines.setdefault(entry.link, FairQueue()).add(handle, entry.priority)
        self._memory.set_alarm(entry)

    def _link_down(self, entry: Entry, status: str) -> None:
        """It is tried again; what was read for it would only fill the memory until then."""
        if entry.link is not None:
            self._loads[entry.link] -= entry.load
        entry.link = None
        entry.dialog.link_down(self._seconds(), status)
        self._memory.release(entry)
        if status not in ("", entry.status):
            journal.transmission(entry.endpoint.conversation_id, status)
        self.say(entry, status)
        self._memory.set_alarm(entry)

    def say(self, entry: Entry, status: str) -> None:
        """Why its messages wait; '' when they are on their way."""
        if status or entry.status != status:
            self._statuses[entry.endpoint.conversation_handle] = entry.status = status
