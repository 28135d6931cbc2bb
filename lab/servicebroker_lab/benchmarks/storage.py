"""Measure queues that are deep, crowded, locked or full of dead rows, against easier conditions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from servicebroker.api.transaction import Transaction
from servicebroker.model.messages import Message
from servicebroker.model.poison import Policy, give_up_after
from servicebroker.store import locks
from servicebroker_lab.benchmarks.crowd import Crowd
from servicebroker_lab.benchmarks.measured_system import Implementation, text_body
from servicebroker_lab.benchmarks.scenarios import BASELINE
from servicebroker_lab.benchmarks.servicebroker_system import CONTRACT, INITIATOR, QUEUE, TARGET, TYPE, ServiceBroker

DEPTH_FACTOR = 10_000  # times the measured messages: 10,000,000 at scale 1
CROWD_FACTOR = 1_000  # times the measured messages: 1,000,000 at scale 1
CONSUMED_FACTOR = 100  # times the measured messages: 1,000,000 at scale 1
GROUP_COUNT = 1_000
HEAD = "head"  # the group that is locked

# Insert rows as SEND does: `row` messages of a group, then `row` of the next one.
_FILL = (
    "insert into servicebroker.queue_{0} (message_sequence_number, stamp, conversation_group_id, conversation_handle, "
    "service_id, service_contract_id, message_type_id, priority, bucket, validation, message_body) "
    "select n, pg_current_xact_id(), md5(label)::uuid, md5(label)::uuid, s.service_id, c.service_contract_id, "
    "t.message_type_id, 5, 0, 'N', %(body)s::bytea from servicebroker.services s, servicebroker.service_contracts c, "
    "servicebroker.message_types t, generate_series(0, %(messages)s::int - 1) n, "
    "concat(%(prefix)s::text, n / %(row)s::int %% %(groups)s::int) label "
    "where s.queue_id = {0} and s.name = %(service)s and c.database_id = s.database_id and c.name = %(contract)s "
    "and t.database_id = s.database_id and t.name = %(type)s"
)


def fill_rows(broker: ServiceBroker, messages: int, groups: int, *, prefix: str = "", row: int = 1) -> None:
    """Put messages into the queue of `broker` in one statement: `row` of a group, then `row` of the next one."""
    values = {"body": text_body().encode(), "messages": messages, "groups": groups, "prefix": prefix, "row": row}
    names = {"service": TARGET, "contract": CONTRACT, "type": TYPE}
    with broker.database.instance.connection() as connection:
        connection.execute(_FILL.format(broker.queue_id).encode(), values | names)


class Storage:
    """The conditions of a queue for each scenario, and the measured work."""

    def __init__(self, broker: ServiceBroker) -> None:
        self._broker = broker
        self._database = broker.database
        self._table = f"servicebroker.queue_{broker.queue_id}"
        self._body = text_body().encode()
        self._open = ExitStack()  # resources of the present condition

    def subjects(self) -> dict[str, Implementation]:
        """Return the measured implementation of each scenario."""
        receive = self.receive
        return {
            "poison": Implementation(
                "process(poison=policy)", "no message fails", self._rows, partial(self.work, give_up_after(3))
            ),
            "storage-depth": Implementation("receive(top=1)", "10,000 times as deep", self._deep, receive),
            "storage-groups": Implementation(
                "receive(top=1)", "a group for each message", partial(self._fill_many, None), receive
            ),
            "storage-locked": Implementation(
                "receive(top=1)", "the oldest group, a long one, is locked", self._lock_group, receive
            ),
            "storage-held-read": Implementation(
                "receive(top=10)",
                "an old transaction has read",
                partial(self._fill_and_consume, "select 1"),
                self.receive_tens,
            ),
            "storage-held-write": Implementation(
                "receive(top=10)",
                "an old transaction has written",
                partial(self._fill_and_consume, "select pg_current_xact_id()"),
                self.receive_tens,
            ),
            "storage-crowd": Implementation(
                "send, receive(top=1)",
                "16 senders, 16 readers, each a process",
                partial(self._run_crowd, 16),
                self.run_crowd,
            ),
            "storage-whole-group": Implementation(
                "receive()", "whole groups, a commit for each", self._dialogs, self.receive_groups
            ),
            "storage-reuse-send": Implementation("send", "2 conversations", self._empty, partial(self.send_on, 2)),
            "storage-reuse-receive": Implementation(
                "receive()", "2 conversations", partial(self._send_on, 2), self.receive_groups
            ),
            "storage-readers": Implementation(
                "receive(top=1)", "4 readers, 100 groups", partial(self._run_readers, 100, 4), self.run_crowd
            ),
            "storage-readers-one": Implementation(
                "receive(top=1)", "4 readers, 1 group", partial(self._run_readers, 1, 4), self.run_crowd
            ),
        }

    def baselines(self) -> dict[str, Implementation]:
        """Return the baseline of each scenario."""
        receive = self.receive
        held = Implementation(
            "receive(top=10)", "no old transaction", partial(self._fill_and_consume, None), self.receive_tens
        )
        return {
            "poison": Implementation("process", "no policy", self._rows, partial(self.work, None)),
            "storage-depth": Implementation(
                "receive(top=1)", "a shallow queue", partial(self._fill, GROUP_COUNT), receive
            ),
            "storage-groups": Implementation(
                "receive(top=1)", "1,000 groups", partial(self._fill_many, GROUP_COUNT), receive
            ),
            "storage-locked": Implementation(
                "receive(top=1)", "nothing is locked", partial(self._fill, GROUP_COUNT), receive
            ),
            "storage-held-read": held,
            "storage-held-write": held,
            "storage-crowd": Implementation(
                "send, receive(top=1)",
                "4 senders, 4 readers, each a process",
                partial(self._run_crowd, 4),
                self.run_crowd,
            ),
            "storage-whole-group": Implementation("receive(top=1)", "a commit for each", self._dialogs, receive),
            "storage-reuse-send": Implementation(
                "begin_dialog, send", "one for each message", self._empty, self.send_anew
            ),
            "storage-reuse-receive": Implementation(
                "receive()", "one for each message", partial(self._send_on, None), self.receive_groups
            ),
            "storage-readers": Implementation(
                "receive(top=1)", "1 reader, 100 groups", partial(self._run_readers, 100, 1), self.run_crowd
            ),
            "storage-readers-one": Implementation(
                "receive(top=1)", "1 reader, 1 group", partial(self._run_readers, 1, 1), self.run_crowd
            ),
        }

    def close(self) -> None:
        """Release the resources of the last condition."""
        self._open.close()

    # ---------------------------------------------------------------- conditions

    def _empty(self, messages: int) -> None:
        self._open.close()
        self._broker.begin(messages)

    def _fill(self, groups: int, messages: int, *, prefix: str = "") -> None:
        self._empty(messages)
        self._insert(messages, groups, prefix)

    def _rows(self, messages: int) -> None:
        """Prepare real conversations, and a table of the application."""
        with self._database.instance.connection() as connection:
            connection.execute("create table if not exists bench_rows (number bigint)")
        self._broker.fill_groups(messages)

    def _deep(self, messages: int) -> None:
        self._fill(GROUP_COUNT, messages * DEPTH_FACTOR)

    def _fill_many(self, groups: int | None, messages: int) -> None:
        self._fill(groups or messages * CROWD_FACTOR, messages * CROWD_FACTOR)

    def _lock_group(self, messages: int) -> None:
        self._fill(1, messages * CROWD_FACTOR, prefix=HEAD)
        self._insert(messages, GROUP_COUNT, "")
        second_connection = self._connection()
        second_connection.execute(
            "select pg_advisory_xact_lock(%s, uuid_hash(md5(%s)::uuid))", (locks.CONVERSATION_GROUP, HEAD + "0")
        )

    def _fill_and_consume(self, held_by: str | None, messages: int) -> None:
        """Prepare a queue with 100 times as many consumed messages, which vacuum may not remove."""
        self._empty(messages)
        self._insert(messages * CONSUMED_FACTOR, messages * CONSUMED_FACTOR, "", row=1000)
        self._insert(messages, messages, "later ", row=10)
        if held_by is not None:
            second_connection = self._connection()
            second_connection.execute("set transaction isolation level repeatable read")
            second_connection.execute(held_by.encode())
        left = messages * CONSUMED_FACTOR
        while left:
            left -= len(self._database.receive(QUEUE, top=min(1000, left)))

    def _dialogs(self, messages: int) -> None:
        """Prepare a hundred messages on each conversation."""
        self._send_on(max(1, messages // 100), messages)

    def _send_on(self, conversations: int | None, messages: int) -> None:
        self._empty(messages)
        self.send_on(conversations or messages, messages)

    def _run_crowd(self, count: int, messages: int) -> None:
        """Run a number of senders, each on its own conversation, and as many readers."""
        self._empty(messages)
        handles = [self._begin() for _ in range(count)]
        for handle in handles:
            self._database.send(handle, TYPE, self._body)
        while self._database.receive(QUEUE):
            pass
        self._gather(handles, count, messages)

    def _run_readers(self, groups: int, readers: int, messages: int) -> None:
        """Run a number of readers on a full queue."""
        self._fill(groups, messages)
        self._gather([], readers, messages)

    def _gather(self, handles: list[UUID], readers: int, messages: int) -> None:
        crowd = Crowd(self._database.instance.url, handles, readers, messages)
        self._crowd = self._open.enter_context(closing(crowd))

    def _connection(self) -> psycopg.Connection[Any]:
        return self._open.enter_context(psycopg.connect(self._database.instance.url))

    def _insert(self, messages: int, groups: int, prefix: str, row: int = 1) -> None:
        fill_rows(self._broker, messages, groups, prefix=prefix, row=row)

    def _begin(self) -> UUID:
        return self._database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT)

    # ---------------------------------------------------------------- work

    def work(self, policy: Policy | None, messages: int) -> int:
        """Process each message in a transaction that writes a row."""

        def store(transaction: Transaction, received: list[Message]) -> None:
            transaction.connection.execute("insert into bench_rows values (1)")

        return self._database.process(QUEUE, store, poison=policy)

    def receive(self, messages: int) -> int:
        """Receive messages one by one."""
        return sum(len(self._database.receive(QUEUE, top=1)) for _ in range(messages))

    def receive_tens(self, messages: int) -> int:
        """Receive up to ten messages at a time."""
        message_count = 0
        while message_count < messages:
            message_count += len(self._database.receive(QUEUE, top=min(10, messages - message_count)))
        return message_count

    def receive_groups(self, messages: int) -> int:
        """Receive all messages of a group at a time."""
        message_count = 0
        while received := self._database.receive(QUEUE):
            message_count += len(received)
        return message_count

    def send_on(self, conversations: int, messages: int) -> int:
        """Send on new conversations, a message in each transaction."""
        handles = [self._begin() for _ in range(conversations)]
        for number in range(messages):
            self._database.send(handles[number % conversations], TYPE, self._body)
        return messages

    def send_anew(self, messages: int) -> int:
        """Send each message on a conversation of its own, begun in the same transaction."""
        for _ in range(messages):
            with self._database.transaction() as transaction:
                handle = transaction.begin_dialog(INITIATOR, TARGET, contract=CONTRACT)
                transaction.send(handle, TYPE, self._body)
        return messages

    def run_crowd(self, messages: int) -> int:
        """Run the senders and readers."""
        return self._crowd.run()


class MeasuredStorage:
    """servicebroker under the conditions of a scenario, or of its baseline (by `name`)."""

    def __init__(
        self, name: str, version: str, implementations: dict[str, Implementation], close: Callable[[], None]
    ) -> None:
        self.name = name
        self.version = version
        self._implementations = implementations
        self._close = close

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return the implementations of a scenario."""
        return [self._implementations[scenario]] if scenario in self._implementations else []

    def close(self) -> None:
        """Release the resources of the last condition."""
        self._close()


def storage_systems(broker: ServiceBroker) -> list[MeasuredStorage]:
    """Return the two systems of the scenarios of storage."""
    storage = Storage(broker)
    return [
        MeasuredStorage(broker.name, broker.version, storage.subjects(), storage.close),
        MeasuredStorage(BASELINE, broker.version, storage.baselines(), storage.close),
    ]
