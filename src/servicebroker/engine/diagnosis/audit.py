"""The audit log: changes of definitions, recorded by triggers (`store/audit.sql`), and actions of operators."""

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


class AuditRecord(NamedTuple):
    """One audited action. `transaction` is the id of its transaction.

    `before` and `after` have the whole object for CREATE and DROP, only the changed columns for ALTER. Secrets and
    message bodies are left out.
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


def record_action(
    act: str, database: str, subject: str, after: Mapping[str, object], principal: str = ""
) -> Steps[None]:
    """Record an operator's action that changes no definition. `after` may not have message bodies or secrets.

    `principal` is the name of the acting principal. '' means the principal in the setting servicebroker.principal,
    which a transaction that changes definitions sets when it locks the catalog.
    """
    yield SQL(
        "record_action",
        (principal, client_kind(), act, database, subject, list(after), [str(value) for value in after.values()]),
    )


def find_records(
    since: datetime | None = None, principal: str = "", text: str = "", limit: int = 100
) -> Steps[list[AuditRecord]]:
    """Return the records from `since` on, latest first.

    `principal` is a part of a role's or principal's name. `text` is a part of the action, its database, its subject or
    its changes. Both are compared without case; '' matches all.
    """
    rows = yield SQL("find_records", (since, principal, text, limit))
    return [AuditRecord(*row[:-2], *(state and json.loads(state) for state in row[-2:])) for row in rows]


def delete_old_audit_rows(now: datetime) -> Steps[int]:
    """Delete up to `_DELETE_BATCH_ROWS` rows older than the retention time. Returns their number."""
    rows = yield Statement(
        "audit.delete_old_audit_rows",
        "delete from servicebroker.audit where audit_id = any (array(select audit_id from servicebroker.audit "
        "where at < least($1, clock_timestamp() - interval '1 s') - make_interval(secs => $2) "
        f"order by at limit {_DELETE_BATCH_ROWS})) returning 1",
        (now, AUDIT_RETENTION.total_seconds()),
    )
    return len(rows)
