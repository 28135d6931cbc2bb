"""The security header of a dialog: a session key, wrapped for one certificate and signed by another.

A key exchange key is made for each exchange: with a certificate on an elliptic curve by agreement between a key made
for this once and the certificate's (ECDH, HKDF-SHA256), with an RSA certificate at random, encrypted by RSA-OAEP. It
encrypts the session key with AES-256-GCM. What is signed and authenticated names the conversation, so that an exchange
is worth nothing in another one.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from servicebroker.protocol.envelope import Exchange
from servicebroker.protocol.integrity import KEY_SIZE
from servicebroker.store.keys import x509_certificates
from servicebroker.store.keys.x509_certificates import PrivateKey, PublicKey

_ABOUT = b"servicebroker key exchange key 1"
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
_NONCE = bytes(12)  # the key is used once


def wrap(key: bytes, target: PublicKey, about: bytes) -> tuple[bytes, bytes]:
    """The session key for whoever has the private key of `target`: what gives the exchange key, and what that holds."""
    if isinstance(target, rsa.RSAPublicKey):
        secret = os.urandom(KEY_SIZE)
        capsule = target.encrypt(secret, _OAEP)
    else:
        once = ec.generate_private_key(target.curve)
        capsule = _point(once.public_key())
        secret = _agreed(once.exchange(ec.ECDH(), target), capsule, target)
    return capsule, AESGCM(secret).encrypt(_NONCE, key, about)


def unwrap(exchange: Exchange, own: PrivateKey, about: bytes) -> bytes | None:
    """The session key; None when it was not wrapped for this key and this conversation."""
    try:
        if isinstance(own, rsa.RSAPrivateKey):
            secret = own.decrypt(exchange.capsule, _OAEP)
        else:
            once = ec.EllipticCurvePublicKey.from_encoded_point(own.curve, exchange.capsule)
            secret = _agreed(own.exchange(ec.ECDH(), once), exchange.capsule, own.public_key())
        key = AESGCM(secret).decrypt(_NONCE, exchange.wrapped, about)
    except (ValueError, InvalidTag):
        return None
    return key if len(key) == KEY_SIZE else None


def sign(exchange: Exchange, own: PrivateKey, about: bytes) -> bytes:
    """The signature of an exchange, by who makes it."""
    return x509_certificates.sign(_signed(exchange, about), own)


def is_signed(exchange: Exchange, by: PublicKey, about: bytes) -> bool:
    """Whether the signature is that of `by`."""
    return x509_certificates.is_signed(_signed(exchange, about), exchange.signature, by)


def _signed(exchange: Exchange, about: bytes) -> bytes:
    parts = (about, exchange.source, exchange.destination, exchange.capsule, exchange.wrapped)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _agreed(shared: bytes, capsule: bytes, target: ec.EllipticCurvePublicKey) -> bytes:
    return HKDF(hashes.SHA256(), KEY_SIZE, None, _ABOUT + capsule + _point(target)).derive(shared)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
