"""CREATE, ALTER and DROP BROKER PRIORITY (docs/reference/rules.md#priorities)."""

from __future__ import annotations

from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.security.authorization import authorize
from servicebroker.model import names
from servicebroker.model.arguments import ANY, DEFAULT_LEVEL
from servicebroker.model.errors import BrokerError
from servicebroker.operations.priorities import (
    AlterBrokerPriority,
    CreateBrokerPriority,
    Criteria,
    DropBrokerPriority,
    criteria,
)
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


# An SQL expression: the priority level of a new endpoint. Its placeholders are SQL expressions for database, contract,
# local and remote service. The function call takes a quarter of the time of a SEND, so it is made only in a database
# that has priorities.
PRIORITY = (
    "case when exists (select from servicebroker.broker_priorities where database_id = {database}) "
    "then servicebroker.conversation_priority({database}, {contract}, {local}, {remote}) "
    f"else {DEFAULT_LEVEL}::smallint end"
)


def create_broker_priority(definer: Definer, operation: CreateBrokerPriority) -> Steps[None]:
    """Insert the priority."""
    yield from authorize(definer.user, operation.permission)
    database_id = definer.database_id
    name = names.checked("conversation priority", operation.name)
    contract, service, remote, level = yield from _find_ids(database_id, criteria(operation))
    yield from _refuse_taken(database_id, operation, 0, contract, service, remote)
    yield SQL("create_broker_priority", (database_id, name, contract, service, remote, level or DEFAULT_LEVEL))


def alter_broker_priority(definer: Definer, operation: AlterBrokerPriority) -> Steps[None]:
    """Change the clauses that the statement names."""
    yield from authorize(definer.user, operation.permission)
    database_id = definer.database_id
    priority_id, old_contract, old_service, old_remote = yield from _find("alter", database_id, operation.name)
    contract, service, remote, level = yield from _find_ids(database_id, criteria(operation))
    contract = old_contract if operation.contract_name is None else contract
    service = old_service if operation.local_service_name is None else service
    remote = old_remote if operation.remote_service_name is None else remote
    yield from _refuse_taken(database_id, operation, priority_id, contract, service, remote)
    yield SQL("alter_broker_priority", (priority_id, contract, service, remote, level))


def drop_broker_priority(definer: Definer, operation: DropBrokerPriority) -> Steps[None]:
    """Delete the priority."""
    yield from authorize(definer.user, operation.permission)
    priority_id, *_ = yield from _find("drop", definer.database_id, operation.name)
    yield SQL("drop_broker_priority", (priority_id,))


def _find(action: str, database_id: int, name: str) -> Steps[tuple[int, int | None, int | None, str | None]]:
    rows = yield SQL("find", (database_id, names.checked("conversation priority", name)))
    if not rows:
        raise BrokerError(15151, action, "conversation priority", name, hint="See sys.conversation_priorities.")
    return rows[0][0], rows[0][1], rows[0][2], rows[0][3]


def _find_ids(database_id: int, wanted: Criteria) -> Steps[tuple[int | None, int | None, str | None, int | None]]:
    """Return contract id, service id, name of the remote service, and level.

    None for ANY, and for a clause that the statement does not name.

    Raises:
        BrokerError: 15151 no such contract or service.
    """
    contract, service, remote, level = wanted
    rows = yield SQL("find_ids", (database_id, contract, service))
    contract_id, service_id = rows[0]
    if contract is not None and contract_id is None:
        raise BrokerError(15151, "find", "service contract", contract)
    if service is not None and service_id is None:
        raise BrokerError(15151, "find", "service", service)
    return contract_id, service_id, remote, level


def _refuse_taken(
    database_id: int,
    operation: CreateBrokerPriority | AlterBrokerPriority,
    own_id: int,
    contract: int | None,
    service: int | None,
    remote: str | None,
) -> Steps[None]:
    rows = yield SQL("refuse_taken", (database_id, own_id, operation.name, contract, service, remote))
    if rows:
        criteria = operation.contract_name, operation.local_service_name, operation.remote_service_name
        raise BrokerError(33303, operation.name, *(name or ANY for name in criteria))
