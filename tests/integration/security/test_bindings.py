"""Remote service bindings between two databases of one instance decide the principal of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    Clock,
    StatementCounter,
    bodies,
    define_standard_set,
    errors,
    eventually,
    query,
    state,
)

PASSWORD = "correct horse"


class Sides(NamedTuple):
    """The databases of initiator and target, the target's service, and the folder to exchange certificates.

    The initiator's service belongs to Seller, the target's to Keeper, and each database has a user with the name of the
    other's owner, who has its certificate. The users Seller there and public have no SEND.
    """

    near: sb.Database
    far: sb.Database
    service: str
    folder: Path

    def begin(self) -> UUID:
        return self.near.begin_dialog(ORDERS, self.service, contract=CONTRACT)

    def talk(self) -> str:
        """Send a first message. Return its principal at the target ('Seller' or 'public'), or the text of its Error."""
        handle = self.begin()
        self.near.send(handle, ORDER, b"x")
        messages = self.far.receive(STOCK_QUEUE)
        if not messages:
            (error,) = self.near.receive(ORDERS_QUEUE)
            assert sb.read_error(error.message_body)[0] == -8494
            assert state(self.near, handle) == "ER"
            self.near.end_conversation(handle)
            return sb.read_error(error.message_body)[1]
        assert bodies(messages) == [b"x"]
        _, actor = self.certificates(self.far)[-1]
        self.near.end_conversation(handle)
        self.far.end_conversation(messages[0].conversation_handle)
        return actor

    def certificates(self, database: sb.Database) -> list[tuple[Any, ...]]:
        """Return for each endpoint the owners of both certificates: its own side's and the other side's."""
        return query(
            database,
            "select a.name, b.name from sys.conversation_endpoints e join sys.database_principals a "
            "on a.broker_database = e.broker_database and a.principal_id = e.principal_id "
            "join sys.database_principals b "
            "on b.broker_database = e.broker_database and b.principal_id = e.far_principal_id "
            "where e.broker_database = %s order by e.lifetime",
            database.name,
        )

    def pass_on(self, giver: sb.Database, name: str, taker: sb.Database, user: str) -> None:
        """Export a certificate from one database, and import it into the other for a user."""
        file = self.folder / f"{giver.name}-{name}.pem"
        giver.backup_certificate(name, file)
        taker.create_certificate(f"of {name}", file=file, authorization=user)

    def belongs_to_dbo(self) -> None:
        """Give the initiator's service to dbo, with a certificate that belongs to Seller in the other database."""
        self.near.alter_authorization("dbo", service=ORDERS)
        self.near.create_certificate("dbo")
        self.pass_on(self.near, "dbo", self.far, "Seller")

    @contextmanager
    def grant(self, whom: str) -> Iterator[None]:
        self.far.grant("SEND", whom, service=self.service)
        yield
        self.far.revoke("SEND", whom, service=self.service)


@pytest.fixture
def sides(database: sb.Database, tmp_path: Path) -> Sides:
    far = define_standard_set(database.instance.database(f"{database.name}Far", create=True))
    sides_of_test = Sides(database, far, f"//{far.name}/Stock", tmp_path)
    far.create_service(sides_of_test.service, STOCK_QUEUE, [CONTRACT])
    for place, owner, other in ((database, "Seller", "Keeper"), (far, "Keeper", "Seller")):
        place.create_master_key(PASSWORD)
        place.create_user(owner)
        place.create_user(other)
        place.create_certificate(owner, authorization=owner)
    database.alter_authorization("Seller", service=ORDERS)
    far.alter_authorization("Keeper", service=sides_of_test.service)
    database.create_remote_service_binding("ToStock", to_service=sides_of_test.service, user="Keeper")
    sides_of_test.pass_on(database, "Seller", far, "Seller")
    sides_of_test.pass_on(far, "Keeper", database, "Keeper")
    return sides_of_test


@pytest.mark.both_apis
@pytest.mark.feature(158, 163)
def test_a_full_binding_acts_as_the_user_of_the_certificate(sides: Sides) -> None:
    near, far = sides.near, sides.far
    assert sides.talk() == f"You do not have permission to access the service '{sides.service}'."
    far.grant("SEND", "Seller", service=sides.service)  # everything it needs
    handle = sides.begin()
    near.send(handle, ORDER, b"one")
    near.send(handle, ORDER, b"two")
    messages = far.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"one", b"two"]
    assert sides.certificates(near) == [("Seller", "Keeper")]
    assert sides.certificates(far) == [("Keeper", "Seller")]
    far.send(messages[0].conversation_handle, REPLY, b"answer")
    assert bodies(near.receive(ORDERS_QUEUE)) == [b"answer"]
    near.end_conversation(handle)
    assert [message.is_end_dialog for message in far.receive(STOCK_QUEUE)] == [True]
    far.deny("SEND", "public", service=sides.service)  # every user is a member of public
    assert "permission" in sides.talk()


