"""Dialog security of one daemon: the checks of an opening, of the target's key, and of dates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from remote_support import Wire
from servicebroker.broker.dialog_security import Admitted, Denied, DialogSecurity
from servicebroker.broker.exchanges import Exchanges, Signer
from servicebroker.engine.security.known_brokers import KnownBroker
from servicebroker.engine.security.session_keys import Keys
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, BY_PASSWORD, StoredKey, UserCertificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import PUBLIC_ID
from servicebroker.protocol.dialog_keys import UNSECURED, SessionKeys
from servicebroker.protocol.envelope import BATCHED, DATED, Exchange, Header, Kind, Opening
from servicebroker.protocol.freshness import CLOCK_ALLOWANCE, MAX_AGE
from servicebroker.protocol.integrity import SessionKey
from servicebroker.store.keys.x509_certificates import issue
from servicebroker_lab.simulation.simulated_time import MIDNIGHT

DAY = timedelta(days=1)
KEY, MASTER = bytes(range(32)), bytes(32)
WEST_USER, EAST_USER, OTHER_USER = 5, 6, 7
NOW_S = int(MIDNIGHT.timestamp())


def signer_of(name: str, owner_id: int, start: datetime = MIDNIGHT - DAY, encryption: str = BY_MASTER_KEY) -> Signer:
    facts, key = issue(name, start, start + 2 * DAY)
    stored = StoredKey(encryption, name.encode())
    return Signer(UserCertificate(owner_id, owner_id, name, True, stored, facts), key)


WEST, EAST, OTHER = signer_of("west", WEST_USER), signer_of("east", EAST_USER), signer_of("other", OTHER_USER)


def owned(signer: Signer, **changes: Any) -> Signer:
    return signer._replace(certificate=signer.certificate._replace(**changes))


class Certificates:
    """The store of a database: certificates, what principals may do, and the facts about brokers."""

    def __init__(self, *signers: Signer) -> None:
        self.certificates = {each.certificate.facts.thumbprint: each.certificate for each in signers}
        self.has_master_key = True
        self.refused: dict[str, set[int]] = {"keeper": set(), "sender": set()}
        self.is_owner_refused = False
        self.brokers: dict[tuple[int, UUID], KnownBroker] = {}
        self.saved: list[tuple[int, UUID, list[str], int]] = []

    def find_certificates(self, database_id: int, thumbprints: list[bytes]) -> dict[bytes, UserCertificate]:
        return {name: self.certificates[name] for name in thumbprints if name in self.certificates}

    def find_master_key(self, database_id: int) -> Any:
        return SimpleNamespace(by_service_master_key=b"sealed") if self.has_master_key else None

    def find_target(self, home: Any) -> Any:
        return home

    def refused_keeper(self, target: Any, principal_id: int) -> BrokerError | None:
        return BrokerError(15151, "find", "certificate", "x") if principal_id in self.refused["keeper"] else None

    def refused_sender(self, target: Any, principal_id: int) -> BrokerError | None:
        return BrokerError(8494, "//east") if principal_id in self.refused["sender"] else None

    def refused_owner(self, target: Any) -> BrokerError | None:
        return BrokerError(8494, "//east") if self.is_owner_refused else None

    def find_broker(self, certificate_id: int, broker: UUID) -> KnownBroker:
        return self.brokers.get((certificate_id, broker), KnownBroker())

    def save_broker(self, certificate_id: int, broker: UUID, capabilities: list[str], ahead_until: int) -> None:
        self.saved.append((certificate_id, broker, capabilities, ahead_until))


class OpenedFolder:
    """The keys that the daemon can decrypt."""

    def __init__(self, *signers: Signer) -> None:
        self.by_sealed = {each.certificate.key.private_key: each.key for each in signers}
        self.master: bytes | None = MASTER

    def master_key(self, sealed: bytes | None) -> bytes | None:
        return None if sealed is None else self.master

    def private_key(self, sealed: bytes | None, master: bytes) -> Any:
        return self.by_sealed.get(sealed)


class East:
    """The daemon that gets messages, with its link to the sender."""

    def __init__(self, *signers: Signer) -> None:
        self.now, self.store, self.link = MIDNIGHT, Certificates(*signers), Wire()
        self.security = DialogSecurity(None, lambda: self.now)
        self.keys = OpenedFolder(*signers)
        self.security._keys = self.keys  # type: ignore[assignment]

    def admit(self, header: Header) -> Any:
        home: Any = SimpleNamespace(database_id=1)
        store: Any = self.store
        return self.security.admit(store, home, UUID(int=2), header, self.link)


def opening(signer: Signer | None = WEST, target: Signer = EAST, *, is_batched: bool = False, **fields: Any) -> Header:
    """Return the header of a first message with its key exchange."""
    names = ("//east", None, "//west", UUID(int=9))
    header = Header(uuid4(), True, Kind.RUN, True, *names, opening=Opening("//contract", 100, sealed_at=NOW_S))
    exchanges = Exchanges(lambda: MIDNIGHT)
    draft = exchanges.draft(KEY, uuid4(), target.certificate, signer, header, is_batched=is_batched)
    return structs.replace(header, exchange=exchanges.sign([draft])[0], **fields)


def changed(header: Header, **fields: Any) -> Header:
    assert header.exchange is not None
    return structs.replace(header, exchange=structs.replace(header.exchange, **fields))


# ---------------------------------------------------------------- the first message


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("signer", [WEST, None])
def test_a_good_opening_is_admitted(signer: Signer | None, is_batched: bool) -> None:
    east = East(WEST, EAST)
    admitted = east.admit(opening(signer, is_batched=is_batched))
    assert isinstance(admitted, Admitted)
    assert (admitted.session.first.is_secured, admitted.session.has_second) == (True, signer is not None)
    assert admitted.signer == (None if signer is None else WEST.certificate)
    assert not east.link.refusals


def test_an_opening_without_security_is_from_public() -> None:
    east = East(WEST, EAST)
    plain = structs.replace(opening(), is_secured=False, exchange=None)
    admitted = east.admit(plain)
    assert isinstance(admitted, Admitted)
    assert admitted.session == UNSECURED
    east.store.refused["keeper"] = {EAST_USER}  # no key is kept
    assert isinstance(east.admit(plain), Admitted)
    east.store.refused["sender"] = {PUBLIC_ID}
    assert isinstance(east.admit(plain), Denied)


Change = Callable[[East], object]


def set_of(**fields: Any) -> Change:
    return lambda east: [setattr(east.store, name, value) for name, value in fields.items()]


DROPPED: dict[str, tuple[Change, Callable[[], Header], list[Signer]]] = {
    "no security header": (set_of(), lambda: structs.replace(opening(), exchange=None), [WEST, EAST]),
    "a source without a signature": (set_of(), lambda: changed(opening(), signature=b""), [WEST, EAST]),
    "a signature without a source": (set_of(), lambda: changed(opening(), source=b""), [WEST, EAST]),
    "an unknown signer": (set_of(), opening, [EAST]),
    "an unknown destination": (set_of(), opening, [WEST]),
    "the signature of another": (
        set_of(),
        lambda: changed(opening(OTHER), source=WEST.certificate.facts.thumbprint),
        [WEST, EAST, OTHER],
    ),
    "another conversation": (
        set_of(),
        lambda: structs.replace(opening(), conversation_id=uuid4()),
        [WEST, EAST],
    ),
    "an unsigned one for another conversation": (
        set_of(),
        lambda: structs.replace(opening(None), conversation_id=uuid4()),
        [WEST, EAST],
    ),
    "no master key": (set_of(has_master_key=False), opening, [WEST, EAST]),
    "a master key that cannot be decrypted": (lambda east: setattr(east.keys, "master", None), opening, [WEST, EAST]),
    "a private key under a password": (
        set_of(),
        opening,
        [WEST, owned(EAST, key=StoredKey(BY_PASSWORD, b"east"))],
    ),
    "a keeper without CONTROL": (set_of(refused={"keeper": {EAST_USER}, "sender": set()}), opening, [WEST, EAST]),
    "an owner without RECEIVE": (set_of(is_owner_refused=True), opening, [WEST, EAST]),
}


@pytest.mark.parametrize("name", DROPPED)
def test_an_opening_that_cannot_be_verified_is_dropped_and_counted(name: str) -> None:
    change, header, signers = DROPPED[name]
    east = East(*signers)
    change(east)
    assert east.admit(header()) is None
    assert east.link.refusals.total() == 1
    assert not east.link.frames


@pytest.mark.parametrize("days", [-2, 2])
@pytest.mark.parametrize("which", ["signer", "destination"])
def test_certificates_must_be_valid_by_the_receiver_s_clock(which: str, days: int) -> None:
    signer, own = WEST, EAST
    if which == "signer":
        signer = signer_of("west", WEST_USER, MIDNIGHT - DAY + days * DAY)
    else:
        own = signer_of("east", EAST_USER, MIDNIGHT - DAY + days * DAY)
    header = opening(signer, own)
    east = East(signer, own)
    assert east.admit(header) is None
    east.now = MIDNIGHT + days * DAY
    for thumbprint, certificate in east.store.certificates.items():
        facts = certificate.facts._replace(start_date=MIDNIGHT - 9 * DAY, expiry_date=MIDNIGHT + 9 * DAY)
        if certificate not in (signer.certificate if which == "signer" else own.certificate,):
            east.store.certificates[thumbprint] = certificate._replace(facts=facts)
    assert isinstance(east.admit(header), Admitted)


@pytest.mark.parametrize(
    ("signer", "refused", "is_denied"),
    [
        (WEST, {WEST_USER}, True),
        (WEST, {PUBLIC_ID}, False),
        (None, {PUBLIC_ID}, True),
        (None, {WEST_USER}, False),
        (WEST, {EAST_USER}, False),
    ],
)
def test_the_signer_needs_send_and_an_anonymous_sender_that_of_public(
    signer: Signer | None, refused: set[int], is_denied: bool
) -> None:
    east = East(WEST, EAST)
    east.store.refused["sender"] = refused
    outcome = east.admit(opening(signer))
    assert isinstance(outcome, Denied if is_denied else Admitted)
    assert outcome.session.first.is_secured  # the answer is encrypted as well
    assert east.link.refusals.total() == is_denied


# ---------------------------------------------------------------- the target's key


FIRST_ID, SECOND_ID = uuid4(), uuid4()


def learned(
    header: Header, keys: Keys | None, session: SessionKeys, *signers: Signer
) -> tuple[DialogSecurity, Any, Wire]:
    """Return the initiator's daemon after a message of the target, and what it has learned."""
    side = East(*signers)
    endpoint: Any = SimpleNamespace(database_id=1, keys=keys, conversation_handle=UUID(int=3))
    endpoint._replace = lambda **changes: SimpleNamespace(**{**vars(endpoint), **changes})
    store: Any = side.store
    return side.security, side.security.learn(store, endpoint, session, header, side.link), side.link


