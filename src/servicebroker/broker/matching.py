"""Route matching, and the claim of a conversation before its first message is sent.

A claim notes in the database that the target is in another instance, so that no local service becomes the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.conversations import Conversations, Entry
from servicebroker.broker.dialog_security import DialogSecurity, Secured
from servicebroker.broker.mirrors import Mirrors
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Link, Links
from servicebroker.engine.remote.departing import Claimed
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.security.dialog_security import Security
from servicebroker.protocol.envelope import BrokerFailure
from servicebroker.protocol.on_its_way import UNCLAIMED, UNSETTLED, Event
from servicebroker.protocol.routing import Address, Ask, Decision, Elsewhere, Local

_END_FIRST = BrokerError(11277)


class Matching:
    """Finds the addresses of conversations, and finds them again when routes or mirrors have changed."""

    def __init__(
        self,
        conversations: Conversations,
        security: DialogSecurity,
        mirrors: Mirrors,
        links: Links,
        here: Callable[[], LocalInstance],
    ) -> None:
        self._conversations = conversations
        self._security = security
        self._mirrors = mirrors
        self._links = links
        self._here = here
        self._routes: int | None = None
        self._anew: set[UUID] = set()  # conversations whose routes or principals have changed in this round

    def match(self, store: Store, handles: Iterable[UUID]) -> None:
        """Route the conversations that have no address yet, or whose routes have changed."""
        anew, self._anew = self._anew, set()
        entries = {
            handle: entry
            for handle in handles
            if (entry := self._conversations.get(handle)) and (entry.stage in UNSETTLED or handle in anew)
        }
        if not entries:
            return
        decisions = store.route([entry.endpoint for entry in entries.values()], self._here())
        self.acquaint(store, decisions.values())
        away = {
            handle: self._way(one.destination)
            for handle, one in decisions.items()
            if isinstance(one.destination, Elsewhere)
        }
        for handle in self._end_unsent(store, [entries[handle] for handle in away]):
            del entries[handle], decisions[handle], away[handle]
        linked = {handle for handle, way in away.items() if not isinstance(self._reach(way), str)}
        ready = {
            handle: chosen.broker_instance
            for handle, one in decisions.items()
            if handle in linked and entries[handle].stage in UNCLAIMED and (chosen := one.chosen)
        }
        claimed, locked = self._claim(store, ready) if ready else (set(), {})
        for handle, decision in decisions.items():
            entry = entries[handle]
            journal.classified(decision.destination, entry.endpoint.far_service, entry.endpoint.far_broker)
            self._send_to(entry, decision, away.get(handle))
            if handle in claimed:
                self._conversations.happens(entry, Event.WON)
            elif handle in locked:
                self._conversations.happens(entry, Event.UNSECURED, pair=entry.pair, why=locked[handle])
            elif handle in ready:  # a session is sending on it, or its target was created here
                self._conversations.happens(entry, Event.BUSY)

    def _end_unsent(self, store: Store, leaving: Iterable[Entry]) -> list[UUID]:
        """End the conversations of which nothing but their end would leave: no broker takes an end as first message.

        Returns those that have ended. One that a session holds is left for another round.
        """
        refused = BrokerFailure(-_END_FIRST.number, _END_FIRST.text)
        unsent = {one.endpoint.conversation_handle: refused for one in leaving if one.endpoint.is_end_unsent}
        ended = store.fail(unsent) if unsent else []
        for handle in ended:
            self._conversations.forget(handle)
        return ended

    def _claim(self, store: Store, ready: dict[UUID, str | None]) -> tuple[set[UUID], dict[UUID, str]]:
        """Which of them are ours to send, secured as they have to be; and why others cannot be secured."""
        entries = {
            handle: entry
            for handle in ready
            if (entry := self._conversations.get(handle)) is not None and not entry.endpoint.is_end_unsent
        }
        undecided = [one.endpoint for one in entries.values() if one.endpoint.security is None]
        decided = self._security.begin(store, undecided) if undecided else {}
        for endpoint in undecided:
            if endpoint.is_initiator and endpoint.conversation_handle not in decided:
                del entries[endpoint.conversation_handle]  # its endpoint is being removed
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
        for handle in claimed:
            entries[handle].note_claim(ready[handle])
        for handle in claimed & secured.keys():
            entry, one = entries[handle], secured[handle]
            entry.secure(entry.endpoint._replace(security=one.security, keys=one.keys), one.session)
            if one.keys is not None:
                entry.dialog.secure(one.exchange)
        return claimed, locked

    def acquaint(self, store: Store, decisions: Iterable[Decision]) -> None:
        """Both brokers of a mirrored route that is used for the first time are asked which is the principal.

        It is saved at once: a route that goes before the next round takes its pair along.
        """
        pairs = [
            one.destination
            for one in decisions
            if isinstance(one.destination, Elsewhere) and one.destination.mirror is not None
        ]
        if pairs and (strangers := self._mirrors.strangers(pairs)):
            self._mirrors.begin(store.known_pairs(strangers))
            self._save_news(store)

    def _way(self, destination: Elsewhere) -> Address | str:
        return destination.address if destination.mirror is None else self._mirrors.way(destination)

    def _reach(self, way: Address | str) -> Link | str:
        return way if isinstance(way, str) else self._links.reach(way)

    def _send_to(self, entry: Entry, decision: Decision, way: Address | str | None) -> None:
        """Its messages go that way, if there is one: at once, or when there is a link and it is claimed."""
        destination, chosen = decision.destination, decision.chosen
        if way is None:
            number = 9770 if isinstance(destination, Ask) else getattr(destination, "number", 9797)
            event = Event.AT_HOME if isinstance(destination, Local) else Event.UNROUTED
            why = RULES[number].text.format(entry.endpoint.far_service)
            self._conversations.happens(entry, event, until=decision.expires, why=why)
            return
        assert isinstance(destination, Elsewhere)
        assert chosen is not None
        pair = destination if destination.mirror is not None else None
        if isinstance(way, str):
            self._conversations.happens(entry, Event.UNROUTED, pair=pair, why=f"{RULES[9753].text} {way}")
            return
        event = Event.ROUTED if entry.address in (None, way) else Event.REROUTED
        self._conversations.happens(entry, event, address=way, pair=pair, until=decision.expires)
        if not entry.endpoint.is_acknowledged:
            known = entry.endpoint.far_broker or chosen.broker_instance
            entry.dialog.far_broker = UUID(known) if known else entry.dialog.far_broker

    def see_routes(self, store: Store, version: int) -> set[UUID]:
        """A route may have changed: it takes effect for what already waits."""
        before, self._routes = self._routes, version
        if before == version:
            return set()
        self._mirrors.keep(store.pairs())
        self._conversations.look_again()
        return set() if before is None else self._match_anew(handle for handle, _ in self._conversations.items())

    def see_mirrors(self, store: Store) -> set[UUID]:
        """Handle mirrored pairs whose principal has changed, or is unknown now."""
        self._mirrors.tick()
        self._save_news(store)
        changed = self._mirrors.take_changed()
        if not changed:  # nearly always, and thousands of entries are looked at otherwise
            return set()
        return self._match_anew(handle for handle, one in self._conversations.items() if one.pair in changed)

    def _save_news(self, store: Store) -> None:
        if news := self._mirrors.take_news():
            store.save_pairs(news)

    def _match_anew(self, handles: Iterable[UUID]) -> set[UUID]:
        changed = set(handles)
        self._anew |= changed
        return changed
