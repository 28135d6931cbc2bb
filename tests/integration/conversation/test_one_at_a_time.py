"""A transaction belongs to one thread or task at a time: a second one in the middle of a verb is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

import servicebroker as sb
from support import ORDER, STOCK_QUEUE, begin, bodies, eventually, standard_database

REFUSED = "Another thread or task is in the middle of a verb of this transaction"
LOCKED = """
select exists (
  select from pg_locks where not granted and relation = 'servicebroker.conversation_endpoints'::regclass
)
"""


@contextmanager
def verbs_held(url: str) -> Iterator[Callable[[], bool]]:
    """No verb that asks for a conversation ends within the block. Yields a check that one waits."""
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watcher:
        holder.execute("lock table servicebroker.conversation_endpoints in access exclusive mode")
        yield lambda: watcher.execute(LOCKED).fetchone() == (True,)


def test_by_two_threads(database: sb.Database) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        sender = threading.Thread(target=transaction.send, args=(handle, ORDER, b"1"))
        with verbs_held(database.instance.url) as is_waiting:
            sender.start()
            eventually(is_waiting)
            with pytest.raises(sb.InstanceError, match=REFUSED):
                transaction.send(handle, ORDER, b"2")
            with pytest.raises(sb.InstanceError, match=REFUSED):
                transaction.receive(STOCK_QUEUE)
        sender.join()
        transaction.send(handle, ORDER, b"3")  # by one after the other, whoever they are
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"3"]


def test_by_two_tasks(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        database = standard_database(instance)
        handle = begin(database)

        async def two() -> None:
            async with sb.open_async(url, upkeep=None) as opened:
                here = await opened.database(database.name)
                async with here.transaction() as transaction:
                    with verbs_held(url) as is_waiting:
                        sending = asyncio.create_task(transaction.send(handle, ORDER, b"1"))
                        while not is_waiting():
                            await asyncio.sleep(0.01)
                        with pytest.raises(sb.InstanceError, match=REFUSED):
                            await transaction.send(handle, ORDER, b"2")
                    await sending
                    await transaction.send(handle, ORDER, b"3")

        asyncio.run(two())
        assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"3"]