def answer(signer: Signer | None = EAST, **fields: Any) -> Header:
    """Return the header of a target's message with the exchange of its own key."""
    names = ("//west", UUID(int=9), "//east", UUID(int=2))
    header = Header(uuid4(), False, Kind.RUN, True, *names)
    exchanges = Exchanges(lambda: MIDNIGHT)
    draft = exchanges.draft(KEY, SECOND_ID, WEST.certificate, signer, header, is_batched=False)
    return structs.replace(header, exchange=exchanges.sign([draft])[0], **fields)


KEYS = Keys(WEST_USER, EAST_USER, FIRST_ID, b"first")
FULL = SessionKeys(SessionKey(KEY, lambda: bytes(16)), None, True)
WITH_SECOND = FULL._replace(second=SessionKey(KEY, lambda: bytes(16)))


def test_the_target_s_key_is_learned_once_its_signature_is_that_of_the_peer() -> None:
    security, result, _ = learned(answer(), KEYS, FULL, WEST, EAST)
    endpoint, session = result
    assert (endpoint.keys.second_key_id, session.second is not None) == (SECOND_ID, True)
    assert set(security.learned) == {UUID(int=3)}
    assert security.learned[UUID(int=3)][0] == SECOND_ID


@pytest.mark.parametrize(
    ("header", "session", "signers"),
    [
        (answer(OTHER), FULL, [WEST, EAST, OTHER]),  # a certificate of another principal
        (answer(None), FULL, [WEST, EAST]),
        (answer(), FULL, [WEST]),
        (answer(), FULL, [WEST, owned(EAST, owner_id=OTHER_USER)]),
        (answer(), FULL._replace(has_second=False), [WEST, EAST]),  # an anonymous target has no key
    ],
)
def test_no_other_key_is_learned(header: Header, session: SessionKeys, signers: list[Signer]) -> None:
    security, result, link = learned(header, KEYS, session, *signers)
    assert result is None
    assert security.learned == {}
    assert link.refusals.total() == 1


