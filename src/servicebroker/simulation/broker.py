"""One instance of a run: a whole broker over the protocol. Its memory goes with a crash, its tables stay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from random import Random
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from servicebroker.model.errors import RULES
from servicebroker.model.states import EndpointState
from servicebroker.protocol.adjacent import Arrived, Myself
from servicebroker.protocol.dialog import Acknowledged, Apart, Dialog, Dropped, Event, Failed, Identity, unpack
from servicebroker.protocol.dialog_keys import UNSECURED, SessionKeys
from servicebroker.protocol.envelope import (
    BrokerFailure,
    Content,
    Exchange,
    Header,
    Kind,
    Part,
    encode,
    open_payload,
    parse,
    refusal,
)
from servicebroker.protocol.fairness import FairQueue
from servicebroker.protocol.forwarding import TIME_TO_LIVE, Forwarder, Passage, Refusal, unwrap
from servicebroker.protocol.incoming import Batch
from servicebroker.protocol.integrity import CHECKSUM, KEY_SIZE, SALT_SIZE, SessionKey
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.outgoing import Cut
from servicebroker.protocol.wire_errors import CorruptedMessage
from servicebroker.simulation.links import Link, Links
from servicebroker.simulation.simulated_network import Network, Stream, flip
from servicebroker.simulation.simulated_time import Loop
from servicebroker.simulation.store import Endpoint, Key, Lost

UNREACHABLE = RULES[9753].text
FRAMES_AT_ONCE = 4
FORWARD_SIZE = 6_000  # bytes: some ten messages


def exchange(secret: bytes, *, is_signed: bool) -> Exchange:
    """A session key for the peer; what would be encrypted is in clear here."""
    return Exchange(UUID(bytes=secret[:16]), b"source" if is_signed else b"", b"", b"", secret, b"")


def session_key(secret: bytes, random: Random) -> SessionKey:
    """The key with salts of the run."""
    return SessionKey(secret, lambda: random.randbytes(SALT_SIZE))


class World(NamedTuple):
    """What the instances of a run share."""

    loop: Loop
    network: Network
    limits: Limits
    brokers: dict[UUID, SimulatedBroker]
    routes: dict[tuple[UUID, UUID], UUID]  # where an instance sends what is for another one; there, if it is not said
    parted: set[int]  # conversations of an instance that has gone back to an old copy

    def peer_of(self, key: Key, broker: UUID) -> Endpoint | None:
        """The other endpoint, in that broker."""
        return self.brokers[broker].endpoints.get((key[0], not key[1]))


class _Memory:
    """All that a crash takes."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.dialogs: dict[Key, Dialog] = {}
        self.lines: dict[UUID, FairQueue[Key]] = {}
        self.alarms: dict[Key, float] = {}
        self.acknowledged: dict[Key, Acknowledged] = {}  # not committed yet
        self.is_storing = False
        self.forwarder: Forwarder[UUID] = Forwarder(FORWARD_SIZE)


