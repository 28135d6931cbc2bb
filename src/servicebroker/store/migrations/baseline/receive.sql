-- What RECEIVE needs beside the tables of queues: locks of groups, lists of waiting readers, the survey of consumed
-- messages, TRUNCATE of empty queues.

-- Readers that wait in a RECEIVE: SEND notifies only queues that have one. A dead reader's row stays until another
-- reader of its process number, or the next open, removes it. The price is one NOTIFY too many.
create unlogged table servicebroker.waiting_readers (
    queue_id integer not null,
    pid integer not null,
    is_monitor boolean not null default false,  -- a queue monitor, which is notified as a reader is, and is none
    primary key (queue_id, pid)
);

-- ---------------------------------------------------------------- locks of groups

-- A group stays locked until the outermost transaction ends. PostgreSQL releases a transaction's advisory lock when the
-- savepoint under which it was taken is rolled back. So under a savepoint the session takes the same lock too, and the
-- client releases that one after the transaction (store/session_locks.py). 1396834305 is CONVERSATION_GROUP in
-- store/locks.py.

-- Take the lock for the session. Returns the key, which the client needs for the release.
create function servicebroker.keep_lock(key integer) returns integer language plpgsql as $$
begin
    perform pg_advisory_lock(1396834305, key);
    return key;
end $$;

-- A row for each process number, written only to see which (sub)transaction writes it. No session waits for another.
create unlogged table servicebroker.savepoint_probes (pid integer primary key) with (fillfactor = 50);

-- Wait for a group's lock. Returns the key if the session keeps the lock beyond a savepoint, else null.
create function servicebroker.lock_group(conversation_group uuid) returns integer language plpgsql as $$
declare
    under_savepoint boolean;
begin
    perform pg_advisory_xact_lock(1396834305, uuid_hash(conversation_group));
    insert into servicebroker.savepoint_probes as probe values (pg_backend_pid())
        on conflict (pid) do update set pid = probe.pid
        returning xmin <> pg_current_xact_id()::xid into under_savepoint;
    return case when under_savepoint then servicebroker.keep_lock(uuid_hash(conversation_group)) end;
end $$;

-- ---------------------------------------------------------------- the survey of consumed messages

-- RECEIVE remembers in its session, for each queue and priority, a mark: the number of arrival below which nothing is
-- left (survey in store/queue.sql). A survey moves the marks. The setting servicebroker.survey_<queue> holds one under
-- way.
create type servicebroker.survey as (
    drawn bigint,            -- the last number of arrival when the survey began
    drawn_at timestamptz,
    looked_at timestamptz,
    writers xid8[],          -- transactions that were writing then
    held xid8[],             -- open transactions that the marks no longer wait for, and depend on staying open
    base bigint[],           -- marks to return to when one of `held` has ended
    patience interval        -- how long an open transaction is waited for
);

-- Return the unfinished transactions of other sessions that have this table open for writing. A transaction that is
-- missing has ended, so that the next snapshot sees it, or has drawn no number yet: a writer takes the lock and its id
-- before the number. pg_locks shows the lower half of an id, and ids of savepoints too, which are younger.
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

-- Return whether every transaction that the session's marks of the queue depend on is still open.
create function servicebroker.marks_hold(queue_id integer) returns boolean language sql as $$
    select held = servicebroker.unfinished(held)
      from (select (current_setting(format('servicebroker.survey_%s', queue_id))::servicebroker.survey).held) survey;
$$;

-- Return to the marks that depend on no open transaction, and double the patience for the next one. In a transaction
-- that has written, the marks change for that transaction only, as `survey` does it.
create function servicebroker.unconditional_marks(queue_id integer) returns bigint[] language plpgsql as $$
declare
    setting text := format('servicebroker.survey_%s', queue_id);
    last servicebroker.survey := current_setting(setting)::servicebroker.survey;
    is_local boolean := pg_current_xact_id_if_assigned() is not null;
begin
    perform set_config(format('servicebroker.marks_%s', queue_id), last.base::text, is_local);
    last.held := '{}';
    last.patience := least(last.patience * 2, interval '1 hour');
    last.drawn := null;
    last.writers := null;
    perform set_config(setting, last::text, is_local);
    return last.base;
end $$;

-- Truncate a queue that is empty, without waiting for a lock; returns whether that was done. Most of the search
-- precedes the lock: nobody was writing, so all numbers drawn until then are decided. Under the lock only later numbers
-- are looked for. (Older snapshots see a TRUNCATE too; decision 32 says why that is right.)
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
