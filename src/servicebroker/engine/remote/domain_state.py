"""The instance's state in its domain, as last reported by the daemon, for processes that cannot read its files.

The membership itself is in those files (store/membership.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class ToldMembership(NamedTuple):
    """A reported membership. `account` is DOMAIN\\\\member; it and the certificate are None before there is one.

    `problem`: '' if all is well.
    """

    account: str | None
    thumbprint: bytes | None
    start_date: datetime | None
    expiry_date: datetime | None
    problem: str


def tell_membership(membership: ToldMembership | None) -> Steps[None]:
    """Store the reported membership; None if the endpoint asks for no domain."""
    yield SQL("tell_membership.delete_domain_membership")
    if membership is not None:
        yield SQL("tell_membership.insert_domain_membership", membership)


def find_membership() -> Steps[ToldMembership | None]:
    """Return the last report; None before the first."""
    rows = yield SQL("find_membership")
    return ToldMembership(*rows[0]) if rows else None
