"""What a broker database has, as the definition of an application."""

from __future__ import annotations

from typing import Any

from servicebroker.engine.activation.clause import OWNER_ID
from servicebroker.model import names
from servicebroker.model.names import FIRST_USER_ID
from servicebroker.model.security.permissions import DENY, Kind
from servicebroker.operations.application import (
    WITH_COLLECTION,
    ActivationPart,
    Application,
    QueuePart,
    RoutePart,
    ServicePart,
    UserPart,
)
from servicebroker.store.statements import Statement, Steps

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


def find_present(database_id: int, database: str) -> Steps[Application]:
    """The application of a database, without what every database has; of routes those that never expire."""
    types = yield Statement(
        "present.find_present.find_message_types",
        "select t.name, t.validation::text, s.name from servicebroker.message_types t "
        "left join servicebroker.xml_schema_collections s using (xml_collection_id) "
        "where t.database_id = $1 and t.message_type_id >= $2 order by t.name",
        (database_id, FIRST_USER_ID),
    )
    usages = yield Statement(
        "present.find_present.find_contracts",
        "select c.name, t.name, u.is_sent_by_initiator, u.is_sent_by_target from servicebroker.service_contracts c "
        "join servicebroker.service_contract_message_usages u using (database_id, service_contract_id) "
        "join servicebroker.message_types t using (database_id, message_type_id) "
        "where database_id = $1 and service_contract_id >= $2 order by c.name, t.name",
        (database_id, FIRST_USER_ID),
    )
    contracts: dict[str, dict[str, Any]] = {}
    for contract, message_type, initiator, target in usages:
        contracts.setdefault(contract, {})[message_type] = _SIDES[initiator, target]
    routes = yield Statement(
        "present.find_present.find_routes",
        "select name, address, remote_service_name, broker_instance, mirror_address from servicebroker.routes "
        "where database_id = $1 and lifetime is null and (name, address) <> ('AutoCreatedLocal', 'LOCAL') "
        "order by name",
        (database_id,),
    )
    users = yield Statement(
        "present.find_present.find_users",
        "select p.name, p.postgres_role, l.name from servicebroker.principals p "
        "left join servicebroker.logins l using (login_id) "
        "where database_id = $1 and principal_id >= $2 and not is_role order by p.name",
        (database_id, FIRST_USER_ID),
    )
    return Application(
        {name: WITH_COLLECTION + one if one else _VALIDATIONS[letter] for name, letter, one in types},
        contracts,
        (yield from _queues(database_id, database)),
        (yield from _services(database_id)),
        {name: RoutePart(*clauses) for name, *clauses in routes},
        {name: UserPart(*whose) for name, *whose in users},
        (yield from _roles(database_id)),
        *(yield from _rights(database_id)),
    )


def _queues(database_id: int, database: str) -> Steps[dict[str, QueuePart]]:
    rows = yield Statement(
        "present.queues",
        "select case when lower(schema_name) = 'dbo' then q.name else schema_name || '.' || q.name end, "
        "is_receive_enabled, is_retention_enabled, is_poison_message_handling_enabled, activation_procedure, "
        "max_readers, is_activation_enabled, execute_as_principal_id, p.name from servicebroker.queues q "
        "left join servicebroker.principals p on p.database_id = q.database_id "
        "and p.principal_id = q.execute_as_principal_id "
        "where q.database_id = $1 and queue_id >= $2 order by lower(q.name)",
        (database_id, FIRST_USER_ID),
    )
    found = {}
    for name, is_on, retains, handles, procedure, readers, activates, as_id, as_name in rows:
        who = "OWNER" if as_id == OWNER_ID else as_name
        activation = None
        if procedure is not None:
            activation = ActivationPart(_shortest(procedure, database), readers or 0, who, activates)
        found[name] = QueuePart(is_on, retains, handles, activation)
    return found


def _shortest(procedure: str, database: str) -> str:
    """Its name without what is so in any case: the database's own name, and dbo."""
    parts = names.name_parts("activation procedure", procedure, 3)
    if parts[0].lower() == database.lower():
        parts = parts[2:] if parts[1].lower() == "dbo" else parts[1:]
    return ".".join(f"[{part.replace(']', ']]')}]" for part in parts)


def _services(database_id: int) -> Steps[dict[str, ServicePart]]:
    rows = yield Statement(
        "present.services",
        "select s.name, case when lower(q.schema_name) = 'dbo' then q.name else q.schema_name || '.' || q.name end, "
        "array(select c.name from servicebroker.service_contract_usages u "
        "join servicebroker.service_contracts c using (database_id, service_contract_id) "
        "where u.service_id = s.service_id order by c.name) "
        "from servicebroker.services s join servicebroker.queues q using (queue_id) "
        "where s.database_id = $1 and s.service_id >= $2 order by s.name",
        (database_id, FIRST_USER_ID),
    )
    return {name: ServicePart(queue, list(contracts)) for name, queue, contracts in rows}


def _roles(database_id: int) -> Steps[dict[str, list[str]]]:
    rows = yield Statement(
        "present.roles",
        "select r.name, array(select p.name from servicebroker.role_members m "
        "join servicebroker.principals p on (p.database_id, p.principal_id) = (m.database_id, m.member_id) "
        "where (m.database_id, m.role_id) = (r.database_id, r.principal_id) order by p.name) "
        "from servicebroker.principals r where r.database_id = $1 and r.principal_id >= $2 and r.is_role "
        "order by r.name",
        (database_id, FIRST_USER_ID),
    )
    return {name: list(members) for name, members in rows}


def _rights(database_id: int) -> Steps[tuple[dict[str, list[str]], dict[str, list[str]]]]:
    """What was granted and what was denied, to each, on objects that a definition names and on the database."""
    rows = yield Statement(
        "present.rights",
        "select g.name, r.class, r.permission, r.state::text, coalesce(s.name, t.name, c.name, o.name, "
        "case when lower(q.schema_name) = 'dbo' then q.name else q.schema_name || '.' || q.name end) "
        "from servicebroker.permissions r "
        "join servicebroker.principals g on (g.database_id, g.principal_id) = (r.database_id, r.grantee_id) "
        "left join servicebroker.services s on r.class = $2 and s.service_id = r.major_id "
        "left join servicebroker.message_types t on r.class = $3 "
        "and (t.database_id, t.message_type_id) = (r.database_id, r.major_id) "
        "left join servicebroker.service_contracts c on r.class = $4 "
        "and (c.database_id, c.service_contract_id) = (r.database_id, r.major_id) "
        "left join servicebroker.routes o on r.class = $5 and o.route_id = r.major_id "
        "left join servicebroker.queues q on r.class = $6 and q.queue_id = r.major_id "
        "where r.database_id = $1 and r.permission <> 'CONNECT' order by 1, 2, 5, 3",
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
        of = (denials if state == DENY else grants).setdefault(grantee, [])
        if (right := permission + on + (name or "")) not in of:
            of.append(right)
    return grants, denials
