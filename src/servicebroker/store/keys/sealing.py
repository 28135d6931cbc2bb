"""Encrypt ("seal") secrets with keys or passwords: AES-256-GCM, and scrypt for passwords.

`about` is the purpose of the secret. It is authenticated, not stored: a secret that was sealed for one purpose cannot
be unsealed for another.
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
SCRYPT_COST = 2**15  # of keys and of the dashboard's passwords: 32 MiB of memory and about 0.1 s
SCRYPT_BLOCK = 8  # scrypt's r, the usual size
_MAX_SCRYPT_MEMORY_BYTES = 64 * 2**20  # the limit that OpenSSL checks


def new_key() -> bytes:
    """Return a new random key."""
    return os.urandom(KEY_BYTES)


def seal(key: bytes, secret: bytes, about: str) -> bytes:
    """Encrypt a secret with a key."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, secret, about.encode())


def unseal(key: bytes, sealed: bytes, about: str) -> bytes | None:
    """Decrypt a secret; None if the key or the purpose is wrong, or the ciphertext was changed."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about.encode())
    except (InvalidTag, ValueError):
        return None


def seal_by_password(password: str, secret: bytes, about: str) -> bytes:
    """Encrypt a secret with a password. This takes about 0.1 s, to slow down guessing."""
    salt = os.urandom(SALT_BYTES)
    return salt + seal(derive_key(password, salt, SCRYPT_COST), secret, about)


def unseal_by_password(password: str, sealed: bytes, about: str) -> bytes | None:
    """Decrypt a secret; None if the password or the purpose is wrong, or the ciphertext was changed."""
    return unseal(derive_key(password, sealed[:SALT_BYTES], SCRYPT_COST), sealed[SALT_BYTES:], about)


def derive_key(password: str, salt: bytes, cost: int) -> bytes:
    """Derive a key from a password by scrypt, which also makes the hashes of passwords.

    `cost`: scrypt's n, a power of two. It takes 1 KiB of memory and about 3 microseconds of a core for each unit.
    """
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(
        data, salt=salt, n=cost, r=SCRYPT_BLOCK, p=1, maxmem=_MAX_SCRYPT_MEMORY_BYTES, dklen=KEY_BYTES
    )
