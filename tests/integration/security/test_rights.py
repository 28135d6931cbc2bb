"""The how-to 'Give an application only the rights it needs', run as printed, and the limits of its role."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from lxml import html
from starlette.testclient import TestClient
from typer.testing import CliRunner

import servicebroker as sb
from portal import deliver
from servicebroker.cli.main import app as command
from servicebroker.dashboard import Dashboard
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.queue_lease import QueueLease
from servicebroker.store.embedded import EmbeddedServer
from support import as_role, bodies, eventually, group_of, in_thread, let_in, query, refused, rolled_back

PAGE = Path(__file__).parents[3] / "docs/how-to/rights.md"
OWNER, ROLE = "shop_owner", "orders_app"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def run_command(url: str, line: str) -> str:
    """Run a command on the instance, and return its output."""
    result = CliRunner().invoke(command, shlex.split(line)[1:], env={"SERVICEBROKER_INSTANCE": url})
    assert result.exit_code == 0, result.output or result.exception
    return result.output


@pytest.fixture(scope="module")
def shop(server: EmbeddedServer, make_url: Callable[[], str]) -> Iterator[sb.Database]:
    """Return the how-to's database after its first line, for an owner without superuser rights."""
    url = make_url()
    with let_in(server.url, OWNER, ROLE), psycopg.connect(url, autocommit=True) as connection:
        for role in (OWNER, ROLE):
            connection.execute(f"create role {role} login")  # type: ignore[call-overload]
        connection.execute(f"grant create on database {connection.info.dbname} to {OWNER}")  # type: ignore[call-overload]
        with sb.open(as_role(url, OWNER), upkeep=None) as instance:
            shop = instance.database("Shop", create=True)
            shop.create_message_type("//shop/Order")
            shop.create_contract("//shop/Contract", {"//shop/Order": "ANY"})
            shop.create_queue("OrdersQueue")
            shop.create_queue("StockQueue")
            shop.create_service("//shop/Orders", "OrdersQueue")
            shop.create_service("//shop/Stock", "StockQueue", ["//shop/Contract"])
            run_command(instance.url, blocks("console")[0])
            exec(blocks("python")[0], {"instance": instance})
            exec(blocks("python")[2], {"db": shop})
            yield shop
        connection.execute(f"drop owned by {OWNER}, {ROLE} cascade")  # type: ignore[call-overload]
        connection.execute(f"drop role {OWNER}, {ROLE}")  # type: ignore[call-overload]


@pytest.fixture
def url(shop: sb.Database) -> str:
    return as_role(shop.instance.url, ROLE)


def deliver_now(shop: sb.Database) -> None:
    """Run the background work of an owner's process once."""
    with shop.instance.connection() as connection:
        deliver(connection, shop.instance.clock())


def test_the_application_of_the_how_to_works(shop: sb.Database, url: str) -> None:
    values_by_name: dict[str, Any] = {"sb": sb, "url_of_orders_app": url}
    exec(blocks("python")[1], values_by_name)
    assert values_by_name["db"].user.name == ROLE
    assert values_by_name["answers"] == []
    deliver_now(shop)
    (order,) = shop.receive("StockQueue")
    assert order.message_body == b"teapot"
    shop.send(order.conversation_handle, "//shop/Order", b"answer")
    with sb.open(url) as instance:
        app = instance.database("Shop")
        with app.transaction() as transaction:
            with transaction.savepoint():
                (answer,) = transaction.receive("OrdersQueue")
            transaction.send(answer.conversation_handle, "//shop/Order", b"again")
        other_handle = app.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Contract")
        app.move_conversation(answer.conversation_handle, group_of(shop, other_handle))
        app.end_conversation(answer.conversation_handle)
        app.end_conversation(other_handle)
    deliver_now(shop)
    assert bodies(shop.receive("StockQueue")) == [b"again", None]


def test_an_owners_open_instance_delivers_and_wakes_the_waiting_role(shop: sb.Database, url: str) -> None:
    with sb.open(shop.instance.url) as owner, sb.open(url) as instance:
        app, stock = instance.database("Shop"), owner.database("Shop")
        answered = in_thread(app.receive, "OrdersQueue", wait=30)
        eventually(lambda: query(shop, "select from servicebroker.waiting_readers"))
        handle = app.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Contract")
        app.send(handle, "//shop/Order", b"wake up")
        (order,) = stock.receive("StockQueue", wait=30)
        stock.send(order.conversation_handle, "//shop/Order", b"awake")
        assert bodies(answered.result(30)) == [b"awake"]
        app.end_conversation(handle)
        assert stock.receive("StockQueue", wait=30)[0].is_end_dialog


