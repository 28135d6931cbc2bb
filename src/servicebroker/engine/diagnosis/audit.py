"""Who has defined what, and what operators have done. Triggers of the catalog note definitions (`store/audit.sql`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from servicebroker.model.faces import face
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import AUDIT_KEPT
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_AT_ONCE = 1000  # rows that go in one transaction


class Act(NamedTuple):
    """Something that was done; what was done in one transaction has one `transaction`.

    `before` and `after` are the object, or of a change what differs, without secrets and bodies.
    """

    number: int
    at: datetime
    transaction: int
    role: str
    principal: str
    face: str
    program: str
    address: str
    act: str
    database: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def note(act: str, database: str, subject: str, after: Mapping[str, object], principal: str = "") -> Steps[None]:
    """Note what an operator does that changes no definition. `after` has no body and no secret.

    `principal` is who works; '' is who has taken the lock of definitions in this transaction.
    """
    yield SQL(
        "note", (principal, face(), act, database, subject, list(after), [str(value) for value in after.values()])
    )


def find_acts(since: datetime | None = None, who: str = "", text: str = "", most: int = 100) -> Steps[list[Act]]:
    """What was done since then, the latest first. `who` is a part of a role's or principal's name.

    `text` is a part of the act, its database, its subject or what it has changed; '' is any, compared without case.
    """
    rows = yield SQL("find_acts", (since, who, text, most))
    return [Act(*row[:-2], *(known and json.loads(known) for known in row[-2:])) for row in rows]


def forget_old(now: datetime) -> Steps[int]:
    """Remove what is older than it is kept, some of it. Returns how many."""
    rows = yield Statement(
        "audit.forget_old",
        "delete from servicebroker.audit where audit_id = any (array(select audit_id from servicebroker.audit "
        "where at < least($1, clock_timestamp() - interval '1 s') - make_interval(secs => $2) "
        f"order by at limit {_AT_ONCE})) returning 1",
        (now, AUDIT_KEPT.total_seconds()),
    )
    return len(rows)
