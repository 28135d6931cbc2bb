"""Create contracts, queues and services; look up objects of the catalog by name and by id, and cache them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.delivery_paths import DeliveryPaths, RestrictedPaths
from servicebroker.model import names
from servicebroker.model.arguments import SENT_BY, checked_contracts
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_SCHEMA_ID, User
from servicebroker.model.workers import ExpectedType
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


_MAX_CHANNELS = 10_000
_MAX_RECEIVED = 10_000  # received conversations
_MAX_ANSWER_PATHS = 1_000  # pairs of service and contract
_MAX_USAGES = 1_000  # contracts; every change of permissions makes new versions


class Usage(NamedTuple):
    """The usage of one message type in a contract, with its id and validation in that database."""

    message_type_id: int
    validation: str
    by_initiator: bool
    by_target: bool
    schemas: SchemaCollection | None = None

    def allows(self, is_initiator: bool) -> bool:
        """Check whether that side may send it."""
        return self.by_initiator if is_initiator else self.by_target


Usages = Mapping[str, Usage]


class Queue(NamedTuple):
    """A queue that was looked up by name."""

    queue_id: int
    database_id: int
    name: str


class Channel(NamedTuple):
    """Cached facts for a SEND on one conversation handle; its statement detects a change.

    `far_queue_id` is 0 if the peer is in another instance.
    """

    is_initiator: bool
    far_queue_id: int
    near: Usages
    far: Usages
    catalog_version: int
    far_priority: int = 0


class ReceivedConversation(NamedTuple):
    """Facts of a received conversation, for the verbs that follow on it; none of them changes.

    `has_ended`: EndDialog was received.
    """

    queue_id: int
    service_id: int
    service_contract_id: int
    has_ended: bool

    @property
    def kind(self) -> tuple[int, int]:
        """The key for facts of the peer: conversations of one service under one contract mostly have one peer."""
        return self.service_id, self.service_contract_id

    @property
    def ends(self) -> tuple[int, int]:
        """The key for the permission to END: the queue and the service."""
        return self.queue_id, self.service_id


class AnswerPath(NamedTuple):
    """The delivery path of the last SEND on a conversation of some service and contract.

    The first SEND on the next conversation tries it. Its statement checks that the peer is the same, or in another
    instance, too; the ids of the peer's service and contract are 0 then.
    """

    channel: Channel
    far_service_id: int
    far_contract_id: int


def _count_nothing(priority: int, many: int) -> None:
    """Count nothing: the default of `Catalog.count_enqueued`."""


class Labels(NamedTuple):
    """Names by id in one database."""

    services: dict[int, str]
    contracts: dict[int, str]
    message_types: dict[int, str]


@dataclass
class Catalog:
    """The catalog cache of one process. Each entry is immutable in the database, or verified on use.

    `user` is the principal whose permissions were checked; None for dbo. `receivable` has the catalog version under
    which that principal may receive, by queue id; `endable` the one under which it may end conversations, by
    `ReceivedConversation.ends`. `count_enqueued` is called with the priority and the count of messages that a SEND has
    put into a queue. `keys` opens keys for remote service bindings inside the instance; without it their conversations
    wait for a process that has it.
    """

    user: User | None = None
    count_enqueued: Callable[[int, int], None] = _count_nothing
    keys: OpenedKeys | None = None
    receivable: dict[int, int] = field(default_factory=dict)
    endable: dict[tuple[int, int], int] = field(default_factory=dict)
    usages: dict[tuple[int, int, int], Usages] = field(default_factory=dict)
    labels: dict[int, Labels] = field(default_factory=dict)
    queues: dict[tuple[int, str], Queue] = field(default_factory=dict)
    schemas: dict[int, tuple[int, SchemaCollection]] = field(default_factory=dict)  # by collection, with its version
    channels: OrderedDict[UUID, Channel] = field(default_factory=OrderedDict)
    received: OrderedDict[bytes, ReceivedConversation] = field(default_factory=OrderedDict)  # by handle
    answer_paths: dict[tuple[int, int], AnswerPath] = field(default_factory=dict)  # by `kind`
    end_queues: dict[tuple[int, int], int] = field(default_factory=dict)  # by `kind`, for `enqueue.end_dialog`
    routes: dict[int, tuple[int, RoutingTable]] = field(default_factory=dict)  # by database, with their version
    paths: DeliveryPaths = field(default_factory=DeliveryPaths)
    restricted_paths: RestrictedPaths = field(default_factory=RestrictedPaths)

    def remember_channel(self, handle: UUID, channel: Channel) -> None:
        """Cache `channel` for the next SEND; drops the oldest beyond the limit."""
        self.channels[handle] = channel
        if len(self.channels) > _MAX_CHANNELS:
            self.channels.popitem(last=False)

    def note_received(self, queue_id: int, kinds: Mapping[bytes, tuple[int, int]], ended: Collection[bytes]) -> None:
        """Cache received conversations: by handle, the service and contract of each, and whether it has ended."""
        for handle, kind in kinds.items():
            self.received[handle] = ReceivedConversation(queue_id, *kind, handle in ended)
        while len(self.received) > _MAX_RECEIVED:
            self.received.popitem(last=False)

    def remember_answer_path(self, kind: tuple[int, int], path: AnswerPath) -> None:
        """Cache the path of a SEND for other conversations of the same service and contract."""
        if len(self.answer_paths) >= _MAX_ANSWER_PATHS:
            self.answer_paths = {}
        self.answer_paths[kind] = path

    def remember_end_queue(self, kind: tuple[int, int], queue_id: int) -> None:
        """Cache the queue that EndDialog goes to, for other conversations of the same service and contract."""
        if len(self.end_queues) >= _MAX_ANSWER_PATHS:
            self.end_queues = {}
        self.end_queues[kind] = queue_id

    def forget_queue(self, queue_id: int) -> None:
        """Forget names and permissions of a queue, which was dropped."""
        self.queues = {key: queue for key, queue in self.queues.items() if queue.queue_id != queue_id}
        self.receivable.pop(queue_id, None)

    def forget(self, handle: UUID) -> None:
        """Forget what SEND on `handle` has cached. Another thread may have done so already."""
        self.channels.pop(handle, None)
        received = self.received.get(handle.bytes)
        if received is not None:
            self.answer_paths.pop(received.kind, None)
            self.end_queues.pop(received.kind, None)

    def forget_definitions(self) -> None:
        """Forget lookups of a transaction that defined objects and was rolled back."""
        self.queues = {}
        self.channels.clear()
        self.answer_paths = {}
        self.end_queues = {}

    def forget_ended(self, handle: UUID) -> None:
        """Forget a conversation that has ended; facts about others of its kind stay."""
        self.channels.pop(handle, None)
        self.received.pop(handle.bytes, None)


# ---------------------------------------------------------------- DDL


def create_contract(database_id: int, operation: CreateContract, owner: int) -> Steps[None]:
    """Insert a contract with its message types (docs/reference/rules.md#contracts)."""
    name = names.checked("contract", operation.name)
    pairs = operation.pairs()
    ids = yield from _ids("message type", database_id, [message_type for message_type, _ in pairs])
    rows = yield SQL("create_contract", (database_id, name, owner))
    yield insert_usages(database_id, inserted_id(rows, name), {ids[name]: side for name, side in pairs})


def create_queue(database_id: int, operation: CreateQueue, owner: int, *, is_system: bool = False) -> Steps[int]:
    """Create a queue: a table, readable as `<database>_<schema>.<queue>` (docs/reference/rules.md#queues).

    Raises:
        BrokerError: 2714 the name is taken, 2760 the schema is the system's, or another database's, 9609 too many name
            parts, 15151 a name with #.
    """
    schema, queue = names.split_queue_name(operation.name)
    names.checked_queue(queue)
    # locks the database's row, so that two queues cannot take the same PostgreSQL name
    rows = yield SQL("create_queue.find_databases", (database_id,))
    postgres_schema = names.postgres_name(rows[0][0], schema)
    yield from check_schema(database_id, schema, postgres_schema)
    taken = yield SQL(
        "create_queue.find_queues",
        (postgres_schema, names.postgres_name(queue), database_id, schema, queue, names.postgres_stem(queue)),
    )
    if (names.postgres_name(queue), False) in [tuple(row) for row in taken]:  # of a table, a view or a procedure
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
            DBO_SCHEMA_ID if schema.lower() == "dbo" else 0,
        ),
    )
    queue_id = inserted_id(rows, queue)
    yield queue_objects(queue_id, postgres_schema, postgres_name, operation.retention)
    return queue_id


