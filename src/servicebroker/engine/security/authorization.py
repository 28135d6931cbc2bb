"""Authorization: read the permissions of a principal and refuse a statement that it may not run.

The rules are in `model/security/permissions.py`. For dbo no statement is yielded. A permission may be revoked right
after the check. So a cached result is valid for one catalog version of the queue, which every change of principals,
owners and permissions renews.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from servicebroker.engine.conversation.endpoints import Endpoint
from servicebroker.engine.security.logins import PUBLIC_LOGIN_ID, find_login
from servicebroker.model.arguments import check_handle
from servicebroker.model.errors import BrokerError
from servicebroker.model.names import is_encodable, split_queue_name
from servicebroker.model.security.permissions import (
    DBO_ID,
    DBO_SCHEMA_ID,
    GUEST_ID,
    NEEDS,
    NOBODY_ID,
    PUBLIC_ID,
    Entry,
    Kind,
    Login,
    Need,
    Securable,
    User,
    is_allowed,
    refusal,
)
from servicebroker.model.states import EndpointState
from servicebroker.operations.end import EndConversation
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


T = TypeVar("T")

Lookup = Callable[[User], Steps[list[Securable]]]

_QUEUE = "select queue_id, owner_id, name, schema_id, schema_name from servicebroker.queues"


class Rights(NamedTuple):
    """The rights of one principal: its id and those of its roles, and all grants and denials of these."""

    identities: frozenset[int]
    entries: list[Entry]

    def has(self, need: Need, on: Securable) -> bool:
        """Check whether the need is met."""
        if is_allowed(self.identities, need.permission, on, self.entries):
            return True
        if need.or_else is None:
            return False
        kind, permission = need.or_else
        around = Securable(kind, on.schema_id if kind is Kind.SCHEMA else 0, DBO_ID, "", on.schema_id)
        # CREATE on the schema or database brings ALTER on the object, unless that was denied
        return is_allowed(self.identities, permission, around, self.entries) and is_allowed(
            self.identities, "ALTER", on, self.entries
        )


def authorize(user: User, statement: str, *objects: Lookup, subject: tuple[object, ...] = ()) -> Steps[None]:
    """Refuse a statement that the user may not run on these objects. Missing objects are ignored: the statement fails.

    `subject` names the refused object in the error, if it is none of `objects`.

    Raises:
        BrokerError: the refusal that `NEEDS` names, 15517 the user was dropped.
    """
    if user.is_dbo:
        return
    rights = yield from find_rights(user.database_id, user.principal_id, user.name, user.also)
    securables = [Securable(Kind.DATABASE, 0, DBO_ID, user.database)]
    for lookup in objects:
        securables += yield from lookup(user)
    for need in NEEDS[statement]:
        for securable in securables:
            if securable.kind is need.kind and not rights.has(need, securable):
                raise refusal(statement, need, securable, user, subject)


def authorize_all(user: User, wanted: Iterable[tuple[str, Securable]]) -> Steps[None]:
    """Run `authorize` for several statements, each with its object.

    Raises:
        BrokerError: as `authorize`.
    """
    if user.is_dbo:
        return
    rights = yield from find_rights(user.database_id, user.principal_id, user.name, user.also)
    for statement, on in wanted:
        around = Securable(Kind.SCHEMA, on.schema_id, DBO_ID, on.schema, on.schema_id, on.schema)
        for need in NEEDS[statement]:
            for securable in (on, around, Securable(Kind.DATABASE, 0, DBO_ID, user.database)):
                if securable.kind is need.kind and not rights.has(need, securable):
                    raise refusal(statement, need, securable, user)


def authorize_login(login: Login, statement: str, *subject: object, on: Securable | None = None) -> Steps[None]:
    """Refuse a statement that a login may not run on the instance, or on the login `on`. Administrators may run all.

    `subject` is the object that the error names.

    Raises:
        BrokerError: the refusal that `NEEDS` names.
    """
    if login.is_administrator:
        return
    rights = yield from find_login_rights(login)
    for need in NEEDS[statement]:
        securable = on if on is not None and on.kind is need.kind else INSTANCE
        if not is_allowed(rights.identities, need.permission, securable, rights.entries):
            raise refusal(statement, need, securable, User(0, "master", NOBODY_ID, login.name), subject)


def authorize_on_login(login: Login, statement: str, name: str) -> Steps[None]:
    """Run `authorize_login` for a statement about another login, given by name.

    Raises:
        BrokerError: the refusal that `NEEDS` names, 15151 there is no such login.
    """
    verb = statement.split()[0].lower()
    number = yield from find_login("alter" if verb == "alter" else "find", name)
    yield from authorize_login(login, statement, "login", name, on=Securable(Kind.LOGIN, number, NOBODY_ID, name))


INSTANCE = Securable(Kind.SERVER, 0, NOBODY_ID, "")


def find_login_rights(login: Login) -> Steps[Rights]:
    """Return the rights of a login in the instance, including those of public."""
    rows = yield SQL("find_login_rights", (PUBLIC_LOGIN_ID, login.login_id))
    return Rights(
        frozenset({PUBLIC_LOGIN_ID} if login.login_id is None else {PUBLIC_LOGIN_ID, login.login_id}),
        [Entry(Kind(number), major, grantee, permission, state) for number, major, grantee, permission, state in rows],
    )


def run_authorized(steps: Steps[T], user: User, statement: str, *objects: Lookup) -> Steps[T]:
    """Run the steps of a verb after `authorize`."""
    yield from authorize(user, statement, *objects)
    return (yield from steps)


def authorize_end(user: User, operation: EndConversation) -> Steps[None]:
    """Run `authorize` for END CONVERSATION. WITH CLEANUP on an ended conversation is for db_owner alone."""
    if user.is_dbo:
        return
    handle = operation.handle
    yield from authorize(user, operation.permission, conversation(handle))
    if not operation.cleanup:
        return
    rows = yield SQL("authorize_end", (handle,))
    if rows and rows[0][0] in (EndpointState.DISCONNECTED_OUTBOUND, EndpointState.CLOSED):
        yield from demand(user, "END ENDED CONVERSATION WITH CLEANUP", "end", handle, rows[0][0])


def demand(user: User, statement: str, *subject: object) -> Steps[None]:
    """Refuse a statement that needs a permission on the database. `subject` is what the error names."""
    if user.is_dbo:
        return
    (need,) = NEEDS[statement]
    database = Securable(Kind.DATABASE, 0, DBO_ID, user.database)
    rights = yield from find_rights(user.database_id, user.principal_id, user.name, user.also)
    if not rights.has(need, database):
        raise refusal(statement, need, database, user, subject)


def refused_arrival(initiator: Endpoint, service_id: int) -> Steps[BrokerError | None]:
    """Return the reason why the owner of the initiating service may not send to this service; None if it may.

    If the service is in another database, the permissions of a principal there are checked: the one that a remote
    service binding has proved (`engine/delivery/impersonation.py`). Without a binding it is the principal with the same
    PostgreSQL role, or guest. dbo has all permissions in every database.
    """
    if initiator.owner_id == DBO_ID and initiator.acts_as is None:
        return None
    rows = yield Statement(
        "authorization.refused_arrival",
        "select s.database_id, s.owner_id, s.name, "
        "case when $4::int is not null then $4 when s.database_id = $3 then $2 else coalesce(("
        "select there.principal_id from servicebroker.principals here "
        "join servicebroker.principals there on there.postgres_role = here.postgres_role "
        "where here.database_id = $3 and here.principal_id = $2 and there.database_id = s.database_id), "
        f"{GUEST_ID}) end "
        "from servicebroker.services s where s.service_id = $1",
        (service_id, initiator.owner_id, initiator.database_id, initiator.acts_as),
    )
    if not rows:
        return None  # dropped: the calling statement reports it
    database_id, owner_id, name, principal_id = rows[0]
    (need,) = NEEDS["ARRIVE"]
    try:
        rights = yield from find_rights(database_id, principal_id, initiator.far_service)
    except BrokerError:  # the proved principal was dropped
        return BrokerError(need.number, name)
    if rights.has(need, Securable(Kind.SERVICE, service_id, owner_id, name)):
        return None
    return BrokerError(need.number, name)


def find_rights(database_id: int, principal_id: int, name: str, also: Sequence[int] = ()) -> Steps[Rights]:
    """Return the rights of a principal, including those of its roles and of the principals in `also`.

    Raises:
        BrokerError: 15517 the principal was dropped.
    """
    rows = yield Statement(
        "authorization.find_rights",
        "with recursive identities (id) as ("
        f"select unnest(array[principal_id, {PUBLIC_ID}] || $3::int[]) from servicebroker.principals "
        "where database_id = $1 and principal_id = $2 "
        "union select m.role_id from servicebroker.role_members m join identities i on m.member_id = i.id "
        "where m.database_id = $1) "
        "select i.id, p.class, p.major_id, p.permission, p.state::text from identities i "
        "left join servicebroker.permissions p on p.database_id = $1 and p.grantee_id = i.id",
        (database_id, principal_id, list(also)),
    )
    if not rows:
        raise BrokerError(15517, name)
    return Rights(
        frozenset(row[0] for row in rows),
        [
            Entry(Kind(number), major, grantee, permission, state)
            for grantee, number, major, permission, state in rows
            if number is not None
        ],
    )


def forget_permissions(database_id: int, kind: Kind, major_id: int) -> Statement:
    """Return the statement that deletes the permissions on an object, which is dropped or gets another owner."""
    return SQL("forget_permissions", (database_id, kind.value, major_id))


# ---------------------------------------------------------------- the objects of a statement


def message_types(names: object) -> Lookup:
    """Look up the message types of these names."""
    return _named(Kind.MESSAGE_TYPE, "message_types", "message_type_id", names)


def contracts(names: object) -> Lookup:
    """Look up the contracts of these names."""
    return _named(Kind.CONTRACT, "service_contracts", "service_contract_id", names)


def service(name: object) -> Lookup:
    """Look up the service of this name."""
    return _named(Kind.SERVICE, "services", "service_id", [name])


def route(name: object) -> Lookup:
    """Look up the route of this name, compared without case."""
    return _without_case(Kind.ROUTE, "routes", "route_id", name)


def remote_service_binding(name: object) -> Lookup:
    """Look up the remote service binding of this name, compared without case."""
    return _without_case(Kind.REMOTE_SERVICE_BINDING, "remote_service_bindings", "remote_service_binding_id", name)


def certificate(name: object) -> Lookup:
    """Look up the certificate of this name, compared without case."""
    return _without_case(Kind.CERTIFICATE, "certificates", "certificate_id", name)


def _without_case(kind: Kind, table: str, column: str, name: object) -> Lookup:
    def look(user: User) -> Steps[list[Securable]]:
        if not _can_be_a_name(name):
            return []
        rows = yield Statement(
            "authorization.without_case",
            f"select {column}, owner_id, name from servicebroker.{table} "
            "where database_id = $1 and lower(name) = lower($2)",
            (user.database_id, name),
        )
        return [Securable(kind, *row) for row in rows]

    return look


def queue(name: object) -> Lookup:
    """Look up the queue of this name."""

    def look(user: User) -> Steps[list[Securable]]:
        rows = yield Statement(
            "authorization.queue",
            f"{_QUEUE} where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)",
            (user.database_id, *split_queue_name(name)),
        )
        return [Securable(Kind.QUEUE, *row) for row in rows]

    return look


def queue_number(queue_id: int) -> Lookup:
    """Look up the queue of this id."""

    def look(user: User) -> Steps[list[Securable]]:
        rows = yield Statement("authorization.queue_number", f"{_QUEUE} where queue_id = $1", (queue_id,))
        return [Securable(Kind.QUEUE, *row) for row in rows]

    return look


def user_named(name: object) -> Lookup:
    """Look up the user of this name, compared without case."""

    def look(user: User) -> Steps[list[Securable]]:
        if not _can_be_a_name(name):
            return []
        rows = yield SQL("user_named", (user.database_id, name))
        return [Securable(Kind.USER, number, NOBODY_ID, own) for number, own in rows]

    return look


def schema(name: object) -> Lookup:
    """Look up the T-SQL schema of this name, compared without case."""

    def look(user: User) -> Steps[list[Securable]]:
        if not _can_be_a_name(name):
            return []
        rows = yield Statement(
            "authorization.schema",
            "select schema_id, name from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2) "
            f"union all select {DBO_SCHEMA_ID}, 'dbo' where lower($2) = 'dbo'",
            (user.database_id, name),
        )
        return [Securable(Kind.SCHEMA, number, DBO_ID, own, number, own) for number, own in rows]

    return look


def queue_of(service_name: object) -> Lookup:
    """Look up the queue of the service of this name; an error of `authorize` names the service."""

    def look(user: User) -> Steps[list[Securable]]:
        if not _can_be_a_name(service_name):
            return []
        rows = yield SQL("queue_of", (user.database_id, service_name))
        return [Securable(Kind.QUEUE, *row) for row in rows]

    return look


def conversation(*handles: UUID) -> Lookup:
    """Look up service and queue of this side of each conversation; an error of `authorize` names the service.

    The lookup raises 8426 for the first handle that does not exist in the user's database.
    """

    def look(user: User) -> Steps[list[Securable]]:
        for handle in handles:
            check_handle(handle)
        rows = yield SQL("conversation", (list(handles), user.database_id))
        endpoints = {row[0]: row[1:] for row in rows}
        objects: dict[Securable, None] = {}  # the objects in the order of the handles, each once
        for handle in handles:
            if handle not in endpoints:
                raise BrokerError(8426, handle)
            service_id, service_owner, name, queue_id, queue_owner, schema_id = endpoints[handle]
            objects[Securable(Kind.SERVICE, service_id, service_owner, name)] = None
            objects[Securable(Kind.QUEUE, queue_id, queue_owner, name, schema_id)] = None
        return list(objects)

    return look


def _named(kind: Kind, table: str, column: str, names: object) -> Lookup:
    """Look up existing objects; the statement itself reports arguments that are not names."""

    def look(user: User) -> Steps[list[Securable]]:
        candidates = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else []
        candidates = [
            name[0] if isinstance(name, tuple) and name else name for name in candidates
        ]  # a message type and its sender
        rows = yield Statement(
            "authorization.named",
            f"select {column}, owner_id, name from servicebroker.{table} where database_id = $1 and name = any ($2)",
            (user.database_id, [name for name in candidates if _can_be_a_name(name)]),
        )
        return [Securable(kind, *row) for row in rows]

    return look


def _can_be_a_name(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value and is_encodable(value)
