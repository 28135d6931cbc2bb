"""An operation is declared once: APIs and interpreters take fields, help and permission from there."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import servicebroker as sb
import servicebroker.testing as double
from servicebroker import operations
from servicebroker.cli.main import load
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.model.errors import RULES
from servicebroker.model.security.permissions import NEEDS
from servicebroker.operations.operation import Composite, arguments_of, help_of, method_name
from servicebroker.testing.definitions import INTERPRETERS as IN_THE_DOUBLE
from servicebroker.testing.verbs import INTERPRETERS

ALL = [getattr(operations, name) for name in operations.__all__ if name not in ("Operation", "Definition")]
DEFINITIONS = [operation for operation in ALL if issubclass(operation, operations.Definition)]
OF_ROLES = [operations.GrantRights, operations.RevokeRights]  # rights of PostgreSQL: no broker permission is needed
OF_DATABASES = [  # also in the double
    operations.SetAsideMessages,
    operations.DeadLetterGroups,
    operations.ReplayMessage,
    operations.DiscardMessage,
    operations.Schedules,
    operations.DropSchedule,
]
ADMINISTRATION = [*OF_DATABASES, *OF_ROLES, *DEFINITIONS]
SINGLE = [
    operation
    for operation in ALL
    if not issubclass(operation, (Composite, operations.Definition)) and operation not in OF_ROLES
]
FACES = [sb.Database, sb.Transaction, sb.JoinedTransaction, sb.AsyncDatabase, double.Database, double.Transaction]
ADMINISTRATIVE = [(sb.Database, sb.AsyncDatabase), (sb.Instance, sb.AsyncInstance)]
HANDLE = UUID(int=1)


def classes_of(operation: type[Any]) -> list[type]:
    """Return the classes (database, instance, or both) that have this operation as a method."""
    name, told = method_name(operation), help_of(operation)
    faces = [both for both in ADMINISTRATIVE if inspect.getdoc(getattr(both[0], name, None)) == told]
    assert faces, f"{operation.__name__} is not a method of a database or an instance"
    return [face for both in faces for face in both]


@pytest.mark.parametrize(
    ("operation", "face"),
    [
        *((operation, face) for operation in ALL if operation not in ADMINISTRATION for face in FACES),
        *((operation, face) for operation in ADMINISTRATION for face in classes_of(operation)),
        *((operation, double.Database) for operation in [*IN_THE_DOUBLE, *OF_DATABASES]),
    ],
    ids=lambda operation_class: f"{operation_class.__module__}.{operation_class.__qualname__}",
)
def test_the_method_of_each_face_shows_the_operation(operation: type[Any], face: type) -> None:
    method = getattr(face, method_name(operation))
    assert list(inspect.signature(method).parameters.values())[1:] == list(
        inspect.signature(operation).parameters.values()
    )
    assert inspect.getdoc(method) == help_of(operation)
    assert inspect.iscoroutinefunction(method) == face.__name__.startswith("Async")


@pytest.mark.parametrize("operation", SINGLE, ids=lambda operation: operation.__name__)
def test_every_interpreter_runs_it(operation: type[Any]) -> None:
    assert all(operation in known for known in (OwnerVerbs.interpreters, RestrictedVerbs.interpreters))
    assert operation in INTERPRETERS  # the double


@pytest.mark.parametrize("operation", ALL, ids=lambda operation: operation.__name__)
def test_the_help_of_an_operation_names_its_fields_and_existing_errors(operation: type[Any]) -> None:
    help_text = help_of(operation)
    fields = list(inspect.signature(operation).parameters)
    told_of = re.split(r"\n(?:Returns|Raises):", help_text.partition("Args:")[2])[0]
    assert re.findall(r"^    (\w+): ", told_of, re.M) == fields
    numbers = {int(number) for number in re.findall(r"(?<![\w,])\d{3,5}(?![\w,]\d)", help_text.partition("Raises:")[2])}
    assert numbers <= RULES.keys()


@pytest.mark.parametrize("operation", ALL, ids=lambda operation: operation.__name__)
def test_the_permission_of_an_operation_is_in_the_table(operation: type[Any]) -> None:
    if operation in (operations.GetTransmissionStatus, *OF_ROLES):
        assert operation.permission is None
    elif "permission" not in inspect.signature(operation).parameters:  # GRANT: the need depends on the permission
        assert operation.permission in NEEDS


def test_an_operation_is_a_value() -> None:
    sent = operations.Send(HANDLE, "M", b"x")
    assert sent == operations.Send(HANDLE, "M", b"x") != operations.Send(HANDLE, "M", b"y")
    assert "x" not in repr(sent).partition("M")[2]  # a body may be long or secret
    with pytest.raises(dataclasses.FrozenInstanceError):
        sent.handle = uuid4()  # type: ignore[misc]


def test_the_bodies_of_an_iterator_are_read_once() -> None:
    batch = operations.SendBatch(HANDLE, "M", (body for body in (b"a", b"b")))  # type: ignore[arg-type]
    assert batch.contents() == batch.contents() == [b"a", b"b"]
    assert batch.messages == 2


@pytest.mark.parametrize(
    ("operation", "number"),
    [
        (operations.Send(None, "M", b"x"), 8418),  # type: ignore[type-var]
        (operations.Send("x", "M", b"x"), 402),  # type: ignore[type-var]
        (operations.Send([], "M", b"x"), 402),
        (operations.Send([HANDLE, HANDLE], "M", b"x"), 402),
        (operations.Send(HANDLE, "", b"x"), 15151),
        (operations.Send(HANDLE, "M", None), 8433),
        (operations.Send(HANDLE, "M", b"xx"), 8459),
    ],
)
def test_a_send_refuses_invalid_arguments(operation: operations.Send[Any], number: int) -> None:
    with pytest.raises(sb.BrokerError) as error:
        operation.content(1)
    assert error.value.number == number


def test_the_fields_of_receive_are_spelled_in_few_files() -> None:
    package = Path(sb.__file__).parent
    texts = {path: path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".sql")}
    spelled = [
        str(path.relative_to(package))
        for path, text in texts.items()
        if all(re.search(word, text) for word in (r"\bconversation_group", r"\btop\b", "receive"))
        and not text.startswith("# Made from")
        and "migrations" not in path.parts
    ]
    assert len(spelled) <= 6, f"declare a field once, in operations/receive.py; now it stands in {spelled}"


def test_an_option_of_a_queue_is_spelled_in_few_files() -> None:
    package = Path(sb.__file__).parent
    spelled = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if all(re.search(rf"\b{word}\b", path.read_text()) for word in ("poison_message_handling", "retention"))
    ]
    assert len(spelled) <= 7, f"declare an option once, in operations/queues.py; now it stands in {spelled}"


@pytest.mark.parametrize(
    ("command", "operation", "otherwise"),
    [
        ("route create", operations.CreateRoute, {"service_name": "--service"}),
        ("route alter", operations.AlterRoute, {"service_name": "--service"}),
        ("queue create", operations.CreateQueue, {"status": "--on", "activation": None}),
        ("queue alter", operations.AlterQueue, {"status": "--on", "activation": None}),
        ("service create", operations.CreateService, {"contracts": "--contract"}),
        ("endpoint create", operations.CreateEndpoint, {"listener_port": "--port", "listener_ip": "--ip"}),
        ("endpoint alter", operations.AlterEndpoint, {"listener_port": "--port", "listener_ip": "--ip"}),
        ("database alter", operations.AlterDatabase, {"enable_broker": "--on", "disable_broker": "--off"}),
        ("database drop", operations.DropDatabase, {}),
        ("rights grant", operations.GrantRights, {"role": None, "database": None, "contracts": "--contract"}),
        ("rights revoke", operations.RevokeRights, {"role": None, "database": None, "contracts": "--contract"}),
    ],
)
def test_the_options_of_a_command_are_the_fields(
    command: str, operation: type[Any], otherwise: dict[str, str | None]
) -> None:
    kind, verb = command.split()
    made = load(kind).commands[verb]
    offered = {option: parameter.help for parameter in made.params for option in parameter.opts}
    argument_texts = arguments_of(operation)
    for field in inspect.signature(operation).parameters:
        option = otherwise.get(field, f"--{field.replace('_', '-')}")
        if field != "name" and option is not None:
            assert (
                offered[option].removesuffix(" May be repeated.").lower()
                == re.sub(r"\s+", " ", argument_texts[field]).strip().lower()
            )


def test_a_password_does_not_stand_in_the_text_of_an_operation() -> None:
    for operation in ALL:
        secret = {name: "Secret1!" for name in inspect.signature(operation).parameters if "password" in name}
        needed = [
            name
            for name, parameter in inspect.signature(operation).parameters.items()
            if parameter.default is parameter.empty and name not in secret
        ]
        assert "Secret1!" not in repr(operation(**dict.fromkeys(needed, "x"), **secret))
