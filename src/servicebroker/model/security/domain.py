"""The names of a domain and of its members, and the tokens by which it invites them (docs/decisions/155)."""

from __future__ import annotations

import re
from typing import NamedTuple, Self
from uuid import UUID

from servicebroker.model.errors import BrokerError, DomainError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._$-]{0,62}")
_NUMBER, _SECRET, _THUMBPRINT = 8, 24, 16  # bytes of the parts of a token


class Member(NamedTuple):
    """Who a certificate of a domain stands for; names are compared without case."""

    domain: str
    name: str
    instance: UUID

    @property
    def account(self) -> str:
        """The name of its login: DOMAIN\\member."""
        return account(self.domain, self.name)


class Token(NamedTuple):
    """What an invited member is given: the number of the invitation, its secret, and whose it is.

    `thumbprint` is the beginning of that of the authority. So the holder knows the domain when it sees it, and can
    prove to have the token without showing it.
    """

    number: bytes
    secret: bytes
    thumbprint: bytes

    @classmethod
    def make(cls, random: bytes, thumbprint: bytes) -> Self:
        """Out of `_NUMBER` + `_SECRET` random bytes."""
        return cls(random[:_NUMBER], random[_NUMBER : _NUMBER + _SECRET], thumbprint[:_THUMBPRINT])

    @classmethod
    def read(cls, text: str) -> Self:
        """What was printed.

        Raises:
            DomainError: it is no token.
        """
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        if len(data) != _NUMBER + _SECRET + _THUMBPRINT:
            raise DomainError("That is no token: copy the whole of what servicebroker domain invite has printed.")
        return cls.make(data, data[_NUMBER + _SECRET :])

    def is_of(self, thumbprint: bytes) -> bool:
        """Whether the domain with this authority has made it."""
        return thumbprint.startswith(self.thumbprint)

    def __str__(self) -> str:
        return b"".join(self).hex()


RANDOM = _NUMBER + _SECRET  # bytes that a token is made of


def account(domain: str, member: str) -> str:
    """DOMAIN\\member."""
    return f"{domain}\\{member}"


def check_account(name: str) -> None:
    """That a login FROM WINDOWS can name a member.

    Raises:
        BrokerError: 15407.
    """
    domain, _, member = name.partition("\\")
    if not domain or not member or "\\" in member:
        raise BrokerError(15407, name)


def checked_name(what: str, name: str) -> str:
    """The name of a domain or a member.

    Raises:
        DomainError: it cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise DomainError(
            f"The name of a {what} begins with a letter or a digit and has up to 63 letters, digits, '.', '_', '$' "
            f"and '-', not {name!r}."
        )
    return name


def usable_name(name: str) -> str:
    """A name of the machine or the operating system as one of a domain or a member."""
    return re.sub(r"[^A-Za-z0-9._$-]", "-", name).lstrip("._$-")[:63] or "unnamed"
