"""The options of CREATE and ALTER QUEUE, and their columns in sys.service_queues."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    ORDER,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    eventually,
    peer_handle,
    query,
    queue_number,
    refused,
    waiting_messages,
)

READER = sb.Activation("dbo.Reader", max_queue_readers=3, execute_as="OWNER")

_COLUMNS = (
    "is_receive_enabled, is_enqueue_enabled, is_poison_message_handling_enabled, is_activation_enabled, "
    "activation_procedure, max_readers, execute_as_principal_id"
)


def options(database: sb.Database, queue: str) -> dict[str, Any]:
    text = f"select {_COLUMNS} from sys.service_queues where broker_database = %s and name = %s"
    (row,) = query(database, text, database.name, queue)
    return dict(zip(_COLUMNS.split(", "), row, strict=True))


def activation(database: sb.Database, queue: str) -> tuple[Any, ...]:
    """Return status, procedure, readers and principal of the activation."""
    return tuple(options(database, queue).values())[3:]


@pytest.mark.both_apis
def test_sys_service_queues_shows_the_options_of_create_queue(database: sb.Database) -> None:
    database.create_queue("Plain")
    assert options(database, "Plain") == {
        "is_receive_enabled": 1,
        "is_enqueue_enabled": 1,
        "is_poison_message_handling_enabled": 1,
        "is_activation_enabled": 0,
        "activation_procedure": None,
        "max_readers": None,
        "execute_as_principal_id": None,
    }
    database.create_queue("All", status=False, poison_message_handling=False, activation=READER, filegroup="default")
    assert options(database, "All") == {
        "is_receive_enabled": 0,
        "is_enqueue_enabled": 0,
        "is_poison_message_handling_enabled": 0,
        "is_activation_enabled": 1,
        "activation_procedure": f"[{database.name}].[dbo].[Reader]",
        "max_readers": 3,
        "execute_as_principal_id": -2,
    }


def test_a_queue_that_is_made_off_is_off(database: sb.Database) -> None:
    database.create_queue("Later", status=False)
    database.create_service("//later", "Later", [CONTRACT])
    handle = begin(database, "//later")
    database.send(handle, ORDER, b"waits")
    with refused(9617, "Later"):
        database.receive("Later")
    assert waiting_messages(database) == 1
    database.alter_queue("Later", status=True)
    assert bodies(database.receive("Later")) == [b"waits"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1, "dbo].[Reader]", 3, -2)),
        ({"status": False}, (0, "dbo].[Reader]", 3, -2)),
        ({"procedure_name": "[other].[a.b]]c]"}, (1, "other].[a.b]]c]", 3, -2)),
        ({"max_queue_readers": 32767}, (1, "dbo].[Reader]", 32767, -2)),
        ({"execute_as": "SELF"}, (1, "dbo].[Reader]", 3, 1)),
        ({"execute_as": "Guest"}, (1, "dbo].[Reader]", 3, 2)),
        ({"max_queue_readers": 0, "status": False}, (0, "dbo].[Reader]", 0, -2)),
    ],
    ids=repr,
)
def test_alter_queue_changes_only_the_given_options(
    database: sb.Database, changes: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    database.create_queue("Active", activation=READER)
    database.alter_queue("active", activation=sb.Activation(**changes))
    status, procedure, *rest = activation(database, "Active")
    assert (status, procedure, *rest) == (expected[0], f"[{database.name}].[{expected[1]}", *expected[2:])


def test_drop_takes_the_activation_away(database: sb.Database) -> None:
    database.create_queue("Active", activation=READER)
    database.alter_queue("Active", activation="DROP", poison_message_handling=False)
    assert activation(database, "Active") == (0, None, None, None)
    assert options(database, "Active")["is_poison_message_handling_enabled"] == 0
    with refused(9614, "Active"):
        database.alter_queue("Active", activation=sb.Activation(status=True))


def test_altering_the_procedure_does_not_enable_activation(database: sb.Database) -> None:
    database.alter_queue(STOCK_QUEUE, activation=sb.Activation("Elsewhere.jobs.Reader", max_queue_readers=1))
    assert activation(database, STOCK_QUEUE) == (0, "[Elsewhere].[jobs].[Reader]", 1, None)
    with refused(9613, STOCK_QUEUE):
        database.alter_queue(STOCK_QUEUE, activation=sb.Activation(status=True))
    database.alter_queue(STOCK_QUEUE, activation=sb.Activation(execute_as="dbo", status=True))
    assert activation(database, STOCK_QUEUE) == (1, "[Elsewhere].[jobs].[Reader]", 1, 1)


def test_no_readers_allowed_is_a_warning(database: sb.Database) -> None:
    with pytest.warns(UserWarning, match=r"^Msg 9648, Level 10, .*'Silent'"):
        database.create_queue("Silent", activation=READER._replace(max_queue_readers=0))
    assert activation(database, "Silent")[0] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        database.alter_queue("Silent", activation=sb.Activation(status=False))
        database.alter_queue("Silent", activation=sb.Activation(max_queue_readers=1, status=True))
    with pytest.warns(UserWarning, match="9648"):
        database.alter_queue("Silent", activation=sb.Activation(max_queue_readers=0))


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (402, {"activation": "DROP IT"}),
        (402, {"activation": READER._replace(max_queue_readers=-1)}),
        (402, {"activation": READER._replace(max_queue_readers=32768)}),
        (402, {"activation": READER._replace(max_queue_readers=True)}),
        (402, {"activation": READER._replace(status="ON")}),
        (402, {"activation": READER._replace(procedure_name=5)}),
        (402, {"activation": READER._replace(execute_as=5)}),
        (9742, {"activation": READER._replace(procedure_name="dbo.#temporary")}),
        (9609, {"activation": READER._replace(procedure_name="a.b.c.d")}),
        (15151, {"activation": READER._replace(procedure_name="")}),
        (9611, {"activation": READER._replace(execute_as="nobody")}),
        (9614, {"activation": sb.Activation(max_queue_readers=1, execute_as="SELF", status=True)}),
        (9613, {"activation": sb.Activation("Reader", max_queue_readers=1, status=True)}),
        (402, {"status": 1}),
        (402, {"poison_message_handling": "OFF"}),
    ],
    ids=repr,
)
def test_options_that_are_refused(database: sb.Database, number: int, wrong: dict[str, Any]) -> None:
    with refused(number):
        database.create_queue("Wrong", **wrong)
    assert (
        query(database, "select from sys.service_queues where broker_database = %s and name = 'Wrong'", database.name)
        == []
    )
    before = options(database, STOCK_QUEUE)
    with refused(number):
        database.alter_queue(STOCK_QUEUE, **({"status": False} | wrong))
    assert options(database, STOCK_QUEUE) == before


def test_create_needs_all_of_an_activation_that_is_on(database: sb.Database) -> None:
    for missing, number in (("procedure_name", 9614), ("execute_as", 9613)):
        with refused(number, "Half"):
            database.create_queue("Half", activation=READER._replace(**{missing: None}))
    with refused(402, "ACTIVATION"):
        database.create_queue("Half", activation="DROP")  # type: ignore[arg-type]
    database.create_queue("Half", activation=sb.Activation(status=False))
    assert activation(database, "Half") == (0, None, None, None)


def test_filegroups_are_refused(database: sb.Database) -> None:
    for wrong in ("SECONDARY", "fast disks"):
        with refused(15151, "filegroup", wrong, "TABLESPACE"):
            database.create_queue("Filed", filegroup=wrong)
        with refused(15151, "filegroup", wrong):
            database.alter_queue(STOCK_QUEUE, move_to=wrong)
    for right in ("Default", "primary"):
        database.alter_queue(STOCK_QUEUE, move_to=right)
    with refused(15151, "nowhere"):
        database.alter_queue("nowhere", reorganize=True)


@pytest.mark.both_apis
@pytest.mark.feature(15)
@pytest.mark.parametrize("retention", [False, True])
@pytest.mark.parametrize("how", ["rebuild", "reorganize"])
def test_space_is_given_back(database: sb.Database, how: str, retention: bool) -> None:
    database.alter_queue(STOCK_QUEUE, retention=retention)
    database.send(begin(database), ORDER, b"kept")  # in the first page: REORGANIZE moves no row
    handle = begin(database)
    for _ in range(3):
        database.send_batch(handle, ORDER, [b"x" * 1000] * 1000)
    number = queue_number(database, STOCK_QUEUE)

    def size() -> int:
        tables = [f"servicebroker.{table}_{number}" for table in ("queue", "retained")]
        size_bytes: int = query(database, "select pg_table_size(%s::regclass) + pg_table_size(%s::regclass)", *tables)[
            0
        ][0]
        return size_bytes

    full, target = size(), peer_handle(database, handle)
    assert len(database.receive(STOCK_QUEUE, conversation_handle=target)) == 3000
    database.end_conversation(target)

    def is_small() -> bool:
        return size() < full / 20

    database.alter_queue(STOCK_QUEUE, **{how: True})
    if how == "rebuild":
        assert is_small()
    else:  # REBUILD does not wait for locks: autovacuum may hold one, so retry
        eventually(lambda: is_small() or database.alter_queue(STOCK_QUEUE, reorganize=True))
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept"]


def test_alter_changes_the_date(database: sb.Database) -> None:
    text = "select create_date, modify_date from sys.service_queues where broker_database = %s and name = %s"
    ((made, changed),) = query(database, text, database.name, STOCK_QUEUE)
    assert made <= changed
    database.alter_queue(STOCK_QUEUE, poison_message_handling=False)
    ((made_then, changed_then),) = query(database, text, database.name, STOCK_QUEUE)
    assert (made_then, changed_then > changed) == (made, True)


def test_the_service_of_a_queue_made_with_options_works(database: sb.Database) -> None:
    database.create_queue("other.Active", activation=READER)
    database.alter_service(STOCK, queue="other.Active")
    database.send(begin(database), ORDER, b"x")
    assert bodies(database.receive("other.Active")) == [b"x"]
