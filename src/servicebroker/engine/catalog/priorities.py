"""CREATE, ALTER and DROP BROKER PRIORITY (docs/reference/rules.md#priorities)."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.security.authorization import authorize
from servicebroker.model import names
from servicebroker.model.arguments import ANY, DEFAULT_LEVEL, criterion, priority_level
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import User
from servicebroker.store.statements import Statement, Steps

# The level of an endpoint, drawn once when it is made. To be filled in with expressions for the four.
# The function costs a quarter of a SEND, so it is called only in a database that has priorities.
PRIORITY = (
    "case when exists (select from servicebroker.broker_priorities where database_id = {database}) "
    "then servicebroker.conversation_priority({database}, {contract}, {local}, {remote}) "
    f"else {DEFAULT_LEVEL}::smallint end"
)


class Criteria(NamedTuple):
    """What SET (...) says; None leaves a criterion as it is."""

    contract_name: str | None
    local_service_name: str | None
    remote_service_name: str | None
    priority_level: int | str | None


def create_broker_priority(
    user: User,
    name: str,
    *,
    contract_name: str = ANY,
    local_service_name: str = ANY,
    remote_service_name: str = ANY,
    priority_level: int | str = "DEFAULT",
) -> Steps[None]:
    """CREATE BROKER PRIORITY FOR CONVERSATION SET (...): the level, 1 to 10, of conversations begun from now on.

    Where several match, the contract counts most, then the local service, then the remote one; without any,
    the level is 5. `priority_level` may be "DEFAULT", a criterion "ANY".

    Raises:
        BrokerError: 33301, 33302, 33303, 15151 unknown contract or service.
    """
    yield from authorize(user, "CREATE BROKER PRIORITY")
    database_id = user.database_id
    criteria = Criteria(contract_name, local_service_name, remote_service_name, priority_level)
    names.checked("conversation priority", name)
    contract, service, remote, level = yield from _resolved(database_id, name, criteria)
    yield from _refuse_taken(database_id, name, 0, contract, service, remote, criteria)
    yield Statement(
        "priorities.create_broker_priority",
        "insert into servicebroker.broker_priorities "
        "(database_id, name, service_contract_id, local_service_id, remote_service_name, priority) "
        "values ($1, $2, $3, $4, $5, $6)",
        (database_id, name, contract, service, remote, level or DEFAULT_LEVEL),
    )


def alter_broker_priority(
    user: User,
    name: str,
    *,
    contract_name: str | None = None,
    local_service_name: str | None = None,
    remote_service_name: str | None = None,
    priority_level: int | str | None = None,
) -> Steps[None]:
    """ALTER BROKER PRIORITY: what is given changes, for conversations begun from now on.

    Raises:
        BrokerError: 33301, 33302, 33303, 15151 no such priority, contract or service.
    """
    yield from authorize(user, "ALTER BROKER PRIORITY")
    database_id = user.database_id
    criteria = Criteria(contract_name, local_service_name, remote_service_name, priority_level)
    priority_id, old_contract, old_service, old_remote = yield from _find("alter", database_id, name)
    contract, service, remote, level = yield from _resolved(database_id, name, criteria)
    contract = old_contract if criteria.contract_name is None else contract
    service = old_service if criteria.local_service_name is None else service
    remote = old_remote if criteria.remote_service_name is None else remote
    yield from _refuse_taken(database_id, name, priority_id, contract, service, remote, criteria)
    yield Statement(
        "priorities.alter_broker_priority",
        "update servicebroker.broker_priorities set service_contract_id = $2, local_service_id = $3, "
        "remote_service_name = $4, priority = coalesce($5, priority) where priority_id = $1",
        (priority_id, contract, service, remote, level),
    )


def drop_broker_priority(user: User, name: str) -> Steps[None]:
    """DROP BROKER PRIORITY; conversations keep the level they have.

    Raises:
        BrokerError: 15151 no such priority.
    """
    yield from authorize(user, "DROP BROKER PRIORITY")
    priority_id, *_ = yield from _find("drop", user.database_id, name)
    yield Statement(
        "priorities.drop_broker_priority",
        "delete from servicebroker.broker_priorities where priority_id = $1",
        (priority_id,),
    )


def _find(action: str, database_id: int, name: str) -> Steps[tuple[int, int | None, int | None, str | None]]:
    rows = yield Statement(
        "priorities.find",
        "select priority_id, service_contract_id, local_service_id, remote_service_name "
        "from servicebroker.broker_priorities where database_id = $1 and lower(name) = lower($2)",
        (database_id, names.checked("conversation priority", name)),
    )
    if not rows:
        raise BrokerError(15151, action, "conversation priority", name)
    return rows[0][0], rows[0][1], rows[0][2], rows[0][3]


def _resolved(
    database_id: int, name: str, criteria: Criteria
) -> Steps[tuple[int | None, int | None, str | None, int | None]]:
    """The criteria as numbers; None for ANY and for what was not given."""
    contract = criterion(name, "CONTRACT_NAME", criteria.contract_name, names.MAXIMUM_NAME)
    service = criterion(name, "LOCAL_SERVICE_NAME", criteria.local_service_name, names.MAXIMUM_NAME)
    remote = criterion(name, "REMOTE_SERVICE_NAME", criteria.remote_service_name, names.MAXIMUM_SERVICE_NAME)
    rows = yield Statement(
        "priorities.resolved",
        "select (select service_contract_id from servicebroker.service_contracts "
        "        where database_id = $1 and name = $2), "
        "       (select service_id from servicebroker.services where database_id = $1 and name = $3)",
        (database_id, contract, service),
    )
    contract_id, service_id = rows[0]
    if contract is not None and contract_id is None:
        raise BrokerError(15151, "find", "service contract", contract)
    if service is not None and service_id is None:
        raise BrokerError(15151, "find", "service", service)
    return contract_id, service_id, remote, priority_level(name, criteria.priority_level)


def _refuse_taken(
    database_id: int,
    name: str,
    own_id: int,
    contract: int | None,
    service: int | None,
    remote: str | None,
    criteria: Criteria,
) -> Steps[None]:
    rows = yield Statement(
        "priorities.refuse_taken",
        "select from servicebroker.broker_priorities where database_id = $1 and priority_id <> $2 "
        "and (lower(name) = lower($3) or service_contract_id is not distinct from $4 "
        "and local_service_id is not distinct from $5 and remote_service_name is not distinct from $6)",
        (database_id, own_id, name, contract, service, remote),
    )
    if rows:
        raise BrokerError(33303, name, *(given or ANY for given in criteria[:3]))
