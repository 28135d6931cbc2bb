"""Adoption: make a restored copy of an instance usable on its new server (decision 350).

Stored transaction ids are those of the old server. They are replaced by one that the new server knows.
"""

from __future__ import annotations

from servicebroker.engine.catalog.network_endpoints import STARTED, STATES, STOPPED
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.store.queue import quoted
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


def adopt(*, beside: bool) -> Steps[int]:
    """Replace all stored transaction ids by one of this server, and record that this database is the original now.

    With `beside` the original continues: the copy becomes another instance, and its endpoint is stopped, because it has
    the original's address and port. Returns the number of changed rows. The caller has called `check_alone`.
    """
    stamps = yield SQL("adopt.find_columns")
    changed = 0
    for table, column, _ in stamps:
        rows = yield Statement(
            "adoption.adopt.renew_stamps",
            f"with changed as (update servicebroker.{quoted(table)} set {quoted(column)} = pg_current_xact_id() "
            f"where {quoted(column)} > '0' returning 1) select count(*) from changed",
            prepared=False,
        )
        changed += rows[0][0]
    unlogged = yield SQL("adopt.find_unlogged")
    for (table,) in unlogged:  # rows of processes of the original
        yield Statement("adoption.adopt.truncate", f"truncate servicebroker.{quoted(table)}", prepared=False)
    yield _catch_up_sequences()
    if beside:
        yield SQL("adopt.update_instance")
        yield SQL("adopt.stop_endpoint", (STATES.index(STOPPED), STATES.index(STARTED)))
    yield SQL("adopt.settle")
    return changed


def _catch_up_sequences() -> Statement:
    """Set each sequence to at least the highest number in the columns that it fills.

    Logical replication copies rows, but not the state of sequences.
    """
    return Statement(
        "adoption.catch_up_sequences",
        "do $catch_up$ declare one record; last bigint; begin for one in "
        "select s.oid, string_agg(format('select max(%I) as number from %s where %I >= %s', a.attname, "
        "a.attrelid::regclass, a.attname, case s.relname when 'object_ids' "
        f"then {names.FIRST_USER_ID} else 0 end), ' union all ') as columns "
        "from pg_class s join pg_depend d on d.refclassid = 'pg_class'::regclass and (d.refobjid = s.oid "
        "and d.classid = 'pg_attrdef'::regclass or d.objid = s.oid and d.classid = 'pg_class'::regclass "
        "and d.deptype = 'i') "
        "left join pg_attrdef f on f.oid = d.objid and d.classid = 'pg_attrdef'::regclass "
        "join pg_attribute a on a.attrelid = coalesce(f.adrelid, d.refobjid) "
        "and a.attnum = coalesce(f.adnum, d.refobjsubid) "
        "where s.relkind = 'S' and s.relnamespace = 'servicebroker'::regnamespace group by s.oid, s.relname loop "
        "execute format('select max(number) from (%s) c', one.columns) into last; "
        "perform setval(one.oid, last) where last > coalesce(pg_sequence_last_value(one.oid), 0); "
        "end loop; "
        # sequences for built-in objects are in no default
        "select max(number) into last from (select queue_id as number from servicebroker.queues union all "
        "select service_id from servicebroker.services) c "
        f"where number < {names.FIRST_USER_ID}; "
        "perform setval('servicebroker.system_ids', last) "
        "where last > coalesce(pg_sequence_last_value('servicebroker.system_ids'), 0); end $catch_up$",
        prepared=False,
    )


def check_alone() -> Steps[None]:
    """Raise if other sessions use the instance. Waits up to two seconds for sessions that are ending.

    Raises:
        InstanceError: other sessions use it.
    """
    count = 0
    for _ in range(20):
        others = yield SQL("check_alone.count_sessions")
        count = others[0][0]
        if not count:
            return
        yield SQL("check_alone.wait")
    raise InstanceError(
        f"{count} other sessions use this PostgreSQL database: stop servicebroker serve and every application first; "
        "an instance is adopted before it is used."
    )


def databases() -> Steps[list[str]]:
    """Return the broker databases, by name."""
    rows = yield SQL("databases")
    return [name for (name,) in rows]
