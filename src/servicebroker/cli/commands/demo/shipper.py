"""`//demo/LogShipper`: sends the lines over recycled conversations (docs/reference/rules.md#recycled-conversations).

Several conversations are in use at once, one a slot. Each is used for a bounded number of messages or an hour,
then gets an [EndOfStream] message. The target ends it, and the shipper ends its side when the EndDialog comes.
Every transaction locks in the same order: the slot's row first, the conversation next.
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
    head text not null,
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
    """Sends one file. `sent`, `opened` and `closed` count this run; `failures` says which conversations broke."""

    def __init__(self, database: Database, path: Path, file: BinaryIO) -> None:
        self.database = database
        self.path = os.fsencode(path.resolve()).decode(errors="backslashreplace")
        self.file = file
        self.position = resume(file, self._known())
        self.sent = self.opened = self.closed = 0
        self.failures: list[str] = []
        self._turn = 0

    def ship(self, size: int) -> Iterator[int]:
        """Send what the file holds up to `size` bytes; yields the offset behind each committed batch."""
        for batch in batches(self.file, self.position.offset, size):
            self._send(batch)
            yield self.position.offset

    def finish(self) -> None:
        """End the stream of every conversation that is in use."""
        for slot in range(SLOT_COUNT):
            with self.database.transaction() as transaction:
                self._end_stream(transaction, slot)

    def answer(self) -> int:
        """Take what came back: EndDialog and Error end our side, a timer ends the stream. Returns how many messages."""
        with self.database.transaction() as transaction:
            messages = transaction.receive(SHIPPER_QUEUE)
            for message in messages:
                self._answer(transaction, message)
        return len(messages)

    def open_conversations(self) -> int:
        """Return how many of the shipper's conversations, of this run or an earlier one, are not closed yet."""
        with self.database.instance.connection() as connection:
            row = connection.execute(
                "select count(*) from servicebroker.conversation_endpoints e "
                "join servicebroker.services s using (service_id) where s.name = %s",
                (SHIPPER,),
            ).fetchone()
        return int(row[0]) if row else 0

    def _send(self, batch: Batch) -> None:
        slot = self._turn = (self._turn + 1) % SLOT_COUNT
        after = advanced(self.file, self.position, batch)
        with self.database.transaction() as transaction:
            handle, used = self._conversation(transaction, slot)
            transaction.send_batch(handle, LINE, batch.lines)
            transaction.connection.execute(
                "update demo_dbo.session_conversations set sent = sent + %s where slot = %s",
                (len(batch.lines), slot),
            )
            if used + len(batch.lines) >= RECYCLE_AFTER_MESSAGES:
                self._end_stream(transaction, slot)
            self._remember(transaction, after)
        self.position = after
        self.sent += len(batch.lines)

    def _conversation(self, transaction: Transaction, slot: int) -> tuple[UUID, int]:
        """The slot's conversation, its row locked; a new one when there is none."""
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

    def _answer(self, transaction: Transaction, message: Message) -> None:
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

    def _known(self) -> Position | None:
        with self.database.instance.connection() as connection:
            row = connection.execute(
                'select inode, "offset", lines, head, tail from demo_dbo.shipped_files where path = %s', (self.path,)
            ).fetchone()
        return Position(int(row[0]), *row[1:]) if row else None

    def _remember(self, transaction: Transaction, position: Position) -> None:
        transaction.connection.execute(
            'insert into demo_dbo.shipped_files (path, inode, "offset", lines, head, tail) '
            "values (%s, %s, %s, %s, %s, %s) on conflict (path) do update set inode = excluded.inode, "
            '"offset" = excluded."offset", lines = excluded.lines, head = excluded.head, tail = excluded.tail',
            (self.path, *position),
        )
