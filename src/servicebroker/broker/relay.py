"""The relay: rounds that carry messages from the transmission queue to links, and from links into queues.

One round is one transaction: what arrived is stored, what was acknowledged is removed, what was committed since the
last round is found. Only after its commit do acknowledgements leave. The relay knows no socket: links are given to it,
and so is what they bring. It forgets everything when the database is lost, since all of it can be found there again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from random import Random
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from msgspec import structs

from servicebroker.broker import journal, metrics
from servicebroker.broker.dialog_security import NO_SERVICE_MASTER_KEY, DialogSecurity, Secured
from servicebroker.broker.forwarding import Forwarding
from servicebroker.broker.links import Arrival, Link, Links
from servicebroker.broker.memory import CAPACITY, Entry, Memory
from servicebroker.broker.mirrors import Mirrors
from servicebroker.broker.reception import Received, Reception, parsed, refuse
from servicebroker.engine import arriving, departing, dialog_security, enqueue, mirrored_pairs, remote, traces
from servicebroker.engine.catalog import Catalog
from servicebroker.engine.departing import Claim, Leaving, Reading, Snapshot, Waiting
from servicebroker.engine.forwarding import route_arrivals
from servicebroker.engine.site import Here
from servicebroker.engine.traces import Traced
from servicebroker.model.dialog_security import Security
from servicebroker.model.errors import RULES, BrokerError, InstanceError
from servicebroker.protocol.dialog import SENDS, Acknowledged, Dropped, Failed, Sending
from servicebroker.protocol.envelope import (
    Content,
    Envelope,
    Failure,
    Header,
    Part,
    encode,
)
from servicebroker.protocol.errors import CorruptedMessage
from servicebroker.protocol.fairness import FairQueue
from servicebroker.protocol.forwarding import Passage, unwrap
from servicebroker.protocol.incoming import Batch
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.mirroring import Standing
from servicebroker.protocol.outgoing import NEVER, Cut
from servicebroker.protocol.routing import Address, Ask, Decision, Local
from servicebroker.protocol.routing import Dropped as Gone
from servicebroker.protocol.routing import Remote as Away
from servicebroker.store.direct import Ahead, DirectConnection, run_command
from servicebroker.store.keys import KeyFolder
from servicebroker.store.running import run
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")
Do = Callable[[Steps[Any]], Any]

AT_ONCE = 1_000  # messages of one conversation that a round reads
BUDGET = 64 * 1024 * 1024  # bytes of bodies that wait in memory for a link
PIPELINE = 4 * 1024 * 1024  # bytes under way on a link; much more only makes acknowledgements late, and sent again
FRAGMENTS = 8  # that a round reads, so that a small message does not wait for a large one's megabyte
FIRST_SHARE = 64 * 1024  # bytes that a conversation may always have under way
PAGE = 500  # conversations that a round looks for among those that wait for long
MATCH_AGAIN = 5.0  # seconds until a delayed conversation is matched again
SOON = 0.02  # seconds until what somebody else holds is tried again, at first
LATER = 1.0  # and at most

_NOTHING = Leaving((), (), [])


class Relay:
    """The conversations of one instance with others. Not thread-safe: one thread runs its rounds.

    `seconds` never goes back; `capacity` is how many conversations it remembers at a time; `keys` has the service
    master key, for secure conversations.
    """

    def __init__(
        self,
        links: Links,
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
        chance: Random,
        here: Callable[[], Here] = Here,
        capacity: int = CAPACITY,
        keys: KeyFolder | None = None,
    ) -> None:
        self._security = DialogSecurity(keys, clock)
        self._links = links
        self._clock = clock
        self._seconds = seconds
        self._chance = chance
        self._here = here
        self._capacity = capacity
        self.mirrors = Mirrors(links, seconds)
        self.forwarding = Forwarding(links, self.mirrors, seconds, chance.getrandbits)
        self.forget()

    def forget(self) -> None:
        """The database was lost, or somebody else has written: begin anew from what it holds."""
        self._catalog = Catalog()
        self._memory = Memory(self._clock, self._seconds, self._chance.random, self._capacity, self._security.session)
        self._reception = Reception(self._memory, self._catalog, self._security, self._clock, self._chance)
        self._lines: dict[Link, FairQueue[UUID]] = {}
        self._loads: Counter[Link] = Counter()
        self._fragments = 0  # that this round has read
        self._is_traced = False  # messages have trace contexts
        self._traced: list[Traced] = []  # those that came with messages
        self._snapshot: Snapshot | None = None
        self._disabled: frozenset[int] = frozenset()
        self._routes: int | None = None
        self._is_replicated = True  # no commit was given up before a standby had it
        self.mirrors.forget_told()
        # what waits for long is found page by page
        self._page_at, self._page_after = 0.0, UUID(int=0)
        self._page_missed = False
        self._hungry: dict[UUID, None] = {}  # to be read further, in turns
        self._wanted: set[UUID] = set()  # to be looked up in the database
        # what a transaction must settle; somebody may hold the rows
        self._postponed: dict[UUID, Batch] = {}
        self._stored: list[Batch] = []  # by this round
        self._acknowledged: dict[UUID, Acknowledged] = {}
        self._failed: dict[UUID, Failure] = {}
        self._statuses: dict[UUID, str] = {}
        self._again_at, self._pause = NEVER, SOON

    # ---------------------------------------------------------------- the round

    def round(self, connection: DirectConnection, arrivals: Iterable[Arrival]) -> bool:
        """One transaction, and what may be sent after it. Returns whether there was something to do.

        Raises:
            psycopg.Error, InstanceError: nothing of it is to count. Call `forget`; the arrivals will come again.
        """

        def do(steps: Steps[T]) -> T:
            return run(connection, steps)

        with _transaction(connection):
            touched = self._take(do, list(arrivals))
            stored = self._store(do, touched)
            settled, ended = self._settle(do)
            look = do(departing.look(self._snapshot))
            touched |= self._enable(look.disabled)
            touched |= self._see_routes(do, look.routes)
            touched |= self._see_mirrors(do)
            touched |= self._due(do)
            touched |= self._find(do, look.waiting)
            self._match(do, touched)
            self._offer(do, touched)
        if not self._is_replicated:
            raise InstanceError("A commit did not reach the synchronous standby, so nothing of it is acknowledged.")
        self._snapshot, self._is_traced = look.snapshot, look.traced
        if stored is not None:
            self._committed(do, stored)
        for handle, event in settled.items():
            if entry := self._memory.get(handle):
                entry.dialog.deleted(event)
        for handle in touched:
            self._line_up(handle)
        sent = self._send(connection) | self.forwarding.send()
        metrics.DIALOGS.set(len(self._memory))
        for handle in ended:
            self._forget(handle)
        if self._memory.make_room():
            self._page_missed = True
            self._page_at = min(self._page_at, self._seconds() + MATCH_AGAIN)
        self._plan_again()
        return bool(touched) or sent

    @property
    def wake_at(self) -> float:
        """When the next round has something to do, if nothing arrives and nothing is sent."""
        hungry = self._seconds() if self._hungry and self._memory.waiting_bytes <= BUDGET else NEVER
        in_line = self._seconds() if any(line and link.room > 0 for link, line in self._lines.items()) else NEVER
        waits = self.forwarding.wake_at, self.mirrors.wake_at
        return min(self._memory.wake_at, self._again_at, self._page_at, hungry, in_line, *waits)

    def notice(self, said: psycopg.errors.Diagnostic) -> None:
        """A notice of PostgreSQL: a commit may be given up before its standby has it, and yet succeed."""
        if said.source_function == "SyncRepWaitForLSN":
            self._is_replicated = False

    def stands(self, address: Address, standing: Standing) -> None:
        """The broker at that address has said whether it is the principal."""
        self.mirrors.heard(address, standing)

    def reached(self, address: Address) -> None:
        """There is a link to that address now: whoever waits for it may send at once."""
        for handle, entry in self._memory.items():
            if entry.address == address and entry.link is None:
                entry.dialog.link_up()
                self._match_now(entry)
                self._line_up(handle)
        if self._page_missed:
            self._page_at = 0.0

    def unreached(self, address: Address, status: str) -> None:
        """There is no link to that address, and why."""
        self.mirrors.unreached(address, status)
        for _, entry in self._memory.items():
            if entry.address == address and entry.link is None:
                self._match_now(entry)  # there may be another instance of the service
                self._link_down(entry, status)

    def _match_now(self, entry: Entry) -> None:
        if not entry.is_claimed:
            entry.match_at = self._seconds()
            self._memory.set_alarm(entry)

    def lost(self, link: Link, status: str) -> None:
        """A link is over: what was under way on it travels again, at once where another one has taken its place."""
        self._lines.pop(link, None)
        torn = set()
        for _, entry in self._memory.items():
            if entry.link is link:
                self._link_down(entry, status)
                torn.add(entry.address)
        self._loads.pop(link, None)
        for address in torn:
            if address is not None and not isinstance(self._links.reach(address), str):
                self.reached(address)

    # ---------------------------------------------------------------- what arrives

    def _take(self, do: Do, arrivals: list[Arrival]) -> set[UUID]:
        came = []
        for arrival in arrivals:
            try:
                came.append(_parsed(arrival))
            except CorruptedMessage as problem:
                journal.not_taken(problem)
        keys = {(one.header.conversation_id, not one.header.is_from_initiator) for one in came}
        unknown = [key for key in keys if self._memory.find(*key) is None]
        if unknown:
            for endpoint in do(remote.find_by_conversation(unknown)):
                self._memory.enter(endpoint)
        touched = set()
        for one in self._pass_on(do, came):
            try:
                received = self._reception.open(do, one.link, one.envelope)
            except CorruptedMessage as problem:
                journal.not_taken(problem)
                continue
            if received is not None:
                self._take_one(one.link, received)
                touched.add(received.handle)
        return touched

    def _pass_on(self, do: Do, came: list[_Came]) -> list[_Came]:
        """Messages that the routes lead elsewhere are taken over by the forwarder. Returns the others."""
        here = self._here()
        self.forwarding.obey(here)
        strangers = [one for one in came if self._memory.find(*one.key) is None]
        if not strangers:
            return came
        decisions = do(route_arrivals(self._catalog, [one.header for one in strangers], here, self._clock()))
        self._acquaint(do, decisions)
        gone = set()
        for one, decision in zip(strangers, decisions, strict=True):
            journal.classified(decision.destination, one.header.to_service, one.header.to_broker, is_arrival=True)
            match decision.destination:
                case Away() as away if away.leads_to(here.addresses):
                    journal.forwarded_dropped(BrokerError(11294), one.header)
                case Away() as away:
                    self.forwarding.take_in(one.header, one.body, one.passage, away)
                case Gone(9792):
                    journal.forwarded_dropped(BrokerError(9792), one.header)
                case Ask():
                    journal.forwarded_dropped(BrokerError(9770), one.header)
                case _:
                    continue
            gone.add(id(one))
        return [one for one in came if id(one) not in gone]

    def _take_one(self, link: Link, received: Received) -> None:
        handle, header, payload = received
        entry = self._memory.get(handle)
        if entry is None:
            return
        journal.acknowledgement(header, is_sent=False)
        for place, context in header.traces or ():
            self._traced.append(
                Traced(header.conversation_id, header.is_from_initiator, header.number + place, context)
            )
        for event in entry.dialog.arrived(header, payload):
            match event:
                case Acknowledged():
                    self._acknowledged[handle] = event
                    self._memory.release(entry, event.below)
                    self._weigh(entry)
                case Failed():
                    self._failed[handle] = event.failure
                case Dropped():
                    journal.undeliverable(event, header)
                    if event.number == 11224 and entry.session is not None:
                        refuse(link, header, Failure(-8495, RULES[8495].text), entry.session)

    def _store(self, do: Do, touched: set[UUID]) -> arriving.Result | None:
        batches = self._postponed
        for handle in touched:
            if (entry := self._memory.get(handle)) and (batch := entry.dialog.batch()) is not None:
                batches[handle] = batch
                entry.is_storing = True
        if not batches:
            return None
        result: arriving.Result = do(arriving.store(self._catalog, batches, self._clock()))
        if self._traced:
            do(_alone(traces.arrived(self._traced, self._clock())))
            self._traced = []
        self._stored = [batches[handle] for handle in result.stored]
        self._postponed = {handle: batches[handle] for handle in result.postponed}
        return result

    def _committed(self, do: Do, result: arriving.Result) -> None:
        """What was stored is durable: it is acknowledged with the next frame."""
        for batch in self._stored:
            metrics.ARRIVED.inc(batch.reached - batch.expected)
            metrics.ARRIVED_FRAGMENTS.inc(batch.fragments)
        if result.queues:
            do(_alone(enqueue.wake(list(result.queues))))
        for handle in result.gone:
            self._forget(handle)
        for handle in result.stored:
            if (entry := self._memory.get(handle)) and entry.is_storing:  # not one that was looked up again meanwhile
                entry.is_storing = False
                entry.dialog.committed()
                if entry.dialog.sending is Sending.HELD:
                    self._say(entry, entry.dialog.status)
                self._line_up(handle)
        for handle in result.closed:
            if entry := self._memory.get(handle):
                entry.dialog.close()
        for handle, failed in result.failures.items():
            if entry := self._memory.get(handle):
                if failed.message_type:
                    journal.rejected(failed, entry.endpoint)
                entry.dialog.refuse(Failure(failed.code, failed.description))
                self._line_up(handle)

    def _settle(self, do: Do) -> tuple[dict[UUID, Acknowledged], list[UUID]]:
        """What the peers have said of our messages, and what we say of those that wait.

        Returns the acknowledgements that are committed with this transaction, and whose conversations end with it.
        """
        settled, ended = {}, []
        if self._acknowledged:
            done, ended = do(departing.acknowledge(self._acknowledged, self._clock()))
            settled = {handle: self._acknowledged.pop(handle) for handle in done}
            if self._is_traced:
                do(_alone(traces.delivered({handle: event.below for handle, event in settled.items()})))
        if self._failed:
            for handle in do(departing.fail(self._failed, self._clock())):
                del self._failed[handle]
        if self._statuses:
            do(_alone(departing.set_statuses(self._statuses)))
            self._statuses = {}
        return settled, ended

    def _plan_again(self) -> None:
        """Rows that somebody holds are tried again soon, and less often when that lasts."""
        if self._postponed or self._acknowledged or self._failed:
            now = self._seconds()
            if now >= self._again_at or self._again_at == NEVER:
                self._again_at = now + self._pause
                self._pause = min(self._pause * 2, LATER)
        else:
            self._again_at, self._pause = NEVER, SOON

    # ---------------------------------------------------------------- what leaves

    def _enable(self, disabled: frozenset[int]) -> set[UUID]:
        """Brokers may have been disabled, or enabled again: their messages wait, or go."""
        changed, self._disabled = self._disabled ^ disabled, disabled
        if not changed:
            return set()
        touched = {handle for handle, entry in self._memory.items() if entry.endpoint.database_id in changed}
        for handle in touched:
            if (entry := self._memory.get(handle)) and entry.endpoint.database_id not in disabled:
                entry.dialog.link_up()
        return touched

    def _due(self, do: Do) -> set[UUID]:
        now = self._seconds()
        due, strangers = set(), []
        for handle, entry in self._memory.ringing(now):
            if entry.match_at <= now or entry.session is None:
                self._wanted.add(handle)  # its service may have come into being here
            entry.dialog.tick(now)
            due.add(handle)
            if entry.link is not None and entry.dialog.introduction is not None:
                strangers.append(entry)
        if strangers:
            self._introduce_again(do, strangers)
        return due

    def _introduce_again(self, do: Do, entries: list[Entry]) -> None:
        """What secured conversations begin with was not acknowledged: perhaps its certificates are replaced."""
        introductions = [(one.endpoint, key) for one in entries if (key := one.dialog.introduction) is not None]
        renewed = self._security.renew(do, introductions)
        for entry in entries:
            match renewed.get(entry.endpoint.conversation_handle):
                case (keys, exchange):
                    entry.endpoint = entry.endpoint._replace(keys=keys)
                    entry.dialog.secure(exchange)
                case str(why):
                    self._say(entry, why)

    def _find(self, do: Do, found: list[Waiting]) -> set[UUID]:
        """Whom the look has found, whom a page has, and who is to be looked up again."""
        for waiting in found:
            if entry := self._memory.get(waiting.conversation_handle):
                entry.end = max(entry.end, waiting.last + 1)
                if waiting.has_end:
                    entry.dialog.end()
        touched = {one.conversation_handle for one in found}
        touched |= self._turn_page(do)
        unknown = self._wanted | {handle for handle in touched if handle not in self._memory}
        self._wanted = set()
        for handle in unknown:
            self._forget(handle)
        if unknown:
            touched |= {self._memory.enter(endpoint) for endpoint in do(remote.find_by_handle(list(unknown)))}
        return touched

    def _turn_page(self, do: Do) -> set[UUID]:
        """Some of those that wait since before we began, or that had no place in memory."""
        now = self._seconds()
        if now < self._page_at:
            return set()
        handles: list[UUID] = do(departing.page(self._page_after, PAGE))
        if len(handles) == PAGE:
            self._page_after = handles[-1]
            self._page_at = now if self._memory.room >= PAGE else now + MATCH_AGAIN
        else:
            self._page_after = UUID(int=0)
            self._page_at = now + MATCH_AGAIN if self._page_missed else NEVER
            self._page_missed = False
        return {handle for handle in handles if handle not in self._memory}

    def _match(self, do: Do, handles: Iterable[UUID]) -> None:
        """Where those go that have no address yet, or whose routes have changed."""
        entries = {handle: entry for handle in handles if (entry := self._memory.get(handle)) and entry.wants_route}
        if not entries:
            return
        endpoints = [entry.endpoint for entry in entries.values()]
        decisions = do(departing.route(self._catalog, endpoints, self._here(), self._clock()))
        self._acquaint(do, decisions.values())
        away = {
            handle: self.mirrors.way(one.destination)
            for handle, one in decisions.items()
            if isinstance(one.destination, Away)
        }
        missing = {handle: why for handle, way in away.items() if isinstance(why := self._reach(way), str)}
        ready = {
            handle: chosen.broker_instance
            for handle, one in decisions.items()
            if handle in away and handle not in missing and (chosen := one.chosen) and not entries[handle].is_claimed
        }
        claimed, locked = self._claim(do, ready) if ready else (set(), {})
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
                    self._say(entry, locked[handle])
            elif isinstance(decision.destination, Local) and not entry.is_claimed:
                self._forget(handle)  # its target is made in this instance
            else:
                self._wait_for_route(entry, decision)
            self._memory.set_alarm(entry)

    def _claim(self, do: Do, ready: dict[UUID, str | None]) -> tuple[set[UUID], dict[UUID, str]]:
        """Which of them are ours to send, secured as they have to be; and why others cannot be secured."""
        entries = {handle: entry for handle in ready if (entry := self._memory.get(handle)) is not None}
        undecided = [one.endpoint for one in entries.values() if one.endpoint.security is None]
        decided = self._security.begin(do, undecided) if undecided else {}
        for endpoint in undecided:
            if endpoint.is_initiator and endpoint.conversation_handle not in decided:
                del entries[endpoint.conversation_handle]  # it is being removed
        locked = {handle: one for handle, one in decided.items() if isinstance(one, str)}
        secured = {handle: one for handle, one in decided.items() if isinstance(one, Secured)}
        claims = {
            handle: Claim(ready[handle], secured[handle].security if handle in secured else Security.NONE)
            for handle in entries
            if handle not in locked
        }
        claimed: set[UUID] = do(departing.claim(claims)) if claims else set()
        do(
            dialog_security.save_keys(
                {handle: one.keys for handle, one in secured.items() if handle in claimed and one.keys is not None}
            )
        )
        for handle in claimed & secured.keys():
            entry, one = entries[handle], secured[handle]
            entry.endpoint = entry.endpoint._replace(security=one.security, keys=one.keys)
            entry.session = one.session
            if one.keys is not None:
                entry.dialog.secure(one.exchange)
        return claimed, locked

    def _acquaint(self, do: Do, decisions: Iterable[Decision]) -> None:
        """Both brokers of a mirrored route that is used for the first time are asked which is the principal."""
        strangers = self.mirrors.strangers(one.destination for one in decisions if isinstance(one.destination, Away))
        if strangers:
            self.mirrors.begin(do(mirrored_pairs.known(strangers)))

    def _reach(self, way: Address | str) -> Link | str:
        return way if isinstance(way, str) else self._links.reach(way)

    def _send_to(self, entry: Entry, decision: Decision, way: Address | str, missing: str | None) -> None:
        """Its messages go to that address: at once, or when there is a link to it; or it is not known to which."""
        destination, chosen = decision.destination, decision.chosen
        assert isinstance(destination, Away)
        assert chosen is not None
        entry.pair = destination if destination.mirror is not None else None
        if isinstance(way, str):
            self._wait_for(entry, f"{RULES[9753].text} {way}")
            return
        if entry.address not in (None, way):
            self._leave(entry)
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
            self._leave(entry)
            entry.address = None
        if entry.wants_more or entry.load:
            self._say(entry, why)

    def _leave(self, entry: Entry) -> None:
        """Its route has changed: what was under way travels again, on another one."""
        if entry.link is not None:
            self._loads[entry.link] -= entry.load
            entry.link = None
        entry.dialog.link_down(self._seconds(), "")
        entry.dialog.link_up()
        self._memory.release(entry)

    def _see_routes(self, do: Do, version: int) -> set[UUID]:
        """A route may have changed: it takes effect for what already waits."""
        before, self._routes = self._routes, version
        if before in (None, version):
            return set()
        self.mirrors.keep(do(mirrored_pairs.pairs()))
        return self._match_anew(dict(self._memory.items()))

    def _see_mirrors(self, do: Do) -> set[UUID]:
        """Of some pairs another one is the principal now, or neither is known to be it."""
        self.mirrors.tick()
        if news := self.mirrors.take_news():
            do(_alone(mirrored_pairs.save(news, self._clock())))
        changed = self.mirrors.take_changed()
        return self._match_anew({handle: one for handle, one in self._memory.items() if one.pair in changed})

    @staticmethod
    def _match_anew(changed: dict[UUID, Entry]) -> set[UUID]:
        for entry in changed.values():
            entry.is_stale = True
        return set(changed)

    def _offer(self, do: Do, touched: Iterable[UUID]) -> None:
        """Read what waits and may travel; a part of it at a time, so that memory stays bounded."""
        self._hungry.update(dict.fromkeys(touched))
        wanted: dict[UUID, Reading] = {}
        budget = BUDGET - self._memory.waiting_bytes
        for handle in list(self._hungry):
            if budget <= 0:
                break
            del self._hungry[handle]
            entry = self._memory.get(handle)
            if entry is not None and (reading := self._reading(entry)) is not None:
                wanted[handle] = reading
                budget -= min(reading.room, (entry.end - reading.first) * LIMITS.fragment_size)
        if not wanted:
            return
        found = do(departing.read(wanted, LIMITS.fragment_size))
        for handle, reading in wanted.items():
            entry = self._memory.get(handle)
            assert entry is not None
            leaving = found.get(handle, _NOTHING)
            self._offer_read(entry, leaving)
            was_all = len(leaving.numbers) < reading.most and sum(leaving.sizes) < reading.room
            if was_all and entry.dialog.room > 0:
                entry.end = entry.dialog.next_to_offer  # END CONVERSATION has dropped the rest
            elif entry.link is not None and entry.wants_more and entry.dialog.room > 0:
                self._hungry[handle] = None

    def _reading(self, entry: Entry) -> Reading | None:
        """What to read of it; of a conversation without a link only one message, so that it is tried again."""
        dialog = entry.dialog
        is_routed = entry.address is not None and not entry.is_stale
        if not is_routed or dialog.sending not in SENDS or not entry.wants_more or not self._is_enabled(entry):
            return None
        if not self._attach(entry):
            return Reading(dialog.next_to_offer, 1, 1)
        assert entry.link is not None
        room = max(dialog.room, 1)
        if self._loads[entry.link] >= PIPELINE:
            room = min(room, FIRST_SHARE)
            if entry.load:  # its acknowledgement will bring it here again
                return None
        return Reading(dialog.next_to_offer, AT_ONCE, room)

    def _attach(self, entry: Entry) -> bool:
        """Whether it has a link, or gets one now."""
        if entry.link is None and entry.address is not None and entry.is_claimed:
            found = self._links.reach(entry.address)
            if isinstance(found, str):
                return False
            entry.link = found
            entry.dialog.link_up()
            self._loads[found] += entry.load
            self._say(entry, "")
        return entry.link is not None

    def _forget(self, handle: UUID) -> None:
        if entry := self._memory.get(handle):
            if entry.link is not None:
                self._loads[entry.link] -= entry.load
            self._memory.forget(handle)
        self._postponed.pop(handle, None)  # the peer sends it again

    def _weigh(self, entry: Entry) -> None:
        """What its link carries has changed."""
        before, entry.load = entry.load, entry.dialog.load
        if entry.link is not None:
            self._loads[entry.link] += entry.load - before

    def _offer_read(self, entry: Entry, leaving: Leaving) -> None:
        """The application's messages as far as there is room for them, and what ends the conversation."""
        dialog, (numbers, sizes, parts) = entry.dialog, leaving
        ends = bool(parts) and parts[-1].content is not Content.DATA
        count = len(parts) - ends
        if count and dialog.room > 0 and numbers[0] == dialog.next_to_offer:
            following = next((place for place in range(count) if numbers[place] != numbers[0] + place), count)
            offered = dialog.offer_run(numbers[0], sizes[:following])
            self._memory.hold(entry, numbers[:offered], parts)
        if ends:
            self._offer_end(entry, numbers[-1], sizes[-1], parts[-1])
        self._weigh(entry)

    def _offer_end(self, entry: Entry, number: int, size: int, part: Part) -> None:
        """An Error needs no room and may leave messages out; an EndDialog waits for room and its turn."""
        dialog = entry.dialog
        if part.content is Content.ERROR:
            self._memory.release(entry)
        elif dialog.room <= 0 or number != dialog.next_to_offer:
            return
        dialog.offer(number, size, part.content)
        self._memory.hold(entry, [number], [part])

    def _line_up(self, handle: UUID) -> None:
        """Whoever has something to send gets in line at the link of its address."""
        entry = self._memory.get(handle)
        if entry is None:
            return
        if not self._is_enabled(entry):
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
                self._hungry[handle] = None
            if self._attach(entry):
                assert entry.link is not None
                self._lines.setdefault(entry.link, FairQueue()).add(handle, entry.priority)
        self._memory.set_alarm(entry)

    def _is_enabled(self, entry: Entry) -> bool:
        return entry.endpoint.database_id not in self._disabled

    def _link_down(self, entry: Entry, status: str) -> None:
        """It is tried again; what was read for it would only fill the memory until then."""
        if entry.link is not None:
            self._loads[entry.link] -= entry.load
        entry.link = None
        entry.dialog.link_down(self._seconds(), status)
        self._memory.release(entry)
        if status not in ("", entry.status):
            journal.transmission(entry.endpoint.conversation_id, status)
        self._say(entry, status)
        self._memory.set_alarm(entry)

    def _say(self, entry: Entry, status: str) -> None:
        """Why its messages wait; '' when they are on their way."""
        if status or entry.status != status:
            self._statuses[entry.endpoint.conversation_handle] = entry.status = status

    # ---------------------------------------------------------------- frames

    def _send(self, connection: psycopg.Connection[Any]) -> bool:
        sent = False
        self._fragments = 0
        for link, line in list(self._lines.items()):
            while link.room > 0 and self._fragments < FRAGMENTS and (turn := line.take()) is not None:
                entry = self._memory.get(turn.key)
                if entry is None or entry.link is not link:
                    continue
                body = self._frame(connection, turn.key, entry)
                if body is not None:
                    link.send(body)
                    metrics.PRIORITY_SENDS.labels(entry.priority).inc()
                    sent = True
                self._line_up(turn.key)
        return sent

    def _frame(self, connection: psycopg.Connection[Any], handle: UUID, entry: Entry) -> bytes | None:
        transmission = None if entry.session is None else entry.dialog.transmit(self._seconds())
        if transmission is None or entry.session is None:
            return None
        cut = transmission.cut
        if cut is None:
            journal.acknowledgement(transmission.header, is_sent=True)
            return encode(transmission.header, transmission.payload, entry.session.of(transmission.header))
        parts = self._parts(connection, handle, entry, cut)
        if parts is None:  # END CONVERSATION has dropped what was not acknowledged
            self._forget(handle)
            self._wanted.add(handle)
            return None
        journal.acknowledgement(transmission.header, is_sent=True)
        header = self._with_traces(connection, transmission.header, cut) if self._is_traced else transmission.header
        return encode(header, parts, entry.session.of(header))

    def _with_traces(self, connection: psycopg.Connection[Any], header: Header, cut: Cut) -> Header:
        """The header with the trace contexts of the messages, where they have any."""
        found = run(connection, traces.leaving(header.conversation_id, header.is_from_initiator, cut.first, cut.last))
        if not found:
            return header
        return structs.replace(header, traces=tuple((number - cut.first, context) for number, context in found))

    def _parts(
        self, connection: psycopg.Connection[Any], handle: UUID, entry: Entry, cut: Cut
    ) -> tuple[Part, ...] | None:
        """The messages that a cut names, or its fragment of one; None when they are not there any more."""
        numbers = range(cut.first, cut.last + 1)
        if not entry.parts.keys() >= set(numbers):  # they travel again
            reading = Reading(cut.first, len(numbers), 2**40)
            found = run(connection, departing.read({handle: reading}, LIMITS.fragment_size)).get(handle, _NOTHING)
            if found.numbers != tuple(numbers):
                return None
            self._memory.hold(entry, found.numbers, found.parts)
        if cut.fragments == 1:
            return self._memory.take(entry, numbers)
        whole = entry.parts[cut.first]
        self._fragments += 1
        body = run(connection, departing.read_fragment(handle, cut.first, cut.offset, cut.length))
        return None if body is None else (Part(whole.message_type, whole.content, body),)


class _Came(NamedTuple):
    """A message that has come; `passage` when it has passed forwarders."""

    link: Link
    envelope: Envelope
    body: bytes
    passage: Passage | None

    @property
    def header(self) -> Header:
        return self.envelope.header

    @property
    def key(self) -> tuple[UUID, bool]:
        """Of the endpoint that it is for."""
        return self.header.conversation_id, not self.header.is_from_initiator


def _parsed(arrival: Arrival) -> _Came:
    """Raises CorruptedMessage: nobody can have made it so."""
    passage, body = unwrap(arrival.body) if arrival.is_forwarded else (None, arrival.body)
    return _Came(arrival.link, parsed(body), body, passage)


@contextlib.contextmanager
def _transaction(connection: DirectConnection) -> Iterator[None]:
    """As the driver's, but BEGIN travels with the first statement."""
    connection.ahead.append(Ahead(b"begin"))
    try:
        yield
        run_command(connection, b"commit")
    except BaseException:
        connection.ahead.clear()
        with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
            connection.rollback()
        raise


def _alone(statement: Statement) -> Steps[None]:
    yield statement
