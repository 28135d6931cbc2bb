"""Dialog security: create session keys, wrap them for the peer, unwrap the peer's, and store them under master keys.

The protection of a conversation is decided once, before its first message is sent. The signature of the session key
proves the sender of a message. A message that cannot be verified is dropped without an answer; its sender repeats it.

Each conversation has session keys of its own. Conversations share key exchange keys and signatures (`exchanges.py`) if
the peer's broker supports that (batched exchanges). A target announces the support in its first acknowledgement. So the
first conversations after a start use single exchanges, which every version supports. An exchange without an answer is
repeated as a single one, since the peer may have been downgraded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid4

from servicebroker.broker import journal
from servicebroker.broker.exchanges import Draft, Exchanges, Signer
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Link
from servicebroker.engine.remote.local_topology import LocalService
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.security import session_keys
from servicebroker.engine.security.known_brokers import KnownBroker
from servicebroker.engine.security.session_keys import Keys, UndecidedDialog
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, UserCertificate
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.security.certificates import SESSION_KEY
from servicebroker.model.security.dialog_security import NO_BINDING, NO_SERVICE_MASTER_KEY, TABLE, Security
from servicebroker.model.security.permissions import PUBLIC_ID
from servicebroker.protocol.dialog import Dropped, dropped_event
from servicebroker.protocol.dialog_keys import UNSECURED, SessionKeys
from servicebroker.protocol.envelope import (
    BATCHED,
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
    """The protection of a conversation: `keys` to store with its endpoint, `session` to encrypt with."""

    security: Security
    session: SessionKeys
    keys: Keys | None = None
    exchange: Exchange | None = None


class Introduction(NamedTuple):
    """A key exchange that the peer has not acknowledged. `is_unanswered`: it was sent twice."""

    endpoint: RemoteEndpoint
    exchange: Exchange
    is_unanswered: bool


class Misdated(NamedTuple):
    """The reason to refuse an opening by its date. `clock`: local seconds since 1970, which the initiator gets."""

    reason: str
    clock: int | None = None


class _Opened(NamedTuple):
    """A verified exchange: the own certificate it is wrapped for, the signer's (None if unsigned), and the keys."""

    own: UserCertificate
    peer: UserCertificate | None
    master: bytes
    key: bytes


class Admitted(NamedTuple):
    """A first message whose sender may begin a conversation. `back` is the header for answers."""

    session: SessionKeys
    back: Header
    is_batched: bool = False  # the initiator's broker supports batched exchanges
    opened: _Opened | None = None  # None: the message is not secured
    key_id: UUID | None = None  # the id of the session key in the message

    @property
    def signer(self) -> UserCertificate | None:
        """The certificate that has signed the exchange, or None."""
        return None if self.opened is None else self.opened.peer


class Denied(NamedTuple):
    """A refused first message: the initiator gets this Error, encrypted by `session`."""

    failure: BrokerFailure
    session: SessionKeys


MAX_BROKERS = 10_000  # brokers in memory; a few hundred bytes each
MAX_BROKERS_OF_SERVICE = 100  # brokers of one service whose capabilities are in memory
PLAIN = Secured(Security.NONE, UNSECURED)
Learned = tuple[UUID, bytes]  # a target's key: its identifier, and its encrypted form


