"""SET TRANSACTION ISOLATION LEVEL: what each level prevents other sessions from doing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import servicebroker as sb
from servicebroker.tsql.session import Session

BOOK = """
SET TRANSACTION ISOLATION LEVEL {level}
BEGIN TRANSACTION
IF NOT EXISTS (SELECT 1 FROM Bookings WHERE Seat = @seat)
BEGIN
    WAITFOR DELAY '00:00:00.050'
    INSERT Bookings VALUES (@seat)
END
COMMIT
"""


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    database = instance.database("Isolation", create=True)
    database.execute_tsql(
        """
        CREATE TABLE Bookings (Seat int)
        CREATE TABLE Stock (Id int PRIMARY KEY, Amount int); INSERT Stock VALUES (1, 5)
        GO
        CREATE VIEW Taken AS SELECT Seat FROM Bookings
        GO
        CREATE QUEUE Inbox; CREATE SERVICE Box ON QUEUE Inbox ([DEFAULT])
        """
    )
    return database


@pytest.fixture
def sessions(shop: sb.Database) -> Iterator[tuple[Session, Session]]:
    with Session(shop) as first, Session(shop) as second:
        yield first, second


def count(shop: sb.Database, seat: int) -> object:
    return shop.execute_tsql("SELECT COUNT(*) FROM Bookings WHERE Seat = @seat", {"seat": seat}).rows[0][0]


@pytest.mark.parametrize(("level", "seat"), [("REPEATABLE READ", 1), ("SERIALIZABLE", 2)])
def test_one_seat_is_not_booked_twice(shop: sb.Database, level: str, seat: int) -> None:
    start = threading.Barrier(4)

    def book() -> None:
        start.wait()
        shop.execute_tsql(BOOK.format(level=level), {"seat": seat})

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(book) for _ in range(4)]:
            done.result()
    assert count(shop, seat) == 1


def test_rows_read_by_a_serializable_transaction_are_locked(sessions: tuple[Session, Session]) -> None:
    reader, writer = sessions
    reader.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE BEGIN TRANSACTION SELECT COUNT(*) FROM Taken")
    with pytest.raises(sb.TsqlError) as error:
        writer.execute("SET LOCK_TIMEOUT 50 INSERT Bookings VALUES (10)")
    assert error.value.number == 1222
    assert writer.execute("SELECT COUNT(*) FROM Bookings WHERE Seat = 10").rows == [(0,)]  # a reader goes on
    reader.execute("COMMIT")
    writer.execute("INSERT Bookings VALUES (10)")


def test_rows_read_under_read_committed_can_be_changed(sessions: tuple[Session, Session]) -> None:
    reader, writer = sessions
    reader.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED BEGIN TRANSACTION SELECT COUNT(*) FROM Bookings")
    writer.execute("INSERT Bookings VALUES (11)")
    assert reader.execute("SELECT COUNT(*) FROM Bookings WHERE Seat = 11 ROLLBACK").rows == [(1,)]


def test_snapshot_shows_one_state_and_refuses_to_overwrite_a_newer_one(sessions: tuple[Session, Session]) -> None:
    one, second = sessions
    one.execute("SET TRANSACTION ISOLATION LEVEL SNAPSHOT BEGIN TRANSACTION SELECT Amount FROM Stock")
    second.execute("UPDATE Stock SET Amount = Amount - 1")
    ((seen,),) = one.execute("SELECT Amount FROM Stock").rows
    ((now,),) = second.execute("SELECT Amount FROM Stock").rows
    assert seen == now + 1
    with pytest.raises(sb.TsqlError) as error:
        one.execute("UPDATE Stock SET Amount = Amount - 1")
    assert error.value.number == 3960
    assert one.execute("SELECT @@TRANCOUNT").rows == [(0,)]


def test_two_that_wait_for_each_other_get_1205(sessions: tuple[Session, Session]) -> None:
    one, second = sessions
    one.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE BEGIN TRANSACTION SELECT COUNT(*) FROM Bookings")
    second.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE BEGIN TRANSACTION SELECT COUNT(*) FROM Stock")
    numbers = []

    def go_on(session: Session, text: str) -> None:
        try:
            session.execute(text)
        except sb.TsqlError as error:
            numbers.append(error.number)

    waiting = threading.Thread(target=go_on, args=(one, "SELECT COUNT(*) FROM Stock COMMIT"))
    waiting.start()
    go_on(second, "SELECT COUNT(*) FROM Bookings COMMIT")
    waiting.join()
    assert numbers == [1205]


MESSAGES = """
DECLARE @h uniqueidentifier
BEGIN DIALOG @h FROM SERVICE Box TO SERVICE 'Box' WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h ('one');
"""


@pytest.mark.parametrize("level", ["READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_receive_sees_messages_sent_after_the_transaction_began(
    shop: sb.Database, sessions: tuple[Session, Session], level: str
) -> None:
    reader, _ = sessions
    reader.execute(f"SET TRANSACTION ISOLATION LEVEL {level} BEGIN TRANSACTION SELECT COUNT(*) FROM Inbox, Bookings")
    shop.execute_tsql(MESSAGES)
    found = reader.execute("RECEIVE CAST(message_body AS varchar(9)) FROM Inbox COMMIT")
    assert found.rows == [("one",)]


@pytest.mark.parametrize("statement", ["RECEIVE * FROM Inbox", "CREATE QUEUE Other", MESSAGES])
def test_the_broker_is_refused_in_a_snapshot(sessions: tuple[Session, Session], statement: str) -> None:
    session, _ = sessions
    with pytest.raises(sb.TsqlError) as error:
        session.execute("SET TRANSACTION ISOLATION LEVEL SNAPSHOT BEGIN TRANSACTION SELECT 1 " + statement)
    assert error.value.number == 40515
    session.execute("ROLLBACK RECEIVE TOP (0) * FROM Inbox")  # by itself it is not part of a snapshot


def test_a_level_ends_with_its_procedure(sessions: tuple[Session, Session], shop: sb.Database) -> None:
    shop.execute_tsql("CREATE PROCEDURE Careful AS SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    session, writer = sessions
    session.execute("EXEC Careful BEGIN TRANSACTION SELECT COUNT(*) FROM Bookings")
    writer.execute("INSERT Bookings VALUES (12)")
    session.execute("ROLLBACK")


def test_a_transaction_that_has_begun_becomes_no_snapshot(sessions: tuple[Session, Session]) -> None:
    session, _ = sessions
    early = "BEGIN TRANSACTION SET TRANSACTION ISOLATION LEVEL SNAPSHOT SELECT Amount FROM Stock ROLLBACK"
    session.execute(early)  # no earlier read
    session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED BEGIN TRANSACTION SELECT Amount FROM Stock")
    with pytest.raises(sb.TsqlError) as error:
        session.execute("SET TRANSACTION ISOLATION LEVEL SNAPSHOT")
    assert error.value.number == 3951
