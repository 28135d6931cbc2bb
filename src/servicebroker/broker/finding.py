"""Which conversations have something to do: whose time has come, who has sent, and who waits for long."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from servicebroker.broker.dialog_security import DialogSecurity
from servicebroker.broker.lines import Lines
from servicebroker.broker.matching import MATCH_AGAIN
from servicebroker.broker.relay_memory import Entry, Memory
from servicebroker.broker.store_operations import Store
from servicebroker.engine.remote.departing import WaitingConversation
from servicebroker.model.waiting import UNANSWERED
from servicebroker.protocol.outgoing import NEVER

PAGE = 500  # conversations that a round looks for among those that wait for long


class Finding:
    """Brings them into memory. What waits for long, or had no place there, is found page by page."""

    def __init__(self, memory: Memory, lines: Lines, security: DialogSecurity, seconds: Callable[[], float]) -> None:
        self._memory = memory
        self._lines = lines
        self._security = security
        self._seconds = seconds
        self._page_at, self._page_after = 0.0, UUID(int=0)
        self._page_missed = False
        self.wanted: set[UUID] = set()  # to be looked up in the database

    @property
    def wake_at(self) -> float:
        """When the next page is due."""
        return self._page_at

    def missed(self) -> None:
        """Some that wait had to leave the memory: they are found again later."""
        self._page_missed = True
        self._page_at = min(self._page_at, self._seconds() + MATCH_AGAIN)

    def reached(self) -> None:
        """There is a new link: those that had to leave may have waited for it."""
        if self._page_missed:
            self._page_at = 0.0

    def due(self, store: Store) -> set[UUID]:
        """Whose time has come."""
        now = self._seconds()
        due, strangers = set(), []
        for handle, entry in self._memory.ringing(now):
            if entry.match_at <= now or entry.session is None:
                self.wanted.add(handle)  # its service may have come into being here
            entry.dialog.tick(now)
            due.add(handle)
            if entry.link is not None and entry.dialog.is_unanswered:
                self._lines.say(entry, UNANSWERED)
            if entry.link is not None and entry.dialog.introduction is not None:
                strangers.append(entry)
        if strangers:
            self._introduce_again(store, strangers)
        return due

    def _introduce_again(self, store: Store, entries: list[Entry]) -> None:
        """What secured conversations begin with was not acknowledged: perhaps its certificates are replaced."""
        introductions = [(one.endpoint, key) for one in entries if (key := one.dialog.introduction) is not None]
        renewed = self._security.renew(store, introductions)
        for entry in entries:
            match renewed.get(entry.endpoint.conversation_handle):
                case (keys, exchange):
                    entry.endpoint = entry.endpoint._replace(keys=keys)
                    entry.dialog.secure(exchange)
                case str(why):
                    self._lines.say(entry, why)

    def find(self, store: Store, found: list[WaitingConversation]) -> set[UUID]:
        """Whom the look has found, whom a page has, and who is to be looked up again."""
        for waiting in found:
            if entry := self._memory.get(waiting.conversation_handle):
                entry.end = max(entry.end, waiting.last + 1)
                if waiting.has_end:
                    entry.dialog.end()
        touched = {one.conversation_handle for one in found}
        touched |= self._turn_page(store)
        unknown = self.wanted | {handle for handle in touched if handle not in self._memory}
        self.wanted = set()
        for handle in unknown:
            self._lines.forget(handle)
        if unknown:
            touched |= {self._memory.enter(endpoint) for endpoint in store.endpoints(list(unknown))}
        return touched

    def _turn_page(self, store: Store) -> set[UUID]:
        """Some of those that wait since before we began, or that had no place in memory."""
        now = self._seconds()
        if now < self._page_at:
            return set()
        handles = store.page(self._page_after, PAGE)
        if len(handles) == PAGE:
            self._page_after = handles[-1]
            self._page_at = now if self._memory.room >= PAGE else now + MATCH_AGAIN
        else:
            self._page_after = UUID(int=0)
            self._page_at = now + MATCH_AGAIN if self._page_missed else NEVER
            self._page_missed = False
        return {handle for handle in handles if handle not in self._memory}
