"""A group lock lasts until the end of the outermost transaction, also after a rollback to a savepoint."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from portal import connect
from servicebroker.store import locks, session_locks
from servicebroker.store.statements import Statement, Steps
from support import (
    ORDER,
    ORDERS,
    STOCK,
    STOCK_QUEUE,
    Undo,
    begin,
    bodies,
    eventually,
    group_of,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    refused,
    terminate_backend,
    tolerate_rollbacks,
)

pytestmark = pytest.mark.both_apis


def count_locks(database: sb.Database) -> int:
    """Return the number of held group locks in this PostgreSQL database."""
    text = (
        "select count(*) from pg_locks where locktype = 'advisory' and classid = %s and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    return int(query(database, text, locks.CONVERSATION_GROUP)[0][0])


def undo_receive(transaction: sb.JoinedTransaction, kind: str) -> list[sb.Message]:
    """Run RECEIVE in a savepoint that is rolled back, and return the messages."""
    if kind == "savepoint":
        with suppress(Undo), transaction.savepoint():
            messages = transaction.receive(STOCK_QUEUE)
            raise Undo
    elif kind == "psycopg":
        with transaction.connection.transaction(force_rollback=True):
            messages = transaction.receive(STOCK_QUEUE)
    elif kind == "nested":
        with suppress(Undo), transaction.savepoint():
            with transaction.savepoint():
                messages = transaction.receive(STOCK_QUEUE)
            raise Undo
    else:
        transaction.connection.execute("savepoint a")
        messages = transaction.receive(STOCK_QUEUE)
        transaction.connection.execute("rollback to savepoint a")
    return messages


@pytest.mark.sampled(6)
@pytest.mark.feature(68)
@pytest.mark.parametrize("kind", ["savepoint", "psycopg", "nested", "raw"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_rolled_back_savepoint_returns_messages_and_keeps_the_lock(
    database: sb.Database, kind: str, end: str
) -> None:
    database.send_batch(begin(database), ORDER, [b"1", b"2"])
    with suppress(Undo), database.transaction() as transaction:
        first = undo_receive(transaction, kind)
        assert bodies(first) == [b"1", b"2"]
        assert query(database, f"select count(*) from {database.name}_dbo.stockqueue") == [(2,)]
        assert database.receive(STOCK_QUEUE) == []
        assert database.get_conversation_group(STOCK_QUEUE) is None
        assert transaction.receive(STOCK_QUEUE, top=1) == first[:1]
        assert undo_receive(transaction, kind) == first[1:]
        assert database.receive(STOCK_QUEUE) == []
        if end == "rollback":
            raise Undo
    assert count_locks(database) == 0
    assert database.receive(STOCK_QUEUE) == (first if end == "rollback" else first[1:])


@pytest.mark.feature(68)
def test_a_released_savepoint_keeps_no_lock(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"1")
    with database.transaction() as transaction, transaction.savepoint():
        assert bodies(transaction.receive(STOCK_QUEUE)) == [b"1"]
    assert count_locks(database) == 0
    assert not session_locks.may_keep_locks(transaction.connection)
    assert database.receive(STOCK_QUEUE) == []


def test_without_a_savepoint_the_session_keeps_no_lock(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"1")
    with database.transaction() as transaction:
        transaction.begin_conversation_timer(initiator, 5)
        assert transaction.get_conversation_group(STOCK_QUEUE) == group_of(database, target)
        transaction.receive(STOCK_QUEUE)
        begin(transaction)  # type: ignore[arg-type]
        transaction.end_conversation(target)
        assert not session_locks.may_keep_locks(transaction.connection)


@pytest.mark.parametrize("undo", [True, False])
def test_a_deferred_dialog_leaves_no_lock(database: sb.Database, undo: bool) -> None:
    """A conversation without a message is begun before the next statement, here under a savepoint."""
    with database.transaction() as transaction:  # the path of the next conversation is cached
        transaction.send(begin(transaction), ORDER, b"1")  # type: ignore[arg-type]
    with database.transaction() as transaction:
        with suppress(Undo), transaction.savepoint():
            handle = begin(transaction)  # type: ignore[arg-type]
            transaction.connection.execute("select 1")
            assert count_locks(database) == 1
            if undo:
                raise Undo
        assert count_locks(database) == 1
    assert count_locks(database) == 0
    if not undo:
        assert database.end_conversation(handle) is None


@pytest.mark.parametrize("verb", ["begin", "related", "timer", "end", "get", "move"])
def test_every_verb_that_locks_keeps_its_lock(database: sb.Database, verb: str) -> None:
    initiator, target = open_dialog(database)
    other_handle = begin(database)
    database.send(initiator, ORDER, b"1")
    with database.transaction() as transaction:
        do: dict[str, Callable[[], object]] = {
            "begin": lambda: transaction.begin_dialog(ORDERS, STOCK),
            "related": lambda: transaction.begin_dialog(ORDERS, STOCK, related_conversation=other_handle),
            "timer": lambda: transaction.begin_conversation_timer(target, 5),
            "end": lambda: transaction.end_conversation(target),
            "get": lambda: transaction.get_conversation_group(STOCK_QUEUE),
            "move": lambda: transaction.move_conversation(initiator, group_of(database, other_handle)),
        }
        with suppress(Undo), transaction.savepoint():
            do[verb]()
            raise Undo
        assert count_locks(database) == (2 if verb == "move" else 1)
    assert count_locks(database) == 0


def test_a_savepoint_needs_a_transaction(database: sb.Database) -> None:
    with connect(database.instance) as connection:
        joined = database.join(connection)
        with pytest.raises(sb.InstanceError, match="open transaction"), joined.savepoint():
            pass
    with database.transaction() as transaction:
        pass
    with pytest.raises(sb.InstanceError), transaction.savepoint():
        pass


@pytest.mark.sampled(8)
@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("then", ["verb", "other statements", "release", "close"])
def test_a_joined_connection_releases_the_lock(database: sb.Database, autocommit: bool, end: str, then: str) -> None:
    database.send(begin(database), ORDER, b"1")
    with connect(database.instance, autocommit=autocommit) as connection:
        joined = database.join(connection)
        connection.execute("begin" if autocommit else "select 1")
        undo_receive(joined, "raw")
        with pytest.raises(sb.InstanceError, match="Commit or roll back first"):
            joined.release_locks()
        assert database.receive(STOCK_QUEUE) == []
        connection.execute(end)
        assert count_locks(database) == 1  # the end of the transaction is not detected yet
        if then == "other statements":
            connection.execute("begin" if autocommit else "select 1")
            connection.execute("select 1")
            database.join(connection).send(begin(database), ORDER, b"x")
            connection.execute("rollback")
        elif then == "verb":
            joined.send(begin(database), ORDER, b"x")
        elif then == "release":
            joined.release_locks()
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        else:
            connection.close()
            eventually(lambda: count_locks(database) == 0)
        if not connection.closed:
            assert count_locks(database) == 0
            connection.execute("rollback")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_joined_transaction_keeps_its_lock_over_several_verbs(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"1")
    with connect(database.instance) as connection:
        joined = database.join(connection)
        connection.execute("select 1")
        for _ in range(3):
            undo_receive(joined, "raw")
            assert database.receive(STOCK_QUEUE) == []
        connection.commit()
        joined.release_locks()
        assert count_locks(database) == 0


def test_a_commit_that_fails_leaves_no_lock(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"1")
    query_text = "create table {0}_dbo.late (a int unique deferrable initially deferred)"
    with database.instance.connection() as connection:
        connection.execute(query_text.format(database.name))  # type: ignore[call-overload]
    with pytest.raises(psycopg.errors.UniqueViolation), database.transaction() as transaction:
        undo_receive(transaction, "raw")
        transaction.connection.execute(f"insert into {database.name}_dbo.late values (1), (1)")  # type: ignore[call-overload]
    assert count_locks(database) == 0
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_killed_connection_leaves_no_lock(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"1")
    with pytest.raises(sb.InstanceError), database.transaction() as transaction:
        undo_receive(transaction, "raw")
        terminate_backend(transaction.connection)
        transaction.receive(STOCK_QUEUE)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_statement_that_fails_after_taking_the_lock(database: sb.Database) -> None:
    """The session's lock survives the error, although the caller never learned that it was taken."""

    def failing_steps() -> Steps[None]:
        yield Statement(
            "test.broken",
            "select servicebroker.keep_lock(-5), servicebroker.keep_lock(-5), 1 / (pg_backend_pid() * 0)",
            locks=True,
        )

    with database.transaction() as transaction:
        with suppress(psycopg.errors.DivisionByZero), transaction.savepoint():
            transaction._do(failing_steps())
        assert count_locks(database) == 1
    assert count_locks(database) == 0


