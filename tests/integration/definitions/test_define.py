"""A whole application as one value: compare, apply in one transaction, dump; and `exist_ok`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.store import locks
from support import ORDER, STOCK, STOCK_QUEUE, begin, bodies, in_thread, refused, wait_until_blocked
from tsql_support import create_database

pytestmark = pytest.mark.both_apis
_numbers = itertools.count()

SHOP: dict[str, Any] = {
    "message_types": {"//shop/Order": "NONE", '//shop/Döner "x"': "WELL_FORMED_XML", "//shop/Done": "EMPTY"},
    "contracts": {"//shop/Ordering": {"//shop/Order": "INITIATOR", "//shop/Done": "ANY"}},
    "queues": {
        "OrderQueue": {},
        "ops.StockQueue": {
            "retention": True,
            "poison_message_handling": False,
            "activation": {"procedure_name": "[dbo].[usp_Stock]", "max_queue_readers": 2, "execute_as": "web"},
        },
    },
    "services": {
        "//shop/Orders": {"queue": "OrderQueue"},
        "//shop/Stock": {"queue": "ops.StockQueue", "contracts": ["//shop/Ordering"]},
    },
    "routes": {"Far": {"service_name": "//far/Service", "address": "TCP://far.example:4022"}},
    "users": {"web": {}},
    "roles": {"readers": ["web"]},
    "grants": {
        "web": ["CREATE QUEUE", "RECEIVE ON QUEUE OrderQueue", "SEND ON SERVICE //shop/Stock"],
        "readers": ["REFERENCES ON CONTRACT //shop/Ordering"],
    },
    "denials": {"web": ["SEND ON SERVICE //shop/Orders"]},
}


@pytest.fixture
def empty(instance: sb.Instance) -> sb.Database:
    return create_database(instance, f"Defined{next(_numbers)}", "create schema ops")


def copy_definition() -> dict[str, Any]:
    """Return a copy of the definition that a test may change."""
    document: dict[str, Any] = json.loads(json.dumps(SHOP))
    return document


def test_a_definition_is_applied_once_and_then_there_is_nothing_to_do(empty: sb.Database) -> None:
    done = empty.define(SHOP)
    assert len(done) == 17
    assert "create service //shop/Stock on queue ops.StockQueue for //shop/Ordering" in done
    assert empty.define(SHOP) == []
    handle = empty.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Ordering")
    empty.send(handle, "//shop/Order", b"teapot")
    assert bodies(empty.receive("ops.StockQueue")) == [b"teapot"]


def test_processes_that_define_the_same_at_once_find_it_done(empty: sb.Database) -> None:
    with empty.transaction() as holder:
        holder.connection.execute("select pg_advisory_xact_lock(%s, 0)", (locks.CATALOG_CHANGE,))
        futures = [in_thread(empty.define, SHOP) for _ in range(4)]
        wait_until_blocked(empty, 4)
    assert sorted(len(future.result(60)) for future in futures) == [0, 0, 0, 17]


def test_a_block_of_definitions_keeps_others_out_from_its_begin(empty: sb.Database) -> None:
    with empty.defining() as inside:
        future = in_thread(empty.create_queue, "Q")
        wait_until_blocked(empty)
        inside.create_queue("Q")
    with refused(2714):
        future.result(60)


def test_define_is_atomic(empty: sb.Database) -> None:
    wrong = copy_definition()
    wrong["services"]["//shop/More"] = {"queue": "Nowhere"}
    with refused(15151, "Nowhere"):
        empty.define(wrong)
    assert len(empty.define(SHOP)) == 17


def test_define_alters_different_objects(empty: sb.Database) -> None:
    empty.define(SHOP)
    told = copy_definition()
    told["message_types"]["//shop/Order"] = "WELL_FORMED_XML"
    told["queues"]["orderqueue"] = told["queues"].pop("OrderQueue") | {"status": False}
    told["services"]["//shop/Stock"] = {"queue": "OrderQueue"}
    told["routes"]["far"] = told["routes"].pop("Far") | {"address": "LOCAL"}
    assert empty.define(told) == [
        "alter message type //shop/Order: WELL_FORMED_XML, it was NONE",
        "alter queue orderqueue: status = false",
        'alter service //shop/Stock: queue "OrderQueue", drop contracts ["//shop/Ordering"]',
        'alter route far: service_name = "//far/Service", address = "LOCAL"',
    ]
    assert empty.define(told) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contracts": {"//shop/Ordering": {"//shop/Order": "ANY"}}}, "a contract cannot be altered"),
        ({"routes": {"Far": {"address": "LOCAL"}}}, "ALTER ROUTE cannot remove"),
        ({"users": {"web": {"postgres_role": "somebody"}}}, "differs in the database"),
        ({"grants": {"web": ["SEND //shop/Stock"]}}, "'SEND //shop/Stock' is not a permission"),
        ({"queue": {}}, "unknown field `queue`"),
        ({"queues": {"Q": {"retention": 1}}}, "Expected `bool`, got `int`"),
        ("nowhere.toml", "The definition 'nowhere.toml' cannot be read: No such file"),
    ],
)
def test_an_impossible_change_is_refused_in_one_sentence(empty: sb.Database, change: Any, words: str) -> None:
    empty.define(SHOP)
    with pytest.raises(sb.InstanceError) as error:
        empty.define(change)
    assert words in str(error.value)


def test_definitions_in_one_transaction(empty: sb.Database) -> None:
    with pytest.raises(ZeroDivisionError), empty.defining() as inside:
        inside.create_queue("Q")
        inside.create_service("S", "Q")
        raise ZeroDivisionError
    with refused(15151):
        empty.receive("Q")
    with empty.defining() as inside:
        inside.create_queue("Q")
        inside.create_service("S", "Q")
        inside.alter_service("S", add_contracts=["DEFAULT"])
    handle = empty.begin_dialog("S", "S")
    empty.send(handle, body=b"1")
    assert bodies(empty.receive("Q")) == [b"1"]


def test_exist_ok(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    database.create_message_type(ORDER, "EMPTY", exist_ok=True)
    database.create_contract("//test/Contract", {ORDER: "ANY"}, exist_ok=True)
    database.create_queue(STOCK_QUEUE, status=False, exist_ok=True)
    database.create_service(STOCK, "OrdersQueue", exist_ok=True)
    database.create_route("AutoCreatedLocal", address="TRANSPORT", exist_ok=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]  # all of them are unchanged
    with refused(2714):
        database.create_queue(STOCK_QUEUE)
    with refused(402, "exist_ok"):
        database.create_queue(STOCK_QUEUE, exist_ok=1)  # type: ignore[arg-type]
    with refused(15151):
        database.create_service("//test/New", "Nowhere", exist_ok=True)
    database.create_queue("New", exist_ok=True)
    assert database.receive("New") == []


def test_the_command(make_instance_url: Callable[..., str], tmp_path: Path) -> None:
    url, file = make_instance_url(), tmp_path / "shop.toml"
    with sb.open(url) as instance:
        instance.database("Shop", create=True).execute_tsql("create schema ops")
        instance.database("Shop").define(SHOP)
        instance.database("Copy", create=True).execute_tsql("create schema ops")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(command, ["define", *arguments, "--instance", url])
        assert result.exit_code == code, result.output
        return result.output

    file.write_text(run("dump", "-d", "Shop"))
    assert run("diff", str(file), "-d", "Shop") == "No changes.\n"
    assert "create service //shop/Stock on queue ops.StockQueue" in run("diff", str(file), "-d", "Copy", code=1)
    assert run("apply", str(file), "-d", "Copy").startswith("create user web\n")
    assert run("dump", "-d", "Copy") == file.read_text()
    assert run("apply", str(file), "-d", "Copy") == "No changes.\n"
    file.write_text("[queues.One]\n")
    beyond = json.loads(run("diff", str(file), "-d", "Copy", "--json", code=1))
    assert beyond["changes"] == ["create queue One"]
    assert "service //shop/Stock" in beyond["not_defined"]
