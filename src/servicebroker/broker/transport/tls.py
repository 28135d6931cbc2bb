"""TLS 1.3 between two instances, without I/O: bytes in, bytes out.

Both sides show a certificate and prove that they have its key. broker/recognition.py decides whom the certificate
stands for, and whether that peer may connect.
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
from servicebroker.protocol.mirroring import Known, Role, Standing, statement
from servicebroker.store.keys.x509_certificates import is_signed, public_key, read_identity, sign
from servicebroker.store.membership import MemberState

HANDSHAKE_BYTE = 0x16  # the first byte of what a TLS client says; a frame of ours begins with S
RECORDS = range(0x14, 0x18)  # the first byte of what a TLS server may answer
READ_BYTES = 256 * 1024  # bytes

MOST_STRANGERS = 1_000  # certificates that a context believes because it was shown them
CERTIFICATE_MESSAGE = 11  # of a handshake
NO_COMPRESSED_CERTIFICATES = 1 << 33  # of OpenSSL's options, from its version 3.2 on: what is watched is not compressed

EXPIRED, EARLY = "it has expired", "it is not valid yet"  # why a certificate is refused
_REASONS = {10: EXPIRED, 9: EARLY}  # by OpenSSL's number


class Tls:
    """TLS settings: our certificates, and the trusted ones.

    Args:
        identity: the file with our certificate and its key; None without one.
        imported: the certificates of peers.
        own: all of ours, also those whose key another server of the instance has.
        domain: how we stand in our domain; None when we are in none.
        authentication: which of both counts, and in which order we show them.
        connect: whom the endpoint lets in.

    Raises:
        InstanceError: there is nothing to show.
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
        self._strangers = 0  # that the contexts believe
        self._contexts = self._make_contexts()

    @property
    def ways(self) -> int:
        """Return how many certificates we have to show, by different methods."""
        return len(self._shown)

    def channel(self, *, is_opener: bool, turn: int = 0) -> Channel:
        """For a new connection. An opener shows its first certificate at turn 0, the next one at turn 1."""
        if self._strangers >= MOST_STRANGERS:
            with contextlib.suppress(OSError):  # the file was taken away just now: the next policy knows
                self._contexts, self._strangers = self._make_contexts(), 0
        method = list(self._shown)[turn % len(self._shown)]
        return Channel(self._contexts[method, is_opener], self.recognition, is_opener=is_opener, takes=self._takes)

    def _make_contexts(self) -> dict[tuple[Method, bool], ssl.SSLContext]:
        """Make the TLS contexts, by the certificate shown and the side of the connection."""
        made = {}
        for method, file in self._shown.items():
            made[method, True] = self._context(ssl.PROTOCOL_TLS_CLIENT, file)
            made[method, False] = self._context(ssl.PROTOCOL_TLS_SERVER, file)
        for context in [made[method, False] for method in self._shown]:
            context.num_tickets = 0  # every connection shows its certificate
            context.sni_callback = self._choose({method: made[method, False] for method in self._shown})
        return made

    def signed(self, standing: Standing) -> Standing:
        """Return our role; of a principal with the evidence that it has stated it."""
        if standing.role is not Role.PRINCIPAL:
            return standing
        method, file = next(iter(self._shown.items()))
        signature = sign(statement(standing.system, standing.timeline), read_identity(read_file(file, BYTES_PER_MIB)))
        if method is Method.WINDOWS:
            signature = self.recognition.evidence(signature)
        return standing._replace(evidence=signature)

    def is_ours(self, known: Known) -> bool:
        """Return whether a server of this instance has signed that timeline of the cluster."""
        text = statement(known.system, known.timeline)
        signature, ours = self.recognition.read_evidence(known.evidence)
        keys = [key for der in [*ours, *(one.facts.der for one in self._own)] if (key := public_key(der)) is not None]
        return any(is_signed(text, signature, key) for key in keys)

    def _context(self, protocol: int, identity: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a certificate stands for an instance, wherever it is
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= (
            ssl.VERIFY_X509_PARTIAL_CHAIN
        )  # a certificate signed by an authority is trusted by itself
        context.load_cert_chain(identity, password="")  # else a key under a password would be asked for
        if anchors := self.recognition.anchors:
            context.load_verify_locations(cadata=b"".join(anchors))
        if self.recognition.is_public:
            context._msg_callback = self._believe(context)  # type: ignore[attr-defined]
            context.options |= NO_COMPRESSED_CERTIFICATES
        return context

    def _believe(self, context: ssl.SSLContext) -> Callable[..., None]:
        """Make TLS accept any certificate of the peer and still verify its key. recognition.py judges it later.

        The module ssl has no way to look at a certificate that is not trusted but to watch the handshake; so it is
        trusted in the moment when it comes.
        """

        def watch(connection: object, direction: str, version: object, kind: object, message: int, data: bytes) -> None:
            if direction == "read" and message == CERTIFICATE_MESSAGE:
                with contextlib.suppress(ssl.SSLError, ValueError):  # no certificate: TLS says so itself
                    context.load_verify_locations(cadata=_first_certificate(data))
                    self._strangers += 1

        return watch

    def _choose(self, contexts: Mapping[Method, ssl.SSLContext]) -> Callable[..., int | None]:
        """Return the callback that picks a certificate for an opener: the first that its server name says it takes."""

        def choose(stream: ssl.SSLObject, takes: str | None, context: ssl.SSLContext) -> int | None:
            offered = takes.upper().split(".") if takes else list(contexts)
            found = next((context for method, context in contexts.items() if method in offered), None)
            if found is None:
                return ssl.AlertDescription.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
            if found is not context:
                stream.context = found
            return None

        return choose


class Channel:
    """One secured stream. `peer` is set once both sides have shown their certificates; `proved` is what that means.
    `is_open` also when the peer is not one that is let in: it can be told why.

    `authentication` is the method by which the peer is known, '' before it is. `takes`: by which an opener takes peers.
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
        """Return the bytes to write to the stream, and forget them."""
        return self._outgoing.read()

    def begin(self) -> None:
        """The opener speaks first."""
        self._shake_hands()

    def send(self, data: bytes) -> None:
        """Secure some bytes; they are in `outgoing` then. Dropped when the peer has ended TLS."""
        view = memoryview(data)
        with contextlib.suppress(ssl.SSLError):
            while view:
                view = view[self._object.write(view) :]

    def receive(self, data: bytes) -> bytes:
        """Return the bytes that the peer has sent, as far as they can be decrypted.

        Raises:
            BrokerError: 28034, 28035, 28038 the peer is not let in; 9751 it does not let us in; 9758 no TLS 1.3.
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
        except ssl.SSLError as problem:  # only now does an opener hear that its certificate is refused
            raise self._refusal(problem) from None
        return b"".join(portions)

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLCertVerificationError as problem:
            raise BrokerError(28035, _REASONS.get(problem.verify_code, self._recognition.stranger)) from None
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
    """The peer's own in a Certificate message of TLS 1.3 (RFC 8446, 4.4.2), b"" when there is none."""
    start = 4 + 1 + int.from_bytes(message[4:5], "big") + 3  # behind the header, the context and the length of the list
    size = int.from_bytes(message[start : start + 3], "big")
    return message[start + 3 : start + 3 + size]