@pytest.mark.parametrize(
    ("is_from_initiator", "key_id", "is_taken"),
    [(True, FIRST_ID, True), (True, SECOND_ID, False), (False, SECOND_ID, True), (False, FIRST_ID, False)],
)
def test_a_known_key_is_not_replaced(is_from_initiator: bool, key_id: UUID, is_taken: bool) -> None:
    keys = KEYS._replace(second_key_id=SECOND_ID, second_key=b"second")
    exchange = Exchange(key_id, b"", b"", b"", b"", b"")
    header = structs.replace(answer(), is_from_initiator=is_from_initiator, exchange=exchange)
    _, result, link = learned(header, keys, WITH_SECOND, WEST, EAST)
    assert (result is not None, link.refusals.total()) == (is_taken, int(not is_taken))


def test_what_does_not_count_changes_nothing() -> None:
    for header, keys in (
        (structs.replace(answer(), exchange=None), KEYS),
        (answer(), None),
        (structs.replace(answer(), is_secured=False), KEYS),
    ):
        security, (endpoint, session), _ = learned(header, keys, FULL, WEST, EAST)
        assert (endpoint.keys, session, security.learned) == (keys, FULL, {})


# ---------------------------------------------------------------- dates


ALLOWANCE_S, MAX_AGE_S = int(CLOCK_ALLOWANCE.total_seconds()), int(MAX_AGE.total_seconds())


