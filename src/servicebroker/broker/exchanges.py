"""Encrypt session keys for peers, decrypt those of peers, and cache the private key operations.

A private key operation takes longer than everything else in a conversation. So a key exchange key is reused for each
pair of services, and one signature covers all conversations that begin in a round. Both need a peer that supports
batched exchanges (`key_exchange.py`); other peers get one key and one signature for each conversation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from servicebroker.broker.key_exchange import (
    ReusedKey,
    decapsulate,
    encapsulate,
    is_signed,
    sign,
    sign_together,
    signed_root,
    unwrap,
    wrap,
)
from servicebroker.engine.security.user_certificates import UserCertificate
from servicebroker.model.errors import BrokerError
from servicebroker.protocol.dialog_keys import bound
from servicebroker.protocol.envelope import Exchange, Header
from servicebroker.store.keys.x509_certificates import PrivateKey, PublicKey, public_key
from servicebroker.store.keys.x509_certificates import is_signed as is_text_signed

# The life of a key exchange key; a longer time exposes more messages if the key leaks
KEY_LIFETIME = timedelta(hours=1)
MAX_REMEMBERED = 1_000  # the most entries of each cache; an entry takes about 200 bytes
MAX_BATCH = 256  # the most exchanges under one signature; each then has 8 sibling hashes (272 bytes)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Signer(NamedTuple):
    """A certificate of this instance, with its private key."""

    certificate: UserCertificate
    key: PrivateKey


class Draft(NamedTuple):
    """An unsigned key exchange. `about`: the context that it is bound to. `signer` is None if it is anonymous."""

    exchange: Exchange
    about: bytes
    signer: Signer | None


class Exchanges:
    """Builds key exchanges for peers; verifies and opens those of peers."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._made: dict[
            Hashable, tuple[datetime, bytes, ReusedKey]
        ] = {}  # pair of services and certificates -> time, capsule, key
        self._opened: dict[tuple[bytes, bytes], ReusedKey] = {}  # (certificate, capsule) -> key
        self._verified: dict[tuple[bytes, bytes, bytes], None] = {}  # a set: (certificate, signature, signed text)

    # ---------------------------------------------------------------- outgoing

    def draft(
        self,
        key: bytes,
        key_id: UUID,
        peer_certificate: UserCertificate,
        signer: Signer | None,
        header: Header,
        *,
        is_batched: bool,
    ) -> Draft:
        """Wrap a session key for the peer.

        Raises:
            BrokerError: 9735 the peer's certificate has no key of a kind that we use.
        """
        about = bound(header, key_id)
        source = b"" if signer is None else signer.certificate.facts.thumbprint
        if is_batched:
            capsule, reused_key = self._key_for(peer_certificate, source, header)
            wrapped = reused_key.wrap(key, about)
        else:
            capsule, wrapped = wrap(key, _public(peer_certificate), about)
        siblings = () if is_batched else None  # (): `sign` adds them; None: signed alone
        exchange = Exchange(key_id, source, peer_certificate.facts.thumbprint, capsule, wrapped, b"", siblings=siblings)
        return Draft(exchange, about, signer)

    def _key_for(self, peer_certificate: UserCertificate, source: bytes, header: Header) -> tuple[bytes, ReusedKey]:
        """Return the cached capsule and key of a pair of services and certificates. They expire after an hour."""
        pair = (header.from_service, header.to_service, source, peer_certificate.facts.thumbprint)
        now = self._clock()
        if pair in self._made:
            since, capsule, reused_key = self._made[pair]
            if timedelta(0) <= now - since < KEY_LIFETIME:
                return capsule, reused_key
        secret, capsule = encapsulate(_public(peer_certificate))
        reused_key = ReusedKey(secret)
        _remember(self._made, pair, (now, capsule, reused_key))
        return capsule, reused_key

    @staticmethod
    def sign(drafts: Sequence[Draft]) -> list[Exchange]:
        """Return the exchanges with their signatures, in the order of the drafts."""
        signed = [_signed_alone(draft) for draft in drafts]
        batches: defaultdict[bytes, list[int]] = defaultdict(list)
        for index, draft in enumerate(drafts):
            if draft.signer is not None and draft.exchange.siblings is not None:
                batches[draft.exchange.source].append(index)
        for indexes in batches.values():
            for first in range(0, len(indexes), MAX_BATCH):
                chunk = indexes[first : first + MAX_BATCH]
                signer = drafts[chunk[0]].signer
                assert signer is not None
                signed_batch = sign_together(
                    [(drafts[index].exchange, drafts[index].about) for index in chunk], signer.key
                )
                for index, exchange in zip(chunk, signed_batch, strict=True):
                    signed[index] = exchange
        return signed

    # ---------------------------------------------------------------- incoming

    def is_signed(self, exchange: Exchange, signer: UserCertificate, header: Header) -> bool:
        """Return whether the owner of `signer` has signed the exchange for this conversation."""
        key, about = public_key(signer.facts.der), bound(header, exchange.key_id)
        if key is None:
            return False
        if exchange.siblings is None:
            return is_signed(exchange, key, about)
        text = signed_root(exchange, about)
        proof = (signer.facts.thumbprint, exchange.signature, text)
        if proof not in self._verified:
            if not is_text_signed(text, exchange.signature, key):
                return False
            _remember(self._verified, proof, None)
        return True

    def unwrap(self, exchange: Exchange, own: PrivateKey, header: Header) -> bytes | None:
        """Return the session key; None if it was not wrapped for this certificate and this conversation."""
        about = bound(header, exchange.key_id)
        if exchange.siblings is None:
            return unwrap(exchange, own, about)
        cache_key = (exchange.destination, exchange.capsule)
        if cache_key not in self._opened:
            secret = decapsulate(exchange.capsule, own)
            if secret is None:
                return None
            _remember(self._opened, cache_key, ReusedKey(secret))
        return self._opened[cache_key].unwrap(exchange.wrapped, about)


def _public(certificate: UserCertificate) -> PublicKey:
    key = public_key(certificate.facts.der)
    if key is None:
        raise BrokerError(9735, certificate.owner_id)
    return key


def _signed_alone(draft: Draft) -> Exchange:
    """Return an exchange outside a batch with a signature of its own. Others are returned unchanged."""
    if draft.signer is None or draft.exchange.siblings is not None:
        return draft.exchange
    return msgspec.structs.replace(draft.exchange, signature=sign(draft.exchange, draft.signer.key, draft.about))


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    if len(memory) >= MAX_REMEMBERED:  # a hostile peer may send any number; an empty cache only costs time
        memory.clear()
    memory[key] = value
