"""TLS 1.3 between two instances that have each other's certificates, without I/O: bytes in, bytes out.

No authority vouches for anybody: a peer is let in when its certificate is one of those that were imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from collections.abc import Sequence
from pathlib import Path

from servicebroker.engine.transport_certificates import Certificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.peers import UNPROVED, Proved
from servicebroker.protocol.mirroring import Known, Role, Standing, statement
from servicebroker.store.certificates import is_signed, public_key, read_identity, sign

HANDSHAKE = 0x16  # the first byte of what a TLS client says; a frame of ours begins with S
RECORDS = range(0x14, 0x18)  # the first byte of what a TLS server may answer
PORTION = 256 * 1024  # bytes

_EXPIRED, _NOT_YET = 10, 9  # of OpenSSL's reasons why a certificate is refused


class Tls:
    """Who we are and whom we trust: a certificate of ours, with its key in the file `identity`, and those of peers.

    `own` are all of ours, also those whose key another server of the instance has.
    """

    def __init__(self, identity: Path, peers: Sequence[Certificate], own: Sequence[Certificate] = ()) -> None:
        self._identity = identity
        self._own = own
        self._peers = {peer.facts.thumbprint: peer for peer in peers}
        self._server = self._context(ssl.PROTOCOL_TLS_SERVER, identity)
        self._server.num_tickets = 0  # every connection shows its certificate
        self._client = self._context(ssl.PROTOCOL_TLS_CLIENT, identity)

    def channel(self, *, is_opener: bool) -> Channel:
        """For a new connection."""
        return Channel(self._client if is_opener else self._server, self._peers, is_opener=is_opener)

    def signed(self, standing: Standing) -> Standing:
        """What we are, with the evidence that we have said it where we are the principal."""
        if standing.role is not Role.PRINCIPAL:
            return standing
        key = read_identity(self._identity.read_bytes())
        return standing._replace(evidence=sign(statement(standing.system, standing.timeline), key))

    def is_ours(self, known: Known) -> bool:
        """Whether a server of this instance has signed that timeline of the cluster."""
        text = statement(known.system, known.timeline)
        keys = [key for one in self._own if (key := public_key(one.facts.der)) is not None]
        return any(is_signed(text, known.evidence, key) for key in keys)

    def _context(self, protocol: int, identity: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a certificate stands for an instance, wherever it is
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # one that an authority has signed is trusted by itself
        context.load_cert_chain(identity)
        if self._peers:
            context.load_verify_locations(cadata=b"".join(peer.facts.der for peer in self._peers.values()))
        return context


class Channel:
    """One secured stream. `peer` is set once both sides have shown their certificates; `proved` is what that means."""

    def __init__(self, context: ssl.SSLContext, peers: dict[bytes, Certificate], *, is_opener: bool) -> None:
        self.peer: Certificate | None = None
        self._peers = peers
        self._is_opener = is_opener
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=not is_opener)

    @property
    def proved(self) -> Proved:
        """What the peer's certificate stands for; nothing before it has shown it."""
        return UNPROVED if self.peer is None else self.peer.proved

    def outgoing(self) -> bytes:
        """What is to be written to the stream, once."""
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
        """What the peer has said, as far as it can be read.

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
                while portion := self._object.read(PORTION):
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
            raise BrokerError(28035, _reason(problem.verify_code)) from None
        except ssl.SSLError as problem:
            raise self._refusal(problem) from None
        der = self._object.getpeercert(binary_form=True) or b""
        peer = self._peers.get(hashlib.sha256(der).digest())
        if peer is None:
            raise BrokerError(28035, _reason(0))
        if not peer.may_connect:
            raise BrokerError(28034, peer.login)
        self.peer = peer

    def _refusal(self, problem: ssl.SSLError) -> BrokerError:
        why = (problem.reason or str(problem)).lower().replace("_", " ")
        if "did not return a certificate" in why:
            return BrokerError(28035, "it was not shown")
        if "alert" in why:
            return BrokerError(9751 if self._is_opener else 28038, f"the peer says {why}")
        return BrokerError(9758)


def _reason(code: int) -> str:
    if code == _EXPIRED:
        return "it has expired"
    if code == _NOT_YET:
        return "it is not valid yet"
    return "it is none of those that were imported here"
