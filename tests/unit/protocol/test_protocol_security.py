from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.integrity import CHECKSUM, SALT_SIZE, Protection, SessionKey
from servicebroker.protocol.wire_errors import CorruptedMessage
from support import refused

KEY = bytes(range(32))


def counting() -> Callable[[], bytes]:
    counter = itertools.count()
    return lambda: next(counter).to_bytes(SALT_SIZE, "big")


@pytest.fixture(params=["key", "checksum"])
def protection(request: pytest.FixtureRequest) -> Protection:
    return SessionKey(KEY, counting()) if request.param == "key" else CHECKSUM


def test_a_sealed_payload_opens_only_with_its_header(protection: Protection) -> None:
    sealed = protection.seal(b"header", b"payload")
    assert protection.open(b"header", sealed) == b"payload"
    with pytest.raises(CorruptedMessage, match="11230"):
        protection.open(b"other", sealed)


def test_the_border_between_header_and_payload_is_sealed_too(protection: Protection) -> None:
    sealed = protection.seal(b"ab", b"c")
    with pytest.raises(CorruptedMessage):
        protection.open(b"a", sealed)
    assert CHECKSUM.seal(b"ab", b"c")[:16] != CHECKSUM.seal(b"a", b"bc")[:16]


@pytest.mark.parametrize("size", [0, 1, 15, 39])
def test_too_short_to_be_sealed(protection: Protection, size: int) -> None:
    with pytest.raises(CorruptedMessage):
        protection.open(b"header", bytes(size))


@given(st.binary(max_size=40), st.binary(max_size=40), st.data())
def test_every_changed_bit_is_found(header: bytes, payload: bytes, data: st.DataObject) -> None:
    for protection in (CHECKSUM, SessionKey(KEY, counting())):
        sealed = bytearray(protection.seal(header, payload))
        bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
        sealed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptedMessage):
            protection.open(header, bytes(sealed))


def test_the_payload_is_encrypted_under_a_fresh_nonce_each_time() -> None:
    key = SessionKey(KEY, counting())
    first, second = key.seal(b"", b"secret secret"), key.seal(b"", b"secret secret")
    assert b"secret" not in first
    assert first != second


def test_another_key_opens_nothing() -> None:
    sealed = SessionKey(KEY, counting()).seal(b"", b"x")
    with pytest.raises(CorruptedMessage):
        SessionKey(bytes(32), counting()).open(b"", sealed)


def test_a_key_never_wears_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A salt has a limited number of uses; then a new one is drawn. A reloaded key draws its own salt."""
    monkeypatch.setattr("servicebroker.protocol.integrity.KEY_USES", 2)
    key, again = SessionKey(KEY, counting()), SessionKey(KEY, lambda: bytes(SALT_SIZE - 1) + b"x")
    sealed = [key.seal(b"", b"x") for _ in range(5)] + [again.seal(b"", b"x") for _ in range(2)]
    assert len({ciphertext[: SALT_SIZE + 8] for ciphertext in sealed}) == 7  # no nonce twice
    assert len({ciphertext[:SALT_SIZE] for ciphertext in sealed}) == 4
    reader = SessionKey(KEY, counting())
    assert [reader.open(b"", ciphertext) for ciphertext in sealed + sealed[::-1]] == [b"x"] * 14


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_has_one_size(size: int) -> None:
    with refused(28000, str(size)):
        SessionKey(bytes(size), counting())
