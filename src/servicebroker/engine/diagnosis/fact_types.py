"""The facts for doctor, as values. `facts.py` reads them; the modules named `..._findings` find problems in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.conversation.requests import LateAnswerCount
from servicebroker.engine.diagnosis.publications import BlockingPublication
from servicebroker.engine.diagnosis.queue_counts import DeadLettersOfQueue, ProcessStatus
from servicebroker.engine.diagnosis.tds_clients import TdsRefusalCount, TdsServerStatus
from servicebroker.engine.diagnosis.worker_limits import WorkerLimits
from servicebroker.engine.diagnosis.wrong_clocks import WrongClock
from servicebroker.engine.remote.domain_state import ReportedMembership
from servicebroker.engine.remote.refusals import RefusalRecord
from servicebroker.engine.remote.unfinished_arrivals import UnfinishedOfPeer
from servicebroker.engine.security.certificate_ages import UsedCertificate
from servicebroker.model.daemon_reports import DaemonReport
from servicebroker.store.lock_functions import LockRights

LONG_WAIT = timedelta(minutes=1)  # an older open transaction or unreceived message is reported
REFUSAL_AGE = timedelta(hours=1)  # older refusals are not reported
# a session with a larger part of the server's lock table is reported; likewise a fuller notification queue
NOTABLE_SHARE = 0.5
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")


class QueueFacts(NamedTuple):
    """A queue of an application. `oldest` is the time of its oldest message. `hosted`: a process runs its monitor."""

    name: str
    is_on: bool
    messages: int
    oldest: datetime | None
    readers: int  # sessions that wait in a RECEIVE
    holders: int  # sessions with received messages in an open transaction
    is_activated: bool
    procedure: str | None
    max_readers: int | None
    hosted: bool
    is_piped: bool  # a pipeline reads it
    failing: int
    notifies: bool = False  # event notifications for QUEUE_ACTIVATION take the place of a procedure
    monitor: str | None = None  # the state of its monitor
    activated_at: datetime | None = None  # time of the last request for a reader
    tasks: int = 0  # running activated procedures
    is_for_callers: bool = False  # all its messages are answers to requests, whose callers may receive them
    limits: WorkerLimits | None = None  # the limits of all its workers together


class DaemonFacts(NamedTuple):
    """The session of the serving daemon. `since`: when it became active or idle, if this role may see it."""

    pid: int
    state: str | None
    since: datetime | None
    reports: Sequence[DaemonReport] = ()
    awaits_standby: bool = False  # its commit waits for the synchronous standby


class CommitFacts(NamedTuple):
    """Commits that wait for the synchronous standby: their number, and since when the first one waits.

    `has_standby`: one of the named standbys is connected, or this role may not see that.
    """

    standby_names: str = ""  # synchronous_standby_names
    synchronous_commit: str = "on"  # the setting of this role
    has_standby: bool = True
    waiting: int = 0
    since: datetime | None = None


class TableLockFacts(NamedTuple):
    """A session that has locked tables of the broker against writes: one table, and their number.

    `since` is the start of its transaction.
    """

    pid: int
    role: str
    application: str
    table: str
    tables: int
    since: datetime | None


class HostFacts(NamedTuple):
    """A server of a URL with several hosts: its role, the identifier of its cluster (`system`), and its timeline."""

    host: str
    is_standby: bool
    system: str
    timeline: int


class FailedQueryFacts(NamedTuple):
    """A query for facts that has failed: its subject, and the reason. `is_cut`: it was cancelled at its deadline."""

    subject: str
    reason: str
    is_cut: bool


class WaitFacts(NamedTuple):
    """Messages in the transmission queue to one service with one reason: their number, and the time of the oldest.

    `example` is one of their conversations, with its database. `similar` is a service with a similar name, if the
    instance has no service of this name.
    """

    to_service: str
    status: str
    messages: int
    oldest: datetime
    example: tuple[UUID, str] | None = None
    similar: str | None = None


class SessionFacts(NamedTuple):
    """A session with an open transaction, and the number of conversation groups it has locked."""

    pid: int
    application: str
    state: str
    since: datetime
    query: str
    groups: int
    role: str = ""


class BlockerFacts(NamedTuple):
    """A session with a lock of the broker for which other sessions wait, and what the lock protects."""

    pid: int
    role: str
    application: str
    lock: str
    waiting: int
    since: datetime


class HolderFacts(NamedTuple):
    """A session of an unrelated role that holds locks of the broker, or waits for them.

    `prepared` is the name of a prepared transaction, which has no session. `since` is the start of the session or the
    time of PREPARE, if visible: PostgreSQL does not record when a lock was taken.
    """

    pid: int
    prepared: str
    role: str
    application: str
    locks: int
    kinds: str
    since: datetime | None


class HoarderFacts(NamedTuple):
    """A session with a large part of the server's lock table: the number of its locks, and of possible locks."""

    pid: int
    role: str
    application: str
    taken: int
    possible: int


