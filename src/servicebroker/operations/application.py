"""The definition of an application: its objects and rights, and the changes that bring a database to that state.

An example in TOML:

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

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_argument
from servicebroker.model.toml import parse_toml
from servicebroker.operations.contracts import CreateContract
from servicebroker.operations.message_types import AlterMessageType, CreateMessageType
from servicebroker.operations.operation import Definition, method_name, written_type
from servicebroker.operations.permissions import Deny, Grant
from servicebroker.operations.principals import AddRoleMember, CreateRole, CreateUser
from servicebroker.operations.queues import DROP, Activation, AlterQueue, CreateQueue
from servicebroker.operations.routes import AlterRoute, CreateRoute
from servicebroker.operations.services import AlterService, CreateService

WITH_COLLECTION = "VALID_XML WITH SCHEMA COLLECTION "
GRANTED_ON = {  # the kind of object in a grant: the field of `Grant`
    "SERVICE": "service",
    "QUEUE": "queue",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
}
_GRANT = re.compile(rf"([A-Z ]+?)(?: ON ({'|'.join(GRANTED_ON)}) (.+))?")


@dataclass(frozen=True, slots=True)
class Application:
    """The objects and rights of a database, current or wanted. The keys of the dictionaries are names.

    `grants` and `denials` are lists for each user or role: `SEND ON SERVICE //shop/Stock`, `CREATE QUEUE`.
    """

    message_types: dict[str, str] = field(default_factory=dict)
    contracts: dict[str, dict[str, Literal["INITIATOR", "TARGET", "ANY"]]] = field(default_factory=dict)
    queues: dict[str, CreateQueue] = field(default_factory=dict)
    services: dict[str, CreateService] = field(default_factory=dict)
    routes: dict[str, CreateRoute] = field(default_factory=dict)
    users: dict[str, CreateUser] = field(default_factory=dict)
    roles: dict[str, list[str]] = field(default_factory=dict)
    grants: dict[str, list[str]] = field(default_factory=dict)
    denials: dict[str, list[str]] = field(default_factory=dict)


class Change(NamedTuple):
    """A required change, as a description and as an operation."""

    words: str
    operation: Definition[None]


# ---------------------------------------------------------------- TOML


def _part(operation_class: type, *left_out: str, **defaults: object) -> type[msgspec.Struct]:
    """Make the TOML form of a class from its parameters, without those in `left_out`. Unknown keys are refused."""
    hints, declared = get_type_hints(operation_class), []
    for name, parameter in inspect.signature(operation_class).parameters.items():
        kind = _ACTIVATION | None if Activation in get_args(hints[name]) else written_type(hints[name])
        default = defaults.get(name, [] if parameter.default == () else parameter.default)
        if name not in left_out:
            declared.append((name, kind) if default is parameter.empty else (name, kind, default))
    return _struct(operation_class.__name__, declared)


def _struct(name: str, declared: Iterable[Any]) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, declared, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True)


_OF_NAME = "name", "authorization", "exist_ok"  # the key of the table, and fields that are not compared
_ACTIVATION = _part(
    Activation,
    procedure_name=inspect.Parameter.empty,
    max_queue_readers=inspect.Parameter.empty,
    execute_as="dbo",
    status=True,
)
_PARTS: dict[type, type[msgspec.Struct]] = {
    Activation: _ACTIVATION,
    CreateQueue: _part(CreateQueue, *_OF_NAME, "filegroup"),
    CreateService: _part(CreateService, *_OF_NAME),
    CreateRoute: _part(CreateRoute, *_OF_NAME, "lifetime"),
    CreateUser: _part(CreateUser, *_OF_NAME, "from_certificate"),
}
_TABLES = {table: get_args(hint)[1] for table, hint in get_type_hints(Application).items()}  # the types of their values
_TOML = _struct(
    "Application",
    [
        (table, dict[str, _PARTS.get(kind, kind)], msgspec.field(default_factory=dict))  # type: ignore[misc]
        for table, kind in _TABLES.items()
    ],
)


def read(definition: object) -> Application:
    """Read a definition from a TOML file, or from dictionaries with the same content.

    Raises:
        InstanceError: the file cannot be read, or has an unknown key or a wrong type.
    """
    if isinstance(definition, Application):
        return definition
    subject = f"The definition '{definition}'" if isinstance(definition, str | Path) else "The definition"
    try:
        if isinstance(definition, str | Path):
            definition = parse_toml(read_argument(Path(definition)).decode())
        return _read(msgspec.convert(definition, _TOML))
    except OSError as problem:
        raise InstanceError(f"{subject} cannot be read: {problem.strerror}.") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:  # also for invalid file names
        raise InstanceError(f"{subject} cannot be used: {problem}.") from None


def _read(form: msgspec.Struct) -> Application:
    """Convert the TOML form into an Application."""
    return Application(
        **{
            table: {name: _made(_TABLES[table], form, name) for name, form in objects.items()}
            for table, objects in msgspec.structs.asdict(form).items()
        }
    )


def _made(kind: Any, form: Any, *name: str) -> Any:
    if not isinstance(form, msgspec.Struct):
        return form
    options = msgspec.structs.asdict(form)
    if options.get("activation") is not None:
        options["activation"] = _made(Activation, options["activation"])
    return kind(*name, **options)


def _options(value: Any) -> dict[str, Any]:
    """Return the options of a queue, a service, a route or a user that a definition has."""
    return {name: getattr(value, name) for name in _PARTS[type(value)].__struct_fields__}


def _form(value: Any) -> Any:
    """Return the TOML form of a value."""
    part = _PARTS.get(type(value))
    return value if part is None else part(**{name: _form(option) for name, option in _options(value).items()})


def to_toml(application: Application) -> str:
    """Return the TOML of a definition."""
    tables = {
        table: {name: msgspec.to_builtins(_form(value)) for name, value in getattr(application, table).items()}
        for table in _TABLES
    }
    return "\n".join(_tables({table: objects for table, objects in tables.items() if objects})) + "\n"


def _tables(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of a TOML table and its subtables."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path and (plain or not table):
        yield f"[{'.'.join(map(_key, path))}]"
        for key, value in plain.items():
            yield f"{_key(key)} = {_value(value)}"
        yield ""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _tables(value, (*path, key))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    """Return a str, number, bool or list in TOML: its JSON, with the character DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---------------------------------------------------------------- required changes


