"""Transactions of SQLAlchemy and Django: messages follow them and their savepoints."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import servicebroker as sb
from support import ORDER, STOCK_QUEUE, Undo, begin, bodies, query, standard_database


def alchemy(url: str, driver: str = "psycopg") -> str:
    """Return the URL in SQLAlchemy's form."""
    return url.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture
def engine(database: sb.Database) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(alchemy(database.instance.url))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table if not exists shipments (item text)"))
        connection.execute(sqlalchemy.text("delete from shipments"))
    yield engine
    engine.dispose()


def write(session: Any, item: str) -> Any:
    return session.execute(sqlalchemy.text("insert into shipments values (:item)"), {"item": item})


def shipments(database: sb.Database) -> list[str]:
    return [item for (item,) in query(database, "select item from shipments order by item")]


def waiting(database: sb.Database) -> list[bytes | None]:
    return bodies(database.receive(STOCK_QUEUE))


def test_a_session_commits_rows_and_messages_together(database: sb.Database, engine: sqlalchemy.Engine) -> None:
    handle = begin(database)
    with Session(engine) as session, session.begin():
        write(session, "teapot")
        database.join(session).send(handle, ORDER, b"teapot")
    with pytest.raises(Undo), Session(engine) as session, session.begin():
        database.join(session).send(handle, ORDER, b"cup")  # the first statement in it
        write(session, "cup")
        raise Undo
    assert shipments(database) == ["teapot"]
    assert waiting(database) == [b"teapot"]


def test_savepoints_of_a_session_are_ours(database: sb.Database, engine: sqlalchemy.Engine) -> None:
    """The session may have run statements before the savepoint or not, at any depth of savepoints."""
    handle = begin(database)
    for first in (True, False):
        with Session(engine) as session, session.begin():
            verbs = database.join(session)
            if first:
                write(session, "kept")
            with pytest.raises(Undo), session.begin_nested():
                verbs.send(handle, ORDER, b"undone")
                raise Undo
            with session.begin_nested():
                verbs.send(handle, ORDER, b"kept")
                with pytest.raises(Undo), session.begin_nested():
                    verbs.send(handle, ORDER, b"undone, too")
                    raise Undo
                with pytest.raises(Undo), verbs.savepoint():
                    verbs.send(handle, ORDER, b"undone by ours")
                    raise Undo
    assert waiting(database) == [b"kept", b"kept"]


def test_a_session_is_joined_for_many_transactions(database: sb.Database, engine: sqlalchemy.Engine) -> None:
    handle = begin(database)
    make = scoped_session(sessionmaker(engine))
    verbs = database.join(make)
    for number in range(3):
        verbs.send(handle, ORDER, b"%d" % number)
        make.commit()
    verbs.send(handle, ORDER, b"undone")
    make.rollback()
    make.remove()
    assert waiting(database) == [b"0", b"1", b"2"]


def test_a_received_group_is_free_when_the_session_has_ended(database: sb.Database, engine: sqlalchemy.Engine) -> None:
    """A RECEIVE under a savepoint locks its group for the server session, which the pool keeps open."""
    database.send(begin(database), ORDER, b"1")
    with Session(engine) as session, session.begin():
        with pytest.raises(Undo), session.begin_nested():
            assert bodies(database.join(session).receive(STOCK_QUEUE)) == [b"1"]
            raise Undo
        assert waiting(database) == []  # the group is locked
    assert waiting(database) == [b"1"]


def test_verbs_join_a_connection_of_sqlalchemy(database: sb.Database, engine: sqlalchemy.Engine) -> None:
    handle = begin(database)
    with engine.begin() as connection:
        with pytest.raises(Undo), connection.begin_nested():
            database.join(connection).send(handle, ORDER, b"undone")
            raise Undo
        database.join(connection).send(handle, ORDER, b"kept")
    assert waiting(database) == [b"kept"]


