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


# sizes of the caches below, in entries
_MAX_CHANNELS = 10_000
_MAX_RECEIVED = 10_000  # received conversations
_MAX_ANSWER_PATHS = 1_000  # pairs of service and contract
_MAX_USAGES = 1_000  # contracts in a catalog version; every change of permissions makes a new version


class Usage(NamedTuple):
    """One message type of a contract: which sides may send it, and its id and validation code in the database.

    Service Broker lists them in sys.service_contract_message_usages. A conversation has two contracts of the same name,
    one in each side's database, which may validate differently.
    """

    message_type_id: int
    validation: str
    by_initiator: bool
    by_target: bool
    schemas: SchemaCollection | None = None

    def allows(self, is_initiator: bool) -> bool:
        """Check whether that side may send it."""
        return self.by_initiator if is_initiator else self.by_target


Usages = Mapping[str, Usage]  # the usages of one contract, by message type name


class Queue(NamedTuple):
    """A queue that was looked up by name."""

    queue_id: int
    database_id: int
    name: str


class Channel(NamedTuple):
    """The cached facts for SEND on one conversation handle. The statement of SEND detects if one has changed.

    Attributes:
        is_initiator: the side of the handle.
        delivery_queue_id: the peer's queue; 0 if the peer is in another instance.
        own_usages, peer_usages: the contract in the databases of this side and of the peer.
        catalog_version: that of the peer's queue, under which permissions were checked.
        peer_priority: the priority of the messages in the peer's queue.
    """

    is_initiator: bool
    delivery_queue_id: int
    own_usages: Usages
    peer_usages: Usages
    catalog_version: int
    peer_priority: int = 0


class ReceivedConversation(NamedTuple):
    """The cached facts of a received conversation, for SEND and END on it. They never change.

    `has_ended`: the peer's EndDialog was received.
    """

    queue_id: int
    service_id: int
    service_contract_id: int
    has_ended: bool

    @property
    def kind(self) -> tuple[int, int]:
        """Service and contract: the key of facts about the peer, which such conversations mostly have in common."""
        return self.service_id, self.service_contract_id

    @property
    def ends(self) -> tuple[int, int]:
        """The key for the permission to END: the queue and the service."""
        return self.queue_id, self.service_id


class AnswerPath(NamedTuple):
    """The delivery path of the last SEND on a conversation with a given service and contract.

    The first SEND on the next such conversation tries this path, and its statement checks that the peer matches. For a
    peer in another instance, the ids of its service and contract are 0.
    """

    channel: Channel
    peer_service_id: int
    peer_contract_id: int


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

    Attributes:
        user: the principal whose permissions were checked; None for dbo.
        count_enqueued: called with the priority and the count of messages that a SEND has put into a queue.
        keys: opens private keys for remote service bindings inside the instance. Without it, conversations with such a
            binding wait for a process that has the keys.
        receivable: by queue id, the catalog version under which `user` may receive.
        endable: by `ReceivedConversation.ends`, the catalog version under which `user` may end conversations.
    """

    user: User | None = None
    count_enqueued: Callable[[int, int], None] = _count_nothing
    keys: OpenedKeys | None = None
    receivable: dict[int, int] = field(default_factory=dict)
    endable: dict[tuple[int, int], int] = field(default_factory=dict)
    usages: dict[tuple[int, int, int], Usages] = field(default_factory=dict)
    labels: dict[int, Labels] = field(default_factory=dict)
    queues: dict[tuple[int, str], Queue] = field(default_factory=dict)
    # Parsed schemas and their version, by collection
    schemas: dict[int, tuple[int, SchemaCollection]] = field(default_factory=dict)
    channels: OrderedDict[UUID, Channel] = field(default_factory=OrderedDict)
    # Received conversations, by handle
    received: OrderedDict[bytes, ReceivedConversation] = field(default_factory=OrderedDict)
    # The paths of answers, by `kind` of conversation
    answer_paths: dict[tuple[int, int], AnswerPath] = field(default_factory=dict)
    # The queues for `enqueue.end_dialog`, by `kind` of conversation
    end_queues: dict[tuple[int, int], int] = field(default_factory=dict)
    # Routing tables and their version, by database
    routes: dict[int, tuple[int, RoutingTable]] = field(default_factory=dict)
    paths: DeliveryPaths = field(default_factory=DeliveryPaths)
    restricted_paths: RestrictedPaths = field(default_factory=RestrictedPaths)

    def remember_channel(self, handle: UUID, channel: Channel) -> None:
        """Cache `channel` for the next SEND; drops the oldest beyond the limit."""
        self.channels[handle] = channel
        if len(self.channels) > _MAX_CHANNELS:
            self.channels.popitem(last=False)

    def cache_received(self, queue_id: int, kinds: Mapping[bytes, tuple[int, int]], ended: Collection[bytes]) -> None:
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
        """Forget names and permissions of a dropped queue."""
        self.queues = {key: queue for key, queue in self.queues.items() if queue.queue_id != queue_id}
        self.receivable.pop(queue_id, None)

    def forget(self, handle: UUID) -> None:
        """Forget the paths that SEND and END on `handle` use. Another thread may have done so already."""
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
        BrokerError: 2760 the schema is the system's, or its PostgreSQL schema has objects of another database.
    """
    others = yield SQL("check_schema", (postgres_schema, database_id))
    if others or schema.lower() in names.SYSTEM_SCHEMAS:
        raise BrokerError(2760, schema)


