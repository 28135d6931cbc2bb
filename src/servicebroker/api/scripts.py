"""T-SQL through the API: scripts on a database, and inside a transaction. The asyncio form is written by hand too.

T-SQL stands above the API and uses its databases and transactions. So the package sets `Interpreter.find`, which
imports T-SQL at its first use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from servicebroker.model.arguments import check_script

if TYPE_CHECKING:
    from servicebroker.api.database import Database
    from servicebroker.store.direct import DirectConnection
    from servicebroker.tsql.results import Results
    from servicebroker.tsql.session import Session


class Interpreter:
    """The T-SQL interpreter that runs scripts.

    Attributes:
        find: returns the class of T-SQL sessions; the package sets it.
    """

    find: Callable[[], type[Session]]


class Scripts:
    """T-SQL on a database, in a session of its own."""

    def execute_tsql(self, script: str, parameters: Mapping[str, object] | None = None) -> Results:
        """Run a T-SQL script, batch by batch, in a session of its own.

        Args:
            script: statements; a line with GO separates batches.
            parameters: variables of each batch by name, with or without @: int, str, bytes, UUID, Decimal, float,
                datetime, bool or None.

        Returns:
            The result sets, messages and row counts; `rows` are those of the last result set.

        Raises:
            TsqlError: the first error that no CATCH block took, with its number and line, when its batch is done. A
                transaction that the script has left open is rolled back.
        """
        check_script(script, parameters)
        with self.tsql_session() as session:
            return session.execute(script, parameters)

    def tsql_session(self) -> Session:
        """A T-SQL session to use in a `with` block: what its scripts open and set stays until the block ends."""
        return Interpreter.find()(self)  # type: ignore[arg-type] # a Database is what has this method


class TransactionScripts(ABC):
    """T-SQL inside a transaction that the application commits or rolls back."""

    database: Database
    connection: DirectConnection

    @abstractmethod
    def _send_deferred(self) -> None:
        """SENDs of a pipeline."""

    def execute_tsql(self, script: str, parameters: Mapping[str, object] | None = None) -> Results:
        """Run `Database.execute_tsql` in this transaction: BEGIN and COMMIT in the script only change @@TRANCOUNT.

        Raises:
            TsqlError: as there; also for ROLLBACK without a savepoint, since the transaction is yours.
        """
        check_script(script, parameters)
        self._send_deferred()  # before the savepoints of the script
        with Interpreter.find()(self.database, connection=self.connection) as session:
            return session.execute(script, parameters)