def test_a_role_requests_and_its_late_answers_are_its_own(shop: sb.Database, url: str) -> None:
    stock = sb.Worker("StockQueue")

    @stock.on("//shop/Order")
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        tx.send(message.conversation_handle, "//shop/Order", message.message_body or b"")
        tx.end_conversation(message.conversation_handle)

    asked = ("//shop/Orders", "//shop/Stock", "//shop/Order", b"teapot")
    with sb.open(url) as instance:
        app = instance.database("Shop")
        with pytest.raises(sb.RequestTimeout, match="not reached") as error:
            app.request(*asked, contract="//shop/Contract", timeout=0)
        with sb.open(shop.instance.url) as owner, owner.database("Shop").working(stock):
            assert app.request(*asked, contract="//shop/Contract", timeout=30).body == b"teapot"
            assert app.wait_for_answer(error.value.handle, timeout=30).body == b"teapot"
            late = app.begin_request(*asked, contract="//shop/Contract", keep=0, late_answers="handle")
            handled: list[UUID] = []
            eventually(
                lambda: (
                    app.process_late_answers(
                        "OrdersQueue", lambda tx, messages: handled.append(messages[0].conversation_handle)
                    )
                    or handled
                )
            )
        assert handled == [late]
        with refused(229, "StockQueue"):
            app.process_late_answers("StockQueue", lambda tx, messages: None)
        with refused(8426):
            app.wait_for_answer(late)


def test_a_restricted_role_without_permissions_is_refused(shop: sb.Database, url: str) -> None:
    with sb.open(url) as instance:
        app = instance.database("Shop")
        with refused(229, "StockQueue"):
            app.receive("StockQueue")
        with refused(229, "StockQueue"):
            app.get_conversation_group("StockQueue")
        with refused(8494, "//shop/Stock"):
            app.begin_dialog("//shop/Stock", "//shop/Orders")
        for somebody in ("dbo", "guest"):
            with refused(15517, somebody):
                instance.database("Shop", user=somebody)
        with refused(916):
            instance.database("msdb")  # a database where it is guest
    assert shop.instance.database("Shop").user.is_dbo


def test_operations_that_a_restricted_role_lacks_are_refused(shop: sb.Database, url: str) -> None:
    with sb.open(url) as instance:
        app = instance.database("Shop")
        pool = sb.ConversationPool(app, "//shop/Orders", "//shop/Stock", contract="//shop/Contract")

        def send_by_pool() -> None:
            with app.transaction() as transaction:
                pool.send(transaction, "//shop/Order", b"x")

        for what in (
            lambda: app.create_queue("q"),
            lambda: app.drop_queue("OrdersQueue"),
            lambda: app.grant("RECEIVE", "guest", queue="StockQueue"),
            lambda: app.add_role_member("db_owner", ROLE),
            lambda: instance.drop_database("Shop", rollback_after=0),
            lambda: instance.grant_rights(ROLE),
            instance.status,
            instance.check,
            send_by_pool,
        ):
            with pytest.raises(sb.InstanceError, match=r"for the owner of the schema|owns the (instance.s )?schema"):
                what()
        with pytest.raises((sb.ServiceBrokerError, psycopg.errors.InsufficientPrivilege)):
            QueueLease.open(source_options({"instance": url, "database": "Shop", "queue": "OrdersQueue"}))


def test_a_refusal_leaves_the_transaction_usable(shop: sb.Database, url: str) -> None:
    with sb.open(url) as instance:
        app = instance.database("Shop")
        with app.transaction() as transaction:
            with refused(8426):
                transaction.send(UUID(int=5), "//shop/Order", b"x")
            with refused(8423, "//nobody"):
                transaction.begin_dialog("//nobody", "//shop/Stock")
            handle = transaction.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Contract")
            with refused(8428, "//nothing"):
                transaction.send(handle, "//nothing", b"x")
            with refused(8426):
                transaction.send([handle, UUID(int=5)], "//shop/Order", b"x")
            transaction.send_batch(handle, "//shop/Order", [b"1", b"2"])
        deliver_now(shop)
        assert bodies(shop.receive("StockQueue")) == [b"1", b"2"]
        app.end_conversation(handle, error=(7, "<&> \U0001f4a5"))
        deliver_now(shop)
        (error,) = shop.receive("StockQueue")
        assert sb.read_error(error.message_body) == (7, "<&> \U0001f4a5")


