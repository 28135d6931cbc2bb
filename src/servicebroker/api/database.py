"""A broker database: its objects, its transactions, and the verbs outside of a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from servicebroker.api.transaction import JoinedTransaction, Transaction, translated
from servicebroker.api.verbs import Verbs
from servicebroker.engine import catalog
from servicebroker.engine.transmission import deliver_to_service
from servicebroker.store.statements import Steps, run_alone

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance

T = TypeVar("T")


class Database(Verbs):
    """One broker database of an instance. A verb called here is a transaction of its own.

    Attributes:
        instance: the instance it belongs to.
        database_id: its number in the catalog.
        name: as it was given.
    """

    def __init__(self, instance: Instance, database_id: int, name: str) -> None:
        self.instance = instance
        self.database_id = database_id
        self.name = name

    @property
    def database(self) -> Database:  # type: ignore[override] # read-only here
        """The database itself."""
        return self

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction: committed at the end of the block, rolled back by an exception.

        Its `connection` is a psycopg connection, for the application's own tables in the same transaction.
        """
        with self.instance.connection() as connection, translated(), Transaction(self, connection) as transaction:
            yield transaction

    def join(self, connection: psycopg.Connection[Any]) -> JoinedTransaction:
        """The verbs on a psycopg connection of the application: they belong to the transaction open there.

        The connection must lead to this instance's PostgreSQL database, at READ COMMITTED.
        """
        return JoinedTransaction(self, connection)

    def create_message_type(self, name: str, validation: str = "NONE") -> None:
        """CREATE MESSAGE TYPE; `validation` is NONE, EMPTY or WELL_FORMED_XML.

        Raises:
            BrokerError: 2714 name taken, 402 unknown validation.
        """
        self._define(catalog.create_message_type(self.database_id, name, validation))

    def create_contract(self, name: str, sent_by: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        """CREATE CONTRACT; `sent_by` maps each message type to INITIATOR, TARGET or ANY.

        Raises:
            BrokerError: 8403, 8492, 15151 unknown message type, 2714 name taken.
        """
        self._define(catalog.create_contract(self.database_id, name, sent_by))

    def create_queue(self, name: str) -> None:
        """CREATE QUEUE; readable by SELECT as `<database>_<schema>.<queue>` in lower case.

        Raises:
            BrokerError: 2714 name taken, 9609, 15151 name with #.
        """
        self._define(catalog.create_queue(self.database_id, name))

    def create_service(self, name: str, queue: str, contracts: Iterable[str] = ()) -> None:
        """CREATE SERVICE on a queue, as a target of `contracts`. Messages that wait for it are delivered.

        Raises:
            BrokerError: 8404, 15151 unknown queue or contract, 2714 name taken.
        """

        def steps() -> Steps[None]:
            found = yield from catalog.find_queue(self.instance.catalog, self.database_id, queue)
            yield from catalog.create_service(self.database_id, name, found.queue_id, contracts)
            yield from deliver_to_service(self.instance.catalog, name)

        self._define(steps())

    def _define(self, steps: Steps[Any]) -> None:
        with self.transaction() as transaction:
            transaction._do(steps)

    def _do(self, steps: Steps[T]) -> T:
        with self.instance.connection() as connection, translated():
            return run_alone(connection, steps)

    def _received(self, queue_id: int, transaction: int) -> None:
        self.instance.poison.committed([queue_id])
