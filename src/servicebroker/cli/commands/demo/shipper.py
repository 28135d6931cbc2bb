"""`//demo/LogShipper`: sends the lines over recycled conversations (docs/reference/rules.md#recycled-conversations).

Each of `SLOT_COUNT` slots has one open conversation. After a number of messages, or an hour, the shipper sends an
[EndOfStream] message on it, and the slot gets a new conversation. The target then ends the old one, and the shipper
ends its side at the EndDialog. Every transaction locks the slot's row before the conversation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.transaction import Transaction
from servicebroker.cli.commands.demo.input_file import Batch, Position, advanced, batches, resume
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message, read_error

DATABASE = "Demo"
SHIPPER, SHIPPER_QUEUE = "//demo/LogShipper", "ShipperQueue"
WAREHOUSE, WAREHOUSE_QUEUE = "//demo/Warehouse", "WarehouseQueue"
CONTRACT = "//demo/LogLines"
LINE, END_OF_STREAM = "//demo/Line", "EndOfStream"

SLOT_COUNT = 4
RECYCLE_AFTER_MESSAGES = 10_000
RECYCLE_AFTER_S = 3600

_TABLES = """
create schema if not exists demo_dbo;
create table if not exists demo_dbo.session_conversations (
    slot integer primary key,
    handle uuid not null unique,
    sent bigint not null default 0
);
create table if not exists demo_dbo.shipped_files (
    path text primary key,
    inode numeric not null,
    "offset" bigint not null,
    lines bigint not null,
    head text not null, -- hashes of the first and last bytes before the offset: they identify the file
    tail text not null
);
"""


def set_up(database: Database) -> None:
    """Create the services and the shipper's tables, where they are missing."""
    steps: tuple[Callable[[], None], ...] = (
        lambda: database.create_message_type(LINE),
        lambda: database.create_message_type(END_OF_STREAM, "EMPTY"),
        lambda: database.create_contract(CONTRACT, {LINE: "INITIATOR", END_OF_STREAM: "INITIATOR"}),
        lambda: database.create_queue(SHIPPER_QUEUE),
        lambda: database.create_queue(WAREHOUSE_QUEUE),
        lambda: database.create_service(SHIPPER, SHIPPER_QUEUE),
        lambda: database.create_service(WAREHOUSE, WAREHOUSE_QUEUE, [CONTRACT]),
    )
    for step in steps:
        try:
            step()
        except BrokerError as refused:
            if refused.number != 2714:  # there already
                raise
    with database.transaction() as transaction:
        transaction.connection.execute(_TABLES)


class Shipper:
    """Sends one file.

    `sent`, `opened` and `closed` count lines and conversations of this run. `failures` has a sentence for each
    conversation that failed.
    """

    def __init__(self, database: Database, path: Path, file: BinaryIO) -> None:
        self.database = database
        self.path = os.fsencode(path.resolve()).decode(errors="backslashreplace")
        self.file = file
        self.position = resume(file, self._load_position())
        self.sent = self.opened = self.closed = 0
        self.failures: list[str] = []
        self._last_slot = 0

    def ship(self, end_offset: int) -> Iterator[int]:
        """Send the lines before this offset of the file. Yield the offset after each committed batch."""
        for batch in batches(self.file, self.position.offset, end_offset):
            self._send(batch)
            yield self.position.offset

    def finish(self) -> None:
        """Send EndOfStream on the conversation of every slot."""
        for slot in range(SLOT_COUNT):
            with self.database.transaction() as transaction:
                self._end_stream(transaction, slot)

    def receive_answers(self) -> int:
        """Receive and handle messages of one conversation: EndDialog, Error, timer. Return their number."""
        with self.database.transaction() as transaction:
            messages = transaction.receive(SHIPPER_QUEUE)
            for message in messages:
                self._handle(transaction, message)
        return len(messages)

    def open_conversations(self) -> int:
        """Return how many conversations of the shipper, also of earlier runs, are not closed yet."""
        with self.database.instance.connection() as connection:
            row = connection.execute(
                "select count(*) from servicebroker.conversation_endpoints e "
                "join servicebroker.services s using (service_id) where s.name = %s",
                (SHIPPER,),
            ).fetchone()
        return int(row[0]) if row else 0

    def _send(self, batch: Batch) -> None:
        slot = self._last_slot = (self._last_slot + 1) % SLOT_COUNT
        new_position = advanced(self.file, self.position, batch)
        with self.database.transaction() as transaction:
            handle, used = self._conversation(transaction, slot)
            transaction.send_batch(handle, LINE, batch.lines)
            transaction.connection.execute(
                "update demo_dbo.session_conversations set sent = sent + %s where slot = %s",
                (len(batch.lines), slot),
            )
            if used + len(batch.lines) >= RECYCLE_AFTER_MESSAGES:
                self._end_stream(transaction, slot)
            self._save_position(transaction, new_position)
        self.position = new_position
        self.sent += len(batch.lines)

    def _conversation(self, transaction: Transaction, slot: int) -> tuple[UUID, int]:
        """Lock the slot's row. Return its conversation and the number of messages sent on it; begin one if missing."""
        row = transaction.connection.execute(
            "select handle, sent from demo_dbo.session_conversations where slot = %s for update", (slot,)
        ).fetchone()
        if row is not None:
            return row[0], row[1]
        handle = transaction.begin_dialog(SHIPPER, WAREHOUSE, contract=CONTRACT)
        transaction.begin_conversation_timer(handle, RECYCLE_AFTER_S)
        transaction.connection.execute(
            "insert into demo_dbo.session_conversations (slot, handle) values (%s, %s)", (slot, handle)
        )
        self.opened += 1
        return handle, 0

    def _end_stream(self, transaction: Transaction, slot: int) -> None:
        row = transaction.connection.execute(
            "delete from demo_dbo.session_conversations where slot = %s returning handle", (slot,)
        ).fetchone()
        if row is not None:
            transaction.send(row[0], END_OF_STREAM)

    def _handle(self, transaction: Transaction, message: Message) -> None:
        """Handle a message: the timer ends the stream of its conversation, EndDialog and Error end this side."""
        handle = message.conversation_handle
        row = transaction.connection.execute(
            "delete from demo_dbo.session_conversations where handle = %s returning slot", (handle,)
        ).fetchone()
        if message.is_timer:
            if row is not None:
                transaction.send(handle, END_OF_STREAM)
            return
        transaction.end_conversation(handle)
        self.closed += 1
        if message.is_error:
            code, description = read_error(message.message_body or b"")
            self.failures.append(f"The conversation {handle} failed with error {code}: {description}")

    def _load_position(self) -> Position | None:
        with self.database.instance.connection() as connection:
            row = connection.execute(
                'select inode, "offset", lines, head, tail from demo_dbo.shipped_files where path = %s', (self.path,)
            ).fetchone()
        return Position(int(row[0]), *row[1:]) if row else None

    def _save_position(self, transaction: Transaction, position: Position) -> None:
        transaction.connection.execute(
            'insert into demo_dbo.shipped_files (path, inode, "offset", lines, head, tail) '
            "values (%s, %s, %s, %s, %s, %s) on conflict (path) do update set inode = excluded.inode, "
            '"offset" = excluded."offset", lines = excluded.lines, head = excluded.head, tail = excluded.tail',
            (self.path, *position),
        )