def test_rollbacks_of_a_restricted_role_disable_the_queue(shop: sb.Database, url: str) -> None:
    with sb.open(url) as instance:
        app = instance.database("Shop")
        handle = app.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Contract")
        app.send(handle, "//shop/Order", b"ask")
        deliver_now(shop)
        (asked,) = shop.receive("StockQueue")
        shop.send(asked.conversation_handle, "//shop/Order", b"answer")
        for _ in range(5):
            with rolled_back(app) as transaction:
                assert transaction.receive("OrdersQueue")
        with refused(9617):
            app.receive("OrdersQueue")
        assert [event.text for event in instance.events.recent()]
        shop.alter_queue("OrdersQueue", status=True)
        assert bodies(app.receive("OrdersQueue")) == [b"answer"]


def test_a_poison_policy_of_a_restricted_role_makes_a_dead_letter(shop: sb.Database, url: str) -> None:
    def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no")

    with sb.open(url) as instance:
        app = instance.database("Shop")
        handle = app.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Contract")
        app.send(handle, "//shop/Order", b"ask")
        deliver_now(shop)
        (asked,) = shop.receive("StockQueue")
        shop.send(asked.conversation_handle, "//shop/Order", b"bad")
        tried: list[int] = []

        def judge(failure: sb.Failure) -> sb.Verdict:
            tried.append(failure.count)
            return sb.Retry() if failure.count < 3 else sb.SetAside()

        assert app.process("OrdersQueue", fail, poison=judge) == 3
        assert tried == [1, 2, 3]
        (dead_letter,) = shop.set_aside_messages()
        assert (dead_letter.message_body, dead_letter.failures, dead_letter.queue) == (b"bad", 3, "dbo.OrdersQueue")
        assert query(shop, "select from servicebroker.failed_messages") == []


def test_rights_are_shown_taken_and_given_again(shop: sb.Database, url: str) -> None:
    assert "RECEIVE on queue dbo.OrdersQueue" in run_command(shop.instance.url, blocks("console")[1])
    with sb.open(url) as instance:
        app = instance.database("Shop")
        run_command(shop.instance.url, f"servicebroker rights revoke {ROLE} --database Shop --receive OrdersQueue")
        with refused(229):
            app.receive("OrdersQueue")
        run_command(shop.instance.url, f"servicebroker rights revoke {ROLE}")
        with pytest.raises((sb.InstanceError, psycopg.errors.InsufficientPrivilege)):
            app.receive("OrdersQueue")
    with pytest.raises(
        sb.InstanceError, match=f"role '{ROLE}' may not .* let its owner run servicebroker rights grant"
    ):
        sb.open(url)
    (rights,) = shop.instance.show_rights(ROLE)
    assert (rights.has_verbs, rights.direct, [*rights.users.values()]) == (False, [], [[]])
    printed = run_command(shop.instance.url, blocks("console")[0] + " --sql")
    with psycopg.connect(shop.instance.url, autocommit=True) as connection:
        connection.execute(printed)  # type: ignore[call-overload]
    with sb.open(url) as instance:
        assert instance.database("Shop").receive("OrdersQueue") == []


def test_owners_and_missing_roles_cannot_be_restricted(shop: sb.Database) -> None:
    instance = shop.instance
    with pytest.raises(sb.InstanceError, match="nothing restricts it"):
        instance.grant_rights(OWNER)
    with refused(15007, "nobody_at_all"):
        instance.grant_rights("nobody_at_all")
    with refused(15151, "NoQueue"):
        instance.grant_rights(ROLE, database="Shop", receive=["NoQueue"])
    with refused(402, "database"):
        instance.grant_rights(ROLE, receive=["OrdersQueue"])
    (owner,) = instance.show_rights(OWNER)
    assert owner.as_owner == "it owns the schema"


