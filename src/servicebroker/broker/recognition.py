"""The identity of a peer whose certificate TLS has verified, or the reason to refuse the peer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from servicebroker.engine.security.logins import Connect
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.authentication import CERTIFICATE, Authentication, Method
from servicebroker.model.security.domain import Member
from servicebroker.model.security.peers import STRANGER, Proved
from servicebroker.store.keys.domain_certificates import member_of
from servicebroker.store.keys.x509_certificates import facts_of_der
from servicebroker.store.membership import MemberState

UNSTORED_CERTIFICATE_ID = 0  # the id of a certificate that was never imported


class Signed(msgspec.Struct, array_like=True):
    """A signature with the signer's certificate (DER), issued by the domain."""

    signature: bytes
    certificate: bytes


class Recognized(NamedTuple):
    """An accepted peer: its certificate, and the authentication method as in sys.dm_broker_connections."""

    peer: TransportCertificate
    authentication: str


class Recognition:
    """The imported certificates, the domain of this instance, and the logins that the endpoint accepts."""

    def __init__(
        self,
        imported: Sequence[TransportCertificate],
        domain: MemberState | None = None,
        authentication: Authentication = CERTIFICATE,
        connect: Connect | None = None,
    ) -> None:
        methods = authentication.methods
        self.domain = domain if Method.WINDOWS in methods else None
        self.is_public = connect is not None and connect.is_public and Method.CERTIFICATE in methods
        self._imported = {peer.facts.thumbprint: peer for peer in imported if Method.CERTIFICATE in methods}
        self._protocol = authentication.protocol
        self._connect = connect or Connect(None, {})

    @property
    def anchors(self) -> list[bytes]:
        """The certificates that TLS trusts, as DER: imported ones, and the authority of the domain."""
        authority = [] if self.domain is None else [self.domain.authority.der]
        return [*authority, *(peer.facts.der for peer in self._imported.values())]

    @property
    def untrusted_reason(self) -> str:
        """The reason for which an untrusted certificate is invalid, as the end of error 28035."""
        imported = "it is none of those that were imported into this instance"
        if self.domain is None:
            return imported
        other = f"it is not of the domain {self.domain.domain}"
        return f"{imported}, and {other}" if self._imported else other

    def recognize(self, der: bytes) -> Recognized:
        """Return the peer that has this certificate.

        Raises:
            BrokerError: 28034 its login has no CONNECT, 28035 the certificate is unknown.
        """
        peer = self._imported.get(hashlib.sha256(der).digest())
        if peer is not None:
            if not peer.may_connect:
                raise BrokerError(28034, peer.login)
            return Recognized(peer, CERTIFICATE.description)
        member = None if self.domain is None else member_of(der, self.domain.authority.der)
        if self.domain is not None and member is not None:
            return self._member(self.domain, member, der)
        if self.is_public:
            return self._unknown(der)
        raise BrokerError(28035, self.untrusted_reason)

    def pack_signature(self, signature: bytes) -> bytes:
        """Return a signature together with this server's domain certificate, so that its mirror can verify it."""
        assert self.domain is not None
        assert self.domain.facts is not None
        return msgspec.msgpack.encode(Signed(signature, self.domain.facts.der))

    def unpack_signature(self, packed: bytes) -> tuple[bytes, list[bytes]]:
        """Unpack `pack_signature`. Returns the signature, and the certificate if a server of this instance has it."""
        try:
            signed = msgspec.msgpack.decode(packed, type=Signed)
            member = None if self.domain is None else member_of(signed.certificate, self.domain.authority.der)
        except (msgspec.MsgspecError, ValueError):
            return packed, []
        if self.domain is None or member is None or self.domain.member is None:
            return signed.signature, []
        is_same_instance = (
            member.instance == self.domain.member.instance and member.name.lower() not in self.domain.revoked
        )
        return signed.signature, [signed.certificate] if is_same_instance else []

    def _member(self, domain: MemberState, member: Member, der: bytes) -> Recognized:
        if member.name.lower() in domain.revoked:
            raise BrokerError(28035, f"{member.account} was revoked")
        is_same_account = domain.member is not None and domain.member.account.lower() == member.account.lower()
        if not self._connect.of_member(member.account, is_ours=is_same_account):
            raise BrokerError(28034, member.account)
        owner = f"member {member.account}, instance {member.instance}"
        proved = Proved(owner, member.instance, is_vouched=True)
        name = member.account
        certificate = TransportCertificate(UNSTORED_CERTIFICATE_ID, name, False, name, True, facts_of_der(der), proved)
        return Recognized(certificate, self._protocol)

    def _unknown(self, der: bytes) -> Recognized:
        """Accept an unknown certificate, because public has CONNECT. It proves no identity."""
        facts = facts_of_der(der)
        name = f"{STRANGER} {facts.thumbprint.hex()}"
        proved = Proved(name)
        return Recognized(
            TransportCertificate(UNSTORED_CERTIFICATE_ID, name, False, "public", True, facts, proved), "CERTIFICATE"
        )