def create_service(database_id: int, operation: CreateService, queue_id: int, owner: int) -> Steps[None]:
    """Insert a service on a queue, with the contracts under which it can be a target.

    The rules: docs/reference/rules.md#services.
    """
    name = names.checked("service", operation.name)
    contracts = checked_contracts(operation.contracts)
    # before any other lock, see lock_service in opening.py
    yield lock_service_alone(name)
    ids = yield from contract_ids(database_id, contracts)
    rows = yield SQL("create_service.insert_services", (database_id, name, queue_id, owner))
    service_id = inserted_id(rows, name)
    yield SQL("create_service.insert_contracts_used", (database_id, service_id, list(ids.values())))


def contract_ids(database_id: int, contracts: Iterable[str]) -> Steps[dict[str, int]]:
    """Return the ids of these contracts, by name."""
    return _ids("service contract", database_id, checked_contracts(contracts))


def lock_service_alone(name: str) -> Statement:
    """Lock a service's name exclusively: no other transaction can park messages for it (`lock_service`, opening.py)."""
    return SQL("lock_service_alone", (locks.PARKED_DELIVERY, locks.SERVICE_NAME, name))


# ---------------------------------------------------------------- finding


def find_queue(catalog: Catalog, database_id: int, name: str) -> Steps[Queue]:
    """Return the queue of that name, compared without case, from the cache if possible.

    Raises:
        BrokerError: 15151 it does not exist.
    """
    cached = catalog.queues.get((database_id, name)) if isinstance(name, str) else None
    if cached is not None:
        return cached
    queue = catalog.queues[database_id, name] = yield from find_queue_uncached("find", database_id, name)
    return queue


def find_expected_types(queue_id: int) -> Steps[list[ExpectedType]]:
    """Return the message types that only initiators send, by the contracts of the services of a queue."""
    rows = yield SQL("find_expected_types", (queue_id,))
    return [ExpectedType(*row) for row in rows]


def find_queue_uncached(action: str, database_id: int, name: str) -> Steps[Queue]:
    """Return the queue of that name from the database, without the cache. `action` is the verb for the error's text.

    Raises:
        BrokerError: 15151 it does not exist.
    """
    schema, queue = names.split_queue_name(name)
    rows = yield SQL("find_queue_uncached", (database_id, schema, queue))
    if not rows:
        raise BrokerError(15151, action, "queue", name)
    return Queue(*rows[0])


def find_usages(catalog: Catalog, database_id: int, contract_id: int, version: int = 0) -> Steps[Usages]:
    """Return the usages of a contract, by message type name. A contract never changes, but validation may.

    `version` is the catalog version of the queue whose messages are validated. Without it, cached validation codes may
    be out of date, and schemas are missing.
    """
    cached = catalog.usages.get((database_id, contract_id, version))
    if cached is not None:
        return cached
    rows = yield SQL("find_usages", (database_id, contract_id))
    usages = {}
    for name, type_id, validation, by_initiator, by_target, collection_id, collection_version in rows:
        schemas = None
        if version and collection_id is not None:
            schemas = yield from _find_schemas(catalog, collection_id, collection_version)
        usages[name] = Usage(type_id, validation, by_initiator, by_target, schemas)
    if len(catalog.usages) >= _MAX_USAGES:
        catalog.usages = {}
    catalog.usages[database_id, contract_id, version] = usages
    return usages


def _find_schemas(catalog: Catalog, collection_id: int, version: int) -> Steps[SchemaCollection]:
    """Return the collection in this version, compiled once in a process."""
    cached = catalog.schemas.get(collection_id)
    if cached is not None and cached[0] == version:
        return cached[1]
    collection = SchemaCollection((yield from schema_documents(collection_id)))
    catalog.schemas[collection_id] = version, collection
    return collection


def schema_documents(collection_id: int) -> Steps[list[SchemaDocument]]:
    """Return the documents of an XML schema collection, in the order in which they were added."""
    rows = yield SQL("schema_documents", (collection_id,))
    return [SchemaDocument(namespace, document.encode()) for namespace, document in rows]


def find_labels(catalog: Catalog, database_id: int, *, anew: bool = False) -> Steps[Labels]:
    """Return names by id of a database's services, contracts and message types. `anew`: not from the cache."""
    cached = catalog.labels.get(database_id)
    if cached is not None and not anew:
        return cached
    services = yield SQL("find_labels.find_services", (database_id,))
    contracts = yield SQL("find_labels.find_contracts", (database_id,))
    types = yield SQL("find_labels.find_message_types", (database_id,))
    labels = catalog.labels[database_id] = Labels(
        dict(services),
        dict(contracts),
        dict(types),
    )
    return labels


def find_routes(catalog: Catalog, database_id: int, version: int) -> Steps[RoutingTable]:
    """Return the routes of a database in this version, from the cache if possible."""
    cached = catalog.routes.get(database_id)
    if cached is not None and cached[0] == version:
        return cached[1]
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
    ids: dict[str, int] = dict(rows)
    for name in wanted:
        if name not in ids:
            raise BrokerError(15151, "find", kind, name)
    return {name: ids[name] for name in wanted}


def find_user_object(action: str, kind: str, database_id: int, name: str) -> Steps[int]:
    """Return the id of a message type or contract that is not built in. `action` is the verb for the error's text.

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
    """Return the id of the inserted row.

    Raises:
        BrokerError: 2714 there is no row: the name is taken.
    """
    if not rows:
        raise BrokerError(2714, name)
    return int(rows[0][0])
