"""CREATE, ALTER and DROP of the objects of a broker database, and ALTER DATABASE.

Each function checks everything first and then changes; `session` is a transaction of its own, with no other open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar
from uuid import UUID, uuid4

from servicebroker import operations
from servicebroker.model import arguments, names
from servicebroker.model.arguments import SENT_BY
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.states import EndpointState
from servicebroker.operations import application
from servicebroker.operations.application import Application
from servicebroker.operations.operation import Definition
from servicebroker.operations.priorities import Criteria, criteria
from servicebroker.testing.catalog import Broker, Contract, MessageType, Priority, Queue, Service
from servicebroker.testing.delivery import deliver_everything, deliver_to_service, fail_endpoints
from servicebroker.testing.endpoints import remove_endpoint
from servicebroker.testing.rows import Endpoint, Memory, Session

T = TypeVar("T", MessageType, Contract)

# ---------------------------------------------------------------- databases


def find_broker(memory: Memory, name: str, *, create: bool) -> Broker:
    """The database of that name, compared without case; made when it is missing and `create` is set."""
    names.checked("database", name)
    for broker in memory.brokers:
        if broker.name.lower() == name.lower():
            return broker
    if not create:
        raise BrokerError(911, name, hint="Create it with instance.database(name, create=True).")
    memory.brokers.append(Broker(len(memory.brokers) + 1, name))
    return memory.brokers[-1]


def _alter_database(session: Session, broker: Broker, operation: operations.AlterDatabase) -> None:
    operation.termination()
    if operation.disable_broker:
        broker.is_enabled = False
    if operation.new_broker:
        _new_broker(session, broker)
    if operation.error_broker_conversations:
        _error_broker_conversations(session, broker)
    if operation.enable_broker or operation.new_broker or operation.error_broker_conversations:
        broker.is_enabled = True
        deliver_everything(session)
    if operation.honor_broker_priority is not None:
        broker.is_honor_broker_priority_on = operation.honor_broker_priority


def _new_broker(session: Session, broker: Broker) -> None:
    """NEW_BROKER: another identifier; every conversation is removed, and no peer is told."""
    own, peers = _conversations(session, lambda endpoint: endpoint.broker is broker)
    for message in session.messages.all():
        if message.service.broker is broker:
            session.messages.remove(message.queuing_order)
    for endpoint in [*own, *peers]:
        session.drop_waiting(endpoint.conversation_handle)
    for endpoint in peers:
        session.update(endpoint, far_handle=None, is_parked=False)
    for endpoint in [*own, *(peer for peer in peers if peer.state is EndpointState.DISCONNECTED_OUTBOUND)]:
        remove_endpoint(session, endpoint)
    broker.service_broker_guid = uuid4()


def _error_broker_conversations(session: Session, broker: Broker) -> None:
    """ERROR_BROKER_CONVERSATIONS: the Error -9719 here, -9720 in other databases."""
    own, peers = _conversations(session, lambda endpoint: endpoint.broker is broker)
    fail_endpoints(session, _handles(own), BrokerError(9719))
    fail_endpoints(session, _handles(peers), BrokerError(9720))


# ---------------------------------------------------------------- a whole application


def present(broker: Broker) -> Application:
    """What the database has, as a definition."""
    said = {letter: validation for validation, letter in reversed(arguments.VALIDATIONS.items())}
    sides = {senders: side for side, senders in SENT_BY.items()}
    called = {queue.queue_id: f"{schema}.{queue.name}" for (schema, _), queue in broker.queues.items()}
    return application.read(
        {
            "message_types": {kind.name: said[kind.validation] for kind in broker.message_types.values()},
            "contracts": {
                contract.name: {name: sides[one, other] for name, (_, one, other) in contract.usages.items()}
                for contract in broker.contracts.values()
            },
            "queues": {
                called[queue.queue_id]: {
                    "status": queue.is_receive_enabled,
                    "poison_message_handling": queue.is_poison_message_handling_enabled,
                }
                for queue in broker.queues.values()
            },
            "services": {
                one.name: {"queue": called[one.queue.queue_id], "contracts": list(one.contracts)}
                for one in broker.services.values()
            },
        }
    )


def known_part(wanted: Application) -> Application:
    """A definition without what the double does not have."""
    return Application(
        wanted.message_types,
        wanted.contracts,
        {name: replace(queue, retention=False, activation=None) for name, queue in wanted.queues.items()},
        wanted.services,
    )


# ---------------------------------------------------------------- message types and contracts


def _create_message_type(session: Session, broker: Broker, operation: operations.CreateMessageType) -> None:
    name = names.checked("message type", operation.name)
    letter = operation.letter()
    _refuse_taken(broker.message_types, name)
    broker.message_types[name] = MessageType(next(session.memory.object_ids), name, letter)


def _alter_message_type(session: Session, broker: Broker, operation: operations.AlterMessageType) -> None:
    """Messages in queues keep their letter."""
    letter = operation.letter()
    kind = _user_object("alter", "message type", broker.message_types, operation.name)
    kind.validation = letter


def _drop_message_type(session: Session, broker: Broker, operation: operations.DropMessageType) -> None:
    name = operation.name
    kind = _user_object("drop", "message type", broker.message_types, name)
    if any(name in contract.usages for contract in broker.contracts.values()):
        raise BrokerError(3716, "message type", name, "service contracts")
    kind.is_dropped = True
    del broker.message_types[name]


def _create_contract(session: Session, broker: Broker, operation: operations.CreateContract) -> None:
    name = names.checked("contract", operation.name)
    pairs = operation.pairs()
    types = [_found("find", "message type", broker.message_types, message_type) for message_type, _ in pairs]
    _refuse_taken(broker.contracts, name)
    usages = {kind.name: (kind, *SENT_BY[side]) for kind, (_, side) in zip(types, pairs, strict=True)}
    broker.contracts[name] = Contract(next(session.memory.object_ids), name, usages)


def _drop_contract(session: Session, broker: Broker, operation: operations.DropContract) -> None:
    """Open conversations on it get the Error -8487."""
    name = operation.name
    contract = _user_object("drop", "service contract", broker.contracts, name)
    if any(name in service.contracts for service in broker.services.values()):
        raise BrokerError(3716, "service contract", name, "services")
    if any(priority.contract is contract for priority in broker.priorities.values()):
        raise BrokerError(3716, "service contract", name, "conversation priorities")
    own, peers = _conversations(session, lambda endpoint: endpoint.contract is contract)
    fail_endpoints(session, _handles([*own, *peers]), BrokerError(8487))
    contract.is_dropped = True
    del broker.contracts[name]


def _user_object(action: str, kind: str, objects: Mapping[str, T], name: str) -> T:
    """A message type or contract that may be changed."""
    found = _found(action, kind, objects, names.checked(kind, name))
    number = found.message_type_id if isinstance(found, MessageType) else found.service_contract_id
    if number < names.FIRST_USER_ID:
        raise BrokerError(9663)
    return found


# ---------------------------------------------------------------- queues


def _create_queue(session: Session, broker: Broker, operation: operations.CreateQueue) -> None:
    operation.check()
    schema, queue = names.split_queue_name(operation.name)
    names.checked_queue(queue)
    key = schema.lower(), queue.lower()
    if key in broker.queues:
        raise BrokerError(2714, queue)
    is_on, is_counted = operation.status, operation.poison_message_handling
    broker.queues[key] = Queue(next(session.memory.object_ids), queue, is_on, is_on, is_counted)


def find_queue(broker: Broker, name: str, action: str = "find") -> Queue:
    """The queue of that name, compared without case.

    Raises:
        BrokerError: 15151 when it does not exist.
    """
    schema, queue = names.split_queue_name(name)
    found = broker.queues.get((schema.lower(), queue.lower()))
    if found is None:
        raise BrokerError(15151, action, "queue", name)
    return found


def _alter_queue(session: Session, broker: Broker, operation: operations.AlterQueue) -> None:
    """Switching on delivers what waited."""
    operation.check()
    queue, status = find_queue(broker, operation.name, "alter"), operation.status
    if operation.poison_message_handling is not None:
        queue.is_poison_message_handling_enabled = operation.poison_message_handling
    if status is not None:
        queue.is_receive_enabled = queue.is_enqueue_enabled = status
        if status:
            deliver_everything(session)


def _drop_queue(session: Session, broker: Broker, operation: operations.DropQueue) -> None:
    queue = find_queue(broker, operation.name, "drop")
    if any(service.queue is queue for service in broker.services.values()):
        raise BrokerError(3716, "queue", operation.name, "services")
    broker.queues = {key: other for key, other in broker.queues.items() if other is not queue}


# ---------------------------------------------------------------- services


def _create_service(session: Session, broker: Broker, operation: operations.CreateService) -> None:
    """Messages that wait for it are delivered."""
    found = find_queue(broker, operation.queue)
    name = names.checked("service", operation.name)
    given = _contracts(broker, operation.contracts)
    _refuse_taken(broker.services, name)
    broker.services[name] = Service(next(session.memory.object_ids), name, broker, found, given)
    deliver_to_service(session, name)


def _alter_service(session: Session, broker: Broker, operation: operations.AlterService) -> None:
    """Its messages move to the other queue with it, and arrive there anew."""
    name, queue = names.checked("service", operation.name), operation.queue
    to_add = arguments.checked_contracts(operation.add_contracts)
    to_drop = arguments.checked_contracts(operation.drop_contracts)
    service = _service(broker, name, "alter")
    added, dropped = _contracts(broker, to_add), _contracts(broker, to_drop)
    for contract in sorted(added.keys() & dropped.keys()):
        raise BrokerError(8404, contract)
    target = service.queue if queue is None else find_queue(broker, queue)
    if target is service.queue and not added and not dropped:
        raise BrokerError(8493, name)
    for contract in added:
        if contract in service.contracts:
            raise BrokerError(8404, contract)
    for contract in dropped:
        if contract not in service.contracts:
            raise BrokerError(15151, "drop", "service contract", contract)
    kept = {contract: value for contract, value in service.contracts.items() if contract not in dropped}
    service.contracts = kept | added
    if target is not service.queue:
        service.queue = target
        session.arrive_anew([message for message in session.messages.all() if message.service is service])
    deliver_everything(session)


def _drop_service(session: Session, broker: Broker, operation: operations.DropService) -> None:
    """With its messages and conversations; their peers get the Error -8470."""
    name = names.checked("service", operation.name)
    service = _service(broker, name, "drop")
    if any(priority.local_service is service for priority in broker.priorities.values()):
        raise BrokerError(3716, "service", name, "conversation priorities")
    own, peers = _conversations(session, lambda endpoint: endpoint.service is service)
    fail_endpoints(session, _handles(peers), BrokerError(8470))
    for endpoint in own:
        session.drop_waiting(endpoint.conversation_handle)
        remove_endpoint(session, endpoint)
    for message in session.messages.all():
        if message.service is service:
            session.messages.remove(message.queuing_order)
    del broker.services[name]


def _service(broker: Broker, name: str, action: str) -> Service:
    if name not in broker.services:
        raise BrokerError(15151, action, "service", name)
    return broker.services[name]


def _contracts(broker: Broker, given: Iterable[str]) -> dict[str, Contract]:
    wanted = arguments.checked_contracts(given)
    return {name: _found("find", "service contract", broker.contracts, name) for name in wanted}


# ---------------------------------------------------------------- priorities


def _create_broker_priority(session: Session, broker: Broker, operation: operations.CreateBrokerPriority) -> None:
    name = names.checked("conversation priority", operation.name)
    found, service, far, number = _resolved(broker, criteria(operation))
    new = Priority(name, found, service, far, number or arguments.DEFAULT_LEVEL)
    _refuse_taken_priority(broker, new, None, operation)
    broker.priorities[name.lower()] = new


def _alter_broker_priority(session: Session, broker: Broker, operation: operations.AlterBrokerPriority) -> None:
    """What is given changes."""
    old = _priority(broker, operation.name, "alter")
    found, service, far, number = _resolved(broker, criteria(operation))
    new = Priority(
        old.name,
        old.contract if operation.contract_name is None else found,
        old.local_service if operation.local_service_name is None else service,
        old.remote_service if operation.remote_service_name is None else far,
        number or old.level,
    )
    _refuse_taken_priority(broker, new, old, operation)
    broker.priorities[operation.name.lower()] = new


def _drop_broker_priority(session: Session, broker: Broker, operation: operations.DropBrokerPriority) -> None:
    _priority(broker, operation.name, "drop")
    del broker.priorities[operation.name.lower()]


def _priority(broker: Broker, name: str, action: str) -> Priority:
    found = broker.priorities.get(names.checked("conversation priority", name).lower())
    if found is None:
        raise BrokerError(15151, action, "conversation priority", name)
    return found


def _resolved(broker: Broker, wanted: Criteria) -> tuple[Contract | None, Service | None, str | None, int | None]:
    """The criteria as objects; None for ANY and for what was not given."""
    contract, local, remote, level = wanted
    found = None if contract is None else _found("find", "service contract", broker.contracts, contract)
    service = None if local is None else _service(broker, local, "find")
    return found, service, remote, level


def _refuse_taken_priority(
    broker: Broker,
    new: Priority,
    old: Priority | None,
    operation: operations.CreateBrokerPriority | operations.AlterBrokerPriority,
) -> None:
    given = operation.contract_name, operation.local_service_name, operation.remote_service_name
    for other in broker.priorities.values():
        same_name = other.name.lower() == new.name.lower()
        if other is not old and (same_name or other.criteria == new.criteria):
            raise BrokerError(33303, new.name, *(name or arguments.ANY for name in given))


# ---------------------------------------------------------------- what they share


def _found(action: str, kind: str, objects: Mapping[str, T], name: str) -> T:
    if name not in objects:
        raise BrokerError(15151, action, kind, name)
    return objects[name]


def _refuse_taken(objects: Mapping[str, object], name: str) -> None:
    if name in objects:
        raise BrokerError(2714, name)


def _conversations(session: Session, chosen: Callable[[Endpoint], bool]) -> tuple[list[Endpoint], list[Endpoint]]:
    """The endpoints that are chosen, and those of their peers that are not."""
    own = [endpoint for endpoint in session.endpoints.all() if chosen(endpoint)]
    peers = [session.other_side(endpoint) for endpoint in own]
    return own, [peer for peer in peers if peer and not chosen(peer)]


def _handles(endpoints: list[Endpoint]) -> list[UUID]:
    return [endpoint.conversation_handle for endpoint in endpoints]


# ---------------------------------------------------------------- how the double runs definitions

# fields that it does not know
_LACKING = {
    "activation",
    "authorization",
    "read_only",
    "retention",
    "schema_collection",
    "trustworthy",
}  # fields that it does not know

INTERPRETERS: Mapping[type[Definition[Any]], Callable[[Session, Broker, Any], None]] = {
    operations.CreateMessageType: _create_message_type,
    operations.AlterMessageType: _alter_message_type,
    operations.DropMessageType: _drop_message_type,
    operations.CreateContract: _create_contract,
    operations.DropContract: _drop_contract,
    operations.CreateQueue: _create_queue,
    operations.AlterQueue: _alter_queue,
    operations.DropQueue: _drop_queue,
    operations.CreateService: _create_service,
    operations.AlterService: _alter_service,
    operations.DropService: _drop_service,
    operations.CreateBrokerPriority: _create_broker_priority,
    operations.AlterBrokerPriority: _alter_broker_priority,
    operations.DropBrokerPriority: _drop_broker_priority,
    operations.AlterDatabase: _alter_database,
}


def define(session: Session, broker: Broker, operation: Definition[Any]) -> None:
    """Run a definition.

    Raises:
        InstanceError: it says what the double does not have.
    """
    for field in fields(operation):  # type: ignore[arg-type] # each is a dataclass
        if field.name in _LACKING and getattr(operation, field.name) != field.default:
            raise InstanceError(
                f"The in-memory double has no {field.name.upper()}: leave it out, or use servicebroker.open for a "
                "test that needs it."
            )
    INTERPRETERS[type(operation)](session, broker, operation)