def check_schema(database_id: int, schema: str, postgres_schema: str) -> Steps[None]:
    """Check that the database may use this schema, and that its PostgreSQL schema has no object of another database.

    The schema `b_dbo` of a database `a` and the schema dbo of a database `a_b` have the same PostgreSQL name.

    Raises:
        BrokerError: 2760.
    """
    others = yield SQL("check_schema", (postgres_schema, database_id))
    if others or schema.lower() in names.SYSTEM_SCHEMAS:
        raise BrokerError(2760, schema)


def create_service(database_id: int, operation: CreateService, queue_id: int, owner: int) -> Steps[None]:
    """Insert a service on a queue; it can be a target under the given contracts (docs/reference/rules.md#services)."""
    name = names.checked("service", operation.name)
    given = checked_contracts(operation.contracts)
    # before any other lock, see lock_service in opening.py
    yield lock_service_alone(name)
    ids = yield from contract_ids(database_id, given)
    rows = yield SQL("create_service.insert_services", (database_id, name, queue_id, owner))
    service_id = inserted_id(rows, name)
    yield SQL("create_service.insert_contracts_used", (database_id, service_id, list(ids.values())))


def contract_ids(database_id: int, contracts: Iterable[str]) -> Steps[dict[str, int]]:
    """Return the ids of these contracts, by name."""
    return _ids("service contract", database_id, checked_contracts(contracts))


