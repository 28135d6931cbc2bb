"""Permissions of the verbs for users other than dbo, and SEND at the target."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from support import (
    APP,
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    StatementCounter,
    as_user,
    begin,
    bodies,
    define_standard_set,
    errors,
    eventually,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    refused,
    state,
)

# ---------------------------------------------------------------- the verbs


@pytest.mark.feature(27)
def test_begin_dialog_needs_the_queue_and_the_contract(database: sb.Database, app: sb.Database) -> None:
    def start(contract: str = CONTRACT) -> UUID:
        return app.begin_dialog(ORDERS, STOCK, contract=contract)

    with refused(8494, ORDERS):
        start()
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    with refused(229, "REFERENCES", CONTRACT, database.name):
        start()
    start(sb.DEFAULT)  # any user may refer to built-in objects
    database.grant("REFERENCES", APP, contract=CONTRACT)
    assert state(database, start()) == "SO"
    database.deny("RECEIVE", APP, queue=ORDERS_QUEUE)
    with refused(8494):
        start()


@pytest.mark.feature(27)
@pytest.mark.parametrize("inside", [False, True])
def test_verbs_on_a_conversation_need_its_queue(database: sb.Database, app: sb.Database, inside: bool) -> None:
    handle, far = open_dialog(database)
    verbs: list[Callable[[sb.Database | sb.Transaction], Any]] = [
        lambda on: on.send(handle, ORDER, b"x"),
        lambda on: on.send_batch(handle, ORDER, [b"x"]),
        lambda on: on.move_conversation(handle, group),
        lambda on: on.end_conversation(handle),
        lambda on: on.end_conversation(handle, error=(1, "x")),
        lambda on: on.end_conversation(handle, cleanup=True),
        lambda on: on.begin_conversation_timer(handle, 5),
    ]
    (group,) = query(
        database,
        "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s",
        handle,
    )[0]
    before = query(database, "select * from servicebroker.conversation_endpoints where conversation_id is not null")
    for verb in verbs:
        with refused(8494, ORDERS):
            if inside:
                with app.transaction() as transaction:
                    verb(transaction)
            else:
                verb(app)
    assert query(database, "select * from servicebroker.conversation_endpoints") == before  # the verb had no effect
    assert database.receive(STOCK_QUEUE) == []
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    with refused(8494, ORDERS):
        app.begin_conversation_timer(handle, 5)  # needs SEND on the own service
    database.grant("SEND", APP, service=ORDERS)
    with app.transaction() as transaction:
        verbs[0](transaction)
        verbs[1](transaction)
        verbs[2](transaction)
        verbs[6](transaction)
        verbs[3](transaction)
    assert [m.message_body for m in database.receive(STOCK_QUEUE)] == [b"x", b"x", None]
    with refused(8494, STOCK):
        app.end_conversation(far)


def test_with_cleanup_of_an_ended_conversation_is_for_db_owner(database: sb.Database, app: sb.Database) -> None:
    _, far = open_dialog(database)
    database.grant("RECEIVE", APP, queue=STOCK_QUEUE)
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    app.end_conversation(far)
    database.end_conversation(far_of(database, far))
    assert state(database, far) == "CD"
    with refused(28006, "'CD'"):
        app.end_conversation(far, cleanup=True)
    database.add_role_member("db_owner", APP)
    app.end_conversation(far, cleanup=True)
    assert state(database, far) is None
    other, _ = open_dialog(database)
    database.drop_role_member("db_owner", APP)
    app.end_conversation(other, cleanup=True)  # not ended: needs RECEIVE on its queue


def far_of(database: sb.Database, handle: UUID) -> UUID:
    text = (
        "select peer.conversation_handle from servicebroker.conversation_endpoints e "
        "join servicebroker.conversation_endpoints peer using (conversation_id) "
        "where e.conversation_handle = %s and peer.conversation_handle <> e.conversation_handle"
    )
    found: UUID = query(database, text, handle)[0][0]
    return found


def test_a_conversation_of_another_database_is_not_there(database: sb.Database, app: sb.Database) -> None:
    other = define_standard_set(database.instance.database(database.name + "Other", create=True))
    handle = begin(other)
    database.add_role_member("db_owner", APP)
    for verb in (
        lambda: app.send(handle, ORDER, b"x"),
        lambda: app.end_conversation(handle),
        lambda: app.begin_conversation_timer(handle, 5),
    ):
        with refused(8426):
            verb()


@pytest.mark.feature(27)
def test_receive_needs_its_permission(database: sb.Database, app: sb.Database) -> None:
    database.send(begin(database), ORDER, b"first")
    for verb in (
        lambda: app.receive(STOCK_QUEUE),
        lambda: app.receive(STOCK_QUEUE, top=0),
        lambda: app.receive(STOCK_QUEUE, wait=5),
        lambda: app.get_conversation_group(STOCK_QUEUE),
        lambda: app.get_conversation_group(STOCK_QUEUE, wait=5),
    ):
        with refused(229, "RECEIVE", STOCK_QUEUE, database.name):
            verb()
    database.grant("RECEIVE", APP, queue=STOCK_QUEUE)
    assert app.get_conversation_group(STOCK_QUEUE) is not None
    assert bodies(app.receive(STOCK_QUEUE)) == [b"first"]
    database.send(begin(database), ORDER, b"second")
    database.deny("RECEIVE", "public", queue=STOCK_QUEUE)
    with refused(229):
        app.receive(STOCK_QUEUE)
    with refused(229), app.transaction() as transaction:
        transaction.receive(STOCK_QUEUE)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"second"]  # a DENY does not apply to dbo


def test_a_reader_that_waits_is_stopped_by_a_revoke(database: sb.Database, app: sb.Database) -> None:
    database.grant("RECEIVE", APP, queue=STOCK_QUEUE)
    reader = in_thread(app.receive, STOCK_QUEUE, wait=20)
    text = "select count(*) from servicebroker.waiting_readers"
    eventually(lambda: query(database, text)[0][0])
    database.revoke("RECEIVE", APP, queue=STOCK_QUEUE)
    with refused(229):
        reader.result(10)


def test_a_queue_that_is_dropped_under_a_restricted_reader(database: sb.Database, app: sb.Database) -> None:
    database.create_queue("Gone")
    database.grant("RECEIVE", APP, queue="Gone")
    assert app.receive("Gone") == []
    reader = in_thread(app.receive, "Gone", wait=20)
    eventually(lambda: query(database, "select count(*) from servicebroker.waiting_readers")[0][0])
    database.drop_queue("Gone")
    with refused(15151, "Gone"):
        reader.result(10)
    with refused(15151, "Gone"):
        app.receive("Gone")
    database.create_queue("Gone")  # another service, without grants
    with refused(229, "Gone"):
        app.receive("Gone")


@pytest.mark.parametrize("name", ["dbo", APP])
def test_the_usual_send_and_receive_are_one_statement(
    database: sb.Database, app: sb.Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.grant("RECEIVE", APP, queue=STOCK_QUEUE)
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    worker = as_user(database, name)
    handle, _ = open_dialog(database)
    for _ in range(2):
        worker.send(handle, ORDER, b"x")
        worker.receive(STOCK_QUEUE, top=1)
    with worker.transaction() as transaction:
        counted = StatementCounter(transaction, monkeypatch)
        assert counted.count_of(lambda: transaction.send(handle, ORDER, b"x")) == 1
        assert counted.count_of(lambda: transaction.send_batch(handle, ORDER, [b"x", b"y"])) == 1
        assert counted.count_of(lambda: transaction.receive(STOCK_QUEUE)) == 1


def test_a_revoke_invalidates_cached_permissions(database: sb.Database, app: sb.Database) -> None:
    database.grant("RECEIVE", APP, queue=STOCK_QUEUE)
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    handle, far = open_dialog(database)
    database.create_role("Readers")

    def grant_again() -> None:
        for principal in (APP, "Readers"):
            database.grant("RECEIVE", principal, queue=ORDERS_QUEUE)

    changes: list[tuple[Callable[[], None], Callable[[], None]]] = [
        (lambda: database.revoke("RECEIVE", APP, queue=ORDERS_QUEUE), grant_again),
        (
            lambda: database.deny("RECEIVE", "public", queue=ORDERS_QUEUE),
            lambda: database.revoke("RECEIVE", "public", queue=ORDERS_QUEUE),
        ),
        (lambda: database.deny("CONTROL", APP), lambda: database.revoke("CONTROL", APP)),
        (lambda: database.alter_authorization("dbo", queue=ORDERS_QUEUE), grant_again),
        (lambda: database.revoke("RECEIVE", APP, queue=ORDERS_QUEUE), lambda: database.add_role_member("Readers", APP)),
        (lambda: database.drop_role_member("Readers", APP), lambda: database.add_role_member("Readers", APP)),
    ]
    for forbid, allow in changes:
        for _ in range(3):
            app.send(handle, ORDER, b"x")
            app.receive(ORDERS_QUEUE)
        forbid()
        with refused(8494):
            app.send(handle, ORDER, b"x")
        with refused(229):
            app.receive(ORDERS_QUEUE)
        allow()
    for _ in range(3):
        app.send(far, REPLY, b"back")


def test_a_service_that_moves_to_another_queue_takes_its_senders_along(database: sb.Database, app: sb.Database) -> None:
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    handle, _ = open_dialog(database)
    for _ in range(3):
        app.send(handle, ORDER, b"x")
    database.create_queue("Other")
    database.alter_service(ORDERS, queue="Other")
    with refused(8494, ORDERS):
        app.send(handle, ORDER, b"x")
    database.grant("RECEIVE", APP, queue="Other")
    app.send(handle, ORDER, b"x")


@pytest.mark.slow
def test_statements_after_a_revoke_are_refused(
    database: sb.Database, app: sb.Database, seeded_random: random.Random
) -> None:
    """Threads of one process keep the shared cache warm while dbo grants and revokes."""
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    handles = [open_dialog(database)[0] for _ in range(3)]
    granted, changing, revoked = "granted", "changing", "revoked"
    phases = [granted]  # the last change is now
    seen: Counter[tuple[str, bool]] = Counter()
    finished = threading.Event()

    def work(verb: Callable[[], Any], refusal: int) -> None:
        while not finished.is_set():
            before = len(phases)
            was_done = True
            try:
                verb()
            except sb.BrokerError as error:
                was_done = error.number != refusal
            if len(phases) == before:
                seen[phases[-1], was_done] += 1

    verbs = [(lambda handle=handle: app.send(handle, ORDER, b"x"), 8494) for handle in handles]
    threads = [in_thread(work, verb, number) for verb, number in [*verbs, (lambda: app.receive(ORDERS_QUEUE), 229)]]
    while len(phases) < 160 or min(seen[revoked, False], seen[granted, True]) < 30:  # bounded by the timeout of tests
        for change, phase in ((database.revoke, revoked), (database.grant, granted)):
            time.sleep(seeded_random.uniform(0, 0.03))
            phases.append(changing)
            change("RECEIVE", APP, queue=ORDERS_QUEUE)
            phases.append(phase)
    finished.set()
    for thread in threads:
        thread.result(10)
    assert not seen[revoked, True]
    assert not seen[granted, False]


# ---------------------------------------------------------------- SEND at the target


def initiator_of(database: sb.Database, owner: str) -> str:
    """Create a service on the initiator's queue for this owner."""
    database.create_service("//test/Owned", ORDERS_QUEUE, authorization=owner)
    return "//test/Owned"