def judged(east: East, signer: Signer | None, opened: Opening) -> Any:
    store: Any = east.store
    header = opening(signer, opening=opened)
    return east.security.judge_date(store, header, None if signer is None else signer.certificate)


@pytest.mark.parametrize("signer", [WEST, None])
@pytest.mark.parametrize(
    ("age", "is_taken"),
    [(0, True), (MAX_AGE_S - 1, True), (MAX_AGE_S, False), (-ALLOWANCE_S, True), (-ALLOWANCE_S - 1, False)],
)
def test_an_opening_has_an_age(signer: Signer | None, age: int, is_taken: bool) -> None:
    east = East(WEST, EAST)
    misdated = judged(east, signer, Opening("//contract", 100, sealed_at=NOW_S - age))
    assert (misdated is None) is is_taken
    if misdated is not None:
        assert misdated.clock == NOW_S


def test_an_opening_without_a_date_is_taken_of_a_broker_that_never_sent_one() -> None:
    east, undated = East(WEST, EAST), Opening("//contract", 100)
    assert judged(east, WEST, undated) is None
    assert judged(east, WEST, Opening("//contract", 100, sealed_at=NOW_S, capabilities=(DATED, BATCHED, "x"))) is None
    assert east.store.saved == [(WEST_USER, UUID(int=9), sorted((DATED, BATCHED)), 0)]
    east.store.brokers[WEST_USER, UUID(int=9)] = KnownBroker(frozenset({DATED}))
    assert judged(east, WEST, undated).clock is None
    assert judged(east, OTHER, undated) is None  # another certificate
    assert judged(east, None, undated) is None


