"""The messages between a daemon and the child process of a share (partition): plain values, sent over a pipe in order.

The daemon sends `Begin`, then a `Round` for each round, and `None` for the end. The process answers with its program,
`Session` and `Done`, then with `Done` for each round. While a round runs it may send a `Question`, which the daemon
answers. `Failed` takes the place of any answer, and is the last message.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from servicebroker.broker import metrics
from servicebroker.broker.forwarding import Row
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.division import Division
from servicebroker.store.statement_counts import DatabaseKey

TO_LINKS, TO_PEERS, TO_LOG = "links", "peers", "log"  # addressees of a call; a link is addressed by its number


class Begin(NamedTuple):
    """The order to begin. The process sends its program, connects to the database, and sends `Session` and `Done`.

    Attributes:
        follows: the process replaces a killed one, whose last commit may not have reached the standby.
    """

    url: str
    keys: Path | None
    division: Division
    level: int  # of the log
    follows: bool


class Session(NamedTuple):
    """The database session of a child process."""

    pid: int
    began: datetime


class Round(NamedTuple):
    """The input of a round that only the daemon knows.

    Attributes:
        time: of the daemon's clock, and the reading of a counter of seconds that all processes share.
        here: the identity of this instance in routes; None if unchanged since the last round.
        version: of the daemon's knowledge of peers.
        rooms: bytes that a link accepts, by its number, for the links that the round will probably use.
        events: calls of the relay: method and arguments.
        arrivals: received frames: number and owner of the link, the body, whether it was forwarded.
    """

    time: tuple[datetime, float]
    here: LocalInstance | None
    proves: bool
    version: int
    rooms: dict[int, int]
    events: list[tuple[str, tuple[Any, ...]]]
    arrivals: list[tuple[int, str, bytes, bool]]


class Question(NamedTuple):
    """A question of the process about links or peers. `what` names the value, `about` its subject."""

    what: str
    about: Any


class DaemonCall(NamedTuple):
    """A call that the daemon makes: of a link, by its number, or of the links, the peers or the log."""

    addressee: int | str
    method: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]


class StatusMessage(NamedTuple):
    """The state of a process, sent once a second.

    Attributes:
        remembered: conversations in memory.
        held: the number of forwarded messages, and their bytes.
        forwarded: rows of sys.dm_broker_forwarded_messages.
        counted: metrics since the last message.
        statements: counts and seconds of SQL statements.
    """

    remembered: int
    held: tuple[int, int]
    forwarded: Sequence[Row]
    counted: metrics.Counted
    statements: tuple[DatabaseKey, dict[str, tuple[int, float]]]


class Done(NamedTuple):
    """The result of a committed round."""

    handled: int
    wake_at: float
    calls: list[DaemonCall]
    status: StatusMessage | None


class Failed(NamedTuple):
    """The failure of a round. The process ends.

    Attributes:
        is_of_database: the database or the instance has caused it, not a bug.
        is_deadline: a statement has missed its deadline.
    """

    is_of_database: bool
    is_deadline: bool
    text: str
    trace: str


class ProcessExited(InstanceError):
    """The error that a child process has exited without a report."""

    def __init__(self) -> None:
        super().__init__("The process of a share has ended.")


class MissedDeadline(InstanceError):
    """The error that a statement of a child process has missed its deadline."""


class Unstartable(InstanceError):
    """The error that no child process can be started."""
