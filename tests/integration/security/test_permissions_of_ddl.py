"""Permissions of DDL for users other than dbo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

import servicebroker as sb
from support import (
    APP,
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    ROUTE,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    query,
    refused,
)

SCHEMA = '<schema xmlns="http://www.w3.org/2001/XMLSchema"/>'


def ddl(app: sb.Database) -> list[tuple[str, int, Callable[[], Any], list[tuple[str, dict[str, str]]]]]:
    """Return the cases: statement, number of its refusal, a function that runs it, and its needs."""
    return [
        ("CREATE MESSAGE TYPE", 262, lambda: app.create_message_type("t"), [("CREATE MESSAGE TYPE", {})]),
        (
            "CREATE CONTRACT",
            262,
            lambda: app.create_contract("c", {ORDER: "ANY", REPLY: "ANY"}),
            [
                ("CREATE CONTRACT", {}),
                ("REFERENCES", {"message_type": ORDER}),
                ("REFERENCES", {"message_type": REPLY}),
            ],
        ),
        ("CREATE QUEUE", 262, lambda: app.create_queue("q"), [("CREATE QUEUE", {})]),
        (
            "CREATE SERVICE",
            262,
            lambda: app.create_service("s", STOCK_QUEUE, [CONTRACT]),
            [("CREATE SERVICE", {}), ("REFERENCES", {"queue": STOCK_QUEUE}), ("REFERENCES", {"contract": CONTRACT})],
        ),
        (
            "ALTER MESSAGE TYPE",
            15151,
            lambda: app.alter_message_type(MARK, "NONE"),
            [("ALTER", {"message_type": MARK})],
        ),
        ("ALTER QUEUE", 15151, lambda: app.alter_queue(STOCK_QUEUE, status=True), [("ALTER", {"queue": STOCK_QUEUE})]),
        (
            "ALTER SERVICE",
            15151,
            lambda: app.alter_service(STOCK, queue=ORDERS_QUEUE, add_contracts=[sb.DEFAULT]),
            [("ALTER", {"service": STOCK}), ("REFERENCES", {"queue": ORDERS_QUEUE})],
        ),
        (
            "CREATE BROKER PRIORITY",
            15247,
            lambda: app.create_broker_priority("p", local_service_name=STOCK),
            [("ALTER", {})],
        ),
        (
            "ALTER BROKER PRIORITY",
            15247,
            lambda: app.alter_broker_priority("there", priority_level=3),
            [("ALTER", {})],
        ),
        ("DROP BROKER PRIORITY", 15247, lambda: app.drop_broker_priority("there"), [("ALTER", {})]),
        ("DROP SERVICE", 15151, lambda: app.drop_service(STOCK), [("CONTROL", {"service": STOCK})]),
        ("DROP CONTRACT", 15151, lambda: app.drop_contract("free"), [("CONTROL", {"contract": "free"})]),
        ("DROP MESSAGE TYPE", 15151, lambda: app.drop_message_type("free"), [("CONTROL", {"message_type": "free"})]),
        ("DROP QUEUE", 15151, lambda: app.drop_queue("free"), [("CONTROL", {"queue": "free"})]),
        ("CREATE ROUTE", 262, lambda: app.create_route("r", address="LOCAL"), [("CREATE ROUTE", {})]),
        (
            "ALTER ROUTE",
            15151,
            lambda: app.alter_route(ROUTE, address="LOCAL"),
            [("ALTER", {"route": ROUTE})],
        ),
        ("DROP ROUTE", 15151, lambda: app.drop_route(ROUTE), [("CONTROL", {"route": ROUTE})]),
        ("DISABLE_BROKER", 5011, lambda: app.alter(disable_broker=True), [("ALTER", {})]),
        ("ENABLE_BROKER", 5011, lambda: app.alter(enable_broker=True), [("ALTER", {})]),
        ("NEW_BROKER", 5011, lambda: app.alter(new_broker=True), [("ALTER", {})]),
        ("ERROR", 5011, lambda: app.alter(error_broker_conversations=True), [("ALTER", {})]),
        ("HONOR", 5011, lambda: app.alter(honor_broker_priority=True), [("ALTER", {})]),
        (
            "CREATE XML SCHEMA COLLECTION",
            262,
            lambda: app.create_xml_schema_collection("c", SCHEMA),
            [("CREATE XML SCHEMA COLLECTION", {})],
        ),
        (
            "ALTER XML SCHEMA COLLECTION",
            15151,
            lambda: app.alter_xml_schema_collection("there", SCHEMA),
            [("ALTER ANY SCHEMA", {})],
        ),
        (
            "DROP XML SCHEMA COLLECTION",
            15151,
            lambda: app.drop_xml_schema_collection("there"),
            [("ALTER ANY SCHEMA", {})],
        ),
        (
            "VALIDATION = VALID_XML",
            15151,
            lambda: app.alter_message_type("free", "VALID_XML", schema_collection="there"),
            [("ALTER", {"message_type": "free"}), ("REFERENCES", {})],
        ),
    ]


@pytest.mark.feature(27)
@pytest.mark.parametrize("place", range(26))
def test_each_ddl_statement_needs_its_permissions(database: sb.Database, app: sb.Database, place: int) -> None:
    database.create_broker_priority("there")
    database.create_message_type("free")
    database.create_contract("free", {ORDER: "ANY"})
    database.create_queue("free")
    database.create_xml_schema_collection("there", SCHEMA)
    _, number, statement, needed = ddl(app)[place]
    with refused(number):
        statement()
    for permission, on in needed:  # without one of them
        for other, there in needed:
            if (other, there) != (permission, on):
                database.grant(other, APP, **there)
        with refused(number if not on or permission in ("ALTER", "CONTROL") else 15151):
            statement()
        for other, there in needed:
            database.revoke(other, APP, **there)
    for permission, on in needed:
        database.grant(permission, APP, **on)
    for permission, on in needed:  # a DENY to public beats a grant to a user
        database.deny(permission, "public", **on)
        with refused(number if not on or permission in ("ALTER", "CONTROL") else 15151):
            statement()
        database.revoke(permission, "public", **on)
    statement()


def test_activation_as_another_user_needs_impersonate(database: sb.Database, app: sb.Database) -> None:
    database.grant("ALTER", APP, queue=STOCK_QUEUE)
    database.create_user("Other")
    ids = dict(
        query(
            database, "select name, principal_id from sys.database_principals where broker_database = %s", database.name
        )
    )
    shown = "select execute_as_principal_id from sys.service_queues where broker_database = %s and name = %s"
    for other in ("dbo", "Other"):
        with refused(15517, other):
            app.alter_queue(STOCK_QUEUE, activation=sb.Activation("p", 1, other))
    with refused(9611, "db_owner"):  # a role
        database.alter_queue(STOCK_QUEUE, activation=sb.Activation("p", 1, "db_owner"))
    for given, expected in (("SELF", ids[APP]), (APP.lower(), ids[APP]), ("OWNER", -2)):
        app.alter_queue(STOCK_QUEUE, activation=sb.Activation("p", 1, given))
        assert query(database, shown, database.name, STOCK_QUEUE) == [(expected,)]
    database.alter_queue(STOCK_QUEUE, activation=sb.Activation("p", 1, "OTHER"))
    assert query(database, shown, database.name, STOCK_QUEUE) == [(ids["Other"],)]
    assert database.instance.check().findings == []
    database.drop_user("Other")
    assert [finding.number for finding in database.instance.check().findings] == [9707]
    database.alter_queue(STOCK_QUEUE, activation="DROP")


def test_a_refused_switch_ends_no_session(database: sb.Database, app: sb.Database) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"at work")
        with refused(5011):
            app.alter(enable_broker=True, rollback_after=0)
        transaction.send(handle, ORDER, b"still there")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"at work", b"still there"]


@pytest.mark.parametrize(
    ("permission", "verb"),
    [
        ("ALTER ANY SERVICE", lambda app: app.drop_service(STOCK)),
        ("ALTER ANY CONTRACT", lambda app: app.drop_contract("free")),
        ("ALTER ANY MESSAGE TYPE", lambda app: app.drop_message_type("free")),
        ("ALTER ANY ROUTE", lambda app: app.drop_route(ROUTE)),
        ("ALTER ANY SCHEMA", lambda app: app.drop_queue("free")),
    ],
)
def test_a_permission_on_the_database_drops_any_object(
    database: sb.Database, app: sb.Database, permission: str, verb: Callable[[sb.Database], None]
) -> None:
    database.create_message_type("free")
    database.create_contract("free", {ORDER: "ANY"})
    database.create_queue("free")
    with refused(15151):
        verb(app)
    database.grant(permission, APP)
    objects = (
        {"service": STOCK},
        {"contract": "free"},
        {"message_type": "free"},
        {"queue": "free"},
        {"route": ROUTE},
    )
    for denied in ("CONTROL", "ALTER"):
        for on in objects:
            database.deny(denied, "public", **on)
        with refused(15151):
            verb(app)
        for on in objects:
            database.revoke(denied, "public", **on)
    verb(app)


def test_a_restricted_user_gets_the_errors_of_the_statement_too(database: sb.Database, app: sb.Database) -> None:
    for what in ("MESSAGE TYPE", "CONTRACT", "QUEUE", "SERVICE"):
        database.grant(f"CREATE {what}", APP)
    missing: list[tuple[int, Callable[[], Any]]] = [
        (15151, lambda: app.create_contract("c", {"nothing": "ANY"})),
        (402, lambda: app.create_contract("c", 5)),  # type: ignore[arg-type]
        (402, lambda: app.create_contract("c", {5: "ANY"})),  # type: ignore[dict-item]
        (15151, lambda: app.create_contract("c", {"\ud800": "ANY"})),
        (15151, lambda: app.create_service("s", "nothing")),
        (402, lambda: app.create_service("s", None)),  # type: ignore[arg-type]
        (402, lambda: app.drop_service(None)),  # type: ignore[arg-type]
        (15151, lambda: app.drop_queue("nothing")),
        (8423, lambda: app.begin_dialog("nothing", STOCK)),
        (8421, lambda: app.begin_dialog(None, STOCK)),  # type: ignore[arg-type]
        (8425, lambda: app.begin_dialog(ORDERS, STOCK, contract="nothing")),
        (15151, lambda: app.receive("nothing")),
        (8418, lambda: app.send(None, ORDER)),  # type: ignore[arg-type]
        (8426, lambda: app.send(uuid4(), ORDER)),
        (8426, lambda: app.end_conversation(uuid4())),
        (402, lambda: app.end_conversation("x")),  # type: ignore[arg-type]
        (8418, lambda: app.move_conversation(None, uuid4())),  # type: ignore[arg-type]
    ]
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    for number, verb in missing:
        with refused(number):
            verb()
