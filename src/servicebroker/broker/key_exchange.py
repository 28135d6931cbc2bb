"""The security header of a dialog: a session key, wrapped for one certificate and signed by another.

**Wrapping.** A key exchange key encrypts session keys with AES-256-GCM. The capsule (encapsulated key) lets the owner
of the certificate compute it. A capsule is a point on the certificate's curve (ECDH, HKDF-SHA256), or a secret
encrypted with RSA-OAEP.

**Binding.** `about` names the conversation, the services and the direction. It is authenticated with the session key
and signed, so that an exchange is invalid in another conversation.

**Two forms.** Every version supports single exchanges: one key exchange key and one signature for each exchange.
Batched exchanges need a peer with the capability `batched`. One key exchange key wraps many session keys, each with a
nonce of its own. One signature covers many exchanges: it signs the root of a Merkle tree over them (`hash_tree.py`),
and each exchange contains its siblings. So a signature proves the same facts in both forms: this conversation has this
key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from servicebroker.broker.hash_tree import Proof, prove, root_of
from servicebroker.protocol.envelope import Exchange
from servicebroker.protocol.integrity import KEY_SIZE
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.x509_certificates import PrivateKey, PublicKey

_AGREED = b"servicebroker key exchange key 1"
_REUSED = b"servicebroker key exchange key 2"
_SIGNED_ROOT = b"servicebroker exchanges 1"  # a single exchange signs another text, which begins with a length
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
NONCE_SIZE = 12  # bytes
_ONE_NONCE = bytes(NONCE_SIZE)  # the key of a single exchange is used once


class Capsule(NamedTuple):
    """A secret for the owner of a certificate's private key: in clear, and encrypted."""

    secret: bytes
    sealed: bytes


def encapsulate(target: PublicKey) -> Capsule:
    """Draw a secret for the owner of a private key. Returns it in clear, and sealed for the public key `target`."""
    if isinstance(target, rsa.RSAPublicKey):
        secret = os.urandom(KEY_SIZE)
        return Capsule(secret, target.encrypt(secret, _OAEP))
    once = ec.generate_private_key(target.curve)
    sealed = _point(once.public_key())
    return Capsule(_agreed(once.exchange(ec.ECDH(), target), sealed, target), sealed)


def decapsulate(sealed: bytes, own: PrivateKey) -> bytes | None:
    """Return the secret in a capsule; None if it was not made for this key."""
    try:
        if isinstance(own, rsa.RSAPrivateKey):
            return own.decrypt(sealed, _OAEP)
        once = ec.EllipticCurvePublicKey.from_encoded_point(own.curve, sealed)
        return _agreed(own.exchange(ec.ECDH(), once), sealed, own.public_key())
    except ValueError:
        return None


# ---------------------------------------------------------------- single exchanges


def wrap(key: bytes, target: PublicKey, about: bytes) -> tuple[bytes, bytes]:
    """Wrap a session key under a key exchange key of its own. Returns the capsule and the wrapped key."""
    secret, sealed = encapsulate(target)
    return sealed, AESGCM(secret).encrypt(_ONE_NONCE, key, about)


def unwrap(exchange: Exchange, own: PrivateKey, about: bytes) -> bytes | None:
    """Return the session key; None if it was not wrapped for this key and this conversation."""
    secret = decapsulate(exchange.capsule, own)
    return None if secret is None else _opened(secret, _ONE_NONCE, exchange.wrapped, about)


def sign(exchange: Exchange, own: PrivateKey, about: bytes) -> bytes:
    """Return the signature of one exchange."""
    return x509_certificates.sign(_signed(exchange, about), own)


def is_signed(exchange: Exchange, by: PublicKey, about: bytes) -> bool:
    """Return whether the signature of one exchange is that of `by`."""
    return x509_certificates.is_signed(_signed(exchange, about), exchange.signature, by)


# ---------------------------------------------------------------- batched exchanges


class ReusedKey:
    """A key exchange key that wraps many session keys, each with a random nonce."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(HKDF(hashes.SHA256(), KEY_SIZE, None, _REUSED).derive(secret))

    def wrap(self, key: bytes, about: bytes) -> bytes:
        """Return the nonce and the wrapped session key."""
        nonce = os.urandom(NONCE_SIZE)
        return nonce + self._cipher.encrypt(nonce, key, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes | None:
        """Return the session key; None if it was not wrapped for this conversation, or was changed."""
        try:
            key = self._cipher.decrypt(wrapped[:NONCE_SIZE], wrapped[NONCE_SIZE:], about)
        except (ValueError, InvalidTag):
            return None
        return key if len(key) == KEY_SIZE else None


def sign_together(exchanges: Sequence[tuple[Exchange, bytes]], own: PrivateKey) -> list[Exchange]:
    """Sign exchanges, each with its bound context, by one signature. Returns them with the signature."""
    root, proofs = prove([_signed(exchange, about) for exchange, about in exchanges])
    signature = x509_certificates.sign(_SIGNED_ROOT + root, own)
    return [
        msgspec.structs.replace(exchange, signature=signature, sides=proof.sides, siblings=proof.siblings)
        for (exchange, _), proof in zip(exchanges, proofs, strict=True)
    ]


def signed_root(exchange: Exchange, about: bytes) -> bytes:
    """Return the text that the signature of a batched exchange must sign."""
    assert exchange.siblings is not None
    return _SIGNED_ROOT + root_of(_signed(exchange, about), Proof(exchange.sides, exchange.siblings))


# ---------------------------------------------------------------- both


def _opened(secret: bytes, nonce: bytes, wrapped: bytes, about: bytes) -> bytes | None:
    try:
        key = AESGCM(secret).decrypt(nonce, wrapped, about)
    except (ValueError, InvalidTag):
        return None
    return key if len(key) == KEY_SIZE else None


def _signed(exchange: Exchange, about: bytes) -> bytes:
    parts = (about, exchange.source, exchange.destination, exchange.capsule, exchange.wrapped)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _agreed(shared: bytes, sealed: bytes, target: ec.EllipticCurvePublicKey) -> bytes:
    return HKDF(hashes.SHA256(), KEY_SIZE, None, _AGREED + sealed + _point(target)).derive(shared)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