def changes(wanted: Application, current: Application) -> list[Change]:
    """Return the changes from the current application to the wanted one, in executable order. Nothing is dropped.

    Raises:
        InstanceError: an object differs that cannot be altered, or a permission is malformed.
    """
    return [
        *_of_principals(wanted, current),  # first: an activation procedure runs as a user
        *_of_message_types(wanted, current),
        *_of_contracts(wanted, current),
        *_of_queues(wanted, current),
        *_of_services(wanted, current),
        *_of_routes(wanted, current),
        *_of_rights(Grant, wanted.grants, current.grants),
        *_of_rights(Deny, wanted.denials, current.denials),
    ]


def not_defined(wanted: Application, current: Application) -> list[str]:
    """Return the objects of the database that the definition does not name."""
    kinds = ("message_types", "contracts", "queues", "services", "routes", "users", "roles")
    return [
        f"{kind.removesuffix('s').replace('_', ' ')} {name}"
        for kind in kinds
        for name in getattr(current, kind)
        if _lookup(name, getattr(wanted, kind), exactly=kind in ("message_types", "contracts", "services")) is None
    ]


def _lookup(name: str, objects: Mapping[str, Any], *, exactly: bool) -> Any:
    """Return the object of a name, compared byte by byte if `exactly`; else case-insensitive, with dbo as default."""
    if exactly or name in objects:
        return objects.get(name)
    return next((value for key, value in objects.items() if _folded(key) == _folded(name)), None)


def _folded(name: str) -> str:
    return name.lower().removeprefix("dbo.")


def _of_message_types(wanted: Application, current: Application) -> Iterator[Change]:
    for name, new in wanted.message_types.items():
        old = current.message_types.get(name)
        if old != new:
            verb = "create" if old is None else "alter"
            validation, _, collection = new.partition(WITH_COLLECTION.removeprefix("VALID_XML"))
            make = CreateMessageType if old is None else AlterMessageType
            words = f"{verb} message type {name}: {new}" + ("" if old is None else f", it was {old}")
            yield Change(words, make(name, validation, schema_collection=collection or None))


def _of_contracts(wanted: Application, current: Application) -> Iterator[Change]:
    for name, sent_by in wanted.contracts.items():
        old = current.contracts.get(name)
        if old is None:
            senders = ", ".join(f"{message_type} by {side}" for message_type, side in sent_by.items())
            yield Change(f"create contract {name}: {senders}", CreateContract(name, dict(sent_by)))
        elif old != sent_by:
            raise InstanceError(
                f"The contract '{name}' differs in the database ({_value(old)}), and a contract cannot be altered. "
                "Give the new contract another name, or drop the old one."
            )


