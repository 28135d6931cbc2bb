"""The names of a domain and of its members, and the tokens that invite members (docs/decisions/059)."""

from __future__ import annotations

import re
from typing import NamedTuple, Self
from uuid import UUID

from servicebroker.model.errors import BrokerError, DomainError
from servicebroker.overriding import override

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._$-]{0,62}")
_NUMBER_BYTES, _SECRET_BYTES, _THUMBPRINT_BYTES = 8, 24, 16  # bytes of the parts of a token


class Member(NamedTuple):
    """The member that a domain's certificate identifies. Names are compared without case."""

    domain: str
    name: str
    instance: UUID

    @property
    def account(self) -> str:
        """The name of its login: DOMAIN\\member."""
        return account(self.domain, self.name)


class Token(NamedTuple):
    """The token for an invited member: number and secret of the invitation, and the domain.

    `thumbprint` is the beginning of the authority's thumbprint. So the holder recognizes the domain, and can prove to
    have the token without showing it.
    """

    number: bytes
    secret: bytes
    thumbprint: bytes

    @classmethod
    def make(cls, random: bytes, thumbprint: bytes) -> Self:
        """Return a token made of `_NUMBER_BYTES` + `_SECRET_BYTES` random bytes."""
        return cls(
            random[:_NUMBER_BYTES],
            random[_NUMBER_BYTES : _NUMBER_BYTES + _SECRET_BYTES],
            thumbprint[:_THUMBPRINT_BYTES],
        )

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the token in a printed text.

        Raises:
            DomainError: the text is not a token.
        """
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        if len(data) != _NUMBER_BYTES + _SECRET_BYTES + _THUMBPRINT_BYTES:
            raise DomainError("That is not a token: copy all that servicebroker domain invite has printed.")
        return cls.make(data, data[_NUMBER_BYTES + _SECRET_BYTES :])

    def is_of(self, thumbprint: bytes) -> bool:
        """Return whether the domain with this authority has issued the token."""
        return thumbprint.startswith(self.thumbprint)

    @override
    def __str__(self) -> str:
        return b"".join(self).hex()


TOKEN_RANDOM_BYTES = _NUMBER_BYTES + _SECRET_BYTES  # random bytes in a token


def account(domain: str, member: str) -> str:
    """Return DOMAIN\\member."""
    return f"{domain}\\{member}"


def check_account(name: str) -> None:
    """Refuse a login name FROM WINDOWS that cannot name a member.

    Raises:
        BrokerError: 15407 such a name.
    """
    domain, _, member = name.partition("\\")
    if not domain or not member or "\\" in member:
        raise BrokerError(15407, name)


def checked_name(kind: str, name: str) -> str:
    """Check and return the name of a domain or a member.

    Raises:
        DomainError: it is not valid.
    """
    if not _NAME.fullmatch(name):
        raise DomainError(
            f"The name of a {kind} begins with a letter or a digit and has up to 63 letters, digits, '.', '_', '$' "
            f"and '-', not {name!r}."
        )
    return name


def usable_name(name: str) -> str:
    """Return a machine's or user's name, changed to a valid name of a domain or a member."""
    return re.sub(r"[^A-Za-z0-9._$-]", "-", name).lstrip("._$-")[:63] or "unnamed"
