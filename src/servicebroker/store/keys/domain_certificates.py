"""Create the certificates of a domain: that of its authority, and those of its members' endpoints.

The certificate of a member names the domain (O), the member (CN), and the instance (a URI among the alternative names).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from servicebroker.model.errors import DomainError
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.domain import Member
from servicebroker.store.keys.x509_certificates import (
    CLOCK_SKEW,
    INSTANCE_URI_PREFIX,
    MAX_DAYS,
    PrivateKey,
    facts_of,
    instance_of,
)

# of a member's certificate: instances that do not read the revocations trust a revoked member for this time
CERTIFICATE_LIFE = timedelta(days=7)
_USAGE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def new_key() -> PrivateKey:
    """Return a new private key on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(domain: str, now: datetime) -> tuple[Facts, PrivateKey]:
    """Create the certificate and key of a new domain's authority, valid for about 100 years."""
    key = new_key()
    name = _name(domain, f"Domain {domain}"[:64])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    start = now.replace(microsecond=0)
    certificate = (
        _builder(name, name, start - CLOCK_SKEW, start + timedelta(days=MAX_DAYS))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs_certificates(), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return facts_of(certificate), key


def request(key: PrivateKey) -> bytes:
    """Create a certificate signing request for a key (PKCS #10, DER). It proves that the requester has the key."""
    empty = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return empty.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def public_key_of(request: bytes) -> bytes:
    """Return the public key of a certificate signing request, as DER.

    Raises:
        DomainError: it is no such request, or is not signed with its own key.
    """
    try:
        read = x509.load_der_x509_csr(request)
        proven = read.is_signature_valid and isinstance(read.public_key(), ec.EllipticCurvePublicKey)
    except (ValueError, TypeError):
        proven = False
    if not proven:
        raise DomainError("The certificate request is invalid, or is not signed with its own key.")
    return _public_bytes(read.public_key())


def public_bytes(key: PrivateKey) -> bytes:
    """Return the public key of a private key, as DER."""
    return _public_bytes(key.public_key())


def issue(authority: Facts, authority_key: PrivateKey, public_key: bytes, member: Member, now: datetime) -> Facts:
    """Issue a certificate for the public key (DER) of a member's instance, valid for `CERTIFICATE_LIFE`."""
    issuer = x509.load_der_x509_certificate(authority.der)
    start = now.replace(microsecond=0)
    subject = _name(member.domain, member.name)
    certificate = (
        _builder(subject, issuer.subject, start - CLOCK_SKEW, start + CERTIFICATE_LIFE)
        .public_key(serialization.load_der_public_key(public_key))  # type: ignore[arg-type] # an EllipticCurvePublicKey
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_USAGE, critical=False)
        .add_extension(x509.SubjectAlternativeName([_uri(member.instance)]), critical=False)
        .add_extension(_issuer_identifier(issuer), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return facts_of(certificate)


def is_authority(facts: Facts) -> bool:
    """Check whether a certificate is self-signed and that of an authority."""
    certificate = x509.load_der_x509_certificate(facts.der)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
    except (x509.ExtensionNotFound, InvalidSignature, ValueError, TypeError):
        return False
    return constraints.ca


def domain_of(authority: Facts) -> str:
    """Return the name of an authority's domain."""
    return _one(x509.load_der_x509_certificate(authority.der), NameOID.ORGANIZATION_NAME)


def member_of(der: bytes, authority: bytes) -> Member | None:
    """Return the member that a certificate names; None if the authority (DER) has not signed it. Ignores dates."""
    certificate = x509.load_der_x509_certificate(der)
    issuer = x509.load_der_x509_certificate(authority)
    instance = instance_of(der)
    try:
        certificate.verify_directly_issued_by(issuer)
        domain, name = (_one(certificate, oid) for oid in (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME))
    except (InvalidSignature, ValueError, TypeError):
        return None
    return None if instance is None else Member(domain, name, instance)


def public_key_of_certificate(der: bytes) -> bytes:
    """Return the public key of a certificate, as DER."""
    return _public_bytes(x509.load_der_x509_certificate(der).public_key())


def _builder(subject: x509.Name, issuer: x509.Name, start: datetime, expiry: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(expiry)
    )


def _name(domain: str, common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, domain), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _one(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    """Return the only attribute of this kind in the subject."""
    (attribute,) = certificate.subject.get_attributes_for_oid(oid)
    return str(attribute.value)


def _uri(instance: UUID) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(f"{INSTANCE_URI_PREFIX}{instance}")


def _issuer_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    extension = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(extension)


def _signs_certificates() -> x509.KeyUsage:
    """Return the key usage of an authority: to sign certificates, and nothing else."""
    unused = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    return x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=False, decipher_only=False, **unused)


def _public_bytes(key: object) -> bytes:
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
