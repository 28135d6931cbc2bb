"""CREATE, ALTER and DROP of the objects of a broker database, and ALTER DATABASE.

Each function checks everything before it changes anything. Its `session` is the only open transaction.
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
from servicebroker.testing.memory import Endpoint, Memory, Session

T = TypeVar("T", MessageType, Contract)

# ---------------------------------------------------------------- databases


def find_broker(memory: Memory, name: str, *, create: bool) -> Broker:
    """Return the database of that name, case-insensitive. With `create`, a missing one is created."""
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
    """NEW_BROKER: set a new identifier, and remove every conversation without notice to its peer."""
    own, peers = _find_conversations(session, lambda endpoint: endpoint.broker is broker)
    for message in session.messages.all():
        if message.service.broker is broker:
            session.messages.remove(message.queuing_order)
    for endpoint in [*own, *peers]:
        session.drop_undelivered(endpoint.conversation_handle)
    for endpoint in peers:
        session.update(endpoint, peer_handle=None, is_parked=False)
    # of a peer that has ended its side only the EndDialog was left to deliver
    for endpoint in [*own, *(peer for peer in peers if peer.state is EndpointState.DISCONNECTED_OUTBOUND)]:
        remove_endpoint(session, endpoint)
    broker.service_broker_guid = uuid4()


def _error_broker_conversations(session: Session, broker: Broker) -> None:
    """ERROR_BROKER_CONVERSATIONS: end every conversation with Error -9719, its peer in another database with -9720."""
    own, peers = _find_conversations(session, lambda endpoint: endpoint.broker is broker)
    fail_endpoints(session, _handles(own), BrokerError(9719))
    fail_endpoints(session, _handles(peers), BrokerError(9720))


# ---------------------------------------------------------------- a whole application


def describe(broker: Broker) -> Application:
    """Return the objects of the database as a definition."""
    # reversed: of several names of a code the first one wins
    validation_names = {
        validation_code: validation for validation, validation_code in reversed(arguments.VALIDATIONS.items())
    }
    sides = {senders: side for side, senders in SENT_BY.items()}
    queue_names = {queue.queue_id: f"{schema}.{queue.name}" for (schema, _), queue in broker.queues.items()}
    return application.read(
        {
            "message_types": {
                message_type.name: validation_names[message_type.validation]
                for message_type in broker.message_types.values()
            },
            "contracts": {
                contract.name: {
                    name: sides[initiator, target] for name, (_, initiator, target) in contract.usages.items()
                }
                for contract in broker.contracts.values()
            },
            "queues": {
                queue_names[queue.queue_id]: {
                    "status": queue.is_receive_enabled,
                    "poison_message_handling": queue.is_poison_message_handling_enabled,
                }
                for queue in broker.queues.values()
            },
            "services": {
                service.name: {"queue": queue_names[service.queue.queue_id], "contracts": list(service.contracts)}
                for service in broker.services.values()
            },
        }
    )


def supported_part(wanted: Application) -> Application:
    """Return a definition without the parts that the double does not support."""
    return Application(
        wanted.message_types,
        wanted.contracts,
        {name: replace(queue, retention=False, activation=None) for name, queue in wanted.queues.items()},
        wanted.services,
    )


# ---------------------------------------------------------------- message types and contracts


def _create_message_type(session: Session, broker: Broker, operation: operations.CreateMessageType) -> None:
    name = names.checked("message type", operation.name)
    validation_code = operation.validation_code()
    _refuse_taken(broker.message_types, name)
    broker.message_types[name] = MessageType(next(session.memory.object_ids), name, validation_code)


def _alter_message_type(session: Session, broker: Broker, operation: operations.AlterMessageType) -> None:
    """ALTER MESSAGE TYPE: change the validation of new messages. Messages in queues keep their previous validation."""
    validation_code = operation.validation_code()
    message_type = _user_object("alter", "message type", broker.message_types, operation.name)
    message_type.validation = validation_code


def _drop_message_type(session: Session, broker: Broker, operation: operations.DropMessageType) -> None:
    name = operation.name
    message_type = _user_object("drop", "message type", broker.message_types, name)
    if any(name in contract.usages for contract in broker.contracts.values()):
        raise BrokerError(3716, "message type", name, "service contracts")
    message_type.is_dropped = True
    del broker.message_types[name]


def _create_contract(session: Session, broker: Broker, operation: operations.CreateContract) -> None:
    name = names.checked("contract", operation.name)
    pairs = operation.pairs()
    types = [_find("find", "message type", broker.message_types, message_type) for message_type, _ in pairs]
    _refuse_taken(broker.contracts, name)
    usages = {
        message_type.name: (message_type, *SENT_BY[side]) for message_type, (_, side) in zip(types, pairs, strict=True)
    }
    broker.contracts[name] = Contract(next(session.memory.object_ids), name, usages)


def _drop_contract(session: Session, broker: Broker, operation: operations.DropContract) -> None:
    """DROP CONTRACT: drop the contract. Its open conversations get the Error -8487."""
    name = operation.name
    contract = _user_object("drop", "service contract", broker.contracts, name)
    if any(name in service.contracts for service in broker.services.values()):
        raise BrokerError(3716, "service contract", name, "services")
    if any(priority.contract is contract for priority in broker.priorities.values()):
        raise BrokerError(3716, "service contract", name, "conversation priorities")
    own, peers = _find_conversations(session, lambda endpoint: endpoint.contract is contract)
    fail_endpoints(session, _handles([*own, *peers]), BrokerError(8487))
    contract.is_dropped = True
    del broker.contracts[name]


def _user_object(action: str, kind: str, objects: Mapping[str, T], name: str) -> T:
    """Return a message type or contract of a user; refuse system objects (9663)."""
    row = _find(action, kind, objects, names.checked(kind, name))
    number = row.message_type_id if isinstance(row, MessageType) else row.service_contract_id
    if number < names.FIRST_USER_ID:
        raise BrokerError(9663)
    return row


# ---------------------------------------------------------------- queues


def _create_queue(session: Session, broker: Broker, operation: operations.CreateQueue) -> None:
    operation.check()
    schema, queue = names.split_queue_name(operation.name)
    names.checked_queue(queue)
    key = schema.lower(), queue.lower()
    if key in broker.queues:
        raise BrokerError(2714, queue)
    is_on, detects_poison = operation.status, operation.poison_message_handling
    broker.queues[key] = Queue(next(session.memory.object_ids), queue, is_on, is_on, detects_poison)


def find_queue(broker: Broker, name: str, action: str = "find") -> Queue:
    """Return the queue of that name, case-insensitive.

    Raises:
        BrokerError: 15151 there is no such queue.
    """
    schema, queue = names.split_queue_name(name)
    queue_object = broker.queues.get((schema.lower(), queue.lower()))
    if queue_object is None:
        raise BrokerError(15151, action, "queue", name)
    return queue_object


def _alter_queue(session: Session, broker: Broker, operation: operations.AlterQueue) -> None:
    """ALTER QUEUE: change the options. Switching a queue on delivers its undelivered messages."""
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
    """CREATE SERVICE: create the service, and deliver undelivered messages for it."""
    queue = find_queue(broker, operation.queue)
    name = names.checked("service", operation.name)
    contracts = _find_contracts(broker, operation.contracts)
    _refuse_taken(broker.services, name)
    broker.services[name] = Service(next(session.memory.object_ids), name, broker, queue, contracts)
    deliver_to_service(session, name)


def _alter_service(session: Session, broker: Broker, operation: operations.AlterService) -> None:
    """ALTER SERVICE: change the queue or contracts. Messages move to the new queue, in a new order of arrival."""
    name, queue = names.checked("service", operation.name), operation.queue
    to_add = arguments.checked_contracts(operation.add_contracts)
    to_drop = arguments.checked_contracts(operation.drop_contracts)
    service = _find_service(broker, name, "alter")
    added, dropped = _find_contracts(broker, to_add), _find_contracts(broker, to_drop)
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
    remaining = {contract: value for contract, value in service.contracts.items() if contract not in dropped}
    service.contracts = remaining | added
    if target is not service.queue:
        service.queue = target
        session.requeue([message for message in session.messages.all() if message.service is service])
    deliver_everything(session)


def _drop_service(session: Session, broker: Broker, operation: operations.DropService) -> None:
    """DROP SERVICE: drop the service with its messages and conversations. Their other sides get the Error -8470."""
    name = names.checked("service", operation.name)
    service = _find_service(broker, name, "drop")
    if any(priority.local_service is service for priority in broker.priorities.values()):
        raise BrokerError(3716, "service", name, "conversation priorities")
    own, peers = _find_conversations(session, lambda endpoint: endpoint.service is service)
    fail_endpoints(session, _handles(peers), BrokerError(8470))
    for endpoint in own:
        session.drop_undelivered(endpoint.conversation_handle)
        remove_endpoint(session, endpoint)
    for message in session.messages.all():
        if message.service is service:
            session.messages.remove(message.queuing_order)
    del broker.services[name]


def _find_service(broker: Broker, name: str, action: str) -> Service:
    if name not in broker.services:
        raise BrokerError(15151, action, "service", name)
    return broker.services[name]


def _find_contracts(broker: Broker, contract_names: Iterable[str]) -> dict[str, Contract]:
    wanted = arguments.checked_contracts(contract_names)
    return {name: _find("find", "service contract", broker.contracts, name) for name in wanted}


# ---------------------------------------------------------------- priorities


def _create_broker_priority(session: Session, broker: Broker, operation: operations.CreateBrokerPriority) -> None:
    name = names.checked("conversation priority", operation.name)
    contract, service, remote_service, level = _resolve(broker, criteria(operation))
    new = Priority(name, contract, service, remote_service, level or arguments.DEFAULT_LEVEL)
    _refuse_taken_priority(broker, new, None, operation)
    broker.priorities[name.lower()] = new


def _alter_broker_priority(session: Session, broker: Broker, operation: operations.AlterBrokerPriority) -> None:
    """ALTER BROKER PRIORITY: change only the values that the statement has."""
    old = _find_priority(broker, operation.name, "alter")
    contract, service, remote_service, level = _resolve(broker, criteria(operation))
    new = Priority(
        old.name,
        old.contract if operation.contract_name is None else contract,
        old.local_service if operation.local_service_name is None else service,
        old.remote_service if operation.remote_service_name is None else remote_service,
        level or old.level,
    )
    _refuse_taken_priority(broker, new, old, operation)
    broker.priorities[operation.name.lower()] = new


def _drop_broker_priority(session: Session, broker: Broker, operation: operations.DropBrokerPriority) -> None:
    _find_priority(broker, operation.name, "drop")
    del broker.priorities[operation.name.lower()]


def _find_priority(broker: Broker, name: str, action: str) -> Priority:
    priority = broker.priorities.get(names.checked("conversation priority", name).lower())
    if priority is None:
        raise BrokerError(15151, action, "conversation priority", name)
    return priority


def _resolve(broker: Broker, wanted: Criteria) -> tuple[Contract | None, Service | None, str | None, int | None]:
    """Return the criteria as objects; None for ANY, and for values that the statement leaves out."""
    contract, local, remote, level = wanted
    contract_object = None if contract is None else _find("find", "service contract", broker.contracts, contract)
    service = None if local is None else _find_service(broker, local, "find")
    return contract_object, service, remote, level


def _refuse_taken_priority(
    broker: Broker,
    new: Priority,
    old: Priority | None,
    operation: operations.CreateBrokerPriority | operations.AlterBrokerPriority,
) -> None:
    given_names = operation.contract_name, operation.local_service_name, operation.remote_service_name
    for other in broker.priorities.values():
        same_name = other.name.lower() == new.name.lower()
        if other is not old and (same_name or other.criteria == new.criteria):
            raise BrokerError(33303, new.name, *(name or arguments.ANY for name in given_names))


# ---------------------------------------------------------------- helpers of several statements


def _find(action: str, kind: str, objects: Mapping[str, T], name: str) -> T:
    if name not in objects:
        raise BrokerError(15151, action, kind, name)
    return objects[name]


def _refuse_taken(objects: Mapping[str, object], name: str) -> None:
    if name in objects:
        raise BrokerError(2714, name)


def _find_conversations(session: Session, chosen: Callable[[Endpoint], bool]) -> tuple[list[Endpoint], list[Endpoint]]:
    """Return the chosen endpoints, and those of their peers that are not chosen."""
    own = [endpoint for endpoint in session.endpoints.all() if chosen(endpoint)]
    peers = [session.other_side(endpoint) for endpoint in own]
    return own, [peer for peer in peers if peer and not chosen(peer)]


def _handles(endpoints: list[Endpoint]) -> list[UUID]:
    return [endpoint.conversation_handle for endpoint in endpoints]


# ---------------------------------------------------------------- interpreters of definitions

_UNSUPPORTED_FIELDS = {
    "activation",
    "authorization",
    "read_only",
    "retention",
    "schema_collection",
    "trustworthy",
}

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
        InstanceError: the double does not support it.
    """
    for field in fields(operation):  # type: ignore[arg-type] # every definition is a dataclass
        if field.name in _UNSUPPORTED_FIELDS and getattr(operation, field.name) != field.default:
            raise InstanceError(
                f"The in-memory double does not support {field.name.upper()}: omit it, or use servicebroker.open for a "
                "test that needs it."
            )
    INTERPRETERS[type(operation)](session, broker, operation)
