"""What an operator does with a conversation, from a command or a page: the audit notes it in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.transaction import Transaction
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.audit import note


@contextmanager
def operating(database: Database, act: str, handle: UUID, **details: object) -> Iterator[Transaction]:
    """A transaction for an act on a conversation. A role that has the verbs only is not noted."""
    with database.transaction() as transaction:
        yield transaction
        if database.instance.engine is not RestrictedVerbs:
            transaction._do(note(act, database.name, str(handle), details, database.user.name))
