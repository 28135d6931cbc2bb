"""Definitions of the broker's tables, views, functions and triggers: recorded when created, compared later.

A definition is compared as text, in the form that PostgreSQL returns. After a restore, or an upgrade to another major
version, that text may differ. Then nothing is reported until `servicebroker check --mend` has recorded it again.

All queues have the same objects. So they are recorded once, from a pattern queue that `record` creates and drops.
Queues with an unchanged fingerprint (`store/verbs.sql`) are skipped: nobody has touched their objects.
"""

from __future__ import annotations

import functools
from importlib import resources

from servicebroker.store.queue import queue_functions, queue_objects
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_PATTERN_ID = 2_147_483_646  # the id of the pattern queue: no queue has it, and no template contains it
_PATTERN_VIEW = f"pattern_{_PATTERN_ID}"
_ID, _SHOWN = "{id}", "{view}"
# identifies the server that recorded: its major version, and an oid, which differs after a restore
_VERSION_SQL = (
    "hashtext(concat_ws(' ', current_setting('server_version_num')::integer / 10000, "
    "'servicebroker.made'::regclass::oid))"
)


_FINGERPRINT = "servicebroker.fingerprint(integer)"
_WITHOUT_QUEUE, _OF_TOUCHED_QUEUES = "queue_id is null", "queue_id = any ($1::int[])"


@functools.cache
def _objects(which: str) -> str:
    """Return SQL for the existing objects and their definitions. `which` is a condition on `queue_id`."""
    return (resources.files(__package__) / "definitions.sql").read_text().replace("{which}", which)


def record() -> Steps[None]:
    """Record the definitions of all objects. Call this right after they were created."""
    yield SQL("record.delete_made", prepared=False)
    yield Statement(
        "expected_objects.record.insert_made",
        f"{_objects(_WITHOUT_QUEUE)} insert into servicebroker.made (kind, name, definition, server) "
        f"select kind, name, md5(definition), {_VERSION_SQL} from objects where name <> 'servicebroker.made'",
        prepared=False,
    )
    yield queue_objects(_PATTERN_ID, "servicebroker", _PATTERN_VIEW, False)
    yield _note_pattern(False)
    yield queue_functions(_PATTERN_ID, True)
    yield _note_pattern(True)
    rows = yield Statement(  # drop a table before its sequence
        "expected_objects.record.find_pattern",
        "select text from (select 1, format('drop function %s', p.oid::regprocedure) from pg_proc p "
        f"where p.pronamespace = 'servicebroker'::regnamespace and p.proname like '%\\_{_PATTERN_ID}' union all "
        f"select 2, 'drop view servicebroker.{_PATTERN_VIEW}' union all "
        "select 3, format('drop table servicebroker.%I', c.relname) from pg_class c "
        "where c.relnamespace = 'servicebroker'::regnamespace and c.relkind = 'r' "
        f"and c.relname like '%\\_{_PATTERN_ID}' "
        "union all select 4, format('drop sequence if exists servicebroker.%I', c.relname) from pg_class c "
        "where c.relnamespace = 'servicebroker'::regnamespace and c.relkind = 'S' "
        f"and c.relname like '%\\_{_PATTERN_ID}\\_%') as drops (place, text) order by place",
        prepared=False,
    )
    for (drop,) in rows:
        yield Statement("expected_objects.record.drop_pattern", drop, prepared=False)


def _note_pattern(retention: bool) -> Statement:
    """Return the statement that records the objects of the pattern; with `retention`, only its functions."""
    return Statement(
        "expected_objects.note_pattern",
        f"{_objects(f'queue_id = {_PATTERN_ID}')} "
        "insert into servicebroker.made (kind, name, definition, of_queue, retention, server) "
        f"select kind, replace(replace(name, 'servicebroker.{_PATTERN_VIEW}', '{_SHOWN}'), '{_PATTERN_ID}', '{_ID}'), "
        f"replace(replace(definition, 'servicebroker.{_PATTERN_VIEW}', '{_SHOWN}'), '{_PATTERN_ID}', '{_ID}'), true, "
        f"case when kind = 'function' then {str(retention).lower()} end, {_VERSION_SQL} from objects "
        f"where kind = 'function' or {str(not retention).lower()}",
        prepared=False,
    )


