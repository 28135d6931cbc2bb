"""The integrity of what is transmitted (seed: the message's signature; here it is keyed).

A dialog with a session key has its bodies encrypted and everything authenticated by AES-256-GCM. A dialog without
security has no shared key: a digest shows corruption, and against tampering there is only TLS, hop by hop.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from servicebroker.model.errors import BrokerError
from servicebroker.protocol.errors import CorruptedMessage, KeyWornOut

KEY_SIZE = 32  # bytes
NONCE_SIZE = 12  # bytes
TAG_SIZE = 16  # bytes, of both kinds
KEY_USES = 2**32  # transmissions under one key with random nonces: a repeated nonce stays less likely than 2**-32


class Protection(Protocol):
    """Seals a payload together with the header that goes in clear beside it, and opens it again."""

    @property
    def is_secured(self) -> bool:
        """Whether a key is shared, so that bodies are encrypted."""
        ...

    def seal(self, header: bytes, payload: bytes) -> bytes:
        """The payload as it travels."""
        ...

    def open(self, header: bytes, sealed: bytes) -> bytes:
        """The payload that was sealed with exactly this header.

        Raises:
            CorruptedMessage: 11230, a bit of either was changed.
        """
        ...


class Checksum:
    """For dialogs without security: a digest against corruption."""

    __slots__ = ()
    is_secured = False

    def seal(self, header: bytes, payload: bytes) -> bytes:
        """The payload behind the digest of both."""
        return _digest(header, payload) + payload

    def open(self, header: bytes, sealed: bytes) -> bytes:
        """See `Protection.open`."""
        payload = sealed[TAG_SIZE:]
        if len(sealed) < TAG_SIZE or not compare_digest(_digest(header, payload), sealed[:TAG_SIZE]):
            raise CorruptedMessage(11230)
        return payload


def _digest(header: bytes, payload: bytes) -> bytes:
    # the header's length keeps the border between the two in its place
    return blake2b(b"%d:%b%b" % (len(header), header, payload), digest_size=TAG_SIZE).digest()


CHECKSUM = Checksum()


class SessionKey:
    """For secured dialogs: one direction's AES-256-GCM key.

    `nonces` gives twelve fresh random bytes at each call. `allowance` is how many transmissions it may seal; who
    loads a key books an allowance durably first, and never more than `KEY_USES` altogether.

    Raises:
        BrokerError: 28000 when the key has not `KEY_SIZE` bytes.
    """

    __slots__ = ("_cipher", "_nonces", "allowance")
    is_secured = True

    def __init__(self, key: bytes, nonces: Callable[[], bytes], allowance: int = KEY_USES) -> None:
        if len(key) != KEY_SIZE:
            raise BrokerError(28000, len(key), KEY_SIZE)
        self._cipher = AESGCM(key)
        self._nonces = nonces
        self.allowance = allowance

    def seal(self, header: bytes, payload: bytes) -> bytes:
        """The encrypted payload behind its nonce.

        Raises:
            KeyWornOut: the allowance is used up.
        """
        if self.allowance <= 0:
            raise KeyWornOut
        self.allowance -= 1
        nonce = self._nonces()
        return nonce + self._cipher.encrypt(nonce, payload, header)

    def open(self, header: bytes, sealed: bytes) -> bytes:
        """See `Protection.open`."""
        if len(sealed) < NONCE_SIZE + TAG_SIZE:
            raise CorruptedMessage(11230)
        try:
            return self._cipher.decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], header)
        except InvalidTag:
            raise CorruptedMessage(11230) from None
