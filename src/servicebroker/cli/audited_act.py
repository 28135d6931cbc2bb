"""Actions of an operator on a conversation, recorded in the audit log in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.transaction import Transaction
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.audit import record_action

END_ERROR, END_DESCRIPTION = (
    127,
    "Unable to process message.",
)  # the usual error of a conversation that an operator ends


@contextmanager
def audited_transaction(database: Database, action: str, handle: UUID, **details: object) -> Iterator[Transaction]:
    """Yield a transaction for an action on a conversation, and record the action at its end.

    Actions of restricted roles are not recorded, since these roles cannot write the audit log.
    """
    with database.transaction() as transaction:
        yield transaction
        if database.instance.engine is not RestrictedVerbs:
            transaction._do(record_action(action, database.name, str(handle), details, database.user.name))


def end_with_error(database: Database, handle: UUID, code: int, text: str) -> None:
    """End a conversation with an error, which its other side gets, and record it."""
    with audited_transaction(database, "END CONVERSATION WITH ERROR", handle, code=code, text=text) as transaction:
        transaction.end_conversation(handle, error=(code, text))
