"""Committed messages that an older open transaction holds back: no stream may read them before it has ended."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import counted
from servicebroker.overriding import override

EXIT_CODE = 4  # exit code of a run that ends while messages are held back
DEFAULT_WAIT_S = 30.0  # wait of a run with an end for the transaction that holds messages back


class MessagesHeldBack(InstanceError):
    """The run has ended while committed messages were held back. They stay in their queue."""

    exit_code = EXIT_CODE


class Holder(NamedTuple):
    """The oldest open transaction of a server.

    Attributes:
        process: process id of its session in PostgreSQL; None for a prepared transaction.
        name: application of the session, or name of the prepared transaction.
        state: state of the session, for example "idle in transaction"; None for a prepared transaction.
        seconds: age of the transaction.
    """

    process: int | None
    name: str
    user: str
    database: str
    state: str | None
    seconds: int

    @override
    def __str__(self) -> str:
        details = f"user '{self.user}', database '{self.database}', open for {self.seconds:,} s"
        if self.process is None:
            return f"the prepared transaction '{self.name}' ({details})"
        return f"process {self.process} of the server (application '{self.name}', {details}, {self.state})"

    @property
    def advice(self) -> str:
        """A clause with the way to end the transaction."""
        if self.process is None:
            return "COMMIT PREPARED or ROLLBACK PREPARED ends it"
        return f"end it there, or by select pg_terminate_backend({self.process})"


class HeldBack(NamedTuple):
    """Committed messages of a queue that no stream may read before an older transaction has ended.

    The first check fixes `frontier`, `following` and `upto`. A later check counts which of these messages remain.

    Attributes:
        frontier: id of the oldest open transaction at the first check.
        following: the next transaction id to be assigned at the first check.
        upto: last queuing_order of the queue at the first check.
        messages: number of the messages up to `upto` that are still in the queue.
        holder: the oldest open transaction; None if it has ended, or if this role may not see it.
        is_open: a transaction is open now.
    """

    frontier: int
    following: int
    upto: int
    messages: int
    holder: Holder | None
    is_open: bool

    @override
    def __str__(self) -> str:
        messages = f"{counted(self.messages, 'committed message')} {'is' if self.messages == 1 else 'are'} held back"
        if self.holder is None and not self.is_open:
            return f"{messages} by a transaction that has ended meanwhile"
        return f"{messages} by {self.holder or 'an open transaction, which only pg_read_all_stats may see'}"

    @property
    def remedy(self) -> str:
        """A clause with the next steps of an operator."""
        return f"{self.holder.advice}, then run again" if self.holder else "run again once it has ended"
