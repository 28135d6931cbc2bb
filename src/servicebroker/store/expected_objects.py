"""Record the definitions of the schema's tables, views, functions and triggers, to find objects that were changed.

**The problem.** An administrator may drop an index or replace a function of the schema by hand. `servicebroker check`
and `doctor` report such objects. The comparison must stay fast with thousands of queues of more than ten objects each.

**The flow.** A migration calls `record`, which writes each definition as PostgreSQL prints it (`definitions.sql`) into
the table `servicebroker.made`. Later `find_changed_objects` lets PostgreSQL print the definitions again, and compares
the texts.

**The rules.**

* All queues have the same objects, so these are recorded once. `record` creates a temporary "pattern queue", records
  the definitions with the placeholders `{id}` and `{view}`, and drops it. Functions are recorded twice, for RETENTION
  off and on.
* A queue whose fingerprint is unchanged is skipped. The fingerprint (`servicebroker.fingerprint` in `verbs.sql`) comes
  from rows of system catalogs that every change of the queue's objects updates. `trust_queues` stores it after a
  comparison.
* Another major version of PostgreSQL may print a definition differently, and a restore changes the oids. In both cases
  `is_foreign` returns True, and nothing is reported until `servicebroker check --mend` has recorded the definitions
  again.
"""

from __future__ import annotations

import functools
from importlib import resources

from servicebroker.store.queue import queue_functions, queue_objects
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_PATTERN_ID = 2_147_483_646  # the id of the pattern queue: no real queue has it, and no template contains it
_PATTERN_VIEW = f"pattern_{_PATTERN_ID}"
_ID_SLOT, _VIEW_SLOT = "{id}", "{view}"
# SQL for a hash that identifies the server: of its major version, and of an oid, which a restore changes
_SERVER_SQL = (
    "hashtext(concat_ws(' ', current_setting('server_version_num')::integer / 10000, "
    "'servicebroker.made'::regclass::oid))"
)


_FINGERPRINT = "servicebroker.fingerprint(integer)"
_WITHOUT_QUEUE, _OF_TOUCHED_QUEUES = "queue_id is null", "queue_id = any ($1::int[])"


@functools.cache
def _objects(which: str) -> str:
    """Return a WITH clause with the CTE `objects`, the existing objects. `which`: SQL on `queue_id`."""
    return (resources.files(__package__) / "definitions.sql").read_text().replace("{which}", which)


def record() -> Steps[None]:
    """Record the definitions of all objects. Call this in the transaction that has created them."""
    yield SQL("record.delete_made", prepared=False)
    yield Statement(
        "expected_objects.record.insert_made",
        f"{_objects(_WITHOUT_QUEUE)} insert into servicebroker.made (kind, name, definition, server) "
        f"select kind, name, md5(definition), {_SERVER_SQL} from objects where name <> 'servicebroker.made'",
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
    """Return the statement that records the objects of the pattern queue. With `retention`: only its functions."""
    return Statement(
        "expected_objects.note_pattern",
        f"{_objects(f'queue_id = {_PATTERN_ID}')} "
        "insert into servicebroker.made (kind, name, definition, of_queue, retention, server) "
        f"select kind, {_with_slots('name')}, {_with_slots('definition')}, true, "
        f"case when kind = 'function' then {str(retention).lower()} end, {_SERVER_SQL} from objects "
        f"where kind = 'function' or {str(not retention).lower()}",
        prepared=False,
    )


def _with_slots(column: str) -> str:
    """Return SQL that replaces the view and the number of the pattern queue in a column by placeholders."""
    return f"replace(replace({column}, 'servicebroker.{_PATTERN_VIEW}', '{_VIEW_SLOT}'), '{_PATTERN_ID}', '{_ID_SLOT}')"


def is_foreign() -> Steps[bool]:
    """Return True if another server has recorded the definitions (before an upgrade or restore)."""
    rows = yield Statement(
        "expected_objects.is_foreign",
        f"select from servicebroker.made where server <> {_SERVER_SQL} limit 1",
        prepared=False,
    )
    return bool(rows)


def find_changed_objects(most: int) -> Steps[list[tuple[str, str, bool]]]:
    """Return at most `most` missing and changed objects as (kind, name, exists).

    The list is empty if `is_foreign` returns True.
    """
    rows = yield _comparison_statement(
        (yield from _touched_queues()), f"{_WITHOUT_QUEUE} or {_OF_TOUCHED_QUEUES}", most
    )
    return [(kind, name, is_there) for kind, name, is_there, _ in rows]


def trust_queues() -> Steps[None]:
    """Store the fingerprints of the queues whose objects are unchanged, so that later comparisons skip these queues."""
    if touched := (yield from _touched_queues()):
        rows = yield _comparison_statement(touched, _OF_TOUCHED_QUEUES, None)
        changed_queues = sorted({row[-1] for row in rows})
        yield SQL("trust_queues", (touched, changed_queues), prepared=False)


def _comparison_statement(touched: list[int], which: str, most: int | None) -> Statement:
    """Return the statement that finds missing and changed objects: (kind, name, exists, queue id)."""
    return Statement(
        "expected_objects.comparison_statement",
        f"{_objects(which)}, expected as (select * from ("
        "select m.kind, m.name, m.definition, null::integer as queue_id from servicebroker.made m "
        f"where not m.of_queue and m.server = {_SERVER_SQL} union all "
        f"select m.kind, replace(m.name, '{_ID_SLOT}', q.queue_id::text), case when m.kind in ('view', 'trigger') "
        f"then replace(replace(m.definition, '{_ID_SLOT}', q.queue_id::text), '{_VIEW_SLOT}', "
        f"format('%I.%I', q.postgres_schema, q.postgres_name)) "
        f"else replace(m.definition, '{_ID_SLOT}', q.queue_id::text) end, q.queue_id "
        "from servicebroker.made m cross join servicebroker.queues q "
        f"where m.of_queue and m.server = {_SERVER_SQL} and coalesce(m.retention = q.is_retention_enabled, true)) e "
        f"where {which}) "
        "select e.kind, case when q.queue_id is null then e.name "
        f"else replace(e.name, '{_VIEW_SLOT}', format('%I.%I', q.postgres_schema, q.postgres_name)) end, "
        "o.kind is not null, e.queue_id from expected e left join objects o on o.kind = e.kind and o.name = e.name "
        # `=` instead of `is not distinct from`, for which PostgreSQL has no hash or merge join
        "and coalesce(o.queue_id, 0) = coalesce(e.queue_id, 0) "
        "left join servicebroker.queues q on q.queue_id = e.queue_id "
        "where case when e.queue_id is null then md5(o.definition) else o.definition end "
        "is distinct from e.definition order by 1, 2 limit $2",
        (touched, most),
        prepared=False,
    )


def _touched_queues() -> Steps[list[int]]:
    """Return the ids of the queues whose fingerprint differs from the stored one. Their objects may have changed.

    Returns all queues if the function `servicebroker.fingerprint` is missing.
    """
    rows = yield Statement(
        "expected_objects.touched_queues.find_fingerprint", f"select to_regprocedure('{_FINGERPRINT}') is not null"
    )
    unless = "where fingerprint is distinct from servicebroker.fingerprint(queue_id)" if rows[0][0] else ""
    rows = yield Statement(
        "expected_objects.touched_queues", f"select queue_id from servicebroker.queues {unless}", prepared=False
    )
    return [queue_id for (queue_id,) in rows]
