"""CREATE, ALTER and DROP BROKER PRIORITY."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from servicebroker.model import names
from servicebroker.model.arguments import ANY, criterion, priority_level
from servicebroker.operations.operation import Definition, Named


class Criteria(NamedTuple):
    """The criteria of a priority and its level; None for ANY, and for a clause that the statement lacks."""

    contract: str | None
    local_service: str | None
    remote_service: str | None
    level: int | None


@dataclass(frozen=True, slots=True)
class CreateBrokerPriority(Definition[None]):
    """CREATE BROKER PRIORITY FOR CONVERSATION SET (...): set the level of conversations that begin afterwards.

    If several priorities match a conversation, the most specific one applies: a contract is more specific than a local
    service, and that more than a remote service. Without a match, the level is 5.

    Args:
        name: the name of the priority, case-insensitive.
        contract_name: the contract of the conversation, or "ANY".
        local_service_name: the service of this side, or "ANY".
        remote_service_name: the service of the other side, or "ANY".
        priority_level: 1 to 10, or "DEFAULT", which is 5.

    Raises:
        BrokerError: 33301 a name of wrong length, 33302 a level outside 1 to 10, 33303 such a priority exists, 15151
            unknown contract or service.
    """

    name: str
    _: KW_ONLY
    contract_name: str = ANY
    local_service_name: str = ANY
    remote_service_name: str = ANY
    priority_level: int | str = "DEFAULT"


@dataclass(frozen=True, slots=True)
class AlterBrokerPriority(Definition[None]):
    """ALTER BROKER PRIORITY: change clauses, for conversations that begin afterwards.

    Args:
        name: the name of the priority, case-insensitive.
        contract_name: as for `create_broker_priority`.
        local_service_name: as for `create_broker_priority`.
        remote_service_name: as for `create_broker_priority`.
        priority_level: as for `create_broker_priority`.

    Raises:
        BrokerError: 33301 a name of wrong length, 33302 a level outside 1 to 10, 33303 such a priority exists, 15151 no
            such priority, contract or service.
    """

    name: str
    _: KW_ONLY
    contract_name: str | None = None
    local_service_name: str | None = None
    remote_service_name: str | None = None
    priority_level: int | str | None = None


@dataclass(frozen=True, slots=True)
class DropBrokerPriority(Named, Definition[None]):
    """DROP BROKER PRIORITY. Existing conversations keep their level.

    Raises:
        BrokerError: 15151 no such priority.
    """


def criteria(operation: CreateBrokerPriority | AlterBrokerPriority) -> Criteria:
    """Check and return the clauses of SET (...).

    Raises:
        BrokerError: 33301 a name of wrong length, 33302 a level outside 1 to 10, 402 a wrong type.
    """
    name, longest = operation.name, names.MAXIMUM_NAME
    return Criteria(
        criterion(name, "CONTRACT_NAME", operation.contract_name, longest),
        criterion(name, "LOCAL_SERVICE_NAME", operation.local_service_name, longest),
        criterion(name, "REMOTE_SERVICE_NAME", operation.remote_service_name, names.MAXIMUM_SERVICE_NAME),
        priority_level(name, operation.priority_level),
    )
