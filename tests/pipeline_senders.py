"""Senders to queues that a pipeline reads, other clients of these queues, and the expected rows of the tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import duckdb
import psycopg
from adbc_driver_manager import Error as ReadError

import servicebroker as sb
from pipeline_support import LINE, Feed
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.stream.reader import QueueReader, QueueStreamReader

FIRST_FLEETING = 1000  # numbers of senders from here on: their conversations are ended by the side that reads

Sent = list[tuple[int, int]]


def make_notes(instance: sb.Instance) -> None:
    """Create the table in which senders record their messages."""
    with instance.connection() as connection:
        connection.execute("create table public.sent (sender bigint, n bigint)")


def recorded_messages(instance: sb.Instance) -> Sent:
    """Return the recorded messages of the senders."""
    with instance.connection() as connection:
        return connection.execute("select sender, n from public.sent order by 1, 2").fetchall()


class Worker(threading.Thread):
    """Repeats its work until it is stopped, also after the server was killed and restarted."""

    def __init__(self, feeds: Sequence[Feed], seed: float) -> None:
        super().__init__()
        self.feeds, self.rng = feeds, random.Random(seed)
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            with contextlib.suppress(OSError, psycopg.Error, ReadError, sb.ServiceBrokerError):  # OSError of Arrow
                self.work()

    def work(self) -> None:
        raise NotImplementedError


class Sender(Worker):
    """Sends numbered messages on two conversations, and records each in a table in the same transaction.

    Attributes:
        confirmed: the messages whose COMMIT has returned.
    """

    def __init__(self, number: int, feed: Feed, seed: float) -> None:
        super().__init__([feed], seed)
        self.confirmed: Sent = []
        self.number, self.feed, self.next = number, feed, 0
        self.handles = [feed.dialog() for _ in range(2)]

    def work(self) -> None:
        count = self.rng.randrange(1, 40)
        numbers = range(self.next, self.next + count)
        self.next += count
        with self.feed.database.transaction() as transaction:
            transaction.connection.execute("select pg_current_xact_id()")
            time.sleep(self.rng.random() * 0.2)
            send(transaction, self.rng.choice(self.handles), self.number, numbers)
            if self.rng.random() < 0.1:
                raise InterruptedError
        self.confirmed += [(self.number, n) for n in numbers]


def send(transaction: sb.Transaction, handle: UUID, sender: int, numbers: Sequence[int]) -> None:
    """Send messages, and record them."""
    transaction.send_batch(handle, LINE, [json.dumps({"sender": sender, "n": n}) for n in numbers])
    rows = [(sender, n) for n in numbers]
    transaction.connection.cursor().executemany("insert into public.sent values (%s, %s)", rows)


class Meddler(Worker):
    """Receives, reads and moves what the pipeline reads, ends conversations, and switches queues off and on.

    Attributes:
        told: how often each action succeeded, and how often it was refused.
    """

    def __init__(self, feeds: Sequence[Feed], seed: float) -> None:
        super().__init__(feeds, seed)
        self.told: Counter[str] = Counter()
        self.fleeting = FIRST_FLEETING

    def work(self) -> None:
        time.sleep(self.rng.random() * 0.6)
        feed = self.rng.choice(self.feeds)
        deed = self.rng.choice((self.receive, self.stream, self.look, self.move, self.end, self.leave, self.switch))
        try:
            deed(feed)
        except sb.ServiceBrokerError:
            self.told[f"{deed.__name__} refused"] += 1
            raise
        self.told[deed.__name__] += 1

    def receive(self, feed: Feed) -> None:
        with contextlib.suppress(InterruptedError), feed.database.transaction() as transaction:
            transaction.receive(feed.queue, top=3)
            raise InterruptedError

    def stream(self, feed: Feed) -> None:
        """Start a second stream, which is refused before it reads a message."""
        reader = QueueStreamReader(source_options(feed.options | {"claimTimeout": "0"}))
        try:
            reader.initialOffset()
        finally:
            reader.stop()

    def look(self, feed: Feed) -> None:
        reader = QueueReader(source_options(feed.options | {"minPartitions": "2"}))
        for part in reader.partitions():
            for _ in reader.read(part):
                pass

    def move(self, feed: Feed) -> None:
        with feed.database.instance.connection() as connection:
            sql = (
                "select conversation_handle, conversation_group_id from servicebroker.conversation_endpoints "
                "join servicebroker.services s using (service_id) where s.name = %s and state = 'CO'"
            )
            rows = connection.execute(sql, (feed.to_service,)).fetchall()
        if len(rows) > 1:
            (handle, _), (_, group) = self.rng.sample(rows, 2)
            feed.database.move_conversation(handle, group)

    def end(self, feed: Feed) -> None:
        """End a conversation on the reading side, which drops its unread messages."""
        handle = self._send(feed)
        time.sleep(self.rng.random())
        with feed.database.instance.connection() as connection:
            sql = "select far_handle from servicebroker.conversation_endpoints where conversation_handle = %s"
            ((far,),) = connection.execute(sql, (handle,)).fetchall()
        if far is not None:
            feed.database.end_conversation(far)

    def leave(self, feed: Feed) -> None:
        """End a conversation on the sending side. Its sent messages still arrive."""
        feed.database.end_conversation(self._send(feed, fleeting=False))

    def _send(self, feed: Feed, *, fleeting: bool = True) -> UUID:
        self.fleeting += 1
        number = self.fleeting if fleeting else -self.fleeting
        with feed.database.transaction() as transaction:
            handle = transaction.begin_dialog(feed.from_service, feed.to_service, contract="Lines")
            send(transaction, handle, number, range(self.rng.randrange(1, 20)))
        return handle

    def switch(self, feed: Feed) -> None:
        feed.database.alter_queue(feed.queue, status=False)
        time.sleep(self.rng.random())
        feed.database.alter_queue(feed.queue, status=True)


def check(lines: list[str], bronze: list[str], sent: Sent, *, moved: bool = False) -> None:
    """Check that DuckDB reads from the files of the tables what the senders have noted.

    Of a fleeting conversation it is the beginning. Bronze knows a message by its place in the queue, which MOVE
    changes.
    """
    found = duckdb.sql(f"select sender, n from read_parquet({lines}) order by 1, 2").fetchall()
    assert [row for row in found if row[0] < FIRST_FLEETING] == [row for row in sent if row[0] < FIRST_FLEETING]
    fleeting = Counter(sender for sender, _ in found if sender >= FIRST_FLEETING)
    expected = Counter(sender for sender, _ in sent)
    assert all(count <= expected[sender] for sender, count in fleeting.items())
    # along a conversation, numbers have no gap and the bodies are in their order
    disorder = duckdb.sql(
        "select count(*) from (select _message_sequence_number - row_number() over w + 1 as gap, "
        "n - lag(n) over w as step, _queuing_order - lag(_queuing_order) over w as arrival "
        f"from read_parquet({lines}) "
        "window w as (partition by _conversation_handle order by _message_sequence_number)) "
        "where gap <> 0 or step <= 0 or arrival <= 0"
    ).fetchall()
    assert disorder == [(0,)]
    sender = "regexp_extract(decode(message_body), '\"sender\": (-?[0-9]+)', 1)::bigint"
    counted = (
        "select count(*), count(distinct (conversation_handle, queuing_order)), "
        "count(distinct (conversation_handle, message_sequence_number)), "
        f"count(distinct (conversation_handle, message_sequence_number)) filter ({sender} < {FIRST_FLEETING}) "
        f"from read_parquet({bronze}) where message_type_name = '{LINE}'"
    )
    ((rows, places, messages, steady),) = duckdb.sql(counted).fetchall()
    assert (rows, steady) == (places, sum(sender < FIRST_FLEETING for sender, _ in found))
    assert moved or rows == messages
    assert messages >= len(found)  # a conversation that ended between two tries of a batch may be in bronze alone


SHORT_CONVERSATIONS, LONG_MESSAGES = 10_000, 200_000  # conversations of one message, messages of one conversation
SIZES = (0, 1, 1_999, 2_001, 1_000_000, 20_000_000)  # bytes


def say_all_sizes(feed: Feed) -> Sent:
    """Send many conversations of one message, one of many messages, and one with bodies of all sizes (no lines).

    Returns the sender and the number of each line.
    """
    for start in range(0, SHORT_CONVERSATIONS, 500):
        with feed.database.transaction() as transaction:
            for sender in range(start, start + 500):
                handle = transaction.begin_dialog(feed.from_service, feed.to_service, contract="Lines")
                transaction.send(handle, LINE, b'{"sender": %d, "n": 0}' % sender)
    long = feed.dialog()
    for start in range(0, LONG_MESSAGES, 10_000):
        bodies = [b'{"sender": -1, "n": %d}' % n for n in range(start, start + 10_000)]
        with feed.database.transaction() as transaction:
            transaction.send_batch(long, LINE, bodies)
    feed.dialog(*(b"x" * size for size in SIZES))
    return [*((-1, n) for n in range(LONG_MESSAGES)), *((sender, 0) for sender in range(SHORT_CONVERSATIONS))]


def check_all_sizes(lines: list[str], bronze: list[str], quarantine: list[str], sent: Sent) -> None:
    """Check that each line is in its table and each other body in quarantine, exactly once."""
    assert duckdb.sql(f"select sender, n from read_parquet({lines}) order by 1, 2").fetchall() == sent
    counted = (
        f"select count(*), count(distinct (conversation_handle, message_sequence_number)) from read_parquet({bronze})"
    )
    assert duckdb.sql(counted).fetchall() == [(len(sent) + len(SIZES),) * 2]
    sizes = (
        "select coalesce(octet_length(message_body), 0) as size, md5(coalesce(message_body, ''::blob)) "
        f"from read_parquet({quarantine}) order by size"
    )
    assert duckdb.sql(sizes).fetchall() == [(size, hashlib.md5(b"x" * size).hexdigest()) for size in SIZES]
