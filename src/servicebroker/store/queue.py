"""Create the tables, functions and view of a queue from the template `queue.sql`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources

from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import error_body
from servicebroker.model.names import END_DIALOG
from servicebroker.model.states import REPLAY_PROTECTION
from servicebroker.store import locks
from servicebroker.store.sql_files import named_parts
from servicebroker.store.statements import Statement

_FUNCTIONS = (
    "fire_timers",
    "expire",
    "survey",
    "receive",
    "receive_groups",
    "take",
    "end_dialog",
    "finish_dialog",
    "end_remote",
    "look",
)
_PARTS_OF_END = ("ending", "is_endable", "told", "unread", "left", "due", "is_finishable")
_COUNTERS = ("receives", "empty_receives")


def queue_objects(queue_id: int, schema: str, view: str, retention: bool) -> Statement:
    """Return the statement that creates a queue: tables, indexes, functions, and the view under its own name."""
    text = _together(
        *(_text(part, queue_id) for part in ("sequence", "table", "arrival", "group")),
        f"create schema if not exists {quoted(schema)};",
        *_renewal_sql(queue_id, schema, view, retention),
        _fingerprint_sql(queue_id),
    )
    return Statement("queue.queue_objects", text, prepared=False)


def renewed_objects(queue_id: int, schema: str, view: str, retention: bool) -> Statement:
    """Return the statement that recreates what can change while the queue has messages, such as functions."""
    text = _together(*_renewal_sql(queue_id, schema, view, retention))
    return Statement("queue.renewed_objects", text, prepared=False)


def queue_functions(queue_id: int, retention: bool) -> Statement:
    """Return the statement that creates or recreates the functions of a queue, for RETENTION on or off."""
    text = _together(_found_touched(queue_id), *_functions(queue_id, retention), _fingerprint_sql(queue_id))
    return Statement("queue.queue_functions", text, prepared=False)


def _found_touched(queue_id: int) -> str:
    """Return SQL that clears the fingerprint of a queue if its objects have changed.

    New functions repair only a part of these objects, so the next check has to compare all of them.
    """
    return (
        f"update servicebroker.queues set fingerprint = null where queue_id = {queue_id} "
        f"and fingerprint is distinct from servicebroker.fingerprint({queue_id});"
    )


def _fingerprint_sql(queue_id: int) -> str:
    """Return SQL that stores the new fingerprint for `expected_objects.py`, unless it was cleared."""
    return (
        f"update servicebroker.queues set fingerprint = servicebroker.fingerprint({queue_id}) "
        f"where queue_id = {queue_id} and fingerprint is not null;"
    )


def _together(*texts: str) -> str:
    """Join definitions into one statement, to save round trips."""
    return "do $make$ begin\n{}\nend $make$".format("\n".join(texts))


def _renewal_sql(queue_id: int, schema: str, view: str, retention: bool) -> list[str]:
    """Return the SQL of `renewed_objects`."""
    names = {"schema": quoted(schema), "view": quoted(view)}
    return [
        *(
            _text(part, queue_id)
            for part in ("retained", "retained_conversation", "identity", "row_security", *_COUNTERS)
        ),
        *_functions(queue_id, retention),
        *(_text(part, queue_id, **names) for part in ("view", "refuse", "refuse_all")),
    ]


def _functions(queue_id: int, retention: bool) -> list[str]:
    """Return the definitions of the functions. With RETENTION they keep a copy of each deleted row."""
    delete, deleted = f"delete from servicebroker.queue_{queue_id} g where", "returning"
    slots = {
        "delete": delete,
        "returning": deleted,
        "body": _part("taken_body", queue_id),
        "deleter": "g.xmax",
        "from_gone": "",
        "retained": "",
    }
    if retention:
        slots = {
            "delete": f"with gone as ({delete}",
            "returning": f"returning g.*, g.xmax as deleter){retain_rows(queue_id, 'gone')} select",
            "body": _part("kept_body", queue_id),
            "deleter": "g.deleter",
            "from_gone": "from gone g",
            "retained": retain_rows(queue_id, "gone"),
        }
    slots["kept_body"] = _part("kept_body", queue_id)
    slots["first"] = _part("first", queue_id, **slots)
    slots |= {name: _part(name, queue_id) for name in _PARTS_OF_END}
    return [
        # all queues have the same function bodies, so the server need not check them for each queue
        "set local check_function_bodies = off;",
        *(_text(part, queue_id, **slots) for part in _FUNCTIONS),
        "set local check_function_bodies to default;",
        _text("close", queue_id),
    ]


def retain_rows(queue_id: int, deleted: str) -> str:
    """Return a further CTE that stores received rows for RETENTION. The CTE named `deleted` has deleted them."""
    return _part("retain", queue_id, deleted=deleted)


def quoted(name: str) -> str:
    """Return a quoted PostgreSQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _text(part: str, queue_id: int, **names: str) -> str:
    """Return a part of the template, filled in for one queue."""
    values = {
        "id": str(queue_id),
        "group_lock": str(locks.CONVERSATION_GROUP),
        "pipeline_lock": str(locks.PIPELINE_QUEUE),
        "expired": _expiry_error_sql(),
        "end_dialog": END_DIALOG,
        "replay_protection": f"interval '{REPLAY_PROTECTION.total_seconds()} s'",
        **names,
    }
    return re.sub(r"\{(\w+)\}", lambda slot: values[slot[1]], _template()[part])


def _part(name: str, queue_id: int, **names: str) -> str:
    """Return a part that is inserted into another part, without its comment."""
    return re.sub(r"^--.*\n", "", _text(name, queue_id, **names), flags=re.MULTILINE).rstrip()


@functools.cache
def _expiry_error_sql() -> str:
    """Return the body of the Error of an expired conversation, as SQL."""
    expired = BrokerError(8489)
    return f"'\\x{error_body(-expired.number, expired.text).hex()}'::bytea"


@functools.cache
def _template() -> Mapping[str, str]:
    return named_parts((resources.files(__package__) / "queue.sql").read_text())
