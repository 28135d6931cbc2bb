"""The table, the functions and the view of one queue, made from the template `queue.sql`."""

from __future__ import annotations

import functools
import re
from importlib import resources

from psycopg import sql

from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import error_body
from servicebroker.store import locks
from servicebroker.store.statements import Statement

_FUNCTIONS = ("fire_timers", "expire", "receive")


def queue_objects(queue_id: int, schema: str, view: str) -> list[Statement]:
    """The statements that make a queue: table, indexes, functions, and the view under its own name."""
    return [
        *(_statement(part, queue_id) for part in ("sequence", "table", "arrival", "group")),
        *queue_functions(queue_id),
        Statement(f"create schema if not exists {quoted(schema)}", prepared=False),
        _statement("view", queue_id, schema=quoted(schema), view=quoted(view)),
        *queue_refusals(queue_id, schema, view),
    ]


def queue_functions(queue_id: int) -> list[Statement]:
    """The statements that make, or make anew, the functions of a queue."""
    return [_statement(part, queue_id) for part in _FUNCTIONS]


def queue_refusals(queue_id: int, schema: str, view: str) -> list[Statement]:
    """The statements that make, or make anew, what keeps others from writing through a queue's view."""
    return [_statement(part, queue_id, schema=quoted(schema), view=quoted(view)) for part in ("refuse", "refuse_all")]


def quoted(name: str) -> str:
    """A PostgreSQL identifier, quoted."""
    return sql.Identifier(name).as_string(None)


def _statement(part: str, queue_id: int, **names: str) -> Statement:
    expired = BrokerError(8489)
    values = {
        "id": str(queue_id),
        "group_lock": str(locks.GROUP),
        "pipeline_lock": str(locks.PIPELINE),
        "expired": f"'\\x{error_body(-expired.number, expired.text).hex()}'::bytea",
        **names,
    }
    return Statement(re.sub(r"\{(\w+)\}", lambda slot: values[slot[1]], _template()[part]), prepared=False)


@functools.cache
def _template() -> dict[str, str]:
    text = (resources.files(__package__) / "queue.sql").read_text()
    _, *pieces = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))
