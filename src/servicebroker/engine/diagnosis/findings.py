"""The judgement of `servicebroker doctor`: the meaning of facts, in words, and advice. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.conversation.requests import LateAnswersOfQueue
from servicebroker.engine.delivery.opening import NO_TRANSPORT
from servicebroker.engine.diagnosis.publications import BlockingPublication
from servicebroker.engine.diagnosis.queue_counts import ProcessStatus
from servicebroker.engine.diagnosis.wrong_clocks import WrongClock
from servicebroker.engine.remote.domain_state import ToldMembership
from servicebroker.engine.remote.refusals import CONNECTION_BROKEN, ROUND_FAILED, Refused
from servicebroker.engine.remote.unfinished_arrivals import UnfinishedOfPeer
from servicebroker.engine.security.certificate_ages import UsedCertificate
from servicebroker.model.daemon_reports import TROUBLE_REMEDIES, DaemonReport, Subject
from servicebroker.model.remedies import REMEDIES, after_refusal, after_status
from servicebroker.model.schema_difference import SchemaDifference
from servicebroker.model.security.certificates import Facts as CertificateFacts
from servicebroker.model.security.peers import ADDRESS, INSTANCE, MESSAGES, NOBODY, STANDING, TWINS, WITHOUT_PROOF
from servicebroker.model.wording import about_instance, counted
from servicebroker.protocol.limits import LIMITS
from servicebroker.store.lock_functions import CLOSING_COMMAND, LockRights

INCIDENT_AGE = timedelta(days=1)  # older incidents with peers are not reported
LONG_WAIT = timedelta(minutes=1)  # age from which an open transaction or an unread message is reported
# time without a fragment of a message, in which a sender retries often
UNFINISHED_IDLE = timedelta(seconds=LIMITS.unfinished_idle_full)

REFUSAL_AGE = timedelta(hours=1)  # age up to which refusals are reported
# share of the server's room for locks, by one session, or for notifications, from which it is reported
NOTABLE_SHARE = 0.5
ENOUGH_DISK_BYTES = 2**30  # free bytes of a disk; a twentieth of a small one is enough, too
STANDBY_WAIT = timedelta(seconds=5)  # of a commit for its standby, from which it is reported
TABLE_LOCK_TIME = timedelta(seconds=5)  # of a transaction with a table to itself, from which it is reported
UNEXPLAINED_WAIT = timedelta(seconds=10)  # wait without a known reason, from which it is reported
REPEATED_TIMES = 3  # broken connections with a peer, or replaced processes of the daemon, from which they are reported
SHORT_TIMEOUT_MS = 1_000  # ms; a longer timeout of applications interrupts no verb
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
_NO_CONNECTION = ("too many clients", "remaining connection slots", "too many connections")
# messages of a running server about a wrong URL
_NO_ENTRANCE = re.compile(
    r"pg_hba\.conf|authentication failed|no password supplied|not permitted to log in"
    r'|(role|database) ".*" does not exist|permission denied for database'
)

NO_REASON = "nobody has said why."


class Severity(IntEnum):
    """The urgency of a finding. Only TROUBLE is shown in red."""

    NOTE = 0  # no action is needed
    WARNING = 1  # messages still move; somebody should look in the daytime
    TROUBLE = 2  # messages stand still, are refused, or may be lost


class Act(NamedTuple):
    """An act that a finding advises, as the dashboard offers it: its name, and the object that it acts on.

    `database` is that of a conversation, if the finding is about something else.
    """

    name: str
    subject: str
    database: str = ""


class Finding(NamedTuple):
    """A problem, or a possible one: its subject, its description, and advice, with acts that follow the advice."""

    subject: str
    problem: str
    advice: str
    severity: Severity = Severity.TROUBLE
    acts: tuple[Act, ...] = ()


class ConversationFinding(NamedTuple):
    """A finding about a conversation, whose handle is known."""

    problem: str
    advice: str
    severity: Severity = Severity.TROUBLE
    acts: tuple[Act, ...] = ()


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
    """A look that has failed or was cut: its subject, and the reason. `is_cut`: it was not answered in time."""

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
    """Claims of a peer to what is not its own (model/security/peers.py, `Mistrust`): count, and latest detail.

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
    refusals: Sequence[Refused] = ()  # of the last hour
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
    peer_is_on: bool = True
    peer_readers: int = 0
    peer_is_activated: bool = False


def judge(facts: Facts) -> list[Finding]:
    """Return the problems of the instance; none if all is well."""
    return [
        *_servers(facts),
        *_commits(facts),
        *(_table_lock(one, facts.now) for one in facts.table_locks if _is_long(one, facts.now)),
        *_definitions(facts),
        *(_disabled(name) for name in facts.disabled),
        *(finding for queue in facts.queues for finding in judge_queue(queue, facts.now)),
        *(_waiting(wait) for wait in facts.waits if not _is_on_its_way(wait, facts)),
        *_network(facts),
        *(_clock(one) for one in facts.clocks if abs(facts.now - one.last) < LONG_WAIT),
        *_daemon(facts.daemon, facts.now),
        *_replaced(facts.processes, facts.now),
        *(_refusal(one) for one in facts.refusals if one.number not in (CONNECTION_BROKEN, ROUND_FAILED)),
        *(_failed(one) for one in facts.refusals if one.number == ROUND_FAILED),
        *(_broken(one) for one in facts.refusals if one.number == CONNECTION_BROKEN and _lasts(one, facts.now)),
        *(_dispute(one) for one in facts.disputes),
        *(_peer(one) for one in facts.peers if facts.now - one.last < INCIDENT_AGE),
        *(_old_copy(one) for one in facts.old_copies if facts.now - one.last < INCIDENT_AGE),
        *(_unfinished(one) for one in facts.unfinished if is_much(one) or facts.now - one.last_time > UNFINISHED_IDLE),
        *(_certificate(one, facts.now) for one in facts.certificates if one.is_expiring(facts.now)),
        *(_session(one, facts.now) for one in facts.sessions if facts.now - one.since > LONG_WAIT),
        *_neighbours(facts.neighbours, facts.now),
        *(_blocking(one) for one in facts.publications),
        *(_late(one) for one in facts.late),
    ]


