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
GRANTED_ON = {  # the words of a grant, and the field of `Grant`
    "SERVICE": "service",
    "QUEUE": "queue",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
}
_GRANT = re.compile(rf"([A-Z ]+?)(?: ON ({'|'.join(GRANTED_ON)}) (.+))?")


@dataclass(frozen=True, slots=True)
class Application:
    """The objects and rights of a database, as they are or as they should be: objects by their names.

    `grants` and `denials` are lists of texts for each user or role: `SEND ON SERVICE //shop/Stock`, `CREATE QUEUE`.
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
    """A change to make, in words and as an operation."""

    words: str
    operation: Definition[None]


# ---------------------------------------------------------------- as TOML


def _part(made: type, *left_out: str, **defaults: object) -> type[msgspec.Struct]:
    """Make the TOML form of a value from its parameters, but those left out. A word that means nothing is refused."""
    hints, declared = get_type_hints(made), []
    for name, parameter in inspect.signature(made).parameters.items():
        kind = _ACTIVATION | None if Activation in get_args(hints[name]) else written_type(hints[name])
        default = defaults.get(name, [] if parameter.default == () else parameter.default)
        if name not in left_out:
            declared.append((name, kind) if default is parameter.empty else (name, kind, default))
    return _struct(made.__name__, declared)


def _struct(name: str, declared: Iterable[Any]) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, declared, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True)


_OF_NAME = "name", "authorization", "exist_ok"  # the key of the table, and what the database cannot be compared by
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


def read(given: object) -> Application:
    """Read a definition from a TOML file, or from the same as dictionaries.

    Raises:
        InstanceError: it cannot be read, or says what means nothing.
    """
    if isinstance(given, Application):
        return given
    where = f"The definition '{given}'" if isinstance(given, str | Path) else "The definition"
    try:
        if isinstance(given, str | Path):
            given = parse_toml(read_argument(Path(given)).decode())
        return _read(msgspec.convert(given, _TOML))
    except OSError as problem:
        raise InstanceError(f"{where} cannot be read: {problem.strerror}.") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:  # also of names that no file has
        raise InstanceError(f"{where} cannot be used: {problem}.") from None


def _read(form: msgspec.Struct) -> Application:
    """Make the values of the forms."""
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


def written(application: Application) -> str:
    """Return the TOML of a definition."""
    tables = {
        table: {name: msgspec.to_builtins(_form(value)) for name, value in getattr(application, table).items()}
        for table in _TABLES
    }
    return "\n".join(_tables({table: objects for table, objects in tables.items() if objects})) + "\n"


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
    """Return a text, number, switch or list in TOML, which writes them as JSON does, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---------------------------------------------------------------- what is to be changed


def changes(wanted: Application, there: Application) -> list[Change]:
    """Return the changes from the application `there` to the one wanted, in an order that works. Nothing is dropped.

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
    """Return the objects that the database has and the definition does not name."""
    kinds = ("message_types", "contracts", "queues", "services", "routes", "users", "roles")
    return [
        f"{kind.removesuffix('s').replace('_', ' ')} {name}"
        for kind in kinds
        for name in getattr(there, kind)
        if _found(name, getattr(wanted, kind), exactly=kind in ("message_types", "contracts", "services")) is None
    ]


def _found(name: str, among: Mapping[str, Any], *, exactly: bool) -> Any:
    """Return the value under a name, compared byte by byte, or without case and with dbo for no schema."""
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
        known: CreateQueue | None = _found(name, there.queues, exactly=False)
        before = known or CreateQueue(name)
        if _same_activation(queue.activation, before.activation):
            before = replace(before, activation=queue.activation)
        options = _changed(queue, before)
        clauses = _clauses(options)
        if known is None:
            yield Change(f"create queue {name}{': ' if clauses else ''}{clauses}", queue)
        elif options:
            if options.get("activation", DROP) is None:
                options["activation"] = DROP
            yield Change(f"alter queue {name}: {clauses}", AlterQueue(name, **options))


def _changed(wanted: Definition[None], known: Definition[None]) -> dict[str, Any]:
    """Return the options that differ."""
    before = _options(known)
    return {name: option for name, option in _options(wanted).items() if option != before[name]}


def _clauses(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_value(msgspec.to_builtins(_form(option)))}" for name, option in options.items())


def _same_activation(left: Activation | None, other: Activation | None) -> bool:
    """Return whether the two are equal but for the spelling of names."""
    if left is None or other is None:
        return left is other
    return _plain(left) == _plain(other)


def _plain(activation: Activation) -> Activation:
    *prefix, procedure = names.name_parts("activation procedure", activation.procedure_name, 3)
    name, execute_as = f"{(prefix or ['dbo'])[-1]}.{procedure}", activation.execute_as or ""
    return activation._replace(procedure_name=name.lower(), execute_as=execute_as.lower())


def _of_services(wanted: Application, there: Application) -> Iterator[Change]:
    for name, service in wanted.services.items():
        known = there.services.get(name)
        if known is None:
            takes = f" for {', '.join(service.contracts)}" if service.contracts else ""
            yield Change(f"create service {name} on queue {service.queue}{takes}", service)
            continue
        told: dict[str, Any] = {
            "queue": service.queue if _folded(known.queue) != _folded(service.queue) else None,
            "add_contracts": [contract for contract in service.contracts if contract not in known.contracts],
            "drop_contracts": [contract for contract in known.contracts if contract not in service.contracts],
        }
        if named := {key: value for key, value in told.items() if value}:
            clauses = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in named.items())
            yield Change(f"alter service {name}: {clauses}", AlterService(name, **named))


def _of_routes(wanted: Application, there: Application) -> Iterator[Change]:
    for name, route in wanted.routes.items():
        known: CreateRoute | None = _found(name, there.routes, exactly=False)
        options = {option: value for option, value in _options(route).items() if value is not None}
        if known is None:
            yield Change(f"create route {name}: {_clauses(options)}", route)
            continue
        gone = sorted(
            option for option, value in _options(known).items() if value is not None and option not in options
        )
        if gone:
            raise InstanceError(
                f"The route '{name}' has {gone[0]} in the database, which ALTER ROUTE cannot remove: drop it first."
            )
        if _changed(route, known):
            yield Change(f"alter route {name}: {_clauses(options)}", AlterRoute(name, **options))


def _of_principals(wanted: Application, there: Application) -> Iterator[Change]:
    for name, user in wanted.users.items():
        known: CreateUser | None = _found(name, there.users, exactly=False)
        if known is None:
            yield Change(f"create user {name}", user)
        elif _changed(user, known):
            raise InstanceError(
                f"The user '{name}' has another definition in the database, which cannot be altered: drop it first."
            )
    for name, members in wanted.roles.items():
        role = _found(name, there.roles, exactly=False)
        if role is None:
            yield Change(f"create role {name}", CreateRole(name))
        for member in members:
            if _folded(member) not in map(_folded, role or []):
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
                    f"'{right}' is not a permission: write it like SEND ON SERVICE //shop/Stock, or CREATE QUEUE."
                )
            if right not in known:
                permission, kind, name = found.groups()
                target: dict[str, Any] = {GRANTED_ON[kind]: name} if kind else {}
                operation = make(permission, principal, **target)
                yield Change(f"{method_name(make)} {right} to {principal}", operation)
