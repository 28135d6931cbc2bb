"""The connection of a client as a state machine: bytes in, messages out; PRELOGIN, encryption, then packets."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from servicebroker.model.security.client_refusals import ClientRefusal
from servicebroker.tds.byte_reader import ProtocolError
from servicebroker.tds.login import MAX_LOGIN_BYTES
from servicebroker.tds.packets import (
    DEFAULT_PACKET_BYTES,
    MAX_PACKET_BYTES,
    MIN_PACKET_BYTES,
    Message,
    PacketReader,
    PacketType,
    message_of,
)
from servicebroker.tds.prelogin import Encryption, answer_prelogin, choose_encryption, parse_prelogin
from servicebroker.tds.request_memory import MAX_REQUEST_BYTES
from servicebroker.tds.tls import HANDSHAKE_BYTE, TlsContexts, TlsPipe


class EncryptionRequired(ProtocolError):
    """A client that must encrypt does not."""


class _Stage(Enum):
    PRELOGIN = "the client's PRELOGIN"
    WRAPPED_TLS = "packets of a TLS handshake"
    PACKETS = "packets of requests"


class Handshake:
    """The bytes of one connection.

    Args:
        contexts: the TLS settings.
        requires_encryption: True to refuse clients without encryption.
    """

    def __init__(self, contexts: TlsContexts, *, requires_encryption: bool) -> None:
        self._contexts, self._requires_encryption = contexts, requires_encryption
        self._packets = PacketReader(DEFAULT_PACKET_BYTES, MAX_LOGIN_BYTES)
        self._stage = _Stage.PRELOGIN
        self._tls: TlsPipe | None = None
        self._is_first = True
        self._has_login = self._has_begun_tls = False
        self._wish = Encryption.NOT_SUPPORTED
        self._out = bytearray()
        self.packet_bytes = DEFAULT_PACKET_BYTES

    @property
    def is_encrypted(self) -> bool:
        """True if what the client sends is encrypted."""
        return self._tls is not None

    @property
    def likely_refusal(self) -> ClientRefusal | None:
        """The likely reason of a client that has closed the connection before its login."""
        if self._tls is None or self._has_login:
            return None
        if self._has_begun_tls or self._stage is not _Stage.WRAPPED_TLS:
            return ClientRefusal.CERTIFICATE
        return None if self._wish in (Encryption.ON, Encryption.REQUIRED) else ClientRefusal.ENCRYPTION

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that are received and part of no message yet."""
        return self._packets.buffered_bytes

    def allow_requests(self, packet_bytes: int) -> None:
        """Accept requests after the login, with the packet size that the client asked for."""
        self.packet_bytes = max(MIN_PACKET_BYTES, min(packet_bytes or DEFAULT_PACKET_BYTES, MAX_PACKET_BYTES))
        self._packets.max_packet_bytes = max(self.packet_bytes, DEFAULT_PACKET_BYTES)
        self._packets.max_message_bytes = MAX_REQUEST_BYTES

    def receive(self, data: bytes) -> Iterator[Message]:
        """Take bytes of the client, and yield the messages that they complete. `take` then has answers.

        Raises:
            ProtocolError: they are malformed.
            ssl.SSLError: the encryption failed.
        """
        if self._is_first:
            self._is_first = False
            if data[0] == HANDSHAKE_BYTE:
                self._tls = TlsPipe(self._contexts.strict)
        if self._tls is not None and self._stage is not _Stage.WRAPPED_TLS:
            data = self._tls.feed(data)
            self._out += self._tls.take()
        self._packets.feed(data)
        while (message := self._packets.next_message()) is not None:
            if self._stage is _Stage.PACKETS:
                self._has_login = True
                yield message
            elif self._is_old_login(message):
                self._stage = _Stage.PACKETS
                yield message
            elif message.type != PacketType.PRELOGIN:
                raise ProtocolError(f"A message of type {message.type} instead of {self._stage.value}.")
            elif self._stage is _Stage.PRELOGIN:
                self._answer_prelogin(bytes(message.data))
            else:
                yield from self._continue_tls(bytes(message.data))

    def _is_old_login(self, message: Message) -> bool:
        """Return True if a client of TDS 7.1 begins with its login, without PRELOGIN and encryption."""
        is_first = self._stage is _Stage.PRELOGIN and message.type == PacketType.LOGIN and self._tls is None
        if is_first and self._requires_encryption:
            raise EncryptionRequired("The client does not encrypt, which only clients of the same machine may.")
        return is_first

    def _answer_prelogin(self, data: bytes) -> None:
        if self._tls is not None:  # TDS 8: everything is encrypted already
            self.send(message_of(answer_prelogin(Encryption.ON)))
            self._stage = _Stage.PACKETS
            return
        self._wish = parse_prelogin(data).encryption
        encryption = choose_encryption(self._wish, is_required=self._requires_encryption)
        self.send(message_of(answer_prelogin(encryption)))
        if encryption is Encryption.NOT_SUPPORTED:
            self._stage = _Stage.PACKETS
        else:
            self._tls, self._stage = TlsPipe(self._contexts.wrapped), _Stage.WRAPPED_TLS

    def _continue_tls(self, data: bytes) -> Iterator[Message]:
        """Continue a handshake whose bytes come in packets. After it, packets come inside of TLS."""
        assert self._tls is not None
        self._has_begun_tls = True
        early = self._tls.feed(data)
        if answer := self._tls.take():
            self._out += message_of(answer, PacketType.PRELOGIN)
        if self._tls.is_established:
            self._stage = _Stage.PACKETS
            rest = self._packets.take_rest()
            self._packets.feed(early)
            if rest:
                yield from self.receive(rest)

    def send(self, data: bytes) -> None:
        """Add bytes for the client."""
        if self._tls is None or self._stage is _Stage.WRAPPED_TLS:
            self._out += data
        else:
            self._tls.encrypt(data)
            self._out += self._tls.take()

    def take(self) -> bytes:
        """Return the bytes to send."""
        out, self._out = bytes(self._out), bytearray()
        return out
