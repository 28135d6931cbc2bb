"""What arrives is opened here; and what begins a conversation is let in, refused, or not answered at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.again import Again
from servicebroker.broker.dialog_security import Denied, DialogSecurity
from servicebroker.broker.links import Arrival, Link
from servicebroker.broker.relay_memory import Memory
from servicebroker.broker.store_operations import Store
from servicebroker.engine.remote.remote_opening import BEING_ALTERED, Place, Unroutable
from servicebroker.model.conversation_events import CREATED, Deed
from servicebroker.model.dialog_security import NO_SERVICE_MASTER_KEY
from servicebroker.model.errors import RULES
from servicebroker.model.states import EndpointState
from servicebroker.protocol.dialog import Dropped
from servicebroker.protocol.dialog_keys import UNSECURED, SessionKeys
from servicebroker.protocol.envelope import (
    BrokerFailure,
    Envelope,
    Header,
    Kind,
    Payload,
    check_addresses,
    encode,
    open_payload,
    parse,
    refusal,
)
from servicebroker.protocol.forwarding import Passage, unwrap
from servicebroker.protocol.wire_errors import CorruptedMessage

KEPT, KEPT_BYTES = 1_000, 4 * 1024 * 1024  # messages that wait in memory; of more the peers try again
KEPT_OF_LINK = 250  # of these


class Came(NamedTuple):
    """A message that has come, at the moment `since`; `passage` when it has passed forwarders."""

    link: Link
    envelope: Envelope
    body: bytes
    passage: Passage | None
    since: float

    @property
    def header(self) -> Header:
        """What it says of itself."""
        return self.envelope.header

    @property
    def key(self) -> tuple[UUID, bool]:
        """Of the endpoint that it is for."""
        return self.header.conversation_id, not self.header.is_from_initiator


class Received(NamedTuple):
    """A message whose integrity is proven, and the endpoint that it is for."""

    handle: UUID
    header: Header
    payload: Payload


class WaitingOpenings:
    """Messages whose service is being made or altered, or of which it is being found out whether they are taken.

    Their senders would take seconds to try again.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._kept: list[Came] = []
        self._of_link: Counter[Link] = Counter()
        self._bytes = 0
        self._again = Again(seconds)

    @property
    def wake_at(self) -> float:
        """When those that are kept are taken."""
        return self._again.at

    def keep(self, came: Came) -> bool:
        """Whether there is room for it."""
        if len(self._kept) >= KEPT or self._bytes + len(came.body) > KEPT_BYTES:
            return False
        if self._of_link[came.link] >= KEPT_OF_LINK:
            return False
        self._of_link[came.link] += 1
        self._kept.append(came)
        self._bytes += len(came.body)
        return True

    def take(self) -> list[Came]:
        """Those that it is time for."""
        if not self._again.has_come():
            return []
        taken, self._kept, self._bytes = self._kept, [], 0
        self._of_link.clear()
        return taken

    def hurry(self) -> None:
        """Something has happened that they may have waited for."""
        if self._kept:
            self._again.hurry()

    def plan_again(self) -> None:
        """What is kept is taken soon, and less often when that lasts."""
        self._again.plan(is_left=bool(self._kept))


