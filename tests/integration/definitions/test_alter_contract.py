"""ALTER and DROP of message types and contracts."""

from __future__ import annotations

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    errors,
    in_thread,
    open_dialog,
    refused,
    state,
    wait_until_blocked,
)

pytestmark = pytest.mark.both_apis


@pytest.mark.feature(10)
def test_alter_message_type_changes_the_validation_for_other_processes(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    database.send(handle, ORDER, b"any")
    with sb.open(database.instance.url) as other_instance:
        theirs = other_instance.database(database.name)
        theirs.send(handle, ORDER, b"thing")
        database.alter_message_type(ORDER, "WELL_FORMED_XML")
        theirs.send(handle, ORDER, b"<a/>")  # the cached names of another process are checked
        received = database.receive(STOCK_QUEUE)
        assert [(message.message_body, message.validation) for message in received] == [
            (b"any", "N"),
            (b"thing", "N"),
            (b"<a/>", "X"),
        ]
        theirs.send(handle, ORDER, b"<no xml")
    assert errors(database.receive(ORDERS_QUEUE)) == [-9615]
    with refused(15151, "//no/such"):
        database.alter_message_type("//no/such", "NONE")
    with refused(402):
        database.alter_message_type(ORDER, "SOME")


@pytest.mark.feature(34)
def test_built_in_objects_cannot_be_changed(database: sb.Database) -> None:
    with refused(9663):
        database.alter_message_type("DEFAULT", "EMPTY")
    with refused(9663):
        database.drop_message_type("http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog")
    with refused(9663):
        database.drop_contract("DEFAULT")


def test_a_dialog_that_is_beginning_learns_that_its_contract_is_dropped(database: sb.Database) -> None:
    database.create_contract("//short", {ORDER: "ANY"})
    with database.transaction() as transaction:
        transaction.begin_dialog(ORDERS, STOCK, contract="//short")
        dropping = in_thread(database.drop_contract, "//short")
        wait_until_blocked(database)
    dropping.result(30)
    assert errors(database.receive(ORDERS_QUEUE)) == [-8487]


@pytest.mark.feature(22, 102)
def test_drop_contract_and_message_type(database: sb.Database) -> None:
    with refused(3716, ORDER, "contracts"):
        database.drop_message_type(ORDER)
    with refused(3716, CONTRACT, "services"):
        database.drop_contract(CONTRACT)
    with refused(15151):
        database.drop_contract("//no/such")
    with refused(15151):
        database.drop_message_type("//no/such")
    initiator, target = open_dialog(database)
    unsent = begin(database)
    database.send(initiator, ORDER, b"unread")
    database.alter_service(STOCK, drop_contracts=[CONTRACT])
    database.create_broker_priority("P", contract_name=CONTRACT)
    with refused(3716, CONTRACT, "priorities"):
        database.drop_contract(CONTRACT)
    database.drop_broker_priority("p")
    database.drop_contract(CONTRACT)
    assert [state(database, handle) for handle in (initiator, target, unsent)] == ["ER", "ER", "ER"]
    for message_type in (ORDER, REPLY, DOCUMENT, MARK):
        database.drop_message_type(message_type)
    database.instance.catalog.labels.clear()  # like a process without cached names
    error, unread = database.receive(STOCK_QUEUE)
    assert sb.read_error(error.message_body) == (-8487, "The remote service contract has been dropped.")
    assert (unread.message_body, unread.message_type_name, unread.service_contract_name) == (b"unread", "", "")
    assert errors(database.receive(ORDERS_QUEUE) + database.receive(ORDERS_QUEUE)) == [-8487, -8487]
    for handle in (initiator, target, unsent):
        database.end_conversation(handle)
    with refused(8425):
        begin(database)
    database.create_message_type(ORDER)
