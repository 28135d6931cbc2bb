"""Contracts, queues and services: creating them; and finding what the catalog knows, by name and by number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.ways import FencedWays, Ways
from servicebroker.model import names
from servicebroker.model.arguments import SENT_BY, checked_contracts
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_SCHEMA, User
from servicebroker.model.xml import SchemaCollection, SchemaDocument
from servicebroker.operations.contracts import CreateContract
from servicebroker.operations.queues import CreateQueue
from servicebroker.operations.services import CreateService
from servicebroker.protocol.routing import Route, RoutingTable
from servicebroker.store import locks
from servicebroker.store.queue import queue_objects
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Rows, Statement, Steps

if TYPE_CHECKING:
    from servicebroker.store.keys.opened_keys import OpenedKeys  # loads the ciphers

SQL = SqlFile(__file__)


_CHANNELS_KEPT = 10_000
_TAKEN_KEPT = 10_000  # conversations of received messages
_ANSWERS_KEPT = 1_000  # services with a contract
_USAGES_KEPT = 1_000  # of contracts; every change of permissions makes new versions


class Usage(NamedTuple):
    """What a contract says of one message type, with its id and validation in that database."""

    message_type_id: int
    validation: str
    by_initiator: bool
    by_target: bool
    schemas: SchemaCollection | None = None

    def allows(self, is_initiator: bool) -> bool:
        """Whether that side may send it."""
        return self.by_initiator if is_initiator else self.by_target


Usages = Mapping[str, Usage]


class Queue(NamedTuple):
    """A queue that was found by name."""

    queue_id: int
    database_id: int
    name: str


class Channel(NamedTuple):
    """What a SEND on one conversation handle relies on; its statement finds out when that has changed.

    `far_queue_id` is 0 when the peer is in another instance.
    """

    is_initiator: bool
    far_queue_id: int
    near: Usages
    far: Usages
    catalog_version: int
    far_priority: int = 0


class Taken(NamedTuple):
    """What RECEIVE has brought of a conversation, for the verbs that follow on it; none of it changes.

    `has_ended`: EndDialog was received.
    """

    queue_id: int
    service_id: int
    service_contract_id: int
    has_ended: bool

    @property
    def kind(self) -> tuple[int, int]:
        """Conversations of one service under one contract mostly have one peer."""
        return self.service_id, self.service_contract_id

    @property
    def ends(self) -> tuple[int, int]:
        """What the permission to END is asked for: the queue and the service."""
        return self.queue_id, self.service_id


class Answered(NamedTuple):
    """The way that the last SEND on a conversation of some service and contract went.

    The first SEND on the next one tries it. Its statement finds out whether the peer is the same.
    """

    channel: Channel
    far_service_id: int
    far_contract_id: int


def _uncounted(priority: int, many: int) -> None:
    """Nobody wants to know."""


class Labels(NamedTuple):
    """Names by number in one database."""

    services: dict[int, str]
    contracts: dict[int, str]
    message_types: dict[int, str]


@dataclass
class Catalog:
    """What one process remembers of the catalog. All of it is immutable in the database, or verified on use.

    `user` is the principal that it was looked up for, with its permissions; None for dbo. `receivable` holds the
    catalog version under which that principal may receive from a queue, by the queue's number; `endable` the one under
    which it may end conversations, by `Taken.ends`. `enqueued` is told of
    messages that a SEND has put into a queue: their priority, and how many. `keys` opens what remote service bindings
    inside the instance need; without it their conversations wait for a process that has it.
    """

    user: User | None = None
    enqueued: Callable[[int, int], None] = _uncounted
    keys: OpenedKeys | None = None
    receivable: dict[int, int] = field(default_factory=dict)
    endable: dict[tuple[int, int], int] = field(default_factory=dict)
    usages: dict[tuple[int, int, int], Usages] = field(default_factory=dict)
    labels: dict[int, Labels] = field(default_factory=dict)
    queues: dict[tuple[int, str], Queue] = field(default_factory=dict)
    schemas: dict[int, tuple[int, SchemaCollection]] = field(default_factory=dict)  # by collection, with its version
    channels: OrderedDict[UUID, Channel] = field(default_factory=OrderedDict)
    taken: OrderedDict[bytes, Taken] = field(default_factory=OrderedDict)  # by handle
    answered: dict[tuple[int, int], Answered] = field(default_factory=dict)  # by `Taken.kind`
    told: dict[tuple[int, int], int] = field(default_factory=dict)  # the peer's queue, of the last END, by the same
    routes: dict[int, tuple[int, RoutingTable]] = field(default_factory=dict)  # by database, with their version
    ways: Ways = field(default_factory=Ways)
    fenced_ways: FencedWays = field(default_factory=FencedWays)

    def remember(self, handle: UUID, channel: Channel) -> None:
        """Keep `channel` for the next SEND; the oldest goes when there are too many."""
        self.channels[handle] = channel
        if len(self.channels) > _CHANNELS_KEPT:
            self.channels.popitem(last=False)

    def took(self, queue_id: int, kinds: Mapping[bytes, tuple[int, int]], ended: Collection[bytes]) -> None:
        """RECEIVE has brought messages of these conversations, by handle, with the service and contract of each."""
        for handle, kind in kinds.items():
            self.taken[handle] = Taken(queue_id, *kind, handle in ended)
        while len(self.taken) > _TAKEN_KEPT:
            self.taken.popitem(last=False)

    def learn_answer(self, kind: tuple[int, int], answered: Answered) -> None:
        """Keep the way of a SEND for other conversations of the same service and contract."""
        if len(self.answered) >= _ANSWERS_KEPT:
            self.answered = {}
        self.answered[kind] = answered

    def learn_told(self, kind: tuple[int, int], queue_id: int) -> None:
        """Keep the queue that EndDialog goes to for other conversations of the same service and contract."""
        if len(self.told) >= _ANSWERS_KEPT:
            self.told = {}
        self.told[kind] = queue_id

    def forget_queue(self, queue_id: int) -> None:
        """The queue was dropped: its names are looked up again."""
        self.queues = {key: queue for key, queue in self.queues.items() if queue.queue_id != queue_id}
        self.receivable.pop(queue_id, None)

    def forget(self, handle: UUID) -> None:
        """The next SEND on `handle` looks everything up; another thread may have said so already."""
        self.channels.pop(handle, None)
        taken = self.taken.get(handle.bytes)
        if taken is not None:
            self.answered.pop(taken.kind, None)
            self.told.pop(taken.kind, None)

    def forget_definitions(self) -> None:
        """What was looked up in a transaction that defined objects was undone with it."""
        self.queues = {}
        self.channels.clear()
        self.answered = {}
        self.told = {}

    def forget_ended(self, handle: UUID) -> None:
        """The conversation has ended; what is known of others like it stays."""
        self.channels.pop(handle, None)
        self.taken.pop(handle.bytes, None)


# ---------------------------------------------------------------- DDL


def create_contract(database_id: int, operation: CreateContract, owner: int) -> Steps[None]:
    """Insert a contract with its message types (docs/reference/rules.md#contracts)."""
    name = names.checked("contract", operation.name)
    pairs = operation.pairs()
    ids = yield from _ids("message type", database_id, [message_type for message_type, _ in pairs])
    rows = yield SQL("create_contract", (database_id, name, owner))
    yield insert_usages(database_id, created(rows, name), {ids[name]: side for name, side in pairs})


def create_queue(database_id: int, operation: CreateQueue, owner: int, *, is_system: bool = False) -> Steps[int]:
    """Make a table of its own, readable as `<database>_<schema>.<queue>` (docs/reference/rules.md#queues).

    Raises:
        BrokerError: 2714 when the name is taken, 2760 the schema is the system's, or another database's, 9609 for too
            many name parts, 15151 for a name with #.
    """
    schema, queue = names.split_queue_name(operation.name)
    names.checked_queue(queue)
    # one at a time in a database, so that two queues cannot take the same PostgreSQL name
    rows = yield SQL("create_queue.find_databases", (database_id,))
    postgres_schema = names.postgres_name(rows[0][0], schema)
    yield from check_schema(database_id, schema, postgres_schema)
    taken = yield SQL(
        "create_queue.find_queues",
        (postgres_schema, names.postgres_name(queue), database_id, schema, queue, names.postgres_stem(queue)),
    )
    if (names.postgres_name(queue), False) in [tuple(row) for row in taken]:  # a table, a view or a procedure
        raise BrokerError(2714, queue)
    postgres_name = names.postgres_name(queue, taken=frozenset(name for name, _ in taken))
    rows = yield SQL(
        "create_queue.insert_queues",
        (
            database_id,
            schema,
            queue,
            postgres_schema,
            postgres_name,
            operation.status,
            operation.retention,
            operation.poison_message_handling,
            owner,
            "servicebroker.system_ids" if is_system else "servicebroker.object_ids",
            DBO_SCHEMA if schema.lower() == "dbo" else 0,
        ),
    )
    queue_id = created(rows, queue)
    yield queue_objects(queue_id, postgres_schema, postgres_name, operation.retention)
    return queue_id


def check_schema(database_id: int, schema: str, postgres_schema: str) -> Steps[None]:
    """That a database may have something in this schema, and nothing of another one stands in its PostgreSQL schema.

    The schema `b_dbo` of a database `a` would stand where the schema dbo of a database `a_b` does.

    Raises:
        BrokerError: 2760.
    """
    others = yield SQL("check_schema", (postgres_schema, database_id))
    if others or schema.lower() in names.SYSTEM_SCHEMAS:
        raise BrokerError(2760, schema)


def create_service(database_id: int, operation: CreateService, queue_id: int, owner: int) -> Steps[None]:
    """Insert a service on a queue; its contracts are those it can be a target of (docs/reference/rules.md#services)."""
    name = names.checked("service", operation.name)
    given = checked_contracts(operation.contracts)
    # first, see lock_service in opening.py
    yield lock_service_alone(name)
    ids = yield from contract_ids(database_id, given)
    rows = yield SQL("create_service.insert_services", (database_id, name, queue_id, owner))
    service_id = created(rows, name)
    yield SQL("create_service.insert_contracts_used", (database_id, service_id, list(ids.values())))


def contract_ids(database_id: int, contracts: Iterable[str]) -> Steps[dict[str, int]]:
    """The numbers of these contracts, by name."""
    return _ids("service contract", database_id, checked_contracts(contracts))


def lock_service_alone(name: str) -> Statement:
    """Against everyone who may make messages wait for a service of that name, see `lock_service` in opening.py."""
    return SQL("lock_service_alone", (locks.DELIVERY, locks.SERVICE, name))


# ---------------------------------------------------------------- finding


def find_queue(catalog: Catalog, database_id: int, name: str) -> Steps[Queue]:
    """The queue of that name, compared without case.

    Raises:
        BrokerError: 15151 when it does not exist.
    """
    known = catalog.queues.get((database_id, name)) if isinstance(name, str) else None
    if known is not None:
        return known
    found = catalog.queues[database_id, name] = yield from find_queue_now("find", database_id, name)
    return found


def find_queue_now(action: str, database_id: int, name: str) -> Steps[Queue]:
    """The queue of that name as it is, not as somebody remembers it.

    Raises:
        BrokerError: 15151, cannot `action`, when it does not exist.
    """
    schema, queue = names.split_queue_name(name)
    rows = yield SQL("find_queue_now", (database_id, schema, queue))
    if not rows:
        raise BrokerError(15151, action, "queue", name)
    return Queue(*rows[0])


def find_usages(catalog: Catalog, database_id: int, contract_id: int, version: int = 0) -> Steps[Usages]:
    """What a contract allows, by message type name. A contract never changes, but validation may.

    `version` is the catalog version of the queue whose validation is wanted; without it the letters may be old, and
    there are no schemas.
    """
    known = catalog.usages.get((database_id, contract_id, version))
    if known is not None:
        return known
    rows = yield SQL("find_usages", (database_id, contract_id))
    found = {}
    for name, type_id, letter, initiator, target, collection_id, collection_version in rows:
        schemas = None
        if version and collection_id is not None:
            schemas = yield from _find_schemas(catalog, collection_id, collection_version)
        found[name] = Usage(type_id, letter, initiator, target, schemas)
    if len(catalog.usages) >= _USAGES_KEPT:
        catalog.usages = {}
    catalog.usages[database_id, contract_id, version] = found
    return found


def _find_schemas(catalog: Catalog, collection_id: int, version: int) -> Steps[SchemaCollection]:
    """The collection in this version, compiled once in a process."""
    known = catalog.schemas.get(collection_id)
    if known is not None and known[0] == version:
        return known[1]
    found = SchemaCollection((yield from schema_documents(collection_id)))
    catalog.schemas[collection_id] = version, found
    return found


def schema_documents(collection_id: int) -> Steps[list[SchemaDocument]]:
    """The documents of an XML schema collection, in the order in which they were added."""
    rows = yield SQL("schema_documents", (collection_id,))
    return [SchemaDocument(namespace, document.encode()) for namespace, document in rows]


def find_labels(catalog: Catalog, database_id: int, *, anew: bool = False) -> Steps[Labels]:
    """Names by number of a database's services, contracts and message types."""
    known = catalog.labels.get(database_id)
    if known is not None and not anew:
        return known
    services = yield SQL("find_labels.find_services", (database_id,))
    contracts = yield SQL("find_labels.find_contracts", (database_id,))
    types = yield SQL("find_labels.find_message_types", (database_id,))
    found = catalog.labels[database_id] = Labels(
        dict(services),
        dict(contracts),
        dict(types),
    )
    return found


def find_routes(catalog: Catalog, database_id: int, version: int) -> Steps[RoutingTable]:
    """The routes of a database, read again when `version`, as the database's row has it, is new to this process."""
    known = catalog.routes.get(database_id)
    if known is not None and known[0] == version:
        return known[1]
    rows = yield SQL("find_routes", (database_id,))
    table = RoutingTable(Route(*row) for row in rows)
    catalog.routes[database_id] = version, table
    return table


_TABLES = {
    "message type": ("message_types", "message_type_id"),
    "service contract": ("service_contracts", "service_contract_id"),
}


def _ids(kind: str, database_id: int, wanted: list[str]) -> Steps[dict[str, int]]:
    table, column = _TABLES[kind]
    rows = yield Statement(
        "catalog.ids",
        f"select name, {column} from servicebroker.{table} where database_id = $1 and name = any ($2)",
        (database_id, wanted),
    )
    found: dict[str, int] = dict(rows)
    for name in wanted:
        if name not in found:
            raise BrokerError(15151, "find", kind, name)
    return {name: found[name] for name in wanted}


def find_user_object(action: str, kind: str, database_id: int, name: str) -> Steps[int]:
    """The number of a message type or contract that may be changed.

    Raises:
        BrokerError: 15151 when it does not exist, 9663 when it is built in.
    """
    table, column = _TABLES[kind]
    rows = yield Statement(
        "catalog.find_user_object",
        f"select {column} from servicebroker.{table} where database_id = $1 and name = $2",
        (database_id, names.checked(kind, name)),
    )
    if not rows:
        raise BrokerError(15151, action, kind, name)
    if rows[0][0] < names.FIRST_USER_ID:
        raise BrokerError(9663)
    return int(rows[0][0])


def insert_usages(database_id: int, contract_id: int, usages: Mapping[int, str]) -> Statement:
    """What a new contract says of each of its message types, by number."""
    sides = [SENT_BY[side] for side in usages.values()]
    return SQL(
        "insert_usages",
        (
            database_id,
            contract_id,
            list(usages),
            [initiator for initiator, _ in sides],
            [target for _, target in sides],
        ),
    )


def created(rows: Rows, name: str) -> int:
    """The number of what was inserted; none came back when the name is taken."""
    if not rows:
        raise BrokerError(2714, name)
    return int(rows[0][0])
