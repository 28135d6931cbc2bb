"""Threads and tasks that share a transaction run verbs one after the other: a verb may have several statements."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg

import servicebroker as sb
from support import ORDER, STOCK_QUEUE, begin, bodies, standard_database

THREAD_COUNT, SENT_BY_EACH = 3, 60
LOCKED = """
select exists (
  select from pg_locks where not granted and relation = 'servicebroker.conversation_endpoints'::regclass
)
"""


def test_threads_share_a_transaction(database: sb.Database) -> None:
    problems: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(SENT_BY_EACH):
                transaction.send(handle, ORDER, b"%d" % number)
                transaction.receive(STOCK_QUEUE)
        except Exception as problem:
            problems.append(problem)

    with database.transaction() as transaction:
        handle = transaction.begin_dialog("//test/Orders", "//test/Stock", contract="//test/Contract", encryption=False)
        workers = [threading.Thread(target=work, args=(number,)) for number in range(THREAD_COUNT)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert problems == []
    assert database.receive(STOCK_QUEUE) == []


def test_a_verb_waits_for_the_verb_of_another_task(make_instance_url: Callable[..., str]) -> None:
    """Without this wait, the second verb would find the connection in psycopg's pipeline mode."""
    url = make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        database = standard_database(instance)
        handle = begin(database)

        async def two() -> None:
            async with sb.open_async(url, upkeep=None) as opened:
                here = await opened.database(database.name)
                async with here.transaction() as transaction:
                    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watcher:
                        holder.execute("lock table servicebroker.conversation_endpoints in access exclusive mode")
                        first = asyncio.create_task(transaction.send(handle, ORDER, b"1"))
                        while watcher.execute(LOCKED).fetchone() != (True,):
                            await asyncio.sleep(0.01)
                        second = asyncio.create_task(transaction.send(handle, ORDER, b"2"))
                        third = asyncio.create_task(transaction.send(handle, ORDER, b"3"))
                        await asyncio.sleep(0.1)
                        assert [task.done() for task in (first, second, third)] == [False] * 3
                        third.cancel()
                    await asyncio.gather(first, second)
                    await transaction.send(handle, ORDER, b"4")

        asyncio.run(two())
        assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2", b"4"]
