"""Metrics that are computed from the database, for `servicebroker serve --metrics`. The queries only read.

Names and meanings are those of SQL Server's performance objects Broker Statistics, Broker Activation and Broker/DBM
Transport, if they have such a counter (docs/reference/metrics.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, FLOWS, TRANSMISSION_QUEUE, queue_statuses
from servicebroker.engine.diagnosis.tds_clients import tds_refusals, tds_servers
from servicebroker.engine.diagnosis.totals import ENQUEUED, RECEIVES, ROLLBACKS, SENDS, totals
from servicebroker.engine.security.certificate_ages import EXPIRY_WARNING, find_used_certificates
from servicebroker.model import names
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class Counter(NamedTuple):
    """One metric: its meaning, and a value for each combination of labels. `rises`: it is a counter, not a gauge."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float]]
    rises: bool = False


def counters() -> Steps[list[Counter]]:
    """Return all metrics."""
    return [
        *(yield from _verbs()),
        *(yield from message_flows()),
        *(yield from _depths()),
        *(yield from _poison()),
        *(yield from _activation()),
        *(yield from _transport()),
        *(yield from _clients()),
        *(yield from _certificates()),
    ]


def _verbs() -> Steps[list[Counter]]:
    """Return the counters that processes of applications add up, every few seconds."""
    totals_by_counter = yield from totals()
    named = (("sql_sends", SENDS), ("sql_receives", RECEIVES), ("broker_transaction_rollbacks", ROLLBACKS))
    return [
        *(Counter(name, f"{counter}.", (), [((), totals_by_counter[counter])], rises=True) for name, counter in named),
        Counter(
            "enqueued_sent_messages",
            "Enqueued P1 to P10 Msgs: messages of SENDs that came into a queue of this instance.",
            ("priority",),
            [((str(priority),), totals_by_counter[counter]) for priority, counter in ENQUEUED.items()],
            rises=True,
        ),
    ]


def message_flows() -> Steps[list[Counter]]:
    """Return the counts of messages that entered and left queues, including those of rolled-back transactions."""
    flows = yield Statement(
        "counters.message_flows",
        "select d.name, q.schema_name || '.' || q.name, f.arrived, f.departed "
        f"from ({FLOWS}) f left join servicebroker.queues q using (queue_id) "
        f"left join servicebroker.databases d using (database_id) where q.queue_id is not null "
        f"or f.queue_id = {TRANSMISSION_QUEUE} order by 1 nulls first, 2",
    )
    (_, _, enqueued, dequeued), *queues = flows
    queue = ("database", "queue")
    return [
        Counter(
            "enqueued_messages",
            "Enqueued Messages Total: messages that came into a queue.",
            queue,
            [((database, name), came) for database, name, came, _ in queues],
            rises=True,
        ),
        Counter(
            "dequeued_messages",
            "Messages that left a queue, by RECEIVE or with their conversation.",
            queue,
            [((database, name), left) for database, name, _, left in queues],
            rises=True,
        ),
        Counter(
            "enqueued_transmissionq_messages",
            "Enqueued TransmissionQ Msgs: messages that had to wait.",
            (),
            [((), enqueued)],
            rises=True,
        ),
        Counter(
            "dequeued_transmissionq_messages",
            "Dequeued TransmissionQ Msgs: messages that left the transmission queue.",
            (),
            [((), dequeued)],
            rises=True,
        ),
    ]


