"""Every method of a database with every kind of wrong argument raises a clear error and changes nothing."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import servicebroker as sb
from servicebroker import operations
from servicebroker.model.errors import LONGEST_TEXT
from servicebroker.model.wording import short_repr
from support import (
    APP,
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ROUTE,
    STOCK,
    STOCK_QUEUE,
    as_user,
    group_of,
    open_dialog,
    query,
    queue_number,
    refused,
)


class WithoutRepr:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise LookupError("there is no text of it")


NO_NAMES = ["", "x" * 300, "x" * 1_000_000, "a\0b", "\ud800", "#q", "a.b.c.d"]
NUMBERS = [0, -1, 2**70, 10**5_000, float("nan"), True]  # Python refuses to print an int of more than 4,300 digits
BAD_VALUES = [None, *NUMBERS, b"bytes", *NO_NAMES, [None], [[]], {"x": None}, object(), WithoutRepr(), uuid4(), (1,)]
PATIENT = {"wait"}  # a long wait is valid

Calls = dict[str, dict[str, Any]]


@pytest.fixture
def calls(database: sb.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Valid arguments of each method. '%d' is replaced to get an unused name."""
    monkeypatch.chdir(tmp_path)  # some of the wrong names are file names
    handle, _ = open_dialog(database)
    database.create_user(APP)
    database.create_role("Readers")
    database.create_broker_priority("there", local_service_name=ORDERS)
    schema = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="%s"/></xs:schema>'
    database.create_xml_schema_collection("Shapes", schema % "shape")
    database.create_master_key("correct horse")
    database.create_certificate("mine")
    database.create_remote_service_binding("bound", to_service="//elsewhere", user=APP)
    on_service = {"permission": "SEND", "principal": APP, "service": STOCK}
    return {
        "define": {"definition": {"queues": {"Defined": {}}}},
        "create_message_type": {"name": "%d"},
        "create_contract": {"name": "%d", "sent_by": {ORDER: "ANY"}},
        "create_queue": {"name": "%d"},
        "create_service": {"name": "%d", "queue": STOCK_QUEUE, "contracts": [CONTRACT]},
        "create_xml_schema_collection": {"name": "%d", "documents": schema % "form"},
        "alter_xml_schema_collection": {"name": "Shapes", "add": schema % "form"},
        "create_broker_priority": {"name": "%d", "contract_name": CONTRACT},
        "create_route": {"name": "%d", "address": "LOCAL"},
        "create_user": {"name": "%d"},
        "create_master_key": {"password": "battery staple"},
        "open_master_key": {"password": "correct horse"},
        "close_master_key": {},
        "alter_master_key": {"service_master_key": True},
        "add_master_key_password": {"password": "another staple"},
        "drop_master_key_password": {"password": "another staple"},
        "regenerate_master_key": {"password": "correct horse"},
        "create_certificate": {"name": "%d", "subject": "CN=x"},
        "alter_certificate": {"name": "mine", "active_for_begin_dialog": True},
        "backup_certificate": {"name": "mine", "file": "/missing/folder/x"},
        "sign_with_certificate": {"name": "mine", "text": b"x"},
        "create_event_notification": {
            "name": "%d",
            "on_queue": STOCK_QUEUE,
            "events": "BROKER_QUEUE_DISABLED",
            "to_service": STOCK,
        },
        "drop_event_notification": {"name": "missing", "on_queue": STOCK_QUEUE},
        "create_remote_service_binding": {"name": "%d", "to_service": "%d", "user": APP},
        "alter_remote_service_binding": {"name": "bound", "anonymous": True},
        "get_transmission_status": {"handle": handle},
        "delayed_messages": {"handle": handle},
        "cancel_delayed": {"handle": handle, "number": 0},
        "schedules": {},
        "drop_schedule": {"queue": STOCK_QUEUE, "name": "job"},
        "execute_tsql": {"script": "SELECT 1", "parameters": {"a": 1}},
        "create_role": {"name": "%d"},
        "alter": {},
        "alter_message_type": {"name": MARK, "validation": "EMPTY"},
        "alter_queue": {"name": STOCK_QUEUE},
        "alter_service": {"name": STOCK, "add_contracts": [sb.DEFAULT]},
        "alter_broker_priority": {"name": "there", "priority_level": 3},
        "alter_route": {"name": ROUTE, "address": "LOCAL"},
        "explain_route": {"service": STOCK},
        "alter_authorization": {"service": STOCK, "owner": APP},
        **{
            f"drop_{kind}": {"name": "missing"}
            for kind in (
                *("message_type", "contract", "queue", "service", "broker_priority", "route", "user", "role"),
                *("xml_schema_collection", "certificate", "remote_service_binding"),
            )
        },
        "drop_master_key": {},
        "add_role_member": {"role": "Readers", "member": APP},
        "drop_role_member": {"role": "Readers", "member": APP},
        "grant": on_service,
        "deny": on_service,
        "revoke": on_service,
        "begin_dialog": {"from_service": ORDERS, "to_service": STOCK, "contract": CONTRACT},
        "send": {"handle": handle, "message_type": ORDER, "body": b"x"},
        "send_batch": {"handle": handle, "message_type": ORDER, "bodies": [b"x"]},
        "receive": {"queue": STOCK_QUEUE},
        "process": {"queue": STOCK_QUEUE, "procedure": lambda transaction, messages: None},
        "process_late_answers": {"queue": STOCK_QUEUE, "procedure": lambda transaction, messages: None},
        "begin_request": {"from_service": ORDERS, "to_service": STOCK, "contract": CONTRACT},
        "request": {"from_service": ORDERS, "to_service": STOCK, "contract": CONTRACT, "timeout": 0},
        "wait_for_answer": {"handle": uuid4()},
        "set_aside_messages": {},
        "dead_letter_groups": {},
        "replay_message": {"set_aside_id": 1},
        "discard_message": {"set_aside_id": 1},
        "get_conversation_group": {"queue": STOCK_QUEUE},
        "move_conversation": {"handle": handle, "group": group_of(database, handle)},
        "end_conversation": {"handle": uuid4()},
        "begin_conversation_timer": {"handle": handle, "timeout": 100},
        "run": {"operation": operations.Receive(STOCK_QUEUE)},
    }


