-- What RECEIVE remembers in its session of a queue: below which number of arrival nothing is left (queue.sql, survey).

-- A survey under way: what was drawn when it began, and who was writing then. `held` are transactions that the marks
-- no longer wait for and on whose staying open they depend; `base` are the marks to go back to when one has ended.
create type servicebroker.survey as (
    drawn bigint,
    drawn_at timestamptz,
    looked_at timestamptz,
    writers text[],
    held text[],
    base bigint[],
    patience interval
);

-- The transactions of others that have this table open for writing; a lock is given back only after the commit can
-- be seen. A prepared transaction has changed its number, so there any prepared one counts as all of them.
create function servicebroker.writers(queue regclass) returns text[] language sql as $$
    select array(
        select case when l.pid is null then 'prepared' else l.virtualtransaction end
          from pg_locks l
         where l.locktype = 'relation' and l.relation = queue and l.mode = 'RowExclusiveLock'
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and l.pid is distinct from pg_backend_pid());
$$;

-- Whether every transaction on which the session's marks of the queue depend is still open.
create function servicebroker.marks_hold(queue_id integer) returns boolean language sql as $$
    select (current_setting(format('servicebroker.survey_%s', queue_id))::servicebroker.survey).held
        <@ servicebroker.writers(format('servicebroker.queue_%s', queue_id)::regclass);
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
