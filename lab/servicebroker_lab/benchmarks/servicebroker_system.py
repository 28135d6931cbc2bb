"""servicebroker as a measured system, through its public API."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.engine.catalog.catalog import find_queue
from servicebroker.store.running import run
from servicebroker_lab.benchmarks.measured_system import BATCH_MESSAGES, LOOP_SENDS, Implementation, batches, text_body

DATABASE = "Benchmark"
QUEUE = "TargetQueue"
TYPE = "//bench/Message"
READER_COUNT, GROUP_COUNT = 4, 32  # the numbers of the scenario with several workers
INITIATOR, TARGET, CONTRACT = "//bench/Initiator", "//bench/Target", "//bench/Contract"


class ServiceBroker:
    """Two services of one database. Messages go from one to the other on conversations that stay open."""

    name = "servicebroker"

    def __init__(self, instance: Instance) -> None:
        self.version = version("servicebroker")
        self.database = set_up(instance)
        self._body = text_body().encode()
        self._handle = UUID(int=0)
        with instance.connection() as connection:
            queue = run(connection, find_queue(instance.catalog, self.database.database_id, QUEUE))
        self.queue_id = queue.queue_id

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return the implementations of a scenario."""
        return {
            "send-one": [Implementation("send", "", self.begin, self._send_one)],
            "send-batch": [Implementation("send_batch", f"{BATCH_MESSAGES:,} a batch", self.begin, self._send_batch)],
            "send-loop": [
                Implementation("send in a pipeline", f"{LOOP_SENDS} a transaction", self.begin, self._send_loop)
            ],
            "receive-one": [Implementation("receive(top=1)", "", self.fill, self._receive_one)],
            "receive-loop": [
                Implementation("receive(top=1)", f"{LOOP_SENDS} a transaction", self.fill, self._receive_loop)
            ],
            "receive-batch": [Implementation(f"receive(top={BATCH_MESSAGES})", "", self.fill, self._receive_batch)],
            "worker": [Implementation("process", "a transaction for each message", self.fill, self._work)],
            "workers": [
                Implementation(
                    f"process, {READER_COUNT} readers",
                    f"threads, {GROUP_COUNT} groups",
                    self.fill_groups,
                    self._work_in_threads,
                )
            ],
        }.get(scenario, [])

    def close(self) -> None:
        """Do nothing, because the caller closes the instance."""

    def begin(self, messages: int) -> None:
        """Empty the queue, and begin a conversation."""
        with self.database.instance.connection() as connection:
            connection.execute(f"truncate servicebroker.queue_{self.queue_id}")
        self._handle = self.database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT)
        for _ in range(20):  # opens the target; prepares the statements
            self.database.send(self._handle, TYPE, self._body)
        self.database.send_batch(self._handle, TYPE, [self._body] * 2)
        while self.database.receive(QUEUE, top=5):
            pass

    def fill(self, messages: int) -> None:
        """Put a number of messages into the queue."""
        self.begin(messages)
        self._send_batch(messages)

    def fill_groups(self, messages: int) -> None:
        """Put messages of GROUP_COUNT conversations into the queue, because a group has one reader at a time."""
        self.begin(messages)
        for number in range(GROUP_COUNT):
            handle = self.database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT)
            if share := messages // GROUP_COUNT + (number < messages % GROUP_COUNT):
                self.database.send_batch(handle, TYPE, [self._body] * share)

    def _send_one(self, messages: int) -> int:
        database, handle, body = self.database, self._handle, self._body
        for _ in range(messages):
            database.send(handle, TYPE, body)
        return messages

    def _send_loop(self, messages: int) -> int:
        for size in batches(messages, LOOP_SENDS):
            with self.database.transaction() as transaction, transaction.pipeline():
                for _ in range(size):
                    transaction.send(self._handle, TYPE, self._body)
        return messages

    def _send_batch(self, messages: int) -> int:
        for size in batches(messages):
            self.database.send_batch(self._handle, TYPE, [self._body] * size)
        return messages

    def _receive_one(self, messages: int) -> int:
        return sum(len(self.database.receive(QUEUE, top=1)) for _ in range(messages))

    def _receive_loop(self, messages: int) -> int:
        message_count = 0
        for size in batches(messages, LOOP_SENDS):
            with self.database.transaction() as transaction:
                message_count += sum(len(transaction.receive(QUEUE, top=1)) for _ in range(size))
        return message_count

    def _receive_batch(self, messages: int) -> int:
        message_count = 0
        while received := self.database.receive(QUEUE, top=BATCH_MESSAGES):
            message_count += len(received)
        return message_count

    def _work(self, messages: int) -> int:
        calls: list[None] = []  # an element for each call, as the tasks of the competitors do
        self.database.process(QUEUE, lambda transaction, received: calls.append(None))
        return len(calls)

    def _work_in_threads(self, messages: int) -> int:
        with ThreadPoolExecutor(READER_COUNT) as readers:
            return sum(readers.map(self._work, [messages] * READER_COUNT))


def set_up(instance: Instance) -> Database:
    """Create the database of the benchmarks, with its services."""
    database = instance.database(DATABASE, create=True)
    database.create_message_type(TYPE)
    database.create_contract(CONTRACT, {TYPE: "INITIATOR"})
    database.create_queue("InitiatorQueue")
    database.create_queue(QUEUE)
    database.create_service(INITIATOR, "InitiatorQueue")
    database.create_service(TARGET, QUEUE, [CONTRACT])
    return database
