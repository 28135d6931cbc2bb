"""Expense reports between offices and accounts payable: how a service lives with messages that it cannot process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import servicebroker as sb

OFFICE, PAYABLE = "//expenses/Office", "//expenses/AccountsPayable"
REPORT, BOOKED = "//expenses/Report", "//expenses/Booked"
CONTRACT = "//expenses/Reporting"
OFFICE_QUEUE, EXPENSE_QUEUE = "OfficeQueue", "ExpenseQueue"
HIGHEST_EMPLOYEE = 9_999

TABLES = """
create schema if not exists expenses_dbo;
create table expenses_dbo.employees (number int primary key);
create table expenses_dbo.items (name text primary key);
create table expenses_dbo.booked (
    employee int not null references expenses_dbo.employees,
    item text not null references expenses_dbo.items,
    amount numeric not null check (amount > 0)
);
insert into expenses_dbo.employees values (1), (2);
insert into expenses_dbo.items values ('hotel'), ('train');
"""


class InvalidReport(Exception):
    """A report that can never be processed."""


class UnknownEmployee(Exception):
    """A report of an employee who is not known yet: the news of a new employee may arrive after the first report."""


class UnknownItem(Exception):
    """Somebody has to decide what it is."""


def policy(failure: sb.Failure) -> sb.Verdict:
    """Choose the verdict for a report whose processing has failed."""
    if isinstance(failure.error, InvalidReport):
        return sb.EndWithError(422, str(failure.error))
    if isinstance(failure.error, UnknownItem):
        return sb.SetAside()
    if isinstance(failure.error, UnknownEmployee) and failure.now - failure.first_failed_at < timedelta(hours=1):
        return sb.Retry(after=60)
    return sb.Retry() if failure.count <= 3 else sb.EndWithError(500, "Unable to process message.")


def add_expense_report(tx: sb.Transaction, messages: list[sb.Message]) -> None:
    """Book a report and answer it; END CONVERSATION when the office has ended it or it has failed."""
    for message in messages:
        if message.message_type_name != REPORT:
            tx.end_conversation(message.conversation_handle)
            continue
        employee, item, amount = read(message.message_body)
        found = tx.connection.execute("select from expenses_dbo.employees where number = %s", (employee,)).fetchone()
        if found is None:
            raise UnknownEmployee(f"There is no employee {employee}.")
        if tx.connection.execute("select from expenses_dbo.items where name = %s", (item,)).fetchone() is None:
            raise UnknownItem(f"Nobody knows what '{item}' is.")
        tx.connection.execute("insert into expenses_dbo.booked values (%s, %s, %s)", (employee, item, amount))
        tx.send(message.conversation_handle, BOOKED, str(amount))


def read(body: bytes | None) -> tuple[int, str, float]:
    """Employee, item and amount of a report: quickly judged, so that no attempt is wasted on what cannot succeed."""
    try:
        report = json.loads(body or b"")
        employee, item, amount = report.get("employee"), report["item"], report["amount"]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidReport("This is not an expense report.") from None
    if employee is None:
        raise InvalidReport("The report names no employee.")
    if not isinstance(employee, int) or not 0 < employee <= HIGHEST_EMPLOYEE:
        raise InvalidReport(f"There can be no employee {employee}.")
    return employee, item, amount


def define(db: sb.Database) -> None:
    """The services and the application's tables."""
    for message_type in (REPORT, BOOKED):
        db.create_message_type(message_type)
    db.create_contract(CONTRACT, {REPORT: "INITIATOR", BOOKED: "TARGET"})
    for queue in (OFFICE_QUEUE, EXPENSE_QUEUE):
        db.create_queue(queue)
    db.create_service(OFFICE, OFFICE_QUEUE)
    db.create_service(PAYABLE, EXPENSE_QUEUE, [CONTRACT])
    with db.transaction() as tx:
        tx.connection.execute(TABLES)


def report(db: sb.Database, **content: object) -> UUID:
    """Send a report in a conversation of its own."""
    with db.transaction() as tx:
        handle = tx.begin_dialog(OFFICE, PAYABLE, contract=CONTRACT)
        tx.send(handle, REPORT, json.dumps(content))
    return handle


def process(db: sb.Database) -> int:
    """Process what has come."""
    return db.process(EXPENSE_QUEUE, add_expense_report, poison=policy)


def answers(db: sb.Database) -> Iterator[tuple[UUID, str]]:
    """Yield the answers of accounts payable to the office, by conversation."""
    while messages := db.receive(OFFICE_QUEUE):
        for message in messages:
            if message.is_error:
                code, text = sb.read_error(message.message_body)
                db.end_conversation(message.conversation_handle)
                yield message.conversation_handle, f"error {code}: {text}"
            elif message.message_body is not None:
                yield message.conversation_handle, f"booked {message.message_body.decode()}"


class Clock:
    """The time, an hour or two ahead when the story asks for it."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        """Now."""
        return datetime.now(UTC) + self.ahead


def passable(folder: str) -> Path:
    """A folder that the server, which is another user where root starts it, may pass."""
    Path(folder).chmod(0o711)
    return Path(folder)


@contextmanager
def scene() -> Iterator[tuple[sb.Database, Clock]]:
    """A fresh instance with the services."""
    clock = Clock()
    with (
        tempfile.TemporaryDirectory(prefix="expenses-", ignore_cleanup_errors=True) as folder,
        sb.open(passable(folder) / "data", clock=clock, upkeep=None) as instance,
    ):
        db = instance.database("Expenses", create=True)
        define(db)
        yield db, clock


def tell() -> dict[str, list[str]]:
    """Send one report of each kind; what accounts payable said of each, in order."""
    with scene() as (db, clock):
        sent = {
            report(db, employee=1, item="hotel", amount=120): "in order",
            report(db, item="train", amount=30): "names no employee",
            report(db, employee=-7, item="train", amount=30): "impossible employee",
            report(db, employee=3, item="train", amount=30): "employee still to come",
            report(db, employee=2, item="hotel", amount=-1): "breaks a rule",
            report(db, employee=2, item="zeppelin", amount=900): "unknown item",
            report(db, employee=2, item="train", amount=31): "in order too",
        }
        told: dict[str, list[str]] = {kind: [] for kind in sent.values()}

        def listen() -> None:
            for handle, answer in answers(db):
                told[sent[handle]].append(answer)

        process(db)
        listen()
        with db.transaction() as tx:  # time passes: the employee arrives, and an operator decides
            tx.connection.execute("insert into expenses_dbo.employees values (3)")
            tx.connection.execute("insert into expenses_dbo.items values ('zeppelin')")
        clock.ahead += timedelta(minutes=2)
        for message in db.set_aside_messages(EXPENSE_QUEUE):
            told["unknown item"].append(f"set aside: {message.error}")
            db.replay_message(message.set_aside_id)
        process(db)
        listen()
        return told


def main() -> None:
    """Print the story."""
    for kind, said in tell().items():
        print(f"{kind:24} {'; '.join(said)}")


if __name__ == "__main__":
    main()
