"""Create, read and write certificates (X.509) and their private keys (PKCS #8)."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import UUID

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import Facts

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

VALIDITY_DAYS = 365  # the validity of a new certificate
MAX_DAYS = 36_500
CLOCK_SKEW = timedelta(minutes=10)  # a new transport certificate is valid from 10 min ago: a peer's clock may be behind
MAX_CERTIFICATE_BYTES = 32_767  # see docs/reference/rules.md#dialog-security
MAX_SUBJECT_CHARACTERS = 64  # the longest common name
MIN_RSA_BITS = 2048
INSTANCE_URI_PREFIX = "servicebroker:"  # the start of the alternative name (URI) with the instance's identifier
# an extension of a renewed certificate: a signature of its key with the key of the previous certificate
SUCCESSION_OID = ObjectIdentifier("2.25.152235390811078377695762435585911865375")

_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def make(
    subject: str,
    now: datetime,
    days: int = VALIDITY_DAYS,
    *,
    instance: UUID | None = None,
    predecessor: PrivateKey | None = None,
) -> tuple[Facts, PrivateKey]:
    """Create a certificate for the transport, valid from now on, and its key.

    Args:
        instance: the instance that the certificate names.
        predecessor: the key of the replaced certificate; it signs the new key.

    Raises:
        BrokerError: 402 `days` is not 1 to `MAX_DAYS`.
    """
    if not 1 <= days <= MAX_DAYS:
        raise BrokerError(402, "EXPIRY_DATE", f"{days} days away", f"1 to {MAX_DAYS} days away")
    start = now.replace(microsecond=0)
    return issue(subject, start, start + timedelta(days=days), CLOCK_SKEW, instance=instance, predecessor=predecessor)


def issue(
    subject: str,
    start: datetime,
    expiry: datetime,
    clock_skew: timedelta = timedelta(0),
    *,
    instance: UUID | None = None,
    predecessor: PrivateKey | None = None,
) -> tuple[Facts, PrivateKey]:
    """Create a key on the curve P-256, and its self-signed certificate.

    Args:
        subject: CN=..., or only the name.
        clock_skew: how long before `start` the certificate is valid already, for peers whose clock is behind.

    Raises:
        BrokerError: 402 the dates have no time zone, are in the wrong order or too far apart; or the subject is
            invalid.
    """
    if not all(isinstance(date, datetime) and date.tzinfo is not None for date in (start, expiry)):
        raise BrokerError(402, "START_DATE or EXPIRY_DATE", "something else", "a datetime with a time zone")
    if not timedelta(0) < expiry - start <= timedelta(days=MAX_DAYS + 1):
        raise BrokerError(402, "EXPIRY_DATE", f"{expiry - start} after START_DATE", f"up to {MAX_DAYS} days after it")
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(subject)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - clock_skew)
        .not_valid_after(expiry)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=False)
    )
    if instance is not None:
        instance_uri = x509.UniformResourceIdentifier(f"{INSTANCE_URI_PREFIX}{instance}")
        builder = builder.add_extension(x509.SubjectAlternativeName([instance_uri]), critical=False)
    if predecessor is not None:
        succession = x509.UnrecognizedExtension(SUCCESSION_OID, sign(_succession(key.public_key()), predecessor))
        builder = builder.add_extension(succession, critical=False)
    return facts_of(builder.sign(key, hashes.SHA256())), key


def instance_of(der: bytes) -> UUID | None:
    """Return the identifier of the instance that a certificate names; None if it names no instance."""
    with suppress(x509.ExtensionNotFound, ValueError):
        names = x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        for name in names.value.get_values_for_type(x509.UniformResourceIdentifier):
            if name.startswith(INSTANCE_URI_PREFIX):
                return UUID(name.removeprefix(INSTANCE_URI_PREFIX))
    return None


def succeeds(der: bytes, previous: bytes) -> bool:
    """Check whether the previous certificate's key has signed the key of this certificate, which replaces it."""
    key, signer = public_key(der), public_key(previous)
    if key is None or signer is None:
        return False
    try:
        succession = x509.load_der_x509_certificate(der).extensions.get_extension_for_oid(SUCCESSION_OID).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return isinstance(succession, x509.UnrecognizedExtension) and is_signed(_succession(key), succession.value, signer)


