"""The how-to 'Give an application only the rights it needs', run as printed, and what its role cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.options import source_options
from servicebroker.store.embedded import EmbeddedServer
from support import bodies, query, refused, undone

PAGE = Path(__file__).parents[2] / "docs/how-to/rights.md"
ROLE = "orders_app"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def let_in(server: EmbeddedServer) -> Iterator[None]:
    """The embedded server lets its owner connect as the role of the how-to, too."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        paths = [Path(connection.execute(f"show {name}_file").fetchone()[0]) for name in ("hba", "ident")]
        before = [path.read_text() for path in paths]
        (hba, hba_text), (ident, ident_text) = zip(paths, before, strict=True)
        hba.write_text(f"{hba_text}local all {ROLE} peer map=owner\n")
        ident.write_text(ident_text + re.sub(r"\S+$", ROLE, ident_text.strip()) + "\n")
        connection.execute("select pg_reload_conf()")
        yield
        for path, text in zip(paths, before, strict=True):
            path.write_text(text)
        connection.execute("select pg_reload_conf()")


@pytest.fixture(scope="module")
def shop(instance: sb.Instance, let_in: None) -> Iterator[sb.Database]:
    """The database of the how-to, as dbo, after the how-to's own statements."""
    shop = instance.database("Shop", create=True)
    shop.create_message_type("//shop/Order")
    shop.create_contract("//shop/Contract", {"//shop/Order": "ANY"})
    shop.create_queue("OrdersQueue")
    shop.create_queue("StockQueue")
    shop.create_service("//shop/Orders", "OrdersQueue")
    shop.create_service("//shop/Stock", "StockQueue", ["//shop/Contract"])
    for statements in blocks("sql"):
        with instance.connection() as connection:
            connection.execute(statements)  # type: ignore[call-overload]
    for program in blocks("python")[:2]:
        exec(program, {"instance": instance, "db": shop})
    yield shop
    with instance.connection() as connection:
        connection.execute(f"drop owned by {ROLE}; drop role {ROLE}")


@pytest.fixture
def url(shop: sb.Database) -> str:
    return re.sub(r"user=\w+", f"user={ROLE}", shop.instance.url)


def test_it_may_not_drop_the_database(shop: sb.Database, url: str) -> None:
    with sb.open(url, upkeep=None) as instance, refused(3701, "drop the database 'Shop'"):
        instance.drop_database("Shop", rollback_after=0)


def test_the_application_of_the_how_to_works(shop: sb.Database, url: str) -> None:
    found: dict[str, Any] = {"sb": sb, "url_of_orders_app": url}
    exec(blocks("python")[2], found)
    assert found["db"].user.name == "OrdersApp"
    assert found["answers"] == []
    (order,) = shop.receive("StockQueue")
    assert order.message_body == b"teapot"
    shop.send(order.conversation_handle, "//shop/Order", b"answer")
    with sb.open(url, upkeep=None) as instance:
        app = instance.database("Shop")
        with app.transaction() as transaction:
            with transaction.savepoint():
                (answer,) = transaction.receive("OrdersQueue")
            transaction.send(answer.conversation_handle, "//shop/Order", b"again")
        group = app.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Contract")
        app.move_conversation(answer.conversation_handle, group_of(shop, group))
        app.end_conversation(answer.conversation_handle)
        app.end_conversation(group)
    assert bodies(shop.receive("StockQueue")) == [b"again", None]


def group_of(database: sb.Database, handle: object) -> Any:
    text = "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s"
    return query(database, text, handle)[0][0]


def test_what_the_permissions_refuse(shop: sb.Database, url: str) -> None:
    with sb.open(url, upkeep=None) as instance:
        app = instance.database("Shop")
        with refused(229, "StockQueue"):
            app.receive("StockQueue")
        with refused(8494, "//shop/Stock"):
            app.begin_dialog("//shop/Stock", "//shop/Orders")
        for verb, number in (
            (lambda: app.create_queue("q"), 262),
            (lambda: app.drop_queue("OrdersQueue"), 15151),
            (lambda: app.grant("RECEIVE", "guest", queue="StockQueue"), 15151),
            (lambda: app.add_role_member("db_owner", "OrdersApp"), 15151),
        ):
            with refused(number):
                verb()
        for somebody in ("dbo", "guest"):
            with refused(15517, somebody):
                instance.database("Shop", user=somebody)
        with refused(916):
            instance.database("msdb")  # where it is guest
    assert shop.instance.database("Shop").user.is_dbo


