-- PostgreSQL frees an advisory lock of the transaction when the savepoint it was taken under is rolled back; the
-- group must stay locked until the outermost transaction ends. Under a savepoint the session takes the same lock
-- once more, and the client gives that back when the transaction has ended (store/kept.py).

-- 1396834305 is the class of group locks (store/locks.py). The key goes back to the client, who frees it.
create function servicebroker.keep_lock(key integer) returns integer language plpgsql as $$
begin
    perform pg_advisory_lock(1396834305, key);
    return key;
end $$;

-- One row for each process number: written only to see which (sub)transaction writes it, so nobody waits for it.
create unlogged table servicebroker.savepoint_probes (pid integer primary key) with (fillfactor = 50);

-- Take a group's lock, waiting for it. Returns the key when the session keeps it beyond a savepoint, else null.
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

-- conversations whose lifetime may still run out
create index conversation_endpoints_lifetime on servicebroker.conversation_endpoints (queue_id, lifetime)
    where state in ('SO', 'SI', 'CO', 'DI', 'DO');

-- false: rollbacks do not switch the queue off
alter table servicebroker.queues add column is_poison_message_handling_enabled boolean not null default true;

-- RECEIVE returns two columns more; the functions are made again after the migrations.
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
