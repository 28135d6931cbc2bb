"""Secure conversations: session keys made, wrapped for the peer, learned from it, and kept under master keys.

What protects a conversation is decided once, before anything of it travels. Who has sent a message is known by the
signature of the key that opens it, so what cannot be verified is dropped and not answered: its sender will try again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec

from servicebroker.broker import journal
from servicebroker.broker.key_exchange import is_signed, sign, unwrap, wrap
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Link
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.site import Home
from servicebroker.engine.security import session_keys
from servicebroker.engine.security.known_brokers import KnownBroker
from servicebroker.engine.security.session_keys import Beginning, Keys
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, UserCertificate
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.security.certificates import SESSION_KEY
from servicebroker.model.security.dialog_security import NO_BINDING, NO_SERVICE_MASTER_KEY, TABLE, Security
from servicebroker.model.security.permissions import PUBLIC_ID
from servicebroker.protocol.dialog import Dropped
from servicebroker.protocol.dialog_keys import UNSECURED, SessionKeys, bound
from servicebroker.protocol.envelope import (
    CAPABILITIES,
    DATED,
    BrokerFailure,
    Exchange,
    Header,
    Kind,
    pack_exchange,
    refusal,
)
from servicebroker.protocol.freshness import CLOCK_ALLOWANCE, is_ahead, is_fresh
from servicebroker.protocol.integrity import KEY_SIZE, SALT_SIZE, SessionKey
from servicebroker.protocol.wire_errors import CorruptedMessage
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.opened_keys import OpenedKeys
from servicebroker.store.keys.sealing import seal, unseal
from servicebroker.store.keys.x509_certificates import public_key


class Secured(NamedTuple):
    """What protects a conversation: to be stored with its endpoint, and to be used."""

    security: Security
    session: SessionKeys
    keys: Keys | None = None
    exchange: Exchange | None = None
    signer: UserCertificate | None = None  # of the peer, where it begins; None: anonymous


class Misdated(NamedTuple):
    """Why an opening is not taken; `clock` is what the initiator is told of ours, in seconds since 1970."""

    reason: str
    clock: int | None = None


class _Opened(NamedTuple):
    """An exchange that was verified: whom it was wrapped for, who has signed it (None: nobody), the session key."""

    own: UserCertificate
    peer: UserCertificate | None
    master: bytes
    key: bytes


class Denied(NamedTuple):
    """Its first message is not taken; the initiator gets this Error, sealed by `session`."""

    failure: BrokerFailure
    session: SessionKeys


MOST_BROKERS = 10_000  # that a daemon remembers: a few hundred bytes each
PLAIN = Secured(Security.NONE, UNSECURED)


class DialogSecurity:
    """Makes and opens session keys. `keys` has the service master key; without it no secure conversation goes."""

    def __init__(self, keys: KeyFolder | None, clock: Callable[[], datetime]) -> None:
        self._keys = OpenedKeys(keys, journal.trouble)
        self._clock = clock
        self._brokers: dict[tuple[int, UUID], KnownBroker] = {}  # by certificate, as they are stored

    def forget(self) -> None:
        """What was written may not have been committed."""
        self._brokers.clear()

    def session(self, endpoint: RemoteEndpoint) -> SessionKeys | None:
        """The keys of a conversation that has them; None while its master key cannot be opened."""
        keys = endpoint.keys
        if endpoint.security in (None, Security.NONE) or keys is None:
            return UNSECURED if endpoint.security in (None, Security.NONE) else None
        master = self._keys.master_key(endpoint.by_service_master_key)
        if master is None:
            return None
        sealed = [keys.first_key] if keys.second_key is None else [keys.first_key, keys.second_key]
        opened = [unseal(master, one, SESSION_KEY) for one in sealed]
        if None in opened:
            return None
        first, *second = [_session_key(key) for key in opened if key is not None]
        return SessionKeys(first, second[0] if second else None, endpoint.security == Security.FULL)

    # ---------------------------------------------------------------- the initiator

    def begin(self, store: Store, endpoints: Sequence[RemoteEndpoint]) -> dict[UUID, Secured | str]:
        """What protects these conversations, which begin; or why that cannot be had, in the words of their status."""
        beginnings = store.find_beginnings([one.conversation_handle for one in endpoints])
        owners = [(one.database_id, owner) for one in beginnings for owner in (one.owner_id, one.remote_id) if owner]
        found = store.find_certificates_of(owners)
        by_handle = {one.conversation_handle: one for one in endpoints}
        decided: dict[UUID, Secured | str] = {}
        for one in beginnings:
            try:
                own = found[one.database_id, one.owner_id]
                remote = found.get((one.database_id, one.remote_id or 0), [])
                decided[one.conversation_handle] = self._begin_one(one, by_handle[one.conversation_handle], own, remote)
            except BrokerError as reason:
                decided[one.conversation_handle] = reason.text
                is_asked = reason.number == NO_BINDING and store.ask_for_binding(
                    one.database_id, by_handle[one.conversation_handle].far_service
                )
                if is_asked:
                    decided[one.conversation_handle] = RULES[9770].text
        return decided

    def _begin_one(
        self, one: Beginning, endpoint: RemoteEndpoint, own: list[UserCertificate], remote: list[UserCertificate]
    ) -> Secured:
        decision = TABLE[bool(own), one.encryption, one.binding]
        if not isinstance(decision, Security):
            raise BrokerError(decision, one.owner_id)
        if decision is Security.NONE:
            return PLAIN
        now = self._clock()
        theirs = session_keys.chosen(remote, one.remote_id, now)
        ours = session_keys.signer(own, one.owner_id, now) if decision is Security.FULL else None
        if one.master_key is None:
            raise BrokerError(28050 if decision is Security.FULL else 28051)
        master = self._keys.master_key(one.master_key.by_service_master_key)
        if master is None:
            raise BrokerError(28054, one.database, NO_SERVICE_MASTER_KEY)
        key, key_id = os.urandom(KEY_SIZE), uuid4()
        header = _header(endpoint)
        exchange = self._exchange(key, key_id, theirs, ours, master, header)
        keys = Keys(
            one.owner_id if ours else 0,
            one.remote_id or 0,
            key_id,
            seal(master, key, SESSION_KEY),
            exchange=pack_exchange(exchange),
        )
        return Secured(decision, SessionKeys(_session_key(key), None, decision is Security.FULL), keys, exchange)

    def renew(
        self, store: Store, introductions: Sequence[tuple[RemoteEndpoint, Exchange]]
    ) -> dict[UUID, tuple[Keys, Exchange] | str]:
        """What is not acknowledged, for the certificates of today: those that it was made for may be gone at the peer.

        Returns what has changed; or why nothing fits any more, in the words of transmission_status.
        """
        owners = [
            (one.database_id, owner)
            for one, _ in introductions
            if one.keys
            for owner in (one.keys.principal_id, one.keys.far_principal_id)
        ]
        found = store.find_certificates_of(owners)
        renewed: dict[UUID, tuple[Keys, Exchange] | str] = {}
        for endpoint, exchange in introductions:
            assert endpoint.keys is not None
            own = found[endpoint.database_id, endpoint.keys.principal_id]
            remote = found[endpoint.database_id, endpoint.keys.far_principal_id]
            try:
                new = self._renew_one(store, endpoint, endpoint.keys, exchange, own, remote)
            except BrokerError as reason:
                renewed[endpoint.conversation_handle] = reason.text
                continue
            if new is not exchange:
                keys = endpoint.keys._replace(exchange=pack_exchange(new))
                store.save_exchange(endpoint.conversation_handle, pack_exchange(new))
                renewed[endpoint.conversation_handle] = keys, new
        return renewed

    def _renew_one(
        self,
        store: Store,
        endpoint: RemoteEndpoint,
        keys: Keys,
        exchange: Exchange,
        own: list[UserCertificate],
        remote: list[UserCertificate],
    ) -> Exchange:
        now = self._clock()
        theirs = session_keys.chosen(remote, keys.far_principal_id, now)
        ours = session_keys.signer(own, keys.principal_id, now) if exchange.source else None
        source = b"" if ours is None else ours.facts.thumbprint
        if (source, theirs.facts.thumbprint) == (exchange.source, exchange.destination):
            return exchange
        master_key = store.find_master_key(endpoint.database_id)
        master = None if master_key is None else self._keys.master_key(master_key.by_service_master_key)
        sealed = keys.first_key if endpoint.is_initiator else keys.second_key
        if master is None or sealed is None:
            return exchange
        key = unseal(master, sealed, SESSION_KEY)
        return (
            exchange if key is None else self._exchange(key, exchange.key_id, theirs, ours, master, _header(endpoint))
        )

    def learn(
        self, store: Store, endpoint: RemoteEndpoint, session: SessionKeys, header: Header, link: Link
    ) -> tuple[RemoteEndpoint, SessionKeys] | None:
        """What an exchange in a later message means: nothing new, or the target's key. None when it is not believed."""
        exchange, keys = header.exchange, endpoint.keys
        if exchange is None or keys is None or not header.is_secured:
            return endpoint, session
        if header.is_from_initiator or session.second is not None:
            known = keys.first_key_id if header.is_from_initiator else keys.second_key_id
            if exchange.key_id != known:
                _drop(link, header, 11233)
                return None
            return endpoint, session
        if not session.has_second:
            _drop(link, header, 11221, "an anonymous target has no key of its own")
            return None
        opened = self._open(store, endpoint.database_id, exchange, header, link)
        if opened is None:
            return None
        if opened.peer is None or opened.peer.owner_id != keys.far_principal_id:
            journal.conversation("No Certificate", header, link)
            return None
        sealed = seal(opened.master, opened.key, SESSION_KEY)
        store.save_second_key(endpoint.conversation_handle, exchange.key_id, sealed)
        keys = keys._replace(second_key_id=exchange.key_id, second_key=sealed)
        return endpoint._replace(keys=keys), session._replace(second=_session_key(opened.key))

    # ---------------------------------------------------------------- the target

    def admit(self, store: Store, home: Home, broker: UUID, header: Header, link: Link) -> Secured | Denied | None:
        """Whether a conversation may begin with a service of ours, by its first message. None: it is not answered.

        `broker` is the identifier of the database that has the service.
        """
        target = store.find_target(home)
        exchange, opened, session = header.exchange, None, UNSECURED
        if header.is_secured:
            if exchange is None:
                journal.conversation("No Security Header", header, link)
                return None
            opened = self._open(store, home.database_id, exchange, header, link)
            if opened is None:
                return None
            session = SessionKeys(_session_key(opened.key), None, opened.peer is not None)
            refused = store.refused_keeper(target, opened.own.owner_id)
            if refused:
                journal.undeliverable(Dropped(refused.number, refused.text), header, link)
                return None
        sender_id = PUBLIC_ID if opened is None or opened.peer is None else opened.peer.owner_id
        refused = store.refused_sender(target, sender_id)
        if refused:
            journal.undeliverable(Dropped(refused.number, refused.text), header, link)
            return Denied(BrokerFailure(-8494, RULES[8494].text.format(header.to_service)), session)
        refused = store.refused_owner(target)
        if refused:
            journal.conversation("Run As Target Failure", header, link, refused.text)
            return None
        if opened is None or exchange is None:
            return PLAIN
        return self._answer(opened, exchange, session, refusal(header, broker))

    def _answer(self, opened: _Opened, exchange: Exchange, session: SessionKeys, back: Header) -> Secured:
        """The target's own key, in full security. `back` is the header of an answer."""
        keys = Keys(
            opened.own.owner_id,
            0 if opened.peer is None else opened.peer.owner_id,
            exchange.key_id,
            seal(opened.master, opened.key, SESSION_KEY),
        )
        if opened.peer is None:
            return Secured(Security.ANONYMOUS, session, keys)
        key, key_id = os.urandom(KEY_SIZE), uuid4()
        ours = self._exchange(key, key_id, opened.peer, opened.own, opened.master, back)
        keys = keys._replace(
            second_key_id=key_id, second_key=seal(opened.master, key, SESSION_KEY), exchange=pack_exchange(ours)
        )
        return Secured(Security.FULL, session._replace(second=_session_key(key)), keys, ours, opened.peer)

    def judge_date(self, store: Store, header: Header, signer: UserCertificate | None) -> Misdated | None:
        """Why a proven opening of a secured conversation is not taken: it was sealed too long ago, or says not when.

        A broker that says it once always says it: what it sealed before it could may be brought again by anybody. So
        may what is dated ahead, once its time has come: of a broker whose clock is ahead the latest date is kept.
        """
        opening, broker, now = header.opening, header.from_broker, self._clock()
        assert opening is not None
        known = KnownBroker() if signer is None else self._known_broker(store, signer, header)
        if opening.sealed_at is None:
            if DATED in known.capabilities:
                return Misdated(f"it does not say when it was sealed, and openings of broker {broker} do")
            return None
        capabilities, ahead_until = {*opening.capabilities} & {*CAPABILITIES}, known.ahead_until
        age, is_taken = int(now.timestamp()) - opening.sealed_at, is_fresh(opening.sealed_at, now)
        own_clock = opening.sealed_at if opening.own_clock is None else opening.own_clock
        if is_ahead(own_clock, now):
            ahead_until = max(ahead_until, own_clock + round(CLOCK_ALLOWANCE.total_seconds()))
        if signer is not None and (ahead_until > known.ahead_until or not capabilities <= known.capabilities):
            self._save_broker(store, signer, broker, KnownBroker(known.capabilities | capabilities, ahead_until))
        if is_taken and (opening.own_clock is not None or opening.sealed_at > ahead_until):
            return None
        when = f"{abs(age):,} s {'ahead' if age < 0 else 'ago'}"
        return Misdated(
            f"it was sealed {when} by the clock of this instance: it is a replay, or one of the clocks is wrong",
            int(now.timestamp()),
        )

    def _known_broker(self, store: Store, signer: UserCertificate, header: Header) -> KnownBroker:
        """What is known of who has signed; of an opening without a date as another share may have written it since."""
        key, opening = (signer.certificate_id, header.from_broker), header.opening
        if key not in self._brokers or opening is None or opening.sealed_at is None:
            if len(self._brokers) >= MOST_BROKERS:
                self._brokers.clear()
            self._brokers[key] = store.find_broker(*key)
        return self._brokers[key]

    def _save_broker(self, store: Store, signer: UserCertificate, broker: UUID, known: KnownBroker) -> None:
        self._brokers[signer.certificate_id, broker] = known
        store.save_broker(signer.certificate_id, broker, sorted(known.capabilities), known.ahead_until)

    # ---------------------------------------------------------------- both

    def _exchange(
        self,
        key: bytes,
        key_id: UUID,
        theirs: UserCertificate,
        ours: UserCertificate | None,
        master: bytes,
        header: Header,
    ) -> Exchange:
        """The session key for the peer, signed when `ours` is given."""
        recipient = public_key(theirs.facts.der)
        if recipient is None:
            raise BrokerError(9735, theirs.owner_id)
        about = bound(header, key_id)
        capsule, wrapped = wrap(key, recipient, about)
        source = b"" if ours is None else ours.facts.thumbprint
        exchange = Exchange(key_id, source, theirs.facts.thumbprint, capsule, wrapped, b"")
        if ours is None:
            return exchange
        secret = self._keys.private_key(ours.key.private_key, master)
        if secret is None:
            raise BrokerError(9733, ours.owner_id)
        return msgspec.structs.replace(exchange, signature=sign(exchange, secret, about))

    def _open(self, store: Store, database_id: int, exchange: Exchange, header: Header, link: Link) -> _Opened | None:
        """Verify an exchange that has arrived. None: it is not believed, or cannot be opened, and somebody was told."""
        if bool(exchange.source) != bool(exchange.signature):
            journal.corrupted(CorruptedMessage(11251), link)
            return None
        found = store.find_certificates(database_id, [exchange.source, exchange.destination])
        now, about = self._clock(), bound(header, exchange.key_id)
        known = {name: one for name, one in found.items() if one.facts.is_valid(now)}
        own, peer = known.get(exchange.destination), known.get(exchange.source)
        signer = None if peer is None else public_key(peer.facts.der)
        if own is None or own.key.encryption != BY_MASTER_KEY or (exchange.source and signer is None):
            journal.conversation("No Certificate", header, link)
            return None
        if signer is not None and not is_signed(exchange, signer, about):
            journal.conversation("Bad Signature", header, link)
            return None
        master_key = store.find_master_key(database_id)
        master = None if master_key is None else self._keys.master_key(master_key.by_service_master_key)
        secret = None if master is None else self._keys.private_key(own.key.private_key, master)
        if master is None or secret is None:
            _drop(link, header, 28054, header.to_service, NO_SERVICE_MASTER_KEY)
            return None
        key = unwrap(exchange, secret, about)
        if key is None:
            journal.corrupted(CorruptedMessage(11230), link)
            return None
        return _Opened(own, peer, master, key)


def _session_key(key: bytes) -> SessionKey:
    return SessionKey(key, lambda: os.urandom(SALT_SIZE))


def _header(endpoint: RemoteEndpoint) -> Header:
    """That of a message of this side, as far as an exchange is bound to it."""
    one, kind = endpoint, Kind.RUN
    return Header(
        *(one.conversation_id, one.is_initiator, kind, True, one.far_service, None, one.own_service, one.own_broker)
    )


def _drop(link: Link, header: Header, number: int, *values: object) -> None:
    journal.undeliverable(Dropped(number, RULES[number].text.format(*values)), header, link)
