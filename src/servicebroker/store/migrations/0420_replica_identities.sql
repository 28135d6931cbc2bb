-- Every table has a replica identity: without one, a publication FOR ALL TABLES stops RECEIVE and END (decision 420).
-- Queues get theirs by store/queue.sql, of an index that has to be unique.

do $$
declare
    queue integer;
    indexed record;
    made text;
    last bigint;
begin
    for queue in select queue_id from servicebroker.queues loop
        for indexed in
            select * from (values ('queue', 'arrival', 'priority desc, queuing_order', 'priority, queuing_order',
                                   ', stamp = greatest(m.stamp, pg_current_xact_id())'),
                                  ('retained', 'conversation', 'conversation_handle, queuing_order',
                                   'conversation_handle, queuing_order', ''))
                          as i (kind, name, columns, compared, stamped)
             where to_regclass(format('servicebroker.%s_%s', i.kind, queue)) is not null
        loop
            made := format('create unique index %1$s_%2$s_unique on servicebroker.%1$s_%2$s (%3$s)',
                           indexed.kind, queue, indexed.columns);
            begin
                execute made;
            exception when unique_violation then  -- somebody has set the sequence back: new numbers for what came later
                execute format('select max(queuing_order) from servicebroker.%s_%s', indexed.kind, queue) into last;
                perform setval(s.oid, greatest(last, pg_sequence_last_value(s.oid)))
                   from (select format('servicebroker.queue_%s_order', queue)::regclass as oid) s;
                execute format('update servicebroker.%1$s_%2$s m set queuing_order = nextval(''servicebroker.queue_%2$s_order'')%4$s '
                               'from (select ctid as place, row_number() over (partition by %3$s order by message_enqueue_time) '
                               'from servicebroker.%1$s_%2$s) d where m.ctid = d.place and d.row_number > 1',
                               indexed.kind, queue, indexed.compared, indexed.stamped);
                execute made;
            end;
            execute format('drop index if exists servicebroker.%s_%s_%s', indexed.kind, queue, indexed.name);
            execute format('alter index servicebroker.%1$s_%2$s_unique rename to %1$s_%2$s_%3$s',
                           indexed.kind, queue, indexed.name);
        end loop;
    end loop;
end $$;

-- Tables of few rows that hardly change, and no row of which is large.
alter table servicebroker.domain_membership replica identity full;
alter table servicebroker.instance replica identity full;
alter table servicebroker.made replica identity full;
alter table servicebroker.trail_settings replica identity full;
alter table servicebroker.tsql_schemas replica identity full;

-- The trail is dropped by the partition; rows are deleted one by one where they came while there was no partition for them.
alter table servicebroker.trail replica identity full;
alter table servicebroker.trail_rest replica identity full;
do $$
declare
    part regclass;
begin
    for part in select inhrelid from pg_inherits where inhparent = 'servicebroker.trail'::regclass loop
        execute format('alter table %s replica identity full', part);
    end loop;
end $$;
