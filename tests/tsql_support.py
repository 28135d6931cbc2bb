"""What the tests of T-SQL share: the listings of the seeds, and objects for them."""

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


def rows(database: sb.Database, query: str) -> list[tuple[object, ...]]:
    """What a SELECT in T-SQL returns."""
    return database.execute_tsql(query).rows


def one(database: sb.Database, query: str) -> object:
    """The one value of a SELECT in T-SQL."""
    ((found,),) = rows(database, query)
    return found


def told(database: sb.Database, script: str) -> list[Any]:
    """What a script says: rows, texts, and numbers of errors."""
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
