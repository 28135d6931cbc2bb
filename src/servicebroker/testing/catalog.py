"""The objects of broker databases: message types, contracts, queues, services, priorities."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID, uuid4

from servicebroker.model import names
from servicebroker.model.arguments import DEFAULT_LEVEL, SENT_BY


@dataclass(eq=False)
class MessageType:
    """A message type. `validation` is its one-letter code in the catalog."""

    message_type_id: int
    name: str
    validation: str
    is_dropped: bool = False


@dataclass(eq=False)
class Contract:
    """A contract. `usages`: name -> (message type, initiator may send it, target may send it)."""

    service_contract_id: int
    name: str
    usages: dict[str, tuple[MessageType, bool, bool]]
    is_dropped: bool = False

    def allows(self, message_type: str, *, initiator: bool) -> bool:
        """True if that side may send the message type."""
        _, by_initiator, by_target = self.usages[message_type]
        return by_initiator if initiator else by_target


@dataclass(eq=False)
class Queue:
    """A queue and its options."""

    queue_id: int
    name: str
    is_receive_enabled: bool = True
    is_enqueue_enabled: bool = True
    is_poison_message_handling_enabled: bool = True
    singles_left: int = 0  # messages still to receive one by one, since one of a batch has failed


@dataclass(eq=False)
class Service:
    """A service on its queue, and the contracts for which it is a target."""

    service_id: int
    name: str
    broker: Broker
    queue: Queue
    contracts: dict[str, Contract]


@dataclass(eq=False)
class Priority:
    """A conversation priority. None stands for ANY."""

    name: str
    contract: Contract | None
    local_service: Service | None
    remote_service: str | None
    level: int

    @property
    def criteria(self) -> tuple[int | None, int | None, str | None]:
        """The criteria, for comparison with other priorities."""
        contract = self.contract.service_contract_id if self.contract else None
        service = self.local_service.service_id if self.local_service else None
        return contract, service, self.remote_service


def _system_types() -> dict[str, MessageType]:
    return {row.name: MessageType(*row) for row in names.SYSTEM_MESSAGE_TYPES}


@dataclass(eq=False)
class Broker:
    """One broker database. Keys of queues and priorities are names in lower case."""

    database_id: int
    name: str
    service_broker_guid: UUID = field(default_factory=uuid4)
    is_enabled: bool = True
    is_honor_broker_priority_on: bool = False
    message_types: dict[str, MessageType] = field(default_factory=_system_types)
    contracts: dict[str, Contract] = field(default_factory=dict)
    queues: dict[tuple[str, str], Queue] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    priorities: dict[str, Priority] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_id = {message_type.message_type_id: message_type for message_type in self.message_types.values()}
        for row in names.SYSTEM_CONTRACTS:
            usages = {by_id[number].name: (by_id[number], *SENT_BY[side]) for number, side in row.usages.items()}
            self.contracts[row.name] = Contract(row.service_contract_id, row.name, usages)

    def level(self, contract: Contract, local: Service, remote: str) -> int:
        """Return the priority level of a new endpoint: that of the most specific conversation priority.

        A match by contract is more specific than one by local service, and that more than one by remote service.
        """
        fitting = [
            priority
            for priority in self.priorities.values()
            if priority.contract in (None, contract)
            and priority.local_service in (None, local)
            and priority.remote_service in (None, remote)
        ]
        best = min(fitting, key=lambda priority: [part is None for part in priority.criteria], default=None)
        return best.level if best else DEFAULT_LEVEL