def _of_queues(wanted: Application, current: Application) -> Iterator[Change]:
    for name, queue in wanted.queues.items():
        current_queue: CreateQueue | None = _lookup(name, current.queues, exactly=False)
        old = current_queue or CreateQueue(name)
        if _same_activation(queue.activation, old.activation):
            old = replace(old, activation=queue.activation)
        options = _changed_options(queue, old)
        clauses = _clauses(options)
        if current_queue is None:
            yield Change(f"create queue {name}{': ' if clauses else ''}{clauses}", queue)
        elif options:
            if options.get("activation", DROP) is None:
                options["activation"] = DROP
            yield Change(f"alter queue {name}: {clauses}", AlterQueue(name, **options))


def _changed_options(new: Definition[None], old: Definition[None]) -> dict[str, Any]:
    """Return the options of `new` that differ from `old`."""
    old_options = _options(old)
    return {name: option for name, option in _options(new).items() if option != old_options[name]}


def _clauses(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_value(msgspec.to_builtins(_form(option)))}" for name, option in options.items())


def _same_activation(left: Activation | None, other: Activation | None) -> bool:
    """Return whether two activations are equal, except for the case and the schema dbo of names."""
    if left is None or other is None:
        return left is other
    return _plain(left) == _plain(other)


def _plain(activation: Activation) -> Activation:
    *prefix, procedure = names.name_parts("activation procedure", activation.procedure_name, 3)
    name, execute_as = f"{(prefix or ['dbo'])[-1]}.{procedure}", activation.execute_as or ""
    return activation._replace(procedure_name=name.lower(), execute_as=execute_as.lower())


def _of_services(wanted: Application, current: Application) -> Iterator[Change]:
    for name, service in wanted.services.items():
        old = current.services.get(name)
        if old is None:
            contracts = f" for {', '.join(service.contracts)}" if service.contracts else ""
            yield Change(f"create service {name} on queue {service.queue}{contracts}", service)
            continue
        options: dict[str, Any] = {
            "queue": service.queue if _folded(old.queue) != _folded(service.queue) else None,
            "add_contracts": [contract for contract in service.contracts if contract not in old.contracts],
            "drop_contracts": [contract for contract in old.contracts if contract not in service.contracts],
        }
        if changed := {key: value for key, value in options.items() if value}:
            clauses = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in changed.items())
            yield Change(f"alter service {name}: {clauses}", AlterService(name, **changed))


def _of_routes(wanted: Application, current: Application) -> Iterator[Change]:
    for name, route in wanted.routes.items():
        old: CreateRoute | None = _lookup(name, current.routes, exactly=False)
        options = {option: value for option, value in _options(route).items() if value is not None}
        if old is None:
            yield Change(f"create route {name}: {_clauses(options)}", route)
            continue
        removed = sorted(
            option for option, value in _options(old).items() if value is not None and option not in options
        )
        if removed:
            raise InstanceError(
                f"The route '{name}' has {removed[0]} in the database, and ALTER ROUTE cannot remove that: "
                f"drop the route first (servicebroker route drop {name})."
            )
        if _changed_options(route, old):
            yield Change(f"alter route {name}: {_clauses(options)}", AlterRoute(name, **options))


def _of_principals(wanted: Application, current: Application) -> Iterator[Change]:
    for name, user in wanted.users.items():
        old: CreateUser | None = _lookup(name, current.users, exactly=False)
        if old is None:
            yield Change(f"create user {name}", user)
        elif _changed_options(user, old):
            raise InstanceError(
                f"The user '{name}' differs in the database, and a user cannot be altered: drop the user first."
            )
    for name, members in wanted.roles.items():
        role = _lookup(name, current.roles, exactly=False)
        if role is None:
            yield Change(f"create role {name}", CreateRole(name))
        for member in members:
            if _folded(member) not in map(_folded, role or []):
                yield Change(f"add {member} to role {name}", AddRoleMember(name, member))


def _of_rights(
    make: type[Grant | Deny], wanted: Mapping[str, list[str]], current: Mapping[str, list[str]]
) -> Iterator[Change]:
    for principal, rights in wanted.items():
        old = _lookup(principal, current, exactly=False) or []
        for right in rights:
            match = _GRANT.fullmatch(right)
            if match is None:
                raise InstanceError(
                    f"'{right}' is not a permission: write it like SEND ON SERVICE //shop/Stock, or CREATE QUEUE."
                )
            if right not in old:
                permission, kind, name = match.groups()
                target: dict[str, Any] = {GRANTED_ON[kind]: name} if kind else {}
                operation = make(permission, principal, **target)
                yield Change(f"{method_name(make)} {right} to {principal}", operation)
