"""Dialog security and its certificates: decision tables, and the exchange of session keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from servicebroker.broker.key_exchange import is_signed, sign, unwrap, wrap
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.dialog_security import TABLE, Binding, Security, choose
from servicebroker.protocol.dialog_keys import SessionKeys, bound
from servicebroker.protocol.envelope import Exchange, Header, Kind, pack_exchange, unpack_exchange
from servicebroker.protocol.integrity import SessionKey
from servicebroker.protocol.wire_errors import CorruptedMessage

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.feature(160)
@pytest.mark.parametrize(
    ("has_certificate", "encryption", "expected"),
    [
        (True, True, [9727, Security.ANONYMOUS, Security.FULL]),
        (True, False, [Security.NONE, Security.ANONYMOUS, Security.FULL]),
        (False, True, [9727, Security.ANONYMOUS, 9731]),
        (False, False, [Security.NONE, Security.ANONYMOUS, 9731]),
    ],
)
def test_encryption_depends_on_certificate_option_and_binding(
    has_certificate: bool, encryption: bool, expected: list[object]
) -> None:
    bindings = (Binding.NO_BINDING, Binding.ANONYMOUS_ON, Binding.ANONYMOUS_OFF)
    assert [TABLE[has_certificate, encryption, binding] for binding in bindings] == expected
    assert len(TABLE) == 12


class HeldCertificate(NamedTuple):
    is_active_for_begin_dialog: bool
    facts: Facts


def certificate_of_days(start: int, expiry: int, active: bool = True) -> HeldCertificate:
    days = (NOW + timedelta(days=start), NOW + timedelta(days=expiry))
    return HeldCertificate(active, Facts(b"", b"", "", "", "", *days))


@pytest.mark.feature(164)
@pytest.mark.parametrize(
    ("certificates", "expected"),
    [
        ([], 9731),
        ([certificate_of_days(-2, -1), certificate_of_days(1, 9)], 9731),  # none is valid now
        ([certificate_of_days(-2, 0)], 9731),
        ([certificate_of_days(-2, 5, False)], 9767),
        ([certificate_of_days(-2, 5, False), certificate_of_days(-9, -1)], 9767),
        ([certificate_of_days(-2, 5), certificate_of_days(-1, 7), certificate_of_days(-3, 6)], 1),
        ([certificate_of_days(-2, 5), certificate_of_days(-1, 7, False)], 0),
        ([certificate_of_days(-2, 5), certificate_of_days(1, 9)], 0),
        ([certificate_of_days(0, 1)], 0),
    ],
)
def test_the_valid_active_certificate_with_the_latest_expiry_is_chosen(
    certificates: list[HeldCertificate], expected: int
) -> None:
    chosen = choose(certificates, NOW)
    assert chosen == (expected if expected > 9000 else certificates[expected])


KEY = bytes(range(32))
EXCHANGE = Exchange(UUID(int=1), b"s" * 32, b"d" * 32, b"", b"", b"")
PRIVATE = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "RSA": rsa.generate_private_key(65537, 2048),
}
OTHERS = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "RSA": rsa.generate_private_key(65537, 2048),
}


@pytest.mark.feature(161)
@pytest.mark.parametrize("kind", PRIVATE)
def test_a_session_key_is_wrapped_for_one_and_signed_by_one(kind: str) -> None:
    own, other = PRIVATE[kind], OTHERS[kind]
    capsule, wrapped = wrap(KEY, own.public_key(), b"about")
    exchange = msgspec.structs.replace(EXCHANGE, capsule=capsule, wrapped=wrapped)
    exchange = msgspec.structs.replace(exchange, signature=sign(exchange, other, b"about"))
    assert unpack_exchange(pack_exchange(exchange)) == exchange
    assert KEY not in pack_exchange(exchange)
    assert unwrap(exchange, own, b"about") == KEY
    assert unwrap(exchange, other, b"about") is None
    assert unwrap(exchange, own, b"something else") is None
    assert is_signed(exchange, other.public_key(), b"about")
    assert not is_signed(exchange, own.public_key(), b"about")
    assert not is_signed(exchange, other.public_key(), b"something else")
    assert wrap(KEY, own.public_key(), b"about") != (capsule, wrapped)  # never the same key exchange key


@given(st.sampled_from(["source", "destination", "capsule", "wrapped", "signature"]), st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_every_changed_bit_of_an_exchange_is_found(field: str, number: int) -> None:
    own, other = PRIVATE["P-256"], OTHERS["P-256"]
    capsule, wrapped = wrap(KEY, own.public_key(), b"about")
    exchange = msgspec.structs.replace(EXCHANGE, capsule=capsule, wrapped=wrapped)
    exchange = msgspec.structs.replace(exchange, signature=sign(exchange, other, b"about"))
    changed = bytearray(getattr(exchange, field))
    bit = number % (8 * len(changed))
    changed[bit // 8] ^= 1 << bit % 8
    forged = msgspec.structs.replace(exchange, **{field: bytes(changed)})
    assert not is_signed(forged, other.public_key(), b"about")
    if field in ("capsule", "wrapped"):
        assert unwrap(forged, own, b"about") is None


def header(kind: Kind, *, is_from_initiator: bool) -> Header:
    return Header(UUID(int=1), is_from_initiator, kind, True, "//to", None, "//from", UUID(int=2))


def test_each_kind_of_frame_has_its_key() -> None:
    first, second = (SessionKey(bytes([n] * 32), lambda: bytes(16)) for n in (1, 2))
    full, anonymous, beginning = SessionKeys(first, second, True), SessionKeys(first), SessionKeys(first, None, True)
    for kind in Kind:
        from_initiator, from_target = header(kind, is_from_initiator=True), header(kind, is_from_initiator=False)
        is_sequenced = kind in (Kind.RUN, Kind.FRAGMENT)
        assert full.of(from_initiator) is anonymous.of(from_initiator) is anonymous.of(from_target) is first
        assert full.of(from_target) is (second if is_sequenced else first)
        if is_sequenced:
            with pytest.raises(CorruptedMessage, match="11254"):
                beginning.of(from_target)


def test_an_exchange_is_bound_to_its_header() -> None:
    first_header = header(Kind.RUN, is_from_initiator=True)
    others = [
        msgspec.structs.replace(first_header, **change)
        for change in (
            {"conversation_id": UUID(int=9)},
            {"is_from_initiator": False},
            {"from_broker": UUID(int=9)},
            {"from_service": "//fro", "to_service": "m//to"},
        )
    ]
    keys = [bound(each, UUID(int=5)) for each in (first_header, *others)] + [bound(first_header, UUID(int=6))]
    assert len(set(keys)) == len(keys)
    assert bound(msgspec.structs.replace(first_header, number=7, to_broker=UUID(int=3)), UUID(int=5)) == keys[0]