class Reception:
    """Opens messages with the keys of their conversations."""

    def __init__(
        self,
        memory: Memory,
        waiting: WaitingOpenings,
        security: DialogSecurity,
        chance: Random,
    ) -> None:
        self._memory = memory
        self._waiting = waiting
        self._security = security
        self._chance = chance

    def open(self, store: Store, came: Came) -> Received | None:
        """The message; None when it waits, is dropped, which was written down, or answered with an error.

        Raises:
            CorruptedMessage: it was changed under way, or nobody can have made it so.
        """
        header = came.header
        handle = self._memory.find(*came.key)
        entry = None if handle is None else self._memory.get(handle)
        if handle is None or entry is None:
            return self._begin(store, came)
        if entry.session is None:
            _drop(came.link, header, 28054, header.to_service, NO_SERVICE_MASTER_KEY)
            return None
        if header.exchange is not None:
            learned = self._security.learn(store, entry.endpoint, entry.session, header, came.link)
            if learned is None:
                return None
            entry.endpoint, entry.session = learned
        return Received(handle, header, _opened(came.envelope, entry.session))

    def _begin(self, store: Store, came: Came) -> Received | None:
        """The target's endpoint for the first message of a conversation; else the peer is told that nobody is here.

        A secured message is answered only with the key that it brings: anybody could say that a conversation is over.
        """
        link, envelope, header = came.link, came.envelope, came.header
        payload = None if header.is_secured else _opened(envelope, UNSECURED)
        if header.kind not in (Kind.RUN, Kind.FRAGMENT):
            _drop_stranger(came, 11209, header.from_broker)
            return None
        if not header.is_from_initiator or header.opening is None:
            _drop_stranger(came, 11213)
            if not header.is_secured:
                refuse(link, header, BrokerFailure(-8462, RULES[8462].text))
            return None
        place = store.find_place(header, self._chance.randrange)
        if isinstance(place, Place):
            return self._admit(store, link, envelope, place, payload)
        if isinstance(place, Unroutable):
            if place == BEING_ALTERED and self._waiting.keep(came):
                return None
            why = RULES[place.number].text.format(header.to_service)
            _drop_stranger(came, 11210, header.to_service, header.from_broker, why)
            return None
        _drop_stranger(came, 11210, header.to_service, header.from_broker, place.description)
        if not header.is_secured:
            refuse(link, header, BrokerFailure(place.code, place.description))
        return None

    def _admit(self, store: Store, link: Link, envelope: Envelope, place: Place, payload: Payload) -> Received | None:
        header = envelope.header
        admitted = self._security.admit(store, place.home, place.broker, header, link)
        if admitted is None:
            return None
        if header.is_secured:
            payload = _opened(envelope, admitted.session)
        if isinstance(admitted, Denied):
            refuse(link, header, admitted.failure, admitted.session)
            return None
        if place.failure is not None:
            _drop(link, header, 11214, header.opening.contract if header.opening else "")
            refuse(link, header, BrokerFailure(place.failure.code, place.failure.description), admitted.session)
            return None
        handle = store.insert_target(header, place.home, admitted.security)
        if handle is None:
            _drop(link, header, 11221, "both sides of the conversation are in this instance")
            return None
        if admitted.keys is not None:
            store.save_keys({handle: admitted.keys})
        link.opened()
        (endpoint,) = store.endpoints([handle])
        journal.conversed(Deed.DIALOG_CREATED, endpoint, EndpointState.STARTED_INBOUND)
        if journal.watches_conversations():
            for group in store.groups_of([handle]).values():
                journal.grouped(CREATED, group)
        return Received(self._memory.enter(endpoint), header, payload)


def parsed(arrival: Arrival, now: float) -> Came:
    """A frame whose names can be looked up.

    Raises:
        CorruptedMessage: they cannot, or nobody can have made it so.
    """
    passage, body = unwrap(arrival.body) if arrival.is_forwarded else (None, arrival.body)
    envelope = parse(body)
    header = envelope.header
    check_addresses(header)
    _check(header.to_service, header.from_service, header.opening.contract if header.opening else "")
    return Came(arrival.link, envelope, body, passage, now)


def _opened(envelope: Envelope, session: SessionKeys) -> Payload:
    payload = open_payload(envelope, session.of(envelope.header))
    if isinstance(payload, tuple):
        _check(*(part.message_type for part in payload))
    return payload


def _check(*names: str) -> None:
    if any("\0" in name for name in names):
        raise CorruptedMessage(11235, "a name contains the character NUL")


def refuse(link: Link, header: Header, failure: BrokerFailure, session: SessionKeys = UNSECURED) -> None:
    """Answer where no endpoint is, or not for this peer; who does not read what it was told is told no more."""
    if link.room <= 0:
        return
    is_secured = session.first.is_secured
    answer = refusal(header, header.to_broker or header.conversation_id, is_secured=is_secured)
    link.send(encode(answer, failure, session.of(answer)))


def _drop_stranger(came: Came, number: int, *values: object) -> None:
    """Of a message that no conversation here is for; a peer that brings many of them is read less."""
    _drop(came.link, came.header, number, *values)
    came.link.complain()


def _drop(link: Link, header: Header, number: int, *values: object) -> None:
    journal.undeliverable(Dropped(number, RULES[number].text.format(*values)), header, link)
