"""The table, the functions and the view of one queue, made from the template `queue.sql`."""

from __future__ import annotations

import functools
import re
from importlib import resources

from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import error_body
from servicebroker.store import locks
from servicebroker.store.statements import Statement

_FUNCTIONS = ("fire_timers", "expire", "survey", "receive", "look")
_COUNTERS = ("receives", "empty_receives")


def queue_objects(queue_id: int, schema: str, view: str, retention: bool) -> list[Statement]:
    """The statements that make a queue: tables, indexes, functions, and the view under its own name."""
    return [
        *(_statement(part, queue_id) for part in ("sequence", "table", "arrival", "group")),
        Statement("queue.queue_objects", f"create schema if not exists {quoted(schema)}", prepared=False),
        *renewed_objects(queue_id, schema, view, retention),
    ]


def renewed_objects(queue_id: int, schema: str, view: str, retention: bool) -> list[Statement]:
    """The statements that make what can be made again while the queue has messages, as a newer version wants it."""
    return [
        *(_statement(part, queue_id) for part in ("retained", "retained_conversation", *_COUNTERS)),
        *queue_functions(queue_id, retention),
        _statement("view", queue_id, schema=quoted(schema), view=quoted(view)),
        *queue_refusals(queue_id, schema, view),
    ]


def queue_functions(queue_id: int, retention: bool) -> list[Statement]:
    """The statements that make, or make anew, the functions of a queue, for RETENTION on or off."""
    delete, deleted = f"delete from servicebroker.queue_{queue_id} g where", "returning"
    slots = {
        "delete": delete,
        "returning": deleted,
        "body": _part("take", queue_id),
        "deleter": "g.xmax",
        "from_gone": "",
    }
    if retention:
        slots = {
            "delete": f"with gone as ({delete}",
            "returning": f"returning g.*, g.xmax as deleter){retain_gone(queue_id)} select",
            "body": _part("keep", queue_id),
            "deleter": "g.deleter",
            "from_gone": "from gone g",
        }
    return [
        # what a template says is right or wrong for all queues alike: the server need not look at each
        Statement("queue.queue_functions.unchecked", "set local check_function_bodies = off", prepared=False),
        *(_statement(part, queue_id, **slots) for part in _FUNCTIONS),
        Statement("queue.queue_functions.checked", "set local check_function_bodies to default", prepared=False),
        _statement("close", queue_id),
    ]


def retain_gone(queue_id: int) -> str:
    """A further part of a statement whose part `gone` deletes received rows: RETENTION keeps them."""
    return _part("retain", queue_id)


def queue_refusals(queue_id: int, schema: str, view: str) -> list[Statement]:
    """The statements that make, or make anew, what keeps others from writing through a queue's view."""
    return [_statement(part, queue_id, schema=quoted(schema), view=quoted(view)) for part in ("refuse", "refuse_all")]


def quoted(name: str) -> str:
    """A PostgreSQL identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def _statement(part: str, queue_id: int, **names: str) -> Statement:
    expired = BrokerError(8489)
    values = {
        "id": str(queue_id),
        "group_lock": str(locks.GROUP),
        "pipeline_lock": str(locks.PIPELINE),
        "expired": f"'\\x{error_body(-expired.number, expired.text).hex()}'::bytea",
        **names,
    }
    return Statement(
        f"queue.{part}", re.sub(r"\{(\w+)\}", lambda slot: values[slot[1]], _template()[part]), prepared=False
    )


def _part(name: str, queue_id: int) -> str:
    """A piece of a statement, without its comment."""
    text = re.sub(r"^--.*\n", "", _template()[name], flags=re.MULTILINE).rstrip()
    return text.replace("{id}", str(queue_id))


@functools.cache
def _template() -> dict[str, str]:
    text = (resources.files(__package__) / "queue.sql").read_text()
    _, *pieces = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))
