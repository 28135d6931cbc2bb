-- END locks and looks up less (end_dialog and finish_dialog in store/queue.sql): functions of each queue take the place of
-- these.
drop function if exists servicebroker.end_dialog(uuid, timestamptz, integer, integer, bigint);
do $$
declare
    queue integer;
begin
    for queue in select queue_id from servicebroker.queues loop
        execute format('drop function if exists servicebroker.purge_%s(uuid, smallint, uuid)', queue);
    end loop;
end $$;

-- A generated column is parsed and compiled for each statement that changes a state. Who makes a state ER or CD sets this one.
alter table servicebroker.conversation_endpoints
    alter column can_expire drop expression,
    alter column can_expire set default true;
