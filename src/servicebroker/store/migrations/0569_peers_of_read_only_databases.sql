-- The triggers of READ_ONLY databases (guard_read_only and refuse_read_only in store/verbs.sql) refuse neither what the
-- verbs of another database write into an endpoint about its peer, nor an INSERT into a queue that inserts nothing.
do $$
declare
    guarded record;
begin
    for guarded in
        select 'queue_' || q.queue_id as queue, 'read_only_' || d.database_id as trigger_name, d.name
          from servicebroker.queues q join servicebroker.databases d using (database_id) where d.is_read_only
    loop
        execute format('drop trigger if exists %1$I on servicebroker.%2$I; '
                       'create trigger %1$I before update or delete on servicebroker.%2$I for each statement '
                       'execute function servicebroker.refuse_read_only(%3$L); '
                       'create trigger %1$s_new before insert on servicebroker.%2$I for each row '
                       'execute function servicebroker.refuse_read_only(%3$L)',
                       guarded.trigger_name, guarded.queue, guarded.name);
    end loop;
end $$;