class SimulatedBroker:
    """A daemon and its database."""

    def __init__(self, world: World, index: int, guid: UUID) -> None:
        self.world = world
        self.index = index
        self.guid = guid
        self.is_up = True
        self.endpoints: dict[Key, Endpoint] = {}
        self.saved: dict[Key, bytes] = {}  # the UNLOGGED table
        self.on_delivery: Callable[[SimulatedBroker, Key], None] = lambda broker, key: None
        self.corrupted = 0
        self._memory = self._fresh()

    def _fresh(self) -> _Memory:
        incarnation = UUID(int=self.world.loop.random.getrandbits(128))
        return _Memory(Links(self, Myself(self.guid, incarnation)))

    def __repr__(self) -> str:
        return f"broker {self.index}"

    # --- crashes and time

    def crash(self) -> None:
        """Lose all memory and come back later. PostgreSQL may have crashed too: then unlogged tables are empty."""
        self.trace("crash")
        memory, self.is_up = self._memory, False
        self._memory = self._fresh()
        memory.links.crash()
        if self.world.loop.random.random() < 0.5:
            self.saved.clear()
        self.world.loop.after(0.1 + self.world.loop.random.random() * 10, self._restart)

    def go_back(self, endpoints: dict[Key, Endpoint]) -> None:
        """An old copy is restored: its tables are what they were then."""
        self.trace("goes back to an old copy")
        self.crash()
        self.endpoints = endpoints
        self.saved.clear()

    def _restart(self) -> None:
        self.is_up = True
        for key, endpoint in list(self.endpoints.items()):
            if endpoint.rows:
                self.poke(key)

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        """Do something in this life only."""
        self.at(self.now + delay, action)

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Do something at a moment, in this life only."""
        life = self._memory
        self.world.loop.at(moment, lambda: action() if self._memory is life and self.is_up else None)

    def trace(self, *what: object) -> None:
        """Say what happens here."""
        self.world.loop.trace(self, *what)

    @property
    def now(self) -> float:
        """The time of the run."""
        return self.world.loop.now

    # --- transmission objects

    def dialog(self, key: Key) -> Dialog:
        """The transmission object of an endpoint: from memory, the saved ones, or the store."""
        memory = self._memory
        if key not in memory.dialogs:
            endpoint, saved = self.endpoints[key], self.saved.pop(key, None)
            state = endpoint.transmission_state() if saved is None else unpack(saved)
            dialog = Dialog(endpoint.identity, state, self.world.loop.random.random, self.world.limits)
            memory.dialogs[key] = dialog
            if endpoint.refused is not None and endpoint.state is not EndpointState.CLOSED:
                dialog.refuse(endpoint.refused)
        return memory.dialogs[key]

    def poke(self, key: Key) -> None:
        """Something was committed for this endpoint, or its time has come."""
        if not self.is_up or key not in self.endpoints:
            return
        dialog, endpoint = self.dialog(key), self.endpoints[key]
        dialog.tick(self.now)
        if endpoint.state is EndpointState.CLOSED:
            dialog.close()
        elif endpoint.state is EndpointState.DISCONNECTED_OUTBOUND:
            dialog.end()
        waiting = sorted(number for number in endpoint.rows if number >= dialog.next_to_offer)
        for is_data, group in groupby(waiting, lambda number: endpoint.rows[number].content is Content.DATA):
            numbers = list(group)
            rows = [endpoint.rows[number] for number in numbers]
            if is_data and dialog.room > 0:
                dialog.offer_run(numbers[0], [len(row.body or b"") for row in rows], [row.token for row in rows])
            elif not is_data:
                self._offer_end(dialog, numbers[0], rows[0])
        self._set_going(key)

    def _offer_end(self, dialog: Dialog, number: int, row: Part) -> None:
        if row.content is Content.ERROR or (dialog.room > 0 and number == dialog.next_to_offer):
            dialog.offer(number, len(row.body or b""), row.content, row.token)

    def _set_going(self, key: Key) -> None:
        """Get in line to send, and set the alarm."""
        dialog, endpoint = self.dialog(key), self.endpoints[key]
        if dialog.has_work(self.now):
            peer = self._route(key)
            self._memory.lines.setdefault(peer, FairQueue()).add(key, endpoint.priority)
            self._later(0.0, lambda: self._pump(peer))
        self._set_alarm(key, dialog.wake_at)
        if dialog.is_idle and self._happens("eviction"):
            self.trace("evicts", key)
            self._evict(key)

    def _evict(self, key: Key) -> None:
        dialog = self._memory.dialogs.pop(key)
        for line in self._memory.lines.values():
            line.discard(key)
        self.saved[key] = dialog.save()

    def _set_alarm(self, key: Key, at: float) -> None:
        alarms = self._memory.alarms
        if at == float("inf") or alarms.get(key, float("inf")) <= at:
            return
        alarms[key] = at

        def ring() -> None:
            if alarms.get(key) == at:
                del alarms[key]
            self.poke(key)

        self.at(at, ring)

    def _route(self, key: Key) -> UUID:
        """Whom the messages of an endpoint are sent to."""
        return self._hop(_home(self.endpoints[key].identity.far_service))

    def _hop(self, there: UUID) -> UUID:
        return self.world.routes.get((self.guid, there), there)

    def routes_changed(self, there: UUID) -> None:
        """What is under way to that instance travels again, on its new route."""
        self.trace("sends what is for", self.world.brokers[there], "to", self.world.brokers[self._hop(there)])
        for key, dialog in list(self._memory.dialogs.items()):
            if _home(self.endpoints[key].identity.far_service) == there:
                for line in self._memory.lines.values():
                    line.discard(key)
                dialog.link_down(self.now, "")
                dialog.link_up()
                self._set_going(key)

    def _happens(self, fault: str) -> bool:
        return self.world.loop.happens(getattr(self.world.network.faults, fault))

    # --- what the links tell

    def accept(self, stream: Stream) -> None:
        """The network brings a new stream."""
        self._memory.links.accept(stream)

    def link_up(self, peer: UUID) -> None:
        """A peer can be reached."""
        for key, dialog in list(self._memory.dialogs.items()):
            if self._route(key) == peer:
                dialog.link_up()
                self._set_going(key)
        self._later(0.0, lambda: self._pump(peer))

    def link_down(self, peer: UUID) -> None:
        """A peer cannot be reached, or not any more."""
        for key, dialog in list(self._memory.dialogs.items()):
            if self._route(key) == peer:
                dialog.link_down(self.now, UNREACHABLE)
                if peer in self._memory.lines:
                    self._memory.lines[peer].discard(key)
                self._set_alarm(key, dialog.wake_at)

    def carried(self, came: Arrived) -> None:
        """A message has come over the last hop; those before it may have lost, doubled, delayed or changed it."""
        random = self.world.loop.random
        if self._happens("loss"):
            return
        if self._happens("replay"):
            self.world.loop.after(random.choice((0.1, 5.0, 120.0)) * random.random(), lambda: self._arrived(came))
        if self._happens("tampering"):
            came = came._replace(body=flip(came.body, random.randrange(8 * len(came.body))))
        if self._happens("reorder"):
            self.world.loop.after(random.choice((0.1, 5.0)) * random.random(), lambda: self._arrived(came))
        else:
            self._arrived(came)

    # --- sending

    def _pump(self, peer: UUID) -> None:
        """Send a few frames, and come back for more."""
        memory = self._memory
        link, line = memory.links.find(peer), memory.lines.get(peer)
        if not line and peer not in memory.forwarder.hops:
            return
        if link is None:
            memory.links.connect(peer)
            return
        for _ in range(FRAMES_AT_ONCE):
            if line and (turn := line.take()) is not None:
                self._send_frame(link, turn.key)
            found = memory.forwarder.pass_on(peer, self.now)
            if found is not None and not isinstance(found, Refusal):
                link.connection.send(found[1], self.now, is_forwarded=True)
        memory.links.flush(link)
        self._later(0.001, lambda: self._pump(peer))

    def _send_frame(self, link: Link, key: Key) -> None:
        if key not in self.endpoints or (transmission := self.dialog(key).transmit(self.now)) is None:
            return
        header, cut, failure = transmission
        payload = failure if cut is None else self._read(self.endpoints[key], cut)
        if cut is not None and payload is None:
            return  # an END WITH ERROR has deleted them; it is on its way to us
        self.trace("sends", key, header.kind.name, cut, header.acknowledgement)
        link.connection.send(encode(header, payload, self.endpoints[key].session.of(header)), self.now)
        if self.dialog(key).has_work(self.now):
            self._memory.lines.setdefault(self._route(key), FairQueue()).add(key, self.endpoints[key].priority)
        self._set_alarm(key, self.dialog(key).wake_at)

    def _read(self, endpoint: Endpoint, cut: Cut) -> tuple[Part, ...] | None:
        rows = [endpoint.rows.get(number) for number in range(cut.first, cut.last + 1)]
        if cut.fragments == 1:
            return tuple(row for row in rows if row is not None) if None not in rows else None
        if rows[0] is None:
            return None
        body = rows[0].body or b""
        return (structs.replace(rows[0], body=body[cut.offset : cut.offset + cut.length]),)

    # --- receiving

    def _arrived(self, came: Arrived) -> None:
        if not self.is_up:
            return
        try:
            passage, body = unwrap(came.body) if came.is_forwarded else (None, came.body)
            envelope = parse(body)
            header = envelope.header
            if self._is_for_others(header):
                self._pass_on(header, body, passage)
                return
            key = (header.conversation_id.int, not header.is_from_initiator)
            session = self._session(key, header)
            payload = open_payload(envelope, session.of(header))
        except CorruptedMessage as problem:
            self.corrupted += 1
            self.trace(problem)
            return
        if key in self.endpoints:
            self.endpoints[key].session = session
        elif not self._open(key, header, payload, session):
            return
        dialog = self.dialog(key)
        number = dialog.to_recall(header)
        row = None if number is None else self.endpoints[key].rows.get(number)
        for event in dialog.arrived(header, payload, None if row is None else row.token):
            self.trace(key, event)
            self._happened(key, event)
        self._start_storing()
        self._set_going(key)

    def _is_for_others(self, header: Header) -> bool:
        """Nothing of a header is proven on the way: it may name anybody."""
        key = (header.conversation_id.int, not header.is_from_initiator)
        home = _home(header.to_service)
        return key not in self.endpoints and home != self.guid and home in self.world.brokers

    def _pass_on(self, header: Header, body: bytes, passage: Passage | None) -> None:
        hop, forwarder = self._hop(_home(header.to_service)), self._memory.forwarder
        passage = passage or Passage(UUID(int=self.world.loop.random.getrandbits(128)))
        refusal = forwarder.take_in(header, body, passage, hop, self.now)
        if refusal is None:
            self._later(0.0, lambda: self._pump(hop))
            self._later(TIME_TO_LIVE + 1.0, lambda: self.trace(*forwarder.expire(self.now)))
        else:
            self.trace(refusal.error)

    def _session(self, key: Key, header: Header) -> SessionKeys:
        """The keys of a conversation, with what the message itself tells of them."""
        endpoint, told = self.endpoints.get(key), None
        if header.is_secured and header.exchange is not None:
            if len(header.exchange.wrapped) != KEY_SIZE:
                raise CorruptedMessage(11230)
            told = session_key(header.exchange.wrapped, self.world.loop.random)
        if endpoint is None:
            return (
                UNSECURED if told is None else SessionKeys(told, None, bool(header.exchange and header.exchange.source))
            )
        if told is not None and endpoint.identity.is_initiator and endpoint.session.second is None:
            return endpoint.session._replace(second=told)
        return endpoint.session

    def _open(self, key: Key, header: Header, payload: object, session: SessionKeys) -> bool:
        """Make the target's endpoint, or answer that there is none."""
        if header.kind not in (Kind.RUN, Kind.FRAGMENT) or not isinstance(payload, tuple):
            return False
        if header.opening is None:
            if not header.is_secured:
                self._refuse(header)
            return False
        identity = Identity(
            header.conversation_id,
            False,
            self.guid,
            header.to_service,
            header.from_service,
            header.opening.contract,
            self.now + header.opening.lifetime,
            header.opening.encryption,
            header.is_secured,
        )
        if session.has_second:
            secret = self.world.loop.random.randbytes(KEY_SIZE)
            session = session._replace(second=session_key(secret, self.world.loop.random))
            identity = identity._replace(exchange=exchange(secret, is_signed=True))
        endpoint = self.endpoints[key] = Endpoint(identity, self.world.loop.random.randint(1, 10), session)
        endpoint.far_broker = header.from_broker
        return True

    def _refuse(self, header: Header) -> None:
        failure, hop = BrokerFailure(-8462, RULES[8462].text), self._hop(_home(header.from_service))
        link = self._memory.links.find(hop)
        if link is None:
            self._memory.links.connect(hop)  # what came through a forwarder comes again, and is answered then
        else:
            self.trace("refuses", header.conversation_id)
            link.connection.send(encode(refusal(header, self.guid), failure, CHECKSUM), self.now)
            self._memory.links.flush(link)

    def _happened(self, key: Key, event: Event) -> None:
        match event:
            case Acknowledged(below, _):
                peer = self.world.peer_of(key, event.far_broker)
                if peer is not None and peer.next < below and key[0] not in self.world.parted:
                    raise Lost(f"{key}: messages below {below} are acknowledged, stored are those below {peer.next}")
                self._memory.acknowledged[key] = event
            case Failed(failure):
                self.endpoints[key].fail(failure.code)
                self.on_delivery(self, key)
            case Apart():
                self.endpoints[key].refused = event.far
                self.endpoints[key].fail(event.own.code)
                self.on_delivery(self, key)
            case Dropped():
                pass

    # --- committing

    def _start_storing(self) -> None:
        """One transaction at a time, for all that has come until now."""
        memory = self._memory
        if memory.is_storing:
            return
        batches = {key: batch for key, dialog in memory.dialogs.items() if (batch := dialog.batch()) is not None}
        acknowledged, memory.acknowledged = memory.acknowledged, {}
        if not batches and not acknowledged:
            return
        memory.is_storing = True
        delay = self.world.loop.random.random() * 0.02
        self._later(delay, lambda: self._commit(batches, acknowledged))

    def _commit(self, batches: dict[Key, Batch], acknowledged: dict[Key, Acknowledged]) -> None:
        self._memory.is_storing = False
        if self._happens("crash_before_commit"):
            self.crash()
            return
        if self._happens("rollback"):
            for key in batches:
                self.dialog(key).rolled_back()
            self._memory.acknowledged = acknowledged | self._memory.acknowledged
            self._later(1.0, self._start_storing)
            return
        for key, event in acknowledged.items():
            if key in self.endpoints:
                self.endpoints[key].acknowledged(event)
                self.dialog(key).deleted(event)
        for key, batch in batches.items():
            self.endpoints[key].store(batch)
        if self._happens("crash_after_commit"):
            self.crash()
        self._after_commit(batches, acknowledged)

    def _after_commit(self, batches: dict[Key, Batch], acknowledged: dict[Key, Acknowledged]) -> None:
        for key in batches:
            if self.is_up:
                self.dialog(key).committed()
            self.on_delivery(self, key)
        for key in [*batches, *acknowledged]:
            self.remove_closed(key)
            self.poke(key)
        if self.is_up:
            self._start_storing()

    def remove_closed(self, key: Key) -> None:
        """A closed initiator goes, unless its key may yet be needed; a closed target stays against replays."""
        endpoint = self.endpoints.get(key)
        if endpoint is None or not key[1] or endpoint.identity.is_secured:
            return
        if endpoint.state is EndpointState.CLOSED:
            dialog = self._memory.dialogs.get(key)
            if dialog is None or dialog.is_idle:
                self.forget(key)

    def forget(self, key: Key) -> None:
        """The endpoint is removed, with its transmission object."""
        del self.endpoints[key]
        self.saved.pop(key, None)
        self._memory.dialogs.pop(key, None)
        self._memory.acknowledged.pop(key, None)
        for line in self._memory.lines.values():
            line.discard(key)

    # --- what must hold at the end

    def is_held(self, key: Key) -> bool:
        """Whether the messages of an endpoint wait, and it is known why."""
        dialog = self._memory.dialogs.get(key)
        return dialog is not None and dialog.is_unanswered and bool(self.endpoints[key].rows)

    def leaks(self) -> list[str]:
        """What is left over in a broker that has nothing to do; with a conversation that is held, its retries too."""
        memory, found = self._memory, []
        for key, endpoint in self.endpoints.items():
            if key[0] in self.world.parted and (self.is_held(key) or endpoint.is_over):
                continue
            if endpoint.kept:
                found.append(f"{key} still keeps {sorted(endpoint.kept)}")
            if endpoint.rows:
                found.append(f"{key} in {endpoint.state} still has to send {sorted(endpoint.rows)}")
            if key in memory.dialogs and not memory.dialogs[key].is_idle:
                found.append(f"the transmission object of {key} is not idle")
        if any(one.is_held(key) for one in self.world.brokers.values() for key in one.endpoints):
            return found
        if any(memory.lines.values()):
            found.append("somebody is still in line")
        if len(memory.forwarder):
            found.append(f"{len(memory.forwarder)} messages are still held for others")
        return found + ([f"{len(memory.links)} connections are open"] if memory.links else [])


def _home(service: str) -> UUID:
    """Services are named after their brokers."""
    try:
        return UUID(service.rpartition("/")[2])
    except ValueError:
        raise CorruptedMessage(11235, "the name of no service") from None
