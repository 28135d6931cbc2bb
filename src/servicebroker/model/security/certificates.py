"""The contents of a certificate, and the purposes for which keys are sealed."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

MASTER_KEY, PRIVATE_KEY, SESSION_KEY = (
    "master key",
    "private key",
    "session key",
)  # a key that was sealed for one purpose cannot be opened for another


class Facts(NamedTuple):
    """The contents of a certificate. `thumbprint` is the SHA-256 of `der`; dates are UTC."""

    der: bytes
    thumbprint: bytes
    subject: str
    issuer_name: str
    serial_number: str
    start_date: datetime
    expiry_date: datetime

    def is_valid(self, now: datetime) -> bool:
        """Return whether the certificate is valid at `now`."""
        return self.start_date <= now < self.expiry_date
