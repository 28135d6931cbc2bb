"""Read the objects of a broker database as an `Application`: one value that can create them elsewhere."""

from __future__ import annotations

from typing import Any

from servicebroker.engine.activation.clause import OWNER_ID
from servicebroker.model import names
from servicebroker.model.names import FIRST_USER_ID
from servicebroker.model.security.permissions import DENY, Kind
from servicebroker.operations.application import WITH_COLLECTION, Application
from servicebroker.operations.principals import CreateUser
from servicebroker.operations.queues import Activation, CreateQueue
from servicebroker.operations.routes import CreateRoute
from servicebroker.operations.services import CreateService
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


_VALIDATIONS = {"N": "NONE", "E": "EMPTY", "X": "WELL_FORMED_XML"}
_ON = {
    Kind.DATABASE: "",
    Kind.SERVICE: " ON SERVICE ",
    Kind.QUEUE: " ON QUEUE ",
    Kind.CONTRACT: " ON CONTRACT ",
    Kind.MESSAGE_TYPE: " ON MESSAGE TYPE ",
    Kind.ROUTE: " ON ROUTE ",
}
_SIDES = {(True, False): "INITIATOR", (False, True): "TARGET", (True, True): "ANY"}


def find_application(database_id: int, database: str) -> Steps[Application]:
    """Return the objects of a database, without built-in objects and without routes that expire."""
    types = yield SQL("find_application.find_message_types", (database_id, FIRST_USER_ID))
    usages = yield SQL("find_application.find_contracts", (database_id, FIRST_USER_ID))
    contracts: dict[str, dict[str, Any]] = {}
    for contract, message_type, initiator, target in usages:
        contracts.setdefault(contract, {})[message_type] = _SIDES[initiator, target]
    routes = yield SQL("find_application.find_routes", (database_id,))
    users = yield SQL("find_application.find_users", (database_id, FIRST_USER_ID))
    return Application(
        {
            name: WITH_COLLECTION + collection if collection else _VALIDATIONS[letter]
            for name, letter, collection in types
        },
        contracts,
        (yield from _queues(database_id, database)),
        (yield from _services(database_id)),
        {
            name: CreateRoute(
                name, service_name=service, broker_instance=broker, address=address, mirror_address=mirror_address
            )
            for name, service, broker, address, mirror_address in routes
        },
        {name: CreateUser(name, role, for_login=login) for name, role, login in users},
        (yield from _roles(database_id)),
        *(yield from _rights(database_id)),
    )


def _queues(database_id: int, database: str) -> Steps[dict[str, CreateQueue]]:
    rows = yield SQL("queues", (database_id, FIRST_USER_ID))
    queues = {}
    for name, is_on, retains, handles, procedure, readers, activates, as_id, as_name in rows:
        who = "OWNER" if as_id == OWNER_ID else as_name
        activation = None
        if procedure is not None:
            activation = Activation(_shortest(procedure, database), readers or 0, who, activates)
        queues[name] = CreateQueue(
            name, status=is_on, retention=retains, poison_message_handling=handles, activation=activation
        )
    return queues


def _shortest(procedure: str, database: str) -> str:
    """Return a procedure's name without its default parts: the name of this database, and the schema dbo."""
    parts = names.name_parts("activation procedure", procedure, 3)
    if parts[0].lower() == database.lower():
        parts = parts[2:] if parts[1].lower() == "dbo" else parts[1:]
    return names.bracketed(*parts)


def _services(database_id: int) -> Steps[dict[str, CreateService]]:
    rows = yield SQL("services", (database_id, FIRST_USER_ID))
    return {name: CreateService(name, queue, contracts) for name, queue, contracts in rows}


def _roles(database_id: int) -> Steps[dict[str, list[str]]]:
    rows = yield SQL("roles", (database_id, FIRST_USER_ID))
    return {name: list(members) for name, members in rows}


def _rights(database_id: int) -> Steps[tuple[dict[str, list[str]], dict[str, list[str]]]]:
    """Return grants and denials by grantee, on the database and on the kinds of objects in `_ON`."""
    rows = yield SQL(
        "rights",
        (
            database_id,
            Kind.SERVICE.value,
            Kind.MESSAGE_TYPE.value,
            Kind.CONTRACT.value,
            Kind.ROUTE.value,
            Kind.QUEUE.value,
        ),
    )
    grants: dict[str, list[str]] = {}
    denials: dict[str, list[str]] = {}
    for grantee, number, permission, state, name in rows:
        on = _ON.get(Kind(number))
        if on is None or (on and name is None):
            continue
        entries = (denials if state == DENY else grants).setdefault(grantee, [])
        if (right := permission + on + (name or "")) not in entries:
            entries.append(right)
    return grants, denials
