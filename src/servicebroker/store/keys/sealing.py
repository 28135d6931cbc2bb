"""Secrets under keys, and keys under passwords: AES-256-GCM, and scrypt where there is a password.

`about` says what the secret is for; sealed for one thing, it opens for nothing else.
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY = 32  # bytes
SALT = 16
NONCE = 12
COST, BLOCK = 2**15, 8  # of scrypt: 32 MB, about 0.1 s


def new_key() -> bytes:
    """A key that nobody has."""
    return os.urandom(KEY)


def seal(key: bytes, secret: bytes, about: str) -> bytes:
    """The secret, so that only who has the key can read it."""
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, secret, about.encode())


def unseal(key: bytes, sealed: bytes, about: str) -> bytes | None:
    """The secret; None when the key is another one, or a bit was changed."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about.encode())
    except (InvalidTag, ValueError):
        return None


def seal_by_password(password: str, secret: bytes, about: str) -> bytes:
    """The same with a password; takes about 0.1 s, so that trying many is slow."""
    salt = os.urandom(SALT)
    return salt + seal(_stretched(password, salt), secret, about)


def unseal_by_password(password: str, sealed: bytes, about: str) -> bytes | None:
    """The secret; None when the password is another one, or a bit was changed."""
    return unseal(_stretched(password, sealed[:SALT]), sealed[SALT:], about)


def _stretched(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=COST, r=BLOCK, p=1, maxmem=2**26, dklen=KEY)
