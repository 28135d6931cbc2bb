"""The users of the disk: queues with their owners, other tables, peers, and replication slots that keep WAL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from servicebroker.engine.diagnosis.findings import Finding, Severity
from servicebroker.engine.remote.unfinished_arrivals import UnfinishedOfPeer, sum_by_peer
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)

LARGE_BYTES = 2**30  # a user of the disk from this size on is reported
MAX_USERS = 3  # tables, peers and slots that are named, of each kind
_INCOMPLETE = "arrived_fragments"
_TABLES = {
    "transmission_queue": "messages to other instances, and messages that wait",
    _INCOMPLETE: "messages of other instances beside their queues",
    "set_aside_messages": "dead letters",
    "shared_bodies": "bodies of messages to several conversations",
    "conversation_endpoints": "conversations",
    "conversation_groups": "conversation groups",
    "audit": "the audit log",
    "trail": "the events of conversations",
    "history": "the history of the dashboard",
}  # the text for a table; a table without a text is named


class TableUsage(NamedTuple):
    """The tables of a queue, or another table.

    Attributes:
        queue: the full name of the queue; '' for another table.
        table: the name of the table; '' for a queue.
        owner: the principal that owns the queue, and its database.
        bytes: with indexes and large values.
        rows: an estimate of PostgreSQL's statistics.
    """

    queue: str
    table: str
    owner: str
    bytes: int
    rows: int

    @property
    def subject(self) -> str:
        """The name in findings."""
        return f"queue {self.queue}" if self.queue else _TABLES.get(self.table, f"table servicebroker.{self.table}")


class SlotUsage(NamedTuple):
    """A replication slot, and the WAL that it keeps."""

    name: str
    is_active: bool
    bytes: int


class DiskUsage(NamedTuple):
    """The largest users of the disk, the largest first. `peers`: only if their table is large."""

    tables: Sequence[TableUsage] = ()
    peers: Sequence[UnfinishedOfPeer] = ()
    slots: Sequence[SlotUsage] = ()


def find_disk_usage() -> Steps[DiskUsage]:
    """Return the largest users of the disk."""
    tables = [TableUsage(*row) for row in (yield SQL("find_disk_usage.tables", (MAX_USERS,)))]
    is_large = any(usage.table == _INCOMPLETE and usage.bytes >= LARGE_BYTES for usage in tables)
    peers = (yield from sum_by_peer(MAX_USERS)) if is_large else []
    slots = [SlotUsage(*row) for row in (yield SQL("find_disk_usage.slots", (MAX_USERS,)))]
    return DiskUsage(tables, peers, slots)


def judge_disk_usage(usage: DiskUsage) -> Iterator[Finding]:
    """Report users of the disk from `LARGE_BYTES` on. Only a slot that nobody reads is a warning."""
    for table in usage.tables:
        if table.bytes >= LARGE_BYTES:
            yield _table(table)
    for peer in usage.peers:
        yield Finding(
            f"peer {peer.owner}",
            f"Its incomplete messages use {size(peer.bytes)} of {size(peer.quota)} that it may use.",
            "servicebroker certificate budget lowers that limit; certificate drop ends what the peer may do here.",
            Severity.NOTE,
        )
    for slot in usage.slots:
        if slot.bytes >= LARGE_BYTES:
            yield _slot(slot)


def largest(usage: DiskUsage) -> str:
    """Return the largest users of the disk in words, for the finding that it is full."""
    users = [(table.bytes, table.subject) for table in usage.tables]
    users += [(slot.bytes, f"WAL kept by replication slot {slot.name}") for slot in usage.slots]
    users.sort(reverse=True)
    return ", ".join(f"{subject} ({size(used)})" for used, subject in users[:MAX_USERS])


def size(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def _table(table: TableUsage) -> Finding:
    owner = f"; its owner is {table.owner}" if table.owner else ""
    problem = f"It uses {size(table.bytes)} of the disk, for about {table.rows:,} rows{owner}."
    advice = (
        "Space of deleted rows is used again. If the rows are few, VACUUM FULL gives it back; others wait meanwhile."
    )
    if table.queue:
        advice = (
            "Receive its messages, or find out who sends them. Space of deleted messages is used again; ALTER QUEUE "
            "... REORGANIZE gives back what it can without making others wait."
        )
    return Finding(table.subject, problem, advice, Severity.NOTE)


def _slot(slot: SlotUsage) -> Finding:
    reader = "its reader is behind" if slot.is_active else "nobody reads it"
    return Finding(
        f"replication slot {slot.name}",
        f"It keeps {size(slot.bytes)} of WAL on the disk, and {reader}.",
        f"Bring its reader back. If there is none any more: select pg_drop_replication_slot('{slot.name}'). "
        "The setting "
        "max_slot_wal_keep_size limits what a slot keeps.",
        Severity.NOTE if slot.is_active else Severity.WARNING,
    )