def in_asyncio(url: str, work: Callable[[sb.AsyncDatabase, UUID], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with sb.open_async(url, upkeep=None) as instance:
            database = await instance.database("Test")
            handle = await database.begin_dialog("//test/Orders", "//test/Stock", contract="//test/Contract")
            await work(database, handle)

    asyncio.run(run())


def test_verbs_join_asyncio_sessions_of_sqlalchemy(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)

    async def work(database: sb.AsyncDatabase, handle: UUID) -> None:
        engine = create_async_engine(alchemy(url), pool_size=1, max_overflow=0)
        async with engine.begin() as connection:
            await connection.execute(sqlalchemy.text("create table shipments (item text)"))
            await database.join(connection).send(handle, ORDER, b"by connection")
        async with AsyncSession(engine) as session, session.begin():
            verbs = database.join(session)
            await write(session, "kept")
            await verbs.send(handle, ORDER, b"kept")
            with pytest.raises(Undo):
                async with session.begin_nested():
                    await verbs.send(handle, ORDER, b"undone")
                    raise Undo
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(Undo):
                async with session.begin_nested():
                    assert len(await database.join(session).receive(STOCK_QUEUE)) == 2
                    raise Undo
            assert await database.receive(STOCK_QUEUE) == []
        assert bodies(await database.receive(STOCK_QUEUE)) == [b"by connection", b"kept"]
        await engine.dispose()

    in_asyncio(url, work)


def test_an_unsupported_session_is_refused_in_one_sentence(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)

    async def work(database: sb.AsyncDatabase, handle: UUID) -> None:
        engine = create_async_engine(alchemy(url, "asyncpg"))
        with pytest.raises(
            sb.InstanceError, match=r"The driver is asyncpg, but join needs psycopg 3.*postgresql\+psycopg://"
        ):
            async with AsyncSession(engine) as session:
                await database.join(session).send(handle, ORDER, b"1")
        await engine.dispose()
        with psycopg.connect(url) as blocking, pytest.raises(TypeError, match="of the same kind as the instance"):
            database.join(blocking)
        with Session() as of_threads, pytest.raises(TypeError, match="of the same kind as the instance"):
            database.join(of_threads)

    in_asyncio(url, work)
    with sb.open(url, upkeep=None) as instance:
        database = standard_database(instance)
        for asynchronous in (AsyncSession(), AsyncConnection(create_async_engine(alchemy(url)))):
            with pytest.raises(TypeError, match="of the same kind as the instance"):
                database.join(asynchronous)
        for wrong in (None, 7, "postgresql://", object(), database):
            with pytest.raises(TypeError, match="join takes a connection of psycopg 3, or a session") as error:
                database.join(wrong)
            assert isinstance(error.value, sb.ServiceBrokerError)


DJANGO = """
import sys
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

import servicebroker as sb

url = sys.argv[1]
parts = conninfo_to_dict(url)
settings.configure(USE_TZ=sys.argv[2] == "tz", TIME_ZONE="Europe/Berlin", DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"]}})
django.setup()
from django.db import connection, connections, transaction

with sb.open(url) as instance:
    db = instance.database("Test")
    handle = db.begin_dialog("//test/Orders", "//test/Stock", contract="//test/Contract")
    verbs = db.join(connection)
    with transaction.atomic():
        verbs.send(handle, "//test/Order", b"1")
        try:
            with transaction.atomic():
                verbs.send(handle, "//test/Order", b"undone")
                raise KeyError
        except KeyError:
            pass
        verbs.send(handle, "//test/Order", b"2")
    try:
        with transaction.atomic():
            db.join(connections["default"]).send(handle, "//test/Order", b"undone")
            raise KeyError
    except KeyError:
        pass
    verbs.send(handle, "//test/Order", b"3")  # in autocommit mode, by itself
    with transaction.atomic():
        messages = verbs.receive("StockQueue")
        print([message.message_body for message in messages], messages[0].message_enqueue_time.tzinfo is not None)
    connection.close()
"""


@pytest.mark.parametrize("zone", ["tz", "naive"])
def test_verbs_join_a_transaction_of_django(make_instance_url: Callable[..., str], zone: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", DJANGO, make_instance_url(1), zone], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert result.stdout == "[b'1', b'2', b'3'] True\n"
