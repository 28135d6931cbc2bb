"""Committed rows in memory instead of PostgreSQL, with the changes and locks of each open transaction.

A transaction sees committed rows and its own changes (READ COMMITTED). Nothing ever waits: if PostgreSQL would wait
for another transaction, the statement does nothing and raises `WouldWait`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers.schedules import Schedule
from servicebroker.model.names import END_DIALOG, ERROR, FIRST_USER_ID
from servicebroker.model.poison import SetAsideMessage
from servicebroker.model.states import EndpointState
from servicebroker.testing.catalog import Broker, Contract, MessageType, Queue, Service
from servicebroker.testing.sqlite import Connection

K = TypeVar("K")
V = TypeVar("V")

Lock = tuple[str, Hashable]  # (kind, id) of the locked object: "group", "endpoint", "row of the group" and others
IdentityFactory = Callable[[UUID | None], tuple[UUID, UUID, UUID]]
Connect = Callable[[], Any]  # returns a connection for the tables of an application


@contextmanager
def application_connection(connect: Connect | None, clock: Callable[[], datetime]) -> Iterator[Any]:
    """Yield a connection for one transaction, which commits or rolls back with the block; None without `connect`."""
    connection = connect() if connect else None
    if connection is None:
        yield None
        return
    if isinstance(connection, Connection):
        connection.clock = clock
    try:
        yield connection
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.close()


class WouldWait(InstanceError):
    """A statement would wait for another open transaction, but the double has only one thread. Nothing was done."""


@dataclass(frozen=True)
class Endpoint:
    """One side of a conversation.

    `is_parked`: earlier messages wait in the transmission queue, so further ones are put behind them.
    """

    conversation_handle: UUID
    conversation_id: UUID
    conversation_group_id: UUID
    is_initiator: bool
    service: Service
    contract: Contract
    priority: int
    state: EndpointState
    lifetime: datetime
    far_service: str
    far_broker_instance: str | None
    peer_handle: UUID | None = None
    is_parked: bool = False
    dialog_timer: datetime | None = None
    security_timestamp: datetime | None = None
    send_sequence: int = 0
    last_received: int | None = None  # next sequence number of a removed peer
    chosen_priority: int | None = None  # the priority that BEGIN DIALOG has chosen

    @property
    def broker(self) -> Broker:
        """The database of the endpoint."""
        return self.service.broker


@dataclass(frozen=True)
class QueuedMessage:
    """A message in the queue of its service."""

    queuing_order: int
    rank: int
    priority: int
    conversation_group_id: UUID
    conversation_handle: UUID
    message_sequence_number: int
    service: Service
    contract: Contract
    message_type: MessageType
    message_body: bytes | None
    message_enqueue_time: datetime
    validation: str

    @property
    def sort_key(self) -> tuple[int, UUID, int, int]:
        """The key that orders the messages of a group."""
        return -self.priority, self.conversation_handle, self.rank, self.queuing_order


@dataclass(frozen=True)
class UndeliveredMessage:
    """A message in the transmission queue.

    Attributes:
        end: the message type of EndDialog or Error; "" for other messages.
        delayed_until: the time before which neither the message nor a later one of its conversation is delivered.
    """

    conversation_handle: UUID
    message_sequence_number: int
    message_type: str
    message_body: bytes | None
    status: str
    enqueue_time: datetime
    end: str = ""
    delayed_until: datetime | None = None

    @property
    def is_end(self) -> bool:
        """True for an EndDialog."""
        return self.end == END_DIALOG

    @property
    def is_error(self) -> bool:
        """True for an Error."""
        return self.end == ERROR


class FailureRecord(NamedTuple):
    """The failures of a message so far."""

    failures: int
    first_failed_at: datetime
    first_error: str


class StoredSchedule(NamedTuple):
    """A schedule of a worker, with its conversation."""

    broker: Broker
    queue: Queue
    name: str
    handle: UUID
    schedule: Schedule
    next_time: datetime


class DeadLetter(NamedTuple):
    """A dead letter, with its database and queue."""

    broker: Broker
    queue: Queue
    letter: SetAsideMessage


class IdempotencyKey(NamedTuple):
    """The conversation that was begun with an idempotency key, and the time when the key expires."""

    handle: UUID
    expires_at: datetime


@dataclass
class Memory:
    """The committed rows, and the open transactions."""

    clock: Callable[[], datetime]
    identify: IdentityFactory  # peer's handle -> (handle, conversation id, group) of a new endpoint
    brokers: list[Broker] = field(default_factory=list)
    endpoints: dict[UUID, Endpoint] = field(default_factory=dict)
    groups: dict[UUID, Service] = field(default_factory=dict)
    messages: dict[int, QueuedMessage] = field(default_factory=dict)
    waiting: dict[tuple[UUID, int], UndeliveredMessage] = field(default_factory=dict)
    keys: dict[tuple[int, str], IdempotencyKey] = field(default_factory=dict)  # idempotency keys, by service and key
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)
    schedules: dict[tuple[int, str], StoredSchedule] = field(default_factory=dict)  # schedules, by queue and name
    # Failures, by handle, number and type of the message
    failures: dict[tuple[UUID, int, int], FailureRecord] = field(default_factory=dict)
    # By group, the time before which no RECEIVE takes from it
    retry_at: dict[UUID, datetime] = field(default_factory=dict)
    transactions: list[Session] = field(default_factory=list)
    object_ids: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_USER_ID))
    orders: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    dead_letter_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self) -> Session:
        """Open a transaction."""
        session = Session(self)
        self.transactions.append(session)
        return session


class Table(Generic[K, V]):
    """One table as a transaction sees it."""

    def __init__(self, committed: dict[K, V]) -> None:
        self._committed = committed
        self.changes: dict[K, V | None] = {}  # None: deleted

    def get(self, key: K) -> V | None:
        """Return the row of a key, None without one."""
        return self.changes[key] if key in self.changes else self._committed.get(key)

    def items(self) -> list[tuple[K, V]]:
        """Return all keys and rows, in the order of their insertion."""
        rows = {**self._committed, **self.changes}
        return [(key, row) for key, row in rows.items() if row is not None]

    def all(self) -> list[V]:
        """Return all rows, in the order of their insertion."""
        return [row for _, row in self.items()]

    def put(self, key: K, row: V) -> None:
        """Add or change a row."""
        self.changes[key] = row

    def remove(self, key: K) -> None:
        """Delete a row."""
        self.changes[key] = None

    def commit(self) -> None:
        """Make the changes visible to all transactions."""
        for key, row in self.changes.items():
            if row is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = row
        self.changes = {}


class Session:
    """One transaction: its view of the tables, and the locks that it holds until its end."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.endpoints = Table(memory.endpoints)
        self.groups = Table(memory.groups)
        self.messages = Table(memory.messages)
        self.waiting = Table(memory.waiting)
        self.dead_letters = Table(memory.dead_letters)
        self.keys = Table(memory.keys)
        self.schedules = Table(memory.schedules)
        self._locks: dict[Lock, bool] = {}  # True for a shared lock
        self.received_from: set[int] = set()

    @property
    def now(self) -> datetime:
        """The time of the instance's clock."""
        return self.memory.clock()

    # ------------------------------------------------------------ commit and rollback

    def commit(self) -> None:
        """End the transaction, and make its changes visible to all transactions."""
        for table in self._tables():
            table.commit()
        self.memory.transactions.remove(self)

    def rollback(self) -> None:
        """End the transaction without any effect."""
        self.memory.transactions.remove(self)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """If the block raises, undo its changes. Group locks that it took remain."""
        changes, locks = self._copy()
        try:
            yield
        except BaseException:
            groups = {lock: shared for lock, shared in self._locks.items() if lock[0] == "group"}
            self._restore(changes, locks | groups)
            raise

    @contextmanager
    def verb(self) -> Iterator[None]:
        """If the statement in the block raises, undo its changes. Its locks remain, except after `WouldWait`."""
        changes, locks = self._copy()
        try:
            yield
        except WouldWait:
            self._restore(changes, locks)
            raise
        except BaseException:
            self._restore(changes, self._locks)
            raise

    def _tables(self) -> list[Table[Any, Any]]:
        tables: list[Table[Any, Any]] = [self.endpoints, self.groups, self.messages, self.waiting, self.dead_letters]
        return [*tables, self.keys, self.schedules]

    def _copy(self) -> tuple[list[dict[Any, Any]], dict[Lock, bool]]:
        return [dict(table.changes) for table in self._tables()], dict(self._locks)

    def _restore(self, changes: list[dict[Any, Any]], locks: dict[Lock, bool]) -> None:
        for table, changed in zip(self._tables(), changes, strict=True):
            table.changes = changed
        self._locks = locks

    def waits_for_retry(self, group: UUID) -> bool:
        """Return whether a group waits for a retry."""
        return (until := self.memory.retry_at.get(group)) is not None and until > self.now

    # ------------------------------------------------------------ locks

    def try_lock(self, kind: str, which: Hashable, *, shared: bool = False) -> bool:
        """Take a lock, unless another transaction holds it. Return whether it was taken."""
        lock = kind, which
        for other in self.memory.transactions:
            if other is not self and lock in other._locks and not (shared and other._locks[lock]):
                return False
        self._locks[lock] = shared and self._locks.get(lock, True)
        return True

    def lock(self, kind: str, which: Hashable, *, shared: bool = False) -> None:
        """Take a lock.

        Raises:
            WouldWait: another transaction holds it.
        """
        if not self.try_lock(kind, which, shared=shared):
            raise WouldWait(
                f"Another open transaction holds the lock of the {kind} {which}: end that transaction first."
            )

    # ------------------------------------------------------------ endpoints

    def endpoint(self, handle: UUID) -> Endpoint:
        """Return the endpoint of a handle.

        Raises:
            BrokerError: 8426 there is no such endpoint.
        """
        endpoint = self.endpoints.get(handle)
        if endpoint is None:
            raise BrokerError(8426, handle)
        return endpoint

    def peer(self, endpoint: Endpoint) -> Endpoint | None:
        """Return the endpoint to which this one sends; None if this one does not know its handle."""
        return None if endpoint.peer_handle is None else self.endpoints.get(endpoint.peer_handle)

    def other_side(self, endpoint: Endpoint) -> Endpoint | None:
        """Return the other endpoint of the conversation, even if this one lacks its handle; None without one."""
        for other in self.endpoints.all():
            if other.conversation_id == endpoint.conversation_id and other.is_initiator != endpoint.is_initiator:
                return other
        return None

    def update(self, endpoint: Endpoint, **changes: Any) -> Endpoint:
        """Change an endpoint, under its lock. Returns the new row."""
        self.lock("endpoint", endpoint.conversation_handle)
        changed = replace(self.endpoint(endpoint.conversation_handle), **changes)
        self.endpoints.put(endpoint.conversation_handle, changed)
        return changed

    def undelivered(self, handle: UUID) -> list[UndeliveredMessage]:
        """Return the undelivered messages that were sent on a handle, in order."""
        messages = [message for message in self.waiting.all() if message.conversation_handle == handle]
        return sorted(messages, key=lambda message: message.message_sequence_number)

    def deliverable(self, handle: UUID) -> list[UndeliveredMessage]:
        """Return the undelivered messages that were sent on a handle and precede the first delayed one."""
        return list(takewhile(lambda message: message.delayed_until is None, self.undelivered(handle)))

    def is_delayed(self, handle: UUID) -> bool:
        """Return whether a message that was sent on a handle is delayed."""
        return any(message.delayed_until for message in self.undelivered(handle))

    def drop_undelivered(self, handle: UUID, first: int = 0) -> None:
        """Drop undelivered messages that were sent on a handle, from the sequence number `first` on."""
        for message in self.undelivered(handle):
            if message.message_sequence_number >= first:
                self.waiting.remove((handle, message.message_sequence_number))

    def enqueue(
        self,
        receiver: Endpoint,
        message_type: MessageType,
        body: bytes | None = None,
        *,
        number: int = 0,
        rank: int = 2,
    ) -> None:
        """Put a message into the queue of the endpoint `receiver`. RECEIVE returns rank 0 first, then 1, then 2."""
        order = next(self.memory.orders)
        message = QueuedMessage(
            order,
            rank,
            receiver.priority,
            receiver.conversation_group_id,
            receiver.conversation_handle,
            number,
            receiver.service,
            receiver.contract,
            message_type,
            body,
            self.now,
            message_type.validation,
        )
        self.messages.put(order, message)

    def messages_in(self, queue: Queue) -> list[QueuedMessage]:
        """Return the messages of a queue that this transaction sees."""
        return [message for message in self.messages.all() if message.service.queue is queue]

    def requeue(self, messages: list[QueuedMessage], **changes: Any) -> None:
        """Put messages at the end of their queue, in the same relative order, with these changes."""
        for message in messages:
            order = next(self.memory.orders)
            self.messages.remove(message.queuing_order)
            self.messages.put(order, replace(message, queuing_order=order, **changes))
