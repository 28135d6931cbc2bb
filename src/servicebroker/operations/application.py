"""A whole application as one value: its objects and rights, and the changes that make a database have them.

As TOML:

    [message_types]
    "//shop/Order" = "NONE"

    [contracts."//shop/Ordering"]
    "//shop/Order" = "INITIATOR"

    [queues.StockQueue]

    [services."//shop/Stock"]
    queue = "StockQueue"
    contracts = ["//shop/Ordering"]

    [routes.Stock]
    service_name = "//shop/Stock"
    address = "TCP://stock.example:4022"

    [users.web]
    postgres_role = "web"

    [grants]
    web = ["SEND ON SERVICE //shop/Stock", "RECEIVE ON QUEUE OrderQueue"]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_argument
from servicebroker.operations.contracts import CreateContract
from servicebroker.operations.message_types import AlterMessageType, CreateMessageType
from servicebroker.operations.operation import Definition, method_name
from servicebroker.operations.permissions import Deny, Grant
from servicebroker.operations.principals import AddRoleMember, CreateRole, CreateUser
from servicebroker.operations.queues import DROP, Activation, AlterQueue, CreateQueue
from servicebroker.operations.routes import AlterRoute, CreateRoute
from servicebroker.operations.services import AlterService, CreateService

WITH_COLLECTION = "VALID_XML WITH SCHEMA COLLECTION "
GRANTED_ON = {  # the words of a grant, and the field of `Grant`
    "SERVICE": "service",
    "QUEUE": "queue",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
}
_GRANT = re.compile(rf"([A-Z ]+?)(?: ON ({'|'.join(GRANTED_ON)}) (.+))?")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a definition; a word that means nothing is refused."""


class ActivationPart(_Part, frozen=True):
    """ACTIVATION of a queue. `procedure_name` is without dbo and without the database's own name where it is dumped."""

    procedure_name: str
    max_queue_readers: int
    execute_as: str = "dbo"
    status: bool = True


class QueuePart(_Part, frozen=True):
    """A queue."""

    status: bool = True
    retention: bool = False
    poison_message_handling: bool = True
    activation: ActivationPart | None = None


class ServicePart(_Part, frozen=True):
    """A service."""

    queue: str
    contracts: list[str] = msgspec.field(default_factory=list)


class RoutePart(_Part, frozen=True):
    """A route that does not expire."""

    address: str
    service_name: str | None = None
    broker_instance: str | None = None
    mirror_address: str | None = None


class UserPart(_Part, frozen=True):
    """A user."""

    postgres_role: str | None = None
    for_login: str | None = None


class Application(_Part, frozen=True):
    """What a database has, or is to have.

    `grants` and `denials` are lists of texts for each user or role: `SEND ON SERVICE //shop/Stock`, `CREATE QUEUE`.
    """

    message_types: dict[str, str] = msgspec.field(default_factory=dict)
    contracts: dict[str, dict[str, Literal["INITIATOR", "TARGET", "ANY"]]] = msgspec.field(default_factory=dict)
    queues: dict[str, QueuePart] = msgspec.field(default_factory=dict)
    services: dict[str, ServicePart] = msgspec.field(default_factory=dict)
    routes: dict[str, RoutePart] = msgspec.field(default_factory=dict)
    users: dict[str, UserPart] = msgspec.field(default_factory=dict)
    roles: dict[str, list[str]] = msgspec.field(default_factory=dict)
    grants: dict[str, list[str]] = msgspec.field(default_factory=dict)
    denials: dict[str, list[str]] = msgspec.field(default_factory=dict)


class Change(NamedTuple):
    """What is to be done: in words, and as an operation."""

    words: str
    operation: Definition[None]


def read(given: object) -> Application:
    """A definition from a TOML file, or from the same as dictionaries.

    Raises:
        InstanceError: it cannot be read, or says what means nothing.
    """
    where = f"The definition '{given}'" if isinstance(given, str | Path) else "The definition"
    try:
        if isinstance(given, str | Path):
            return msgspec.toml.decode(read_argument(Path(given)), type=Application)
        return given if isinstance(given, Application) else msgspec.convert(given, Application)
    except OSError as problem:
        raise InstanceError(f"{where} cannot be read: {problem.strerror}.") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:  # also of names that no file has
        raise InstanceError(f"{where} cannot be used: {problem}.") from None


