"""The findings of `servicebroker doctor` for given facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from servicebroker.dashboard.remedies import buttons
from servicebroker.engine.conversation.requests import LateAnswerCount
from servicebroker.engine.diagnosis.conversation_findings import judge_conversation
from servicebroker.engine.diagnosis.daemon_findings import judge_daemon_version
from servicebroker.engine.diagnosis.disk_usage import DiskUsage, SlotUsage, TableUsage, judge_disk_usage, largest
from servicebroker.engine.diagnosis.fact_types import (
    LONG_WAIT,
    REFUSAL_AGE,
    BlockerFacts,
    CommitFacts,
    ConnectionFacts,
    ConversationFacts,
    DaemonFacts,
    DisputeFacts,
    Facts,
    FailedQueryFacts,
    HoarderFacts,
    HolderFacts,
    NeighbourFacts,
    OldCopyFacts,
    PeerFacts,
    QueueFacts,
    SessionFacts,
    SnapshotFacts,
    TableLockFacts,
    WaitFacts,
)
from servicebroker.engine.diagnosis.findings import UNEXPLAINED_WAIT, Finding, Severity, duration
from servicebroker.engine.diagnosis.judgement import judge, judge_failed_queries, judge_schema
from servicebroker.engine.diagnosis.peer_findings import INCIDENT_AGE, UNFINISHED_IDLE
from servicebroker.engine.diagnosis.publications import BlockingPublication
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, DeadLettersOfQueue, ProcessStatus
from servicebroker.engine.diagnosis.queue_findings import judge_queue
from servicebroker.engine.diagnosis.server_findings import (
    STANDBY_WAIT,
    judge_disk,
    judge_down,
    judge_log,
    judge_refused,
    judge_timeouts,
)
from servicebroker.engine.diagnosis.session_findings import TABLE_LOCK_TIME
from servicebroker.engine.diagnosis.worker_limits import WorkerLimits
from servicebroker.engine.diagnosis.wrong_clocks import WrongClock
from servicebroker.engine.remote.domain_state import ReportedMembership
from servicebroker.engine.remote.refusals import RefusalRecord
from servicebroker.engine.remote.unfinished_arrivals import UnfinishedOfPeer
from servicebroker.engine.security.certificate_ages import EXPIRY_WARNING, UsedCertificate
from servicebroker.model import waiting
from servicebroker.model.daemon_reports import DaemonReport, Subject
from servicebroker.model.errors import RULES
from servicebroker.model.schema_difference import SchemaDifference
from servicebroker.store.lock_functions import LockRights

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
AGO = NOW - timedelta(minutes=10)
WELL = Facts(NOW, [], [], [], [], [], {"fsync": "on", "synchronous_commit": "on"}, None, None, 0, False)
QUEUE = QueueFacts("Shop.dbo.Q", True, 0, None, 0, 0, False, None, None, False, False, 0)
DAEMON = DaemonFacts(815, "idle", NOW - timedelta(seconds=1))
CLOCK = WrongClock("servicebroker serve", "10.0.0.7", 3_600, NOW - timedelta(seconds=9))
REPLACED = ProcessStatus(2, 4711, None, 3, AGO, "was killed (SIGKILL)")
BROKEN = RefusalRecord(True, "TCP://far:4022", 9753, 3, AGO, NOW - timedelta(seconds=9), "The stream has ended.")
SESSION = SessionFacts(4711, "reports", "idle in transaction", AGO, "select 1", 3)
HOLDER = HolderFacts(4711, "", "bob", "psql", 1, "delivery", AGO)
CLOSED = LockRights(is_public=False, may_close=False, needing=["shop"], is_lacking=False, strangers=[])
UNFINISHED = UnfinishedOfPeer("certificate mallory", "mallory", 99, 9_900, 327_000_000, AGO, AGO)
PEER = PeerFacts("certificate mallory", "messages", 40, AGO, "//shop", "mallory")
TALK = ConversationFacts(
    NOW, UUID(int=7), "CO", "//far", NOW + timedelta(days=1), "Shop.dbo.Q", True, 0, None, 0, "", "Shop.dbo.P", 0, [],
    0, "", None, None, 0, False,
)  # fmt: skip


LATE = LateAnswerCount("Shop.dbo.Web", 3, True)
COMMITS = CommitFacts("east, west", "on", False, 0, None)
TABLE_LOCK = TableLockFacts(4711, "bob", "psql", "servicebroker.routes", 1, AGO)


def report(**changes: Any) -> list[str]:
    return [f"{f.subject}: {f.problem} {f.advice}" for f in judge(WELL._replace(**changes))]


def of_queue(**changes: Any) -> list[str]:
    return report(queues=[QUEUE._replace(**changes)])


def of_talk(**changes: Any) -> list[str]:
    return [f"{f.problem} {f.advice}" for f in judge_conversation(TALK._replace(**changes))]


SLOTS = WorkerLimits(2, (7, 8), 1 / 20, NOW + timedelta(milliseconds=40))
LIMITED = {"messages": 5, "oldest": AGO, "readers": 1}


def test_a_button_switches_a_queue_on_only_if_it_is_off() -> None:
    queue, peer = ("Shop", "dbo.Q"), ("Shop", "dbo.P")
    names = {TALK.queue: queue, TALK.peer_queue: peer}

    def labels(findings: Iterable[Finding]) -> list[str]:
        return [button.label for finding in findings for button in buttons(finding, names) if button.action == "retry"]

    retry, switch_on = "Retry failed messages of dbo.Q now", "Switch on dbo.{0}, and retry"
    assert labels(judge_conversation(TALK._replace(failures=2))) == [retry]
    assert labels(judge_conversation(TALK._replace(is_on=False))) == [switch_on.format("Q")]
    assert labels(judge_conversation(TALK._replace(peer_messages=1, peer_is_on=False))) == [switch_on.format("P")]
    assert labels(judge_queue(QUEUE._replace(failing=1), NOW)) == [retry]
    assert labels(judge_queue(QUEUE._replace(is_on=False), NOW)) == [switch_on.format("Q")]


def test_messages_wait_behind_a_limit_of_all_workers() -> None:
    waits = "queue Shop.dbo.Q: 5 messages wait, the oldest for 10 minutes: "
    (slots,) = of_queue(**LIMITED, limits=SLOTS)
    assert slots.startswith(f"{waits}all 2 slots of its workers (global_concurrency) are taken by sessions 7, 8. ")
    (rate,) = of_queue(**LIMITED, limits=SLOTS._replace(sessions=(7,)))
    assert rate.startswith(f"{waits}its workers receive at most 20/s together (global_rate). ")
    (unread,) = of_queue(**LIMITED, limits=SLOTS._replace(sessions=(), next_time=AGO))
    assert "1 reader waits and takes nothing of 5 messages" in unread
    assert of_queue(messages=5, oldest=NOW - timedelta(seconds=30), limits=SLOTS) == []


@pytest.mark.parametrize(
    ("limits", "described"),
    [
        (SLOTS, "2 of 2 slots taken by sessions 7, 8; at most 20/s"),
        (WorkerLimits(1), "0 of 1 slot taken"),
        (WorkerLimits(9, tuple(range(1, 8))), "7 of 9 slots taken by sessions 1, 2, 3, 4, 5 and 2 more"),
        (WorkerLimits(interval_s=3600, next_time=NOW + timedelta(hours=3)), "at most 1/h, the next message in 3 hours"),
        (WorkerLimits(interval_s=2), "at most 30/min"),
        (WorkerLimits(interval_s=60 / 7.5), "at most 450/h"),
        (WorkerLimits(interval_s=0.7), "at most 1.429/s"),
    ],
)
def test_limits_in_words(limits: WorkerLimits, described: str) -> None:
    assert limits.describe(NOW) == described


STUCK = {
    **{"is_activated": True, "procedure": "p", "max_readers": 1, "hosted": True, "messages": 3, "oldest": AGO},
    **{"monitor": "NOTIFIED", "activated_at": AGO},
}


def test_all_is_well() -> None:
    assert of_queue(**STUCK | {"tasks": 1}) == []
    assert of_queue(**STUCK | {"holders": 1}) == []
    assert of_queue(**STUCK | {"monitor": "RECEIVES_OCCURRING"}) == []
    assert of_queue(**STUCK | {"oldest": NOW}) == []
    assert report() == []
    assert of_queue(messages=5, oldest=NOW) == []
    assert of_queue(messages=5, oldest=NOW - timedelta(seconds=9), readers=1) == []
    assert of_queue(messages=5, oldest=AGO, holders=1) == []
    assert report(daemon=DAEMON) == []
    assert report(daemon=DAEMON._replace(state=None, since=None)) == []  # this role may not see it
    assert report(refusals=[BROKEN._replace(occurrences=2)]) == []
    assert report(clocks=[CLOCK._replace(last=AGO)]) == []
    assert report(clocks=[CLOCK._replace(last=NOW + timedelta(hours=1))]) == []  # the server's was wrong
    assert report(refusals=[BROKEN._replace(last=AGO)]) == []
    assert report(processes=[REPLACED._replace(replaced=2)]) == []
    assert report(processes=[REPLACED._replace(last_time=NOW - timedelta(hours=2))]) == []
    assert of_queue(messages=5, oldest=AGO, is_piped=True) == []
    assert of_talk() == []
    later = TALK._replace(waits=2, status=waiting.DELAYED, sent=AGO, delayed_until=NOW + timedelta(minutes=1))
    assert [finding.severity for finding in judge_conversation(later)] == [Severity.NOTE]
    overdue = judge_conversation(later._replace(delayed_until=AGO))
    assert [finding.severity > Severity.NOTE for finding in overdue] == [True]
    assert report(sessions=[SESSION._replace(since=NOW)]) == []
    assert report(certificates=[UsedCertificate("", "", "a", True, NOW + timedelta(days=31))]) == []
    assert report(peers=[PEER._replace(last=NOW - timedelta(days=2))]) == []  # long ago
    young = UNFINISHED._replace(bytes=10**6, last_time=NOW - timedelta(minutes=4))
    assert report(unfinished=[young]) == []  # the rest may still arrive
    assert report(endpoint="STARTED", encryption="REQUIRED") == []
    assert report(commits=COMMITS._replace(standby_names="")) == []
    assert report(commits=COMMITS._replace(has_standby=True)) == []
    assert report(commits=COMMITS._replace(has_standby=True, waiting=3, since=NOW - timedelta(seconds=4))) == []
    assert report(commits=COMMITS._replace(synchronous_commit="local")) == []
    assert len(report(commits=COMMITS, in_recovery=True)) == 1  # that it is a standby itself
    assert report(daemon=DAEMON._replace(state="active", since=AGO, awaits_standby=True)) == []  # the server's finding
    assert report(table_locks=[TABLE_LOCK._replace(since=NOW - timedelta(seconds=4))]) == []
    assert report(table_locks=[TABLE_LOCK._replace(since=None)]) == []
    assert report(neighbours=NeighbourFacts(connections=ConnectionFacts(89, 100, "bob", 60, 0.5))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"fsync": "off"}}, ["PostgreSQL: fsync is off", "Set fsync = on"]),
        ({"settings": {"synchronous_commit": "off"}}, ["loses commits", "synchronous_commit = on"]),
        ({"in_recovery": True}, ["standby", "primary"]),
        (
            {"commits": COMMITS},
            ["Commits wait for a synchronous standby (east, west), which is not connected. No verb returns."],
        ),
        (
            {"commits": COMMITS._replace(synchronous_commit="off", waiting=2, since=AGO)},
            ["which is not connected; 2 sessions wait, the first for 10 minutes. No", "End no waiting session."],
        ),
        (
            {"commits": COMMITS._replace(has_standby=True, waiting=1, since=NOW - timedelta(seconds=6))},
            ["which does not confirm them; 1 session waits, the first for 6 seconds. No verb returns."],
        ),
        (
            {"table_locks": [TABLE_LOCK]},
            ["session 4711: It (bob, psql) has locked servicebroker.routes against writes", "been open for 10 minutes"],
        ),
        (
            {"table_locks": [TABLE_LOCK._replace(application="", tables=3)]},
            ["It (bob, no name) has locked servicebroker.routes and 2 other tables against writes"],
        ),
        ({"changed": ("the view sys.routes is missing",)}, ["the view sys.routes is missing", "check --mend"]),
        ({"changed": ("the table servicebroker.routes has another definition",)}, ["Undo the change"]),
        ({"is_foreign": True}, ["another PostgreSQL", "check --mend"]),
        ({"disabled": ["Shop"]}, ["database Shop: Its broker is disabled", "enable_broker"]),
        ({"remote_routes": 2}, ["2 routes lead", "servicebroker serve"]),
        ({"daemon": DAEMON._replace(since=AGO)}, ["session 815", "done nothing for 10 minutes", "hangs"]),
        ({"daemon": DAEMON._replace(state="active", since=AGO)}, ["waited in one statement for 10 minutes"]),
        ({"clocks": [CLOCK]}, ["machine 10.0.0.7: The clock of servicebroker serve there is 3,600 s ahead of"]),
        ({"clocks": [CLOCK._replace(host="", seconds_ahead=-9)]}, ["of the PostgreSQL server: ", "is 9 s behind"]),
        (
            {"processes": [REPLACED._replace(number=1, replaced=0), REPLACED]},
            ["Process 2 of 2 was replaced 3 times, lately 2030-01-01 11:50:00 UTC: it was killed (SIGKILL)."],
        ),
        (
            {"publications": [BlockingPublication("all", "identity", "a.b, a.c, a.d", 7)]},
            ["publication all: It publishes updates and deletes of 7 tables (a.b, a.c, a.d, ...) without a replica"],
        ),
        (
            {"publications": [BlockingPublication("all", "columns", "a.b", 1)]},
            ["leave out some of the replica identity of 1 table (a.b): PostgreSQL refuses", "SET TABLE"],
        ),
        (
            {"publications": [BlockingPublication("all", "filter", "a.b, a.c", 2)]},
            ["outside of the replica identity of 2 tables (a.b, a.c): PostgreSQL refuses", "REPLICA IDENTITY FULL"],
        ),
        ({"refusals": [BROKEN]}, ["peer TCP://far:4022: The connection with it broke, 3 times", "between the two"]),
        ({"remote_routes": 2, "daemon": DAEMON}, ["no endpoint", "CREATE ENDPOINT"]),
        ({"remote_routes": 1, "daemon": DAEMON, "endpoint": "STOPPED"}, ["endpoint is STOPPED", "STARTED"]),
        ({"certificates": [UsedCertificate("", "", "mine", True, AGO)]}, ["certificate mine", "has expired", "create"]),
        (
            {"certificates": [UsedCertificate("", "", "far", False, NOW + timedelta(days=3))]},
            ["of a peer and expires on 2030-01-04"],
        ),
        (
            {"certificates": [UsedCertificate("Shop", "Far", "stock", False, NOW + timedelta(days=29))]},
            ["certificate stock", "user Far in Shop and expires on 2030-01-30", "--database"],
        ),
        (
            {"certificates": [UsedCertificate("", "", "CORP\\shop", True, NOW + timedelta(days=1), "It was revoked.")]},
            ["domain member CORP\\shop", "expires on 2030-01-02, and is not renewed: It was revoked.", "domain show"],
        ),
        (
            {"peers": [PeerFacts("member CORP\\shop, instance 7", "instance", 2, NOW, "another instance", None)]},
            ["peer member CORP\\shop, instance 7: It claims to be", "2 times", "domain revoke"],
        ),
        (
            {"peers": [PeerFacts("", "messages", 1, NOW, "x", None)]},
            ["a peer without certificate", "ENCRYPTION = REQUIRED"],
        ),
        (
            {"peers": [PeerFacts("certificate shop", "twins", 3, NOW, "one at A, one at B", "shop")]},
            ["peer certificate shop: Two daemons", "3 times until", "one at A, one at B", "adopt --identifier new"],
        ),
        (
            {"neighbours": NeighbourFacts(holders=[HOLDER])},
            [
                "session 4711: It (bob, psql, connected since 2030-01-01 11:50:00 UTC) does not belong to",
                "1 lock of the broker (delivery)",
            ],
        ),
        (
            {"neighbours": NeighbourFacts(holders=[HOLDER._replace(since=None, application="", locks=3)])},
            [
                "It (bob, no name) does not belong to",
                "3 locks of the broker",
                "pg_terminate_backend(4711)",
                "rights locks --sql prints",
            ],
        ),
        (
            {"neighbours": NeighbourFacts(hoarders=[HoarderFacts(7, "bob", "", 4000, 6400)])},
            ["session 7: It (bob, no name) holds 4,000 of about 6,400 locks", "max_locks_per_transaction"],
        ),
        (
            {"neighbours": NeighbourFacts(trespassers=[("bob", "SELECT on queue_1, UPDATE on queue_1", 7)])},
            ["role bob: It has 7 rights beyond the verbs (SELECT on queue_1", "servicebroker rights grant bob"],
        ),
        (
            {"neighbours": NeighbourFacts(blockers=[BlockerFacts(7, "bob", "", "definitions", 2, AGO)])},
            [
                "session 7: It (bob, no name) holds the broker's lock of definitions, for which 2 sessions wait, the "
                "first for 10 minutes.",
                "pg_terminate_backend(7)",
            ],
        ),
        (
            {"neighbours": NeighbourFacts(snapshots=[SnapshotFacts(7, "bob", "psql", 12_345)])},
            ["session 7: It (bob, psql) has a transaction open since 12,345 transactions ago", "pg_read_all_stats"],
        ),
        (
            {"neighbours": NeighbourFacts(connections=ConnectionFacts(90, 100, "bob", 60))},
            ["PostgreSQL: 90 of 100 connections are in use, 60 by the role bob.", "ALTER ROLE bob CONNECTION LIMIT"],
        ),
        (
            {"neighbours": NeighbourFacts(connections=ConnectionFacts(notifications=0.753))},
            ["PostgreSQL: The queue of notifications is 75% full", "the server's log names its process"],
        ),
        (
            {"neighbours": NeighbourFacts(holders=[HOLDER._replace(pid=0, prepared="x")])},
            ["transaction x: The role bob has prepared it since", "rollback prepared 'x'"],
        ),
        (
            {"neighbours": NeighbourFacts(able=list("abcdefg"))},
            [
                "7 roles (a, b, c, d, e and 2 others) can take the broker's locks",
                "rights locks --sql prints",
                "REVOKE CONNECT",
            ],
        ),
        (
            {"neighbours": NeighbourFacts(able=["a"], lock_rights=CLOSED._replace(may_close=True))},
            ["1 role (a) can take", "servicebroker rights locks takes the functions from others"],
        ),
        (
            {"neighbours": NeighbourFacts(lock_rights=CLOSED._replace(is_lacking=True))},
            ["needs our locks may not take them (shop): its verbs are refused", "rights locks --sql prints"],
        ),
        ({"is_public": True}, ["endpoint: CONNECT is granted to public", "REVOKE CONNECT"]),
        (
            {"membership": ReportedMembership(None, None, None, None, "There is no domain.")},
            ["in no domain: There is no domain.", "domain join"],
        ),
        (
            {"endpoint": "STARTED", "encryption": "SUPPORTED"},
            ["With ENCRYPTION = SUPPORTED nothing proves who a peer is", "ENCRYPTION = REQUIRED"],
        ),
        (
            {"peers": [PEER]},
            [
                "peer with certificate mallory: Its messages were dropped, 40 times until 2030-01-01 11:50:00 UTC",
                "lately //shop",
                "servicebroker route create",
                "servicebroker certificate drop mallory",
            ],
        ),
        (
            {"peers": [PEER._replace(claim="instance", detail="it is that of shop")]},
            ["claims to be an instance that is another's", "servicebroker certificate accept mallory", "drop mallory"],
        ),
        (
            {"unfinished": [UNFINISHED]},
            [
                "certificate mallory: 9,900 messages of 99 conversations",
                "are not complete, 311.9 MB, the last part arrived",
            ],
        ),
        (
            {"late": [LATE]},
            ["queue Shop.dbo.Web", "3 late answers to requests should have been dropped", "servicebroker serve"],
        ),
        (
            {"late": [LATE._replace(answers=1, are_dropped=False)]},
            ["Nobody handles 1 late answer to a request", "process_late_answers"],
        ),
        ({"unfinished": [UNFINISHED]}, ["the peer's limit", "certificate drop mallory"]),
        (
            {"unfinished": [UNFINISHED._replace(bytes=400)]},
            [
                "are not complete, 0.0 MB, the last part arrived at 2030-01-01 11:50:00 UTC. Check at the peer",
            ],
        ),
        (
            {"unfinished": [UNFINISHED._replace(owner="", certificate=None, messages=1, conversations=1, bytes=400)]},
            ["a peer without certificate: 1 message of 1 conversation is not complete, 0.0 MB"],
        ),
        ({"peers": [PEER._replace(claim="standing")]}, ["reported the primary", "drop mallory"]),
        (
            {"peers": [PEER._replace(claim="address", times=1)]},
            ["address where another peer was, 1 time until", "accept mallory"],
        ),
        (
            {"peers": [PEER._replace(owner="", certificate=None)]},
            ["a peer without certificate: ", "ENCRYPTION = REQUIRED"],
        ),
        (
            {"disputes": [DisputeFacts(UUID(int=7), ["mallory", "shop"])]},
            ["mallory and shop claim to be it", "certificate accept mallory | shop", "--login"],
        ),
        (
            {"sessions": [SESSION]},
            ["session 4711", "open for 10 minutes", "holds 3 conversation groups", "pg_terminate_backend(4711)"],
        ),
    ],
)
def test_an_instance_has_the_findings_of_its_facts(changes: dict[str, Any], words: list[str]) -> None:
    text = "\n".join(report(**changes))
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_on": False, "messages": 3, "oldest": AGO}, ["It is OFF, with 3 messages", "poison inspect"]),
        ({"notifies": True}, ["Nobody sends its event notifications", "servicebroker serve"]),
        (
            {"notifies": True, "hosted": True, "messages": 3, "oldest": AGO},
            ["Nobody receives: 3 messages, the oldest for 10 minutes", "servicebroker activator"],
        ),
        (
            STUCK,
            [
                "Its procedure p was started 10 minutes ago, runs no more",
                "received nothing of 3 messages",
                "OFF), and ON",
            ],
        ),
        (STUCK | {"monitor": "INACTIVE", "activated_at": NOW}, ["started 0 seconds ago", "See in the log"]),
        (STUCK | {"readers": 1, "tasks": 1}, ["1 reader waits and takes nothing of 3 messages"]),
        ({"is_activated": True}, ["without a procedure", "PROCEDURE_NAME"]),
        ({"is_activated": True, "procedure": "p", "max_readers": 0}, ["MAX_QUEUE_READERS = 0"]),
        ({"is_activated": True, "procedure": "p", "max_readers": 1}, ["Nobody runs its activation procedure p"]),
        ({"failing": 2}, ["2 messages have failed and wait", "poison list"]),
        ({"messages": 9, "oldest": AGO}, ["Nobody receives: 9 messages, the oldest for 10 minutes"]),
        ({"messages": 9, "oldest": NOW - timedelta(seconds=11)}, ["Nobody receives: 9 messages"]),
        ({"messages": 9, "oldest": AGO, "readers": 2}, ["2 readers wait and take nothing of 9 messages", "hangs"]),
    ],
)
def test_a_queue_has_the_findings_of_its_facts(changes: dict[str, Any], words: list[str]) -> None:
    (text,) = of_queue(**changes)
    assert text.startswith("queue Shop.dbo.Q: ")
    assert [word for word in words if word not in text] == []


def test_a_failed_message_does_not_hide_that_nobody_reads_its_queue() -> None:
    unread, failing = judge_queue(QUEUE._replace(messages=125, oldest=AGO, failing=1), NOW)
    assert (unread.severity, failing.severity) == (Severity.TROUBLE, Severity.WARNING)
    assert unread.problem == "Nobody receives: 125 messages, the oldest for 10 minutes."
    assert failing.problem == "1 message has failed, and nobody tries it again."


@pytest.mark.parametrize("reader", [{"readers": 1}, {"holders": 1}, {"is_piped": True}, STUCK])
def test_a_failed_message_explains_why_a_reader_takes_nothing(reader: dict[str, Any]) -> None:
    (failing,) = judge_queue(QUEUE._replace(messages=125, oldest=AGO, failing=1)._replace(**reader), NOW)
    assert failing.problem == "1 message has failed and waits for its next try."


def test_dead_letters_are_a_warning() -> None:
    letters = DeadLettersOfQueue(1, "Shop", "dbo.Q", 2, NOW - timedelta(minutes=3), "KeyError: 'jug'")
    (finding,) = judge(WELL._replace(dead_letters=[letters]))
    assert finding.severity == Severity.WARNING
    assert (finding.subject, finding.problem) == (
        "queue Shop.dbo.Q",
        "2 dead letters, the newest since 3 minutes: KeyError: *",
    )
    assert finding.advice.startswith("servicebroker dead-letters list --database Shop ")
    (cut,) = judge(WELL._replace(dead_letters=[letters._replace(letters=COUNT_LIMIT, newest=NOW + timedelta(1))]))
    assert cut.problem == f"At least {COUNT_LIMIT:,} dead letters, the newest since 0 seconds: KeyError: *"


OLD_COPY = OldCopyFacts("Shop", UUID(int=1), "far", True, "//far", 1, AGO, "x")
HELD_GROUP_TIME, AT_ONCE = timedelta(seconds=5), timedelta()
# a state: its findings by the time that it has lasted, the time from which it is told, and whether at exactly that time
LASTS: dict[str, tuple[Callable[[timedelta], Sequence[object]], timedelta, bool]] = {
    "transaction": (lambda age: report(sessions=[SESSION._replace(since=NOW - age)]), LONG_WAIT, False),
    "lock of a table": (lambda age: report(table_locks=[TABLE_LOCK._replace(since=NOW - age)]), TABLE_LOCK_TIME, False),
    "unread message": (lambda age: of_queue(messages=1, oldest=NOW - age), UNEXPLAINED_WAIT, False),
    "message behind a limit": (
        lambda age: of_queue(messages=1, oldest=NOW - age, limits=SLOTS._replace(next_time=NOW)), LONG_WAIT, True,
    ),
    "message that waits": (lambda age: report(waits=[WaitFacts("//far", "", 1, NOW - age)]), UNEXPLAINED_WAIT, False),
    "silent daemon": (lambda age: report(daemon=DAEMON._replace(since=NOW - age)), UNEXPLAINED_WAIT, False),
    "commit": (
        lambda age: report(commits=COMMITS._replace(has_standby=True, waiting=1, since=NOW - age)), STANDBY_WAIT, False,
    ),
    "unfinished messages": (
        lambda age: report(unfinished=[UNFINISHED._replace(bytes=1, last_time=NOW - age)]), UNFINISHED_IDLE, False,
    ),
    "certificate": (
        lambda age: report(certificates=[UsedCertificate("", "", "a", True, NOW - age)]), -EXPIRY_WARNING, True,
    ),
    "expired certificate": (
        lambda age: [text for text in report(certificates=[UsedCertificate("", "", "a", True, NOW - age)])
                     if "has expired" in text], AT_ONCE, True,
    ),
    "session with the group": (
        lambda age: of_talk(holders=[SESSION._replace(since=NOW - age)]), HELD_GROUP_TIME, False,
    ),
    "message of a conversation": (lambda age: of_talk(messages=1, oldest=NOW - age), LONG_WAIT, False),
    "sent message": (lambda age: of_talk(waits=1, sent=NOW - age), UNEXPLAINED_WAIT, False),
    "lifetime": (lambda age: of_talk(lifetime=NOW - age), AT_ONCE, True),
    "overdue delayed message": (
        lambda age: [text for text in of_talk(waits=1, delayed_until=NOW - age) if "waits" in text],
        UNEXPLAINED_WAIT, False,
    ),
}  # fmt: skip
ENDS: dict[str, tuple[Callable[[timedelta], Sequence[object]], timedelta]] = {
    "wrong clock": (lambda age: report(clocks=[CLOCK._replace(last=NOW - age)]), LONG_WAIT),
    "broken connections": (lambda age: report(refusals=[BROKEN._replace(last=NOW - age)]), LONG_WAIT),
    "false claim": (lambda age: report(peers=[PEER._replace(last=NOW - age)]), INCIDENT_AGE),
    "old copy": (lambda age: report(old_copies=[OLD_COPY._replace(last=NOW - age)]), INCIDENT_AGE),
    "replaced process": (lambda age: report(processes=[REPLACED._replace(last_time=NOW - age)]), REFUSAL_AGE),
}
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 seconds"), (1, "1 seconds"), (119, "119 seconds"), (120, "2 minutes"), (7_199, "119 minutes"),
     (7_200, "2 hours"), (172_799, "47 hours"), (172_800, "2 days")],
)  # fmt: skip
def test_a_duration_has_at_least_two_of_its_unit(seconds: int, text: str) -> None:
    assert duration(timedelta(seconds=seconds, microseconds=999_999)) == text


def test_what_the_other_side_has_not_received_is_told_after_what_waits_here() -> None:
    assert len(of_talk(peer_messages=1)) == 1
    for waits in ({"waits": 2, "status": waiting.TARGET_QUEUE_OFF}, {"messages": 1, "oldest": AGO}):
        assert [text for text in of_talk(peer_messages=1, **waits) if "other side" in text] == []


@pytest.mark.parametrize("name", LASTS)
def test_a_state_is_told_from_its_time_on(name: str) -> None:
    findings, limit, at_limit = LASTS[name]
    assert [bool(findings(limit + more)) for more in (-MICROSECOND, timedelta(), MICROSECOND)] == [
        False,
        at_limit,
        True,
    ]


@pytest.mark.parametrize("name", ENDS)
def test_an_event_is_told_until_its_time(name: str) -> None:
    findings, limit = ENDS[name]
    assert [bool(findings(limit + more)) for more in (-MICROSECOND, timedelta())] == [True, False]


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (waiting.NOT_HERE, "create a route"),
        (waiting.TARGET_QUEUE_OFF, "queue on"),
        (waiting.SENDER_DISABLED, "Enable the broker"),
        (waiting.TARGET_DISABLED, "Enable the broker"),
        (RULES[9748].text.format("Service Broker"), "servicebroker serve"),
        ("", "servicebroker route explain"),
    ],
)
def test_why_messages_wait(status: str, advice: str) -> None:
    (text,) = report(waits=[WaitFacts("//far", status, 4, AGO)])
    assert "4 messages to it wait, the oldest since 2030-01-01 11:50:00 UTC" in text
    assert advice in text
    (text,) = of_talk(waits=4, status=status)
    assert "4 messages to //far wait" in text
    assert advice in text
    assert "SQL Server" not in text


@pytest.mark.parametrize(
    ("daemon", "seconds", "is_found"), [(DAEMON, 1, False), (DAEMON, 11, True), (None, 1, True), (None, 11, True)]
)
def test_a_message_that_the_daemon_has_not_taken_yet(daemon: DaemonFacts | None, seconds: int, is_found: bool) -> None:
    """SEND stores "no transport" as status, and the daemon replaces it."""
    wait = WaitFacts("//far", RULES[9748].text.format("Service Broker"), 1, NOW - timedelta(seconds=seconds))
    assert any("message to it waits" in text for text in report(waits=[wait], daemon=daemon)) == is_found


def test_a_mistyped_service_is_asked_about() -> None:
    (text,) = report(waits=[WaitFacts("//fra", waiting.NOT_HERE, 1, AGO, (UUID(int=7), "Shop"), "//far")])
    assert "Did you mean //far?" in text
    assert f"servicebroker end {UUID(int=7)} --database Shop --cleanup" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "ER", "error": (-8408, "no such contract.")}, ["failed with -8408", "ADD CONTRACT"]),
        ({"state": "ER", "error": (-8494, "x")}, ["GRANT SEND"]),
        ({"state": "ER", "error": (500, "no")}, ["failed with 500: no", "begin a new conversation"]),
        ({"state": "ER"}, ["its Error was received", "END CONVERSATION"]),
        ({"state": "DI"}, ["The other side has ended it"]),
        ({"state": "CD"}, ["It is closed", "No action is needed"]),
        ({"lifetime": AGO}, ["lifetime is over"]),
        ({"is_on": False}, ["Its queue Shop.dbo.Q is OFF", "poison retry"]),
        ({"holders": [SESSION]}, ["Session 4711 holds its conversation group", "10 minutes"]),
        ({"failures": 3, "last_error": "ValueError: x"}, ["has failed 3 times", "ValueError: x", "poison end"]),
        ({"messages": 2, "oldest": AGO}, ["Nobody receives its 2 messages"]),
        ({"peer_messages": 2}, ["has not received 2 messages in Shop.dbo.P"]),
        ({"peer_messages": 1}, ["has not received 1 message in Shop.dbo.P"]),
        (
            {"peer_messages": 1, "peer_is_on": False},
            ["queue Shop.dbo.P is OFF, with 1 message of this", "poison retry"],
        ),
        ({"peer_messages": 1}, ["in Shop.dbo.P, where no reader waits"]),
        ({"peer_messages": 1, "peer_readers": 1}, ["in Shop.dbo.P.", "the other side's handle"]),
        ({"messages": 1, "oldest": AGO}, ["Nobody receives its 1 message in"]),
        ({"messages": 2_000, "oldest": AGO}, ["Nobody receives its 2,000 messages in"]),
    ],
)
def test_a_conversation_has_the_findings_of_its_facts(changes: dict[str, Any], words: list[str]) -> None:
    (text,) = of_talk(**changes)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("free", "size", "is_told"), [(30, 500, False), (20, 500, True), (2_000, 10**6, False), (900, 10**6, True)]
)
def test_a_full_disk_is_told(free: int, size: int, is_told: bool) -> None:
    findings = judge_disk("data", free * 2**20, size * 2**20)
    assert [finding.problem for finding in findings] == [f"Its disk is full but for {free} MB."] * is_told


BYTES_PER_GIB = 2**30
MALLORY = UnfinishedOfPeer("certificate mallory", "mallory", 2, 3, BYTES_PER_GIB, AGO, NOW, 2 * BYTES_PER_GIB)


@pytest.mark.parametrize(
    ("usage", "texts"),
    [
        (
            DiskUsage(
                [TableUsage("Shop.dbo.Q", "", "dbo", BYTES_PER_GIB - 1, 9)],
                [],
                [SlotUsage("s", False, BYTES_PER_GIB - 1)],
            ),
            [],
        ),
        (
            DiskUsage([TableUsage("Shop.dbo.Q", "", "alice", 3 * BYTES_PER_GIB, 12_345)]),
            ["NOTE queue Shop.dbo.Q: It uses 3.2 GB of the disk, for about 12,345 rows; its owner is alice."],
        ),
        (
            DiskUsage([TableUsage("", "set_aside_messages", "", BYTES_PER_GIB, 1)]),
            ["NOTE dead letters: It uses 1.1 GB of the disk, for about 1 rows."],
        ),
        (
            DiskUsage([], [MALLORY]),
            ["NOTE peer certificate mallory: Its incomplete messages use 1.1 GB of 2.1 GB that it may use."],
        ),
        (
            DiskUsage([], [], [SlotUsage("old", False, 5 * BYTES_PER_GIB), SlotUsage("new", True, BYTES_PER_GIB)]),
            [
                "WARNING replication slot old: It keeps 5.4 GB of WAL on the disk, and nobody reads it.",
                "NOTE replication slot new: It keeps 1.1 GB of WAL on the disk, and its reader is behind.",
            ],
        ),
    ],
)
def test_large_users_of_the_disk_are_named(usage: DiskUsage, texts: list[str]) -> None:
    lines = [f"{finding.severity.name} {finding.subject}: {finding.problem}" for finding in judge_disk_usage(usage)]
    assert lines == texts


def test_a_full_disk_names_its_largest_users() -> None:
    tables = [TableUsage("Shop.dbo.Q", "", "dbo", 3 * BYTES_PER_GIB, 9), TableUsage("", "made", "", 10**6, 9)]
    assert largest(DiskUsage(tables, [], [SlotUsage("old", False, 5 * BYTES_PER_GIB)])) == (
        "WAL kept by replication slot old (5.4 GB), queue Shop.dbo.Q (3.2 GB), table servicebroker.made (1 MB)"
    )


def test_short_timeouts_of_the_role_are_told() -> None:
    findings = judge_timeouts({"lock_timeout": 1_000, "statement_timeout": 1_001, "transaction_timeout": 0})
    assert [finding.problem[:23] for finding in findings] == ["lock_timeout is 1000 ms"]


def test_a_server_without_a_connection_left_is_not_down() -> None:
    full, down = (judge_down(text, [], NOW)[0] for text in ("FATAL: sorry, too many clients already", "refused"))
    assert (full.problem[:21], down.problem[:10]) == ("No connection is left", "It is down")


@pytest.mark.parametrize(
    "text",
    [
        'FATAL: no pg_hba.conf entry for host "[local]", user "orders_app", database "app", no encryption',
        'FATAL: role "orders_ap" does not exist',
        'FATAL: database "ap" does not exist',
        'FATAL: password authentication failed for user "orders_app"',
        'FATAL: role "orders_app" is not permitted to log in',
        "fe_sendauth: no password supplied",
    ],
)
def test_a_server_that_refuses_a_connection_is_not_down(text: str) -> None:
    (finding,) = judge_down(text, [], NOW)
    assert (finding.problem[:38], finding.advice[:16]) == ("It is up, but refuses this connection,", "Correct the role")


@pytest.mark.parametrize(
    "text", ["FATAL: the database system is starting up", 'No such file: is the server with database "app" running?']
)
def test_a_server_that_does_not_serve_yet_is_down(text: str) -> None:
    assert judge_down(text, [], NOW)[0].problem.startswith("It is down")


def test_versions_that_differ_are_named() -> None:
    assert judge_schema(SchemaDifference(481, 0, 0), "servicebroker 2.0, schema 481") == []
    ((_, problem, advice, *_),) = judge_schema(SchemaDifference(472, 2, 0), "servicebroker 2.0, schema 481")
    assert problem.startswith(
        "It is number 472, of an older servicebroker than this one (servicebroker 2.0, schema 481)"
    )
    assert "servicebroker init" in advice
    ((_, problem, advice, *_),) = judge_schema(SchemaDifference(490, 1, 2), "servicebroker 2.0, schema 481")
    assert ("of a newer" in problem, "upgrade servicebroker here" in advice) == (True, True)
    reports = [DaemonReport(Subject.VERSION, "servicebroker 1.0", NOW), DaemonReport(Subject.LISTENS, "at A", NOW)]
    assert judge_daemon_version(reports, "servicebroker 1.0") == []
    ((_, problem, *_),) = judge_daemon_version(reports, "servicebroker 2.0")
    assert problem == "It is servicebroker 1.0, and this is servicebroker 2.0."
    assert report(daemon=DAEMON._replace(reports=reports)) == []


def test_failed_queries_are_findings() -> None:
    cut, failed = judge_failed_queries(
        [FailedQueryFacts("queues", "why.", True), FailedQueryFacts("peers", "it has no x", False)]
    )
    assert (cut.problem, "pg_locks" in cut.advice) == ("The query of queues failed: why.", True)
    assert (failed.problem, "pg_locks" in failed.advice) == ("The query of peers failed: it has no x", False)
    assert judge_refused("") == []
    ((subject, problem, *_),) = judge_refused("A proxy stands before PostgreSQL.")
    assert (subject, problem) == ("PostgreSQL", "A proxy stands before PostgreSQL.")


def test_a_log_that_is_not_in_its_place() -> None:
    assert "Until then /proc/7/fd/2 has it." in judge_log("/data/postgresql.log", "/proc/7/fd/2").advice
    assert "Until then" not in judge_log("/data/postgresql.log", "").advice
