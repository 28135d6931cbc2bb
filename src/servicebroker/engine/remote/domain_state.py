"""The instance's membership in a domain, as the daemon has last reported it.

The membership itself is in files (store/membership.py), which other processes may be unable to read.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class ReportedMembership(NamedTuple):
    """A reported membership. `account` is DOMAIN\\\\member. Account and certificate are None before the instance joins.

    `problem` is the text of a problem, '' for none.
    """

    account: str | None
    thumbprint: bytes | None
    start_date: datetime | None
    expiry_date: datetime | None
    problem: str


def report_membership(membership: ReportedMembership | None) -> Steps[None]:
    """Store the reported membership; None if the endpoint does not use a domain."""
    yield SQL("report_membership.delete_domain_membership")
    if membership is not None:
        yield SQL("report_membership.insert_domain_membership", membership)


def find_membership() -> Steps[ReportedMembership | None]:
    """Return the last report; None before the first."""
    rows = yield SQL("find_membership")
    return ReportedMembership(*rows[0]) if rows else None
