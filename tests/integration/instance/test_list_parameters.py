"""Lists as statement parameters arrive unchanged, whatever they contain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.adapt import Buffer, Dumper

import servicebroker as sb
from servicebroker.store.connection import connect


class Level(StrEnum):
    HIGH = "high"


NOON = datetime(2030, 1, 2, 12, 30, 0, 123, UTC)
LISTS: list[tuple[str, list[Any]]] = [
    ("uuid", []),
    ("uuid", [uuid4(), UUID(int=0), UUID(int=2**128 - 1)]),
    ("uuid", [uuid4(), None]),
    ("int", [0, -1, 2**31 - 1]),
    ("bigint", [2**63 - 1, -(2**63), 1]),
    ("boolean", [True, False]),
    ("boolean", [None, True]),
    ("timestamptz", [NOON, NOON - timedelta(days=9_999)]),
    ("timestamp", [NOON.replace(tzinfo=None)]),
    ("text", [""]),
    ("text", ["a", "", " b ", "null", "NULL", "{c}", "d,e", "ä\U0001f600\u2003", "line\nline"]),
    ("text", ['a"b', "c"]),
    ("text", ['"', '"', '"']),
    ("text", ["a\\b", '","', "{"]),
    ("text", ["a", None]),
    ("text", [Level.HIGH.value, Level.HIGH.value]),
    ("int", [[1, 2], [3, 4]]),
]


def test_lists_arrive_as_they_were_given(database: sb.Database) -> None:
    with connect(database.instance.url) as connection:
        for kind, given in LISTS:
            assert connection.run_prepared(f"select $1::{kind}[]", (given,)) == [(given,)], (kind, given)
        assert connection.run_prepared("select $1::text[]", ([Level.HIGH],)) == [(["high"],)]
        with pytest.raises(psycopg.DataError):
            connection.run_prepared("select $1::text[]", (["a", "b\0"],))


def test_a_dumper_of_the_application_is_used(database: sb.Database) -> None:
    class Loud(Dumper):
        oid = psycopg.adapters.types["text"].oid

        def dump(self, obj: str) -> Buffer:
            return obj.upper().encode()

    with connect(database.instance.url) as connection:
        connection.adapters.register_dumper(str, Loud)
        assert connection.execute("select %s::text[]", (["a", "b"],)).fetchone() == (["A", "B"],)
