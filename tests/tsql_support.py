"""Helpers for tests of T-SQL: listings of the seed documents, results and errors of scripts."""

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
    """Return the text of a seed document from `begin` to before the next `end`. Without the document, skip the test."""
    for path in sorted(SEEDS.glob(f"{seed}_*.txt")):
        text = path.read_text()
        start = text.index(begin)
        return text[start : text.index(end, start)]
    pytest.skip(f"the listing stands in {SEEDS}, which is not here")


def create_database(instance: sb.Instance, name: str, script: str) -> sb.Database:
    """Create a database, and run a script in it."""
    database = instance.database(name, create=True)
    database.execute_tsql(script)
    return database


def rows(database: sb.Database, query: str) -> list[tuple[object, ...]]:
    """Return the rows of a SELECT in T-SQL."""
    return database.execute_tsql(query).rows


def scalar(database: sb.Database, query: str) -> Any:
    """Return the only value of a SELECT in T-SQL."""
    ((value,),) = rows(database, query)
    return value


def texts(database: sb.Database, script: str) -> list[str]:
    """Return the texts that a script prints."""
    return [message.text for message in database.execute_tsql(script).messages]


def failing(database: sb.Database | Session, script: str) -> TsqlError:
    """Run a script that fails, and return its error."""
    with pytest.raises(TsqlError) as error:
        (database.execute if isinstance(database, Session) else database.execute_tsql)(script)
    return error.value


def error_number(database: sb.Database | Session, script: str) -> int:
    """Run a script that fails, and return the number of its error."""
    return failing(database, script).number


def output_of(database: sb.Database, script: str) -> list[Any]:
    """Run a script, and return its output: rows, printed texts, and numbers of errors."""
    outputs: list[Any] = []

    def record(output: object) -> None:
        if isinstance(output, ResultSet):
            outputs.append(output.rows)
        elif isinstance(output, TsqlError):
            outputs.append(output.number)
        elif isinstance(output, Message):
            outputs.append(output.text)

    with Session(database, record) as session:
        session.run(script)
    return outputs