class SnapshotFacts(NamedTuple):
    """A session with an old snapshot. `age`: the number of transactions since; its start time is not visible."""

    pid: int
    role: str
    application: str
    age: int


class ConnectionFacts(NamedTuple):
    """The server's connections, their limit, and the role with the most connections.

    `notifications` is the used part of the server's notification queue, 0 to 1.
    """

    used: int = 0
    possible: int = 1
    role: str = ""
    of_role: int = 0
    notifications: float = 0.0


class NeighbourFacts(NamedTuple):
    """Other roles and sessions of the PostgreSQL server that affect the instance.

    Attributes:
        trespassers: roles with rights on the broker's tables: the role, some of its rights, and their number.
        able: roles that can take locks of the broker and need none.
        lock_rights: which roles may call the advisory lock functions.
    """

    trespassers: Sequence[tuple[str, str, int]] = ()
    blockers: Sequence[BlockerFacts] = ()
    snapshots: Sequence[SnapshotFacts] = ()
    connections: ConnectionFacts = ConnectionFacts()
    holders: Sequence[HolderFacts] = ()
    hoarders: Sequence[HoarderFacts] = ()
    able: Sequence[str] = ()
    lock_rights: LockRights = LockRights(False, False, (), False, ())


class PeerFacts(NamedTuple):
    """False claims of a peer (model/security/peers.py, `Mistrust`): their number, and the latest detail.

    `certificate` is the name of one of its owner's certificates.
    """

    owner: str
    claim: str
    times: int
    last: datetime
    detail: str
    certificate: str | None


class DisputeFacts(NamedTuple):
    """Several peers claim to be the instance `instance`, and none was accepted: the names of their certificates."""

    instance: UUID
    certificates: list[str]


class OldCopyFacts(NamedTuple):
    """Conversations whose sides disagree because one database was restored: that of this instance if `is_here`."""

    database: str
    own_broker: UUID
    peer_broker: str
    is_here: bool
    far_service: str
    times: int
    last: datetime
    detail: str


class Facts(NamedTuple):
    """The facts about an instance: its configuration and its current state."""

    now: datetime
    disabled: Sequence[str] = ()  # databases with a disabled broker
    queues: Sequence[QueueFacts] = ()
    waits: Sequence[WaitFacts] = ()
    sessions: Sequence[SessionFacts] = ()
    certificates: Sequence[UsedCertificate] = ()
    settings: Mapping[str, str] = MappingProxyType({})
    daemon: DaemonFacts | None = None
    endpoint: str | None = None  # its state
    remote_routes: int = 0
    in_recovery: bool = False
    is_public: bool = False  # CONNECT on the endpoint is granted to public
    membership: ReportedMembership | None = None
    neighbours: NeighbourFacts = NeighbourFacts()
    changed: tuple[str, ...] = ()  # objects of the broker's schema that were changed by other means
    is_foreign: bool = False  # True if another server has created the objects, so that they cannot be compared
    encryption: str | None = None  # the endpoint's encryption
    peers: Sequence[PeerFacts] = ()
    disputes: Sequence[DisputeFacts] = ()
    old_copies: Sequence[OldCopyFacts] = ()
    refusals: Sequence[RefusalRecord] = ()  # the refusals of the last hour
    clocks: Sequence[WrongClock] = ()
    processes: Sequence[ProcessStatus] = ()
    publications: Sequence[BlockingPublication] = ()
    unfinished: Sequence[UnfinishedOfPeer] = ()
    late: Sequence[LateAnswerCount] = ()
    commits: CommitFacts = CommitFacts()
    table_locks: Sequence[TableLockFacts] = ()
    tds_servers: Sequence[TdsServerStatus] = ()
    tds_refusals: Sequence[TdsRefusalCount] = ()
    dead_letters: Sequence[DeadLettersOfQueue] = ()


class ConversationFacts(NamedTuple):
    """The facts about one endpoint of a conversation, its queue, and its peer."""

    now: datetime
    handle: UUID
    state: str
    far_service: str
    lifetime: datetime
    queue: str
    is_on: bool
    messages: int  # the conversation's messages in its own queue
    oldest: datetime | None
    waits: int  # sent, but not delivered
    status: str
    peer_queue: str  # '' if the other side is not in this instance
    peer_messages: int
    holders: list[SessionFacts]  # the sessions that hold its group's lock
    failures: int
    last_error: str
    held_until: datetime | None
    error: tuple[int, str] | None  # the code and description of an unread Error message
    readers: int
    is_activated: bool
    sent: datetime | None = None  # the time of the oldest undelivered message
    delayed_until: datetime | None = None  # the delay of the first undelivered message, behind which the others wait
    peer_is_on: bool = True
    peer_readers: int = 0
    peer_is_activated: bool = False
