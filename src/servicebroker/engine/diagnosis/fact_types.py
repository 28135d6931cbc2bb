"""The facts that doctor judges, as values: `facts.py` reads them, and the modules named `..._findings` judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.conversation.requests import LateAnswersOfQueue
from servicebroker.engine.diagnosis.publications import BlockingPublication
from servicebroker.engine.diagnosis.queue_counts import ProcessStatus
from servicebroker.engine.diagnosis.wrong_clocks import WrongClock
from servicebroker.engine.remote.domain_state import ToldMembership
from servicebroker.engine.remote.refusals import RefusalRecord
from servicebroker.engine.remote.unfinished_arrivals import UnfinishedOfPeer
from servicebroker.engine.security.certificate_ages import UsedCertificate
from servicebroker.model.daemon_reports import DaemonReport
from servicebroker.store.lock_functions import LockRights

LONG_WAIT = timedelta(minutes=1)  # age from which an open transaction or an unread message is reported
REFUSAL_AGE = timedelta(hours=1)  # age up to which refusals are reported
# share of the server's room for locks, by one session, or for notifications, from which it is reported
NOTABLE_SHARE = 0.5
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")


class QueueFacts(NamedTuple):
    """A queue of an application. `oldest` is the time of its first message; `hosted`: some process runs its monitor."""

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
    is_for_callers: bool = False  # all its messages are answers to requests


class DaemonFacts(NamedTuple):
    """The session of the serving daemon; `since` is the time since which it is active or idle, if visible."""

    pid: int
    state: str | None
    since: datetime | None
    reports: Sequence[DaemonReport] = ()
    awaits_standby: bool = False  # its commit waits for the synchronous standby


class CommitFacts(NamedTuple):
    """The sessions whose commits wait for the synchronous standby, the first one since `since`.

    `has_standby`: one of the named standbys is connected, or this role may not see whether one is.
    """

    standby_names: str = ""  # synchronous_standby_names
    synchronous_commit: str = "on"  # of this role
    has_standby: bool = True
    waiting: int = 0
    since: datetime | None = None


class TableLockFacts(NamedTuple):
    """A session that has locked tables of the broker for itself, since its transaction began: one, and how many."""

    pid: int
    role: str
    application: str
    table: str
    tables: int
    since: datetime | None


class HostFacts(NamedTuple):
    """A server of a URL of several hosts: its role, the identifier of its cluster, and its timeline."""

    host: str
    is_standby: bool
    system: str
    timeline: int


class UnseenFacts(NamedTuple):
    """A query for facts that has failed: its subject, and the reason. `is_cut`: it was cancelled at its deadline."""

    subject: str
    reason: str
    is_cut: bool


class WaitFacts(NamedTuple):
    """Messages in the transmission queue to one service for one reason: their number, and the oldest time.

    `example` is one of their conversations, with its database. `similar` is a service of a similar name, if none of
    the instance has this name.
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
    """A session with a lock of ours for which others have been waiting, and the meaning of the lock."""

    pid: int
    role: str
    application: str
    lock: str
    waiting: int
    since: datetime


class HolderFacts(NamedTuple):
    """A session of an unrelated role that holds some of our locks, or waits for them.

    With `prepared` the holder is a prepared transaction of that name. `since`, if visible, is the start of the session
    or the time of PREPARE: PostgreSQL does not know when a lock was taken.
    """

    pid: int
    prepared: str
    role: str
    application: str
    locks: int
    kinds: str
    since: datetime | None


class HoarderFacts(NamedTuple):
    """A session that holds much of the lock table, which all databases of the server share; both numbers are locks."""

    pid: int
    role: str
    application: str
    taken: int
    possible: int


class SnapshotFacts(NamedTuple):
    """A session with an old snapshot, `age` transactions behind; its start is not visible to us."""

    pid: int
    role: str
    application: str
    age: int


class ConnectionFacts(NamedTuple):
    """The server's connections, their limit, and the role with the most.

    `notifications` is the used share of the notification queue, which all databases share.
    """

    used: int = 0
    possible: int = 1
    role: str = ""
    of_role: int = 0
    notifications: float = 0.0


class NeighbourFacts(NamedTuple):
    """Effects of other roles and sessions of the PostgreSQL server on the instance.

    `trespassers` are the roles with rights on our tables, each with some of them and their number. `able` are roles
    that can take our locks without need, as `lock_rights` tells.
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
    """Several peers claim to be this instance, and none was accepted: the names of their certificates."""

    instance: UUID
    certificates: list[str]


class OldCopyFacts(NamedTuple):
    """Two sides of conversations that disagree, since one database was restored: ours if `is_here`."""

    database: str
    own_broker: UUID
    far_broker: str
    is_here: bool
    far_service: str
    times: int
    last: datetime
    detail: str


class Facts(NamedTuple):
    """The configuration of an instance, and its current state."""

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
    membership: ToldMembership | None = None
    neighbours: NeighbourFacts = NeighbourFacts()
    changed: tuple[str, ...] = ()  # objects of the broker that were changed, bypassing the broker
    is_foreign: bool = False  # True if another PostgreSQL has created the objects, so that they cannot be compared
    encryption: str | None = None  # of the endpoint
    peers: Sequence[PeerFacts] = ()
    disputes: Sequence[DisputeFacts] = ()
    old_copies: Sequence[OldCopyFacts] = ()
    refusals: Sequence[RefusalRecord] = ()  # of the last hour
    clocks: Sequence[WrongClock] = ()
    processes: Sequence[ProcessStatus] = ()
    publications: Sequence[BlockingPublication] = ()
    unfinished: Sequence[UnfinishedOfPeer] = ()
    late: Sequence[LateAnswersOfQueue] = ()
    commits: CommitFacts = CommitFacts()
    table_locks: Sequence[TableLockFacts] = ()


class ConversationFacts(NamedTuple):
    """One endpoint of a conversation and its surroundings."""

    now: datetime
    handle: UUID
    state: str
    far_service: str
    lifetime: datetime
    queue: str
    is_on: bool
    messages: int  # of this conversation, in its own queue
    oldest: datetime | None
    waits: int  # sent, but not delivered
    status: str
    peer_queue: str  # '' if the other side is not in this instance
    peer_messages: int
    holders: list[SessionFacts]  # of its group's lock
    failures: int
    last_error: str
    held_until: datetime | None
    error: tuple[int, str] | None  # of an unread Error message
    readers: int
    is_activated: bool
    sent: datetime | None = None  # the time of the oldest undelivered message
    delayed_until: datetime | None = None  # the delay of the first undelivered message, behind which the others wait
    peer_is_on: bool = True
    peer_readers: int = 0
    peer_is_activated: bool = False
