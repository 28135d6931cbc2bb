"""The audit: who changed definitions, and what operators did. Triggers record definitions (`store/audit.sql`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from servicebroker.model.client_kind import client_kind
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import AUDIT_RETENTION
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_DELETE_BATCH_ROWS = 1000  # rows deleted in one transaction


class Act(NamedTuple):
    """An audited action; all actions of one transaction have the same `transaction`.

    `before` and `after`: the object, or of a change only the changed columns; without secrets and bodies.
    """

    number: int
    at: datetime
    transaction: int
    role: str
    principal: str
    client_kind: str
    program: str
    address: str
    act: str
    database: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def note(act: str, database: str, subject: str, after: Mapping[str, object], principal: str = "") -> Steps[None]:
    """Record an operator's act that changes no definition. `after` has no body and no secret.

    `principal` is the acting one; '' stands for the one that has taken the lock of definitions in this transaction.
    """
    yield SQL(
        "note",
        (principal, client_kind(), act, database, subject, list(after), [str(value) for value in after.values()]),
    )


def find_acts(since: datetime | None = None, who: str = "", text: str = "", most: int = 100) -> Steps[list[Act]]:
    """Return acts since then, latest first. `who` is a part of a role's or principal's name.

    `text` is a part of the act, its database, its subject or its changes, compared without case; '' matches all.
    """
    rows = yield SQL("find_acts", (since, who, text, most))
    return [Act(*row[:-2], *(known and json.loads(known) for known in row[-2:])) for row in rows]


def forget_old(now: datetime) -> Steps[int]:
    """Remove some of the rows beyond the retention time. Returns their number."""
    rows = yield Statement(
        "audit.forget_old",
        "delete from servicebroker.audit where audit_id = any (array(select audit_id from servicebroker.audit "
        "where at < least($1, clock_timestamp() - interval '1 s') - make_interval(secs => $2) "
        f"order by at limit {_DELETE_BATCH_ROWS})) returning 1",
        (now, AUDIT_RETENTION.total_seconds()),
    )
    return len(rows)
