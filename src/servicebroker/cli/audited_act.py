"""Acts of an operator on a conversation, from a command or a page, recorded for audit in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.transaction import Transaction
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.audit import record_action


@contextmanager
def audited(database: Database, act: str, handle: UUID, **details: object) -> Iterator[Transaction]:
    """Run an act on a conversation in a transaction that records it. Acts of restricted roles are not recorded."""
    with database.transaction() as transaction:
        yield transaction
        if database.instance.engine is not RestrictedVerbs:
            transaction._do(record_action(act, database.name, str(handle), details, database.user.name))