def written(application: Application) -> str:
    """The TOML of a definition."""
    told: dict[str, Any] = msgspec.to_builtins(application)
    return "\n".join(_tables(told)) + "\n"


def _tables(told: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    plain = {key: value for key, value in told.items() if not isinstance(value, dict)}
    if path and (plain or not told):
        yield f"[{'.'.join(map(_key, path))}]"
        for key, value in plain.items():
            yield f"{_key(key)} = {_value(value)}"
        yield ""
    for key, value in told.items():
        if isinstance(value, dict):
            yield from _tables(value, (*path, key))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    """TOML writes texts, numbers, switches and lists as JSON does, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---------------------------------------------------------------- what is to be changed


def changes(wanted: Application, there: Application) -> list[Change]:
    """What makes a database that has the one have the other, in an order that works. Nothing is dropped.

    Raises:
        InstanceError: a contract differs, which cannot be altered, or something is named wrongly.
    """
    return [
        *_of_principals(wanted, there),  # a queue's reader works as one of them
        *_of_message_types(wanted, there),
        *_of_contracts(wanted, there),
        *_of_queues(wanted, there),
        *_of_services(wanted, there),
        *_of_routes(wanted, there),
        *_of_rights(Grant, wanted.grants, there.grants),
        *_of_rights(Deny, wanted.denials, there.denials),
    ]


def not_defined(wanted: Application, there: Application) -> list[str]:
    """The objects that the database has and the definition does not name."""
    kinds = ("message_types", "contracts", "queues", "services", "routes", "users", "roles")
    return [
        f"{kind.removesuffix('s').replace('_', ' ')} {name}"
        for kind in kinds
        for name in getattr(there, kind)
        if _found(name, getattr(wanted, kind), exactly=kind in ("message_types", "contracts", "services")) is None
    ]


def _found(name: str, among: Mapping[str, Any], *, exactly: bool) -> Any:
    """What has the name: compared byte by byte, or without case and with dbo for no schema."""
    if exactly or name in among:
        return among.get(name)
    return next((value for key, value in among.items() if _folded(key) == _folded(name)), None)


def _folded(name: str) -> str:
    return name.lower().removeprefix("dbo.")


def _of_message_types(wanted: Application, there: Application) -> Iterator[Change]:
    for name, said in wanted.message_types.items():
        known = there.message_types.get(name)
        if known != said:
            verb = "create" if known is None else "alter"
            validation, _, collection = said.partition(WITH_COLLECTION.removeprefix("VALID_XML"))
            make = CreateMessageType if known is None else AlterMessageType
            words = f"{verb} message type {name}: {said}" + ("" if known is None else f", it was {known}")
            yield Change(words, make(name, validation, schema_collection=collection or None))


def _of_contracts(wanted: Application, there: Application) -> Iterator[Change]:
    for name, sent_by in wanted.contracts.items():
        known = there.contracts.get(name)
        if known is None:
            senders = ", ".join(f"{message_type} by {side}" for message_type, side in sent_by.items())
            yield Change(f"create contract {name}: {senders}", CreateContract(name, dict(sent_by)))
        elif known != sent_by:
            raise InstanceError(
                f"The contract '{name}' is another one in the database ({_value(known)}): a contract cannot be "
                "altered. Give the new one another name, or drop the old one."
            )


def _of_queues(wanted: Application, there: Application) -> Iterator[Change]:
    for name, queue in wanted.queues.items():
        known = _found(name, there.queues, exactly=False)
        before = msgspec.structs.asdict(known or QueuePart())
        if _same_activation(queue.activation, before["activation"]):
            before["activation"] = queue.activation
        told = {key: value for key, value in msgspec.structs.asdict(queue).items() if value != before[key]}
        if known is None or told:
            verb = "create" if known is None else "alter"
            clauses = ", ".join(f"{key} = {_value(msgspec.to_builtins(value))}" for key, value in told.items())
            operation = (CreateQueue if known is None else AlterQueue)(name, **_options(told))
            yield Change(f"{verb} queue {name}{': ' if clauses else ''}{clauses}", operation)


def _options(told: dict[str, Any]) -> dict[str, Any]:
    """The fields of a queue's operation; one without an ACTIVATION loses the one that it has."""
    if "activation" not in told:
        return told
    part: ActivationPart | None = told["activation"]
    return told | {"activation": DROP if part is None else Activation(**msgspec.structs.asdict(part))}


def _same_activation(one: ActivationPart | None, other: ActivationPart | None) -> bool:
    """Whether they differ in how names are written only."""
    if one is None or other is None:
        return one is other
    return _plain(one) == _plain(other)


def _plain(part: ActivationPart) -> ActivationPart:
    *prefix, procedure = names.name_parts("activation procedure", part.procedure_name, 3)
    name = f"{(prefix or ['dbo'])[-1]}.{procedure}"
    return msgspec.structs.replace(part, procedure_name=name.lower(), execute_as=part.execute_as.lower())


def _of_services(wanted: Application, there: Application) -> Iterator[Change]:
    for name, service in wanted.services.items():
        known = there.services.get(name)
        if known is None:
            takes = f" for {', '.join(service.contracts)}" if service.contracts else ""
            words = f"create service {name} on queue {service.queue}{takes}"
            yield Change(words, CreateService(name, service.queue, service.contracts))
            continue
        told: dict[str, Any] = {
            "queue": service.queue if _folded(known.queue) != _folded(service.queue) else None,
            "add_contracts": [one for one in service.contracts if one not in known.contracts],
            "drop_contracts": [one for one in known.contracts if one not in service.contracts],
        }
        if named := {key: value for key, value in told.items() if value}:
            clauses = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in named.items())
            yield Change(f"alter service {name}: {clauses}", AlterService(name, **named))