class DialogSecurity:
    """Creates and decrypts session keys. `keys` has the service master key, which secured conversations need."""

    def __init__(self, keys: KeyFolder | None, clock: Callable[[], datetime]) -> None:
        self._keys = OpenedKeys(keys, journal.trouble)
        self._clock = clock
        self._exchanges = Exchanges(clock)
        self._brokers: dict[tuple[int, UUID], KnownBroker] = {}  # (certificate id, broker) -> stored facts
        # (local database, far service) -> broker -> whether it supports batched exchanges
        self._batching: dict[tuple[int, str], dict[UUID, bool]] = {}
        self.learned: dict[UUID, Learned] = {}  # learned values, by handle, until `save`

    def forget(self) -> None:
        """Drop everything from memory that was written but perhaps not committed."""
        self._brokers.clear()
        self.learned.clear()

    def session(self, endpoint: RemoteEndpoint) -> SessionKeys | None:
        """Return the keys of a conversation; None while its master key cannot be decrypted."""
        keys = endpoint.keys
        if endpoint.security in (None, Security.NONE) or keys is None:
            return UNSECURED if endpoint.security in (None, Security.NONE) else None
        master = self._keys.master_key(endpoint.by_service_master_key)
        if master is None:
            return None
        sealed = [keys.first_key] if keys.second_key is None else [keys.first_key, keys.second_key]
        opened = [unseal(master, key, SESSION_KEY) for key in sealed]
        if None in opened:
            return None
        first, *second = [_session_key(key) for key in opened if key is not None]
        return SessionKeys(first, second[0] if second else None, endpoint.security == Security.FULL)

    # ---------------------------------------------------------------- the initiator

    def begin(self, store: Store, endpoints: Sequence[RemoteEndpoint]) -> dict[UUID, Secured | str]:
        """Decide the security of new conversations. A str is the transmission_status of one that must wait."""
        beginnings = store.find_beginnings([endpoint.conversation_handle for endpoint in endpoints])
        owners = [
            (dialog.database_id, owner)
            for dialog in beginnings
            for owner in (dialog.owner_id, dialog.remote_id)
            if owner
        ]
        certificates = store.find_certificates_of(owners)
        by_handle = {endpoint.conversation_handle: endpoint for endpoint in endpoints}
        decided: dict[UUID, Secured | str] = {}
        drafts: dict[UUID, tuple[Secured, Draft]] = {}
        for dialog in beginnings:
            handle, endpoint = dialog.conversation_handle, by_handle[dialog.conversation_handle]
            own = certificates[dialog.database_id, dialog.owner_id]
            remote = certificates.get((dialog.database_id, dialog.remote_id or 0), [])
            try:
                begun = self._decide(dialog, endpoint, own, remote)
            except BrokerError as reason:
                decided[handle] = reason.text
                if reason.number == NO_BINDING and store.ask_for_binding(dialog.database_id, endpoint.far_service):
                    decided[handle] = RULES[9770].text
                continue
            if isinstance(begun, Secured):
                decided[handle] = begun
            else:
                drafts[handle] = begun
        signed = self._exchanges.sign([draft for _, draft in drafts.values()])
        for (handle, (secured, _)), exchange in zip(drafts.items(), signed, strict=True):
            decided[handle] = _protect_with_own_key(secured, exchange)
        return decided

    def _decide(
        self,
        dialog: UndecidedDialog,
        endpoint: RemoteEndpoint,
        own: list[UserCertificate],
        remote: list[UserCertificate],
    ) -> Secured | tuple[Secured, Draft]:
        """Return the protection of one conversation, with the unsigned exchange if it is secured."""
        decision = TABLE[bool(own), dialog.encryption, dialog.binding]
        if not isinstance(decision, Security):
            raise BrokerError(decision, dialog.owner_id)
        if decision is Security.NONE:
            return PLAIN
        now = self._clock()
        peer_certificate = session_keys.choose_certificate(remote, dialog.remote_id, now)
        own_certificate = session_keys.choose_signer(own, dialog.owner_id, now) if decision is Security.FULL else None
        if dialog.master_key is None:
            raise BrokerError(28050 if decision is Security.FULL else 28051)
        master = self._keys.master_key(dialog.master_key.by_service_master_key)
        if master is None:
            raise BrokerError(28054, dialog.database, NO_SERVICE_MASTER_KEY)
        key, key_id = os.urandom(KEY_SIZE), uuid4()
        draft = self._exchanges.draft(
            key,
            key_id,
            peer_certificate,
            self._signer(own_certificate, master),
            _header(endpoint),
            is_batched=self._is_batching(endpoint),
        )
        keys = Keys(
            dialog.owner_id if own_certificate else 0, dialog.remote_id or 0, key_id, seal(master, key, SESSION_KEY)
        )
        return Secured(decision, SessionKeys(_session_key(key), None, decision is Security.FULL), keys), draft

    def _signer(self, certificate: UserCertificate | None, master: bytes) -> Signer | None:
        """Return the own certificate with its private key; None without a certificate.

        Raises:
            BrokerError: 9733 the key cannot be decrypted.
        """
        if certificate is None:
            return None
        secret = self._keys.private_key(certificate.key.private_key, master)
        if secret is None:
            raise BrokerError(9733, certificate.owner_id)
        return Signer(certificate, secret)

    def _is_batching(self, endpoint: RemoteEndpoint) -> bool:
        """Return whether every known broker of the far service supports batched exchanges."""
        known = self._batching.get((endpoint.database_id, endpoint.far_service), {})
        return bool(known) and all(known.values())

    def note_capabilities(self, endpoint: RemoteEndpoint, header: Header) -> None:
        """Keep the capabilities of a target's broker, from its first acknowledgement of a secured conversation."""
        if header.is_from_initiator or header.acknowledgement is None:
            return
        if len(self._batching) >= MAX_BROKERS:
            self._batching.clear()
        known = self._batching.setdefault((endpoint.database_id, endpoint.far_service), {})
        if len(known) >= MAX_BROKERS_OF_SERVICE:
            known.clear()
        known[header.from_broker] = BATCHED in header.capabilities

    def renew(self, store: Store, introductions: Sequence[Introduction]) -> dict[UUID, tuple[Keys, Exchange] | str]:
        """Repeat unacknowledged exchanges for the present certificates, since the peer may have replaced its own.

        A peer that does not answer gets a single exchange, which every version supports. Returns the changed
        protection of each conversation, or the transmission_status if no certificate fits any more.
        """
        owners = [
            (introduction.endpoint.database_id, owner)
            for introduction in introductions
            if introduction.endpoint.keys
            for owner in (introduction.endpoint.keys.principal_id, introduction.endpoint.keys.far_principal_id)
        ]
        certificates = store.find_certificates_of(owners)
        renewed: dict[UUID, tuple[Keys, Exchange] | str] = {}
        for introduction in introductions:
            endpoint = introduction.endpoint
            assert endpoint.keys is not None
            own = certificates[endpoint.database_id, endpoint.keys.principal_id]
            remote = certificates[endpoint.database_id, endpoint.keys.far_principal_id]
            try:
                new = self._renew_one(store, introduction, endpoint.keys, own, remote)
            except BrokerError as reason:
                renewed[endpoint.conversation_handle] = reason.text
                continue
            if new is not introduction.exchange:
                keys = endpoint.keys._replace(exchange=pack_exchange(new))
                store.save_exchange(endpoint.conversation_handle, pack_exchange(new))
                renewed[endpoint.conversation_handle] = keys, new
        return renewed

    def _renew_one(
        self,
        store: Store,
        introduction: Introduction,
        keys: Keys,
        own: list[UserCertificate],
        remote: list[UserCertificate],
    ) -> Exchange:
        endpoint, exchange, now = introduction.endpoint, introduction.exchange, self._clock()
        peer_certificate = session_keys.choose_certificate(remote, keys.far_principal_id, now)
        own_certificate = session_keys.choose_signer(own, keys.principal_id, now) if exchange.source else None
        source = b"" if own_certificate is None else own_certificate.facts.thumbprint
        is_same = (source, peer_certificate.facts.thumbprint) == (exchange.source, exchange.destination)
        is_misunderstood = introduction.is_unanswered and exchange.siblings is not None
        if is_same and not is_misunderstood:
            return exchange
        master_key = store.find_master_key(endpoint.database_id)
        master = None if master_key is None else self._keys.master_key(master_key.by_service_master_key)
        sealed = keys.first_key if endpoint.is_initiator else keys.second_key
        if master is None or sealed is None:
            return exchange
        key = unseal(master, sealed, SESSION_KEY)
        if key is None:
            return exchange
        self._batching.pop((endpoint.database_id, endpoint.far_service), None)
        signer, header = self._signer(own_certificate, master), _header(endpoint)
        draft = self._exchanges.draft(key, exchange.key_id, peer_certificate, signer, header, is_batched=False)
        return self._exchanges.sign([draft])[0]

    def learn(
        self, store: Store, endpoint: RemoteEndpoint, session: SessionKeys, header: Header, link: Link
    ) -> tuple[RemoteEndpoint, SessionKeys] | None:
        """Learn the target's key from an exchange in a later message. Returns None if it cannot be verified."""
        exchange, keys = header.exchange, endpoint.keys
        if exchange is None or keys is None or not header.is_secured:
            return endpoint, session
        if header.is_from_initiator or session.second is not None:
            known = keys.first_key_id if header.is_from_initiator else keys.second_key_id
            if exchange.key_id != known:
                journal.undeliverable(dropped_event(11233), header, link)
                return None
            return endpoint, session
        if not session.has_second:
            journal.undeliverable(dropped_event(11221, "an anonymous target has no key of its own"), header, link)
            return None
        opened = self._open(store, endpoint.database_id, exchange, header, link)
        if opened is None:
            return None
        if opened.peer is None or opened.peer.owner_id != keys.far_principal_id:
            journal.conversation("No Certificate", header, link)
            return None
        sealed = seal(opened.master, opened.key, SESSION_KEY)
        self.learned[endpoint.conversation_handle] = exchange.key_id, sealed
        keys = keys._replace(second_key_id=exchange.key_id, second_key=sealed)
        return endpoint._replace(keys=keys), session._replace(second=_session_key(opened.key))

    def save(self, store: Store) -> None:
        """Save the keys of targets that this round has learned."""
        learned, self.learned = self.learned, {}
        store.save_second_keys(learned)

    # ---------------------------------------------------------------- the target

    def admit(
        self, store: Store, home: LocalService, broker: UUID, header: Header, link: Link
    ) -> Admitted | Denied | None:
        """Check the first message of a conversation with a local service. Returns None if it gets no answer.

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
        is_batched = header.opening is not None and BATCHED in header.opening.capabilities
        key_id = None if exchange is None else exchange.key_id
        return Admitted(session, refusal(header, broker), is_batched, opened, key_id)

    def secure(self, admitted: Sequence[Admitted]) -> list[Secured]:
        """Create the stored security of new conversations; with full security, also a key for the answers."""
        secured = [PLAIN if dialog.opened is None else self._secured(dialog, dialog.opened) for dialog in admitted]
        answers = [
            (index, dialog.opened)
            for index, dialog in enumerate(admitted)
            if dialog.opened is not None and dialog.opened.peer is not None
        ]
        fresh = [os.urandom(KEY_SIZE) for _ in answers]
        drafts = [
            self._answer(admitted[index], opened, key) for (index, opened), key in zip(answers, fresh, strict=True)
        ]
        signed = self._exchanges.sign(drafts)
        for (index, opened), key, exchange in zip(answers, fresh, signed, strict=True):
            initial = secured[index]
            assert initial.keys is not None
            keys = initial.keys._replace(
                second_key_id=exchange.key_id, second_key=seal(opened.master, key, SESSION_KEY)
            )
            session = initial.session._replace(second=_session_key(key))
            secured[index] = _protect_with_own_key(Secured(Security.FULL, session, keys), exchange)
        return secured

    @staticmethod
    def _secured(admitted: Admitted, opened: _Opened) -> Secured:
        """Return the protection with only the initiator's key."""
        assert admitted.key_id is not None
        peer_id = 0 if opened.peer is None else opened.peer.owner_id
        keys = Keys(opened.own.owner_id, peer_id, admitted.key_id, seal(opened.master, opened.key, SESSION_KEY))
        return Secured(Security.ANONYMOUS, admitted.session, keys)

    def _answer(self, admitted: Admitted, opened: _Opened, key: bytes) -> Draft:
        """Draft the exchange of the target's own key."""
        assert opened.peer is not None
        signer = self._signer(opened.own, opened.master)
        return self._exchanges.draft(key, uuid4(), opened.peer, signer, admitted.back, is_batched=admitted.is_batched)

    def judge_date(self, store: Store, header: Header, signer: UserCertificate | None) -> Misdated | None:
        """Return why a verified opening is refused by its date: too old, ahead, or missing. None if it is accepted.

        A broker that has once sent a date always sends one, so an opening without one may be a recorded replay.
        An opening dated in the future could be replayed at that time. So the latest date of a broker whose clock is
        ahead is stored.
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
        """Return the facts known of the signer's broker. For an opening without a date, read them from the database."""
        key, opening = (signer.certificate_id, header.from_broker), header.opening
        if key not in self._brokers or opening is None or opening.sealed_at is None:
            if len(self._brokers) >= MAX_BROKERS:
                self._brokers.clear()
            self._brokers[key] = store.find_broker(*key)
        return self._brokers[key]

    def _save_broker(self, store: Store, signer: UserCertificate, broker: UUID, known: KnownBroker) -> None:
        self._brokers[signer.certificate_id, broker] = known
        store.save_broker(signer.certificate_id, broker, sorted(known.capabilities), known.ahead_until)

    # ---------------------------------------------------------------- both

    def _open(self, store: Store, database_id: int, exchange: Exchange, header: Header, link: Link) -> _Opened | None:
        """Verify a received exchange. Returns None, and logs the reason, if it cannot be verified or opened."""
        if bool(exchange.source) != bool(exchange.signature):
            journal.log_corrupted(CorruptedMessage(11251), link)
            return None
        by_thumbprint = store.find_certificates(database_id, [exchange.source, exchange.destination])
        now = self._clock()
        valid = {name: certificate for name, certificate in by_thumbprint.items() if certificate.facts.is_valid(now)}
        own, peer = valid.get(exchange.destination), valid.get(exchange.source)
        has_signer = peer is not None and public_key(peer.facts.der) is not None
        if own is None or own.key.encryption != BY_MASTER_KEY or (exchange.source and not has_signer):
            journal.conversation("No Certificate", header, link)
            return None
        if peer is not None and not self._exchanges.is_signed(exchange, peer, header):
            journal.conversation("Bad Signature", header, link)
            return None
        master_key = store.find_master_key(database_id)
        master = None if master_key is None else self._keys.master_key(master_key.by_service_master_key)
        secret = None if master is None else self._keys.private_key(own.key.private_key, master)
        if master is None or secret is None:
            journal.undeliverable(dropped_event(28054, header.to_service, NO_SERVICE_MASTER_KEY), header, link)
            return None
        key = self._exchanges.unwrap(exchange, secret, header)
        if key is None:
            journal.log_corrupted(CorruptedMessage(11230), link)
            return None
        return _Opened(own, peer, master, key)


def _protect_with_own_key(secured: Secured, exchange: Exchange) -> Secured:
    """Return the protection with the own key, wrapped for the peer."""
    assert secured.keys is not None
    return secured._replace(keys=secured.keys._replace(exchange=pack_exchange(exchange)), exchange=exchange)


def _session_key(key: bytes) -> SessionKey:
    return SessionKey(key, lambda: os.urandom(SALT_SIZE))


def _header(endpoint: RemoteEndpoint) -> Header:
    """Return the header of a message of this side, with the fields that an exchange is bound to."""
    side, kind = endpoint, Kind.RUN
    return Header(
        *(
            side.conversation_id,
            side.is_initiator,
            kind,
            True,
            side.far_service,
            None,
            side.own_service,
            side.own_broker,
        )
    )
