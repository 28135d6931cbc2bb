"""TLS 1.3 between two instances, without I/O: bytes in, bytes out.

Both sides show a certificate and prove that they have its key. broker/recognition.py maps the certificate to a peer,
and decides whether that peer may connect.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from servicebroker.broker.recognition import Recognition
from servicebroker.engine.security.logins import Connect
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.named_files import BYTES_PER_MIB, read_file
from servicebroker.model.security.authentication import CERTIFICATE, Authentication, Method
from servicebroker.model.security.peers import UNPROVED, Proved
from servicebroker.protocol.mirroring import KnownTimeline, Role, RoleReport, statement
from servicebroker.store.keys.x509_certificates import is_signed, public_key, read_identity, sign
from servicebroker.store.membership import MemberState

HANDSHAKE_BYTE = 0x16  # the first byte of a TLS client; a frame begins with S
RECORDS = range(0x14, 0x18)  # the first byte of a TLS server's answer
READ_BYTES = 256 * 1024  # bytes decrypted at a time

MAX_UNKNOWN_CERTIFICATES = 1_000  # untrusted certificates that a context has loaded
CERTIFICATE_MESSAGE = 11  # its number in the TLS handshake
NO_COMPRESSED_CERTIFICATES = 1 << 33  # an option of OpenSSL 3.2: `_believe` cannot read compressed certificates

EXPIRED, EARLY = "it has expired", "it is not valid yet"  # why a certificate is refused
_REASONS = {10: EXPIRED, 9: EARLY}  # the errors, by OpenSSL's number


class Tls:
    """The TLS settings: the certificates of this instance, and the trusted ones.

    Args:
        identity: the file with the instance's certificate and its key, or None.
        imported: the certificates of peers.
        own: all certificates of the instance, including those whose key another server has.
        domain: the instance's state in its domain; None without a domain.
        authentication: the accepted methods, in the order in which certificates are shown.
        connect: the logins that may connect.

    Raises:
        InstanceError: there is no certificate to show.
        ssl.SSLError, OSError: a file cannot be used.
    """

    def __init__(
        self,
        identity: Path | None,
        imported: Sequence[TransportCertificate],
        own: Sequence[TransportCertificate] = (),
        *,
        domain: MemberState | None = None,
        authentication: Authentication = CERTIFICATE,
        connect: Connect | None = None,
    ) -> None:
        self.recognition = Recognition(imported, domain, authentication, connect)
        files = {Method.CERTIFICATE: identity, Method.WINDOWS: None if domain is None else domain.identity}
        self._shown = {method: file for method in authentication.methods if (file := files[method]) is not None}
        if not self._shown:
            raise InstanceError("There is no certificate to show to peers.")
        self._own = own
        self._takes = ".".join(method.value.lower() for method in authentication.methods)
        self._unknown_certificates = 0  # loaded into the contexts
        self._contexts = self._make_contexts()

    @property
    def certificate_count(self) -> int:
        """The number of certificates to show, one for each method."""
        return len(self._shown)

    def channel(self, *, is_opener: bool, certificate_index: int = 0) -> Channel:
        """Return the channel of a new connection. `certificate_index` chooses the opener's certificate."""
        if self._unknown_certificates >= MAX_UNKNOWN_CERTIFICATES:
            with contextlib.suppress(OSError):  # the file was just removed: the next policy handles it
                self._contexts, self._unknown_certificates = self._make_contexts(), 0
        method = list(self._shown)[certificate_index % len(self._shown)]
        return Channel(self._contexts[method, is_opener], self.recognition, is_opener=is_opener, takes=self._takes)

    def _make_contexts(self) -> dict[tuple[Method, bool], ssl.SSLContext]:
        """Make the TLS contexts: (method of the shown certificate, is_opener) -> context."""
        contexts = {}
        for method, file in self._shown.items():
            contexts[method, True] = self._context(ssl.PROTOCOL_TLS_CLIENT, file)
            contexts[method, False] = self._context(ssl.PROTOCOL_TLS_SERVER, file)
        for context in [contexts[method, False] for method in self._shown]:
            context.num_tickets = 0  # every connection shows its certificate
            context.sni_callback = self._choose({method: contexts[method, False] for method in self._shown})
        return contexts

    def signed(self, role_report: RoleReport) -> RoleReport:
        """Return the role report, with a signature if the role is PRINCIPAL."""
        if role_report.role is not Role.PRINCIPAL:
            return role_report
        method, file = next(iter(self._shown.items()))
        signature = sign(
            statement(role_report.system, role_report.timeline), read_identity(read_file(file, BYTES_PER_MIB))
        )
        if method is Method.WINDOWS:
            signature = self.recognition.pack_signature(signature)
        return role_report._replace(signature=signature)

    def is_ours(self, known: KnownTimeline) -> bool:
        """Return whether a server of this instance has signed this timeline of the cluster."""
        text = statement(known.system, known.timeline)
        signature, certificates = self.recognition.unpack_signature(known.signature)
        keys = [
            key
            for der in [*certificates, *(own.facts.der for own in self._own)]
            if (key := public_key(der)) is not None
        ]
        return any(is_signed(text, signature, key) for key in keys)

    def _context(self, protocol: int, identity: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a certificate identifies an instance, not a host
        context.verify_mode = ssl.CERT_REQUIRED
        # trust a certificate in itself, even if an unknown authority has signed it
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_cert_chain(identity, password="")  # else OpenSSL would prompt for the password of an encrypted key
        if anchors := self.recognition.anchors:
            context.load_verify_locations(cadata=b"".join(anchors))
        if self.recognition.is_public:
            context._msg_callback = self._believe(context)  # type: ignore[attr-defined]
            context.options |= NO_COMPRESSED_CERTIFICATES
        return context

    def _believe(self, context: ssl.SSLContext) -> Callable[..., None]:
        """Make TLS accept any certificate of the peer and still verify its key. recognition.py checks it later.

        The module ssl gives no access to an untrusted certificate. So this callback reads it from the handshake, and
        adds it to the trusted ones before OpenSSL verifies it.
        """

        def watch(connection: object, direction: str, version: object, kind: object, message: int, data: bytes) -> None:
            if direction == "read" and message == CERTIFICATE_MESSAGE:
                with contextlib.suppress(ssl.SSLError, ValueError):  # no certificate: TLS reports that itself
                    context.load_verify_locations(cadata=_first_certificate(data))
                    self._unknown_certificates += 1

        return watch

    def _choose(self, contexts: Mapping[Method, ssl.SSLContext]) -> Callable[..., int | None]:
        """Return the callback that chooses a certificate: the first method in the opener's server name (SNI)."""

        def choose(stream: ssl.SSLObject, methods: str | None, context: ssl.SSLContext) -> int | None:
            offered = methods.upper().split(".") if methods else list(contexts)
            chosen = next((context for method, context in contexts.items() if method in offered), None)
            if chosen is None:
                return ssl.AlertDescription.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
            if chosen is not context:
                stream.context = chosen
            return None

        return choose


class Channel:
    """One TLS connection.

    Attributes:
        peer: the recognized peer; None until both sides have shown their certificates.
        authentication: the method of the peer's certificate, '' before.
        is_open: the handshake is complete, even if the peer is refused: it can read the reason.

    `takes`: the methods that an opener accepts, sent as the server name.
    """

    def __init__(self, context: ssl.SSLContext, recognition: Recognition, *, is_opener: bool, takes: str = "") -> None:
        self.peer: TransportCertificate | None = None
        self.is_open = False
        self.authentication = ""
        self._recognition = recognition
        self._is_opener = is_opener
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = takes if is_opener and takes else None
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=not is_opener, server_hostname=name)

    @property
    def proved(self) -> Proved:
        """The identity that the peer's certificate proves; none before it is shown."""
        return UNPROVED if self.peer is None else self.peer.proved

    def outgoing(self) -> bytes:
        """Return the bytes to write to the stream, and clear the buffer."""
        return self._outgoing.read()

    def begin(self) -> None:
        """Start the handshake. Only the opener calls this."""
        self._shake_hands()

    def send(self, data: bytes) -> None:
        """Encrypt bytes into `outgoing`. They are dropped if the peer has ended TLS."""
        view = memoryview(data)
        with contextlib.suppress(ssl.SSLError):
            while view:
                view = view[self._object.write(view) :]

    def receive(self, data: bytes) -> bytes:
        """Return the bytes that the peer has sent, as far as they can be decrypted.

        Raises:
            BrokerError: 28034, 28035, 28038 the peer is refused; 9751 it refuses this side; 9758 no TLS 1.3.
        """
        self._incoming.write(data)
        if self.peer is None:
            self._shake_hands()
        if self.peer is None:
            return b""
        portions = []
        try:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while portion := self._object.read(READ_BYTES):
                    portions.append(portion)
        except ssl.SSLError as problem:  # an opener learns only here that its certificate is refused
            raise self._refusal(problem) from None
        return b"".join(portions)

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLCertVerificationError as problem:
            raise BrokerError(28035, _REASONS.get(problem.verify_code, self._recognition.untrusted_reason)) from None
        except ssl.SSLError as problem:
            raise self._refusal(problem) from None
        self.is_open = True
        der = self._object.getpeercert(binary_form=True) or b""
        self.peer, self.authentication = self._recognition.recognize(der)

    def _refusal(self, problem: ssl.SSLError) -> BrokerError:
        why = (problem.reason or str(problem)).lower().replace("_", " ")
        if "callback failed" in why:
            return BrokerError(28027, "authentication protocol")
        if "did not return a certificate" in why:
            return BrokerError(28035, "it was not shown")
        if "alert" in why:
            return BrokerError(9751 if self._is_opener else 28038, f"the peer says {why}")
        return BrokerError(9758)


def _first_certificate(message: bytes) -> bytes:
    """Return the first certificate of a TLS 1.3 Certificate message (RFC 8446, 4.4.2), or b""."""
    start = 4 + 1 + int.from_bytes(message[4:5], "big") + 3  # behind the header, the context and the length of the list
    size = int.from_bytes(message[start : start + 3], "big")
    return message[start + 3 : start + 3 + size]