def test_a_role_with_rights_on_tables_is_named_and_loses_them(shop: sb.Database, url: str) -> None:
    with shop.instance.connection() as connection:
        connection.execute(f"grant update (state) on servicebroker.conversation_endpoints to {ROLE}")  # type: ignore[call-overload]
        connection.execute(f"grant execute on function servicebroker.send to {ROLE}")  # type: ignore[call-overload]
        (rights,) = shop.instance.show_rights(ROLE)
        assert rights.direct == []  # without USAGE on the schema the role cannot call them
        connection.execute(f"grant usage on schema servicebroker to {ROLE}")  # type: ignore[call-overload]
    (rights,) = shop.instance.show_rights(ROLE)
    assert rights.direct == ["EXECUTE on servicebroker.send", "UPDATE on servicebroker.conversation_endpoints"]
    result = CliRunner().invoke(command, ["doctor"], env={"SERVICEBROKER_INSTANCE": shop.instance.url})
    assert f"role {ROLE}" in result.output
    assert f"servicebroker rights grant {ROLE}" in result.output
    shop.instance.grant_rights(ROLE)
    (rights,) = shop.instance.show_rights(ROLE)
    assert (rights.has_verbs, rights.direct) == (True, [])
    result = CliRunner().invoke(command, ["doctor"], env={"SERVICEBROKER_INSTANCE": shop.instance.url})
    assert f"role {ROLE}" not in result.output


def test_the_dashboard_shows_a_restricted_role_its_own(
    shop: sb.Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its own messages are counted completely
    monkeypatch.setattr("servicebroker.dashboard.pages.limit_for", lambda queues: 0)
    dashboard = Dashboard([url], token=None)
    browser = TestClient(dashboard, base_url="http://127.0.0.1")
    assert "Links to peers" in browser.get("/").text
    queues = browser.get("/i/0/queues").text
    assert ("Shop.dbo.OrdersQueue" in queues, "StockQueue" in queues) == (True, False)
    for path in ("/", "/i/0/queues"):
        assert "about " not in html.fromstring(browser.get(path).text).text_content(), path
    for page in ("conversations", "way", "dead-letters", "statements", "queue?database=Shop&queue=dbo.OrdersQueue"):
        assert "permission denied" in browser.get(f"/i/0/{page}").text, page
    dashboard.close()


def test_doctor_tells_a_restricted_role_of_its_own(shop: sb.Database, url: str) -> None:
    def doctor(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, ["doctor", "--instance", url, *options])
        return result.exit_code, result.output

    code, text = doctor()
    assert "The role is restricted" in text
    assert code == (0 if "Nothing wrong was found." in text else 1)
    with sb.open(url) as instance:
        database = instance.database("Shop")
        handle = database.begin_dialog("//shop/Orders", "//nowhere", contract="//shop/Contract")
        database.send(handle, "//shop/Order", b"x")
    deliver_now(shop)
    shop.alter_queue("OrdersQueue", status=False)
    foreign = shop.begin_dialog("//shop/Stock", "//elsewhere", contract="//shop/Contract")
    shop.send(foreign, "//shop/Order", b"x")
    shop.alter_queue("StockQueue", status=False)
    code, text = doctor()
    assert (code, "queue Shop.dbo.OrdersQueue: It is OFF" in text, "service //nowhere: 1 message" in text) == (
        1,
        True,
        True,
    )
    assert "create a route" in text
    assert [word for word in ("StockQueue", "elsewhere", "fsync", "session") if word in text] == []
    code, text = doctor("--database", "Shop", "--conversation", str(handle))
    assert (code, "1 message to //nowhere waits" in text, "Its queue Shop.dbo.OrdersQueue is OFF" in text) == (
        1,
        True,
        True,
    )
    result = CliRunner().invoke(
        command, ["doctor", "--instance", url, "--database", "Shop", "--conversation", str(foreign)]
    )
    assert getattr(result.exception, "number", 0) == 8426
    for queue in ("OrdersQueue", "StockQueue"):
        shop.alter_queue(queue, status=True)
    for each_handle in (handle, foreign):
        shop.end_conversation(each_handle, cleanup=True)


def test_a_role_without_a_user_is_guest(shop: sb.Database, url: str) -> None:
    other_database = shop.instance.database("Other", create=True)
    with sb.open(url) as instance:
        with refused(916, "guest", "Other"):
            instance.database("Other")
        other_database.grant("CONNECT", "guest")
        assert instance.database("Other").user.name == "guest"
        other_database.create_user("Mapped", ROLE)
        assert instance.database("Other").user.name == "Mapped"
        with refused(15517):
            instance.database("Other", user="guest")
        other_database.add_role_member("db_owner", "Mapped")
        other_database.create_queue("q")
        assert instance.database("Other").receive("q") == []
