"""Exchanges of session keys: reuse, its time limit, and the proof by the signature of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from servicebroker.broker import exchanges as module
from servicebroker.broker.exchanges import KEY_LIFETIME, MAX_BATCH, Draft, Exchanges, Signer
from servicebroker.broker.hash_tree import Proof, prove, root_of
from servicebroker.engine.security.user_certificates import StoredKey, UserCertificate
from servicebroker.protocol.envelope import MAXIMUM_SIBLINGS, Exchange, Header, Kind
from servicebroker.store.keys.x509_certificates import PrivateKey, issue
from servicebroker_lab.simulation.simulated_time import MIDNIGHT

DAY = timedelta(days=1)
KEY = bytes(range(32))


def signer_of(name: str) -> Signer:
    facts, key = issue(name, MIDNIGHT - DAY, MIDNIGHT + DAY)
    return Signer(UserCertificate(1, 1, name, True, StoredKey(), facts), key)


WEST, EAST = signer_of("west"), signer_of("east")


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = MIDNIGHT

    def __call__(self) -> datetime:
        return self.now


def header(number: int = 1, to_service: str = "//east") -> Header:
    return Header(UUID(int=number), True, Kind.RUN, True, to_service, None, "//west", UUID(int=9))


def drafts(west: Exchanges, count: int, **options: Any) -> list[tuple[Header, Draft]]:
    headers = [header(number) for number in range(count)]
    options = {"is_batched": True} | options
    return [(header, west.draft(KEY, uuid4(), EAST.certificate, WEST, header, **options)) for header in headers]


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """Count the calls of a function that `exchanges.py` uses."""
    calls: list[Any] = []
    function: Callable[..., Any] = getattr(module, name)

    def count(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(module, name, count)
    return calls


# ---------------------------------------------------------------- the hash tree


contents = st.lists(st.binary(max_size=8), min_size=1, max_size=40)


@given(contents, st.data())
def test_each_content_leads_to_the_root_and_nothing_else_does(some: list[bytes], data: st.DataObject) -> None:
    root, proofs = prove(some)
    assert [root_of(content, proof) for content, proof in zip(some, proofs, strict=True)] == [root] * len(some)
    index = data.draw(st.integers(0, len(some) - 1))
    proof = proofs[index]
    assert root_of(some[index] + b"x", proof) != root
    if proof.siblings:
        cut = Proof(proof.sides, proof.siblings[1:])
        assert root_of(some[index], cut) != root
        assert root_of(b"\1" + some[index] + proof.siblings[0], cut) != root  # an inner node is not accepted as a leaf


def test_a_batch_fits_under_the_siblings_that_an_exchange_may_have() -> None:
    _, proofs = prove([b"%d" % number for number in range(MAX_BATCH)])
    assert max(len(proof.siblings) for proof in proofs) == 8 <= MAXIMUM_SIBLINGS


# ---------------------------------------------------------------- reuse


@pytest.mark.feature(161)
def test_a_key_exchange_key_wraps_many_session_keys_for_an_hour() -> None:
    clock = Clock()
    west, east = Exchanges(clock), Exchanges(clock)
    first = drafts(west, 20)
    clock.now += KEY_LIFETIME - timedelta(seconds=1)
    second = drafts(west, 1)
    clock.now += timedelta(seconds=1)
    third = drafts(west, 1)
    clock.now -= timedelta(seconds=2)  # set back
    fourth = drafts(west, 1)
    capsules = [draft.exchange.capsule for _, draft in [*first, *second, *third, *fourth]]
    assert [len({*capsules[:21]}), len({*capsules[20:]})] == [1, 3]
    assert len({draft.exchange.wrapped for _, draft in first}) == 20  # each exchange has its own nonce
    for each_header, draft in [*first, *second, *third, *fourth]:
        assert east.unwrap(draft.exchange, EAST.key, each_header) == KEY


def test_each_pair_of_services_and_certificates_has_its_own() -> None:
    west = Exchanges(Clock())
    other_signer = signer_of("another")
    made = [
        west.draft(KEY, uuid4(), EAST.certificate, WEST, header(), is_batched=True),
        west.draft(KEY, uuid4(), EAST.certificate, WEST, header(to_service="//other"), is_batched=True),
        west.draft(KEY, uuid4(), EAST.certificate, None, header(), is_batched=True),
        west.draft(KEY, uuid4(), EAST.certificate, other_signer, header(), is_batched=True),
        west.draft(KEY, uuid4(), other_signer.certificate, WEST, header(), is_batched=True),
    ]
    assert len({draft.exchange.capsule for draft in made}) == len(made)


def test_a_peer_without_the_capability_gets_a_key_and_a_signature_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    together = count_calls(monkeypatch, "sign_together")
    west, east = Exchanges(Clock()), Exchanges(Clock())
    drafted = drafts(west, 3, is_batched=False)
    signed = west.sign([draft for _, draft in drafted])
    assert not together
    assert len({exchange.capsule for exchange in signed}) == len({exchange.signature for exchange in signed}) == 3
    for (each_header, _), exchange in zip(drafted, signed, strict=True):
        assert exchange.siblings is None
        assert east.is_signed(exchange, WEST.certificate, each_header)
        assert east.unwrap(exchange, EAST.key, each_header) == KEY


@pytest.mark.parametrize("count", [1, 2, 7, MAX_BATCH, MAX_BATCH + 3])
def test_one_signature_is_made_and_verified_for_a_batch(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    made, verified = count_calls(monkeypatch, "sign_together"), count_calls(monkeypatch, "is_text_signed")
    opened = count_calls(monkeypatch, "decapsulate")
    west, east = Exchanges(Clock()), Exchanges(Clock())
    begun = drafts(west, count)
    signed = west.sign([draft for _, draft in begun])
    for (each_header, _), exchange in zip(begun, signed, strict=True):
        assert east.is_signed(exchange, WEST.certificate, each_header)
        assert east.unwrap(exchange, EAST.key, each_header) == KEY
    batches = 1 + (count > MAX_BATCH)
    assert (len(made), len(verified), len(opened)) == (batches, batches, 1)


def test_signers_and_forms_may_be_mixed() -> None:
    west, east, other_signer = Exchanges(Clock()), Exchanges(Clock()), signer_of("another")
    signers: Sequence[Signer | None] = [WEST, other_signer, None, WEST, other_signer, None]
    made = [
        west.draft(KEY, uuid4(), EAST.certificate, signer, header(number), is_batched=number % 2 == 0)
        for number, signer in enumerate(signers)
    ]
    signed = west.sign(made)
    for number, (signer, exchange) in enumerate(zip(signers, signed, strict=True)):
        assert east.unwrap(exchange, EAST.key, header(number)) == KEY
        assert exchange.key_id == made[number].exchange.key_id
        if signer is None:
            assert exchange.signature == exchange.source == b""
        else:
            assert east.is_signed(exchange, signer.certificate, header(number))


# ---------------------------------------------------------------- proof


FIELDS = ["source", "destination", "capsule", "wrapped", "signature", "siblings", "sides", "key_id"]


def change_field(exchange: Exchange, field: str) -> Exchange:
    value = getattr(exchange, field)
    if field == "siblings":
        value = (bytes(32), *value[1:])
    elif field == "sides":
        value ^= 1
    elif field == "key_id":
        value = uuid4()
    else:
        value = bytes([value[0] ^ 1]) + value[1:]
    return structs.replace(exchange, **{field: value})


@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_exchange_of_a_batch_is_not_signed(field: str) -> None:
    west, east = Exchanges(Clock()), Exchanges(Clock())
    begun = drafts(west, 5)
    signed = west.sign([draft for _, draft in begun])
    assert east.is_signed(signed[0], WEST.certificate, begun[0][0])
    assert not east.is_signed(change_field(signed[0], field), WEST.certificate, begun[0][0])


def test_an_exchange_is_worth_nothing_in_another_conversation() -> None:
    """Others may know the key exchange key, but they cannot sign."""
    west, east = Exchanges(Clock()), Exchanges(Clock())
    begun = drafts(west, 2)
    first, second = west.sign([draft for _, draft in begun])
    assert not east.is_signed(first, WEST.certificate, begun[1][0])
    assert east.unwrap(first, EAST.key, begun[1][0]) is None
    moved = structs.replace(first, sides=second.sides, siblings=second.siblings)
    assert not east.is_signed(moved, WEST.certificate, begun[1][0])
    assert not east.is_signed(first, EAST.certificate, begun[0][0])


def test_neither_form_passes_for_the_other() -> None:
    west, east = Exchanges(Clock()), Exchanges(Clock())
    for is_batched in (False, True):
        ((each_header, draft),) = drafts(west, 1, is_batched=is_batched)
        (exchange,) = west.sign([draft])
        other = structs.replace(exchange, siblings=None if is_batched else ())
        assert not east.is_signed(other, WEST.certificate, each_header)
        assert east.unwrap(other, EAST.key, each_header) is None


@pytest.mark.parametrize("own", [EAST.key, rsa.generate_private_key(65537, 2048)], ids=["curve", "RSA"])
def test_invalid_exchanges_are_not_unwrapped(own: PrivateKey) -> None:
    east = Exchanges(Clock())
    for capsule in (b"", b"x", bytes(65), bytes(256)):
        for siblings in (None, ()):
            exchange = Exchange(uuid4(), b"", b"d" * 32, capsule, b"w" * 60, b"", siblings=siblings)
            assert east.unwrap(exchange, own, header()) is None


def test_cached_exchanges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 3)
    west, east = Exchanges(Clock()), Exchanges(Clock())
    for number in range(10):
        each_header = header(number, to_service=f"//east{number}")
        (exchange,) = west.sign([west.draft(KEY, uuid4(), EAST.certificate, WEST, each_header, is_batched=True)])
        assert east.is_signed(exchange, WEST.certificate, each_header)
        assert east.unwrap(exchange, EAST.key, each_header) == KEY
        assert {len(west._made), len(east._opened), len(east._verified)} == {number % 3 + 1}


@pytest.mark.parametrize("is_batched", [False, True])
def test_an_exchange_that_was_accepted_proves_nothing_of_other_certificates(is_batched: bool) -> None:
    """The caches of the receiver are by certificate."""
    west, east, other = Exchanges(Clock()), Exchanges(Clock()), signer_of("another")
    ((each_header, draft),) = drafts(west, 1, is_batched=is_batched)
    (exchange,) = west.sign([draft])
    assert east.is_signed(exchange, WEST.certificate, each_header)
    assert east.unwrap(exchange, EAST.key, each_header) == KEY
    assert not east.is_signed(exchange, other.certificate, each_header)
    elsewhere = structs.replace(exchange, destination=other.certificate.facts.thumbprint)
    assert east.unwrap(elsewhere, other.key, each_header) is None


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("size", [0, 16, len(KEY) - 1, len(KEY) + 1])
def test_a_session_key_of_another_size_is_not_unwrapped(is_batched: bool, size: int) -> None:
    west, east = Exchanges(Clock()), Exchanges(Clock())
    draft = west.draft(bytes(size), uuid4(), EAST.certificate, WEST, header(), is_batched=is_batched)
    (exchange,) = west.sign([draft])
    assert east.is_signed(exchange, WEST.certificate, header())
    assert east.unwrap(exchange, EAST.key, header()) is None