@pytest.mark.feature(158, 162)
def test_an_incomplete_binding_acts_as_public(sides: Sides) -> None:
    """The Error names the missing part. SEND for public is enough then; SEND for the user is not."""
    near, far, folder = sides.near, sides.far, sides.folder
    far.create_user("Other")

    def make_restorer(database: sb.Database, name: str, **how: Any) -> Callable[[], None]:
        """Return a function that restores a certificate and its key after the changes of a case."""
        files = {"file": folder / f"{name}.kept", "private_key_file": folder / f"{name}.key"}

        def restore() -> None:
            database.drop_certificate(name)
            database.create_certificate(name, authorization=name, **files, decryption_password=PASSWORD)

        if not files["file"].exists():
            database.backup_certificate(name, **files, encryption_password=PASSWORD)
        return restore

    restore_seller, restore_keeper = make_restorer(near, "Seller"), make_restorer(far, "Keeper")
    keeper_pem, seller_pem = folder / f"{far.name}-Keeper.pem", folder / f"{near.name}-Seller.pem"

    def close_key() -> None:
        near.open_master_key(PASSWORD)
        near.alter_master_key(service_master_key=False)

    cases: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
        (
            "disabled for use with BEGIN DIALOG",
            lambda: near.alter_certificate("Seller", active_for_begin_dialog=False),
            lambda: near.alter_certificate("Seller", active_for_begin_dialog=True),
        ),
        (
            "is password protected",
            lambda: near.alter_certificate("Seller", encryption_password=PASSWORD),
            lambda: near.alter_certificate("Seller", decryption_password=PASSWORD),
        ),
        (
            "There is no private key for the security certificate",
            lambda: near.alter_certificate("Seller", remove_private_key=True),
            restore_seller,
        ),
        (
            "no security certificate bound to the database principal",
            lambda: near.alter_authorization("dbo", certificate="Seller"),
            lambda: near.alter_authorization("Seller", certificate="Seller"),
        ),
        (
            "no security certificate bound to the database principal",
            lambda: near.drop_certificate("of Keeper"),
            lambda: near.create_certificate("of Keeper", file=keeper_pem, authorization="Keeper"),
        ),
        (
            "The database master key is required",
            close_key,
            lambda: near.alter_master_key(service_master_key=True),
        ),
        (
            "no valid certificate of the owner of the initiating service",
            lambda: far.drop_certificate("of Seller"),
            lambda: far.create_certificate("of Seller", file=seller_pem, authorization="Seller"),
        ),
        (
            "no valid certificate, with its private key",
            lambda: far.alter_certificate("Keeper", remove_private_key=True),
            restore_keeper,
        ),
        (
            "does not have control permission on the service",
            lambda: far.alter_authorization("Other", certificate="Keeper"),
            lambda: far.alter_authorization("Keeper", certificate="Keeper"),
        ),
        (
            "the binding proves nothing",  # the certificate names another user
            lambda: far.alter_authorization("Other", certificate="of Seller"),
            lambda: far.alter_authorization("Seller", certificate="of Seller"),
        ),
    ]
    with sides.grant("Seller"):
        assert sides.talk() == "Seller"
        for words, spoil, mend in cases[:-1]:
            spoil()
            report = sides.talk()
            assert "it acts as public" in report
            assert words in report
            with sides.grant("public"):
                assert sides.talk() == "public"
            mend()
            assert sides.talk() == "Seller"
        _, spoil, mend = cases[-1]
        spoil()
        assert sides.talk() == f"You do not have permission to access the service '{sides.service}'."
        with sides.grant("Other"):
            assert sides.talk() == "Other"


@pytest.mark.feature(159)
def test_an_anonymous_binding_acts_as_public(sides: Sides) -> None:
    sides.near.alter_remote_service_binding("ToStock", anonymous=True)
    with sides.grant("Seller"):
        assert sides.talk() == f"You do not have permission to access the service '{sides.service}'."
    with sides.grant("public"):
        assert sides.talk() == "public"


