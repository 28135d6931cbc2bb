"""Helpers for the tests of T-SQL: the listings of the seeds, and objects for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import Message, TsqlError

SEEDS = Path(__file__).parent.parent.parent / "shared" / "seeds"


def listing(seed: str, begin: str, end: str) -> str:
    """The text of a seed from the first `begin` to before the next `end`; the test is skipped where there is none."""
    for path in sorted(SEEDS.glob(f"{seed}_*.txt")):
        text = path.read_text()
        start = text.index(begin)
        return text[start : text.index(end, start)]
    pytest.skip(f"the listing stands in {SEEDS}, which is not here")


def create_database(instance: sb.Instance, name: str, script: str) -> sb.Database:
    """A new database in which a script has run."""
    database = instance.database(name, create=True)
    database.execute_tsql(script)
    return database


def rows(database: sb.Database, query: str) -> list[tuple[object, ...]]:
    """Return the rows of a SELECT in T-SQL."""
    return database.execute_tsql(query).rows


def one(database: sb.Database, query: str) -> Any:
    """The one value of a SELECT in T-SQL."""
    ((found,),) = rows(database, query)
    return found


def texts(database: sb.Database, script: str) -> list[str]:
    """Return the texts that a script prints."""
    return [message.text for message in database.execute_tsql(script).messages]


def failing(database: sb.Database | Session, script: str) -> TsqlError:
    """The error that a script ends with."""
    with pytest.raises(TsqlError) as caught:
        (database.execute if isinstance(database, Session) else database.execute_tsql)(script)
    return caught.value


def error_number(database: sb.Database | Session, script: str) -> int:
    """The number of the error that a script ends with."""
    return failing(database, script).number


def told(database: sb.Database, script: str) -> list[Any]:
    """Return the output of a script: rows, texts, and numbers of errors."""
    found: list[Any] = []

    def tell(said: object) -> None:
        if isinstance(said, ResultSet):
            found.append(said.rows)
        elif isinstance(said, TsqlError):
            found.append(said.number)
        elif isinstance(said, Message):
            found.append(said.text)

    with Session(database, tell) as session:
        session.run(script)
    return found
