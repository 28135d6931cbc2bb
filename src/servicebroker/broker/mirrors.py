"""The mirrored pairs that messages are sent to: ask both brokers, find the principal, remember their timelines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from servicebroker.broker.transport.links import Links
from servicebroker.engine.remote.mirrored_pairs import Row
from servicebroker.protocol import mirroring
from servicebroker.protocol.mirroring import NEVER, KnownTimeline, Pair, RoleReport
from servicebroker.protocol.routing import Address, Elsewhere

_log = logging.getLogger("servicebroker.broker")


class Mirrors:
    """The pairs of one instance. `seconds` never goes back.

    Attributes:
        are_used: a mirrored route was used; else there is nothing to do for anybody.
    """

    def __init__(self, links: Links, seconds: Callable[[], float]) -> None:
        self._links = links
        self._seconds = seconds
        self.are_used = False
        self._pairs: dict[Elsewhere, Pair] = {}
        self._changed: set[Elsewhere] = set()  # another one is chosen, or none for another reason
        self._news: set[Elsewhere] = set()  # something was heard, or a word has changed
        self._told: dict[Elsewhere, str] = {}  # the rows that were saved last

    @property
    def wake_at(self) -> float:
        """When `tick` has something to do."""
        return min((pair.wake_at for pair in self._pairs.values()), default=NEVER)

    def strangers(self, destinations: Iterable[Elsewhere]) -> list[Elsewhere]:
        """Return the pairs of which nothing is known yet, each once: `begin` them first."""
        return [one for one in dict.fromkeys(destinations) if one.mirror is not None and one not in self._pairs]

    def begin(self, known: Mapping[Elsewhere, KnownTimeline]) -> None:
        """Pairs that are used for the first time, and the highest timeline that was seen of each."""
        self.are_used = True
        for one, highest in known.items():
            self._pairs[one] = mirroring.first_use(highest, self._seconds())
            self._news.add(one)
            self._ask(one)

    def keep(self, pairs: Iterable[Elsewhere]) -> None:
        """Routes have changed: of pairs that were kept, only these are to be remembered."""
        remembered = set(pairs)
        for one in [one for one in self._told if one not in remembered]:
            del self._pairs[one], self._told[one]
            self._changed.add(one)

    def address_of(self, destination: Elsewhere) -> Address | str:
        """The address to send to; for a pair that of the principal, or why there is none."""
        if destination.mirror is None:
            return destination.address
        pair = self._pairs.get(destination)
        if pair is None:
            return "Its route has gone."
        if pair.chosen is None:
            return mirroring.explained(pair, (destination.address, destination.mirror))
        return destination.mirror if pair.chosen else destination.address

    def heard(self, address: Address, role_report: RoleReport) -> None:
        """Note the role that the broker at that address has stated."""
        for one, side in self._sides(address):
            self._becomes(one, mirroring.heard(self._pairs[one], side, role_report, self._seconds()))

    def unreached(self, address: Address, status: str) -> None:
        """Note that nobody answers at that address, and why."""
        for one, side in self._sides(address):
            self._becomes(one, mirroring.unreachable(self._pairs[one], side, status, self._seconds()))

    def tick(self) -> None:
        """Time has passed."""
        for one, pair in list(self._pairs.items()):
            self._becomes(one, mirroring.tick(pair, self._seconds()))

    def take_changed(self) -> set[Elsewhere]:
        """Return the pairs whose choice, or reason for having none, has changed since the last call."""
        taken, self._changed = self._changed, set()
        return taken

    def take_news(self) -> list[Row]:
        """Return the rows to save: once after each change."""
        rows = []
        news, self._news = [one for one in self._pairs if one in self._news], set()
        for one in news:
            pair = self._pairs[one]
            assert one.mirror is not None
            addresses = one.address, one.mirror
            text = mirroring.explained(pair, addresses)
            if self._told.get(one) != text:
                self._told[one] = text
                principal = None if pair.chosen is None else str(addresses[pair.chosen])
                rows.append(Row(str(one.address), str(one.mirror), principal, *pair.known, text))
        return rows

    def forget_told(self) -> None:
        """Have all pairs saved and stated again: the last save may not have been committed."""
        self._told = dict.fromkeys(self._pairs, "")
        self._news.update(self._pairs)

    def _sides(self, address: Address) -> list[tuple[Elsewhere, int]]:
        return [(one, int(one.mirror == address)) for one in self._pairs if address in (one.address, one.mirror)]

    def _becomes(self, one: Elsewhere, pair: Pair) -> None:
        before, self._pairs[one] = self._pairs[one], pair
        if (pair.statuses, pair.role_reports, pair.reasons) != (before.statuses, before.role_reports, before.reasons):
            self._news.add(one)
            if pair.chosen is None:
                self._changed.add(one)  # messages that wait show why
        if pair.chosen != before.chosen:
            self._changed.add(one)
            level = logging.WARNING if pair.chosen is None else logging.INFO
            assert one.mirror is not None
            fields = {"event": "Mirrored Route", "peer": str(one.address)}  # with them the log limits its lines
            _log.log(level, "%s", mirroring.explained(pair, (one.address, one.mirror)), extra={"fields": fields})
        if pair.questions != before.questions:
            self._ask(one)

    def _ask(self, one: Elsewhere) -> None:
        assert one.mirror is not None
        for address in (one.address, one.mirror):
            self._links.ask(address, self._pairs[one].known)