def judge_down(problem: str, certificates: Sequence[CertificateFacts], now: datetime) -> list[Finding]:
    """Return findings while the database is down: its failure, and problems found in files."""
    said = f"It is down, so that most cannot be known: {problem}"
    advice = "Start the server; what waits goes on by itself then. Ask doctor again."
    if any(words in problem for words in _NO_CONNECTION):
        said = f"No connection is left, so that most cannot be known: {problem}"
        advice = "End sessions that nobody needs, or raise max_connections (ALTER ROLE ... CONNECTION LIMIT)."
    elif _NO_ENTRANCE.search(problem):
        said = f"It is up, but refuses this connection, so that most cannot be known: {problem}"
        advice = "Correct the role, the password or the database in the URL, or let the role in by pg_hba.conf."
    found = [Finding("PostgreSQL", said, advice)]
    own = [UsedCertificate("", "", one.subject, True, one.expiry_date) for one in certificates]
    return [*found, *(_certificate(one, now) for one in own if one.is_expiring(now))]


def judge_disk(folder: str, free: int, size: int) -> list[Finding]:
    """Check the free room on a data folder's disk, in bytes: with a full disk nothing is stored or acknowledged."""
    if free >= min(size // 20, ENOUGH_DISK_BYTES):
        return []
    said = f"Its disk is full but for {free // 2**20} MB."
    return [
        Finding(f"folder {folder}", said, "Make room, or move the folder to a larger disk; what waits goes on then.")
    ]


def judge_schema(schema: SchemaDifference, version: str) -> list[Finding]:
    """Report that the schema is of another version: diagnosis does not bring it up to date."""
    if not schema.missing and not schema.unknown:
        return []
    which, advice = "an older", "upgrade: stop all processes of the instance, run servicebroker init, and start them."
    if schema.unknown:
        which, advice = "a newer", "upgrade servicebroker here."
    return [
        Finding(
            "schema",
            f"It is number {schema.number}, of {which} servicebroker than this one ({version}), which cannot see all "
            "and has changed nothing.",
            f"Ask the doctor of that version, or {advice}",
            Severity.WARNING,
        )
    ]


def judge_daemon_version(reports: Iterable[DaemonReport], version: str) -> list[Finding]:
    """Compare the version of the serving daemon, if it tells one, with this version."""
    return [
        Finding(
            "servicebroker serve",
            f"It is {one.report}, and this is {version}.",
            "Start it again with the installed version, or ask the doctor of its version.",
            Severity.WARNING,
        )
        for one in reports
        if one.subject == Subject.VERSION and one.report != version
    ]


def judge_hosts(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Report that several servers of a URL take writes: an old primary has come back beside the new one."""
    writable = sorted((one for one in hosts if not one.is_standby), key=lambda one: one.timeline)
    if len(writable) < 2:
        return []
    said = ", ".join(f"{one.host} on timeline {one.timeline}" for one in writable)
    if len({one.system for one in writable}) > 1:
        return [
            Finding(
                "PostgreSQL",
                f"The hosts of the URL are servers of different clusters, and each takes writes: {said}.",
                "Name one cluster only: which of them an application gets is up to chance.",
            )
        ]
    newest = writable[-1]
    return [
        Finding(
            "PostgreSQL",
            f"Several servers of the URL take writes: {said}. What applications do on the lower timeline is lost.",
            f"Stop every one but {newest.host}, before anything else; then make it a standby of {newest.host} "
            "(pg_basebackup or pg_rewind). End no conversation before.",
        )
    ]


def judge_refused(problem: str) -> list[Finding]:
    """Report why no application can open the instance, though PostgreSQL answers; none if `problem` is empty."""
    advice = "Until that is mended, no application can open the instance."
    return [Finding("PostgreSQL", problem, advice)] if problem else []


def judge_unseen(unseen: Iterable[UnseenFacts]) -> list[Finding]:
    """Report what could not be seen, so that nobody takes its silence for health."""
    return [
        Finding(
            "doctor",
            f"It could not see {one.subject}: {one.reason}",
            "Ask again. If it stays so, pg_stat_activity and pg_locks show what that statement waits for."
            if one.is_cut
            else "What is said of the rest counts.",
        )
        for one in unseen
    ]


def judge_log(path: str, written: str) -> Finding:
    """Report that the log of an embedded server is not at its path; `written` is the file that the server writes."""
    kept = f" Until then {written} has it." if written else ""
    return Finding(
        "PostgreSQL",
        f"Its log '{path}' was deleted or moved while the server runs: what the server says does not get there.",
        f"End all processes that have the instance open, and start them again: the server begins a new log.{kept}",
    )


def judge_timeouts(settings: Mapping[str, int]) -> list[Finding]:
    """Judge the role's timeouts, in milliseconds, that interrupt applications; sessions of the broker have none."""
    return [
        Finding(
            "PostgreSQL",
            f"{name} is {settings[name]} ms for this role: verbs and transactions that take longer are cut.",
            f"Raise it, or take it away: ALTER ROLE ... RESET {name}, in the server's settings, or in the URL.",
            Severity.WARNING,
        )
        for name in TIMEOUTS
        if 0 < settings.get(name, 0) <= SHORT_TIMEOUT_MS
    ]


def judge_conversation(facts: ConversationFacts) -> list[Finding]:
    """Return the reasons why a conversation does not go on; nothing if it does."""
    return [Finding(f"conversation {facts.handle}", *found) for found in _conversation(facts)]


def say_why_unanswered(facts: ConversationFacts) -> str:
    """Return why a request has no answer: a fault of its conversation with advice, or its progress."""
    if found := judge_conversation(facts):
        return " ".join(f"{finding.problem} {finding.advice}" for finding in found)
    if facts.waits:
        return f"It has not reached {facts.far_service} yet."
    return "Nothing that is known here stands in its way; the other side has not answered yet."


def _servers(facts: Facts) -> Iterator[Finding]:
    for name, loss in (
        ("fsync", "a crash of the machine can destroy the database"),
        ("full_page_writes", "a crash of the machine can destroy the database"),
        ("synchronous_commit", "a crash loses commits that were already answered, and messages with them"),
    ):
        if facts.settings.get(name) == "off":
            yield Finding("PostgreSQL", f"{name} is off: {loss}.", f"Set {name} = on, and reload the server.")
    if facts.settings.get("default_transaction_read_only") == "on":
        yield Finding(
            "PostgreSQL",
            "Transactions are read only (default_transaction_read_only is on): SEND and RECEIVE are refused.",
            "A managed server sets that when its disk is nearly full: make room there. Else: ALTER DATABASE ... SET "
            "default_transaction_read_only = off.",
        )
    if facts.in_recovery:
        yield Finding(
            "PostgreSQL", "The server is a standby: nothing can be sent or received.", "Connect to the primary."
        )


def _commits(facts: Facts) -> Iterator[Finding]:
    """Report that commits wait for a synchronous standby: SEND and RECEIVE do not return, and nothing is lost."""
    commits = facts.commits
    if not commits.standby_names or facts.in_recovery:
        return
    waits = commits.since is not None and facts.now - commits.since > STANDBY_WAIT
    is_missing = not commits.has_standby and commits.synchronous_commit not in ("off", "local")
    if not waits and not is_missing:
        return
    gone = "does not confirm them" if commits.has_standby else "is not connected"
    since = ""
    if commits.since is not None:
        sessions = counted(commits.waiting, "session waits", "sessions wait")
        since = f"; {sessions}, the first for {_long(facts.now - commits.since)}"
    yield Finding(
        "PostgreSQL",
        f"Commits wait for a synchronous standby ({commits.standby_names}), which {gone}{since}. No verb returns.",
        "Bring that standby back: what waits goes on then, and nothing is lost. End no waiting session. If the standby "
        "is lost for good: ALTER SYSTEM SET synchronous_standby_names = '' and reload; what is acknowledged from then "
        "on may be lost with this server.",
    )


def _is_long(lock: TableLockFacts, now: datetime) -> bool:
    return lock.since is not None and now - lock.since > TABLE_LOCK_TIME


def _table_lock(lock: TableLockFacts, now: datetime) -> Finding:
    more = f" and {counted(lock.tables - 1, 'other table')}" if lock.tables > 1 else ""
    since = _long(now - lock.since) if lock.since is not None else ""
    return Finding(
        f"session {lock.pid}",
        f"It ({lock.role}, {lock.application or 'no name'}) has locked {lock.table}{more} for itself, in a transaction "
        f"that has been open for {since}: whoever uses that waits.",
        f"See what that program does. select pg_terminate_backend({lock.pid}) rolls it back.",
        acts=(_end_session(lock.pid),),
    )


def _disabled(name: str) -> Finding:
    return Finding(
        f"database {name}",
        "Its broker is disabled: what is sent from here and to here waits.",
        "Database.alter(enable_broker=True).",
        acts=(Act("enable-broker", name),),
    )


_WITHOUT_RECEIVE = ("NOTIFIED", "INACTIVE")  # monitor states: the last reader has not executed RECEIVE
_AGAIN = " Then start it again: ALTER QUEUE ... ACTIVATION (STATUS = OFF), and ON."


def judge_queue(queue: QueueFacts, now: datetime) -> Iterator[Finding]:
    """Return the findings about one queue."""
    subject = f"queue {queue.name}"
    if not queue.is_on:
        yield Finding(
            subject,
            f"It is OFF, with {counted(queue.messages, 'message')}: five rollbacks in a row, or ALTER QUEUE.",
            "servicebroker poison inspect shows the message; poison end ends its conversation, poison retry goes on.",
            acts=(Act("retry", queue.name),),
        )
    if queue.is_activated and not queue.procedure:
        yield Finding(subject, "Its activation is on without a procedure.", "ALTER QUEUE ... PROCEDURE_NAME = ...")
    elif queue.is_activated and queue.max_readers == 0:
        yield Finding(subject, "Its activation is on with MAX_QUEUE_READERS = 0.", "Raise MAX_QUEUE_READERS.")
    elif queue.is_activated and queue.is_on and not queue.hosted:
        yield Finding(
            subject,
            f"Nobody runs its activation procedure {queue.procedure}.",
            "Start servicebroker serve with the module of its procedures, or activate in your own process.",
        )
    elif queue.notifies and queue.is_on and not queue.hosted:
        yield Finding(
            subject,
            "Nobody sends its event notifications for QUEUE_ACTIVATION.",
            "Start servicebroker serve, or activate in your own process.",
        )
    if queue.failing:
        yield Finding(
            subject,
            counted(
                queue.failing,
                "message has failed and waits for its next try.",
                "messages have failed and wait for their next try.",
            ),
            "servicebroker poison list shows them and their errors; poison retry tries them now.",
            Severity.WARNING,
            (Act("retry", queue.name),),
        )
    watched = queue.holders or queue.is_piped or queue.failing or queue.is_for_callers
    if queue.is_on and not watched and queue.oldest is not None and now - queue.oldest > UNEXPLAINED_WAIT:
        yield from _unread(
            queue, f"{counted(queue.messages, 'message')}, the oldest for {_long(now - queue.oldest)}", now
        )


def _unread(queue: QueueFacts, waits: str, now: datetime) -> Iterator[Finding]:
    """Report why the messages of a queue are not received."""
    subject = f"queue {queue.name}"
    if queue.readers:
        yield Finding(
            subject,
            f"{counted(queue.readers, 'reader waits and takes', 'readers wait and take')} nothing of {waits}.",
            "See whether that program is frozen: waiting_readers has its session, pg_stat_activity its process.",
        )
    elif queue.notifies:
        yield Finding(
            subject,
            f"Nobody receives: {waits}.",
            "See whether the program that its event notifications start runs: servicebroker activator logs it.",
        )
    elif not queue.is_activated:
        yield Finding(
            subject,
            f"Nobody receives: {waits}.",
            "Start the program that reads it, or give the queue an activation procedure.",
        )
    elif queue.tasks == 0 and queue.monitor in _WITHOUT_RECEIVE and queue.activated_at is not None:
        is_over = now - queue.activated_at > UNEXPLAINED_WAIT
        yield Finding(
            subject,
            f"Its procedure {queue.procedure} was started {_long(now - queue.activated_at)} ago, runs no more, and has "
            f"received nothing of {waits}.",
            f"See in the log of the process that starts it why that is so.{_AGAIN if is_over else ''}",
            acts=(Act("restart-activation", queue.name),) if is_over else (),
        )


def _late(late: LateAnswersOfQueue) -> Finding:
    """Report late answers to requests that no program takes."""
    answers = counted(late.answers, "late answer to a request", "late answers to requests")
    if late.is_to_be_dropped:
        return Finding(
            f"queue {late.queue}",
            f"Nobody drops {answers}.",
            "Keep a program of the owner's open with its background thread, or servicebroker serve.",
            Severity.WARNING,
        )
    return Finding(
        f"queue {late.queue}",
        f"Nobody handles {answers}.",
        "Run a program that calls Database.process_late_answers now and then.",
        Severity.WARNING,
    )


def _is_on_its_way(wait: WaitFacts, facts: Facts) -> bool:
    """Return whether messages are young, and nobody has said why they wait. SEND writes that there is no transport."""
    is_unexplained = not wait.status or (wait.status == NO_TRANSPORT and facts.daemon is not None)
    return is_unexplained and facts.now - wait.oldest <= UNEXPLAINED_WAIT


def _waiting(wait: WaitFacts) -> Finding:
    said, advice = about_instance(wait.status or NO_REASON), after_status(wait.status)
    acts: tuple[Act, ...] = ()
    if wait.similar is not None and wait.example is not None:
        handle, database = wait.example
        said = f"{said} Did you mean {wait.similar}?"
        end = f"servicebroker end {handle} --database {database} --cleanup"
        advice = f"{advice} If the name is wrong, remove each: {end}."
        acts = (Act("remove-conversation", str(handle), database),)
    return Finding(
        f"service {wait.to_service}",
        f"{counted(wait.messages, 'message to it waits', 'messages to it wait')}, "
        f"the oldest since {wait.oldest:%Y-%m-%d %H:%M:%S} UTC: {said}",
        advice,
        acts=acts,
    )


def _refusal(one: Refused) -> Finding:
    """Report a connection or a message that one of both sides has refused."""
    what = "Refused here" if one.is_ours else "It refuses us"
    return Finding(
        f"peer {one.peer}",
        f"{what}, {_often(one)}: {one.number} {one.text}",
        after_refusal(one.number, is_ours=one.is_ours),
    )


def _often(one: Refused) -> str:
    return f"{counted(one.times, 'time')} since {one.first:%H:%M:%S}, lately {one.last:%Y-%m-%d %H:%M:%S} UTC"


def _failed(one: Refused) -> Finding:
    """Report a failure of the daemon itself, which has restarted its work."""
    return Finding(one.peer, f"It has failed {_often(one)}: {one.number} {one.text}", REMEDIES[one.number])


def _clock(one: WrongClock) -> Finding:
    """Report a wrong clock. The broker ignores it, but logs carry its times."""
    where = f"machine {one.host}" if one.host else "machine of the PostgreSQL server"
    off = f"{abs(one.seconds_ahead):,} s {'ahead of' if one.seconds_ahead > 0 else 'behind'}"
    return Finding(
        where,
        f"The clock of {one.program} there is {off} that of the PostgreSQL server, whose time counts for all.",
        "Set the clock that is wrong.",
        Severity.WARNING,
    )


def _lasts(one: Refused, now: datetime) -> bool:
    """Check whether connections with a peer broke repeatedly and lately; every restart of a machine breaks one."""
    return one.times >= REPEATED_TIMES and abs(now - one.last) < LONG_WAIT


def _broken(one: Refused) -> Finding:
    return Finding(
        f"peer {one.peer}",
        f"The connection with it broke, {_often(one)}: {one.text}",
        "See what is between the two instances.",
    )


def _daemon(daemon: DaemonFacts | None, now: datetime) -> Iterator[Finding]:
    """Report troubles that the daemon has noted, and a stuck daemon: a live one queries its database every second."""
    for report in daemon.reports if daemon is not None else ():
        if report.subject in TROUBLE_REMEDIES:
            said = f"{report.report} So it is since {report.since:%Y-%m-%d %H:%M:%S} UTC."
            yield Finding("servicebroker serve", said, TROUBLE_REMEDIES[report.subject])
    if daemon is None or daemon.since is None or now - daemon.since <= UNEXPLAINED_WAIT:
        return
    if daemon.awaits_standby:  # `_commits` reports that, and another daemon would wait as well
        return
    long = _long(now - daemon.since)
    said = f"has waited in one statement for {long}" if daemon.state == "active" else f"has done nothing for {long}"
    yield Finding(
        "servicebroker serve",
        f"The process that serves the instance (session {daemon.pid}) {said}: what goes out and what comes in waits.",
        "See whether it is frozen, or its machine; end it and start it again. Another one that stands by takes over "
        f"after select pg_terminate_backend({daemon.pid}).",
        acts=(_end_session(daemon.pid),),
    )


def _replaced(processes: Sequence[ProcessStatus], now: datetime) -> Iterator[Finding]:
    """Report processes that are replaced repeatedly; a single kill does no harm."""
    for one in processes:
        if one.replaced >= REPEATED_TIMES and one.last_time is not None and now - one.last_time < REFUSAL_AGE:
            yield Finding(
                "servicebroker serve",
                f"Process {one.number} of {len(processes)} was replaced {counted(one.replaced, 'time')}, "
                f"lately {one.last_time:%Y-%m-%d %H:%M:%S} UTC: it {one.ending}.",
                "See who ends it: the system where memory is short (its log has that), or a limit of the service.",
            )


def _network(facts: Facts) -> Iterator[Finding]:
    if facts.is_public:
        yield Finding(
            "endpoint",
            "CONNECT is granted to public: whoever makes a certificate of its own is let in.",
            "Import the certificates of the peers, then REVOKE CONNECT ON ENDPOINT::... FROM PUBLIC.",
            Severity.WARNING,
        )
    if facts.membership is not None and facts.membership.account is None:
        yield Finding(
            "domain",
            f"AUTHENTICATION of the endpoint is WINDOWS, and this is in no domain: {facts.membership.problem}",
            "servicebroker domain join, or AUTHENTICATION = CERTIFICATE.",
        )
    if facts.endpoint == "STARTED" and facts.encryption in ("DISABLED", "SUPPORTED"):
        yield Finding(
            "network",
            WITHOUT_PROOF.format(facts.encryption),
            "ALTER ENDPOINT ... ENCRYPTION = REQUIRED, with certificates; or dialog security for the conversations.",
            Severity.WARNING,
        )
    if not facts.remote_routes:
        return
    if facts.daemon is None:
        yield Finding(
            "network",
            f"{facts.remote_routes} routes lead to other instances, and no servicebroker serve runs here.",
            "Start servicebroker serve.",
        )
    listens = facts.daemon is not None and any(one.subject == Subject.LISTENS for one in facts.daemon.reports)
    if facts.endpoint is None and not listens:
        yield Finding(
            "network",
            "Routes lead to other instances, and there is no endpoint: no answer can come in.",
            "CREATE ENDPOINT, or servicebroker serve --listen.",
        )
    elif facts.endpoint not in (None, "STARTED"):
        yield Finding("network", f"The endpoint is {facts.endpoint}.", "ALTER ENDPOINT ... STATE = STARTED.")


_SAID = {
    INSTANCE: "It claims to be an instance that is another's, {0}: {1}.",
    ADDRESS: "It has answered at an address where another peer was, {0}: {1}.",
    MESSAGES: "What it brought was dropped, {0}; no route names it for what that says it comes from, lately {1}.",
    STANDING: "It has said who is the principal of a mirrored pair that it is no half of, {0}, lately {1}.",
    TWINS: "Two daemons that say they are this instance have brought messages at the same time, {0}, {1}.",
}
_COPY = (
    "One of them is a copy of the other, as of a virtual machine or a base backup. Where the copy is: servicebroker "
    "instance adopt --identifier new, or stop it."
)
_ROUTE = (
    "If it is that service, or forwards for it, say where it listens: servicebroker route create NAME --database D "
    "--service S --address TCP://host:port, of the database or of msdb where the message is only passed on."
)


def _peer(one: PeerFacts) -> Finding:
    """Report a peer's wrong claims, none of which had any effect."""
    said = _SAID[one.claim].format(f"{counted(one.times, 'time')} until {one.last:%Y-%m-%d %H:%M:%S} UTC", one.detail)
    if one.claim == TWINS:
        return Finding(f"peer {one.owner}".rstrip(), said, _COPY, Severity.WARNING)
    if one.certificate is None and one.owner != NOBODY:  # a member of the domain, or an unknown peer that public admits
        advice = "servicebroker domain revoke, or DENY CONNECT ON ENDPOINT to its login or to public."
        return Finding(f"peer {one.owner}", said, advice, Severity.WARNING)
    if one.certificate is None:
        return Finding(
            "a peer without certificate", said, "ALTER ENDPOINT ... ENCRYPTION = REQUIRED.", Severity.WARNING
        )
    right = {MESSAGES: _ROUTE, STANDING: "It should not."}.get(
        one.claim, f"If it is right: servicebroker certificate accept {one.certificate}."
    )
    return Finding(
        f"peer with {one.owner}",
        said,
        f"{right} Else let it in no more: servicebroker certificate drop {one.certificate}.",
        Severity.WARNING,
    )


def _dispute(one: DisputeFacts) -> Finding:
    return Finding(
        f"instance {one.instance}",
        f"The owners of the certificates {' and '.join(one.certificates)} claim to be it, and none of them is let in.",
        f"Say which one is: servicebroker certificate accept {' | '.join(one.certificates)}. Where both are of one "
        "peer, drop one and import it with the same --login as the other.",
    )


def is_much(one: UnfinishedOfPeer) -> bool:
    """Check whether a peer has used up its quota."""
    return one.bytes >= one.quota


def _unfinished(one: UnfinishedOfPeer) -> Finding:
    """Report messages that a peer has begun to send and not completed."""
    begun = (
        f"{counted(one.messages, 'message')} of {counted(one.conversations, 'conversation')} began to come and "
        f"{'is' if one.messages == 1 else 'are'} not complete, {megabytes(one.bytes)} MB, the last of it at "
        f"{one.last_time:%Y-%m-%d %H:%M:%S} UTC."
    )
    full = " That is all that is kept of one peer: more is taken only as these are completed." if is_much(one) else ""
    advice = "See there whether it still sends; what brings nothing for an hour is deleted, and comes again."
    if one.certificate:
        advice += f" If it means harm: servicebroker certificate drop {one.certificate}."
        advice += f" If it needs more: servicebroker certificate budget {one.certificate}."
    severity = Severity.TROUBLE if is_much(one) else Severity.WARNING
    return Finding(peer_with(one.owner), begun + full, advice, severity)


def peer_with(owner: str) -> str:
    """Name a peer by the owner of its certificate."""
    return f"peer with {owner}" if owner != NOBODY else "a peer without certificate"


def megabytes(count: int) -> str:
    """Write a number of bytes in megabytes."""
    return f"{count / 2**20:,.1f}"


def _old_copy(one: OldCopyFacts) -> Finding:
    ended = (
        f"{counted(one.times, 'conversation')} with broker {one.far_broker} (service {one.far_service}) ended with an "
        f"Error, the last at {one.last:%Y-%m-%d %H:%M:%S} UTC: {one.detail}"
    )
    subject = f"database {one.database}, broker {one.own_broker}"
    if one.is_here:
        return Finding(
            subject,
            f"This database has gone back to an old copy: {ended}",
            f"What was sent and taken here since that copy is known to broker {one.far_broker} only: compare with it, "
            "then begin the conversations anew. After a restore: servicebroker instance adopt.",
        )
    return Finding(
        subject,
        f"That database has gone back to an old copy: {ended}",
        f"What broker {one.far_broker} has taken since that copy is lost there: send it again, and begin the "
        "conversations anew. At that instance: servicebroker instance adopt, servicebroker doctor.",
    )


def _definitions(facts: Facts) -> Iterator[Finding]:
    for what in facts.changed:
        advice = (
            "Undo what was done to it, or restore a backup: it cannot be made anew beside what it holds."
            if what.startswith(("the table", "the trigger", "the index", "the sequence"))
            else "servicebroker check --mend makes views and functions anew; what it still finds comes from a backup."
        )
        yield Finding("schema", f"Somebody has changed the broker's own schema: {what}.", advice)
    if facts.is_foreign:
        yield Finding(
            "schema",
            "The schema was made by another PostgreSQL, or is a restored copy: whether it was changed cannot be told.",
            "servicebroker check --mend makes views and functions anew, and records how everything is defined.",
            Severity.WARNING,
        )


def _certificate(one: UsedCertificate, now: datetime) -> Finding:
    is_expired = one.expires <= now
    over = f"{'has expired' if is_expired else 'expires'} on {one.expires:%Y-%m-%d}"
    severity = Severity.TROUBLE if is_expired else Severity.WARNING
    if one.problem:
        return Finding(
            f"domain member {one.name}",
            f"Its certificate {over}, and is not renewed: {one.problem}",
            "See the log of servicebroker serve, and servicebroker domain show.",
            severity,
        )
    if one.database:
        return Finding(
            f"certificate {one.name}",
            f"It is that of the user {one.user} in {one.database} and {over}: without it nothing secure begins.",
            "Make or import a new one under the same user: servicebroker certificate create or import, --database.",
            severity,
        )
    whose = "of this instance" if one.is_own else "of a peer"
    return Finding(
        f"certificate {one.name}",
        f"It is {whose} and {over}: without it no connection is let in.",
        "Make a new one (servicebroker certificate create), export it, and import it at each peer.",
        severity,
    )


def _neighbours(facts: NeighbourFacts, now: datetime) -> Iterator[Finding]:
    for role, some, count in facts.trespassers:
        yield Finding(
            f"role {role}",
            f"It has {counted(count, 'right')} past the verbs ({some}): with those on tables it reads, redirects and "
            "forges what is not its own.",
            f"servicebroker rights grant {role} --database ... --receive ... takes them, and gives it the verbs.",
            Severity.WARNING,
        )
    for one in facts.blockers:
        yield Finding(
            f"session {one.pid}",
            f"It ({one.role}, {one.application or 'no name'}) holds our lock of {one.lock}, for which "
            f"{counted(one.waiting, 'session waits', 'sessions wait')}, the first for {_long(now - one.since)}.",
            f"See what that program does. select pg_terminate_backend({one.pid}) ends it.",
            acts=(_end_session(one.pid),),
        )
    yield from _locks(facts)
    for hoarder in facts.hoarders:
        yield Finding(
            f"session {hoarder.pid}",
            f"It ({hoarder.role}, {hoarder.application or 'no name'}) holds {hoarder.taken:,} of about "
            f"{hoarder.possible:,} locks for which the server has room: when that is full, verbs fail.",
            f"select pg_terminate_backend({hoarder.pid}) ends it. Do less in one transaction, or raise "
            "max_locks_per_transaction.",
            Severity.WARNING,
            (_end_session(hoarder.pid),),
        )
    for old in facts.snapshots:
        yield Finding(
            f"session {old.pid}",
            f"It ({old.role}, {old.application or 'no name'}) has a transaction open since {old.age:,} transactions "
            "ago: what is received meanwhile takes up space.",
            "Grant pg_read_all_stats to the schema's owner, who is shown then since when, and its statement. "
            f"select pg_terminate_backend({old.pid}) ends it.",
            Severity.WARNING,
            (_end_session(old.pid),),
        )
    connections = facts.connections
    if connections.used >= 0.9 * connections.possible:
        yield Finding(
            "PostgreSQL",
            f"{connections.used} of {connections.possible} connections are in use, {connections.of_role} by the role "
            f"{connections.role}.",
            f"ALTER ROLE {connections.role} CONNECTION LIMIT ...; end sessions with pg_terminate_backend.",
            Severity.WARNING,
        )
    if connections.notifications > NOTABLE_SHARE:
        yield Finding(
            "PostgreSQL",
            f"{connections.notifications:.0%} of the room for notifications is taken: when that is full, transactions "
            "that wake a reader fail.",
            "A session that listens keeps a transaction open: the server's log names its process. End it with "
            "pg_terminate_backend.",
            Severity.WARNING,
        )


def _blocking(one: BlockingPublication) -> Finding:
    tables = f"{counted(one.table_count, 'table')} ({one.tables}{', ...' if one.table_count > 3 else ''})"
    said, advice = {
        "identity": (
            f"It publishes updates and deletes of {tables} without a replica identity",
            "Give each a primary key, or ALTER TABLE ... REPLICA IDENTITY FULL; or publish other tables only.",
        ),
        "columns": (
            f"Its columns leave out some of the replica identity of {tables}",
            "ALTER PUBLICATION ... SET TABLE with all columns of the replica identity.",
        ),
        "filter": (
            f"Its condition asks for columns outside of the replica identity of {tables}",
            "ALTER PUBLICATION ... SET (publish = 'insert'), or ALTER TABLE ... REPLICA IDENTITY FULL.",
        ),
    }[one.reason]
    return Finding(
        f"publication {one.name}",
        f"{said}: PostgreSQL refuses to update and delete their rows.",
        advice,
    )


_MOST_NAMED = 5  # roles in one finding


def _locks(facts: NeighbourFacts) -> Iterator[Finding]:
    """Report sessions that take our locks without need, roles that could, and roles that need them but cannot."""
    rights = facts.lock_rights
    close = f"{CLOSING_COMMAND} takes the functions from others."
    if not rights.may_close:
        close = f"Let a superuser run what {CLOSING_COMMAND} --sql prints."
    for one in facts.holders:
        yield _holder(one, close)
    if facts.able:
        some = ", ".join(facts.able[:_MOST_NAMED])
        more = f" and {counted(len(facts.able) - _MOST_NAMED, 'other')}" if len(facts.able) > _MOST_NAMED else ""
        yield Finding(
            "PostgreSQL",
            f"{counted(len(facts.able), 'role')} ({some}{more}) can take the broker's locks and need none: while "
            "such a role holds one, BEGIN DIALOG, SEND and RECEIVE may wait.",
            f"{close} Or REVOKE CONNECT ON DATABASE ... FROM PUBLIC, and GRANT it to the roles that you trust.",
            Severity.WARNING,
        )
    if rights.is_lacking and not rights.is_public:
        yield Finding(
            "PostgreSQL",
            f"A role that needs our locks may not take them ({', '.join(rights.needing)}): its verbs are refused.",
            f"{CLOSING_COMMAND} gives it the functions." if rights.may_close else close,
        )


def _holder(one: HolderFacts, close: str) -> Finding:
    since = f" since {one.since:%Y-%m-%d %H:%M:%S} UTC" if one.since else ""
    held = f"{counted(one.locks, 'lock')} of ours ({one.kinds}): whoever needs the same waits."
    if one.prepared:
        return Finding(
            f"transaction {one.prepared}",
            f"The role {one.role} has prepared it{since}, and it holds {held}",
            f"As a superuser: rollback prepared '{one.prepared}'. {close}",
        )
    who = f"{one.role}, {one.application or 'no name'}{', connected' + since if since else ''}"
    return Finding(
        f"session {one.pid}",
        f"It ({who}) is none of the broker's, and holds or waits for {held}",
        f"As a superuser or a member of pg_signal_backend: select pg_terminate_backend({one.pid}). {close}",
        acts=(_end_session(one.pid),),
    )


def _session(one: SessionFacts, now: datetime) -> Finding:
    return Finding(f"session {one.pid}", _open(one, now), _close(one), acts=(_end_session(one.pid),))


def _end_session(pid: int) -> Act:
    return Act("end-session", str(pid))


def _open(one: SessionFacts, now: datetime) -> str:
    groups = f" and holds {one.groups:,} conversation groups" if one.groups else ""
    who = ", ".join(filter(None, (one.role, one.application or "no name", one.state)))
    return (
        f"Its transaction ({who}) has been open for {_long(now - one.since)}{groups}; its last statement: {one.query}"
    )


def _close(one: SessionFacts) -> str:
    return (
        f"See what that program waits for. select pg_terminate_backend({one.pid}) rolls it back: what it has received "
        "is in its queue again."
    )


def _conversation(facts: ConversationFacts) -> Iterable[ConversationFinding]:
    retry, end = Act("retry", facts.queue), Act("end-conversation", str(facts.handle))
    if facts.error is not None:
        code, text = facts.error
        yield ConversationFinding(
            f"It has failed with {code}: {text} The Error message waits in {facts.queue}.",
            REMEDIES.get(-code, "Receive the Error and END CONVERSATION; begin anew when the cause is mended."),
            acts=(end,),
        )
    elif facts.state == "ER":
        yield ConversationFinding(
            "It has failed, and its Error was received.",
            "END CONVERSATION; begin anew when the cause is mended.",
            acts=(end,),
        )
    if facts.state == "DI":
        yield ConversationFinding(
            "The other side has ended it; nothing can be sent.", "END CONVERSATION.", Severity.WARNING, (end,)
        )
    if facts.state == "CD":
        yield ConversationFinding(
            "It is closed.", "Nothing is to be done: it is kept against replays for a while.", Severity.NOTE
        )
    if facts.state not in ("ER", "CD") and facts.lifetime <= facts.now:
        yield ConversationFinding(
            "Its lifetime is over.", "Somebody receives the Error -8489 at the next look; begin anew."
        )
    if facts.waits and (facts.status or facts.sent is None or facts.now - facts.sent > UNEXPLAINED_WAIT):
        said = about_instance(facts.status or NO_REASON)
        far = facts.far_service
        what = counted(facts.waits, f"message to {far} waits", f"messages to {far} wait")
        yield ConversationFinding(f"{what}: {said}", after_status(facts.status))
    if not facts.is_on:
        yield ConversationFinding(
            f"Its queue {facts.queue} is OFF.",
            "servicebroker poison inspect shows the message at its head; poison retry switches the queue on.",
            acts=(retry,),
        )
    for holder in facts.holders:
        if facts.now - holder.since > timedelta(seconds=5):
            yield ConversationFinding(
                f"Session {holder.pid} holds its conversation group. {_open(holder, facts.now)}",
                _close(holder),
                acts=(_end_session(holder.pid),),
            )
    if facts.failures:
        held = f", and is held until {facts.held_until:%H:%M:%S} UTC" if facts.held_until else ""
        yield ConversationFinding(
            f"Its message has failed {counted(facts.failures, 'time')}{held}; the last time with {facts.last_error}",
            "Mend the cause and servicebroker poison retry, or servicebroker poison end.",
            acts=(retry,),
        )
    busy = facts.holders or facts.failures or facts.readers
    if (
        facts.messages
        and facts.is_on
        and not busy
        and facts.oldest is not None
        and facts.now - facts.oldest > LONG_WAIT
    ):
        waits = (
            f"{counted(facts.messages, 'message')} in {facts.queue}, the oldest for {_long(facts.now - facts.oldest)}"
        )
        if facts.is_activated:
            yield ConversationFinding(
                f"The activation procedure has not received its {waits}.",
                "servicebroker doctor says whether it runs.",
            )
        else:
            yield ConversationFinding(f"Nobody receives its {waits}.", "Start the program that reads the queue.")
    if facts.peer_messages and not facts.messages and not facts.waits:
        yield _unread_by_peer(facts)


def _unread_by_peer(facts: ConversationFacts) -> ConversationFinding:
    """Return why the other side has not received its delivered messages."""
    waits = counted(facts.peer_messages, "message")
    if not facts.peer_is_on:
        return ConversationFinding(
            f"The other side's queue {facts.peer_queue} is OFF, with {waits} of it.",
            "servicebroker poison inspect shows the message at its head; poison retry switches the queue on.",
            acts=(Act("retry", facts.peer_queue),),
        )
    if not facts.peer_readers and not facts.peer_is_activated:
        return ConversationFinding(
            f"The other side has {waits} of it to receive, in {facts.peer_queue}, where no reader waits.",
            "See whether the program that reads that queue runs, or is busy with other messages.",
            Severity.WARNING,
        )
    return ConversationFinding(
        f"The other side has {waits} of it to receive, in {facts.peer_queue}.",
        "Ask servicebroker doctor for the other side's handle, or see who reads that queue.",
        Severity.NOTE,
    )


def _long(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
