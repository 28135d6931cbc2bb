"""What the daemon shows of itself in views: rows that are there while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from servicebroker.store.running import execute


def show(
    connection: psycopg.Connection[Any], table: str, columns: Sequence[str], rows: Iterable[Iterable[object]]
) -> None:
    """These are the rows now, beside the pid of the session. No commit waits for the disk: the table is unlogged."""
    told = [
        {name: value if isinstance(value, int | None) else str(value) for name, value in zip(columns, row, strict=True)}
        for row in rows
    ]
    with connection.transaction():
        execute(connection, "shown.show.clear", f"delete from servicebroker.{table}")
        if told:
            execute(
                connection,
                "shown.show.fill",
                f"insert into servicebroker.{table} (pid, {', '.join(columns)}) "
                f"select pg_backend_pid(), {', '.join(columns)} "
                f"from jsonb_populate_recordset(null::servicebroker.{table}, $1)",
                Jsonb(told),
            )
