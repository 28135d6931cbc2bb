"""What a certificate says of itself; and what keys are sealed for."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

MASTER_KEY, PRIVATE_KEY, SESSION_KEY = "master key", "private key", "session key"  # each opens in no other's place


class Facts(NamedTuple):
    """A certificate as it was read. `thumbprint` is the SHA-256 of `der`; dates are UTC."""

    der: bytes
    thumbprint: bytes
    subject: str
    issuer_name: str
    serial_number: str
    start_date: datetime
    expiry_date: datetime

    def is_valid(self, now: datetime) -> bool:
        """Whether its time has come and is not over."""
        return self.start_date <= now < self.expiry_date