@pytest.mark.feature(102, 107)
def test_send_without_permission_at_the_target_becomes_an_error_message(
    database: sb.Database, app: sb.Database
) -> None:
    service = initiator_of(database, APP)
    handle = database.begin_dialog(service, STOCK, contract=CONTRACT)  # the owner of the service counts, not the sender
    database.send(handle, ORDER, b"refused")
    (message,) = database.receive(ORDERS_QUEUE)
    assert sb.read_error(message.message_body) == (
        -8494,
        f"You do not have permission to access the service '{STOCK}'.",
    )
    assert state(database, handle) == "ER"
    assert database.receive(STOCK_QUEUE) == []
    with refused(8429):
        database.send(handle, ORDER, b"again")
    database.end_conversation(handle)
    assert state(database, handle) is None
    database.grant("SEND", "public", service=STOCK)
    handle = database.begin_dialog(service, STOCK, contract=CONTRACT)
    database.send(handle, ORDER, b"welcome")
    (message,) = database.receive(STOCK_QUEUE)
    assert message.message_body == b"welcome"
    database.send(message.conversation_handle, REPLY, b"answer")  # a reply needs no SEND permission
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"answer"]


@pytest.mark.feature(107)
def test_a_revoke_at_the_target_ends_conversations_at_their_next_message(
    database: sb.Database, app: sb.Database
) -> None:
    service = initiator_of(database, APP)
    database.grant("SEND", APP, service=STOCK)
    handle = database.begin_dialog(service, STOCK, contract=CONTRACT)
    for _ in range(3):
        database.send(handle, ORDER, b"x")
    assert len(database.receive(STOCK_QUEUE)) == 3
    far = peer_handle(database, handle)
    database.revoke("SEND", APP, service=STOCK)
    database.send(handle, ORDER, b"refused")
    assert errors(database.receive(ORDERS_QUEUE)) == [-8494]
    assert state(database, handle) == state(database, far) == "ER"