def _depths() -> Steps[list[Counter]]:
    queues = yield from queue_statuses()
    ages = yield SQL("depths.now")
    now: float = ages[0][0]
    waiting = yield Statement(
        "counters.depths.find_transmission_queue",
        "select transmission_status, count(*) from "
        f"(select transmission_status from servicebroker.transmission_queue limit {COUNT_LIMIT}) t group by 1",
    )
    queue = ("database", "queue")
    return [
        Counter(
            "queue_messages",
            f"Messages in a queue, up to {COUNT_LIMIT}.",
            queue,
            [((queue.database, queue.queue), queue.messages) for queue in queues],
        ),
        Counter(
            "queue_oldest_seconds",
            "The age of the oldest message of a queue.",
            queue,
            [
                ((queue.database, queue.queue), max(0.0, now - queue.oldest.timestamp()))
                for queue in queues
                if queue.oldest
            ],
        ),
        Counter(
            "conversations",
            f"Conversation endpoints by state, up to {COUNT_LIMIT} of a queue.",
            (*queue, "state"),
            [
                ((queue.database, queue.queue, state), count)
                for queue in queues
                for state, count in queue.conversations.items()
            ],
        ),
        Counter(
            "transmission_queue_messages",
            f"Messages that wait, by the reason, up to {COUNT_LIMIT}.",
            ("transmission_status",),
            [((status,), count) for status, count in waiting],
        ),
    ]


def _poison() -> Steps[list[Counter]]:
    queues = yield SQL("poison", (names.FIRST_USER_ID,))
    meanings = (
        ("queue_off", "1 where the STATUS of a queue is OFF."),
        ("failing_messages", "Messages that a policy has counted failures of, and that are to be tried again."),
        ("set_aside_messages", "Messages that were set aside for an operator."),
    )
    return [
        Counter(name, meaning, ("database", "queue"), [((row[0], row[1]), row[2 + place]) for row in queues])
        for place, (name, meaning) in enumerate(meanings)
    ]


def _activation() -> Steps[list[Counter]]:
    rows = yield SQL("activation")
    running = [((database, queue), count) for database, queue, count in rows]
    return [Counter("tasks_running", "Tasks Running: activated procedures.", ("database", "queue"), running)]


def _certificates() -> Steps[list[Counter]]:
    """Return the remaining validity of certificates in use; of a domain's certificate only if it was not renewed."""
    rows = yield SQL("certificates")
    now = rows[0][0]
    certificates = yield from find_used_certificates(now)
    left = [
        ((certificate.database, certificate.user, certificate.name), (certificate.expires - now).total_seconds())
        for certificate in certificates
    ]
    return [
        Counter(
            "certificate_seconds_left",
            "The time until a certificate in use expires; below 0 after that.",
            ("database", "user", "certificate"),
            left,
        ),
        Counter(
            "expiring_certificates",
            f"Certificates in use that expire within {EXPIRY_WARNING.days} days or have expired, "
            "or a domain does not renew.",
            (),
            [((), sum(certificate.is_expiring(now) for certificate in certificates))],
        ),
    ]


def _clients() -> Steps[list[Counter]]:
    servers = yield from tds_servers()
    refused = yield from tds_refusals()
    return [
        Counter(
            "user_connections",
            "User Connections: clients of SQL Server that are connected.",
            ("address",),
            [((server.address,), server.clients) for server in servers],
        ),
        Counter(
            "user_sessions",
            "Those of them with a session of PostgreSQL; the others are idle.",
            ("address",),
            [((server.address,), server.sessions) for server in servers],
        ),
        Counter(
            "refused_user_connections",
            "Clients of SQL Server that were refused, by the reason.",
            ("reason",),
            [((refusal.kind,), refusal.times) for refusal in refused],
            rises=True,
        ),
    ]


def _transport() -> Steps[list[Counter]]:
    rows = yield SQL("transport")
    meanings = (
        ("open_connections", "Open Connection Count: connections with other instances."),
        ("connection_send_bytes", "Send I/O bytes Total, of the connections that are open."),
        ("connection_receive_bytes", "Receive I/O bytes Total, of the connections that are open."),
        ("connection_fragment_sends", "Message Fragment Sends, of the connections that are open."),
        ("connection_fragment_receives", "Message Fragment Receives, of the connections that are open."),
    )
    return [
        Counter(name, meaning, ("peer",), [((row[0],), float(row[1 + place])) for row in rows])
        for place, (name, meaning) in enumerate(meanings)
    ]