@pytest.mark.feature(158)
def test_a_service_of_dbo_acts_as_its_certificate_says_too(sides: Sides) -> None:
    """Without a binding dbo is dbo everywhere. With one, the certificate decides the user."""
    near, far = sides.near, sides.far
    near.alter_authorization("dbo", service=ORDERS)
    assert "it acts as public. Dialog security is unavailable" in sides.talk()
    sides.belongs_to_dbo()
    assert "You do not have permission" in sides.talk()
    with sides.grant("Seller"):
        assert sides.talk() == "Seller"
    near.drop_remote_service_binding("ToStock")
    handle = sides.begin()
    near.send(handle, ORDER, b"dbo")
    assert bodies(far.receive(STOCK_QUEUE)) == [b"dbo"]
    assert sides.certificates(far)[-1][1] == "public"  # no certificate was used


def test_in_one_database_a_binding_says_nothing(sides: Sides) -> None:
    near = sides.near
    near.create_service("//here", STOCK_QUEUE, [CONTRACT])
    near.create_remote_service_binding("Here", to_service="//here", user="Keeper")
    near.grant("SEND", "Seller", service="//here")
    handle = near.begin_dialog(ORDERS, "//here", contract=CONTRACT)
    near.send(handle, ORDER, b"x")
    assert bodies(near.receive(STOCK_QUEUE)) == [b"x"]


@pytest.mark.feature(163, 165)
def test_a_binding_is_proved_once_and_the_permission_checked_again(sides: Sides, clock: Clock) -> None:
    near, far = sides.near, sides.far
    far.grant("SEND", "Seller", service=sides.service)
    handle = sides.begin()
    near.send(handle, ORDER, b"0")
    near.drop_remote_service_binding("ToStock")
    near.drop_certificate("Seller")
    near.drop_certificate("of Keeper")
    clock.jump(days=400)  # the others have expired
    for number in range(1, 4):
        near.send(handle, ORDER, str(number))
    assert bodies(far.receive(STOCK_QUEUE)) == [b"0", b"1", b"2", b"3"]
    far.revoke("SEND", "Seller", service=sides.service)
    near.send(handle, ORDER, b"no more")
    assert errors(near.receive(ORDERS_QUEUE)) == errors(far.receive(STOCK_QUEUE)) == [-8494]


@pytest.mark.feature(163)
@pytest.mark.parametrize("waits", [False, True])
def test_the_user_of_a_binding_may_be_dropped(sides: Sides, waits: bool) -> None:
    near, far = sides.near, sides.far
    far.grant("SEND", "Seller", service=sides.service)
    handle = sides.begin()
    near.send(handle, ORDER, b"0")
    assert len(far.receive(STOCK_QUEUE)) == 1
    if waits:
        far.alter_queue(STOCK_QUEUE, status=False)
        near.send(handle, ORDER, b"1")
    far.drop_certificate("of Seller")
    far.drop_user("Seller")
    if waits:
        far.alter_queue(STOCK_QUEUE, status=True)
    else:
        near.send(handle, ORDER, b"1")
    assert errors(near.receive(ORDERS_QUEUE)) == [-8494]


@pytest.mark.feature(163)
@pytest.mark.parametrize("owner", ["Seller", "dbo"])
def test_a_waiting_message_is_authorized_when_its_target_is_created(sides: Sides, owner: str) -> None:
    near, far = sides.near, sides.far
    if owner == "dbo":
        sides.belongs_to_dbo()
    far.drop_service(sides.service)
    late, refused = sides.begin(), sides.begin()
    near.send(late, ORDER, b"late")
    far.create_service(sides.service, STOCK_QUEUE, [CONTRACT], authorization="Keeper")
    assert errors(near.receive(ORDERS_QUEUE)) == [-8494]  # no grant on this service
    far.grant("SEND", "Seller", service=sides.service)
    far.alter_queue(STOCK_QUEUE, status=False)
    near.send(refused, ORDER, b"refused")
    accepted = sides.begin()
    near.send(accepted, ORDER, b"accepted")
    far.alter_queue(STOCK_QUEUE, status=True)
    assert [bodies(far.receive(STOCK_QUEUE)) for _ in range(2)] == [[b"refused"], [b"accepted"]]
    far.alter_queue(STOCK_QUEUE, status=False)
    near.send(accepted, ORDER, b"too late")
    far.revoke("SEND", "Seller", service=sides.service)
    far.alter_queue(STOCK_QUEUE, status=True)
    assert errors(near.receive(ORDERS_QUEUE)) == [-8494]