def test_openings_dated_ahead_are_not_taken_when_that_time_has_come() -> None:
    """A recorded opening of a broker whose clock was ahead could be replayed at that time."""
    east = East(WEST, EAST)
    ahead = NOW_S + ALLOWANCE_S + 100
    assert judged(east, WEST, Opening("//contract", 100, sealed_at=ahead)) is not None
    assert east.store.saved == [(WEST_USER, UUID(int=9), [], ahead + ALLOWANCE_S)]
    east.now = MIDNIGHT + timedelta(seconds=ALLOWANCE_S + 200)
    assert judged(east, WEST, Opening("//contract", 100, sealed_at=ahead)) is not None
    assert judged(east, OTHER, Opening("//contract", 100, sealed_at=ahead)) is None
    # dated by the clock of the receiver, which the broker knows by now
    assert judged(east, WEST, Opening("//contract", 100, sealed_at=NOW_S + ALLOWANCE_S + 200, own_clock=ahead)) is None


def test_uncommitted_facts_about_brokers_are_forgotten() -> None:
    east = East(WEST, EAST)
    ahead = NOW_S + ALLOWANCE_S + 100
    judged(east, WEST, Opening("//contract", 100, sealed_at=ahead))
    east.security.learned[UUID(int=3)] = SECOND_ID, b"key"
    east.security.forget()
    east.now = MIDNIGHT + timedelta(seconds=ALLOWANCE_S + 200)
    assert judged(east, WEST, Opening("//contract", 100, sealed_at=ahead)) is None  # its date was not stored
    assert east.security.learned == {}


# ---------------------------------------------------------------- capabilities of targets


def test_a_service_gets_batches_while_all_its_brokers_understand_them() -> None:
    east = East()
    endpoint: Any = SimpleNamespace(database_id=1, far_service="//east")
    elsewhere: Any = SimpleNamespace(database_id=2, far_service="//east")

    def note(broker: int, capabilities: tuple[str, ...]) -> None:
        header: Any = SimpleNamespace(
            is_from_initiator=False, acknowledgement=object(), from_broker=UUID(int=broker), capabilities=capabilities
        )
        east.security.note_capabilities(endpoint, header)

    assert not east.security._is_batching(endpoint)
    note(1, (BATCHED,))
    assert east.security._is_batching(endpoint)
    assert not east.security._is_batching(elsewhere)
    note(2, ())
    assert not east.security._is_batching(endpoint)
    note(2, (BATCHED,))
    assert east.security._is_batching(endpoint)


@pytest.mark.parametrize(("own_clock", "ahead_until"), [(None, None), (0, None), (1, 1)])
def test_a_clock_ahead_is_noted_of_an_opening_that_is_dated_by_the_receiver_s(
    own_clock: int | None, ahead_until: int | None
) -> None:
    """`own_clock`: seconds beyond the difference that clocks may have."""
    east = East(WEST, EAST)
    own = None if own_clock is None else NOW_S + ALLOWANCE_S + own_clock
    assert judged(east, WEST, Opening("//contract", 100, sealed_at=NOW_S, own_clock=own)) is None
    expected = [] if ahead_until is None else [(WEST_USER, UUID(int=9), [], NOW_S + 2 * ALLOWANCE_S + ahead_until)]
    assert east.store.saved == expected
