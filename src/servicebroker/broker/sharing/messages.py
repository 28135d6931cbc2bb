"""The messages between a daemon and the process of a share: plain values, which a pipe carries in their order.

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
from servicebroker.store.statement_counts import Place

TO_LINKS, TO_PEERS, TO_LOG = "links", "peers", "log"  # addressees of a call, beside links


class Begin(NamedTuple):
    """The order to begin. The process sends its program, connects to the database, and sends `Session` and `Done`.

    Attributes:
        follows: one that was killed, whose last commit may not have reached the standby.
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
        time: of the daemon's clock, and the moment of that, which is the same in all processes.
        here: None while it is what was said last.
        version: of what is known of peers.
        rooms: of links, by number: those of which it is likely to be asked.
        happened: calls of the relay.
        arrivals: number and owner of the link, the body, whether it was forwarded.
    """

    time: tuple[datetime, float]
    here: LocalInstance | None
    proves: bool
    version: int
    rooms: dict[int, int]
    happened: list[tuple[str, tuple[Any, ...]]]
    arrivals: list[tuple[int, str, bytes, bool]]


class Question(NamedTuple):
    """A process wants to know something of the links or the peers."""

    what: str
    about: Any


class DaemonCall(NamedTuple):
    """A call that the daemon is to make: of a link by its number, or of the links, the peers, the log."""

    whom: int | str
    method: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]


class StatusMessage(NamedTuple):
    """The state of a process, once a second: what it remembers and holds, and its counts since the last one."""

    remembered: int
    held: tuple[int, int]
    forwarded: Sequence[Row]
    counted: metrics.Counted
    statements: tuple[Place, dict[str, tuple[int, float]]]


class Done(NamedTuple):
    """The result of a committed round."""

    carried: int
    wake_at: float
    told: list[DaemonCall]
    seen: StatusMessage | None


class Failed(NamedTuple):
    """The failure of a round; the process ends."""

    is_of_database: bool
    text: str
    trace: str


class ProcessExited(InstanceError):
    """The error that a child process has exited without a report."""

    def __init__(self) -> None:
        super().__init__("The process of a share has ended.")


class Unstartable(InstanceError):
    """No process can be had that does what this one asks for."""