def wrong_calls(
    database: sb.Database, calls: Calls, sample: random.Random | None
) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Return (method, argument, wrong value, all arguments). With `sample`, half of the values of each argument."""
    numbers = itertools.count()
    for method, arguments in calls.items():
        for name in sorted(set(inspect.signature(getattr(database, method)).parameters) - PATIENT):
            for value in sample.sample(BAD_VALUES, len(BAD_VALUES) // 2) if sample else BAD_VALUES:
                values = {key: f"new{next(numbers)}" if good == "%d" else good for key, good in arguments.items()}
                yield method, name, value, {**values, name: value}


@pytest.mark.parametrize("user", ["dbo", APP])
def test_a_wrong_argument_has_a_clear_error_and_changes_nothing(
    database: sb.Database, calls: Calls, user: str, pytestconfig: pytest.Config, seeded_random: random.Random
) -> None:
    caller, sample = as_user(database, user), None if pytestconfig.option.full else seeded_random
    methods = {name for name, _ in inspect.getmembers(sb.Database, inspect.isfunction) if not name.startswith("_")}
    assert methods == calls.keys() | {"transaction", "join", "tsql_session", "working", "defining"}
    for method, name, value, given in wrong_calls(database, calls, sample):
        refusal = ""
        try:
            getattr(caller, method)(**given)
        except sb.ServiceBrokerError as problem:
            refusal = str(problem)
        except Exception as problem:
            raise AssertionError(f"{method}({name}={short_repr(value)}) raises {type(problem).__name__}") from problem
        assert "\n" not in refusal
        assert len(refusal) < LONGEST_TEXT + 100
    left = query(
        database,
        "select a.state, l.locktype from pg_stat_activity a left join pg_locks l on l.pid = a.pid "
        "and l.locktype in ('advisory', 'transactionid') where a.datname = current_database() "
        "and a.pid <> pg_backend_pid() and a.backend_type = 'client backend' "
        "and (l.locktype is not null or a.state <> 'idle')",
    )
    assert left == []


@pytest.mark.sampled(12)
@pytest.mark.parametrize("value", [None, 0, 1, "OFF", "no"])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("alter", "enable_broker"),
        ("alter", "disable_broker"),
        ("alter", "new_broker"),
        ("alter", "error_broker_conversations"),
        ("create_queue", "retention"),
        ("alter_queue", "reorganize"),
        ("create_queue", "poison_message_handling"),
        ("create_queue", "status"),
        ("alter", "no_wait"),
        ("alter_queue", "rebuild"),
        ("grant", "with_grant_option"),
        ("deny", "cascade"),
        ("revoke", "cascade"),
        ("revoke", "grant_option_for"),
        ("begin_dialog", "encryption"),
        ("end_conversation", "cleanup"),
        ("alter_master_key", "service_master_key"),
        ("create_certificate", "active_for_begin_dialog"),
        ("create_event_notification", "with_fan_in"),
        ("create_remote_service_binding", "anonymous"),
    ],
)
def test_a_boolean_argument_must_be_true_or_false(
    database: sb.Database, calls: Calls, method: str, name: str, value: Any
) -> None:
    """`disable_broker="no"` is an error, and does not disable the broker."""
    with refused(402):
        getattr(database, method)(**{**calls[method], name: value})


def test_an_invalid_owner_is_refused(database: sb.Database, calls: Calls) -> None:
    with refused(402):
        database.alter_authorization(None, service=STOCK)  # type: ignore[arg-type]


def test_a_number_is_not_a_queue_name(database: sb.Database, calls: Calls) -> None:
    number: Any = queue_number(database, STOCK_QUEUE)
    with refused(402):
        database.grant("RECEIVE", APP, queue=number)


INSTANCE_METHODS = {  # valid arguments
    "accept_certificate": {"name": "none"},
    "alter_certificate": {"name": "none"},
    "alter_endpoint": {"name": "ServiceBrokerEndpoint"},
    "backup_certificate": {"name": "none", "file": "/missing/folder/x"},
    "create_certificate": {"name": "made"},
    "create_endpoint": {"name": "made", "listener_port": 4022},
    "create_login": {"name": "made"},
    "database": {"name": "none"},
    "drop_certificate": {"name": "none"},
    "drop_database": {"name": "none"},
    "drop_endpoint": {"name": "none"},
    "drop_login": {"name": "none"},
    "set_peer_budget": {"name": "none", "amounts": {}},
    "set_role_budget": {"role": "none", "amounts": {}},
    **{verb: {"permission": "CONTROL SERVER", "principal": "none"} for verb in ("grant", "deny", "revoke")},
    **{verb: {"endpoint": "none", "login": "none"} for verb in ("grant_connect", "deny_connect", "revoke_connect")},
    **{verb: {"role": "none"} for verb in ("grant_rights", "revoke_rights", "show_rights")},
}


def test_wrong_arguments_of_an_instance_have_clear_errors(
    make_instance_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with sb.open(make_instance_url(), upkeep=None, keys=tmp_path / "keys") as instance:
        for method, arguments in INSTANCE_METHODS.items():
            for name in inspect.signature(getattr(instance, method)).parameters:
                for value in BAD_VALUES:
                    refusal = ""
                    try:
                        getattr(instance, method)(**{**arguments, name: value})
                    except sb.ServiceBrokerError as problem:
                        refusal = str(problem)
                    except Exception as problem:
                        pattern = f"{method}({name}={short_repr(value)}) raises {type(problem).__name__}"
                        raise AssertionError(pattern) from problem
                    assert len(refusal) < LONGEST_TEXT + 100


@pytest.mark.parametrize(
    "value", [value for value in BAD_VALUES if value is not None], ids=lambda value: type(value).__name__
)
def test_open_refuses_values_that_are_no_address(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in ({"keys": value}, {"maximum_body": value}):
        if not isinstance(value, str):
            with pytest.raises(sb.ServiceBrokerError):
                sb.open(tmp_path / "none", **wrong)
    if not isinstance(value, str) or not value.isprintable() or not value:
        with pytest.raises(sb.ServiceBrokerError):
            sb.open(value)
