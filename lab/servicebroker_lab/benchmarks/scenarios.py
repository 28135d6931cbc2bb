"""The scenarios of the benchmarks: a title, a number of messages and the goals of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

PIPELINE = "pipeline"
# Prefixes of scenario names. A prefix as an argument selects all scenarios that begin with it.
STORAGE = "storage"
REMOTE = "remote"
REMOTE_SCALE = "remote-scale"
REMOTE_OPEN, ANSWERED = "remote-open", "answered"
TSQL = "tsql"
FENCE = "fence"  # functions of restricted roles
CPU = "cpu"  # processor time of the scenario that follows in the name
SCALE = "scale"  # scenarios with 1, 2, 4, ... concurrent processes
DIALOG = "dialog"
REQUEST = "request"
TDS = "tds"  # through the protocol of SQL Server's clients
PREFIXES = {STORAGE, REMOTE, TSQL, FENCE, CPU, SCALE, DIALOG, REQUEST, TDS}
TDS_SENDERS = 4  # clients at a time
IDLE_RECEIVERS, IDLE_S = 200, 10.0  # connections that wait for a message, and how long
CONCURRENT_REQUESTS = 64  # concurrent requests over one queue
CONVERSATIONS_PER_TRANSACTION = 50  # conversations in the scenarios `dialog-groups` and `remote-open`
BASELINE = "baseline"  # servicebroker under easier conditions
LOCAL = "local"  # servicebroker within one instance
RABBITMQ = "rabbitmq"
BARE = "postgresql"  # an INSERT and COMMIT for each message: no queue in PostgreSQL can be faster
PIPELINE_ROUNDS = 3  # maximum, because a round takes a minute

_CPU_GOALS = {  # the goals for the server's processor time for a message, relative to that of a competitor
    "send-one": {"pgmq": 1.0},
    "send-batch": {"pgmq": 0.6},
    "send-loop": {"pgmq": 0.4},
    "receive-one": {"pgmq": 1.1},
    "receive-loop": {"pgmq": 1.2},
    "receive-batch": {"pgmq": 0.3},
    "worker": {BARE: 2.0},
    "poison": {BASELINE: 1.05},
    "dialog-begin": {BARE: 3.0},
    "dialog-answer": {BARE: 4.0},
    "dialog-end": {BARE: 3.0},
}
# numbers of processes: powers of two up to the number of processors
_PROCESSES = [2**power for power in range((os.cpu_count() or 1).bit_length())]


@dataclass(frozen=True)
class Scenario:
    """One comparison.

    Attributes:
        title: the heading in the report.
        messages: the number of messages in a round, at scale 1.
        goals: by competitor, the minimum of our rate divided by its rate.
        compares_cpu_time: compare the server's processor time for a message instead; then a goal is a maximum.
    """

    title: str
    messages: int
    goals: Mapping[str, float] = field(default_factory=dict)
    compares_cpu_time: bool = False


_GOALS_BETWEEN_INSTANCES = {BASELINE: 0.75, RABBITMQ: 1.0}
# Absolute goals ("1,000 a second are wanted") stand only in titles. The report shows them, and nothing checks them.
SCENARIOS: dict[str, Scenario] = {
    "send-one": Scenario(
        "SEND, one per transaction", 3_000, {"pgmq": 1.2, "pgqueuer": 1.2, "procrastinate": 2.0, BARE: 0.76}
    ),
    "send-batch": Scenario("SEND, 1,000 per transaction", 60_000, {"pgmq": 1.8, "pgqueuer": 2.5, "procrastinate": 8.0}),
    "send-loop": Scenario("SEND in a loop, 100 per transaction", 10_000, {"pgmq": 3.0}),
    "receive-one": Scenario("RECEIVE TOP (1), one per transaction", 3_000, {"pgmq": 1.0}),
    "receive-loop": Scenario("RECEIVE TOP (1) in a loop, 100 per transaction", 5_000, {"pgmq": 1.0}),
    "receive-batch": Scenario("RECEIVE TOP (1000)", 100_000, {"pgmq": 3.6}),
    "worker": Scenario("A worker that commits each message", 1_500, {"procrastinate": 10.0, BARE: 0.75}),
    "workers": Scenario(
        "Workers that commit each message, several at a time", 3_000, {"procrastinate": 10.0, BARE: 0.6}
    ),
    "activation": Scenario(
        "Activated readers answer 100 conversations", 10_000, {BASELINE: 5.0, "procrastinate": 10.0}
    ),
    "poison": Scenario("A worker whose failures are tracked", 3_000, {BASELINE: 0.95}),
    "storage-depth": Scenario("RECEIVE from a queue 10,000,000 deep", 1_000, {BASELINE: 0.7}),
    "storage-groups": Scenario("RECEIVE among 1,000,000 groups", 1_000, {BASELINE: 0.7}),
    "storage-locked": Scenario("RECEIVE behind a locked group of 1,000,000 messages", 1_000, {BASELINE: 0.33}),
    "storage-held-read": Scenario(
        "RECEIVE after 1,000,000 messages that vacuum may not remove", 10_000, {BASELINE: 0.9, "pgmq": 1.0}
    ),
    "storage-held-write": Scenario(
        "The same under a transaction that has written", 10_000, {BASELINE: 0.5, "pgmq": 1.0}
    ),
    "storage-crowd": Scenario("16 senders and 16 readers against 4 and 4", 16_000, {BASELINE: 1.0}),
    "storage-whole-group": Scenario("RECEIVE of whole groups against TOP (1)", 10_000, {BASELINE: 4.0}),
    "storage-reuse-send": Scenario("SEND on conversations that are used again", 1_000, {BASELINE: 3.0}),
    "storage-reuse-receive": Scenario("RECEIVE from conversations that are used again", 1_000, {BASELINE: 5.0}),
    "storage-readers": Scenario("4 readers against 1 on 100 groups", 4_000, {BASELINE: 1.4}),
    "storage-readers-one": Scenario("4 readers against 1 on one group", 2_000, {BASELINE: 0.8}),
    "routing": Scenario("Choosing among 10,000 routes against 10", 50_000, {BASELINE: 0.5}),
    "forwarding": Scenario("Through one forwarder against straight", 50_000, {BASELINE: 0.7}),
    "remote-100": Scenario(
        "Between two instances, 100 messages per SEND transaction", 50_000, _GOALS_BETWEEN_INSTANCES
    ),
    "remote-10": Scenario("Between two instances, 10 messages per SEND transaction", 20_000, _GOALS_BETWEEN_INSTANCES),
    "remote-1": Scenario(
        "Between two instances, 16 senders with one message per transaction",
        8_000,
        _GOALS_BETWEEN_INSTANCES | {LOCAL: 0.9},
    ),
    "remote-latency": Scenario("Between two instances, one message at a time", 300, {BASELINE: 0.75}),
    "remote-large": Scenario("Single messages while one of 256 MB travels", 256, {BASELINE: 0.67}),
    "remote-rest": Scenario("10,000 idle conversations; less than 1 % of a core is wanted", 10_000),
    REMOTE_OPEN: Scenario(
        f"Conversations opened between two instances, {CONVERSATIONS_PER_TRANSACTION} in a transaction; "
        "2,500 a second are wanted",
        10_000,
        {BASELINE: 0.5},
    ),
    f"{REMOTE_OPEN}-{ANSWERED}": Scenario(
        "The same, each answered and ended; 800 a second are wanted", 4_000, {BASELINE: 0.5}
    ),
    "remote-fan-in": Scenario("Three instances send to one", 60_000, {BASELINE: 0.75}),
    REMOTE_SCALE: Scenario(
        "Between two instances, by how many cores there are; each line for 10 s", 5_000, {BASELINE: 1.6}
    ),
    "tsql-send": Scenario("SEND through a procedure in T-SQL against Python", 2_000, {BASELINE: 0.5}),
    "tsql-answer": Scenario("RECEIVE and an answer by a procedure in T-SQL against Python", 2_000, {BASELINE: 0.7}),
    "tsql-dialog-begin": Scenario(
        "BEGIN DIALOG and SEND by a procedure in T-SQL against Python", 1_000, {BASELINE: 0.625}
    ),
    "tsql-dialog-answer": Scenario(
        "RECEIVE, SEND and END CONVERSATION by a procedure in T-SQL against Python", 1_000, {BASELINE: 0.625}
    ),
    "tsql-catalog": Scenario("Calls among 1,000 procedures against calls of one", 2_000, {BASELINE: 0.9}),
    "tsql-parse": Scenario("Parsing T-SQL, by 1,000 bytes; 1,000 a second are wanted", 2_000),
    "tds-send": Scenario("SEND by RPC through TDS against the same EXEC in process", 2_000, {BASELINE: 0.7}),
    "tds-senders": Scenario(f"The same by {TDS_SENDERS} clients; 2,000 a second are wanted", 4_000),
    "tds-receive": Scenario(
        "WAITFOR (RECEIVE) of 1,000 rows through TDS; 50,000 a second are wanted", 50_000, {BASELINE: 0.5}
    ),
    "tds-connect": Scenario("Connections with TLS; 33 a second are wanted", 100),
    "tds-idle": Scenario(
        f"Receivers that wait for {IDLE_S:g} s; 1,000 µs of client and server are wanted, 2 % of a core for 200",
        IDLE_RECEIVERS,
    ),
    "fence-send": Scenario(
        "SEND of a restricted role until it is delivered, beside the same by the owner", 2_000, {BASELINE: 0.4}
    ),
    "fence-send-batch": Scenario("The same, 1,000 per transaction", 60_000, {BASELINE: 0.3}),
    "fence-receive": Scenario(
        "RECEIVE TOP (1) of a restricted role, beside the same by the owner", 2_000, {BASELINE: 0.5}
    ),
    DIALOG: Scenario("A request and its answer on a conversation of their own, one at a time", 1_000, {"pgmq": 0.8}),
    f"{DIALOG}-job": Scenario("A conversation for each job", 1_000, {"procrastinate": 1.8}),
    f"{DIALOG}-groups": Scenario(
        f"A conversation for each job, {CONVERSATIONS_PER_TRANSACTION} in a transaction, against one in each",
        1_000,
        {"procrastinate": 5.0},
    ),
    f"{DIALOG}-groups-answer": Scenario(
        f"A request and its answer, {CONVERSATIONS_PER_TRANSACTION} conversations in a transaction, "
        "against one in each",
        1_000,
        {"pgmq": 2.0},
    ),
    f"{DIALOG}-begin": Scenario("BEGIN DIALOG and SEND, one transaction", 1_000),
    f"{DIALOG}-answer": Scenario("RECEIVE, SEND and END CONVERSATION, one transaction", 1_000),
    f"{DIALOG}-end": Scenario("RECEIVE of the answer and END CONVERSATION, one transaction", 1_000),
    "request-one": Scenario("A request and its answer, one at a time; 4 bare commits and 2 ms are wanted", 500),
    REQUEST: Scenario(f"Requests and their answers, {CONCURRENT_REQUESTS} at a time; 1,500 a second are wanted", 2_000),
    PIPELINE: Scenario("Queue into a Delta table with Spark", 2_000_000, {"spark": 0.5}),
    f"{PIPELINE}-depth": Scenario(
        "A queue of 10,000,000 messages into a Delta table, its first tenth against its last",
        10_000_000,
        {BASELINE: 0.9},
    ),
    f"{PIPELINE}-batch": Scenario(
        "Spark source to Parquet, batch", 2_000_000, {"jdbc": 0.9, "spark": 0.9, "parquet": 0.5}
    ),
    f"{PIPELINE}-stream": Scenario(
        "Spark source to Parquet, stream", 2_000_000, {"jdbc": 0.65, "spark": 0.65, "parquet": 0.33}
    ),
    f"{PIPELINE}-steady": Scenario("Spark source to Parquet, a batch of a running stream", 1_000_000, {"jdbc": 0.8}),
    f"{PIPELINE}-write": Scenario("Rows of Spark into messages", 1_000_000, {"jdbc": 0.45, "spark": 0.45}),
}
SCENARIOS |= {
    f"{CPU}-{name}": Scenario(
        f"Processor time: {SCENARIOS[name].title}", SCENARIOS[name].messages, goals, compares_cpu_time=True
    )
    for name, goals in _CPU_GOALS.items()
}
SCENARIOS |= {
    f"{SCALE}-{verb}-{many}": Scenario(f"{title}, {many} at a time", messages * many, {"pgmq": goal})
    for verb, (title, messages, goal) in {
        "send-1": ("SEND, one per transaction", 1_500, 1.1),
        "send-100": ("SEND, 100 per transaction", 20_000, 1.5),
        "receive-1": ("RECEIVE TOP (1), one per transaction", 1_500, 1.0),
        "receive-1000": ("RECEIVE TOP (1000)", 50_000, 3.6),
    }.items()
    for many in _PROCESSES
}
BOTTLENECKS = {  # the bottleneck of a scenario that misses its goal, shown below its table: Markdown for a page in docs
    "send-one": "the commit. A bare one is little more than twice as fast as procrastinate's call.",
    "worker": "RECEIVE and COMMIT travel together, and cost the server more than twice a bare insert and its commit. "
    "The goal, 10 times procrastinate's rate, would need a message to take less time than a bare commit.",
    "workers": "processor time: a message costs four times as much of it as a bare insert, in client and server.",
    "storage-crowd": "processor time: 32 processes and their sessions take turns on the processors "
    "([decision 524](decisions/524-poll-under-load-listen-when-idle.md)).",
    "remote-1": "processor time: with two processors both are busy at 97 %, and SEND alone takes two thirds of that. "
    "The rest is the transfer to the other instance, the insert there, and its reader "
    "([decision 58](decisions/058-rounds-of-the-daemon.md)).",
    "remote-large": "the idle system's median, which lies between 4 and 8 ms from one run to the next.",
    "fence-send": "what the server checks for a role that is not the owner "
    "([decision 165](decisions/165-restricted-roles-have-functions.md)). The owner's SEND has become faster "
    "since the goal was set.",
    "fence-send-batch": "the same as for `fence-send`.",
    "cpu-send-batch": "rows and two indexes. What `send_batch` saves is the client's time.",
    "cpu-worker": "RECEIVE: see `cpu-receive-one`.",
    "pipeline-batch": "rows reach Java through a process of Python, as Arrow "
    "([decision 96](decisions/096-processes-and-costs-of-spark.md)).",
    "pipeline-stream": "the start of a query, 1.3 seconds, and what a batch costs beyond a job: see `pipeline-steady`.",
    "pipeline-steady": "planning a batch, 0.3 to 0.5 seconds, and deleting the last one's rows while two processors "
    "read this one ([decision 96](decisions/096-processes-and-costs-of-spark.md)).",
    "pipeline-write": "the commit. It sends the pieces of all tasks in one transaction, over one connection, into a "
    "table with two indexes; JDBC's tasks insert side by side, each for itself "
    "([decision 91](decisions/091-spark-writer.md)).",
}