@pytest.mark.slow
@pytest.mark.feature(68)
def test_eight_readers_with_savepoints_keep_the_order_and_no_lock(
    database: sb.Database, seeded_random: random.Random
) -> None:
    """Each reader sets a savepoint, receives, rolls back, pauses, counts the failure and commits, undisturbed."""
    tolerate_rollbacks(database)
    handles = [begin(database) for _ in range(6)]
    for handle in handles:
        database.send_batch(handle, ORDER, [b"%d" % number for number in range(40)])
    owner: dict[UUID, int] = {}
    taken: dict[UUID, list[int]] = defaultdict(list)
    stolen: list[object] = []
    counts: Counter[str] = Counter()
    with database.instance.connection() as connection:
        connection.execute(
            f"create table {database.name}_dbo.late (a int unique deferrable initially deferred)"  # type: ignore[call-overload]
        )

    def run_transaction(choice: random.Random, me: int) -> bool:
        """Run one transaction. Return False if it received no message."""
        end = choice.choice(["commit", "commit", "commit", "rollback", "kill", "fail"])
        final: list[sb.Message] = []
        mine: list[UUID] = []
        try:
            with database.transaction() as transaction:
                try:
                    with suppress(Undo), transaction.savepoint():
                        messages = transaction.receive(STOCK_QUEUE, top=choice.randint(1, 3))
                        if not messages:
                            return False
                        group = messages[0].conversation_group_id
                        if owner.setdefault(group, me) != me:
                            stolen.append(group)
                        mine.append(group)
                        raise Undo
                    threading.Event().wait(choice.random() / 200)
                    counts["undone"] += 1
                    if choice.random() < 0.5:
                        with transaction.savepoint():
                            final = transaction.receive(STOCK_QUEUE, top=2, conversation_group_id=group)
                            assert final
                    if end == "rollback":
                        raise Undo
                    if end == "fail":
                        # a separate value for each reader, because with a common one the commits deadlock
                        transaction.connection.execute(f"insert into {database.name}_dbo.late values ({me}), ({me})")  # type: ignore[call-overload]
                    if end == "commit":
                        for message in final:
                            taken[message.conversation_handle].append(message.message_sequence_number)
                finally:
                    for group in mine:
                        del owner[group]
                    if end == "kill" and mine:
                        terminate_backend(transaction.connection)
        except (Undo, psycopg.errors.UniqueViolation, sb.InstanceError):
            pass
        counts[end] += 1
        return True

    def read(me: int, seed: float) -> None:
        choice = random.Random(seed)
        idle = 0
        while idle < 20:
            if run_transaction(choice, me):
                idle = 0
            else:
                idle += 1
                threading.Event().wait(0.01)

    futures = [in_thread(partial(read, me, seeded_random.random())) for me in range(8)]
    for future in futures:
        future.result(120)
    assert stolen == []
    for handle in handles:
        assert taken[peer_handle(database, handle)] == list(range(40))
    assert count_locks(database) == 0
    assert min(counts[end] for end in ("commit", "rollback", "kill", "fail")) > 5
    assert database.receive(STOCK_QUEUE) == []


def test_a_refused_get_in_a_savepoint_keeps_no_lock(database: sb.Database) -> None:
    with database.transaction() as transaction, transaction.savepoint(), refused(15151):
        transaction.get_conversation_group("Nowhere")
