"""Users and roles of a broker database, and the current principal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import servicebroker as sb
from support import (
    APP,
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    as_user,
    query,
    refused,
)


def test_every_database_has_its_fixed_principals(database: sb.Database, instance: sb.Instance) -> None:
    text = "select name, principal_id, type, is_fixed_role from sys.database_principals where broker_database = %s"
    fixed = {
        ("public", 0, "R", 0),
        ("dbo", 1, "S", 0),
        ("guest", 2, "S", 0),
        ("db_owner", 16384, "R", 1),
        ("db_accessadmin", 16385, "R", 1),
        ("db_securityadmin", 16386, "R", 1),
        ("db_ddladmin", 16387, "R", 1),
        ("db_backupoperator", 16389, "R", 1),
        ("db_datareader", 16390, "R", 1),
        ("db_datawriter", 16391, "R", 1),
        ("db_denydatareader", 16392, "R", 1),
        ("db_denydatawriter", 16393, "R", 1),
    }
    assert set(query(database, text, database.name)) == set(query(database, text, "msdb")) == fixed
    assert (database.user.name, database.user.principal_id) == ("dbo", 1)
    assert instance.database(database.name, user="DBO").user == database.user


def test_users_and_roles_are_made_and_dropped(database: sb.Database) -> None:
    database.create_user(APP)
    for taken in (APP, APP.upper(), "dbo", "PUBLIC", "db_owner"):
        with refused(15023, taken):
            database.create_user(taken)
        with refused(15023, taken):
            database.create_role(taken)
    database.create_role("Readers")
    assert as_user(database, "app").user.name == APP
    for nobody in ("Readers", "public", "db_owner", "nobody"):
        with refused(15517, nobody):
            as_user(database, nobody)
    with refused(15151, "drop the user 'Readers'"):
        database.drop_user("Readers")
    with refused(15151, "drop the role 'App'"):
        database.drop_role(APP)
    database.drop_user(APP)
    database.drop_role("Readers")
    with refused(15517, APP):
        as_user(database, APP)
    for kind, drop in (("user", database.drop_user), ("role", database.drop_role)):
        with refused(15151, f"drop the {kind} 'gone'"):
            drop("gone")
    for name in ("dbo", "guest"):
        with refused(15150, name):
            database.drop_user(name)
    for name in ("public", "db_owner", "db_ddladmin"):
        with refused(15150, name):
            database.drop_role(name)


@pytest.mark.parametrize("wrong", [None, 5, b"x", "", "x" * 129, "a\0b", "\ud800"], ids=repr)
def test_names_of_principals(database: sb.Database, wrong: Any) -> None:
    number = 15151 if isinstance(wrong, str) else 402
    for verb in (database.create_user, database.create_role, database.drop_user, database.drop_role):
        with refused(number):
            verb(wrong)
    with refused(number):
        database.grant("SEND", wrong, service=STOCK)


def test_members_have_the_permissions_of_their_roles(database: sb.Database, app: sb.Database) -> None:
    database.create_role("Inner")
    database.create_role("Outer")
    database.add_role_member("Inner", APP)
    database.add_role_member("Outer", "Inner")
    database.add_role_member("OUTER", "inner")  # already exists
    database.grant("RECEIVE", "Outer", queue=STOCK_QUEUE)
    assert app.receive(STOCK_QUEUE) == []
    with refused(15413):
        database.add_role_member("Inner", "Outer")
    with refused(15413):
        database.add_role_member("Inner", "Inner")
    with refused(15144):
        database.drop_role("Inner")
    database.drop_role_member("Outer", "Inner")
    with refused(229, "RECEIVE", STOCK_QUEUE):
        app.receive(STOCK_QUEUE)
    with refused(15151, "member"):
        database.drop_role_member("Outer", "Inner")
    for verb in (database.add_role_member, database.drop_role_member):
        with refused(15081):
            verb("public", APP)
        with refused(15151, "role"):
            verb("nobody", APP)
        with refused(15151, "user"):
            verb("Outer", "nobody")
    for special in ("dbo", "public", "db_owner"):
        with refused(15405, special):
            database.add_role_member("Outer", special)
    text = "select count(*) from sys.database_role_members where broker_database = %s"
    assert query(database, text, database.name) == [(1,)]
    database.drop_user(APP)  # its memberships are removed with it
    database.drop_role("Inner")


def test_a_member_of_db_owner_does_everything_and_can_be_denied(database: sb.Database, app: sb.Database) -> None:
    database.add_role_member("db_owner", APP)
    app.create_queue("Q")
    app.create_user("Other")
    app.grant("RECEIVE", "Other", queue=STOCK_QUEUE)
    app.add_role_member("db_owner", "Other")
    app.alter(disable_broker=True)
    app.alter(enable_broker=True)
    assert app.receive(ORDERS_QUEUE) == []
    database.deny("RECEIVE", APP, queue=ORDERS_QUEUE)
    with refused(229):
        app.receive(ORDERS_QUEUE)
    app.revoke("RECEIVE", "Other", queue=STOCK_QUEUE)


def test_a_member_of_db_ddladmin_defines_and_takes_no_messages(database: sb.Database, app: sb.Database) -> None:
    database.add_role_member("db_ddladmin", APP)
    app.create_message_type("t")
    app.create_contract("c", {"t": "ANY", ORDER: "ANY"})
    app.create_queue("q")
    app.create_service("s", STOCK_QUEUE, ["c", CONTRACT])
    app.alter_queue(STOCK_QUEUE, status=True)
    app.alter_message_type(ORDER, "EMPTY")
    app.alter_service(STOCK, queue="q")
    app.drop_service(STOCK)
    for refusal, verb in (
        (229, lambda: app.receive(STOCK_QUEUE)),
        (5011, lambda: app.alter(disable_broker=True)),
        (15247, lambda: app.create_user("x")),
        (15247, lambda: app.create_broker_priority("p")),
        (15151, lambda: app.grant("RECEIVE", "guest", queue=STOCK_QUEUE)),
    ):
        with refused(refusal):
            verb()


def test_managing_principals_needs_permission(database: sb.Database, app: sb.Database) -> None:
    database.create_user("Other")
    database.create_role("Readers")
    refusals: list[tuple[int, Callable[[], None]]] = [
        (15247, lambda: app.create_user("x")),
        (15247, lambda: app.create_role("x")),
        (15151, lambda: app.drop_user("Other")),
        (15151, lambda: app.drop_role("Readers")),
        (15151, lambda: app.add_role_member("Readers", APP)),
        (15151, lambda: app.drop_role_member("Readers", APP)),
    ]
    for number, verb in refusals:
        with refused(number):
            verb()
    database.grant("ALTER ANY USER", APP)
    database.grant("ALTER ANY ROLE", APP)
    app.create_user("x")
    app.drop_user("Other")
    app.add_role_member("Readers", APP)
    app.drop_role_member("Readers", APP)
    app.drop_role("Readers")
    app.create_role("y")
    with refused(15151, "alter the role 'db_owner'"):  # a member may not raise its own rights
        app.add_role_member("db_owner", APP)


def test_connect(database: sb.Database, app: sb.Database) -> None:
    database.deny("CONNECT", APP)
    with refused(916, APP, database.name):
        as_user(database, APP)
    database.grant("CONNECT", APP)
    as_user(database, APP)
    with refused(916, "guest"):
        as_user(database, "guest")
    database.grant("CONNECT", "guest")
    database.grant("RECEIVE", "public", queue=STOCK_QUEUE)
    guest = as_user(database, "guest")
    assert guest.receive(STOCK_QUEUE) == []
    with refused(229):
        guest.receive(ORDERS_QUEUE)


def test_a_dropped_user_does_nothing_more(database: sb.Database, app: sb.Database) -> None:
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    database.grant("REFERENCES", APP, contract=CONTRACT)
    handle = app.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    for _ in range(3):
        app.send(handle, ORDER, b"x")
    app.receive(ORDERS_QUEUE)
    database.drop_user(APP)
    database.create_user(APP)  # another one
    for verb in (
        lambda: app.send(handle, ORDER, b"x"),
        lambda: app.receive(ORDERS_QUEUE),
        lambda: app.create_queue("q"),
        lambda: app.end_conversation(handle),
    ):
        with refused(15517, APP):
            verb()


def test_a_user_is_mapped_to_a_postgres_role(database: sb.Database, postgres_role: str) -> None:
    with refused(15007, "no_such_role"):
        database.create_user("X", "no_such_role")
    database.create_user(APP, postgres_role)
    with refused(15063):
        database.create_user("Y", postgres_role)
    text = "select postgres_role from sys.database_principals where name = %s and broker_database = %s"
    assert query(database, text, APP, database.name) == [(postgres_role,)]
