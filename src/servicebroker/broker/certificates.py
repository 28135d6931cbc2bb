"""Certificates of the transport as X.509: made, read, and their private keys in files that only the owner may read.

A private key never stands in the database: whoever may read every table there, or a dump of it, could be us.
"""

from __future__ import annotations

import hashlib
import os
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from servicebroker.engine.transport_certificates import Facts
from servicebroker.model.errors import BrokerError, InstanceError

DAYS = 365  # how long a new certificate is valid
SKEW = timedelta(minutes=10)  # it is valid from so long ago, for clocks that are behind
LARGEST = 32_767  # bytes of a certificate (reference 03 section 9)
LONGEST_SUBJECT = 64  # characters of a common name


def make(name: str, now: datetime, days: int = DAYS) -> tuple[Facts, bytes]:
    """A new key on the curve P-256 and a certificate that it signs itself; the PEM text holds both.

    Raises:
        BrokerError: 402 when it would be valid for less than a day or more than a hundred years.
    """
    if not 1 <= days <= 36_500:
        raise BrokerError(402, "EXPIRY_DATE", f"{days} days away", "1 to 36500 days away")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:LONGEST_SUBJECT])])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    start = now.replace(microsecond=0) - SKEW
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + SKEW + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _facts(certificate), secret + certificate.public_bytes(serialization.Encoding.PEM)


def read(data: bytes) -> Facts:
    """The certificate in a PEM or DER file.

    Raises:
        BrokerError: 15208 when it holds none, or one that is too large.
    """
    try:
        is_pem = b"-----BEGIN" in data
        certificate = x509.load_pem_x509_certificate(data) if is_pem else x509.load_der_x509_certificate(data)
        facts = _facts(certificate)
    except ValueError:
        raise BrokerError(15208) from None
    if len(facts.der) > LARGEST:
        raise BrokerError(15208)
    return facts


def as_pem(der: bytes) -> str:
    """The certificate as text."""
    return x509.load_der_x509_certificate(der).public_bytes(serialization.Encoding.PEM).decode()


def _facts(certificate: x509.Certificate) -> Facts:
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


class KeyFolder:
    """The private keys of an instance: a file for each certificate, which holds both."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, thumbprint: bytes) -> Path:
        """Where the key of that certificate is, or would be."""
        return self.path / f"{thumbprint.hex()}.pem"

    def write(self, thumbprint: bytes, pem: bytes) -> None:
        """Keep a key; nobody but the owner may read it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.file(thumbprint), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(descriptor)

    def find(self, thumbprint: bytes) -> Path | None:
        """The file with the key; None when it is not here.

        Raises:
            InstanceError: others than the owner may read it.
        """
        file = self.file(thumbprint)
        if not file.is_file():
            return None
        if file.stat().st_mode & 0o077:
            raise InstanceError(f"Others may read the private key in {file}: make it yours alone with chmod 600.")
        return file

    def remove(self, thumbprint: bytes) -> None:
        """Forget a key."""
        self.file(thumbprint).unlink(missing_ok=True)
