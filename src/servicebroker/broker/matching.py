"""Route matching, and the claim of a conversation before its first message is sent.

A claim records in the database that the target is in another instance, so that no local service becomes the target.
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
from servicebroker.protocol.conversation_states import NEEDS_MATCHING, UNCLAIMED, Event
from servicebroker.protocol.envelope import BrokerFailure
from servicebroker.protocol.routing import Address, Ask, Decision, Elsewhere, Local

_END_FIRST = BrokerError(11277)


class Matching:
    """Finds the addresses of conversations, and again after a change of routes or principals."""

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
        self._changed: set[UUID] = set()  # conversations whose routes or principals have changed in this round

    def match(self, store: Store, handles: Iterable[UUID]) -> None:
        """Route the conversations that have no address yet, or whose routes have changed."""
        anew, self._changed = self._changed, set()
        entries = {
            handle: entry
            for handle in handles
            if (entry := self._conversations.get(handle)) and (entry.stage in NEEDS_MATCHING or handle in anew)
        }
        if not entries:
            return
        decisions = store.route([entry.endpoint for entry in entries.values()], self._here())
        self.ask_new_pairs(store, decisions.values())
        away = {
            handle: self._address_of(decision.destination)
            for handle, decision in decisions.items()
            if isinstance(decision.destination, Elsewhere)
        }
        for handle in self._end_unsent(store, [entries[handle] for handle in away]):
            del entries[handle], decisions[handle], away[handle]
        linked = {handle for handle, address in away.items() if not isinstance(self._reach(address), str)}
        ready = {
            handle: chosen.broker_instance
            for handle, decision in decisions.items()
            if handle in linked and entries[handle].stage in UNCLAIMED and (chosen := decision.chosen)
        }
        claimed, locked = self._claim(store, ready) if ready else (set(), {})
        for handle, decision in decisions.items():
            entry = entries[handle]
            journal.log_classified(decision.destination, entry.endpoint.far_service, entry.endpoint.peer_broker)
            self._send_to(entry, decision, away.get(handle))
            if handle in claimed:
                self._conversations.on_event(entry, Event.WON)
            elif handle in locked:
                self._conversations.on_event(entry, Event.UNSECURED, pair=entry.pair, why=locked[handle])
            elif (
                handle in ready
            ):  # a session sends on it and has locked its row, or its target was created in this instance
                self._conversations.on_event(entry, Event.BUSY)

    def _end_unsent(self, store: Store, leaving: Iterable[Entry]) -> list[UUID]:
        """End conversations that would send nothing but their end: no broker accepts an end as the first message.

        Returns the ended ones. A conversation whose row is locked is ended in a later round.
        """
        refused = BrokerFailure(-_END_FIRST.number, _END_FIRST.text)
        unsent = {entry.endpoint.conversation_handle: refused for entry in leaving if entry.endpoint.is_end_unsent}
        ended = store.fail(unsent) if unsent else []
        for handle in ended:
            self._conversations.forget(handle)
        return ended

    def _claim(self, store: Store, ready: dict[UUID, str | None]) -> tuple[set[UUID], dict[UUID, str]]:
        """Claim conversations, with the dialog security that they need. Returns the claimed ones, and errors."""
        entries = {
            handle: entry
            for handle in ready
            if (entry := self._conversations.get(handle)) is not None and not entry.endpoint.is_end_unsent
        }
        undecided = [entry.endpoint for entry in entries.values() if entry.endpoint.security is None]
        decided = self._security.begin(store, undecided) if undecided else {}
        for endpoint in undecided:
            if endpoint.is_initiator and endpoint.conversation_handle not in decided:
                del entries[endpoint.conversation_handle]  # its endpoint is being deleted
        errors = {handle: result for handle, result in decided.items() if isinstance(result, str)}
        secured = {handle: result for handle, result in decided.items() if isinstance(result, Secured)}
        claims = {
            handle: Claimed(ready[handle], secured[handle].security if handle in secured else Security.NONE)
            for handle in entries
            if handle not in errors
        }
        claimed = store.claim(claims) if claims else set()
        store.save_keys(
            {handle: dialog.keys for handle, dialog in secured.items() if handle in claimed and dialog.keys is not None}
        )
        for handle in claimed:
            entries[handle].note_claim(ready[handle])
        for handle in claimed & secured.keys():
            entry, dialog = entries[handle], secured[handle]
            entry.secure(entry.endpoint._replace(security=dialog.security, keys=dialog.keys), dialog.session)
            if dialog.keys is not None:
                entry.dialog.secure(dialog.exchange)
        return claimed, errors

    def ask_new_pairs(self, store: Store, decisions: Iterable[Decision]) -> None:
        """Ask both brokers of a newly used mirrored route which one is the principal.

        The pair is saved immediately, because its route may be dropped before the next round.
        """
        pairs = [
            decision.destination
            for decision in decisions
            if isinstance(decision.destination, Elsewhere) and decision.destination.mirror is not None
        ]
        if pairs and (new_pairs := self._mirrors.strangers(pairs)):
            self._mirrors.begin(store.known_pairs(new_pairs))
            self._save_news(store)

    def _address_of(self, destination: Elsewhere) -> Address | str:
        return destination.address if destination.mirror is None else self._mirrors.address_of(destination)

    def _reach(self, address: Address | str) -> Link | str:
        return address if isinstance(address, str) else self._links.reach(address)

    def _send_to(self, entry: Entry, decision: Decision, address: Address | str | None) -> None:
        """Report the result of matching to the conversation.

        `address`: None if the target is not in another instance, or has no route; a str is the reason why the pair of
        the route has no principal.
        """
        destination, chosen = decision.destination, decision.chosen
        if address is None:
            number = 9770 if isinstance(destination, Ask) else getattr(destination, "number", 9797)
            event = Event.ROUTED_LOCALLY if isinstance(destination, Local) else Event.UNROUTED
            why = RULES[number].text.format(entry.endpoint.far_service)
            self._conversations.on_event(entry, event, until=decision.expires, why=why)
            return
        assert isinstance(destination, Elsewhere)
        assert chosen is not None
        pair = destination if destination.mirror is not None else None
        if isinstance(address, str):
            self._conversations.on_event(entry, Event.UNROUTED, pair=pair, why=f"{RULES[9753].text} {address}")
            return
        event = Event.ROUTED if entry.address in (None, address) else Event.REROUTED
        self._conversations.on_event(entry, event, address=address, pair=pair, until=decision.expires)
        if not entry.endpoint.is_acknowledged:
            known = entry.endpoint.peer_broker or chosen.broker_instance
            entry.dialog.peer_broker = UUID(known) if known else entry.dialog.peer_broker

    def on_routes(self, store: Store, version: int) -> set[UUID]:
        """Handle a new version of the routes. Returns the conversations to match again."""
        before, self._routes = self._routes, version
        if before == version:
            return set()
        self._mirrors.keep(store.find_routed_pairs())
        self._conversations.recheck_local_targets()
        return set() if before is None else self._match_anew(handle for handle, _ in self._conversations.items())

    def on_mirrors(self, store: Store) -> set[UUID]:
        """Handle mirrored pairs whose principal has changed or became unknown. Returns conversations to match again."""
        self._mirrors.tick()
        self._save_news(store)
        changed = self._mirrors.take_changed()
        if not changed:  # the usual case, which saves a loop over thousands of entries
            return set()
        return self._match_anew(handle for handle, entry in self._conversations.items() if entry.pair in changed)

    def _save_news(self, store: Store) -> None:
        if news := self._mirrors.take_news():
            store.save_pairs(news)

    def _match_anew(self, handles: Iterable[UUID]) -> set[UUID]:
        changed = set(handles)
        self._changed |= changed
        return changed
