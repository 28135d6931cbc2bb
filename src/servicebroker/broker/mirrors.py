"""The mirrored pairs that messages are sent to: ask both brokers, choose the principal, save timelines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from servicebroker.broker.transport.links import Links
from servicebroker.engine.remote.mirrored_pairs import StoredPair
from servicebroker.protocol import mirroring
from servicebroker.protocol.mirroring import NEVER, KnownTimeline, Pair, RoleReport
from servicebroker.protocol.routing import Address, Elsewhere

_log = logging.getLogger("servicebroker.broker")


class Mirrors:
    """The mirrored pairs of one instance. `seconds` is a clock that never goes back.

    Attributes:
        are_used: a mirrored route was used. Otherwise there is nothing to do.
    """

    def __init__(self, links: Links, seconds: Callable[[], float]) -> None:
        self._links = links
        self._seconds = seconds
        self.are_used = False
        self._pairs: dict[Elsewhere, Pair] = {}
        self._changed: set[Elsewhere] = set()  # pairs with another choice, or another reason for none
        self._news: set[Elsewhere] = set()  # pairs with an answer, or another status of a broker
        self._told: dict[Elsewhere, str] = {}  # the explanation in the row that was saved last

    @property
    def wake_at(self) -> float:
        """The time at which `tick` must be called."""
        return min((pair.wake_at for pair in self._pairs.values()), default=NEVER)

    def strangers(self, destinations: Iterable[Elsewhere]) -> list[Elsewhere]:
        """Return the new pairs among these routes, each once. The caller must `begin` them."""
        return [pair for pair in dict.fromkeys(destinations) if pair.mirror is not None and pair not in self._pairs]

    def begin(self, known: Mapping[Elsewhere, KnownTimeline]) -> None:
        """Add new pairs, each with its highest known timeline, and ask both brokers."""
        self.are_used = True
        for route, highest in known.items():
            self._pairs[route] = mirroring.first_use(highest, self._seconds())
            self._news.add(route)
            self._ask(route)

    def keep(self, pairs: Iterable[Elsewhere]) -> None:
        """Drop the saved pairs that are not among these: their routes were dropped."""
        remembered = set(pairs)
        for route in [route for route in self._told if route not in remembered]:
            del self._pairs[route], self._told[route]
            self._changed.add(route)

    def address_of(self, destination: Elsewhere) -> Address | str:
        """Return the address to send to. For a pair: that of the principal, or why there is none."""
        if destination.mirror is None:
            return destination.address
        pair = self._pairs.get(destination)
        if pair is None:
            return "Its route has gone."
        if pair.chosen is None:
            return mirroring.explain_choice(pair, (destination.address, destination.mirror))
        return destination.mirror if pair.chosen else destination.address

    def heard(self, address: Address, role_report: RoleReport) -> None:
        """Record the role that the broker at an address has stated."""
        for route, side in self._sides(address):
            self._set(route, mirroring.heard(self._pairs[route], side, role_report, self._seconds()))

    def unreached(self, address: Address, status: str) -> None:
        """Record that the broker at an address cannot be reached, and why."""
        for route, side in self._sides(address):
            self._set(route, mirroring.unreachable(self._pairs[route], side, status, self._seconds()))

    def tick(self) -> None:
        """Handle timeouts: an unanswered question, or the next question."""
        for route, pair in list(self._pairs.items()):
            self._set(route, mirroring.tick(pair, self._seconds()))

    def take_changed(self) -> set[Elsewhere]:
        """Return the pairs whose choice, or reason for having none, has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def take_news(self) -> list[StoredPair]:
        """Return the rows to save: once after each change."""
        rows = []
        news, self._news = [route for route in self._pairs if route in self._news], set()
        for route in news:
            pair = self._pairs[route]
            assert route.mirror is not None
            addresses = route.address, route.mirror
            text = mirroring.explain_choice(pair, addresses)
            if self._told.get(route) != text:
                self._told[route] = text
                principal = None if pair.chosen is None else str(addresses[pair.chosen])
                rows.append(StoredPair(str(route.address), str(route.mirror), principal, *pair.known, text))
        return rows

    def forget_told(self) -> None:
        """Have all pairs saved again: the last save may not have been committed."""
        self._told = dict.fromkeys(self._pairs, "")
        self._news.update(self._pairs)

    def _sides(self, address: Address) -> list[tuple[Elsewhere, int]]:
        return [(pair, int(pair.mirror == address)) for pair in self._pairs if address in (pair.address, pair.mirror)]

    def _set(self, route: Elsewhere, pair: Pair) -> None:
        before, self._pairs[route] = self._pairs[route], pair
        if (pair.statuses, pair.role_reports, pair.reasons) != (before.statuses, before.role_reports, before.reasons):
            self._news.add(route)
            if pair.chosen is None:
                self._changed.add(route)  # waiting messages show the new reason
        if pair.chosen != before.chosen:
            self._changed.add(route)
            level = logging.WARNING if pair.chosen is None else logging.INFO
            assert route.mirror is not None
            fields = {"event": "Mirrored Route", "peer": str(route.address)}  # the log limits its lines by these fields
            _log.log(
                level, "%s", mirroring.explain_choice(pair, (route.address, route.mirror)), extra={"fields": fields}
            )
        if pair.questions != before.questions:
            self._ask(route)

    def _ask(self, route: Elsewhere) -> None:
        assert route.mirror is not None
        for address in (route.address, route.mirror):
            self._links.ask(address, self._pairs[route].known)
