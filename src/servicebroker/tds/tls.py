"""TLS of a client without sockets: bytes in, bytes out. TDS 7 wraps the handshake in packets; TDS 8 begins with TLS."""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from servicebroker.model.errors import InstanceError

HANDSHAKE_BYTE = 0x16  # the first byte of TLS; a packet of TDS begins with its type
_ALPN = "tds/8.0"
_READ_BYTES = 256 * 1024
_VALIDITY = timedelta(days=365)


class TlsContexts:
    """The TLS settings of a server.

    A handshake inside packets ends at TLS 1.2, since TLS 1.3 goes on after the client's last packet.
    """

    def __init__(self, certificate: Path | None, key: Path | None, host: str) -> None:
        """Load the certificate, or make one for this process.

        Raises:
            InstanceError: a file cannot be used.
        """
        self.is_self_signed = certificate is None
        self.wrapped, self.strict = _context(), _context()
        self.wrapped.maximum_version = ssl.TLSVersion.TLSv1_2
        self.strict.set_alpn_protocols([_ALPN])
        for context in (self.wrapped, self.strict):
            if certificate is None:
                _load_own(context, host)
            else:
                _load(context, certificate, key)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as problem:
        raise InstanceError(f"The certificate {certificate} of the TDS port cannot be used: {problem}.") from None


def _load_own(context: ssl.SSLContext, host: str) -> None:
    """Load a new self-signed certificate. Clients encrypt with it, and cannot know the server by it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host or "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALIDITY)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.TemporaryDirectory(prefix="servicebroker-") as folder:  # readable by this user only
        file = Path(folder) / "certificate.pem"
        file.write_bytes(pem)
        _load(context, file, None)


class TlsPipe:
    """The encryption of one connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_established = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the client. Return what they say; nothing during the handshake.

        Raises:
            ssl.SSLError: the handshake failed, or the bytes are not TLS.
        """
        self._incoming.write(data)
        if not self.is_established:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.is_established = True
        return self._read()

    def _read(self) -> bytes:
        parts: list[bytes] = []
        try:
            while data := self._tls.read(_READ_BYTES):
                parts.append(data)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return b"".join(parts)

    def encrypt(self, data: bytes) -> None:
        """Add bytes for the client. `take` returns them."""
        self._tls.write(data)

    def take(self) -> bytes:
        """Return the bytes to send."""
        return self._outgoing.read()
