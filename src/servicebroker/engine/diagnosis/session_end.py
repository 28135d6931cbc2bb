"""The end of a PostgreSQL session by an operator."""

from __future__ import annotations

from servicebroker.engine.diagnosis.audit import record_action
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


def end_session(pid: int) -> Steps[bool]:
    """End a client session of this database, and record it in the audit log. Returns False if it does not exist.

    PostgreSQL allows it to superusers, and to members of the session's role or of pg_signal_backend.
    """
    rows = yield SQL("end_session", (pid,))
    if not rows:
        return False
    role, application = rows[0]
    yield from record_action("END SESSION", "", str(pid), {"role": role, "application": application})
    return True
