"""Names and small functions that the tests share."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.store import locks
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")

ORDERS, STOCK = "//test/Orders", "//test/Stock"  # initiator and target
ORDERS_QUEUE, STOCK_QUEUE = "OrdersQueue", "StockQueue"
CONTRACT = "//test/Contract"
ORDER, REPLY = "//test/Order", "//test/Reply"  # with any body: sent by the initiator, by the target
DOCUMENT, MARK = "//test/Document", "//test/Mark"  # with an XML body, with an empty body: sent by any side
APP = "App"  # a user that is not dbo
EXAMPLES = Path(__file__).parents[1] / "examples"
ROUTE = "AutoCreatedLocal"  # the route that every database has


class Clock:
    """The real time, plus the sum of the test's jumps."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def jump(self, **duration: float) -> None:
        self.ahead += timedelta(**duration)


class Stock:
    """Databases that an instance has from its template: their count, and the numbers of the unused ones in `left`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left: list[int] = []


def stocked_name(number: int) -> str:
    """Return the name of a database that an instance has from its template."""
    return f"Stocked{number}" if number else "Test"


def standard_database(instance: sb.Instance) -> sb.Database:
    """Return the database Test with the standard set of objects. `make_instance_url(1)` has created it already."""
    try:
        return instance.database("Test")
    except sb.BrokerError:
        return define_standard_set(instance.database("Test", create=True))


def define_standard_set(database: sb.Database) -> sb.Database:
    database.create_message_type(ORDER)
    database.create_message_type(REPLY)
    database.create_message_type(DOCUMENT, "WELL_FORMED_XML")
    database.create_message_type(MARK, "EMPTY")
    database.create_contract(CONTRACT, {ORDER: "INITIATOR", REPLY: "TARGET", DOCUMENT: "ANY", MARK: "ANY"})
    database.create_queue(ORDERS_QUEUE)
    database.create_queue(STOCK_QUEUE)
    database.create_service(ORDERS, ORDERS_QUEUE)
    database.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
    return database


def begin(database: sb.Database, to: str = STOCK, **options: Any) -> UUID:
    return database.begin_dialog(ORDERS, to, contract=CONTRACT, **options)


def begin_with(database: sb.Database, *texts: bytes) -> UUID:
    """Begin a conversation and send these orders on it."""
    handle = begin(database)
    for text in texts:
        database.send(handle, ORDER, text)
    return handle


def open_dialog(database: sb.Database) -> tuple[UUID, UUID]:
    """Begin a conversation, and receive its first message. Returns the handles of initiator and target."""
    initiator = begin(database)
    database.send(initiator, ORDER, b"open")
    (message,) = database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, initiator))
    return initiator, message.conversation_handle


def create_endpoint(database: sb.Database, state_code: str) -> tuple[UUID, str]:
    """Create an endpoint in this state. Returns its handle, and the queue of its side."""
    if state_code == "SO":
        return begin(database), ORDERS_QUEUE
    initiator, target = open_dialog(database)
    if state_code == "DI":
        database.end_conversation(target)
    elif state_code == "ER":
        database.end_conversation(target, error=(5, "failed"))
    elif state_code == "CD":
        database.end_conversation(target)
        return target, STOCK_QUEUE
    elif state_code == "DO":
        initiator = begin(database, "//test/nowhere")
        database.send(initiator, ORDER, b"x")
        database.end_conversation(initiator)
    return initiator, ORDERS_QUEUE


def bodies(messages: list[sb.Message]) -> list[bytes | None]:
    return [message.message_body for message in messages]


def errors(messages: list[sb.Message]) -> list[int]:
    """Return the codes of the Error messages among these messages."""
    return [sb.read_error(message.message_body)[0] for message in messages if message.is_error]


def as_user(database: sb.Database, name: str) -> sb.Database:
    """Return the database for another principal."""
    return database.instance.database(database.name, user=name)


def query(database: sb.Database, text: str, *parameters: object) -> list[tuple[Any, ...]]:
    with database.instance.connection() as connection:
        return connection.execute(text, parameters).fetchall()


def state(database: sb.Database, handle: UUID) -> str | None:
    """Return the code of the endpoint's state; None without the endpoint."""
    rows = query(
        database, "select state from servicebroker.conversation_endpoints where conversation_handle = %s", handle
    )
    return rows[0][0] if rows else None


def peer_handle(database: sb.Database, handle: UUID) -> UUID:
    text = "select far_handle from servicebroker.conversation_endpoints where conversation_handle = %s"
    result: UUID = query(database, text, handle)[0][0]
    return result


