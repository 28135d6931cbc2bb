"""What the double remembers instead of PostgreSQL: committed rows, what each transaction has changed, its locks.

A transaction sees what is committed, under what it has changed itself (READ COMMITTED). Nothing ever waits: where
PostgreSQL would wait for another transaction, the verb does nothing and raises `WouldWait`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.names import END_DIALOG, ERROR, FIRST_USER_ID
from servicebroker.model.states import EndpointState
from servicebroker.testing.catalog import Broker, Contract, MessageType, Queue, Service

K = TypeVar("K")
V = TypeVar("V")

Lock = tuple[str, UUID]  # what kind of thing, which one
Identify = Callable[[UUID | None], tuple[UUID, UUID, UUID]]
Connect = Callable[[], Any]  # a connection for the tables of an application


@contextmanager
def connected(connect: Connect | None) -> Iterator[Any]:
    """The connection of one transaction, which ends as the block does; None where nobody makes one."""
    connection = connect() if connect else None
    if connection is None:
        yield None
        return
    try:
        yield connection
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.close()


class WouldWait(InstanceError):
    """PostgreSQL would wait for another open transaction here, and the double has only one thread. Nothing was done."""


@dataclass(frozen=True)
class Endpoint:
    """One side of a conversation. `is_parked`: what it sends waits behind what already waits."""

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
    far_handle: UUID | None = None
    is_parked: bool = False
    dialog_timer: datetime | None = None
    security_timestamp: datetime | None = None
    send_sequence: int = 0
    last_received: int | None = None  # what a peer that has gone would have sent next

    @property
    def broker(self) -> Broker:
        """The database it belongs to."""
        return self.service.broker


@dataclass(frozen=True)
class Queued:
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
    def place(self) -> tuple[int, UUID, int, int]:
        """Where it stands among the messages of its group."""
        return -self.priority, self.conversation_handle, self.rank, self.queuing_order


@dataclass(frozen=True)
class Waiting:
    """A message in the transmission queue; `end` names EndDialog or Error, and is empty for data."""

    conversation_handle: UUID
    message_sequence_number: int
    message_type: str
    message_body: bytes | None
    status: str
    enqueue_time: datetime
    end: str = ""

    @property
    def is_end(self) -> bool:
        """It is an EndDialog."""
        return self.end == END_DIALOG

    @property
    def is_error(self) -> bool:
        """It is an Error."""
        return self.end == ERROR


@dataclass
class Memory:
    """What is committed, and the transactions that are open."""

    clock: Callable[[], datetime]
    identify: Identify  # handle, conversation id and group of a new endpoint, whose peer's handle is given
    brokers: list[Broker] = field(default_factory=list)
    endpoints: dict[UUID, Endpoint] = field(default_factory=dict)
    groups: dict[UUID, Service] = field(default_factory=dict)
    messages: dict[int, Queued] = field(default_factory=dict)
    waiting: dict[tuple[UUID, int], Waiting] = field(default_factory=dict)
    transactions: list[Session] = field(default_factory=list)
    object_ids: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_USER_ID))
    orders: Iterator[int] = field(default_factory=lambda: itertools.count(1))

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
        """The row, None when there is none."""
        return self.changes[key] if key in self.changes else self._committed.get(key)

    def items(self) -> list[tuple[K, V]]:
        """Every key and row, in the order in which they came."""
        rows = {**self._committed, **self.changes}
        return [(key, row) for key, row in rows.items() if row is not None]

    def all(self) -> list[V]:
        """Every row, in the order in which they came."""
        return [row for _, row in self.items()]

    def put(self, key: K, row: V) -> None:
        """Add or change a row."""
        self.changes[key] = row

    def remove(self, key: K) -> None:
        """Delete a row."""
        self.changes[key] = None

    def commit(self) -> None:
        """What was changed is true for everybody."""
        for key, row in self.changes.items():
            if row is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = row
        self.changes = {}


class Session:
    """One transaction: its sight of the tables, and the locks that it holds until it ends."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.endpoints = Table(memory.endpoints)
        self.groups = Table(memory.groups)
        self.messages = Table(memory.messages)
        self.waiting = Table(memory.waiting)
        self._locks: dict[Lock, bool] = {}  # whether shared
        self.received_from: set[int] = set()

    @property
    def now(self) -> datetime:
        """The time of the instance's clock."""
        return self.memory.clock()

    # ------------------------------------------------------------ its end

    def commit(self) -> None:
        """End it; everybody sees what it did."""
        for table in self._tables():
            table.commit()
        self.memory.transactions.remove(self)

    def rollback(self) -> None:
        """End it; it did nothing."""
        self.memory.transactions.remove(self)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What the block did is undone when it raises, but the groups that it locked stay locked."""
        changes, locks = self._copy()
        try:
            yield
        except BaseException:
            groups = {lock: shared for lock, shared in self._locks.items() if lock[0] == "group"}
            self._restore(changes, locks | groups)
            raise

    @contextmanager
    def verb(self) -> Iterator[None]:
        """A verb that is refused has changed nothing, and keeps its locks; one that would wait has not begun."""
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
        return [self.endpoints, self.groups, self.messages, self.waiting]

    def _copy(self) -> tuple[list[dict[Any, Any]], dict[Lock, bool]]:
        return [dict(table.changes) for table in self._tables()], dict(self._locks)

    def _restore(self, changes: list[dict[Any, Any]], locks: dict[Lock, bool]) -> None:
        for table, changed in zip(self._tables(), changes, strict=True):
            table.changes = changed
        self._locks = locks

    # ------------------------------------------------------------ locks

    def try_lock(self, kind: str, which: UUID, *, shared: bool = False) -> bool:
        """Take a lock, unless another transaction holds it."""
        lock = kind, which
        for other in self.memory.transactions:
            if other is not self and lock in other._locks and not (shared and other._locks[lock]):
                return False
        self._locks[lock] = shared and self._locks.get(lock, True)
        return True

    def lock(self, kind: str, which: UUID, *, shared: bool = False) -> None:
        """Take a lock.

        Raises:
            WouldWait: another transaction holds it.
        """
        if not self.try_lock(kind, which, shared=shared):
            raise WouldWait(f"Another open transaction holds the lock of the {kind} {which}: end that one first.")

    # ------------------------------------------------------------ endpoints

    def endpoint(self, handle: UUID) -> Endpoint:
        """The endpoint of a handle.

        Raises:
            BrokerError: 8426 when there is none.
        """
        found = self.endpoints.get(handle)
        if found is None:
            raise BrokerError(8426, handle)
        return found

    def peer(self, endpoint: Endpoint) -> Endpoint | None:
        """Where it sends to."""
        return None if endpoint.far_handle is None else self.endpoints.get(endpoint.far_handle)

    def other_side(self, endpoint: Endpoint) -> Endpoint | None:
        """The other endpoint of the conversation, also when this one does not know its address."""
        for other in self.endpoints.all():
            if other.conversation_id == endpoint.conversation_id and other.is_initiator != endpoint.is_initiator:
                return other
        return None

    def update(self, endpoint: Endpoint, **changes: Any) -> Endpoint:
        """Change an endpoint, under its lock. Returns it as it is then."""
        self.lock("endpoint", endpoint.conversation_handle)
        changed = replace(self.endpoint(endpoint.conversation_handle), **changes)
        self.endpoints.put(endpoint.conversation_handle, changed)
        return changed

    def waits_on(self, handle: UUID) -> list[Waiting]:
        """What was sent on a handle and is not delivered, in order."""
        found = [message for message in self.waiting.all() if message.conversation_handle == handle]
        return sorted(found, key=lambda message: message.message_sequence_number)

    def drop_waiting(self, handle: UUID, first: int = 0) -> None:
        """Forget what was sent on a handle and is not delivered, from a number on."""
        for message in self.waits_on(handle):
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
        """Put a message into the queue of the endpoint that is to receive it. Rank 0 and 1 are received first."""
        order = next(self.memory.orders)
        message = Queued(
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

    def messages_in(self, queue: Queue) -> list[Queued]:
        """Every message of a queue that this transaction sees."""
        return [message for message in self.messages.all() if message.service.queue is queue]

    def arrive_anew(self, messages: list[Queued], **changes: Any) -> None:
        """Messages that move get a new order of arrival, in the order in which they stand."""
        for message in messages:
            order = next(self.memory.orders)
            self.messages.remove(message.queuing_order)
            self.messages.put(order, replace(message, queuing_order=order, **changes))