def is_foreign() -> Steps[bool]:
    """Check whether another server recorded the definitions (upgrade or restore), so that none can be compared."""
    rows = yield Statement(
        "expected_objects.is_foreign",
        f"select from servicebroker.made where server <> {_VERSION_SQL} limit 1",
        prepared=False,
    )
    return bool(rows)


def changed(most: int) -> Steps[list[tuple[str, str, bool]]]:
    """Return missing and changed objects: kind, name, and whether the object exists. At most `most`.

    Return an empty list if the record `is_foreign`.
    """
    rows = yield _compared((yield from _touched_queues()), f"{_WITHOUT_QUEUE} or {_OF_TOUCHED_QUEUES}", most)
    return [(kind, name, is_there) for kind, name, is_there, _ in rows]


def trust_queues() -> Steps[None]:
    """Store the fingerprint of queues whose definitions are as expected, so that comparisons skip them."""
    if touched := (yield from _touched_queues()):
        rows = yield _compared(touched, _OF_TOUCHED_QUEUES, None)
        yield SQL("trust_queues", (touched, sorted({row[-1] for row in rows})), prepared=False)


def _compared(touched: list[int], which: str, most: int | None) -> Statement:
    """Return the statement that finds missing and changed objects: kind, name, whether the object exists, queue id."""
    return Statement(
        "expected_objects.compared",
        f"{_objects(which)}, expected as (select * from ("
        "select m.kind, m.name, m.definition, null::integer as queue_id from servicebroker.made m "
        f"where not m.of_queue and m.server = {_VERSION_SQL} union all "
        f"select m.kind, replace(m.name, '{_ID}', q.queue_id::text), case when m.kind in ('view', 'trigger') "
        f"then replace(replace(m.definition, '{_ID}', q.queue_id::text), '{_SHOWN}', "
        f"format('%I.%I', q.postgres_schema, q.postgres_name)) "
        f"else replace(m.definition, '{_ID}', q.queue_id::text) end, q.queue_id "
        "from servicebroker.made m cross join servicebroker.queues q "
        f"where m.of_queue and m.server = {_VERSION_SQL} and coalesce(m.retention = q.is_retention_enabled, true)) e "
        f"where {which}) "
        "select e.kind, case when q.queue_id is null then e.name "
        f"else replace(e.name, '{_SHOWN}', format('%I.%I', q.postgres_schema, q.postgres_name)) end, "
        "o.kind is not null, e.queue_id from expected e left join objects o on o.kind = e.kind and o.name = e.name "
        # `=` instead of `is not distinct from`, which PostgreSQL can join only by comparing all pairs
        "and coalesce(o.queue_id, 0) = coalesce(e.queue_id, 0) "
        "left join servicebroker.queues q on q.queue_id = e.queue_id "
        "where case when e.queue_id is null then md5(o.definition) else o.definition end "
        "is distinct from e.definition order by 1, 2 limit $2",
        (touched, most),
        prepared=False,
    )


def _touched_queues() -> Steps[list[int]]:
    """Return the queues whose fingerprint has changed, though perhaps no definition has.

    Without the fingerprint function, return all queues.
    """
    rows = yield Statement(
        "expected_objects.touched_queues.find_fingerprint", f"select to_regprocedure('{_FINGERPRINT}') is not null"
    )
    unless = "where fingerprint is distinct from servicebroker.fingerprint(queue_id)" if rows[0][0] else ""
    rows = yield Statement(
        "expected_objects.touched_queues", f"select queue_id from servicebroker.queues {unless}", prepared=False
    )
    return [queue_id for (queue_id,) in rows]
