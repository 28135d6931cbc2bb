-- What RECEIVE remembers in its session of a queue: below which number of arrival nothing is left (queue.sql, survey).

-- A survey under way: what was drawn when it began, and who was writing then. `held` are transactions that the marks
-- no longer wait for and on whose staying open they depend; `base` are the marks to go back to when one has ended.
create type servicebroker.survey as (
    drawn bigint,
    drawn_at timestamptz,
    looked_at timestamptz,
    writers xid8[],
    held xid8[],
    base bigint[],
    patience interval
);

-- The unfinished transactions of others that have this table open for writing. One that is missing has ended so that
-- the next snapshot sees it, or has drawn no number yet: the lock and the id come before the number. pg_locks shows
-- the lower half of an id, that of savepoints too, which are younger.
create function servicebroker.writers(queue regclass) returns xid8[] language sql as $$
    with locks as materialized (select * from pg_locks),
    latest as materialized (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as id)
    select array(
        select min(id + (transactionid::text::bigint - id % 4294967296 + 6442450944) % 4294967296 - 2147483648)::text::xid8
          from locks, latest
         where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted and virtualtransaction in (
               select virtualtransaction from locks
                where locktype = 'relation' and relation = queue and mode = 'RowExclusiveLock'
                  and database = (select oid from pg_database where datname = current_database())
                  and pid is distinct from pg_backend_pid())
         group by virtualtransaction);
$$;

create function servicebroker.unfinished(transactions xid8[]) returns xid8[] language sql as $$
    select array(select id from unnest(transactions) id where pg_xact_status(id) = 'in progress');
$$;

-- Whether every transaction on which the session's marks of the queue depend is still open.
create function servicebroker.marks_hold(queue_id integer) returns boolean language sql as $$
    select held = servicebroker.unfinished(held)
      from (select (current_setting(format('servicebroker.survey_%s', queue_id))::servicebroker.survey).held) survey;
$$;

-- Go back to the marks that depend on nobody. The next time it takes longer until an open transaction is given up.
create function servicebroker.unconditional_marks(queue_id integer) returns bigint[] language plpgsql as $$
declare
    setting text := format('servicebroker.survey_%s', queue_id);
    last servicebroker.survey := current_setting(setting)::servicebroker.survey;
begin
    perform set_config(format('servicebroker.marks_%s', queue_id), last.base::text, false);
    last.held := '{}';
    last.patience := least(last.patience * 2, interval '1 hour');
    last.drawn := null;
    last.writers := null;
    perform set_config(setting, last::text, false);
    return last.base;
end $$;

-- RECEIVE returns other columns; the functions are made again after the migrations.
do $$
declare
    old regprocedure;
begin
    for old in select p.oid from servicebroker.queues q
                 join pg_proc p on p.proname = 'receive_' || q.queue_id
                 join pg_namespace n on n.oid = p.pronamespace and n.nspname = 'servicebroker' loop
        execute 'drop function ' || old;
    end loop;
end $$;

-- Give back the space of a queue that is empty; true when that was done. Waits for nobody. Most of the search is done
-- before the lock: what was drawn by then is decided, since nobody was writing, so that under the lock only what
-- was drawn later is looked for. (A TRUNCATE is seen by older snapshots too: decision 32 says why that is right.)
create function servicebroker.truncate_if_empty(queue_id integer) returns boolean language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    queue text := format('servicebroker.queue_%s', queue_id);
    drawn bigint;
    occupied boolean;
begin
    execute format('select case when is_called then last_value else 0 end from %s_order', queue) into drawn;
    if servicebroker.writers(queue) <> '{}' then
        return false;
    end if;
    execute format('select exists (select from %s)', queue) into occupied;
    if occupied then
        return false;
    end if;
    execute format('lock table %s in access exclusive mode nowait', queue);
    execute format('select exists (select from generate_series(1, 10) as p (level) cross join lateral ('
                   'select from %s m where m.priority = p.level and m.queuing_order > $1 limit 1) m)', queue)
       into occupied using drawn;
    if occupied then
        return false;
    end if;
    execute format('truncate %s', queue);
    return true;
exception
    when lock_not_available then
        return false;
end $$;