def _succession(key: PublicKey) -> bytes:
    """Return the bytes that the key of the previous certificate signs."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return b"servicebroker succession 1" + key.public_bytes(serialization.Encoding.DER, form)


def _name(subject: object) -> x509.Name:
    if not isinstance(subject, str) or not subject.strip() or "\0" in subject:
        raise BrokerError(402, "SUBJECT", type(subject).__name__, "a str of at least one character, without NUL")
    try:
        return x509.Name.from_rfc4514_string(subject)
    except ValueError:
        try:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:MAX_SUBJECT_CHARACTERS])])
        except ValueError:
            raise BrokerError(
                402, "SUBJECT", "not valid in a certificate", "a name such as CN=shop, of at most 64 characters"
            ) from None


def read(data: bytes) -> Facts:
    """Return the certificate in a PEM or DER file.

    Raises:
        BrokerError: 15208 the file has no certificate, or it is too large.
    """
    try:
        is_pem = b"-----BEGIN" in data
        certificate = x509.load_pem_x509_certificate(data) if is_pem else x509.load_der_x509_certificate(data)
        facts = facts_of(certificate)
    except ValueError:
        raise BrokerError(15208, hint="It must be a certificate in PEM or DER.") from None
    if len(facts.der) > MAX_CERTIFICATE_BYTES:
        raise BrokerError(15208, hint=f"The certificate has more than {MAX_CERTIFICATE_BYTES:,} bytes.")
    return facts


def as_pem(der: bytes) -> bytes:
    """Return the certificate as PEM text."""
    return x509.load_der_x509_certificate(der).public_bytes(serialization.Encoding.PEM)


def facts_of_der(der: bytes) -> Facts:
    """Return the contents of a certificate in DER."""
    return facts_of(x509.load_der_x509_certificate(der))


def facts_of(certificate: x509.Certificate) -> Facts:
    """Return the contents of a certificate."""
    der = certificate.public_bytes(serialization.Encoding.DER)
    return Facts(
        der,
        hashlib.sha256(der).digest(),
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        f"{certificate.serial_number:x}",
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


# ---------------------------------------------------------------- keys


@lru_cache(maxsize=1_000)
def public_key(der: bytes) -> PublicKey | None:
    """Return the public key in a certificate; None if its kind is not supported."""
    key = x509.load_der_x509_certificate(der).public_key()
    return key if isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) else None


def sign(text: bytes, own: PrivateKey) -> bytes:
    """Sign bytes with ECDSA or RSA-PSS, and SHA-256."""
    if isinstance(own, rsa.RSAPrivateKey):
        return own.sign(text, _PSS, hashes.SHA256())
    return own.sign(text, ec.ECDSA(hashes.SHA256()))


def is_signed(text: bytes, signature: bytes, by: PublicKey) -> bool:
    """Verify the signature of bytes with the public key of the signer."""
    try:
        if isinstance(by, rsa.RSAPublicKey):
            by.verify(signature, text, _PSS, hashes.SHA256())
        else:
            by.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def read_key(data: bytes, password: str | None, certificate: Facts) -> PrivateKey:
    """Return the private key in a PEM or DER file, which must be the key of the certificate.

    Raises:
        BrokerError: 15465 wrong password, 15208 the file has no key, another key, or a key of an unsupported kind.
    """
    try:
        is_pem = b"-----BEGIN" in data
        load = serialization.load_pem_private_key if is_pem else serialization.load_der_private_key
        key = load(data, password.encode() if password is not None else None)
    except TypeError:
        raise BrokerError(15465) from None
    except ValueError as problem:
        # a wrong password yields valid padding once in 256 times, and then an invalid key
        is_wrong = "ncorrect password" in str(problem) or b"-----BEGIN ENCRYPTED" in data
        raise BrokerError(15465 if password is not None and is_wrong else 15208) from None
    public = x509.load_der_x509_certificate(certificate.der).public_key()
    if key.public_key() != public:
        raise BrokerError(15208, hint="The private key is not that of the certificate.")
    return checked_key(key)


def read_identity(pem: bytes) -> PrivateKey:
    """Return the key in a PEM file of the key folder. Its certificate follows in the same file."""
    return checked_key(serialization.load_pem_private_key(pem, None))


def certificate_in(pem: bytes) -> Facts | None:
    """Return the contents of the certificate in a PEM file of the key folder; None if it has none."""
    try:
        return facts_of(x509.load_pem_x509_certificate(pem))
    except ValueError:
        return None


def checked_key(key: object) -> PrivateKey:
    """Return the key if it is an elliptic curve key, or an RSA key of at least `MIN_RSA_BITS`.

    Raises:
        BrokerError: 15208 it is another kind of key.
    """
    if isinstance(key, ec.EllipticCurvePrivateKey) or (
        isinstance(key, rsa.RSAPrivateKey) and key.key_size >= MIN_RSA_BITS
    ):
        return key
    raise BrokerError(15208, hint=f"The key must be of an elliptic curve, or RSA with at least {MIN_RSA_BITS} bits.")


def key_bytes(key: PrivateKey) -> bytes:
    """Return the unencrypted private key as DER, for use in memory or to encrypt it."""
    return key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(der: bytes) -> PrivateKey:
    """Load a private key from the result of `key_bytes`."""
    return checked_key(serialization.load_der_private_key(der, None))


def key_pem(key: PrivateKey, password: str | None = None) -> bytes:
    """Return the private key as PEM text, encrypted if a password is given."""
    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        protection = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
