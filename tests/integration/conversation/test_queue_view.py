"""The view of a queue is read-only."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

import servicebroker as sb
from support import ORDER, STOCK_QUEUE, begin, bodies, query


@pytest.mark.sampled(10)
@pytest.mark.feature(17)
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("name", [STOCK_QUEUE, "Sales.With [x] \"and\" 'y'"])
@pytest.mark.parametrize(
    "statement",
    [
        "insert into {} (message_body) values ('x')",
        "insert into {} select * from {}",
        "insert into {} default values",
        "update {} set status = 0",
        "update {} set message_body = 'x' where queuing_order < 0",
        "delete from {}",
        "delete from {} where false",
        "copy {} from stdin",
    ],
)
def test_the_view_refuses_writes(database: sb.Database, statement: str, name: str, empty: bool) -> None:
    if name != STOCK_QUEUE:
        database.create_queue("Sales.[With [x]] \"and\" 'y']")
    elif not empty:
        database.send(begin(database), ORDER, b"stays")
    schema, _, own = f"dbo.{name}".rpartition(".") if name == STOCK_QUEUE else ("Sales", ".", name.partition(".")[2])
    view = sql.Identifier(f"{database.name}_{schema}".lower(), own.lower())
    count = sql.SQL("select count(*) from {}").format(view)
    before = query(database, count)  # type: ignore[arg-type]
    with database.instance.connection() as connection, pytest.raises(psycopg.Error) as error:
        text = sql.SQL(statement).format(*[view] * statement.count("{}"))
        if statement.startswith("copy"):
            with connection.cursor() as cursor, cursor.copy(text) as copy:
                copy.write_row(["1"] * 15)
        else:
            connection.execute(text)
    assert error.value.sqlstate == "S0416"
    assert f'Msg 416, Level 16, State 1: The service queue "{own}" cannot be directly updated.' in str(error.value)
    assert query(database, count) == before  # type: ignore[arg-type]


@pytest.mark.feature(17)
def test_the_view_is_read_in_the_same_transaction(database: sb.Database) -> None:
    view = f"{database.name.lower()}_dbo.stockqueue"
    with database.transaction() as transaction:
        transaction.send(
            transaction.begin_dialog("//test/Orders", "//test/Stock", contract="//test/Contract"), ORDER, b"x"
        )
        text = f"select status, message_type_name, message_body from {view}".encode()
        assert transaction.connection.execute(text).fetchall() == [(1, ORDER, b"x")]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]
    with database.instance.connection() as connection, pytest.raises(psycopg.errors.WrongObjectType):
        connection.execute(f"truncate {view}".encode())
