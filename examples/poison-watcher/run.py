"""A stock room whose queue is switched off by a poison message, and an application that puts that right by itself.

    python examples/poison-watcher/run.py

Workstations ask for parts, each in a conversation. A part that has become obsolete makes the reader fail every time:
after five rollbacks its queue is OFF. The watcher is told by a BROKER_QUEUE_DISABLED notification, looks into the
queue, finds the message, switches the queue ON, ends the conversation with an error, and deletes what the
application had noted of it. Everything is made in a temporary folder, and is gone at the end.
"""

from __future__ import annotations

import logging
import tempfile
import time
from uuid import UUID

import servicebroker as sb

REQUEST_COUNT, OBSOLETE = 40, (11, 27)  # which of the requests ask for the part that is gone
WORKSTATION, STOCK, WATCHER = "//example/Workstation", "//example/Stock", "//example/Watcher"
REQUEST, HANDED_OUT = "//example/Request", "//example/HandedOut"
CONTRACT = "//example/Requisition"
POST_EVENT = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"
UNABLE = (127, "Unable to process message.")


@sb.procedure("usp_NoteRequest", form="batch")
def note_request(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
    """Hand out the parts; what is asked for is noted first, in a transaction of its own."""
    for message in messages:
        handle = message.conversation_handle
        if message.is_end_dialog or message.is_error:
            transaction.connection.execute("delete from requests where conversation = %s", (handle,))
            transaction.end_conversation(handle)
            continue
        part = (message.message_body or b"").decode()
        with transaction.database.transaction() as note:
            note.connection.execute("insert into requests values (%s, %s) on conflict do nothing", (handle, part))
        transaction.connection.execute("update parts set left_over = left_over - 1 where part = %s", (part,))
        transaction.send(handle, HANDED_OUT, part)


@sb.procedure("usp_WatchQueues")
def watch(transaction: sb.Transaction, message: sb.Message) -> None:
    """A queue was switched off: find the message that cannot be processed, and take it out of the way."""
    if message.is_end_dialog or message.is_error:
        transaction.end_conversation(message.conversation_handle)
        return
    event = sb.read_event(message.message_body)
    handle = find_poison(transaction, event)
    transaction.database.alter_queue(f"[{event.schema_name}].[{event.object_name}]", status=True)
    if handle is not None:
        transaction.end_conversation(handle, error=UNABLE)
        transaction.connection.execute("delete from requests where conversation = %s", (handle,))
    print(f"{event.object_name} was switched off; conversation {handle} is ended, and it is on again.")


def find_poison(transaction: sb.Transaction, event: sb.EventInstance) -> UUID | None:
    """The oldest request for a part that nobody has: SELECT sees the messages of a queue that is off too."""
    view = f'"{event.database_name.lower()}_{event.schema_name.lower()}"."{event.object_name.lower()}"'
    rows = transaction.connection.execute(
        f"select conversation_handle from {view} "
        "where not exists (select from parts where part = convert_from(message_body, 'UTF8') and left_over > 0) "
        "and message_type_name = %s order by queuing_order limit 1",
        (REQUEST,),
    ).fetchall()
    return rows[0][0] if rows else None


def define(instance: sb.Instance) -> sb.Database:
    """The tables of the application, the services, and who is told when a queue is switched off."""
    database = instance.database("Factory", create=True)
    with instance.connection() as connection:
        connection.execute("create table parts (part text primary key, left_over integer check (left_over >= 0))")
        connection.execute("create table requests (conversation uuid primary key, part text)")
        connection.execute("insert into parts values ('bolt', 1000), ('valve', 0)")
    database.create_message_type(REQUEST)
    database.create_message_type(HANDED_OUT)
    database.create_contract(CONTRACT, {REQUEST: "INITIATOR", HANDED_OUT: "TARGET"})
    database.create_queue("WorkstationQueue")
    database.create_queue("StockQueue", activation=sb.Activation("usp_NoteRequest", 2, "OWNER"))
    database.create_queue("WatchQueue", activation=sb.Activation("usp_WatchQueues", 1, "OWNER"))
    database.create_service(WORKSTATION, "WorkstationQueue")
    database.create_service(STOCK, "StockQueue", [CONTRACT])
    database.create_service(WATCHER, "WatchQueue", [POST_EVENT])
    database.create_event_notification(
        "StockDisabled", on_queue="StockQueue", events="BROKER_QUEUE_DISABLED", to_service=WATCHER
    )
    return database


def main() -> None:
    """Ask for parts, and wait for an answer to every request."""
    logging.disable(logging.CRITICAL)  # each failure of the reader would show its traceback
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sb.open(folder) as instance:
        database = define(instance)
        with sb.activate(instance, interval=0.5):
            for number in range(REQUEST_COUNT):
                handle = database.begin_dialog(WORKSTATION, STOCK, contract=CONTRACT)
                database.send(handle, REQUEST, "valve" if number in OBSOLETE else "bolt")
            handed_out = refused = 0
            deadline = time.monotonic() + 120
            while handed_out + refused < REQUEST_COUNT and time.monotonic() < deadline:
                for message in database.receive("WorkstationQueue", wait=1.0):
                    if message.is_error:
                        assert sb.read_error(message.message_body) == UNABLE
                        refused += 1
                    else:
                        handed_out += 1
                    database.end_conversation(message.conversation_handle)
            time.sleep(0.5)
        with instance.connection() as connection:
            ((left,),) = connection.execute("select count(*) from requests where part = 'valve'").fetchall()
    print(f"{handed_out} parts were handed out, {refused} requests refused; {left} notes of those are left.")


if __name__ == "__main__":
    main()