def group_of(database: sb.Database, handle: UUID) -> UUID:
    text = "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s"
    result: UUID = query(database, text, handle)[0][0]
    return result


def queue_number(database: sb.Database, name: str) -> int:
    text = "select queue_id from servicebroker.queues where database_id = %s and name = %s"
    queue_id: int = query(database, text, database.database_id, name)[0][0]
    return queue_id


@contextmanager
def pipeline_on(database: sb.Database, queue: str = STOCK_QUEUE) -> Iterator[None]:
    """Hold the lock of a pipeline that reads the queue, until the block ends."""
    lock = locks.PIPELINE_QUEUE, queue_number(database, queue)
    with psycopg.connect(database.instance.url, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(%s, %s)", lock)
        try:
            yield
        finally:
            connection.execute("select pg_advisory_unlock(%s, %s)", lock)


def waiting_messages(database: sb.Database) -> int:
    """Return the number of messages of a database in the transmission queue."""
    text = (
        "select count(*) from servicebroker.transmission_queue "
        "join servicebroker.conversation_endpoints using (conversation_handle) where database_id = %s"
    )
    count: int = query(database, text, database.database_id)[0][0]
    return count


def statuses(database: sb.Database) -> set[str]:
    text = (
        "select transmission_status from servicebroker.transmission_queue "
        "join servicebroker.conversation_endpoints using (conversation_handle) where database_id = %s"
    )
    return {status for (status,) in query(database, text, database.database_id)}


def leftovers(database: sb.Database) -> dict[str, int]:
    """Return the number of rows of conversations in the instance, by table. Empty if none is left."""
    tables = ["conversation_endpoints", "conversation_groups", "transmission_queue"]
    tables += ["shared_bodies", "shared_body_readers", "session_answers"]
    for (number,) in query(database, "select queue_id from servicebroker.queues"):
        tables += [f"queue_{number}", f"retained_{number}"]
    counts = {table: query(database, f"select count(*) from servicebroker.{table}")[0][0] for table in tables}
    return {table: count for table, count in counts.items() if count}


def tolerate_rollbacks(database: sb.Database) -> None:
    """Disable the poison message handling of all queues, so that no queue is switched off after five rollbacks."""
    with database.instance.connection() as connection:
        connection.execute(
            "update servicebroker.queues set is_poison_message_handling_enabled = false where database_id = %s",
            (database.database_id,),
        )


class Undo(Exception):
    """Raised to roll back."""


@contextmanager
def let_in(url: str, *roles: str) -> Iterator[None]:
    """Let the owner of the embedded server connect as these roles, too, while the block runs."""
    with psycopg.connect(url, autocommit=True) as connection:
        paths = [Path(_value(connection, f"show {name}_file")) for name in ("hba", "ident")]
        before = [path.read_text() for path in paths]
        hba, ident = paths
        line = next(line for line in before[1].splitlines() if line.strip())
        hba.write_text(f"{before[0]}local all {','.join(roles)} peer map=owner\n")
        ident.write_text(before[1] + "".join(re.sub(r"\S+$", role, line) + "\n" for role in roles))
        connection.execute("select pg_reload_conf()")
        yield
        for path, text in zip(paths, before, strict=True):
            path.write_text(text)
        connection.execute("select pg_reload_conf()")


def as_role(url: str, role: str) -> str:
    """Return the URL of the embedded server for another role."""
    return re.sub(r"user=\w+", f"user={role}", url)


def _value(connection: psycopg.Connection[Any], text: str) -> str:
    row = connection.execute(text).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return str(row[0])


@contextmanager
def rolled_back(database: sb.Database) -> Iterator[sb.Transaction]:
    """Run the block in a transaction, and roll it back."""
    with suppress(Undo), database.transaction() as transaction:
        yield transaction
        raise Undo


@contextmanager
def refused(number: int, *words: str) -> Iterator[pytest.ExceptionInfo[sb.BrokerError]]:
    """Check that the block raises the error with this number, and that its text has these words."""
    with pytest.raises(sb.BrokerError) as error:
        yield error
    assert error.value.number == number, str(error.value)
    for word in words:
        assert word in str(error.value)


def result_or_none(verb: Callable[[], Any], *refusals: int) -> Any:
    """Return the result of a verb; None if it raises an error with one of these numbers."""
    try:
        return verb()
    except sb.BrokerError as refusal:
        if refusal.number not in refusals:
            raise
        return None


def drain(receive: Callable[[], object], done: threading.Event, *refusals: int) -> None:
    """Receive until a RECEIVE that began after `done` was set finds no message. Ignore rollbacks and these errors."""
    while True:
        is_last_pass = done.is_set()
        try:
            messages = receive()
        except Undo:
            continue
        except sb.BrokerError as refusal:
            if refusal.number not in refusals:
                raise
            continue
        if is_last_pass and not messages:
            return


def check_numbers(database: sb.Database, handles: list[UUID], received: dict[UUID, list[int]]) -> None:
    """Check that the targets of these conversations have received every message, once and in order."""
    text = (
        "select far_handle, send_sequence from servicebroker.conversation_endpoints where conversation_handle = any(%s)"
    )
    for target, count in query(database, text, handles):
        assert received[target] == list(range(count))


def in_thread(work: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
    """Start a function in a thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments, **options))
        except BaseException as problem:
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return future


def run_together(*work: Callable[[], Any], seconds: float = 60) -> None:
    """Run functions concurrently, and raise the exception of the first that has failed."""
    futures: list[Future[Any]] = [in_thread(function) for function in work]
    for future in futures:
        future.result(seconds)


def eventually(condition: Callable[[], object], seconds: float = 120) -> None:
    """Poll a condition until it is true, less and less often, because a poll may cost a query."""
    pause, deadline = 0.005, time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition has not become true"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.05)


def run_example(program: str, *arguments: str, folder: Path | None = None) -> list[str]:
    """Run a program of examples/ in a folder, and return the lines that it prints."""
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def is_running(process: int) -> bool:
    """Check whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waiting_reader(database: sb.Database, queue: str = STOCK_QUEUE, *, inside: bool = False) -> Any:
    """Start a reader that waits in RECEIVE, and return its future. `inside`: in an explicit transaction."""

    def read() -> list[sb.Message]:
        if not inside:
            return database.receive(queue, wait=20)
        with database.transaction() as transaction:
            return transaction.receive(queue, wait=20)

    future = in_thread(read)
    text = (
        "select from servicebroker.waiting_readers join servicebroker.queues q using (queue_id) "
        "where q.database_id = %s and q.name = %s"
    )
    eventually(lambda: query(database, text, database.database_id, queue))
    return future


def count_blocked_sessions(database: sb.Database) -> int:
    """Return the number of other sessions of this PostgreSQL database that wait for a lock."""
    text = (
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock' and state = 'active'"
    )
    count: int = query(database, text)[0][0]
    return count


def wait_until_blocked(database: sb.Database, sessions: int = 1) -> None:
    """Wait until this number of other sessions of the PostgreSQL database wait for a lock."""
    eventually(lambda: count_blocked_sessions(database) >= sessions)


def terminate_backend(connection: psycopg.Connection[Any]) -> int:
    """Terminate the server process of a connection, and return its process id."""
    pid = connection.info.backend_pid
    with psycopg.connect(connection.info.dsn, autocommit=True) as second_connection:
        second_connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    return pid


def terminate_listeners(url: str, application: str) -> None:
    """Terminate the sessions of an application that only listen, and wait until new ones have replaced them."""
    listeners = (
        "from pg_stat_activity where datname = current_database() and application_name = %s "
        "and query like '%%listen %%'"
    )
    with psycopg.connect(url, autocommit=True) as connection:

        def listening() -> set[int]:
            return {pid for (pid,) in connection.execute(f"select pid {listeners}", (application,))}

        eventually(listening)
        before = listening()
        connection.execute(f"select pg_terminate_backend(pid, 5000) {listeners}", (application,))
        eventually(lambda: listening() - before)


def surveying_always(text: str) -> str:
    """Return the SQL of a queue's functions (store/queue.sql), changed so that marks advance as often as possible."""
    for usual, eager in (("> 100", "> 0"), ("drawn - 50", "drawn - 2"), ("'10 ms'", "'0 ms'"), ("'100 ms'", "'3 ms'")):
        text = text.replace(usual, eager)
    return text


class StatementCounter:
    """Counts the statements that verbs run on a transaction."""

    def __init__(self, transaction: sb.Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        run = transaction._do

        def counting(steps: Steps[Any]) -> Steps[Any]:
            answer: Any = None
            try:
                while True:
                    statement: Statement = steps.send(answer)
                    self.count += 1
                    answer = yield statement
            except StopIteration as error:
                return error.value

        monkeypatch.setattr(transaction, "_do", lambda steps: run(counting(steps)))

    def count_of(self, verb: Callable[[], Any]) -> int:
        self.count = 0
        verb()
        return self.count
