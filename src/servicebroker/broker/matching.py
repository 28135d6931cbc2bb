"""Where conversations go: their routes are matched, and they are claimed before anything of them leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.again import SOON
from servicebroker.broker.dialog_security import DialogSecurity, Secured
from servicebroker.broker.lines import Lines
from servicebroker.broker.links import Link, Links
from servicebroker.broker.mirrors import Mirrors
from servicebroker.broker.relay_memory import Entry, Memory
from servicebroker.broker.store_operations import Store
from servicebroker.engine.remote.departing import Claimed
from servicebroker.engine.remote.site import Here
from servicebroker.model.dialog_security import Security
from servicebroker.model.errors import RULES
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address, Ask, Decision, Elsewhere, Local

MATCH_AGAIN = 5.0  # seconds until a delayed conversation is matched again


class Matching:
    """Finds the addresses of conversations, and finds them again when routes or mirrors have changed."""

    def __init__(
        self,
        memory: Memory,
        lines: Lines,
        security: DialogSecurity,
        mirrors: Mirrors,
        links: Links,
        here: Callable[[], Here],
        seconds: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._lines = lines
        self._security = security
        self._mirrors = mirrors
        self._links = links
        self._here = here
        self._seconds = seconds
        self._routes: int | None = None

    def match(self, store: Store, handles: Iterable[UUID]) -> None:
        """Where those go that have no address yet, or whose routes have changed."""
        entries = {handle: entry for handle in handles if (entry := self._memory.get(handle)) and entry.wants_route}
        if not entries:
            return
        endpoints = [entry.endpoint for entry in entries.values()]
        decisions = store.route(endpoints, self._here())
        self.acquaint(store, decisions.values())
        away = {
            handle: self._mirrors.way(one.destination)
            for handle, one in decisions.items()
            if isinstance(one.destination, Elsewhere)
        }
        missing = {handle: why for handle, way in away.items() if isinstance(why := self._reach(way), str)}
        ready = {
            handle: chosen.broker_instance
            for handle, one in decisions.items()
            if handle in away and handle not in missing and (chosen := one.chosen) and not entries[handle].is_claimed
        }
        claimed, locked = self._claim(store, ready) if ready else (set(), {})
        for handle, decision in decisions.items():
            entry = entries[handle]
            journal.classified(decision.destination, entry.endpoint.far_service, entry.endpoint.far_broker)
            entry.is_claimed |= handle in claimed
            entry.is_stale = False
            entry.match_at = self._seconds() + MATCH_AGAIN
            if handle in away:
                self._send_to(entry, decision, away[handle], missing.get(handle))
                if handle in locked:
                    entry.address, entry.match_at = None, self._seconds() + MATCH_AGAIN
                    self._lines.say(entry, locked[handle])
            elif isinstance(decision.destination, Local) and not entry.is_claimed:
                self._lines.forget(handle)  # its target is made in this instance
            else:
                self._wait_for_route(entry, decision)
            self._memory.set_alarm(entry)

    def _claim(self, store: Store, ready: dict[UUID, str | None]) -> tuple[set[UUID], dict[UUID, str]]:
        """Which of them are ours to send, secured as they have to be; and why others cannot be secured."""
        entries = {handle: entry for handle in ready if (entry := self._memory.get(handle)) is not None}
        undecided = [one.endpoint for one in entries.values() if one.endpoint.security is None]
        decided = self._security.begin(store, undecided) if undecided else {}
        for endpoint in undecided:
            if endpoint.is_initiator and endpoint.conversation_handle not in decided:
                del entries[endpoint.conversation_handle]  # it is being removed
        locked = {handle: one for handle, one in decided.items() if isinstance(one, str)}
        secured = {handle: one for handle, one in decided.items() if isinstance(one, Secured)}
        claims = {
            handle: Claimed(ready[handle], secured[handle].security if handle in secured else Security.NONE)
            for handle in entries
            if handle not in locked
        }
        claimed = store.claim(claims) if claims else set()
        store.save_keys(
            {handle: one.keys for handle, one in secured.items() if handle in claimed and one.keys is not None}
        )
        for handle in claimed & secured.keys():
            entry, one = entries[handle], secured[handle]
            entry.endpoint = entry.endpoint._replace(security=one.security, keys=one.keys)
            entry.session = one.session
            if one.keys is not None:
                entry.dialog.secure(one.exchange)
        return claimed, locked

    def acquaint(self, store: Store, decisions: Iterable[Decision]) -> None:
        """Both brokers of a mirrored route that is used for the first time are asked which is the principal."""
        strangers = self._mirrors.strangers(
            one.destination for one in decisions if isinstance(one.destination, Elsewhere)
        )
        if strangers:
            self._mirrors.begin(store.known_pairs(strangers))

    def _reach(self, way: Address | str) -> Link | str:
        return way if isinstance(way, str) else self._links.reach(way)

    def _send_to(self, entry: Entry, decision: Decision, way: Address | str, missing: str | None) -> None:
        """Its messages go to that address: at once, or when there is a link to it; or it is not known to which."""
        destination, chosen = decision.destination, decision.chosen
        assert isinstance(destination, Elsewhere)
        assert chosen is not None
        entry.pair = destination if destination.mirror is not None else None
        if isinstance(way, str):
            self._wait_for(entry, f"{RULES[9753].text} {way}")
            return
        if entry.address not in (None, way):
            self._lines.leave(entry)
        entry.address = way
        if not entry.endpoint.is_acknowledged:
            known = entry.endpoint.far_broker or chosen.broker_instance
            entry.dialog.far_broker = UUID(known) if known else entry.dialog.far_broker
        if not entry.is_claimed and missing is None:
            entry.match_at = self._seconds() + SOON  # somebody sends on it just now, or its target was made here
        else:
            entry.match_at = NEVER

    def _wait_for_route(self, entry: Entry, decision: Decision) -> None:
        number = 9770 if isinstance(decision.destination, Ask) else getattr(decision.destination, "number", 9797)
        entry.pair = None
        self._wait_for(entry, RULES[number].text.format(entry.endpoint.far_service))

    def _wait_for(self, entry: Entry, why: str) -> None:
        if entry.address is not None:
            self._lines.leave(entry)
            entry.address = None
        if entry.wants_more or entry.load:
            self._lines.say(entry, why)

    def see_routes(self, store: Store, version: int) -> set[UUID]:
        """A route may have changed: it takes effect for what already waits."""
        before, self._routes = self._routes, version
        if before == version:
            return set()
        self._mirrors.keep(store.pairs())
        return set() if before is None else self._match_anew(dict(self._memory.items()))

    def see_mirrors(self, store: Store) -> set[UUID]:
        """Of some pairs another one is the principal now, or neither is known to be it."""
        self._mirrors.tick()
        if news := self._mirrors.take_news():
            store.save_pairs(news)
        changed = self._mirrors.take_changed()
        if not changed:  # nearly always, and thousands of entries are looked at otherwise
            return set()
        return self._match_anew({handle: one for handle, one in self._memory.items() if one.pair in changed})

    @staticmethod
    def _match_anew(changed: dict[UUID, Entry]) -> set[UUID]:
        for entry in changed.values():
            entry.is_stale = True
        return set(changed)
