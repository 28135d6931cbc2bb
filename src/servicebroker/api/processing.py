# Made from aio/processing.py by tools/make_sync.py: change that file, then run `make sync`.
"""A procedure that is run on what RECEIVE takes, each time as a transaction; COMMIT travels with the next RECEIVE."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from servicebroker.api import tracing
from servicebroker.api.guarded import Guard
from servicebroker.api.transaction import Transaction, translated
from servicebroker.model.messages import Message
from servicebroker.model.poison import Policy
from servicebroker.store.direct import DirectConnection

if TYPE_CHECKING:
    from servicebroker.api.database import Database

Procedure: TypeAlias = Callable[[Transaction, list[Message]], object]


def process(
    database: Database,
    queue: str,
    procedure: Procedure,
    *,
    top: int | None,
    wait: float,
    poison: Policy | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """`Database.process`, which also ends between two transactions once `stopping` says so."""
    guard = None if poison is None else Guard(database, queue, poison)
    done = 0

    def once() -> int:
        nonlocal done
        taken = _drain(database, queue, procedure, top, guard, stopping)
        done += taken
        return taken

    database._waiting(queue, once, 0 if top == 0 else wait, choosy=False, enough=lambda _: stopping())
    return done


def _drain(
    database: Database,
    queue: str,
    procedure: Procedure,
    top: int | None,
    guard: Guard | None,
    stopping: Callable[[], bool],
) -> int:
    """Process what the queue has, on one connection: how many messages those were."""
    done = 0
    there = database._find(queue)

    def first(transaction: Transaction, messages: list[Message]) -> None:
        database.instance.doorbell.share(there.queue_id)
        procedure(transaction, messages)

    with database.instance.connection() as connection, translated(also_theirs=True):

        def take() -> int:
            if guard is not None:
                return guard.take(connection, top, procedure if done else first)
            return _take(database, connection, queue, procedure if done else first, top)

        try:
            while taken := take():
                done += taken
                if stopping():
                    with Transaction(database, connection):
                        pass  # the last COMMIT, which would have travelled with the next RECEIVE
                    break
            if guard is not None:
                guard.rest(connection)
        finally:
            database.instance.poison.unanswered(connection)
    return done


def _take(database: Database, connection: DirectConnection, queue: str, procedure: Procedure, top: int | None) -> int:
    with Transaction(database, connection) as transaction:
        messages = transaction.receive(queue, top=top)
        if messages:
            with tracing.current(transaction._processing):
                procedure(transaction, messages)
            transaction._let_commit_travel()
    return len(messages)