@pytest.mark.feature(107)
def test_messages_that_waited_for_a_service_need_the_permission_when_it_comes(
    database: sb.Database, app: sb.Database
) -> None:
    service = initiator_of(database, APP)
    handle = database.begin_dialog(service, "//later/Service", contract=CONTRACT)
    database.send(handle, ORDER, b"waits")
    database.create_service("//later/Service", STOCK_QUEUE, [CONTRACT])
    assert errors(database.receive(ORDERS_QUEUE)) == [-8494]
    assert database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(107)
def test_the_owner_is_looked_for_in_the_targets_database(
    database: sb.Database, app: sb.Database, postgres_role: str
) -> None:
    other_database = database.instance.database(database.name + "Far", create=True)
    define_standard_set(other_database)
    other_database.create_service("//far/Stock", STOCK_QUEUE, [CONTRACT])
    service = initiator_of(database, APP)

    def outcome() -> list[int]:
        handle = database.begin_dialog(service, "//far/Stock", contract=CONTRACT)
        database.send(handle, ORDER, b"x")
        received = errors(database.receive(ORDERS_QUEUE))
        other_database.receive(STOCK_QUEUE)
        return received

    assert outcome() == [-8494]  # the sender has no user there: it is guest
    other_database.create_user("Same", postgres_role)
    other_database.grant("SEND", "Same", service="//far/Stock")
    assert outcome() == [-8494]
    database.create_user("Mapped", postgres_role)
    database.alter_authorization("Mapped", service=service)
    assert outcome() == []
    other_database.revoke("SEND", "Same", service="//far/Stock")
    assert outcome() == [-8494]
    other_database.grant("SEND", "public", service="//far/Stock")
    assert outcome() == []
    handle = database.begin_dialog(ORDERS, "//far/Stock", contract=CONTRACT)  # dbo is dbo everywhere
    other_database.deny("SEND", "public", service="//far/Stock")
    database.send(handle, ORDER, b"x")
    assert len(other_database.receive(STOCK_QUEUE)) == 1
