"""The security of a conversation with another instance: the table of docs/reference/rules.md#dialog-security.

Inside an instance nothing is encrypted, and a binding only decides which principal acts
(`engine/delivery/impersonation.py`). For some cells the reference says both that the conversation fails and that its
messages wait. Here they wait, with the reason in transmission_status (docs/decisions/086).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeVar

from servicebroker.model.security.certificates import Facts


class Security(StrEnum):
    """The protection of a conversation.

    NONE: no encryption. ANONYMOUS: encrypted, and the initiator is not identified. FULL: encrypted, and both sides are
    identified.
    """

    NONE = "N"
    ANONYMOUS = "A"
    FULL = "F"


class Binding(StrEnum):
    """The kind of the remote service binding for the target service."""

    NO_BINDING = "no binding"
    ANONYMOUS_ON = "ANONYMOUS = ON"
    ANONYMOUS_OFF = "ANONYMOUS = OFF"


NO_BINDING, NO_CERTIFICATE = 9727, 9731  # error numbers in transmission_status
NO_SERVICE_MASTER_KEY = 32  # the error code in the text of 28054

# (has_certificate: the owner of the initiating service, encryption: ENCRYPTION = ON, binding) -> protection or error
TABLE: dict[tuple[bool, bool, Binding], Security | int] = {
    (True, True, Binding.NO_BINDING): NO_BINDING,
    (True, True, Binding.ANONYMOUS_ON): Security.ANONYMOUS,
    (True, True, Binding.ANONYMOUS_OFF): Security.FULL,
    (True, False, Binding.NO_BINDING): Security.NONE,
    (True, False, Binding.ANONYMOUS_ON): Security.ANONYMOUS,
    (True, False, Binding.ANONYMOUS_OFF): Security.FULL,
    (False, True, Binding.NO_BINDING): NO_BINDING,
    (False, True, Binding.ANONYMOUS_ON): Security.ANONYMOUS,
    (False, True, Binding.ANONYMOUS_OFF): NO_CERTIFICATE,
    (False, False, Binding.NO_BINDING): Security.NONE,
    (False, False, Binding.ANONYMOUS_ON): Security.ANONYMOUS,
    (False, False, Binding.ANONYMOUS_OFF): NO_CERTIFICATE,
}


class Candidate(Protocol):
    """A certificate that a conversation may use."""

    @property
    def is_active_for_begin_dialog(self) -> bool:
        """True if new conversations may use the certificate."""
        ...

    @property
    def facts(self) -> Facts:
        """The contents of the certificate."""
        ...


C = TypeVar("C", bound=Candidate)


def choose(certificates: Sequence[C], now: datetime) -> C | int:
    """Return the valid and active certificate of a user with the latest expiry.

    If there is none, return the error number: 9731, or 9767 if the valid ones are not active.
    """
    valid = [certificate for certificate in certificates if certificate.facts.is_valid(now)]
    active = [certificate for certificate in valid if certificate.is_active_for_begin_dialog]
    if not active:
        return 9767 if valid else NO_CERTIFICATE
    return max(active, key=lambda certificate: certificate.facts.expiry_date)