@pytest.mark.feature(52, 163)
def test_a_multicast_acts_as_the_user_of_each_binding(sides: Sides) -> None:
    near, far = sides.near, sides.far
    far.create_service(f"{sides.service}/unbound", STOCK_QUEUE, [CONTRACT])
    far.grant("SEND", "Seller", service=sides.service)
    handles = [
        near.begin_dialog(ORDERS, to, contract=CONTRACT)
        for to in (sides.service, f"{sides.service}/unbound", sides.service)
    ]
    near.send(handles, ORDER, b"x")
    assert [bodies(far.receive(STOCK_QUEUE)) for _ in range(3)] == [[b"x"], [b"x"], []]
    (error,) = near.receive(ORDERS_QUEUE)
    assert error.conversation_handle == handles[1]  # Seller is guest there without a binding
    near.send([handles[0], handles[2]], ORDER, b"y")
    far.revoke("SEND", "Seller", service=sides.service)
    near.send([handles[0], handles[2]], ORDER, b"z")
    assert [errors(near.receive(ORDERS_QUEUE)) for _ in range(2)] == [[-8494], [-8494]]


# ---------------------------------------------------------------- processes


@pytest.mark.feature(162)
def test_a_process_without_the_service_master_key_leaves_it_to_one_that_has_it(
    sides: Sides, tmp_path: Path, clock: Clock
) -> None:
    """A process without the key cannot prove an identity, but acting as public would be wrong."""
    far = sides.far
    far.grant("SEND", "Seller", service=sides.service)
    with sb.open(sides.near.instance.url, keys=tmp_path / "empty", upkeep=None, clock=clock) as stranger:
        near = stranger.database(sides.near.name)
        handle = near.begin_dialog(ORDERS, sides.service, contract=CONTRACT)
        for number in range(3):
            near.send(handle, ORDER, str(number))
        assert "needs to access the master key in the database" in near.get_transmission_status(handle)  # 28054
        assert far.receive(STOCK_QUEUE) == []
        assert near.receive(ORDERS_QUEUE) == []
        with sb.open(near.instance.url, upkeep=0.1, clock=clock):
            eventually(lambda: near.get_transmission_status(handle) == "")
        near.send(handle, ORDER, b"3")  # from now on only the permission is checked
    assert bodies(far.receive(STOCK_QUEUE)) == [b"0", b"1", b"2", b"3"]
    assert sides.certificates(far) == [("Keeper", "Seller")]


@pytest.mark.feature(163)
def test_messages_of_the_sql_function_send_use_the_binding(sides: Sides, clock: Clock) -> None:
    near, far = sides.near, sides.far
    far.grant("SEND", "Seller", service=sides.service)
    with sb.open(near.instance.url, upkeep=0.1, clock=clock):
        query(
            near,
            "select servicebroker.send(servicebroker.begin_dialog("
            "%s, %s, %s, contract => %s, encryption => false), %s, 'x')",
            *(near.name, ORDERS, sides.service, CONTRACT, ORDER),
        )
        assert bodies(far.receive(STOCK_QUEUE, wait=20)) == [b"x"]


@pytest.mark.feature(163)
@pytest.mark.parametrize("owner", ["Seller", "dbo"])
def test_the_usual_send_is_one_statement_and_notices_a_revoke(
    sides: Sides, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = sides.near, sides.far
    if owner == "dbo":
        sides.belongs_to_dbo()
    far.grant("SEND", "Seller", service=sides.service)
    handle = sides.begin()
    for _ in range(2):
        near.send(handle, ORDER, b"x")
    with near.transaction() as transaction:
        assert StatementCounter(transaction, monkeypatch).count_of(lambda: transaction.send(handle, ORDER, b"x")) == 1
    far.revoke("SEND", "Seller", service=sides.service)
    near.send(handle, ORDER, b"x")
    assert errors(near.receive(ORDERS_QUEUE)) == [-8494]


@pytest.mark.feature(52)
def test_without_a_binding_a_first_send_costs_no_statement_more(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statements are those of a SEND within one database, which never looks up bindings."""
    near = sides.near
    near.drop_remote_service_binding("ToStock")
    near.alter_authorization("dbo", service=ORDERS)
    near.create_service("//here", STOCK_QUEUE, [CONTRACT])

    def cost(to: str) -> int:
        for _ in range(2):  # the first looks up names
            handle = near.begin_dialog(ORDERS, to, contract=CONTRACT)
            with near.transaction() as transaction:
                counter = StatementCounter(transaction, monkeypatch)
                count = counter.count_of(partial(transaction.send, handle, ORDER, b"x"))
        return count

    assert cost(sides.service) == cost("//here")