def _of_routes(wanted: Application, there: Application) -> Iterator[Change]:
    for name, route in wanted.routes.items():
        known = _found(name, there.routes, exactly=False)
        if known == route:
            continue
        told = msgspec.to_builtins(route)
        if known is not None and (gone := sorted(msgspec.to_builtins(known).keys() - told.keys())):
            raise InstanceError(
                f"The route '{name}' has {gone[0]} in the database, which ALTER ROUTE cannot take away: drop it first."
            )
        verb = "create" if known is None else "alter"
        clauses = ", ".join(f"{key} = {_value(value)}" for key, value in told.items())
        operation = (CreateRoute if known is None else AlterRoute)(name, **told)
        yield Change(f"{verb} route {name}: {clauses}", operation)


def _of_principals(wanted: Application, there: Application) -> Iterator[Change]:
    for name, user in wanted.users.items():
        known = _found(name, there.users, exactly=False)
        if known is None:
            yield Change(f"create user {name}", CreateUser(name, user.postgres_role, for_login=user.for_login))
        elif known != user:
            raise InstanceError(f"The user '{name}' stands for somebody else in the database: drop it first.")
    for name, members in wanted.roles.items():
        known = _found(name, there.roles, exactly=False)
        if known is None:
            yield Change(f"create role {name}", CreateRole(name))
        for member in members:
            if _folded(member) not in map(_folded, known or []):
                yield Change(f"add {member} to role {name}", AddRoleMember(name, member))


def _of_rights(
    make: type[Grant | Deny], wanted: Mapping[str, list[str]], there: Mapping[str, list[str]]
) -> Iterator[Change]:
    for principal, rights in wanted.items():
        known = _found(principal, there, exactly=False) or []
        for right in rights:
            found = _GRANT.fullmatch(right)
            if found is None:
                raise InstanceError(
                    f"'{right}' is no permission: write it as SEND ON SERVICE //shop/Stock, or CREATE QUEUE."
                )
            if right not in known:
                permission, kind, name = found.groups()
                target: dict[str, Any] = {GRANTED_ON[kind]: name} if kind else {}
                operation = make(permission, principal, **target)
                yield Change(f"{method_name(make)} {right} to {principal}", operation)
