"""A fork inside an open transaction: the child gets an error, and the parent's transaction continues."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import psycopg
import pytest

import servicebroker as sb
from support import ORDER, ORDERS_QUEUE, REPLY, STOCK_QUEUE, begin, bodies, query

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def verb(tx: sb.Transaction) -> None:
    with pytest.raises(sb.InstanceError, match="was forked"):
        tx.receive(STOCK_QUEUE)


def statement(tx: sb.Transaction) -> None:
    with pytest.raises(psycopg.Error):
        tx.connection.execute("select 1")


def raises(tx: sb.Transaction) -> None:
    raise LookupError


def exits(tx: sb.Transaction) -> None:
    sys.exit(3)


def closes(tx: sb.Transaction) -> None:
    tx.connection.close()


def rolls_back(tx: sb.Transaction) -> None:
    with pytest.raises(psycopg.Error):
        tx.connection.rollback()


def do_nothing(tx: sb.Transaction) -> None:
    pass


CHILDREN: list[tuple[Callable[[sb.Transaction], None], type[BaseException]]] = [
    (do_nothing, sb.InstanceError),
    (verb, sb.InstanceError),
    (statement, sb.InstanceError),
    (rolls_back, sb.InstanceError),
    (closes, sb.InstanceError),
    (raises, LookupError),
    (exits, SystemExit),
]


@pytest.mark.parametrize(("child", "told"), CHILDREN, ids=[child.__name__ for child, _ in CHILDREN])
def test_a_child_that_leaves_the_block_undoes_nothing(
    database: sb.Database, child: Callable[[sb.Transaction], None], told: type[BaseException]
) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"order")
    process = 0
    ended: BaseException | None = None
    try:
        with database.transaction() as tx:
            (message,) = tx.receive(STOCK_QUEUE)
            process = os.fork()
            if process == 0:
                child(tx)
            else:
                _, status = os.waitpid(process, 0)
                tx.send(message.conversation_handle, REPLY, b"done")
                (alive,) = tx.connection.execute("select 1").fetchone() or (0,)
                assert alive == 1
    except BaseException as problem:
        ended = problem
        if process:
            raise
    finally:
        if process == 0:  # in the child, which no longer runs the test
            os._exit(7 if type(ended) is told else 1)
    assert os.waitstatus_to_exitcode(status) == 7, f"the child was to end by {told.__name__}"
    assert database.receive(STOCK_QUEUE) == []
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"done"]


def test_a_handler_that_forks_loses_nothing(database: sb.Database) -> None:
    """The child's return into `process` changes nothing in the parent."""
    database.send(begin(database), ORDER, b"1")
    database.send(begin(database), ORDER, b"2")
    parent = os.getpid()
    children: list[int] = []

    def handler(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        tx.connection.execute("create table if not exists forks (body bytea)")
        tx.connection.execute("insert into forks values (%s)", (messages[0].message_body,))
        children.append(os.fork())

    try:
        done = database.process(STOCK_QUEUE, handler, top=1, poison=lambda failure: sb.Ignore())
    except BaseException:
        if os.getpid() == parent:
            raise
    finally:
        if os.getpid() != parent:
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    assert done == 2
    assert query(database, "select body from forks order by body") == [(b"1",), (b"2",)]
