"""The integrity of transmitted messages, with or without a session key.

With a session key, AES-256-GCM encrypts the body, and authenticates the body and the header. Without one, a digest only
detects corruption, and only TLS between neighbouring daemons protects against tampering.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from servicebroker.model.errors import BrokerError
from servicebroker.protocol.wire_errors import CorruptedMessage

KEY_SIZE = 32  # bytes
SALT_SIZE = 16  # bytes
COUNTER_SIZE = 8  # bytes
TAG_SIZE = 16  # bytes, of both kinds
KEY_USES = 2**32  # transmissions under one salt
MAX_SALTS = 4  # salts of a peer whose derived keys are cached
_PADDING = bytes(4)  # precedes the counter, so that a nonce has twelve bytes


class Protection(Protocol):
    """Seals a payload together with its clear header, and opens it again."""

    @property
    def is_secured(self) -> bool:
        """Return whether there is a session key, so that bodies are encrypted."""
        ...

    def seal(self, header: bytes, payload: bytes) -> bytes:
        """Return the payload in the form to be sent."""
        ...

    def open(self, header: bytes, sealed: bytes) -> bytes:
        """Return the payload that was sealed together with exactly this header.

        Raises:
            CorruptedMessage: 11230 the header or the payload was changed.
        """
        ...


class Checksum:
    """The protection of dialogs without security: a digest against corruption."""

    __slots__ = ()
    is_secured = False

    def seal(self, header: bytes, payload: bytes) -> bytes:
        """Return the digest of both, followed by the payload."""
        return _digest(header, payload) + payload

    def open(self, header: bytes, sealed: bytes) -> bytes:
        """See `Protection.open`."""
        payload = sealed[TAG_SIZE:]
        if len(sealed) < TAG_SIZE or not compare_digest(_digest(header, payload), sealed[:TAG_SIZE]):
            raise CorruptedMessage(11230)
        return payload


def _digest(header: bytes, payload: bytes) -> bytes:
    # the header's length fixes the border between header and payload
    return blake2b(b"%d:%b%b" % (len(header), header, payload), digest_size=TAG_SIZE).digest()


CHECKSUM = Checksum()


class SessionKey:
    """The protection of secured dialogs: AES-256-GCM keys, derived from a session key with a salt each.

    `salts` returns sixteen random bytes at each call. Each process that loads a key draws a salt, and numbers its uses
    of the derived key. So no nonce is used twice, however often the key is loaded.

    Raises:
        BrokerError: 28000 the key has not `KEY_SIZE` bytes.
    """

    __slots__ = ("_key", "_opening", "_salt", "_salts", "_sealing", "_uses")
    is_secured = True

    def __init__(self, key: bytes, salts: Callable[[], bytes]) -> None:
        if len(key) != KEY_SIZE:
            raise BrokerError(28000, len(key), KEY_SIZE)
        self._key = key
        self._salts = salts
        self._salt = b""
        self._sealing: AESGCM | None = None
        self._uses = 0
        self._opening: dict[bytes, AESGCM] = {}  # salt -> cipher, of the last few

    def seal(self, header: bytes, payload: bytes) -> bytes:
        """Return the salt and the number of its use, followed by the encrypted payload."""
        if self._sealing is None or self._uses >= KEY_USES:
            self._salt, self._uses = self._salts(), 0
            self._sealing = self._derived(self._salt)
        counter = self._uses.to_bytes(COUNTER_SIZE, "big")
        self._uses += 1
        return b"".join((self._salt, counter, self._sealing.encrypt(_PADDING + counter, payload, header)))

    def open(self, header: bytes, sealed: bytes) -> bytes:
        """See `Protection.open`."""
        if len(sealed) < SALT_SIZE + COUNTER_SIZE + TAG_SIZE:
            raise CorruptedMessage(11230)
        salt, counter = sealed[:SALT_SIZE], sealed[SALT_SIZE : SALT_SIZE + COUNTER_SIZE]
        cipher = self._opening.get(salt) or self._derived(salt)
        try:
            payload = cipher.decrypt(_PADDING + counter, sealed[SALT_SIZE + COUNTER_SIZE :], header)
        except InvalidTag:
            raise CorruptedMessage(11230) from None
        if salt not in self._opening:
            if len(self._opening) >= MAX_SALTS:
                self._opening.clear()
            self._opening[salt] = cipher
        return payload

    def _derived(self, salt: bytes) -> AESGCM:
        return AESGCM(HKDF(SHA256(), KEY_SIZE, salt, b"servicebroker session key 1").derive(self._key))