def lock_service_alone(name: str) -> Statement:
    """Exclude all transactions that may park messages for a service of that name, see `lock_service` in opening.py."""
    return SQL("lock_service_alone", (locks.PARKED_DELIVERY, locks.SERVICE_NAME, name))


# ---------------------------------------------------------------- finding


def find_queue(catalog: Catalog, database_id: int, name: str) -> Steps[Queue]:
    """Return the queue of that name, compared without case, from the cache if possible.

    Raises:
        BrokerError: 15151 it does not exist.
    """
    known = catalog.queues.get((database_id, name)) if isinstance(name, str) else None
    if known is not None:
        return known
    found = catalog.queues[database_id, name] = yield from find_queue_now("find", database_id, name)
    return found


def find_expected_types(queue_id: int) -> Steps[list[ExpectedType]]:
    """Return the message types that only initiators send, by the contracts of the services of a queue."""
    rows = yield SQL("find_expected_types", (queue_id,))
    return [ExpectedType(*row) for row in rows]


def find_queue_now(action: str, database_id: int, name: str) -> Steps[Queue]:
    """Return the queue of that name from the database, without the cache.

    Raises:
        BrokerError: 15151, cannot `action`: it does not exist.
    """
    schema, queue = names.split_queue_name(name)
    rows = yield SQL("find_queue_now", (database_id, schema, queue))
    if not rows:
        raise BrokerError(15151, action, "queue", name)
    return Queue(*rows[0])


def find_usages(catalog: Catalog, database_id: int, contract_id: int, version: int = 0) -> Steps[Usages]:
    """Return the usages of a contract, by message type name. A contract never changes, but validation may.

    `version` is the catalog version of the queue whose validation applies; without it the letters may be old, and
    schemas are missing.
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
    if len(catalog.usages) >= _MAX_USAGES:
        catalog.usages = {}
    catalog.usages[database_id, contract_id, version] = found
    return found


def _find_schemas(catalog: Catalog, collection_id: int, version: int) -> Steps[SchemaCollection]:
    """Return the collection in this version, compiled once in a process."""
    known = catalog.schemas.get(collection_id)
    if known is not None and known[0] == version:
        return known[1]
    found = SchemaCollection((yield from schema_documents(collection_id)))
    catalog.schemas[collection_id] = version, found
    return found


def schema_documents(collection_id: int) -> Steps[list[SchemaDocument]]:
    """Return the documents of an XML schema collection, in the order in which they were added."""
    rows = yield SQL("schema_documents", (collection_id,))
    return [SchemaDocument(namespace, document.encode()) for namespace, document in rows]


def find_labels(catalog: Catalog, database_id: int, *, anew: bool = False) -> Steps[Labels]:
    """Return names by id of a database's services, contracts and message types."""
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
    """Return the routes of a database. Reads them again if the cached ones have another `version`."""
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
    """Return the id of a message type or contract that may be changed.

    Raises:
        BrokerError: 15151 it does not exist, 9663 it is built in.
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
    """Return the statement that inserts the usages of a new contract, by message type id."""
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


def inserted_id(rows: Rows, name: str) -> int:
    """Return the id of an inserted row; without one the name is taken."""
    if not rows:
        raise BrokerError(2714, name)
    return int(rows[0][0])
