"""Stored fragments: they survive a restart, and invalid ones are deleted."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from remote_support import Pair, Site, open_conversation, open_pair
from servicebroker.store.migrations import migrate
from support import ORDER, ORDERS_QUEUE, REPLY, STOCK_QUEUE, bodies, query


def test_fragments_of_the_first_reply_survive_a_restart(pair: Pair) -> None:
    """No message has arrived in order yet, but the stored fragments were acknowledged."""
    _, message = open_conversation(pair)
    pair.east.database.send(message.conversation_handle, REPLY, bytes(100_000))
    pair.east.round([])
    pair.west.round([pair.east.out.frames.popleft()])
    pair.west.relay = pair.west.new_relay()
    for _ in range(3):
        pair.rounds()
        pair.pass_time(8)
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [bytes(100_000)]


def store_fragments(site: Site, handle: UUID, *rows: tuple[int, int, int, int]) -> None:
    """Store fragments. Each row has the message number, the fragment, the number of fragments and the bytes."""
    for number, fragment, fragments, size in rows:
        query(
            site.database,
            "insert into servicebroker.arrived_fragments (conversation_handle, message_sequence_number, fragment, "
            "fragments, message_type_name, content, message_body) values (%s, %s, %s, %s, %s, 0, %s) returning 1",
            handle, number, fragment, fragments, ORDER, bytes(size),
        )  # fmt: skip


IMPOSSIBLE = (
    (1, 2**21 - 1, 2**21, 1),
    (2, 0, 3, 1),
    (3, 1, 4, 32_768),
    (3, 0, 3, 32_768),
    *((4, fragment, 1_000, 32_768) for fragment in range(0, 130, 2)),
    (5, 2, 2, 1),
    (1 + 16_384, 0, 1, 1),
)
POSSIBLE = ((6, 1, 3, 32_768), (7, 0, 1, 5), (8, 1, 2, 1), (8, 0, 2, 32_768))


def stored_fragments(site: Site) -> list[tuple[int, int]]:
    """Return the stored fragments."""
    return query(
        site.database,
        "select message_sequence_number, fragment from servicebroker.arrived_fragments order by 1, 2",
    )


def test_invalid_stored_fragments_are_deleted_when_they_are_read(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    store_fragments(pair.east, message.conversation_handle, *IMPOSSIBLE)
    pair.east.relay = pair.east.new_relay()
    pair.west.database.send(handle, ORDER, bytes(100_000))
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [bytes(100_000)]
    assert stored_fragments(pair.east) == []


def test_an_upgrade_removes_invalid_fragments(make_instance_url: Callable[..., str]) -> None:
    with open_pair(make_instance_url) as pair:
        handle, message = open_conversation(pair)
        pair.east.database.alter_queue(STOCK_QUEUE, status=False)
        pair.west.database.send(handle, ORDER, bytes(40_000))
        pair.rounds()
        beside = [(1, 0), (1, 1)]  # complete, and waits for a disabled queue
        assert stored_fragments(pair.east) == beside
        later = [(number + 1, *rest) for number, *rest in (*IMPOSSIBLE, *POSSIBLE)]
        store_fragments(pair.east, message.conversation_handle, *later)
        with pair.east.instance.connection() as connection:
            connection.execute("delete from servicebroker.migrations where number = 410")
            migrate(connection)
        assert stored_fragments(pair.east) == sorted(
            [*beside, *((number + 1, fragment) for number, fragment, *_ in POSSIBLE)]
        )