def test_a_pipeline_needs_the_permission_too(shop: sb.Database, url: str) -> None:
    options = {"instance": url, "database": "Shop"}
    with refused(229, "StockQueue"):
        Attachment.open(source_options(options | {"queue": "StockQueue"}))
    Attachment.open(source_options(options | {"queue": "OrdersQueue"})).close()


def test_what_postgresql_refuses(shop: sb.Database, url: str) -> None:
    queues = dict(query(shop, "select name, queue_id from servicebroker.queues"))
    stock = queues["StockQueue"]
    for statement in (
        f"select message_body from servicebroker.queue_{stock}",
        f"select * from servicebroker.receive_{stock}(1, now())",
        f"delete from servicebroker.queue_{stock}",
        f"update servicebroker.queue_{stock} set message_body = null",
        "select * from shop_dbo.stockqueue",
        "insert into servicebroker.permissions values (2, 0, 0, 0, 1, 'CONTROL', 'G')",
        "update servicebroker.services set owner_id = 0",
        "update servicebroker.queues set owner_id = 0",
        "update servicebroker.principals set postgres_role = null",
        "insert into servicebroker.role_members values (2, 16384, 0)",
        "drop table servicebroker.conversation_endpoints",
        "set role servicebroker",
    ):
        with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)  # type: ignore[call-overload]


def test_what_the_page_says_that_it_can_still_do(shop: sb.Database, url: str) -> None:
    queues = dict(query(shop, "select name, queue_id from servicebroker.queues"))
    own, stock = queues["OrdersQueue"], queues["StockQueue"]
    for statement in (
        "update servicebroker.conversation_endpoints set state = 'ER'",
        "select message_body from servicebroker.transmission_queue",
        f"delete from servicebroker.queue_{own}",
        "select * from servicebroker.permissions",
        f"insert into servicebroker.queue_{stock} (message_sequence_number, stamp, conversation_group_id, "
        "conversation_handle, service_id, service_contract_id, message_type_id, priority, bucket, validation) "
        "values (0, '1', gen_random_uuid(), gen_random_uuid(), 1, 1, 1, 5, 0, 'N')",
    ):
        with psycopg.connect(url) as connection:
            connection.execute(statement)  # type: ignore[call-overload]
            connection.rollback()


def test_poison_detection_of_the_role(shop: sb.Database, url: str) -> None:
    def switched_off_after_five_rollbacks() -> bool:
        for _ in range(5):
            with undone(app) as transaction:
                assert transaction.receive("OrdersQueue")
        enabled = query(shop, "select is_receive_enabled from sys.service_queues where name = 'OrdersQueue'")
        return enabled == [(0,)]

    grants = re.findall(
        r"`grant ([^`]+ on\s+servicebroker\.\w+)`", PAGE.read_text().split("Poison detection of its")[1]
    )
    assert len(grants) == 3
    with sb.open(url, upkeep=None) as instance:
        app = instance.database("Shop")
        handle = app.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Contract")
        app.send(handle, "//shop/Order", b"ask")
        (asked,) = shop.receive("StockQueue")
        shop.send(asked.conversation_handle, "//shop/Order", b"answer")
        assert not switched_off_after_five_rollbacks()
        with shop.instance.connection() as connection:
            for grant in grants:
                connection.execute(f"grant {grant} to {ROLE}")  # type: ignore[call-overload]
        assert switched_off_after_five_rollbacks()
        with shop.instance.connection() as connection:
            for grant in grants:
                connection.execute(f"revoke {grant} from {ROLE}")  # type: ignore[call-overload]
        shop.alter_queue("OrdersQueue", status=True)
        assert bodies(app.receive("OrdersQueue")) == [b"answer"]


def test_a_role_that_is_nobody_is_guest(shop: sb.Database, url: str) -> None:
    other = shop.instance.database("Other", create=True)
    with sb.open(url, upkeep=None) as instance:
        with refused(916, "guest", "Other"):
            instance.database("Other")
        other.grant("CONNECT", "guest")
        assert instance.database("Other").user.name == "guest"
        other.create_user("Mapped", ROLE)
        assert instance.database("Other").user.name == "Mapped"
        with refused(15517):
            instance.database("Other", user="guest")
        other.add_role_member("db_owner", "Mapped")
        assert instance.database("Other", user="guest").user.name == "guest"
        assert instance.database("Other", user="dbo").user.is_dbo
